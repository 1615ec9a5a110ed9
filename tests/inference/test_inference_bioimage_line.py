"""Packages and converted networks as --convnet-model of a whole line."""

import h5py
import numpy as np
import pytest
import torch
from bioimage_packages import (
    describe,
    input_0_4,
    make_network,
    output_0_4,
    save_onnx,
    write_package,
    zipped,
)

from chunkflow_py.cli.main import main

SIZE = (6, 18, 20)
PATCHES = ["-s", "4", "8", "8", "-v", "1", "2", "2", "--device", "cpu"]
ZSCORE = {
    "name": "zero_mean_unit_variance",
    "kwargs": {"mode": "fixed", "axes": "zyx", "mean": [100.0], "std": [50.0]},
}


@pytest.fixture
def image(tmp_path, monkeypatch):
    """Work in a folder with an image em.h5, and return its voxels."""
    monkeypatch.chdir(tmp_path)
    voxels = np.random.default_rng(0).integers(1, 256, SIZE, dtype=np.uint8)
    with h5py.File("em.h5", "w") as file:
        file["main"] = voxels
    return voxels


def run(*words):
    """Run inference on em.h5 and return exit code and the result, if there is one."""
    with pytest.raises(SystemExit) as stop:
        main(["load-h5", "-f", "em.h5", "inference", *map(str, words), "save-h5", "-f", "out.h5"])
    if stop.value.code:
        return stop.value.code, None
    with h5py.File("out.h5") as file:
        return 0, file["main"][:]


def inner(network, voxels):
    """Return the network on all voxels at once, without one voxel at each face."""
    with torch.no_grad():
        found = network(torch.from_numpy(voxels)[None, None])[0].numpy()
    return found[:, 1:-1, 1:-1, 1:-1]


@pytest.mark.parametrize("archive", [False, True])
@pytest.mark.parametrize("kind", ["pytorch_state_dict", "torchscript"])
def test_a_package_says_what_the_options_would(image, tmp_path, kind, archive):
    """Channels, margin, normalisation and activation come from the package, by its path alone."""
    description = describe(
        "0.4.10",
        [input_0_4(preprocessing=[ZSCORE])],
        [output_0_4(halo=[0, 0, 1, 1, 1], postprocessing=[{"name": "sigmoid"}])],
    )
    folder = write_package(tmp_path / "package", description, kind=kind)
    code, found = run("-m", zipped(folder) if archive else folder, *PATCHES)
    assert code == 0
    scaled = (image.astype(np.float32) - 100) / (50 + 1e-6)
    expected = 1 / (1 + np.exp(-inner(make_network(), scaled)))
    np.testing.assert_allclose(found[:, 1:-1, 1:-1, 1:-1], expected, atol=1e-5)


def test_a_patch_that_a_package_does_not_take_is_refused_with_the_nearest(image, tmp_path, capsys):
    """Sizes are checked before anything is loaded; the message can be pasted."""
    folder = write_package(tmp_path / "package", describe("0.4.10"))
    assert run("-m", folder, "-s", 5, 8, 8, "-v", 1, 2, 2)[0] == 2
    assert "use the nearest size, --input-patch-size" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("backend", ["torch", "onnxruntime", "openvino"])
def test_an_onnx_file_is_a_model(image, tmp_path, backend):
    """An .onnx file runs by ONNX Runtime, or by OpenVINO if that is asked for."""
    pytest.importorskip({"openvino": "openvino"}.get(backend, "onnxruntime"))
    network = make_network()
    save_onnx(tmp_path / "net.onnx", network)
    code, found = run("-m", "net.onnx", "-c", 2, "--backend", backend, "-z", 2, 6, 6, *PATCHES)
    assert code == 0
    expected = inner(network, image.astype(np.float32) / 255)
    np.testing.assert_allclose(found[:, 1:-1, 1:-1, 1:-1], expected, atol=1e-5)


def test_a_converted_network_takes_no_weights(image, tmp_path, capsys):
    """Weights beside a file that holds them are refused."""
    save_onnx(tmp_path / "net.onnx", make_network())
    (tmp_path / "weights.pt").write_bytes(b"")
    assert run("-m", "net.onnx", "-w", "weights.pt", "-c", 2, *PATCHES)[0] == 2
    assert "leave --convnet-weight-path" in " ".join(capsys.readouterr().err.split())


def test_outputs_that_only_the_package_names_are_known_to_the_line(image, tmp_path):
    """Two outputs become chunks by their names, which later commands may read."""

    class Two(torch.nn.Module):
        def forward(self, batch):
            return batch, batch * 0.5

    outputs = [output_0_4(channels=1, name=name) for name in ("first", "second")]
    description = describe("0.4.10", None, outputs)
    example = torch.zeros(1, 1, 6, 6, 6)
    folder = write_package(tmp_path / "package", description, network=Two(), example=example)
    words = ["load-h5", "-f", "em.h5", "inference", "-m", folder, *PATCHES]
    with pytest.raises(SystemExit) as stop:
        main([*map(str, words), "save-h5", "-i", "second", "-f", "out.h5"])
    assert stop.value.code == 0
    with h5py.File("out.h5") as file:
        np.testing.assert_allclose(file["main"][:][0], image * 0.5, rtol=1e-6)

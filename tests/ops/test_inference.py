"""inference: the command line itself."""

import json

import h5py
import numpy as np
import pytest
import torch
from rigs.command_line import say

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.main import main
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.normalization import statistics_of
from chunkflow_py.ops.inference import command
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

SIZE = (6, 18, 20)
PATCHES = ["-s", 4, 8, 8, "-v", 1, 2, 2, "--device", "cpu"]
IDENTITY = ["-f", "identity", *PATCHES]

MODEL = """
import torch

class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.{layer}

    def forward(self, x):
        y = self.layer(x)
        return {returned}

InstantiatedModel = Network()
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Work in a folder with an image em.h5."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("em.h5", "w") as file:
        file["main"] = np.random.default_rng(0).integers(1, 256, SIZE, dtype=np.uint8)
        file["voxel_size"] = (40, 8, 8)
    return tmp_path


def write_model(path, returned="y", layer="Conv3d(1, 4, 3, padding=1)"):
    """Write a model file."""
    path.write_text(MODEL.format(layer=layer, returned=returned))
    return str(path)


def line(*words, source=("load-h5", "-f", "em.h5")):
    """Run a line and return its exit code."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in (*source, *words)])
    return stop.value.code


def run(*words, save="out.h5", item="chunk", **more):
    """Run inference and return what it wrote."""
    assert line("inference", *words, "save-h5", "-f", save, "-i", item, **more) == 0
    with h5py.File(save) as file:
        return file["main"][:]


def image():
    """Return the voxels of em.h5."""
    with h5py.File("em.h5") as file:
        return file["main"][:]


NAMED = ["--output-names", "a,b"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            ["--output-channels", "3,1"],
            "--output-channels needs the names of the outputs; add",
        ),
        (["--output-kind", "logit,vector"], "--output-kind needs the names .* add --output-names"),
        (NAMED, "lists 2 outputs, --output-channels lists 0 .* either a kind for every output"),
        ([*NAMED, "--output-channels", "3"], "lists 2 outputs, --output-channels lists 1"),
        ([*NAMED, "--output-channels", "3,0"], "'3,0' is not a list of numbers above 0; write 3,1"),
        ([*NAMED, "--output-channels", "3,x"], "'3,x' is not a list of numbers above 0"),
        (
            [*NAMED, "--output-channels", "3,1", "--output-kind", "affinity"],
            "--output-kind lists 1 kinds; list a name and a number of channels",
        ),
        (
            [*NAMED, "--output-channels", "3,1", "--augment"],
            "--augment needs a network with one",
        ),
        ([*NAMED, "--output-channels", "3,1", "-y", 0.3], "--mask-myelin-threshold needs .* one"),
        (
            [*NAMED, "--output-channels", "3,1", "--output-dtype", "argmax"],
            "--output-dtype argmax needs a network with one output",
        ),
        (["--output-kind", "afinity"], "'afinity' is not one of probability, affinity"),
        (["--output-kind", "affinity", "-c", 2], r"three channels .* but the output has 2; change"),
        (["--output-dtype", "uint8", "--output-kind", "logit"], "or --activation sigmoid"),
        (["--output-dtype", "argmax", "-c", 1], "2 to 256 channels, .* set --num-output-channels"),
        (
            ["--mask-myelin-threshold", 0.3, "-c", 1],
            "--num-output-channels is 1; use at least 2 channels",
        ),
        (["--normalize", "zscore"], "needs statistics .* with --normalize-statistics"),
        (["--normalize", "none", "--normalize-statistics", "s.json"], "or leave the file out"),
        (["--normalize-statistics", "s.json"], "use --normalize zscore or percentile"),
        (["--normalize", "zscore", "--normalize-statistics", "no.json"], "no.json does not exist"),
        (["--normalize-mean", "1,x"], "'1,x' is not a list of numbers; write 131.2,24.9"),
        (["--normalize-mean", "nan"], "'nan' is not a list of numbers"),
        (["--normalize-mean", "1"], "--normalize-mean is given without --normalize-std"),
        (["--normalize-mean", "1", "--normalize-std", "0"], "deviation of 0, .* must be positive"),
        (
            ["--normalize", "none", "--normalize-std", "1"],
            "std is only for --normalize zscore, but",
        ),
        (["--normalize", "mean"], "'mean' is not one of 'dtype', 'none', 'zscore', 'percentile'"),
        (["--grid", "padded", "--pad", "none"], "use --grid anchored, or --pad reflect"),
        (["--augment", "-s", 4, 8, 10], "the input patch is 8 x 10 .* square in plane"),
        (["-v", 4, 2, 2], "set --output-patch-overlap to at most 3 2 2"),
        (["-z", 3, 8, 8], "use --output-patch-size"),
        (["-z", 6, 8, 8], "lower --output-patch-size to .?4,? 8,? 8"),
        (["--activation", "relu"], "'relu' is not one of 'none', 'sigmoid', 'softmax'"),
        (["--dtype", "float8"], "'float8' is not one of 'float32', 'bfloat16', 'float16'"),
        (["--spatial-dims", "4"], "'4' is not one of '3', '2'"),
        (["--backend", "tensorflow"], "'tensorflow' is not one of"),
        (["--batch-size", 0], "0 is not in the range x>=1"),
        (["--model-voxel-size-nm", 40, 0, 8], "'0' is not a number above 0"),
        (["-f", "pytorch"], "--framework pytorch needs a network; give --convnet-model"),
        (["-f", "pytorch", "-m", "gone.py"], "--convnet-model gone.py does not exist"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else "",
)
def test_what_contradicts_itself_is_a_usage_error_with_a_remedy(folder, capsys, words, said):
    """Exit code 2 before anything is read or written, and one sentence that says what to change."""
    import re

    assert line("inference", *IDENTITY, *words, "save-h5", "-f", "out.h5") == 2
    text = " ".join(capsys.readouterr().err.split())
    assert re.search(said, text), text
    assert "Traceback" not in text
    assert not (folder / "out.h5").exists()


def test_every_option_reaches_settings_and_network():
    """Each option that is given is found in what the command makes."""
    words = [
        "-f", "identity", "-s", 4, 16, 16, "-z", 2, 8, 8, "-v", 1, 2, 2, "-b", 3,
        "--num-input-channels", 2, "-c", 4, "--device", "cpu", "--backend", "torch",
        "-d", "bfloat16", "--compile", "--tf32", "--no-cuda-graphs", "--spatial-dims", 2,
        "--output-dtype", "float16", "--output-kind", "embedding", "--activation", "softmax",
        "--activate", "after", "--normalize", "none", "--model-voxel-size-nm", 40, 8, 8.5,
        "--skip-empty-patches", "--bump", "linear", "--grid", "padded", "--pad", "edge",
        "--patch-divisor", 1, 2, 4, "--output-margin", 1, 2, 3, "--mask-myelin-threshold", 0.3,
        "--augment", "--trust-weights",
    ]  # fmt: skip
    with command.make_context("inference", [str(word) for word in words]) as context:
        body = command.invoke(context).body
    settings, network = body.settings, body.network
    assert settings.geometry.input_patch_size == (4, 16, 16)
    assert settings.geometry.output_patch_size == (2, 8, 8)
    assert settings.geometry.output_patch_overlap == (1, 2, 2)
    assert (settings.batch_size, settings.num_input_channels) == (3, 2)
    assert (settings.num_output_channels, settings.output_channels) == (4, 3)
    assert (settings.output_dtype, settings.output_kind) == ("float16", "embedding")
    assert (settings.activation, settings.activate) == ("softmax", "after")
    assert settings.normalizer.method == "none"
    assert (settings.skip_empty, settings.bump, settings.pad) == (True, "linear", "edge")
    assert (settings.keep_stride, settings.augment) == (True, True)
    assert settings.mask_myelin_threshold == 0.3
    assert network.items() >= {
        "model": None, "weights": None, "spatial_dims": 2, "framework": "identity",
        "backend": "torch", "device": "cpu", "dtype": "bfloat16", "compile": True, "tf32": True,
        "cuda_graphs": False, "trust_weights": True,
    }.items()  # fmt: skip
    assert body.model_voxel_size_nm == (40, 8, 8.5)
    assert body.patch_divisor == (1, 2, 4)
    assert body.placement.output_margin == (1, 2, 3)
    assert not body.warn_of_dtype


@pytest.mark.parametrize("dtype", ["float32", "float16", "uint8"])
def test_output_types(folder, dtype):
    """The identity network gives the image back in every type."""
    found = run(*IDENTITY, "-c", 1, "--output-dtype", dtype)
    assert found.dtype == dtype
    scale = 255 if dtype == "uint8" else 1
    np.testing.assert_allclose(found[0] / scale, image() / 255, atol=1e-3)


def test_argmax_of_a_network(folder):
    """One channel of uint8: the channel with the largest value, whatever the activation."""
    model = write_model(folder / "net.py")
    words = ["-f", "pytorch", "-m", model, *PATCHES, "-c", 4]
    values = run(*words)
    found = run(*words, "--output-dtype", "argmax", save="argmax.h5")
    assert (found.dtype, found.shape) == (np.uint8, (1, *SIZE))
    assert np.array_equal(found[0], values.argmax(0))
    assert len(np.unique(found)) > 1
    after = ["--activation", "softmax", "--activate", "after", "--output-dtype", "argmax"]
    soft = run(*words, *after, save="softmax.h5")
    assert (soft == found).mean() > 0.999


def test_zscore_with_a_statistics_file(folder):
    """The file that `statistics_of` makes gives a mean of 0 and a deviation of 1."""
    statistics = statistics_of([image()[:3], image()[3:]])
    (folder / "statistics.json").write_text(json.dumps(statistics))
    given = ["--normalize-statistics", "statistics.json", "-c", 1]
    found = run(*IDENTITY, "--normalize", "zscore", *given)
    np.testing.assert_allclose([found.mean(), found.std()], [0, 1], atol=1e-5)
    numbers = ["--normalize-mean", image().mean(), "--normalize-std", image().std()]
    by_numbers = run(*IDENTITY, "-c", 1, *numbers, save="numbers.h5")
    np.testing.assert_allclose(by_numbers, found, atol=1e-6)
    low, high = np.percentile(image(), [1, 99])
    found = run(*IDENTITY, "--normalize", "percentile", *given, save="percentile.h5")
    np.testing.assert_allclose(found[0], (image() - low) / (high - low), atol=1e-5)


def test_data_of_another_voxel_size_are_refused(folder, capsys):
    """More than 10 % off is an error with both sizes; within it passes."""
    words = ["-c", 1, "--model-voxel-size-nm", 40]
    run(*IDENTITY, *words, 8.5, 7.5)
    capsys.readouterr()
    assert line("inference", *IDENTITY, *words, 16, 16, "save-h5", "-f", "no.h5") == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "trained on voxels of 40 16 16 nm (zyx), but the voxels of the data are 40 8 8" in text
    assert "mip" in text
    assert not (folder / "no.h5").exists()


@pytest.mark.parametrize(
    ("returned", "order"),
    [
        ("{'affinity': y[:, :3], 'myelin': y[:, 3:]}", "affinity,myelin"),
        ("{'myelin': y[:, 3:], 'affinity': y[:, :3], 'more': y}", "affinity,myelin"),
        ("(y[:, :3], y[:, 3:])", "affinity,myelin"),
    ],
)
def test_several_outputs_become_named_chunks(folder, returned, order):
    """Keys of a dict, or places in a tuple: each output is a chunk of its channels and kind."""
    words = ["-f", "pytorch", *PATCHES, "--activation", "sigmoid"]
    whole = run(*words, "-c", 4, "-m", write_model(folder / "whole.py"))
    model = write_model(folder / "net.py", returned)
    named = ["-m", model, "--output-names", order, "--output-channels", "3,1"]
    kinds = ["--output-kind", "affinity,probability"]
    assert line(
        "inference", *words, *named, *kinds,
        "save-h5", "-f", "a.h5", "-i", "affinity", "save-h5", "-f", "m.h5", "-i", "myelin",
    ) == 0  # fmt: skip
    for name, part in (("a.h5", whole[:3]), ("m.h5", whole[3:])):
        with h5py.File(name) as file:
            np.testing.assert_allclose(file["main"][:], part, atol=1e-6)


def test_a_2d_network_sees_sections(folder):
    """--spatial-dims 2 runs a 2D network section by section."""
    model = write_model(folder / "net.py", layer="Conv2d(1, 1, 1)")
    found = run("-f", "pytorch", "-m", model, *PATCHES, "-c", 1, "--spatial-dims", 2)
    torch.manual_seed(0)
    layer = torch.nn.Conv2d(1, 1, 1)
    expected = image() / 255 * layer.weight.item() + layer.bias.item()
    np.testing.assert_allclose(found[0], expected, atol=1e-6)


def test_the_error_of_a_lower_precision_is_logged(folder, capsys):
    """--dtype bfloat16 prints the profile and the error against float32; float32 no error."""
    model = write_model(folder / "net.py")
    words = ["-f", "pytorch", "-m", model, *PATCHES, "-c", 4]
    run(*words, "--dtype", "bfloat16", source=("--verbose", "load-h5", "-f", "em.h5"))
    text = capsys.readouterr().err
    assert "compute profile:" in text
    assert "bfloat16" in text
    assert "error against float32" in text
    assert "largest" in text
    run(*words, save="f.h5", source=("--verbose", "load-h5", "-f", "em.h5"))
    text = capsys.readouterr().err
    assert "compute profile:" in text
    assert "error against float32" not in text


def test_empty_patches_are_skipped_and_counted(folder, capsys):
    """Zero where only empty patches lie, and the log says how many were left out."""
    with h5py.File("em.h5", "a") as file:
        file["main"][:, :, 10:] = 0
    model = write_model(folder / "net.py", "y * 0 + 1")
    words = ["-f", "pytorch", "-m", model, *PATCHES, "-c", 4, "--skip-empty-patches"]
    found = run(*words, source=("--verbose", "load-h5", "-f", "em.h5"))
    assert not found[..., 14:].any()
    np.testing.assert_allclose(found[..., :6], 1, atol=1e-6)
    text = capsys.readouterr().err
    assert "patches were not computed, because they are empty or masked" in text


@pytest.mark.parametrize("task", [(6, 18, 20), (3, 6, 10), (2, 9, 4)])
def test_a_patch_mask_gives_one_answer_however_the_volume_is_cut(folder, task):
    """Against a real mask of coarser voxels: a float64 reference, whatever the size of tasks."""
    bounds = BoundingBox.from_size((0, 0, 0), (3, 5, 5))
    spec = VolumeSpec(bounds, (80, 32, 32), np.dtype("u1"), None, None, Zyx(3, 5, 5))
    values = np.zeros(bounds.size, np.uint8)
    values[0, 0, 0] = values[2, 4, 3] = 1
    create_volume(spec, f"zarr://{folder}/mask.zarr").write(Chunk(values, (0, 0, 0), (80, 32, 32)))
    model = write_model(folder / "net.py", "y * 0 + 1")
    assert line(
        "generate-tasks", "--roi-start", 0, 0, 0, "--roi-size", *SIZE, "--chunk-size", *task,
        "load-h5", "-f", "em.h5", "--expand-margin-size", "auto",
        "inference", "-f", "pytorch", "-m", model, *PATCHES, "-c", 4,
        "--patch-mask", "mask.zarr", "save-zarr", "-s", "out.zarr", "--block-size", *task,
        source=(),
    ) == 0  # fmt: skip
    import zarr

    found = zarr.open_group("out.zarr", mode="r")["0"][:]
    with command.make_context("inference", [str(word) for word in [*IDENTITY]]) as context:
        settings = command.invoke(context).body.settings
    domain = BoundingBox.from_size((0, 0, 0), SIZE)
    total, weight = np.zeros(SIZE), np.zeros(SIZE)
    fine = np.kron(values, np.ones((2, 4, 4)))
    for patch in settings.grid(domain).patches(domain):
        weight[patch.slices()] += settings.window
        if fine[patch.slices()].any():
            total[patch.slices()] += settings.window
    for channel in found:
        np.testing.assert_allclose(channel, total / weight, atol=1e-6)
    assert 0 < (total == 0).sum() < total.size


def test_names_of_outputs_are_checked_before_any_work(folder, capsys):
    """With --output-names there is no chunk of --output-name: reading it is a usage error."""
    named = ["--output-names", "a,b", "--output-channels", "3,1", "-o", "map"]
    assert line("inference", *IDENTITY, *named, "save-h5", "-f", "out.h5", "-i", "map") == 2
    text = " ".join(capsys.readouterr().err.split())
    assert "save-h5 reads 'map', which no operator before it makes" in text
    assert "a, b" in text
    assert not (folder / "out.h5").exists()


@pytest.mark.parametrize(
    ("words", "files", "code"),
    [
        ("-f identity", {}, 0),
        ("-m rsunet -w {}/w.pt", {"w.pt": "data"}, 0),
        ("-m rsunet -w {}/w.pt --trust-weights", {"w.pt": "code"}, 1),
        ("-m {}/net.py -w {}/w.pt", {"net.py": "code", "w.pt": "data"}, 1),
        ("-m {}/net.pt", {"net.pt": "code"}, 1),
        ("-m {}/net.onnx", {"net.onnx": "data"}, 0),
    ],
)
def test_what_a_run_takes_along(tmp_path, words, files, code):
    """Files are named as they were typed; a network that is no built-in one is code, ONNX data."""
    for name in ("net.py", "net.pt", "net.onnx", "w.pt"):
        (tmp_path / name).touch()
    line = f"inference -s 4 8 8 -v 0 0 0 {words.replace('{}', str(tmp_path))}"
    body = read_line(line.split())[0].body
    assert body.needed_files == {f"{tmp_path}/{name}": role for name, role in files.items()}
    assert len(body.code) == code
    assert all(str(tmp_path) in said for said in body.code)


def test_networks_of_several_files_are_not_taken_along(tmp_path):
    """A network that needs files beside the one that is named is refused, with what to do."""
    (tmp_path / "net.xml").touch()
    body = read_line(f"inference -s 4 8 8 -v 0 0 0 -m {tmp_path}/net.xml".split())[0].body
    with pytest.raises(OptionError, match=r"net.xml consists of two files .* give the .onnx file"):
        _ = body.needed_files


def test_logits_of_classes_name_softmax(tmp_path, monkeypatch):
    """Values outside of [0, 1] may be logits of single channels, or of classes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(
        "InstantiatedModel = lambda x: (9 * x).repeat(1, 2, 1, 1, 1)\n"
    )
    line = (
        "create-chunk --size 4 8 8 --dtype uint8 inference --convnet-model net.py "
        "--input-patch-size 4 8 8 --num-output-channels 2 --output-kind probability"
    )
    output = " ".join(say(line, code=1).split())
    assert "--activation softmax for exclusive classes" in output

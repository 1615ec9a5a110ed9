"""Affinities of networks with other conventions are stored as those of this project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from chunkflow_py import open_volume
from chunkflow_py.cli.command_line import read_line
from chunkflow_py.cli.main import main
from chunkflow_py.core.affinity_layout import AffinityLayout
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.affinity_output import as_stored
from chunkflow_py.inference.backend_factory import create_backend

LAYOUTS = [AffinityLayout(order, at) for order in ("xyz", "zyx") for at in ("target", "source")]
SIZE = (10, 24, 24)

# Each affinity is the product of the two voxels of its edge.
NETWORK = """
import torch

ORDER, STEP = {order!r}, {step}


class Network(torch.nn.Module):
    def forward(self, x):
        edges = [x * torch.roll(x, STEP, "zyx".index(axis) - 3) for axis in ORDER]
        return {returned}


InstantiatedModel = Network()
"""


def written(folder: Path, layout: AffinityLayout, returned: str = "torch.cat(edges, 1)") -> str:
    """Write a network of this convention."""
    file = folder / f"net_{layout.order}_{layout.at}.py"
    step = 1 if layout.at == "target" else -1
    file.write_text(NETWORK.format(order=layout.order, step=step, returned=returned))
    return str(file)


def convention(layout: AffinityLayout) -> list[str]:
    """Return the options of a convention."""
    return ["--affinity-order", layout.order, "--affinity-at", layout.at]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with an image em.h5."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("em.h5", "w") as file:
        file["main"] = np.random.default_rng(0).integers(1, 256, SIZE, dtype=np.uint8)
    return tmp_path


def run(*words: object, tasks: tuple[int, ...] = SIZE) -> Any:
    """Run inference on tasks of a size; return the stored affinities."""
    store = f"out{len(list(Path.cwd().glob('out*')))}.zarr"
    line = (
        "generate-tasks", "--roi-start", 0, 0, 0, "--roi-size", *SIZE, "--chunk-size", *tasks,
        "load-h5", "-f", "em.h5", "--expand-margin-size", "auto",
        "inference", "-f", "pytorch", "-s", 6, 12, 12, "-v", 1, 2, 2, "--device", "cpu", *words,
        "save-zarr", "--store", store, "--block-size", 5, 8, 8,
    )  # fmt: skip
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in line])
    assert stop.value.code == 0
    volume = open_volume(store)
    return volume.read(volume.bounds).array


@pytest.mark.parametrize("layout", LAYOUTS)
def test_values_are_those_of_the_convention(layout: AffinityLayout) -> None:
    """Against the arrangement that segmentation uses; other channels stay, the input is kept."""
    output = torch.rand(2, 5, 3, 4, 5)
    before = output.clone()
    stored = as_stored(output, layout, [1])
    assert torch.equal(output, before)
    assert torch.equal(stored[:, [0, 4]], output[:, [0, 4]])
    for mine, given in zip(stored[:, 1:4], output[:, 1:4], strict=True):
        assert np.array_equal(mine.flip(0).numpy(), layout.arranged(given.numpy()))
    assert layout.offsets == {
        "xyz": AffinityLayout("zyx", layout.at).offsets[::-1], "zyx": layout.offsets,
    }[layout.order]  # fmt: skip


def test_offsets_point_from_the_voxel_of_a_value_to_its_partner() -> None:
    """With target to the lower neighbour, with source to the upper one."""
    assert AffinityLayout().offsets == ((0, 0, -1), (0, -1, 0), (-1, 0, 0))
    assert AffinityLayout("zyx", "source").offsets == ((1, 0, 0), (0, 1, 0), (0, 0, 1))


@pytest.mark.parametrize("more", [[], ["--augment"]])
def test_all_conventions_store_the_same_bytes(folder: Path, more: list[str]) -> None:
    """For one task and for many; as many networks of one function, told how they return it."""
    target = ["--output-patch-size", 4, 8, 8, *more]
    wanted = run("-m", written(folder, LAYOUTS[0]), *target)
    with h5py.File("em.h5") as file:
        image = file["main"][:].astype(np.float32) / 255
    np.testing.assert_allclose(wanted[0, :, :, 1:], image[:, :, 1:] * image[:, :, :-1], atol=1e-6)
    np.testing.assert_allclose(wanted[2, 1:], image[1:] * image[:-1], atol=1e-6)
    for layout in LAYOUTS[1:]:
        for tasks in (SIZE, (5, 8, 16)):
            words = ("-m", written(folder, layout), *convention(layout), *target)
            assert np.array_equal(run(*words, tasks=tasks), wanted), (layout, tasks)


def test_only_the_affinities_of_several_outputs_are_converted(folder: Path) -> None:
    """A second group of affinities is converted too, other outputs keep their channels."""
    returned = '{"mask": x.repeat(1, 3, 1, 1, 1), "near": torch.cat(edges, 1)}'
    sizes: Any = {"input_patch_size": (6, 12, 12), "output_patch_size": (4, 8, 8)}
    named: Any = {"outputs": ("mask", "near"), "output_channels": (3, 3), "num_output_channels": 6}
    batch = torch.rand(1, 1, 6, 12, 12)
    results = [
        create_backend(
            "pytorch", model=written(folder, layout, returned), device="cpu",
            affinity_order=layout.order, affinity_at=layout.at, affinity_channels=(3,),
            **sizes, **named,
        )(batch)[..., 1:-1, 2:-2, 2:-2]
        for layout in LAYOUTS
    ]  # fmt: skip
    assert all(torch.equal(result, results[0]) for result in results)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--affinity-at", "source"],
            r"margin .* is \(0, 0, 0\) .*; give --output-patch-size 4 10 10, or",
        ),
        (
            ["--affinity-at", "source", "--output-patch-size", 6, 8, 8],
            r"is \(0, 2, 2\) .* give --output-patch-size 4 8 8, or .* agglomerate",
        ),
        (
            ["--affinity-order", "zyx", "--output-kind", "vector"],
            "--affinity-order zyx converts affinities, but --output-kind",
        ),
        (["--affinity-at", "source", "-c", 1], "--affinity-at source converts affinities"),
    ],
)
def test_what_cannot_be_converted_is_refused(
    folder: Path, words: list[object], message: str
) -> None:
    """Before a task runs, with the values that would work."""
    line = ["inference", "-m", written(folder, LAYOUTS[0]), "-s", 6, 12, 12, "-v", 1, 2, 2, *words]
    with pytest.raises(OptionError, match=message):
        read_line([str(word) for word in line])


def test_a_network_that_drops_the_margin_itself_is_refused(folder: Path) -> None:
    """At source its lowest values are missing; its order can be converted."""
    model = written(folder, LAYOUTS[3], "torch.cat(edges, 1)[..., 1:-1, 2:-2, 2:-2]")
    given: Any = {
        "model": model, "device": "cpu", "affinity_channels": (0,),
        "input_patch_size": (6, 12, 12), "output_patch_size": (4, 8, 8),
    }  # fmt: skip
    batch = torch.rand(1, 1, 6, 12, 12)
    plain = create_backend("pytorch", **given)(batch).clone()
    ordered = create_backend("pytorch", affinity_order="zyx", **given)(batch)
    assert torch.equal(ordered, plain.flip(1))
    with pytest.raises(ModelError, match="needs the margin .* to agglomerate or segment-affinity"):
        create_backend("pytorch", affinity_at="source", **given)(batch)


@pytest.mark.parametrize("framework", ["identity", "universal"])
def test_backends_that_cannot_convert_say_so(folder: Path, framework: str) -> None:
    """The identity has no affinities, and a PatchInferencer has multiplied by the window."""
    file = folder / "inferencer.py"
    file.write_text("class PatchInferencer:\n    pass\n")
    with pytest.raises(OptionError, match="cannot convert the output of"):
        create_backend(
            framework, model=str(file), input_patch_size=(4, 8, 8), output_patch_size=(4, 8, 8),
            device="cpu", affinity_order="zyx", affinity_channels=(0,),
        )  # fmt: skip

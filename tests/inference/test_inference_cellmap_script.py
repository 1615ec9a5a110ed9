"""Model scripts of cellmap-flow run as they are, with the sizes that they declare."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import h5py
import numpy as np
import pytest

from chunkflow_py.cli.main import main
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.backend_factory import create_backend

if TYPE_CHECKING:
    from pathlib import Path

# Coordinates of such scripts are tuples that are multiplied axis by axis.
SCRIPT = """
import numpy as np
import torch


class Coordinate(tuple):
    def __mul__(self, other):
        return Coordinate(a * b for a, b in zip(self, other, strict=True))


input_voxel_size = (8, 8, 8)
output_voxel_size = Coordinate((8, 8, 8))
read_shape = Coordinate((8, 16, 16)) * Coordinate(input_voxel_size)
write_shape = Coordinate((4, 12, 12)) * Coordinate(output_voxel_size)
output_channels = 2
block_shape = np.array((4, 12, 12, output_channels))


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = self.scale * x[..., 2:-2, 2:-2, 2:-2]
        return torch.cat([x, 1 - x], 1)


model = Network()
"""
SIZES: dict[str, Any] = {
    "input_patch_size": (8, 16, 16), "output_patch_size": (4, 12, 12), "num_output_channels": 2,
    "device": "cpu",
}  # fmt: skip


def written(folder: Path, old: str = "", new: str = "") -> str:
    """Write the script, with one change."""
    assert old in SCRIPT
    path = folder / "script.py"
    path.write_text(SCRIPT.replace(old, new) if old else SCRIPT)
    return str(path)


def chunkflow(*words: object) -> int:
    """Run a command line, and return its exit code."""
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in words])
    return int(stop.value.code or 0)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder with an image of 8 nm and a script."""
    monkeypatch.chdir(tmp_path)
    with h5py.File("em.h5", "w") as file:
        file["main"] = np.random.default_rng(0).integers(0, 256, (12, 36, 36), dtype=np.uint8)
        file["voxel_size"] = (8, 8, 8)
    written(tmp_path)
    return tmp_path


INFERENCE = (
    "inference", "--convnet-model", "script.py", "--input-patch-size", 8, 16, 16,
    "--output-patch-size", 4, 12, 12, "--output-patch-overlap", 1, 4, 4,
    "--num-output-channels", 2, "--device", "cpu",
)  # fmt: skip


def test_a_script_runs_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Its model is the network; nobody is warned of weights that the script itself loads."""
    assert chunkflow("load-h5", "-f", "em.h5", *INFERENCE, "save-h5", "-f", "out.h5") == 0
    with h5py.File("em.h5") as image, h5py.File("out.h5") as file:
        expected = image["main"][:] / 255
        np.testing.assert_allclose(file["main"][0], expected, atol=1e-6)
        np.testing.assert_allclose(file["main"][1], 1 - expected, atol=1e-6)
    assert "--convnet-weight-path" not in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--model-voxel-size-nm", 8, 8, 8]])
def test_data_of_another_voxel_size_are_refused(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[object]
) -> None:
    """The script declares the voxel size, which may be given, too."""
    load = ("load-h5", "-f", "em.h5", "--voxel-size", 8, 4, 4)
    assert chunkflow(*load, *INFERENCE, *words, "save-h5", "-f", "out.h5") != 0
    message = capsys.readouterr().err
    assert "trained on voxels of 8 8 8 nm" in message
    assert "8 4 4" in message


def test_another_voxel_size_than_that_of_the_script_is_refused(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names both."""
    words = (*INFERENCE, "--model-voxel-size-nm", 40, 8, 8, "save-h5", "-f", "out.h5")
    assert chunkflow("load-h5", "-f", "em.h5", "--voxel-size", 40, 8, 8, *words) != 0
    expected = "--model-voxel-size-nm is 40 8 8, but model script.py declares 8 8 8 (nm, zyx)"
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input_patch_size": (8, 20, 20)}, r"is \(8, 20, 20\), but .* declares \(8, 16, 16\)"),
        ({"output_patch_size": (8, 16, 16)}, "use --output-patch-size 4 12 12"),
        ({"num_output_channels": 3}, "is 3, but .* output_channels 2; use --num-output-channels 2"),
    ],
)
def test_options_that_differ_from_the_script_are_refused(
    folder: Path, change: dict[str, Any], message: str
) -> None:
    """The error names both values and the option that works."""
    with pytest.raises(OptionError, match=message):
        create_backend(model="script.py", **SIZES | change)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("read_shape = Coordinate((8, 16, 16)) * Coordinate(input_voxel_size)",
         "input_size = (8, 16, 16)"),
        ("write_shape = Coordinate((4, 12, 12)) * Coordinate(output_voxel_size)",
         "output_size = np.array((4, 12, 12))"),
        ("output_channels = 2\nblock_shape = np.array((4, 12, 12, output_channels))", ""),
        ("input_voxel_size = (8, 8, 8)", "input_voxel_size = np.array((8.0, 8.0, 8.0))"),
    ],
)  # fmt: skip
def test_sizes_may_be_written_otherwise(folder: Path, old: str, new: str) -> None:
    """In voxels instead of nanometres, as arrays, or without the number of channels."""
    backend: Any = create_backend(model=written(folder, old, new), **SIZES)
    assert backend.voxel_size_nm == (8, 8, 8)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("model = Network()", "model = None", "defines no variable model, but only the network"),
        ("model = Network()", "model = 3", "model of .* is a int, not a network; write model ="),
        ("model = Network()", "model = Network()\nprocess_chunk = print", "defines process_chunk"),
        ("output_voxel_size = Coordinate((8, 8, 8))", "output_voxel_size = Coordinate((4, 4, 4))",
         r"input_voxel_size \(8, 8, 8\), but output_voxel_size \(4, 4, 4\) \(nm, zyx\)"),
        ("output_voxel_size = Coordinate((8, 8, 8))", "output_voxel_size = (8, 8, 8)\ndel Network",
         "raised an error: NameError"),
        ("Coordinate((8, 16, 16)) * Coordinate(input_voxel_size)", "(64, 128, 129)",
         r"read_shape of .* is \(64, 128, 129\), but input_voxel_size is \(8, 8, 8\)"),
        ("Coordinate((8, 16, 16)) * Coordinate(input_voxel_size)", "(64, 128, float('nan'))",
         "read_shape of .* is .*nan.*; give three positive numbers"),
        ("write_shape = Coordinate((4, 12, 12)) * Coordinate(output_voxel_size)", "",
         "output_size of the cellmap-flow script .* is missing; give three positive numbers"),
        ("output_channels = 2", "output_channels = 2.5",
         "output_channels of .* is 2.5, but output_channels must be a positive"),
    ],
)  # fmt: skip
def test_scripts_that_cannot_run_are_refused(
    folder: Path, old: str, new: str, message: str
) -> None:
    """One sentence says what is wrong in the script."""
    with pytest.raises(ModelError, match=message):
        create_backend(model=written(folder, old, new), **SIZES)

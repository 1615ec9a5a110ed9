"""`chunkflow tune`: what is printed can be read, pasted and parsed."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import click
import numpy as np
import pytest
from click.testing import CliRunner, Result

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.cli.subcommands.tune import MemoryType, _print_table, _read
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.planning import tune as tune_module
from chunkflow_py.planning.tune import Candidate, Measurement, Tuning

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SMALL = ("-c", "1", "-s", "8", "16", "16", "-v", "2", "4", "4", "--device", "cpu")


def run(*args: str) -> Result:
    """Run a command line in this process."""
    return CliRunner().invoke(cli, args)


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Try no other patch sizes and no large batches: each is a process."""
    monkeypatch.setattr(tune_module, "FACTORS", ())
    monkeypatch.setattr(tune_module, "MOST_PATCHES", 2)


@pytest.mark.usefixtures("few")
@pytest.mark.long
def test_the_line_can_be_pasted(tmp_path: Path) -> None:
    """Tune prints a table and a working inference command; progress goes to stderr."""
    (tmp_path / "my net.py").write_text(
        "class PatchInferencer:\n"
        "    def __init__(self, weights, mask):\n"
        "        self.mask = mask\n"
        "    def __call__(self, batch):\n"
        "        return batch[:, :, 1:-1, 2:-2, 2:-2] * self.mask\n"
    )
    size = ("--output-patch-size", "6", "12", "12", "--volume-size", "100", "200", "200")
    result = run("tune", "-m", str(tmp_path / "my net.py"), *SMALL, *size)
    assert result.exit_code == 0, result.output
    head, *rows = result.stdout.partition("\n\n")[0].splitlines()
    assert head.split()[:5] == ["backend", "dtype", "batch", "patch", "Mvoxel/s"]
    assert head.split()[-1] == "hours"
    assert sum(row.endswith("<- best") for row in rows) == 1
    assert all(row.split()[3] == "8x16x16" for row in rows)
    assert "INFO: torch float32, batch 1 of (8, 16, 16): " in result.stderr
    line = shlex.split(result.stdout.splitlines()[-1])
    assert line[0] == "inference"
    assert line[line.index("--output-patch-size") + 1 :][:3] == ["6", "12", "12"]
    output = str(tmp_path / "out.h5")
    pasted = run("create-chunk", "--size", "16", "32", "32", *line, "save-h5", "-f", output)
    assert pasted.exit_code == 0, pasted.output
    assert (tmp_path / "out.h5").exists()


@pytest.mark.usefixtures("few")
@pytest.mark.long
def test_json_holds_everything() -> None:
    """--json prints the same as data: the machine, each measurement, the best and the line."""
    image = ("--memory", "8GB", "--tolerance", "0.001", "--volume-size", "8", "16", "16")
    result = run("--quiet", "tune", "-f", "identity", *SMALL, *image, "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    found = json.loads(result.stdout)
    assert found["memory_bytes"] == 8_000_000_000
    assert found["tolerance"] == 0.001
    assert found["complete"]
    assert found["best"] in found["measurements"]
    first = found["measurements"][0]
    assert first["input_patch_size"] == [8, 16, 16]
    assert first["voxels_per_second"] == pytest.approx(6 * 12 * 12 / first["seconds"])
    assert first["hours"] == pytest.approx(first["seconds"] / 3600)
    assert first["percentile_999"] == 0
    assert found["line"].startswith("inference --framework identity ")


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.usefixtures("few")
def test_a_network_is_tried_in_all_precisions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For PyTorch networks the command names backend and precision."""
    monkeypatch.setattr(tune_module, "BACKENDS", {"cpu": ("torch",)})
    (tmp_path / "net.py").write_text(
        "from torch import nn\nInstantiatedModel = nn.Conv2d(1, 1, 3, padding=1)\n"
    )
    flat = ("--spatial-dims", "2")
    result = run("tune", "-m", str(tmp_path / "net.py"), *SMALL, *flat, "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    ways = [(m["dtype"], m["compile"]) for m in found["measurements"]]
    assert ways[0] == ("float32", False)
    assert any(compiled for _, compiled in ways)
    words = shlex.split(found["line"])
    assert words[words.index("--backend") + 1] == "torch"
    assert words[words.index("--dtype") + 1] == found["best"]["dtype"]
    pasted = run("create-chunk", "--size", "16", "32", "32", *words)
    assert pasted.exit_code == 0, pasted.output


def test_options_are_those_of_inference() -> None:
    """An option that tune shares with inference is spelled the same and has the same default."""
    params: Sequence[Any] = catalog.load("tune").params
    shared = {p.name: p for p in params if isinstance(p, click.Option)}
    count = 0
    for theirs in catalog.load("inference").params:
        ours = shared.get(theirs.name)
        if isinstance(theirs, click.Option) and ours is not None:
            count += 1
            assert (ours.opts, ours.nargs) == (theirs.opts, theirs.nargs)
            assert ours.default == theirs.default
    assert count == 11


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("16GB", 16 * 10**9),
        ("16GiB", 16 * 2**30),
        ("1.5g", 1_500_000_000),
        ("800 mb", 800_000_000),
        ("4096", 4096),
    ],
)
def test_memory_is_written_as_people_do(text: str, amount: int) -> None:
    """Decimal and binary units, upper or lower case, or bytes."""
    assert MemoryType().convert(text, None, None) == amount


@pytest.mark.parametrize("text", ["much", "0", "-1GB", "16XB", "GB", ""])
def test_other_amounts_are_refused(text: str) -> None:
    """An invalid amount of memory is a usage error that shows a valid one."""
    result = run("tune", "--memory", text)
    assert result.exit_code == 2
    assert "is not an amount of memory; write a number with a unit" in " ".join(
        result.stderr.split()
    )


def test_errors_end_with_their_codes() -> None:
    """A missing network is a usage error, a missing file is not; both are one sentence."""
    result = run("tune", "-f", "pytorch")
    assert result.exit_code == 2
    assert "needs a network; give --convnet-model" in result.stderr
    result = run("tune", "-m", "none.py")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1].startswith("Error: model file none.py does not exist")


# --- the image -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["image.h5", "image.npy", "image.tif", "image.zarr"])
def test_the_middle_of_the_image_is_read(name: str, tmp_path: Path) -> None:
    """Files and volumes give their middle, scaled as inference scales it."""
    array = np.full((4, 6, 900), 255, dtype=np.uint8)
    array[..., :60] = 0
    path = tmp_path / name
    if name == "image.npy":
        np.save(path, array)
    else:
        chunk = Chunk(array, (5, 6, 7))
        line = ["load-npy", "-f", str(tmp_path / "source.npy"), "--voxel-offset", "5", "6", "7"]
        np.save(tmp_path / "source.npy", chunk.array)
        saver = {"image.h5": ["save-h5", "-f"], "image.tif": ["save-tif", "-f"]}
        result = run(*line, *saver.get(name, ["save-zarr", "-s"]), str(path))
        assert result.exit_code == 0, result.output
    middle = _read(str(path))
    assert (middle.shape, middle.dtype) == ((1, 4, 6, 768), np.float32)
    assert np.unique(middle).tolist() == [1.0]


def test_an_empty_image_is_refused(tmp_path: Path) -> None:
    """A file of no bytes, and a missing one, are named."""
    (tmp_path / "empty.npy").touch()
    for name in ("empty.npy", "none.npy"):
        with pytest.raises(ChunkflowError, match=name):
            _read(str(tmp_path / name))


# --- the table -----------------------------------------------------------------------------------


def test_the_table_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    """Failures stand in their row; what limited the choice stands below."""
    size = Zyx(8, 16, 16)
    good = Measurement(Candidate(size, size), Zyx(0, 0, 0), 2.0, 10**9, 0, 0, 0)
    fast = Measurement(
        Candidate(size, size, dtype="bfloat16"), Zyx(0, 0, 0), 1.0, 10**9, 0.3, 0.1, 0.01
    )
    dead = Measurement(
        Candidate(size, size, "openvino", batch_size=2), Zyx(0, 0, 0), failure="it died"
    )
    found = Tuning(
        *("cpu", "cpu AVX2", "pytorch", 2 * 10**9, 0.02, ("native_group_norm",)),
        measurements=[good, dead, fast],
        complete=False,
    )
    assert found.best is good
    _print_table(found, None, None)
    head, first, second, third, empty, *notes = capsys.readouterr().out.splitlines()
    assert "hours" not in head
    assert first.split()[:5] == ["torch", "bfloat16", "1", "8x16x16", "0.00205"]
    assert first.split()[5:] == ["1", "0.3", "0.1", "0.01"]
    assert second.endswith("<- best")
    assert third.split()[4:] == ["-", "-", "-", "-", "-", "it", "died"]
    assert not empty
    text = "\n".join(notes)
    assert "Measured on cpu AVX2." in text
    assert "The network uses native_group_norm, so each output voxel depends on the whole" in text
    exceeded = "exceeds the tolerance of 0.02 or the memory limit of 2.0 GB: torch bfloat16"
    assert f"A faster combination {exceeded}" in text
    assert "The time limit was reached before all combinations were measured; raise" in text
    assert notes[-1].startswith("No combination stays within the memory limit and the tolerance; ")

"""The shipped volume is where its page says, and the demo's commands can be pasted."""

import importlib.util
import shlex
from pathlib import Path
from types import ModuleType

import click
import h5py
import numpy as np
import pytest

from chunkflow_py.cli.main import cli
from chunkflow_py.ops.load_h5 import load_h5

ROOT = Path(__file__).parents[2]
DATA = ROOT / "examples" / "fib25"


@pytest.fixture(scope="module")
def demo() -> ModuleType:
    """Return demo.py as a module."""
    spec = importlib.util.spec_from_file_location("fib25_demo", DATA / "demo.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", ["raw", "groundtruth"])
def test_place_of_the_data(name: str) -> None:
    """Both volumes are slices 80 to 180 of 10 nm voxels, and small enough for a repository."""
    path = DATA / f"{name}.h5"
    chunk = load_h5(path)
    assert str(chunk.bbox) == "80-180_0-250_0-250"
    assert chunk.voxel_size_nm == (10, 10, 10)
    with h5py.File(path) as file:
        assert file["main"].compression == "gzip"
    assert sum(file.stat().st_size for file in DATA.iterdir() if file.is_file()) < 14e6


def test_commands_parse(demo: ModuleType) -> None:
    """Every command of the demo accepts its options, and the files that it reads exist."""
    top = click.Context(cli)
    names = cli.list_commands(top)
    for line in (demo.AFFINITIES, demo.SEGMENTS, demo.SCORES, demo.VIEW):
        words = shlex.split(demo.pasteable(line).replace("\\\n", ""))
        starts = [k for k, word in enumerate(words) if word in names]
        assert words[0] == "chunkflow"
        assert set(words[1 : starts[0]]) <= {"--progress", "--quiet"}
        for start, stop in zip(starts, [*starts[1:], len(words)], strict=True):
            command = cli.get_command(top, words[start])
            command.make_context(words[start], words[start + 1 : stop], parent=top)
        for word in words:
            if word.startswith(demo.DATA):
                assert (ROOT / word).is_file(), word


def test_colours_tell_a_merge(demo: ModuleType) -> None:
    """A segment looks like the body that it mostly covers; a second piece of it does not."""
    truth = np.array([[1, 1, 1, 2, 2, 2]])
    segmentation = np.array([[1, 1, 3, 2, 2, 2]])
    of_segments, of_truth = demo.colours(segmentation, truth)
    assert np.array_equal(of_segments[1], of_truth[1])
    assert np.array_equal(of_segments[2], of_truth[2])
    assert not np.array_equal(of_segments[3], of_truth[1])


def test_figure(demo: ModuleType, tmp_path: Path) -> None:
    """The figure is a PNG of one section."""
    raw, truth = load_h5(DATA / "raw.h5"), load_h5(DATA / "groundtruth.h5")
    affinity = raw.with_array(np.repeat(raw.array[None].astype(np.float32) / 255, 3, axis=0))
    demo.figure(tmp_path / "figure.png", raw, affinity, truth, truth)
    assert (tmp_path / "figure.png").read_bytes().startswith(b"\x89PNG")

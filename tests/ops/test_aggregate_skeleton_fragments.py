"""aggregate-skeleton-fragments: one skeleton an object, of the fragments of tasks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.skeleton import Skeleton
from chunkflow_py.core.task import Task
from chunkflow_py.ops.aggregate_skeleton_fragments import aggregate_skeleton_fragments
from chunkflow_py.ops.load_skeleton import load_skeleton
from chunkflow_py.segmentation.labels.object_folder import ObjectFolder
from chunkflow_py.segmentation.skeletonize import SkeletonAggregator


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


def path(*points, radius=50.0) -> Skeleton:
    """Return the line through some points."""
    edges = [(k, k + 1) for k in range(len(points) - 1)]
    return Skeleton.of(points, edges, np.full(len(points), radius))


def test_ends_are_joined_and_short_pieces_removed():
    """Shared ends become one, near ends are joined; dust, ticks and loops are gone."""
    first = path((0, 0, 0), (0, 0, 500), (0, 0, 1000), (0, 0, 1500), (0, 0, 2000))
    second = path((0, 0, 2000), (0, 0, 3000), (0, 0, 4000))
    near = path((0, 40, 4000), (0, 40, 6000))
    tick = path((0, 0, 1000), (0, 100, 1000))
    loop = path((0, 0, 1500), (0, 30, 1600), (0, 30, 1900), (0, 0, 2000))
    dust = path((9000, 0, 0), (9000, 0, 100))
    found = aggregate_skeleton_fragments([first, second, near, tick, loop, dust], 500, 300)
    assert len(found.edges) == len(found) - 1  # one tree
    assert found.vertices_nm[:, 0].max() == 0
    assert found.cable_length_nm == pytest.approx(6040, rel=0.02)
    assert not (found.vertices_nm == (0, 100, 1000)).all(axis=1).any()


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Store fragments of the objects 1, 12 and 120."""
    monkeypatch.chdir(tmp_path)
    pieces = [path((0, 0, 0), (0, 0, 4000)), path((0, 0, 4000), (0, 0, 9000))]
    ObjectFolder("parts").put(
        (f"{label}:{k}-{k + 1}_0-1_0-1", piece.to_precomputed())
        for label in (1, 12, 120)
        for k, piece in enumerate(pieces)
    )


@pytest.mark.parametrize(
    ("line", "objects"),
    [
        ("aggregate-skeleton-fragments", [1, 12, 120]),
        ("aggregate-skeleton-fragments --prefix 12", [12, 120]),
        ("aggregate-skeleton-fragments --prefix 12:", [12]),
        ("create-bbox -s 1 0 0 -z 1 1 1 aggregate-skeleton-fragments --digits 2", [1]),
        ("create-bbox -s 12 0 0 -z 1 1 1 aggregate-skeleton-fragments --digits 2", [12, 120]),
    ],
)
def test_objects_are_chosen_by_prefix(line, objects):
    """By option, or by the box of a task; by default all. The fragments stay as they are."""
    assert run(f"{line} -f parts -o whole").exit_code == 0
    found = load_skeleton("whole")
    assert sorted(found) == objects
    assert {len(each) for each in found.values()} == {3}
    assert len(ObjectFolder("parts").names()) == 6


def test_an_item_may_hold_the_prefix():
    """What an operator before has put into the task under --input-name."""
    SkeletonAggregator("parts", "whole")(Task(items={"prefix": "120"}))
    assert sorted(load_skeleton("whole")) == [120]


def test_fragments_are_never_unpickled():
    """A pickle of old igneous is refused as damaged, and nothing in it runs."""
    program = (
        "import pickle, sys\n"
        "class Evil:\n"
        "    def __reduce__(self): return (open, ('ran', 'w'))\n"
        "sys.stdout.buffer.write(pickle.dumps(Evil()))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    ObjectFolder("parts").put([("12:0-1_0-1_0-1", done.stdout)])
    result = run("aggregate-skeleton-fragments -f parts")
    assert result.exit_code == 1
    assert "12:0-1_0-1_0-1 is not a valid skeleton" in result.stderr
    assert not Path("ran").exists()


def test_a_prefix_that_is_none():
    """Exit 2 before any work."""
    result = run("aggregate-skeleton-fragments -f parts -p x7")
    assert result.exit_code == 2
    assert "--prefix x7" in result.stderr


def test_a_place_without_fragments():
    """A misspelled path is an error, and makes no folder."""
    result = run("aggregate-skeleton-fragments -f misspelled")
    assert result.exit_code == 1
    assert "misspelled has no fragments made by skeletonize; check the URL" in result.stderr
    assert not Path("misspelled").exists()

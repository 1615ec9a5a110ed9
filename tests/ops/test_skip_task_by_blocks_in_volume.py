"""Tests of skip-task-by-blocks-in-volume."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import GeometryError
from chunkflow_py.ops.skip_task_by_blocks_in_volume import StoredSkipper
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

BOUNDS = BoundingBox(Zyx(3, 0, 0), Zyx(19, 60, 90))
FIRST = BoundingBox(Zyx(3, 0, 0), Zyx(11, 32, 64))


@pytest.fixture(params=["precomputed", "zarr", "h5"])
def url(request, tmp_path):
    """Return the address of a volume of which the blocks of one box are stored."""
    end = ".h5" if request.param == "h5" else ""
    url = f"{request.param}://{tmp_path}/em{end}"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", Zyx(8, 32, 32))
    volume = create_volume(spec, url, opening=VolumeOptions(store_zeros=True))
    voxels = np.zeros(FIRST.size, "u1")
    voxels[:, :, :32] = 1
    volume.write(Chunk(voxels, FIRST.start))
    return url


def skipped(url, box, **more):
    """Tell whether a task with this box is skipped."""
    body = StoredSkipper(url, **more)
    body.prepare(None)
    reasons = []
    try:
        body(Task(Region(box)))
    except Skip as skip:
        reasons.append(str(skip))
    assert reasons in ([], [f"all blocks of the task are stored in {url}"])
    return bool(reasons)


def test_what_is_stored_is_skipped(url):
    """A task is skipped when all blocks that it touches are stored, those of zeros too."""
    assert skipped(url, FIRST)
    assert skipped(url, BoundingBox(Zyx(5, 7, 9), Zyx(6, 8, 10)))
    assert not skipped(url, BoundingBox(Zyx(3, 0, 0), Zyx(12, 32, 64)))
    assert not skipped(url, BOUNDS)


def test_what_lies_outside_does_not_count(url):
    """A task that reaches over the end of the volume is judged by what lies inside."""
    assert skipped(url, FIRST.hull(BoundingBox(Zyx(0, -9, 0), Zyx(1, 1, 1))))
    with pytest.raises(GeometryError, match=r"lies outside of the bounds 3-19_0-60_0-90"):
        skipped(url, BoundingBox(Zyx(0, 0, 0), Zyx(1, 1, 1)))


def test_time(tmp_path):
    """The time point of the task is looked at, or the one asked for."""
    url = f"zarr://{tmp_path}/em"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, None, Zyx(8, 32, 32), times=2)
    create_volume(spec, url).write(Chunk(np.ones(FIRST.size, "u1"), FIRST.start), time=1)
    body = StoredSkipper(url)
    with pytest.raises(Skip):
        body(Task(Region(FIRST, 1)))
    assert body(Task(Region(FIRST, 0))).outcome is None
    assert skipped(url, FIRST, time=1)
    assert not skipped(url, FIRST, time=0)


def test_a_line_goes_on_where_it_stopped(tmp_path):
    """A line that is run again does only what is missing."""
    out = f"precomputed://file://{tmp_path}/out"
    line = [
        *f"--quiet generate-tasks -v {out} -c 8 32 32".split(),
        *f"skip-task-by-blocks-in-volume -v {out} create-chunk --size 16 64 64".split(),
        *f"crop-margin --crop-bbox save-volume --fill-missing -v {out}".split(),
    ]
    created = f"--quiet create-volume -z 16 64 64 -d uint8 -b 8 32 32 -v {out}".split()
    assert CliRunner().invoke(cli, created).exit_code == 0
    result = CliRunner().invoke(cli, line)
    assert result.exit_code == 0, result.output
    blocks = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*")}
    assert len(blocks) == 8
    gone = sorted(blocks)[3]
    gone.unlink()
    assert CliRunner().invoke(cli, line).exit_code == 0
    again = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("*/*")}
    assert again.keys() == blocks.keys()
    assert {path for path in blocks if again[path] != blocks[path]} == {gone}


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("-v nowhere", "nowhere does not exist"),
        ("-v precomputed://nowhere", "nowhere"),
        ("-v s4://bucket/em", "did you mean s3://?"),
    ],
)
def test_a_missing_volume(words, text, tmp_path, monkeypatch):
    """A volume that is not there is one sentence, before any task."""
    monkeypatch.chdir(tmp_path)
    line = ["generate-tasks", "-z", "8", "8", "8", "-c", "8", "8", "8"]
    result = CliRunner().invoke(cli, [*line, "skip-task-by-blocks-in-volume", *words.split()])
    assert result.exit_code == 1
    assert text in result.output
    assert "Traceback" not in result.output


def test_a_task_without_a_box(url):
    """A task without a box has no blocks to look for."""
    with pytest.raises(GeometryError, match="needs the task's box, but this task has no box"):
        StoredSkipper(url)(Task())


def test_a_line_without_tasks(url):
    """A line that makes no tasks with boxes is a usage error, which names what makes them."""
    result = CliRunner().invoke(cli, ["skip-task-by-blocks-in-volume", "-v", url])
    assert result.exit_code == 2
    assert "put generate-tasks or create-bbox in front of" in result.output

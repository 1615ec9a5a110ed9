"""skip-all-zero."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.ops.skip_all_zero import ZeroSkipper
from chunkflow_py.store.task_files import TaskFiles

ZERO = Chunk(np.zeros((2, 2, 4, 4), np.float32), (5, 5, 5))
BOX = BoundingBox.parse("6-7_6-7_6-7")


def task(chunk=ZERO):
    """Return a task whose box is smaller than its chunk."""
    return Task(Region(BOX), {"chunk": chunk})


def test_a_chunk_with_any_voxel_goes_on(tmp_path):
    """One voxel that is not zero, and nothing happens."""
    array = ZERO.array.copy()
    array[1, 1, 3, 3] = -0.5
    first = task(Chunk(array))
    assert ZeroSkipper(flags=TaskFiles(f"{tmp_path}/"))(first) is first
    assert not list(tmp_path.iterdir())


def test_a_zero_chunk_ends_the_task():
    """All zero raises Skip, with the chunk's name as the reason."""
    with pytest.raises(Skip, match="'chunk' is all zero"):
        ZeroSkipper()(task())


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({}, "5-7_5-9_5-9"),
        ({"adjust_size": -1, "chunk_bbox": True}, "6-6_6-8_6-8"),
        ({"chunk_bbox": False, "adjust_size": 2}, "4-9_4-9_4-9"),
        ({"flags": ".done"}, "5-7_5-9_5-9.done"),
    ],
)
def test_a_flag_file_is_left(tmp_path, options, name):
    """The file is named by prefix, box and suffix; a file that exists keeps its content."""
    skipper = ZeroSkipper(**options)
    skipper.flags = TaskFiles(f"{tmp_path}/new/pre-", options.get("flags", ""))
    for _ in range(2):
        one = task()
        with pytest.raises(Skip):
            skipper(one)
        assert [stored.size for stored in one.written] == [0]
    (file,) = (tmp_path / "new").iterdir()
    assert file.name == f"pre-{name}"
    assert file.read_bytes() == b""
    file.write_text("kept")
    with pytest.raises(Skip):
        skipper(task())
    assert file.read_text() == "kept"


def test_in_a_line(tmp_path):
    """A skipped task is a success; what follows does not run; a dry run leaves no file."""
    fails = "crop-margin -m 1 1 1 1 1 1"
    line = f"create-chunk -s 2 2 2 -p zero skip-all-zero -p {tmp_path}/ {fails}".split()
    assert CliRunner().invoke(cli, ["--dry-run", *line]).exit_code == 0
    assert not list(tmp_path.iterdir())
    assert CliRunner().invoke(cli, line).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["0-2_0-2_0-2"]


def test_failures_are_one_sentence(tmp_path):
    """A prefix without a place, a task without box, and a box that vanishes are errors."""
    run = CliRunner()
    result = run.invoke(cli, ["create-chunk", "skip-all-zero", "-p", "gs://b"])
    assert (result.exit_code, "is only a bucket, without a path inside it" in result.output) == (
        2,
        True,
    )
    line = f"create-chunk -s 2 2 2 -p zero skip-all-zero -p {tmp_path}/".split()
    result = run.invoke(cli, [*line, "--task-bbox"])
    assert (result.exit_code, "use --chunk-bbox" in result.output) == (1, True)
    result = run.invoke(cli, [*line, "-a", "-2"])
    assert (result.exit_code, "lies before its start" in result.output) == (1, True)

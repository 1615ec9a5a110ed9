"""skip-task-by-file."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import Region
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.ops.skip_task_by_file import FileSkipper
from chunkflow_py.store import open_store
from chunkflow_py.store.task_files import TaskFiles


@pytest.mark.parametrize("scheme", ["", "mem://"])
@pytest.mark.parametrize(
    ("mode", "skipped"),
    [("exist", "empty full"), ("missing", "none"), ("empty", "none empty")],
)
def test_modes(tmp_path, scheme, mode, skipped):
    """A file that exists, is missing, or holds nothing ends its task; others go on."""
    store = open_store(f"{scheme}{tmp_path}")
    store.put("empty-0-1_0-1_0-1.h5", b"")
    store.put("full-0-1_0-1_0-1.h5", b"1")
    ended = {}
    for name in ("none", "empty", "full"):
        task = Task(Region.parse("0-1_0-1_0-1"))
        try:
            assert FileSkipper(TaskFiles(f"{scheme}{tmp_path}/{name}-", ".h5"), mode)(task) is task
        except Skip as skip:
            ended[name] = str(skip)
    assert list(ended) == skipped.split()
    assert all(f"{name}-0-1_0-1_0-1.h5 " in reason for name, reason in ended.items())


def test_in_a_line(tmp_path):
    """The tasks whose files exist are left out; the box in the name may be larger."""
    for name in ("0-1_0-1_0-1.h5", "-2-3_-2-3_-1-4"):
        (tmp_path / name).touch()
    line = ["generate-tasks", "-c", "1", "1", "1", "-s", "0", "0", "0", "-z", "1", "1", "3"]
    skip = ["skip-task-by-file", "-p", f"{tmp_path}/"]
    mark = ["mark-complete", "-p", f"{tmp_path}/done"]
    result = CliRunner().invoke(cli, [*line, *skip, "-s", ".h5", *skip, "-a", "2", *mark])
    assert result.exit_code == 0, result.output
    assert [path.name for path in tmp_path.glob("done*")] == ["done0-1_0-1_2-3"]
    result = CliRunner().invoke(cli, ["create-chunk", *skip])
    assert (result.exit_code, "put generate-tasks or create-bbox" in result.output) == (2, True)
    result = CliRunner().invoke(cli, [*line, *skip, "-a", "-1"])
    assert (result.exit_code, "lies before its start" in result.output) == (1, True)

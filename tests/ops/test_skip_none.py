"""skip-none."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import Region
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.ops.skip_none import NoneSkipper


def test_only_none_ends_a_task():
    """Whatever else an item is, the task goes on."""
    task = Task(items={"a": 0, "b": None})
    assert NoneSkipper("a")(task) is task
    with pytest.raises(Skip, match="'b' is None"):
        NoneSkipper("b")(task)


@pytest.mark.parametrize(
    ("options", "left"),
    [([], []), (["-p"], ["0-1_0-1_0-1.none"]), (["--no-touch", "-p"], []), (["dry", "-p"], [])],
)
def test_in_a_line(tmp_path, options, left):
    """With a prefix an empty file is left, unless it is not wanted or nothing is saved."""
    (tmp_path / "empty.h5").touch()
    flags = tmp_path / "flags"
    dry = ["--dry-run"] if "dry" in options else []
    words = [word for word in options if word != "dry"]
    place = [f"{flags}/", "-s", ".none"] if "-p" in words else []
    result = CliRunner().invoke(
        cli,
        [*dry, "create-bbox", "-s", "0", "0", "0", "-z", "1", "1", "1",
         "load-h5", "-f", str(tmp_path / "empty.h5"), "skip-none", *words, *place, "threshold"],
    )  # fmt: skip
    assert result.exit_code == 0, result.output
    assert [path.name for path in flags.glob("*")] == left


def test_the_flag_is_on_record(tmp_path):
    """What is left behind is told, as all that a task stores."""
    from chunkflow_py.store.task_files import TaskFiles

    task = Task(Region.parse("0-1_0-1_0-1"), {"chunk": None})
    with pytest.raises(Skip):
        NoneSkipper("chunk", TaskFiles(f"{tmp_path}/"))(task)
    assert [stored.size for stored in task.written] == [0]

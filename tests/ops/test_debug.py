"""debug."""

import sys
from bdb import BdbQuit

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import Region
from chunkflow_py.core.task import Task
from chunkflow_py.ops.debug import Debugger, describe


def test_a_task_is_described():
    """Each item is a line."""
    task = Task(Region.parse("0-1_0-1_0-1"), {"a": Chunk(np.zeros((1, 1, 1))), "b": None})
    lines = describe(task).splitlines()
    assert lines[0] == "task 0-1_0-1_0-1:"
    assert lines[1].startswith("  a: Chunk(")
    assert (lines[2], describe(Task())) == ("  b: None", "task task:\n  no items")


def test_the_debugger_sees_the_task(monkeypatch):
    """Where the line stops, the task is at hand by its name; then the line goes on."""
    seen = []
    monkeypatch.setattr(
        sys, "breakpointhook", lambda: seen.append(sys._getframe(1).f_locals["task"])
    )
    result = CliRunner().invoke(cli, ["--ahead", "0", "create-chunk", "debug", "threshold"])
    assert result.exit_code == 0, result.output
    assert [list(task.items) for task in seen] == [["chunk"]]


def test_leaving_the_debugger_ends_the_line(monkeypatch):
    """It is an interruption, not a failure of the task."""

    def leave():
        raise BdbQuit

    monkeypatch.setattr(sys, "breakpointhook", leave)
    with pytest.raises(KeyboardInterrupt):
        Debugger()(Task())

"""Stop each task in the Python debugger.

Example: chunkflow --ahead 0 create-chunk debug threshold --threshold 128

In the debugger, the variable `task` is the task: `task.items` holds its chunks by name, `task.bbox`
is its box. Type `c` to continue the task, `q` to end the pipeline. Without --ahead 0, other tasks
run while the debugger waits. The environment variable PYTHONBREAKPOINT chooses another debugger.
"""

from __future__ import annotations

from bdb import BdbQuit
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkflow_py.core.interrupts import Interrupted
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task

SECTION = "steer"


def describe(task: Task) -> str:
    """Return the items of a task as text, one item per line."""
    items = [f"  {name}: {item!r}" for name, item in task.items.items()]
    return "\n".join([f"task {task}:", *(items or ["  no items"])])


@dataclass
class Debugger:
    """Opens the debugger for every task."""

    def __call__(self, task: Task) -> Task:
        """Print the items of the task and open the debugger.

        Raises:
            Interrupted: the user has quit the debugger, which ends the pipeline.
        """
        echo(describe(task), err=True)
        try:
            breakpoint()
        except BdbQuit:
            raise Interrupted from None
        return task


@operator("compute")
def command() -> Debugger:
    """Return the operator; the command has no options."""
    return Debugger()

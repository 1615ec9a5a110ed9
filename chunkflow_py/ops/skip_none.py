"""Skip a task with an item that is None.

Example: chunkflow load-h5 -f raw.h5 skip-none --input-name chunk save-h5 -f copy.h5

None stands for a task without a result: what an empty file, or a file without synapses, is loaded
as. With --prefix, an empty file is left that says so, called by prefix, the task's box and suffix;
the prefix may be a URL.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.core.task import Skip
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, is_dry_run

if TYPE_CHECKING:
    from chunkflow_py.core.outputs import Output
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.task_files import TaskFiles

SECTION = "steer"


@dataclass
class NoneSkipper(OperatorBase):
    """Ends a task early when an item is ``None``, and may leave an empty file to say so.

    Attributes:
        input_name: of the item.
        flags: the files to leave, or ``None`` for none.
    """

    input_name: str = "chunk"
    flags: TaskFiles | None = None

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the files to leave."""
        return () if self.flags is None else (self.flags.outputs,)

    def __call__(self, task: Task) -> Task:
        """Raise `Skip` if the item is ``None``."""
        if task[self.input_name] is not None:
            return task
        if self.flags is not None:
            task.written.append(self.flags.touch(task.region))
        msg = f"{self.input_name!r} is None"
        raise Skip(msg)


@operator("compute")
@input_option("--input-name", "-i", help="Name of the item.")
@click.option(
    "--touch/--no-touch",
    default=True,
    show_default=True,
    help="Leave an empty file when skipping, if there is a --prefix.",
)
@click.option("--prefix", "-p", help="How the file's name begins; a path or URL.")
@click.option("--suffix", "-s", help="How the file's name ends.")
def command(input_name: str, touch: bool, prefix: str | None, suffix: str | None) -> NoneSkipper:
    """Take the name of the file; a dry run leaves none."""
    from chunkflow_py.store.task_files import TaskFiles

    flags = None if prefix is None else TaskFiles(prefix, suffix or "")
    return NoneSkipper(input_name, flags if touch and not is_dry_run() else None)

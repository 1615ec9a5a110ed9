r"""Skip a task with an item that is None.

Example: chunkflow load-h5 --file-name raw.h5 skip-none --input-name chunk \
  save-h5 --file-name copy.h5

The item None means that there is no result. If a file is empty or has no synapses, its loader adds
the item None to the task. With --prefix, an empty file is written for each skipped task; the file
name consists of the prefix, the task's box and the suffix. The prefix may be a URL.
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
    from chunkflow_py.core.task import Output, Task
    from chunkflow_py.store.task_files import TaskFiles

SECTION = "steer"


@dataclass
class NoneSkipper(OperatorBase):
    """Skips a task with an item that is ``None``; optionally writes an empty file for the task.

    Attributes:
        input_name: name of the item.
        flags: empty file for each skipped task; ``None`` writes no files.
    """

    input_name: str = "chunk"
    flags: TaskFiles | None = None

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return a description of the empty files, if any are written."""
        return () if self.flags is None else (self.flags.outputs,)

    def __call__(self, task: Task) -> Task:
        """Return the task unchanged, unless the item is ``None``.

        Raises:
            Skip: the item is ``None``.
        """
        if task[self.input_name] is not None:
            return task
        if self.flags is not None:
            task.written.append(self.flags.touch(task.region))
        msg = f"{self.input_name!r} is None"
        raise Skip(msg)


@operator("compute")
@input_option("--input-name", "-i", help="Name of the item to check.")
@click.option(
    "--touch/--no-touch",
    default=True,
    show_default=True,
    help="Write an empty file for each skipped task; needs --prefix.",
)
@click.option("--prefix", "-p", help="Path or URL that the file names begin with.")
@click.option("--suffix", "-s", help="End of the file names.")
def command(input_name: str, touch: bool, prefix: str | None, suffix: str | None) -> NoneSkipper:
    """Return the operator, which writes no files in a dry run."""
    from chunkflow_py.store.task_files import TaskFiles

    flags = None if prefix is None else TaskFiles(prefix, suffix or "")
    return NoneSkipper(input_name, flags if touch and not is_dry_run() else None)

"""Leave an empty file: the task got this far.

Example: chunkflow generate-tasks -v file://em -c 64 512 512 load-volume -v file://em
save-h5 -f out_ mark-complete -p done/

The file is called by the prefix, the task's box and the suffix; the prefix may be a URL, such as
s3://bucket/done/. What savers before it in the line write is stored for good by then; a task that
fails or is skipped gets no mark. A file that exists already keeps its content. skip-task-by-file
looks for such files; a run (submit, work) needs none: its ledger says what is done.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.outputs import Output
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Outline
    from chunkflow_py.store.task_files import TaskFiles

SECTION = "steer"


@dataclass
class Marker(OperatorBase):
    """Leaves an empty file for every task that comes so far."""

    files: TaskFiles
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def destination(self) -> str:
        """The files."""
        return self.files.place

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the file of every task."""
        return (self.files.output,)

    @hook
    def prepare(self, outline: Outline) -> None:
        """Refuse a line whose tasks have no box.

        Raises:
            OptionError: says what to put in front.
        """
        if not outline.has_tasks:
            msg = (
                "mark-complete names its file after the task's box, but no task has one; begin the "
                "line with generate-tasks or create-bbox"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Make the file, durably.

        Raises:
            VolumeError: it cannot be written.
        """
        task.written.append(self.files.touch(task.region))
        return task


@operator("write")
@click.option("--prefix", "-p", required=True, help="How the name begins; a path or URL.")
@click.option("--suffix", "-s", default="", show_default="empty", help="How the name ends.")
def command(prefix: str, suffix: str) -> Marker:
    """Take the name of the file."""
    from chunkflow_py.store.task_files import TaskFiles

    return Marker(TaskFiles(prefix, suffix))

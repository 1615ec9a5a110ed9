r"""Mark each task as done by an empty file.

Example: chunkflow generate-tasks --volume-path file://em --chunk-size 64 512 512 \
  load-volume --volume-path file://em save-h5 --file-name out_ mark-complete --prefix done/

The file name is the prefix, the task's box and the suffix; the prefix may be a URL, such as
s3://bucket/done/. The file is written only after the outputs of all earlier savers are durable. A
task that fails or is skipped gets no file. An existing file keeps its content. skip-task-by-file
skips tasks that have such a file. A run (submit, work) does not need these files, because its
ledger records the finished tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.file_options import suffix_option
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.task import Output, Task
    from chunkflow_py.pipeline.operator import Outline
    from chunkflow_py.store.task_files import TaskFiles

SECTION = "steer"


@dataclass
class Marker(OperatorBase):
    """Writes an empty file for each task that reaches this operator.

    Attributes:
        files: file of each task.
    """

    files: TaskFiles
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def destination(self) -> str:
        """Prefix of the files that mark tasks as done."""
        return self.files.place

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the output of this operator: one file for each task."""
        return (self.files.output,)

    @hook
    def prepare(self, outline: Outline) -> None:
        """Check that tasks have boxes, which the file names need.

        Raises:
            OptionError: no task has a box.
        """
        if not outline.has_tasks:
            msg = (
                "mark-complete names its files after the boxes of tasks, but no task has a box; "
                "begin the pipeline with generate-tasks or create-bbox"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Write the file that marks the task as done, durably.

        Raises:
            VolumeError: the file cannot be written.
        """
        task.written.append(self.files.touch(task.region))
        return task


@operator("write")
@click.option("--prefix", "-p", required=True, help="Path or URL that the file names begin with.")
@suffix_option()
def command(prefix: str, suffix: str) -> Marker:
    """Return the operator for files with this prefix and suffix."""
    from chunkflow_py.store.task_files import TaskFiles

    return Marker(TaskFiles(prefix, suffix))

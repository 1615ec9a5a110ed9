r"""Skip tasks whose file exists, or is missing.

Example: chunkflow generate-tasks --volume-path file://em --chunk-size 64 512 512 \
  skip-task-by-file --prefix out_ --suffix .h5 load-volume --volume-path file://em \
  save-h5 --file-name out_

The file name consists of the prefix, the task's box and the suffix, such as
out_0-64_0-512_0-512.h5; the prefix may be a URL, such as s3://bucket/flags/. If the suffix ends
with a slash, the name denotes a folder, which counts as existing if it is not empty. With submit
and work, this operator is not needed, because the ledger of the run records the finished tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.core.task import Skip
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.file_options import suffix_option
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Outline
    from chunkflow_py.store.task_files import TaskFiles

SECTION = "steer"

Mode = Literal["missing", "empty", "exist"]


@dataclass
class FileSkipper(OperatorBase):
    """Skips a task depending on whether a file named after the task exists.

    Attributes:
        files: file of each task.
        mode: ``exist``: skip the task if the file exists; ``missing``: if the file does not exist;
            ``empty``: if the file does not exist or has no content.
        adjust_size: voxels by which to grow the box in the file name on each side.
    """

    files: TaskFiles
    mode: Mode = "exist"
    adjust_size: int = 0
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def kept(self) -> str | None:
        """``None`` in mode ``exist``, else an empty text.

        ``None`` means that a task's file shows that the task is finished. A run may then start
        although some outputs exist.
        """
        return None if self.mode == "exist" else ""

    @hook
    def prepare(self, outline: Outline) -> None:
        """Check that tasks have boxes, which the file names need.

        Raises:
            OptionError: no task has a box.
        """
        if not outline.has_tasks:
            msg = (
                "skip-task-by-file looks for files that are named after the tasks' boxes, but no "
                "task has a box; put generate-tasks or create-bbox in front of skip-task-by-file"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Return *task* unchanged, unless the task's file is in the state that ``mode`` names.

        Raises:
            Skip: the file is in the state that ``mode`` names.
            GeometryError: the task has no box, or its adjusted box is empty.
            VolumeError: the store cannot be read.
        """
        from chunkflow_py.store.task_files import grown

        region = grown(task.region, self.adjust_size)
        size = self.files.size(region)
        if self.mode == "exist":
            reason = "" if size is None else "exists"
        elif size is None:
            reason = "is missing"
        else:
            reason = "is empty" if self.mode == "empty" and not size else ""
        if reason:
            msg = f"{self.files.url(region)} {reason}"
            raise Skip(msg)
        return task


@operator("read")
@click.option("--prefix", "-p", required=True, help="Path or URL that the file names begin with.")
@suffix_option()
@click.option(
    "--mode",
    "-m",
    type=click.Choice(["missing", "empty", "exist"]),
    default="exist",
    show_default=True,
    help="exist: skip a task whose file exists; missing: skip a task whose file is missing; empty: "
    "skip a task whose file is missing or empty.",
)
@click.option(
    "--adjust-size",
    "-a",
    type=int,
    help="Voxels by which to grow the box in the file name on each side.",
)
def command(prefix: str, suffix: str, mode: Mode, adjust_size: int | None) -> FileSkipper:
    """Return the operator for files with this prefix and suffix."""
    from chunkflow_py.store.task_files import TaskFiles

    return FileSkipper(TaskFiles(prefix, suffix), mode, adjust_size or 0)

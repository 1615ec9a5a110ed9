r"""Skip a task whose chunk is all zeros.

Example: chunkflow load-h5 --file-name raw.h5 skip-all-zero --prefix flags/ \
  save-h5 --file-name copy.h5

With --prefix, an empty file is written for each skipped task. The file name consists of the prefix,
the box of the chunk (or of the task, with --task-bbox) and the suffix. The prefix may be a URL,
such as s3://bucket/flags/.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.core.task import Skip
from chunkflow_py.errors import GeometryError
from chunkflow_py.ops.options.file_options import suffix_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, is_dry_run

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Output, Task
    from chunkflow_py.store.task_files import TaskFiles

SECTION = "steer"


def is_all_zero(chunk: Chunk) -> bool:
    """Return whether all voxels of *chunk* are zero."""
    return not chunk.array.any()


@dataclass
class ZeroSkipper(OperatorBase):
    """Skips a task whose chunk is all zero, and optionally writes an empty file for the task.

    Attributes:
        input_name: name of the chunk.
        flags: empty file for each skipped task; ``None`` writes no files.
        adjust_size: voxels by which to grow the box in the file name on each side.
        chunk_bbox: whether to name the file after the box of the chunk, not of the task.
    """

    input_name: str = "chunk"
    flags: TaskFiles | None = None
    adjust_size: int = 0
    chunk_bbox: bool = True

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return a description of the empty files, if any are written."""
        return () if self.flags is None else (self.flags.outputs,)

    def __call__(self, task: Task) -> Task:
        """Return the task unchanged, unless the chunk is all zero.

        Raises:
            Skip: the chunk is all zero.
            GeometryError: the file name needs the task's box, but the task has no box.
        """
        chunk = task.chunk(self.input_name)
        if not is_all_zero(chunk):
            return task
        if self.flags is not None:
            from chunkflow_py.store.task_files import grown

            region = task.region
            if self.chunk_bbox:
                region = Region(chunk.bbox, None if region is None else region.time)
            elif region is None:
                msg = (
                    "skip-all-zero --task-bbox names files after the task's box, but this task has "
                    "no box; use --chunk-bbox"
                )
                raise GeometryError(msg)
            task.written.append(self.flags.touch(grown(region, self.adjust_size)))
        msg = f"{self.input_name!r} is all zero"
        raise Skip(msg)


@operator("compute")
@input_option()
@click.option(
    "--prefix",
    "-p",
    help="Path or URL that file names begin with; each skipped task gets an empty file.",
)
@suffix_option()
@click.option(
    "--adjust-size",
    "-a",
    type=int,
    help="Voxels by which to grow the box in the file name on each side.",
)
@click.option(
    "--chunk-bbox/--task-bbox",
    default=True,
    show_default=True,
    help="Name the file after the chunk's box, or after the task's box.",
)
def command(
    input_name: str,
    prefix: str | None,
    suffix: str,
    adjust_size: int | None,
    chunk_bbox: bool,
) -> ZeroSkipper:
    """Return the operator, which writes no files in a dry run."""
    from chunkflow_py.store.task_files import TaskFiles

    flags = None if prefix is None or is_dry_run() else TaskFiles(prefix, suffix)
    return ZeroSkipper(input_name, flags, adjust_size or 0, chunk_bbox)

"""Print the largest id of a segmentation.

Example: chunkflow load-h5 --file-name seg.h5 print-max-id

For each task, the operator prints one line to standard output: the task's box, if known, and the
largest id.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Task

SECTION = "segment"


def max_id(chunk: Chunk) -> int:
    """Return the largest id in *chunk*, whose voxels are integers; 0 if the chunk is empty.

    Raises:
        ChunkError: the voxels are not integers.
    """
    from chunkflow_py.segmentation.labels.object_selection import check_labels

    check_labels(chunk.array)
    return int(chunk.array.max(initial=0))


@dataclass
class MaxIdPrinter:
    """Prints the largest id in the chunk of every task."""

    input_name: str = "chunk"

    def __call__(self, task: Task) -> Task:
        """Print the largest id of the chunk."""
        where = "" if task.region is None else f" of {task}"
        echo(f"maximum object ID{where}: {max_id(task.chunk(self.input_name))}")
        return task


@operator("compute")
@input_option(help="Name of the labels.")
def command(input_name: str) -> MaxIdPrinter:
    """Return the operator for the chunk of this name."""
    return MaxIdPrinter(input_name)

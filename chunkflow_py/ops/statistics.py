"""Print statistics of intensities or objects.

Example: chunkflow load-h5 --file-name raw.h5 statistics

For an image, the operator prints the number of voxels, mean, standard deviation, minimum, maximum
and percentiles of each channel. For a segmentation, the operator prints the number of objects
(without label 0), the smallest and the largest label, and the number of background voxels. The
statistics are computed from the chunk; for a whole volume, use compute-statistics.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option
from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Task

SECTION = "segment"


def statistics(chunk: Chunk) -> dict[str, Any]:
    """Return statistics of the intensities, or of the labels, in *chunk*.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype. A segmentation holds labels; if the kind
            of the chunk is unknown, integers of more than 16 bits are taken as labels.

    Returns:
        For labels: the number of ``objects``, ``min_id`` and ``max_id`` (``None`` if there is no
        object), and ``background``, the number of voxels that are 0. For intensities:
        ``channels``, which lists ``count``, ``mean``, ``std``, ``min``, ``max`` and
        ``percentiles`` of the finite voxels of each channel. Percentiles of integers are exact if
        the maximum minus the minimum is less than 65 536. Other percentiles have an error of at
        most a thousandth of the maximum minus the minimum.
    """
    import numpy as np

    from chunkflow_py.core.histogram import Bins, histogram_of

    array = chunk.array
    labels = chunk.kind == "segmentation" or (
        chunk.kind is None and array.dtype.kind in "iu" and array.dtype.itemsize > 2
    )
    if labels:
        flat = array.ravel()
        # Keep one voxel of each run of equal labels, because sorting takes most of the time.
        ids = np.unique(flat[np.flatnonzero(np.append(True, flat[1:] != flat[:-1])[: flat.size])])
        ids = ids[ids != 0]
        return {
            "objects": len(ids),
            "min_id": int(ids[0]) if len(ids) else None,
            "max_id": int(ids[-1]) if len(ids) else None,
            "background": int(array.size - np.count_nonzero(array)),
        }
    finite = array[np.isfinite(array)] if array.dtype.kind == "f" else array
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    by_value = array.dtype.kind != "f" and high - low < 2**16
    bins = None if by_value else Bins(low, high if high > low else low + max(1, abs(low)), 1000)
    return {"channels": histogram_of(array, bins=bins, per_section=False).statistics()}


@dataclass
class StatisticsPrinter:
    """Prints the statistics of every task's chunk, and adds the statistics to the task."""

    input_name: str = "chunk"
    output_name: str = "statistics"

    def __call__(self, task: Task) -> Task:
        """Print the statistics of the chunk to standard output, and add them to the task."""
        from chunkflow_py.filters.volume_statistics import table

        chunk = task.chunk(self.input_name)
        result = task[self.output_name] = statistics(chunk)
        echo(f"{self.input_name} in {chunk.bbox}")
        if "channels" in result:
            echo(table(result["channels"]))
        else:
            span = (
                f" with labels {result['min_id']} to {result['max_id']}"
                if result["objects"]
                else ""
            )
            echo(f"{result['objects']} objects{span}, {result['background']} voxels are 0")
        return task


@operator("compute")
@input_option()
@output_option(default="statistics", help="Name of the item for the statistics.")
def command(**options: Any) -> StatisticsPrinter:
    """Return the operator for the given names of the chunk and of the statistics."""
    return StatisticsPrinter(**options)

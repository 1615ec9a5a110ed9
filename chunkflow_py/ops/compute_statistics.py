"""Count intensities, for statistics of a volume.

Example: chunkflow load-h5 --file-name raw.h5 compute-statistics --statistics-path raw-statistics

Each task stores its histograms in one small file below --statistics-path: one histogram for each
section (z) or, with --whole, one for the whole task. `chunkflow sum-statistics URL` combines the
files, prints count, mean, standard deviation and percentiles of the volume, and writes the file
for `inference --normalize-statistics`. `normalize-contrast --levels URL` uses the histograms of the
sections. If a task is killed and runs again, its voxels are counted once. The margin around a
task's box is not counted.

For integers, each value has its own bin, so all results are exact. Floating-point values are
counted in bins of equal width between the limits of --range (0 and 1 for probability and affinity
maps). Percentiles of floating-point values are exact to the width of a bin. The mean, standard
deviation, minimum and maximum are computed from the values themselves.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemName, input_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.core.histogram import Bins
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Outline
    from chunkflow_py.store.task_counts import CountStore

SECTION = "segment"

logger = logging.getLogger(__name__)


@dataclass
class StatisticsCounter(OperatorBase):
    """Stores the histograms of the chunk of every task.

    Attributes:
        store: store to which the histograms are written.
        input_name: name of the chunk to count.
        mask_name: name of a chunk that is 0 at voxels to ignore, or ``None``.
        span: lower limit of the first bin and upper limit of the last bin. With ``None``, each
            integer has its own bin, and the limits for floating-point probability and affinity
            maps are 0 and 1.
        bins: number of bins of equal width between the two limits of *span*.
        per_section: store one histogram per section (z) instead of one per task.
    """

    store: CountStore
    input_name: str = "chunk"
    mask_name: str | None = None
    span: tuple[float, float] | None = None
    bins: int = 1000
    per_section: bool = True

    @property
    @hook
    def destination(self) -> str:
        """URL of the folder or prefix of the histograms."""
        return self.store.place

    @hook
    def prepare(self, outline: Outline) -> None:
        """Check the range of values and the boxes of the tasks before the first task.

        Raises:
            OptionError: the voxels are floating point, and their range of values is not known.
            GeometryError: the boxes of two tasks overlap.
        """
        from chunkflow_py.store.task_counts import check_tasks

        voxels = outline.voxels
        if (
            voxels
            and voxels.dtype.startswith("float")
            and not self._bins(voxels.dtype, voxels.kind)
        ):
            msg = (
                f"{voxels.dtype} voxels are counted in bins; give the limits of the bins with "
                "--range LOW HIGH, such as --range 0 1"
            )
            raise OptionError(msg)
        check_tasks(outline.boxes)

    def __call__(self, task: Task) -> Task:
        """Store the histograms of the voxels that lie in the task's box."""
        from chunkflow_py.filters.volume_statistics import count_chunk
        from chunkflow_py.store.task_counts import counted_region

        chunk = task.chunk(self.input_name)
        mask = None if self.mask_name is None else task.chunk(self.mask_name)
        region = counted_region(task, chunk, *([] if mask is None else [mask]))
        bins = self._bins(str(chunk.dtype), chunk.kind)
        counts = count_chunk(chunk, region, mask, bins, per_section=self.per_section)
        task.written.append(self.store.put(counts))
        logger.info("stored the histograms of %s", region)
        return task

    def _bins(self, dtype: str, kind: Kind | None) -> Bins | None:
        from chunkflow_py.core.histogram import Bins

        if self.span is not None:
            return Bins(*self.span, self.bins)
        bounded = dtype.startswith("float") and kind in {"probability", "affinity"}
        return Bins(0.0, 1.0, self.bins) if bounded else None


# fmt: off
@operator("write")
@input_option(help="Name of the chunk to compute histograms of.")
@click.option("--statistics-path", "-s", metavar="URL", required=True,
              help="Folder or prefix for the histograms of all tasks; nothing else may be in it.")
@click.option("--mask-name", "-m", type=ItemName("in"),
              help="Name of a mask; do not count voxels where the mask is 0.")
@click.option("--range", "span", type=float, nargs=2, metavar="LOW HIGH",
              help="Count voxels in bins from LOW to HIGH.  [default: one bin per integer; 0 to "
                   "1 for floating-point probability and affinity maps]")
@click.option("--bins", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Number of bins in the range.")
@click.option("--per-section/--whole", default=True, show_default=True,
              help="Store one histogram per section (z), for normalize-contrast, or one per task.")
def command(statistics_path: str, **options: Any) -> StatisticsCounter:
    """Check that the range is not empty, and return the operator."""
    # fmt: on
    from chunkflow_py.filters.volume_statistics import KIND
    from chunkflow_py.store.task_counts import CountStore

    span = options["span"]
    if span is not None and not float("-inf") < span[0] < span[1] < float("inf"):
        msg = (
            f"--range {span[0]:g} {span[1]:g} is not a range; give two finite numbers, the lower "
            "number first"
        )
        raise OptionError(msg)
    return StatisticsCounter(CountStore(statistics_path, KIND), **options)

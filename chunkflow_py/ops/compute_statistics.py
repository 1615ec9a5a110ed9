"""Count intensities, for statistics of a volume.

Example: chunkflow load-h5 --file-name raw.h5 compute-statistics --statistics-path raw-statistics

Each task stores its histogram as one small object below --statistics-path. `chunkflow
sum-statistics URL` combines them into count, mean, standard deviation and percentiles, prints them,
and writes the file for `inference --normalize-statistics`; `normalize-contrast --levels URL` uses
the histograms of sections. A task that is killed or runs twice is counted once. Margins around its
box are not counted.

Integers are counted by value, so all results are exact. Floating-point values are counted in --bins
equal bins from --range LOW to HIGH (0 to 1 for probability and affinity maps); percentiles are
exact to one bin. Mean, standard deviation, minimum and maximum are computed from the voxels.
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
    """Stores the histograms of every task's chunk.

    Attributes:
        store: destination of the histograms.
        input_name: name of the chunk to count.
        mask_name: name of a chunk that is 0 at voxels to ignore, or ``None``.
        span: lowest and highest value of the bins, or ``None``: integers by value, maps 0 to 1.
        bins: number of bins in the span.
        per_section: one histogram per section (z) instead of one per task.
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
        """URL of the histograms."""
        return self.store.place

    @hook
    def prepare(self, outline: Outline) -> None:
        """Check range and boxes before the first task.

        Raises:
            OptionError: voxels are floating point, and no range of values is given.
            GeometryError: boxes of tasks overlap.
        """
        from chunkflow_py.store.task_counts import check_tasks

        voxels = outline.voxels
        if (
            voxels
            and voxels.dtype.startswith("float")
            and not self._bins(voxels.dtype, voxels.kind)
        ):
            msg = (
                f"{voxels.dtype} voxels are counted in bins; give their limits with --range LOW "
                "HIGH, such as --range 0 1"
            )
            raise OptionError(msg)
        check_tasks(outline.boxes)

    def __call__(self, task: Task) -> Task:
        """Store the histogram of the chunk within the task's box."""
        from chunkflow_py.filters.volume_statistics import count_chunk
        from chunkflow_py.store.task_counts import counted_region

        chunk = task.chunk(self.input_name)
        mask = None if self.mask_name is None else task.chunk(self.mask_name)
        region = counted_region(task, chunk, *([] if mask is None else [mask]))
        bins = self._bins(str(chunk.dtype), chunk.kind)
        counts = count_chunk(chunk, region, mask, bins, per_section=self.per_section)
        task.written.append(self.store.put(counts))
        logger.info("counted %s", region)
        return task

    def _bins(self, dtype: str, kind: Kind | None) -> Bins | None:
        from chunkflow_py.core.histogram import Bins

        if self.span is not None:
            return Bins(*self.span, self.bins)
        bounded = dtype.startswith("float") and kind in {"probability", "affinity"}
        return Bins(0.0, 1.0, self.bins) if bounded else None


# fmt: off
@operator("write")
@input_option(help="Name of the chunk to count.")
@click.option("--statistics-path", "-s", metavar="URL", required=True,
              help="Folder or prefix for the histograms of all tasks, with nothing else in it.")
@click.option("--mask-name", "-m", type=ItemName("in"),
              help="Name of a mask; do not count voxels where it is 0.")
@click.option("--range", "span", type=float, nargs=2, metavar="LOW HIGH",
              help="Count in bins from LOW to HIGH.  [default: integers by value, maps 0 to 1]")
@click.option("--bins", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Number of bins in the range.")
@click.option("--per-section/--whole", default=True, show_default=True,
              help="One histogram per section (z), as normalize-contrast needs, or per task.")
def command(statistics_path: str, **options: Any) -> StatisticsCounter:
    """Check that the range is not empty, and return the operator."""
    # fmt: on
    from chunkflow_py.filters.volume_statistics import KIND
    from chunkflow_py.store.task_counts import CountStore

    span = options["span"]
    if span is not None and not span[0] < span[1] < float("inf"):
        msg = f"--range {span[0]:g} {span[1]:g} must be two numbers, the lower one first"
        raise OptionError(msg)
    return StatisticsCounter(CountStore(statistics_path, KIND), **options)

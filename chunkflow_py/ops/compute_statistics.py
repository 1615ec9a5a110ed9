"""Count intensities of one task, for whole volumes.

Example: chunkflow load-h5 -f raw.h5 compute-statistics --statistics-path raw-statistics

Each task stores its histogram as one small object below --statistics-path. `chunkflow
sum-statistics URL` adds them up to count, mean, deviation and percentiles, prints them, and writes
the file for `inference --normalize-statistics`; `normalize-contrast --levels URL` takes them by
section. A task that is killed or runs twice is counted once; margins around its box are not
counted.

Integers are counted by value, so that everything is exact. Floating point is counted in --bins
equal bins from --range LOW to HIGH (of probability and affinity maps: 0 to 1), which is how exact
percentiles are; mean, deviation and extremes are those of the voxels.
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
        store: where they go.
        input_name: of the chunk.
        mask_name: of a chunk that is 0 where voxels do not count, or ``None``.
        span: where bins lie, or ``None``: integers by value, maps from 0 to 1.
        bins: how many.
        per_section: a histogram a section, or one a task.
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
        """The URL."""
        return self.store.place

    @hook
    def prepare(self, outline: Outline) -> None:
        """Check what can be known before the first task.

        Raises:
            OptionError: floating-point voxels come without a range of values.
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
                f"{voxels.dtype} voxels are counted in bins; say with --range LOW HIGH where they "
                "lie, such as --range 0 1"
            )
            raise OptionError(msg)
        check_tasks(outline.boxes)

    def __call__(self, task: Task) -> Task:
        """Count, and store the counts."""
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
              help="Folder or prefix for the counts of all tasks, with nothing else in it.")
@click.option("--mask-name", "-m", type=ItemName("in"),
              help="Name of a mask; voxels where it is 0 are not counted.")
@click.option("--range", "span", type=float, nargs=2, metavar="LOW HIGH",
              help="Count in bins from LOW to HIGH.  [default: integers by value, maps 0 to 1]")
@click.option("--bins", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Number of bins in the range.")
@click.option("--per-section/--whole", default=True, show_default=True,
              help="A histogram for each section (z), as normalize-contrast needs, or one a task.")
def command(statistics_path: str, **options: Any) -> StatisticsCounter:
    """Check the range."""
    # fmt: on
    from chunkflow_py.filters.volume_statistics import KIND
    from chunkflow_py.store.task_counts import CountStore

    span = options["span"]
    if span is not None and not span[0] < span[1] < float("inf"):
        msg = f"--range {span[0]:g} {span[1]:g} must be two numbers, the lower one first"
        raise OptionError(msg)
    return StatisticsCounter(CountStore(statistics_path, KIND), **options)

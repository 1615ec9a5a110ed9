r"""Find postsynaptic points of T-bars in a map.

Example: chunkflow load-synapses --file-path tbars.h5 load-h5 --file-name post_map.h5 \
  detect-post-synapses save-synapses --file-path synapses.h5

The map is the output of a network (see inference). Each peak belongs to the nearest T-bar within
--max-distance. Each T-bar keeps at most --max-post-num peaks, those of the highest confidence.
T-bars that already have postsynaptic points, such as manually annotated points, get no more points.
The result of a task contains the synapses whose T-bar lies in the task's box.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import check_extra
from chunkflow_py.ops.options.synapse_options import peak_options, synapses_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.synapses import Synapses
    from chunkflow_py.core.task import Task

SECTION = "objects"


def detect_post_synapses(
    chunk: Chunk,
    synapses: Synapses,
    min_distance: float = 6.0,
    threshold_rel: float = 0.3,
    max_distance: float = 50.0,
    max_post_num: int = 15,
) -> Synapses:
    """Return *synapses* with the peaks of a map added as postsynaptic points.

    Args:
        chunk: (z, y, x) or (1, z, y, x): a map of values in [0, 1], or of integers whose
            largest possible value means 1.
        synapses: synapses with T-bars in and near the chunk.
        min_distance: distance in voxels; no voxel within this distance along each axis is higher
            than a peak.
        threshold_rel: peaks are higher than this fraction of the map's full scale, in [0, 1].
        max_distance: largest distance from a T-bar to its points, voxels.
        max_post_num: largest number of points per T-bar.

    Raises:
        OptionError: *min_distance* is below 1, or *threshold_rel* is not in [0, 1].
        ChunkError: the chunk has several channels, or a voxel is NaN.
        MissingExtraError: SciPy is not installed.
    """
    from chunkflow_py.segmentation.labels.partners import with_partners
    from chunkflow_py.segmentation.peaks import detect_peaks

    points = detect_peaks(chunk, min_distance, threshold_rel)
    return with_partners(synapses, points, max_distance, max_post_num)


@dataclass
class PostDetector(OperatorBase):
    """Finds the postsynaptic points of the T-bars of every task."""

    input_name: str = "chunk"
    synapses_name: str = "syns"
    output_name: str = "syns"
    options: dict[str, Any] = field(default_factory=dict)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box* grown on each side by *max_distance* + 3 * *min_distance* voxels."""
        from chunkflow_py.segmentation.peaks import REACH

        reach = int(self.options["max_distance"]) + REACH * int(self.options["min_distance"])
        return box.grow((reach,) * 3)

    def __call__(self, task: Task) -> Task:
        """Add the synapses to *task*, with the postsynaptic points that were found.

        If *task* has no T-bars, or no map in which to find points, ``None`` is added instead.
        """
        from chunkflow_py.core.synapses import Synapses

        if task[self.synapses_name] is None or task[self.input_name] is None:
            task[self.output_name] = None
            return task
        synapses = task.item(self.synapses_name, Synapses)
        synapses = detect_post_synapses(task.chunk(self.input_name), synapses, **self.options)
        if task.bbox is not None:
            synapses = synapses.inside(task.bbox)
        task[self.output_name] = synapses or None
        return task


@operator("compute")
@input_option(help="Name of the probability map.")
@synapses_option()
@output_option(
    "--output-name", "-o", default="syns", help="Name of the synapses with added points."
)
@peak_options("points", 6.0)
@click.option("--max-distance", type=click.FloatRange(min=0), default=50.0, show_default=True,
              help="Largest distance from a T-bar to its points, voxels.")  # fmt: skip
@click.option("--max-post-num", type=click.IntRange(min=1), default=15, show_default=True,
              help="Largest number of points per T-bar.")  # fmt: skip
def command(input_name: str, synapses_name: str, output_name: str, **options: Any) -> PostDetector:
    """Check that SciPy is installed, and return the operator."""
    check_extra("segmentation", "detect-post-synapses", "scipy")
    return PostDetector(input_name, synapses_name, output_name, options)

"""Find postsynaptic points of T-bars in a map.

Example: chunkflow load-synapses -f tbars.h5 load-h5 -f post_map.h5 detect-post-synapses
save-synapses -f synapses.h5

The map is that of a network run before (inference). Each of its peaks belongs to the nearest T-bar
within --max-distance; of each T-bar the --max-post-num of the highest confidence are kept. T-bars
that have postsynaptic points already, such as those found by hand, keep them and get no others.
With tasks, the result has the synapses whose T-bar lies in the task's box.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import check_extra
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
    """Return *synapses* with the postsynaptic points that a map shows.

    Args:
        chunk: (z, y, x) or (1, z, y, x): a map of [0, 1], or integers of full scale.
        synapses: with T-bars, also those beyond the chunk that a point could belong to.
        min_distance: voxels along an axis within which there is one point at most.
        threshold_rel: points are above it; in [0, 1], of the map's full scale.
        max_distance: from a T-bar to its points, voxels.
        max_post_num: number of points of a T-bar at most.

    Raises:
        OptionError: the distance is below 1, or the threshold not in [0, 1].
        ChunkError: there are several channels, or a voxel is NaN.
        MissingExtraError: SciPy is not installed.
    """
    from chunkflow_py.segmentation.labels.partners import with_partners
    from chunkflow_py.segmentation.peaks import detect_peaks

    points = detect_peaks(chunk, min_distance, threshold_rel)
    return with_partners(synapses, points, max_distance, max_post_num)


@dataclass
class PostDetector(OperatorBase):
    """Gives the T-bars of every task their postsynaptic points."""

    input_name: str = "chunk"
    synapses_name: str = "syns"
    output_name: str = "syns"
    options: dict[str, Any] = field(default_factory=dict)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box* with all that may belong to T-bars in it."""
        from chunkflow_py.segmentation.peaks import REACH

        reach = int(self.options["max_distance"]) + REACH * int(self.options["min_distance"])
        return box.grow((reach,) * 3)

    def __call__(self, task: Task) -> Task:
        """Find the points; a task without T-bars, or without a map, has ``None``."""
        from chunkflow_py.core.synapses import Synapses

        if task[self.synapses_name] is None or task[self.input_name] is None:
            task[self.output_name] = None
            return task
        synapses = task.item(self.synapses_name, Synapses)
        found = detect_post_synapses(task.chunk(self.input_name), synapses, **self.options)
        found = found if task.bbox is None else found.inside(task.bbox)
        task[self.output_name] = found or None
        return task


@operator("compute")
@input_option(help="Name of the probability map.")
@input_option("--synapses-name", "-s", default="syns", help="Name of the synapses.")
@output_option("--output-name", "-o", default="syns", help="Name of the result.")
@click.option("--min-distance", type=click.FloatRange(min=1), default=6.0, show_default=True,
              help="Voxels along an axis within which there is one point at most.")  # fmt: skip
@click.option("--threshold-rel", type=click.FloatRange(0, 1), default=0.3, show_default=True,
              help="Points are above this part of the map's full scale.")  # fmt: skip
@click.option("--max-distance", type=click.FloatRange(min=0), default=50.0, show_default=True,
              help="From a T-bar to its points, voxels.")  # fmt: skip
@click.option("--max-post-num", type=click.IntRange(min=1), default=15, show_default=True,
              help="Points of a T-bar at most.")  # fmt: skip
def command(input_name: str, synapses_name: str, output_name: str, **options: Any) -> PostDetector:
    """Take distances and threshold."""
    check_extra("segmentation", "detect-post-synapses", "scipy")
    return PostDetector(input_name, synapses_name, output_name, options)

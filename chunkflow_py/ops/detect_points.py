"""Find the peaks of a map, such as cell centres.

Example: chunkflow load-h5 -f map.h5 detect-points --min-distance 10 -o point_cloud
save-points -f points.h5

A peak is above the threshold, and no voxel nearer than --min-distance along each axis is higher; of
a flat top it is the middle. The threshold is a part of the map's full scale, not of the chunk's
maximum. With tasks, each peak belongs to the task in whose box it lies; load a margin of three
distances (--expand-margin-size auto), and the peaks of all tasks are those of the whole, unless a
flat top, such as of a saturated map, is larger than the distance: blur such a map before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import check_extra
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.points import Points
    from chunkflow_py.segmentation.peaks import PeakDetector

SECTION = "objects"


def detect_points(chunk: Chunk, min_distance: float = 15.0, threshold_rel: float = 0.3) -> Points:
    """Return the peaks of a map with their confidences, the highest first.

    Args:
        chunk: (z, y, x) or (1, z, y, x): a map of [0, 1], or integers of full scale.
        min_distance: voxels along an axis within which there is one peak at most.
        threshold_rel: peaks are above it; in [0, 1], of the map's full scale.

    Raises:
        OptionError: the distance is below 1, or the threshold not in [0, 1].
        ChunkError: there are several channels, or a voxel is NaN.
        MissingExtraError: SciPy is not installed.
    """
    from chunkflow_py.segmentation.peaks import detect_peaks

    return detect_peaks(chunk, min_distance, threshold_rel)


@operator("compute")
@input_option(help="Name of the map.")
@output_option(default="point_cloud", help="Name of the points.")
@click.option(
    "--min-distance",
    type=click.FloatRange(min=1),
    default=15.0,
    show_default=True,
    help="Voxels along an axis within which there is one peak at most.",
)
@click.option(
    "--threshold-rel",
    type=click.FloatRange(0, 1),
    default=0.3,
    show_default=True,
    help="Peaks are above this part of the map's full scale.",
)
def command(
    input_name: str, output_name: str, min_distance: float, threshold_rel: float
) -> PeakDetector:
    """Take distance and threshold."""
    from chunkflow_py.segmentation.peaks import PeakDetector

    check_extra("segmentation", "detect-points", "scipy")
    return PeakDetector(lambda points: points, input_name, output_name, min_distance, threshold_rel)

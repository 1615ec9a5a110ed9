r"""Find the peaks of a map, such as cell centres.

Example: chunkflow load-h5 --file-name map.h5 \
  detect-points --min-distance 10 --output-name point_cloud save-points --file-path points.h5

A peak is a voxel above the threshold, with no higher voxel within --min-distance along each axis.
If equal voxels touch (a flat top), the peak is the voxel in their middle. The threshold is a
fraction of the map's full scale, not of the chunk's maximum. Each peak belongs to the task whose
box contains the peak. With a margin of three times --min-distance (--expand-margin-size auto), the
peaks do not depend on the task grid. The exception is a flat top larger than --min-distance, as in
a saturated map. Blur such a map first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import check_extra
from chunkflow_py.ops.options.synapse_options import peak_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.points import Points
    from chunkflow_py.segmentation.peaks import PeakDetector

SECTION = "objects"


def detect_points(chunk: Chunk, min_distance: float = 15.0, threshold_rel: float = 0.3) -> Points:
    """Return the peaks of a map with their confidences, the highest peak first.

    Args:
        chunk: (z, y, x) or (1, z, y, x): a map of values in [0, 1], or of integers whose
            largest possible value means 1.
        min_distance: distance in voxels; no voxel within this distance along each axis is higher
            than a peak.
        threshold_rel: peaks are higher than this fraction of the map's full scale, in [0, 1].

    Raises:
        OptionError: the distance is below 1, or the threshold is not in [0, 1].
        ChunkError: the chunk has several channels, or a voxel is NaN.
        MissingExtraError: SciPy is not installed.
    """
    from chunkflow_py.segmentation.peaks import detect_peaks

    return detect_peaks(chunk, min_distance, threshold_rel)


@operator("compute")
@input_option(help="Name of the map.")
@output_option(default="point_cloud", help="Name of the points.")
@peak_options("peaks", 15.0)
def command(
    input_name: str, output_name: str, min_distance: float, threshold_rel: float
) -> PeakDetector:
    """Check that SciPy is installed, and return the operator."""
    from chunkflow_py.segmentation.peaks import PeakDetector

    check_extra("segmentation", "detect-points", "scipy")
    return PeakDetector(lambda points: points, input_name, output_name, min_distance, threshold_rel)

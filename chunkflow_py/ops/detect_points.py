r"""Find the peaks of a map, such as cell centres.

Example: chunkflow load-h5 --file-name map.h5 \
  detect-points --min-distance 10 --output-name point_cloud save-points --file-path points.h5

A peak is above the threshold, and no voxel nearer than --min-distance along each axis is higher;
the peak of a flat top is its middle. The threshold is a fraction of the map's full scale, not of
the chunk's maximum. Each peak belongs to the task whose box it lies in. With a margin of three
distances (--expand-margin-size auto) the peaks do not depend on the task grid, unless a flat top,
such as in a saturated map, is larger than the distance: blur such a map first.
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
    """Return the peaks of a map with their confidences, the highest first.

    Args:
        chunk: (z, y, x) or (1, z, y, x): a map of [0, 1], or integers of full scale.
        min_distance: smallest distance of two peaks along an axis, voxels.
        threshold_rel: lower limit of peaks, fraction of the map's full scale, in [0, 1].

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
@peak_options("peaks", 15.0)
def command(
    input_name: str, output_name: str, min_distance: float, threshold_rel: float
) -> PeakDetector:
    """Check that SciPy is installed, and return the operator."""
    from chunkflow_py.segmentation.peaks import PeakDetector

    check_extra("segmentation", "detect-points", "scipy")
    return PeakDetector(lambda points: points, input_name, output_name, min_distance, threshold_rel)

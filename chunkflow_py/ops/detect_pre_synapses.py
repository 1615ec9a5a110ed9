r"""Find presynaptic points (T-bars) in a map.

Example: chunkflow load-h5 --file-name tbars.h5 detect-pre-synapses --threshold-rel 0.4 \
  save-synapses --file-path tbars_found.h5

A T-bar is placed at each voxel that is above --threshold-rel (a fraction of the map's full scale)
and that has no higher voxel within --min-distance along each axis.
Each T-bar belongs to the task whose box contains the T-bar. With a margin of three times
--min-distance (--expand-margin-size auto), the T-bars do not depend on the task grid. The exception
is a group of equally high voxels that is larger than --min-distance. If a task has no T-bars, the
result is None; skip-none skips such tasks.
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
    from chunkflow_py.core.synapses import Synapses
    from chunkflow_py.segmentation.peaks import PeakDetector

SECTION = "objects"


def detect_pre_synapses(
    chunk: Chunk, min_distance: float = 15.0, threshold_rel: float = 0.3
) -> Synapses | None:
    """Return the peaks of a probability map as T-bars, or ``None`` if there are no peaks.

    Args:
        chunk: (z, y, x) or (1, z, y, x): a map of values in [0, 1], or of integers whose
            largest possible value means 1.
        min_distance: distance in voxels; no voxel within this distance along each axis is higher
            than a T-bar.
        threshold_rel: peaks are higher than this fraction of the map's full scale, in [0, 1].

    Raises:
        OptionError: the distance is below 1, or the threshold is not in [0, 1].
        ChunkError: the chunk has several channels, or a voxel is NaN.
        MissingExtraError: SciPy is not installed.
    """
    from chunkflow_py.segmentation.peaks import detect_peaks

    return _synapses(detect_peaks(chunk, min_distance, threshold_rel))


def _synapses(points: Points) -> Synapses | None:
    from chunkflow_py.core.synapses import Synapses

    if not len(points):
        return None
    return Synapses(
        points.positions, voxel_size_nm=points.voxel_size_nm, pre_confidence=points.confidences
    )


@operator("compute")
@input_option(help="Name of the probability map.")
@output_option("--output-name", "-o", default="syns", help="Name of the synapses.")
@peak_options("T-bars", 15.0)
def command(
    input_name: str, output_name: str, min_distance: float, threshold_rel: float
) -> PeakDetector:
    """Check that SciPy is installed, and return the operator."""
    from chunkflow_py.segmentation.peaks import PeakDetector

    check_extra("segmentation", "detect-pre-synapses", "scipy")
    return PeakDetector(_synapses, input_name, output_name, min_distance, threshold_rel)

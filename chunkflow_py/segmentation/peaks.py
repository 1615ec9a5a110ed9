"""Peaks of a map: its local maxima. A plateau of equal voxels counts as one peak."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.map_scale import full_scale
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.core.points import Points
from chunkflow_py.errors import ChunkError, OptionError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.task import Task

logger = logging.getLogger(__name__)

# A peak depends on voxels up to three distances away. An earlier plateau of equal height within one
# distance suppresses it; that plateau extends up to one distance further; and a higher voxel up to
# one more distance away suppresses the plateau.
REACH = 3


def find_peaks(array: NDArray[Any], distance: int, threshold: float) -> NDArray[np.int64]:
    """Return the peaks of a volume, sorted by decreasing height, then in raster order.

    A peak is a voxel above *threshold* that is the highest in a cube around it. The cube extends
    *distance* voxels to each side. A plateau (touching voxels of equal value) counts as one peak,
    at the voxel nearest to its centre. Of two plateaus of equal height within *distance*, only the
    first in raster order counts.

    Args:
        array: (z, y, x), real, without NaN.
        distance: number of voxels that the cube extends to each side, at least 1.
        threshold: peaks are higher than this value, in the unit of the voxels.

    Returns:
        (n, 3) positions in the array, zyx. If no plateau is larger than *distance*, each position
        depends only on the voxels within `REACH` times *distance* of this position.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    with needs_extra("segmentation", "the search for peaks"):
        from scipy import ndimage

    if not array.size:
        return np.zeros((0, 3), np.int64)
    if array.dtype == np.float16:  # SciPy lacks float16; float32 represents it exactly
        array = array.astype(np.float32)
    highest = ndimage.maximum_filter(array, 2 * distance + 1, mode="nearest")
    peaks = _centres(np.argwhere((array == highest) & (array > threshold)))
    values = array[tuple(peaks.T)]
    # A stable sort keeps peaks of equal height in raster order.
    order = np.argsort(-values.astype(np.float64), kind="stable")
    return _spaced(peaks[order], distance)


def _centres(points: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the voxel nearest to the centre of each group of touching voxels, in raster order."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    if len(points) < 2:
        return points
    a, b = cKDTree(points).query_pairs(1, p=np.inf, output_type="ndarray").T
    touches = coo_array((np.ones(len(a), bool), (a, b)), shape=(len(points),) * 2)
    count, group = connected_components(touches, directed=False)
    size = np.bincount(group, minlength=count)
    # Integer arithmetic gives the same result wherever in the volume a group lies.
    sums = np.stack([np.bincount(group, points[:, axis], count) for axis in range(3)], axis=1)
    off = np.square(points * size[group, None] - sums[group]).sum(axis=1)
    first = np.lexsort((np.arange(len(points)), off, group))
    chosen = first[np.concatenate([[True], np.diff(group[first]) > 0])]
    return np.asarray(points[np.sort(chosen)])


def _spaced(points: NDArray[np.int64], distance: int) -> NDArray[np.int64]:
    # Without the points within *distance* of an earlier point. Removed points count as earlier
    # points, so the result for a point depends only on points near it.
    from scipy.spatial import cKDTree

    if len(points) < 2:
        return points
    pairs = cKDTree(points).query_pairs(distance, p=np.inf, output_type="ndarray")
    return np.delete(points, pairs.max(axis=1), axis=0)


def detect_peaks(chunk: Chunk, min_distance: float = 15.0, threshold_rel: float = 0.3) -> Points:
    """Return the peaks of a map as points, sorted by decreasing confidence.

    Args:
        chunk: map, (z, y, x) or (1, z, y, x), of values in [0, 1], or of integers whose largest
            possible value means 1.
        min_distance: a peak is the highest voxel of a cube that extends this number of voxels to
            each side.
        threshold_rel: peaks are higher than this fraction, in [0, 1], of the full scale of the map
            (255 for uint8, 1 for floats). The fraction does not refer to the maximum of the chunk,
            so the result does not depend on the division into tasks.

    Raises:
        OptionError: *min_distance* is below 1, or *threshold_rel* is not in [0, 1].
        ChunkError: the chunk has several channels, or a voxel is NaN.
        MissingExtraError: SciPy is not installed.
    """
    if min_distance < 1 or not 0 <= threshold_rel <= 1:
        msg = (
            "peaks need a min_distance of at least 1 voxel and a threshold_rel in [0, 1], got "
            f"min_distance {min_distance} and threshold_rel {threshold_rel}"
        )
        raise OptionError(msg)
    if chunk.channels != 1:
        msg = (
            f"chunk {chunk.bbox} has {chunk.channels} channels, but peaks are detected in a map of "
            "one channel; select a channel with --channels of the loader"
        )
        raise ChunkError(msg)
    array = chunk.array.reshape(chunk.size)
    if array.dtype.kind == "f" and np.isnan(array).any():
        msg = f"chunk {chunk.bbox} contains NaN; correct the operator that made the map"
        raise ChunkError(msg)
    top = full_scale(array.dtype)
    peaks = find_peaks(array, int(min_distance), threshold_rel * top)
    confidences = np.clip(array[tuple(peaks.T)] / np.float32(top), 0, 1).astype(np.float32)
    return Points(peaks + np.asarray(chunk.voxel_offset), chunk.voxel_size_nm, confidences)


@dataclass
class PeakDetector(OperatorBase):
    """Operator that detects the peaks in the box of each task, and adds them to the task.

    If the map of a task is ``None``, ``None`` is added instead of peaks.

    Attributes:
        make: function that converts the peaks, a `Points`, to the object that is added.
        input_name: name of the map in the task.
        output_name: name under which the object is added to the task.
        min_distance: a peak is the highest voxel of a cube that extends this number of voxels to
            each side; see `detect_peaks`.
        threshold_rel: peaks are higher than this fraction of the full scale; see `detect_peaks`.
    """

    make: Callable[[Points], Any]
    input_name: str
    output_name: str
    min_distance: float
    threshold_rel: float
    _has_warned: bool = field(default=False, init=False, repr=False)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box* with the margin of voxels on which the peaks in *box* depend."""
        return box.grow((REACH * int(self.min_distance),) * 3)

    def __call__(self, task: Task) -> Task:
        """Detect the peaks of a task, and add the result to the task."""
        if task[self.input_name] is None:
            task[self.output_name] = None
            return task
        chunk = task.chunk(self.input_name)
        if task.bbox is not None:
            self._check(chunk, task.bbox)
        points = detect_peaks(chunk, self.min_distance, self.threshold_rel)
        task[self.output_name] = self.make(
            points if task.bbox is None else points.inside(task.bbox)
        )
        return task

    def _check(self, chunk: Chunk, box: BoundingBox) -> None:
        needed = self.required_input(box, chunk.domain).intersection(chunk.domain)
        if not self._has_warned and not chunk.bbox.contains(needed):
            self._has_warned = True
            logger.warning(
                "peaks of the task %s depend on voxels in %s, but the chunk covers only %s: peaks "
                "near task boundaries may be detected twice or not at all; give the loader "
                "--expand-margin-size auto",
                box, needed, chunk.bbox,
            )  # fmt: skip

"""Peaks of a map: the local maxima, one for each plateau of equal voxels."""

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

# A peak depends on voxels up to three distances away: it can lose to a plateau of equal height one
# distance away, which extends by up to another, and has higher voxels within a third.
REACH = 3


def find_peaks(array: NDArray[Any], distance: int, threshold: float) -> NDArray[np.int64]:
    """Return the peaks of a volume by decreasing height; equal heights in raster order.

    A peak is above *threshold*, and no voxel within *distance* along each axis is higher. A plateau
    (touching voxels of equal value) counts once, at the voxel nearest to its centre. Of two
    plateaus of equal height within *distance*, the first in raster order counts.

    Args:
        array: (z, y, x), real, without NaN.
        distance: at least 1, voxels.
        threshold: in the unit of the voxels.

    Returns:
        (n, 3) positions in the array, zyx. If no plateau is larger than *distance*, they depend
        only on voxels within `REACH` times *distance*.

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
    found = np.argwhere((array == highest) & (array > threshold))
    found = _centres(found)
    values = array[tuple(found.T)]
    # A stable sort keeps peaks of equal height in raster order.
    order = np.argsort(-values.astype(np.float64), kind="stable")
    return _spaced(found[order], distance)


def _centres(found: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the voxel nearest to the centre of each group of touching voxels, in raster order."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import connected_components
    from scipy.spatial import cKDTree

    if len(found) < 2:
        return found
    a, b = cKDTree(found).query_pairs(1, p=np.inf, output_type="ndarray").T
    touches = coo_array((np.ones(len(a), bool), (a, b)), shape=(len(found),) * 2)
    count, group = connected_components(touches, directed=False)
    size = np.bincount(group, minlength=count)
    # Integer arithmetic gives the same result wherever in the volume a group lies.
    sums = np.stack([np.bincount(group, found[:, axis], count) for axis in range(3)], axis=1)
    off = np.square(found * size[group, None] - sums[group]).sum(axis=1)
    first = np.lexsort((np.arange(len(found)), off, group))
    chosen = first[np.concatenate([[True], np.diff(group[first]) > 0])]
    return np.asarray(found[np.sort(chosen)])


def _spaced(found: NDArray[np.int64], distance: int) -> NDArray[np.int64]:
    """Return the points without those within *distance* of an earlier point.

    The earlier point removes others even if it is removed itself, so that the result for a point
    does not depend on points far away.
    """
    from scipy.spatial import cKDTree

    if len(found) < 2:
        return found
    pairs = cKDTree(found).query_pairs(distance, p=np.inf, output_type="ndarray")
    return np.delete(found, pairs.max(axis=1), axis=0)


def detect_peaks(chunk: Chunk, min_distance: float = 15.0, threshold_rel: float = 0.3) -> Points:
    """Return the peaks of a map as points with confidences, by decreasing confidence.

    Args:
        chunk: (z, y, x) or (1, z, y, x): a map in [0, 1], or integers whose largest value means 1.
        min_distance: smallest distance of two peaks along an axis, in voxels.
        threshold_rel: in [0, 1]; relative to the full scale of the map, not to the maximum of the
            chunk, so that the result does not depend on the division into tasks.

    Raises:
        OptionError: the distance is below 1, or the threshold not in [0, 1].
        ChunkError: there are several channels, or a voxel is NaN.
        MissingExtraError: SciPy is not installed.
    """
    if min_distance < 1 or not 0 <= threshold_rel <= 1:
        msg = (
            f"peaks need a min_distance of at least 1 voxel and a threshold_rel in [0, 1], got "
            f"{min_distance} and {threshold_rel}"
        )
        raise OptionError(msg)
    if chunk.channels != 1:
        msg = (
            f"chunk {chunk.bbox} has {chunk.channels} channels, but peaks are detected in a map of "
            "one channel; select one with --channels of the loader"
        )
        raise ChunkError(msg)
    array = chunk.array.reshape(chunk.size)
    if array.dtype.kind == "f" and np.isnan(array).any():
        msg = f"a voxel of chunk {chunk.bbox} is NaN; find the operator that made it"
        raise ChunkError(msg)
    top = full_scale(array.dtype)
    found = find_peaks(array, int(min_distance), threshold_rel * top)
    confidences = np.clip(array[tuple(found.T)] / np.float32(top), 0, 1).astype(np.float32)
    return Points(found + np.asarray(chunk.voxel_offset), chunk.voxel_size_nm, confidences)


@dataclass
class PeakDetector(OperatorBase):
    """Detects the peaks in the box of every task, and adds what *make* returns for them.

    The result of an item that is ``None`` (a task without a map) is ``None``.

    Attributes:
        make: points -> result.
        input_name: name of the map.
        output_name: name of the result.
        min_distance: see `detect_peaks`.
        threshold_rel: see `detect_peaks`.
    """

    make: Callable[[Points], Any]
    input_name: str
    output_name: str
    min_distance: float
    threshold_rel: float
    _has_warned: bool = field(default=False, init=False, repr=False)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box* with the neighbourhood that peaks in it depend on."""
        return box.grow((REACH * int(self.min_distance),) * 3)

    def __call__(self, task: Task) -> Task:
        """Find the peaks."""
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
        wanted = self.required_input(box, chunk.domain).intersection(chunk.domain)
        if not self._has_warned and not chunk.bbox.contains(wanted):
            self._has_warned = True
            logger.warning(
                "peaks in %s depend on %s, but the chunk is %s: peaks near its faces may be "
                "detected twice or not at all; give the loader --expand-margin-size auto",
                box, wanted, chunk.bbox,
            )  # fmt: skip

"""Assign postsynaptic points to T-bars (presynaptic sites), and find duplicate points."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, needs_extra

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.points import Points
    from chunkflow_py.core.synapses import Synapses


def with_partners(
    synapses: Synapses, points: Points, max_distance: float, max_number: int
) -> Synapses:
    """Return *synapses* with *points* added as the postsynaptic points of their T-bars.

    A point is assigned to the nearest T-bar within *max_distance*. T-bars that already have
    postsynaptic points get no more points.

    Args:
        synapses: T-bars, some with postsynaptic points.
        points: points that can be added, each with a confidence.
        max_distance: largest distance from a T-bar to its postsynaptic points, in voxels.
        max_number: limit of the number of points for each T-bar. Points of the highest confidence
            are chosen first. Among points of equal confidence, the nearest are chosen first.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    with needs_extra("segmentation", "detect-post-synapses"):
        from scipy.spatial import cKDTree

    if not len(synapses) or not len(points):
        return synapses
    distance, owner = cKDTree(synapses.pre).query(points.positions)
    has_partners = np.zeros(len(synapses), bool)
    has_partners[synapses.post_to_pre] = True
    near = np.flatnonzero((distance <= max_distance) & ~has_partners[owner])
    confidence = points.confidences if points.confidences is not None else np.ones(len(points))
    chosen = near[ranks(owner[near], -confidence[near], distance[near]) < max_number]
    chosen = chosen[np.lexsort((distance[chosen], owner[chosen]))]

    def joined(known: NDArray[Any] | None, default: float, new: NDArray[Any]) -> NDArray[Any]:
        known = np.full(len(synapses.post), default, new.dtype) if known is None else known
        return np.concatenate([known, new])

    users = synapses.post_users
    if users is not None:
        users = joined(users, -1, np.full(len(chosen), -1, np.int32))
    return replace(
        synapses,
        post=np.concatenate([synapses.post, points.positions[chosen]]),
        post_to_pre=np.concatenate([synapses.post_to_pre, owner[chosen]]),
        post_confidence=joined(synapses.post_confidence, 1.0, confidence[chosen]),
        post_users=users,
    )


def ranks(group: NDArray[Any], *keys: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each item within its group, sorted by *keys*; the first has rank 0.

    Args:
        group: (n,) number of the group of each item.
        keys: (n,) sort keys within a group, the most important first.
    """
    order = np.lexsort((*reversed(keys), group))
    result = np.empty(len(group), np.int64)
    starts = np.flatnonzero(np.diff(group[order], prepend=-1))
    length = np.diff(np.append(starts, len(group)))
    result[order] = np.arange(len(group)) - np.repeat(starts, length)
    return result


def doubled(
    synapses: Synapses, objects: NDArray[Any], distance: float, protected: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return a mask of the postsynaptic points that are duplicates of another point.

    Several points close together on one object probably mark one contact. The points are examined
    in the order of their distance to their T-bar, the nearest first. Protected points come before
    all others. A point is a duplicate if an earlier point that is not a duplicate lies within
    *distance* on the same object.

    Args:
        synapses: synapses with m postsynaptic points.
        objects: (m,) label of the object that contains each point, 0 if no object does.
        distance: largest distance of a duplicate from the earlier point, in voxels.
        protected: (m,) bool, true for points that must not be marked as duplicates.

    Returns:
        (m,) bool: true for duplicates.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    with needs_extra("segmentation", "detect-duplicate-post"):
        from scipy.spatial import cKDTree

    if not len(synapses.post):
        return np.zeros(0, bool)
    pairs = cKDTree(synapses.post).query_pairs(distance, output_type="ndarray")
    pairs = pairs[(objects[pairs[:, 0]] == objects[pairs[:, 1]]) & (objects[pairs[:, 0]] > 0)]
    order = np.lexsort((synapses.pre_to_post_distances, ~protected))
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    is_duplicate = np.zeros(len(order), bool)
    in_order = np.sort(place[pairs], axis=1)
    for first, second in in_order[np.lexsort(in_order.T[::-1])]:  # few pairs share an object
        if not is_duplicate[first] and second >= protected.sum():
            is_duplicate[second] = True
    return np.asarray(is_duplicate[place])


def objects_at(segmentation: Chunk, points: NDArray[Any]) -> NDArray[Any]:
    """Return the label at each of *points*, or 0 for points outside the chunk.

    Args:
        segmentation: (z, y, x) or (1, z, y, x), integers.
        points: (n, 3) positions, zyx, voxels.

    Raises:
        ChunkError: the voxels are not labels.
    """
    if segmentation.dtype.kind not in "iu" or segmentation.channels != 1:
        msg = (
            f"chunk {segmentation.bbox} has {segmentation.channels} channels of "
            f"{segmentation.dtype}, but labels are integers in one channel; give --input-name the "
            "name of a segmentation"
        )
        raise ChunkError(msg)
    labels = segmentation.array.reshape(segmentation.size)
    local = points - np.asarray(segmentation.voxel_offset)
    inside = np.all((local >= 0) & (local < labels.shape), axis=1)
    result = np.zeros(len(points), labels.dtype)
    result[inside] = labels[tuple(local[inside].T)]
    return result

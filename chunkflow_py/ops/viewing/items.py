"""Positions of points, synapses and skeletons to show, in nanometres, zyx.

| item      | type                                                               |
|-----------|--------------------------------------------------------------------|
| points    | `chunkflow_py.core.points.Points`, or an array (n, 3) of positions |
| synapses  | `chunkflow_py.core.synapses.Synapses`                              |
| skeletons | dictionary from id to `chunkflow_py.core.skeleton.Skeleton`        |

Along an axis with voxel size s, voxel i extends from i·s to (i + 1)·s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.points import Points
from chunkflow_py.core.skeleton import Skeleton
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.errors import ChunkError

if TYPE_CHECKING:
    from numpy.typing import NDArray

Size = tuple[float, float, float]


def skeletons_of(item: Any) -> dict[int, Skeleton] | None:
    """Return the skeletons in *item*, keyed by id; ``None`` if *item* is anything else."""
    if not isinstance(item, Mapping) or not item:
        return None
    if not all(isinstance(skeleton, Skeleton) for skeleton in item.values()):
        return None
    return {int(key): skeleton for key, skeleton in item.items()}


def points_of(name: str, item: Any, voxel_size_nm: Size) -> NDArray[Any]:
    """Return the positions of points, or the presynaptic positions of synapses, in nm, zyx.

    Args:
        name: name of the item, for messages.
        item: points, synapses or an array; see the table of this module.
        voxel_size_nm: voxel size, nanometres, zyx, for synapses that have no voxel size.

    Raises:
        ChunkError: the item is neither points nor synapses.
    """
    if isinstance(item, Points):
        return item.positions_nm
    if isinstance(item, Synapses):
        positions: NDArray[Any] = item.pre_nm * _unit(item, voxel_size_nm)
        return positions
    if isinstance(item, np.ndarray) and item.ndim == 2 and item.shape[1] == 3:
        return item
    msg = (
        f"item {name!r} is a {type(item).__name__}, which cannot be shown; give the names of "
        "chunks, points, synapses or skeletons"
    )
    raise ChunkError(msg)


def lines_of(item: Any, voxel_size_nm: Size) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the starts (pre) and ends (post) of the lines that show synapses, in nm, zyx.

    Both arrays are empty if *item* is not synapses.
    """
    if not isinstance(item, Synapses):
        nothing = np.zeros((0, 3))
        return nothing, nothing
    unit = _unit(item, voxel_size_nm)
    return item.pre_nm[item.post_to_pre] * unit, item.post_nm * unit


def _unit(item: Synapses, voxel_size_nm: Size) -> NDArray[Any]:
    # Coordinates ``*_nm`` of synapses without a voxel size are in voxels.
    return np.asarray(voxel_size_nm if item.voxel_size_nm is None else (1.0, 1.0, 1.0))


def middle_of(items: Mapping[str, Any], voxel_size_nm: Size) -> tuple[float, ...] | None:
    """Return the centre of the first item that has points, synapses or skeletons, nm, zyx."""
    for name, item in items.items():
        skeletons = skeletons_of(item)
        if skeletons is not None:
            positions = np.concatenate([each.vertices_nm for each in skeletons.values()])
        elif isinstance(item, (Points, Synapses, np.ndarray)):
            ends = lines_of(item, voxel_size_nm)[1]
            positions = np.concatenate([points_of(name, item, voxel_size_nm), ends])
        else:
            continue
        if len(positions):
            low, high = positions.min(axis=0), positions.max(axis=0)
            return tuple(np.asarray((low + high) / 2, float).tolist())
    return None

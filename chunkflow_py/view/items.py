"""What else than chunks a task may carry to be looked at: where it lies.

| item      | what it is                                                           |
|-----------|----------------------------------------------------------------------|
| points    | an object with ``positions_nm``, or an array (n, 3): nm, zyx          |
| synapses  | an object with ``pre_nm``, ``post_nm`` and ``post_to_pre``            |
| skeletons | id -> object with ``vertices_nm`` (n, 3) and ``edges`` (m, 2)          |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError

if TYPE_CHECKING:
    from numpy.typing import NDArray

_NONE: NDArray[Any] = np.zeros((0, 3))


def skeletons_of(item: Any) -> dict[int, tuple[NDArray[Any], NDArray[Any]]] | None:
    """Return id -> (vertices in nm, zyx; edges) of skeletons, or ``None`` of anything else."""
    if not isinstance(item, Mapping):
        return None
    if not all(hasattr(skeleton, "edges") for skeleton in item.values()):
        return None
    return {int(key): (_vertices(skeleton), skeleton.edges) for key, skeleton in item.items()}


def _vertices(skeleton: Any) -> NDArray[Any]:
    return np.asarray(skeleton.vertices_nm, np.float32).reshape(-1, 3)


def lines_of(item: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return begin and end of each synapse's lines (pre to post), nm, zyx; none of others."""
    post = getattr(item, "post_nm", None)
    if post is None or not len(post):
        return _NONE, _NONE
    return np.asarray(item.pre_nm)[np.asarray(item.post_to_pre)], np.asarray(post)


def points_of(name: str, item: Any) -> NDArray[Any]:
    """Return the points, or the presynaptic ones of synapses, nm, zyx.

    Args:
        name: of the item, for messages.
        item: see the module.

    Raises:
        ChunkError: it is none of these.
    """
    for attribute in ("positions_nm", "pre_nm"):
        found = getattr(item, attribute, None)
        if found is not None:
            return np.asarray(found)
    if isinstance(item, np.ndarray) and item.ndim == 2 and item.shape[1] == 3:
        return item
    msg = (
        f"item {name!r} is a {type(item).__name__}, which cannot be shown; name chunks, points, "
        "synapses or skeletons"
    )
    raise ChunkError(msg)


def positions_of(item: Any) -> NDArray[Any]:
    """Return all positions of points, synapses or skeletons, nm, zyx; none of others."""
    skeletons = skeletons_of(item)
    if skeletons:
        return np.concatenate([vertices for vertices, _ in skeletons.values()])
    try:
        return np.concatenate([points_of("", item), *lines_of(item)])
    except ChunkError:
        return _NONE

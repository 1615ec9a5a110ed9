"""Convert items of a task to types of chunkflow 1.x for a plugin, and convert results back."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from chunkflow_py.core import geometry
from chunkflow_py.core.chunk import Chunk as OurChunk
from chunkflow_py.core.points import Points
from chunkflow_py.core.synapses import Synapses as OurSynapses
from chunkflow_py.pipeline.compat.chunks import Chunk
from chunkflow_py.pipeline.compat.objects import PointCloud, Synapses
from chunkflow_py.pipeline.compat.places import BoundingBox, Cartesian, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chunkflow_py.core.chunk import Kind

_LAYER_TYPES: dict[Kind | None, str] = {
    "image": "image",
    "segmentation": "segmentation",
    "probability": "probability_map",
    "affinity": "affinity_map",
}
_T = TypeVar("_T")
_KINDS = {name: kind for kind, name in _LAYER_TYPES.items()}


def to_plugin(value: Any) -> Any:
    """Convert an item of a task to the type that a plugin for chunkflow 1.x expects.

    A converted chunk shares the array of the item; points and synapses are copied. An item of a
    type that has no counterpart in 1.x is returned unchanged.
    """
    match value:
        case OurChunk():
            size = plain(value.voxel_size_nm)
            layer_type = _LAYER_TYPES.get(value.kind)
            return Chunk(value.array, value.voxel_offset, size, layer_type)
        case geometry.BoundingBox():
            return BoundingBox(Cartesian(*value.start), Cartesian(*value.stop))
        case geometry.Zyx():
            return Cartesian(*value)
        case Points():
            return PointCloud(value.positions.copy(), plain(value.voxel_size_nm))
        case OurSynapses():
            post = np.column_stack([value.post_to_pre, value.post]) if len(value.post) else None
            return Synapses(
                value.pre,
                _copy(value.pre_confidence),
                post,
                _copy(value.post_confidence) if post is not None else None,
                None if value.voxel_size_nm is None else plain(value.voxel_size_nm),
                list(value.users) or None,
                _copy(value.pre_users),
                _copy(value.post_users) if post is not None else None,
            )
    return value


def from_plugin(value: Any, inputs: Sequence[Any] = ()) -> Any:
    """Convert the return value of a plugin to items of a task.

    The elements of a list or tuple, and the values of a dict, are converted one by one.

    Args:
        value: value that the plugin returned.
        inputs: items that the plugin received. The first chunk and the first synapses among them
            supply what the classes of 1.x cannot store: the domain, kinds of voxels that 1.x lacks,
            and the ids of the objects that contain T-bars.
    """
    match value:
        case list() | tuple() if type(value) in (list, tuple):
            return type(value)(from_plugin(each, inputs) for each in value)
        case dict():
            return {name: from_plugin(each, inputs) for name, each in value.items()}
        case Chunk():
            return _our_chunk(value, _first(inputs, OurChunk))
        case BoundingBox():
            return geometry.BoundingBox(_whole(value.start), _whole(value.stop))
        case Cartesian():
            return geometry.Zyx.of(value)
        case PointCloud():
            return Points(value.points, _size(value.voxel_size))
        case Synapses():
            return _our_synapses(value, _first(inputs, OurSynapses))
    return value


def is_changed(given: Any, item: Any) -> bool:
    """Return whether a plugin has changed an object that it received.

    Changed voxels do not count, because the object and the task's item share the array.

    Args:
        given: object that `to_plugin` made from *item* and that the plugin has received.
        item: item of the task.
    """
    match given:
        case Chunk():
            same = to_plugin(item)
            return given.array is not same.array or given.properties != same.properties
        case PointCloud() | Synapses():
            before, after = vars(to_plugin(item)), vars(given)
            return any(not np.array_equal(before[name], after[name]) for name in before)
    return False


def _our_chunk(chunk: Chunk, like: OurChunk | None) -> OurChunk:
    offset = _whole(chunk.voxel_offset)
    known = (1.0, 1.0, 1.0) if like is None else like.voxel_size_nm
    size = known if chunk.voxel_size is None else _size(chunk.voxel_size)
    made = OurChunk(chunk.array, offset, size, _kind(chunk, like))
    if like is not None and size == like.voxel_size_nm:
        made.domain = like.domain.hull(made.bbox)
    return made


def _kind(chunk: Chunk, like: OurChunk | None) -> Kind | None:
    # Plugins often copy the properties of a probability map to the labels that they make from this
    # map. Therefore, the declared layer type counts only if the dtype and the axes fit.
    explicit = chunk.properties.get("layer_type")
    kind = _KINDS.get(explicit or "")
    integers = chunk.dtype.kind in "iub" and chunk.dtype.itemsize > 1
    if integers and kind in ("affinity", "probability"):
        return "segmentation"
    if kind == "affinity" and chunk.ndim != 4:
        return None
    same = like is not None and like.dtype == chunk.dtype and like.ndim == chunk.ndim
    if kind is None and same and like is not None:
        return like.kind
    return kind


def _our_synapses(synapses: Synapses, like: OurSynapses | None) -> OurSynapses:
    post = np.zeros((0, 4), np.int64) if synapses.post is None else synapses.post.reshape(-1, 4)
    size = None if synapses.resolution is None else _size(synapses.resolution)
    made = OurSynapses(
        synapses.pre.astype(np.int64),
        post[:, 1:].astype(np.int64),
        post[:, 0].astype(np.int64),
        size,
        synapses.pre_confidence,
        synapses.post_confidence if len(post) else None,
        tuple(synapses.users or ()),
        synapses.pre_users,
        synapses.post_users if len(post) else None,
    )
    # the objects of T-bars are known as long as the T-bars do not change
    if like is not None and np.array_equal(like.pre, made.pre):
        made = replace(made, object_ids=like.object_ids)
    return made


def _first(inputs: Sequence[Any], kind: type[_T]) -> _T | None:
    return next((each for each in inputs if isinstance(each, kind)), None)


def _copy(values: Any) -> Any:
    return None if values is None else values.copy()


def _whole(values: Iterable[Any]) -> geometry.Zyx:
    return geometry.Zyx.of(value.item() if hasattr(value, "item") else value for value in values)


def _size(values: Iterable[Any]) -> tuple[float, float, float]:
    z, y, x = (float(value) for value in values)
    return z, y, x

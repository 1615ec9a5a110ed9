"""Derive from an operator's hooks how the operator changes voxel properties and task boxes."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from chunkflow_py.core.geometry import BoundingBox, Scale, Zyx
from chunkflow_py.core.outline import Boxes, boxes_between, turned_boxes

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.core.operator_base import OperatorBase

_Turned = TypeVar("_Turned", BoundingBox, Scale, Zyx)


def voxels_made(hooks: OperatorBase, held: Voxels | None) -> Voxels | dict[str, Voxels] | None:
    """Return dtype, channels and kind of an operator's output voxels; ``None`` if unknown.

    The result is a dict by chunk name if the operator's hook ``voxels`` returns a dict.

    Args:
        hooks: hooks of the operator.
        held: dtype, channels and kind of the operator's first input; ``None`` if unknown.
    """
    if hooks.declares("voxels"):
        return hooks.voxels()
    if hooks.keeps_voxels:
        return held
    return None if held is None else hooks.voxels_from(held)


def keeps_labels(hooks: OperatorBase) -> bool:
    """Return whether the operator is known to turn uint64 labels into uint64 labels."""
    from chunkflow_py.core.chunk import Voxels

    labels = Voxels("uint64", 1, "segmentation")
    return not hooks.declares("voxels") and voxels_made(hooks, labels) == labels


def turned(value: _Turned, hooks: OperatorBase) -> _Turned:
    """Permute z, y and x of *value* in the way the operator permutes the axes of chunks."""
    return value if hooks.order is None else value.turned(hooks.order)


def turned_back(box: BoundingBox, hooks: OperatorBase) -> BoundingBox:
    """Undo `turned`: permute the axes of an output box to the axis order of the input."""
    order = hooks.order
    return box if order is None else box.turned([order.index(axis) for axis in range(3)])


def scale_of(hooks: OperatorBase) -> Scale | None:
    """Return the size of an output voxel in voxels of the first input, zyx.

    The result is ``None`` if the operator does not change the voxel size.
    """
    return None if hooks.shrinks_by is None else Scale.of(hooks.shrinks_by)


def moved_by(hooks: OperatorBase, scale: Scale) -> tuple[Zyx, Zyx]:
    """Return the offsets that an operator adds to the start and the stop of a task's box.

    Args:
        hooks: hooks of the operator.
        scale: size of a voxel of the operator's first input, in voxels of the task's box, zyx.

    Raises:
        GeometryError: an offset, converted to voxels of the task's box, is not a whole number.
    """
    low, high = hooks.face_offsets or (Zyx(0, 0, 0),) * 2
    return scale.whole_offset(low), scale.whole_offset(high)


def moved_boxes(boxes: Boxes, hooks: OperatorBase, scale: Scale) -> Boxes:
    """Return the boxes that tasks have after an operator: moved, or with permuted axes.

    Args:
        boxes: boxes of the tasks before the operator.
        hooks: hooks of the operator.
        scale: size of a voxel of the operator's first input, in voxels of *boxes*, zyx.
    """
    if hooks.order is not None:
        return turned_boxes(boxes, hooks.order)
    return boxes if hooks.face_offsets is None else boxes_between(boxes, *moved_by(hooks, scale))

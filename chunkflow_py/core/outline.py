"""`Outline`: the facts about tasks and volumes that operators get before the first task.

The functions of this module transform the boxes of all tasks, given as a grid or a list, from one
operator to the next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx, hull_of

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.volume.labelling import Labelling

Boxes = BoxGrid | Sequence[BoundingBox]


@dataclass(frozen=True)
class Outline:
    """What is known about tasks and volumes before the first task, from one operator's view.

    Attributes:
        boxes: the boxes of all tasks, in voxels of the operator's first input; ``None`` if
            unknown (a pipeline without a source, or one fed by a queue).
        domain: bounds of the volume that the operator's first input comes from, if known.
        has_tasks: whether tasks have boxes when they reach the operator, even unknown ones.
        voxels: dtype, channels and kind of the operator's first input, if known.
        times: length of the time axis of the volume of *domain*, if it has one.
        voxel_size_nm: voxel size of the operator's first input, nanometres, zyx, if known.
        scale: size of a voxel of the operator's first input, in voxels of the pipeline's input,
            zyx. The boxes of tasks are stored in voxels of the pipeline's input.
        labelling: how tasks labelled the objects of the operator's first input, if the ids are
            unique in the volume.
        is_divided: whether the tasks divide a volume.
        saved_as: for an operator with the hook ``labelling``: the dtypes of the volumes that will
            store its labels, as far as they are known.
    """

    boxes: Boxes | None = None
    domain: BoundingBox | None = None
    has_tasks: bool = False
    voxels: Voxels | None = None
    times: int | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    scale: Zyx = Zyx(1, 1, 1)
    labelling: Labelling | None = None
    is_divided: bool = False
    saved_as: tuple[str, ...] = ()

    @property
    def region(self) -> BoundingBox | None:
        """The smallest box around all tasks."""
        return hull_of(self.boxes)

    @property
    def bounds(self) -> BoundingBox | None:
        """The smallest box around the domain and all tasks; a new output volume must cover it."""
        if self.domain is None or self.region is None:
            return self.domain or self.region
        return self.domain.hull(self.region)


def turned_boxes(boxes: Boxes, order: Sequence[int]) -> Boxes:
    """Return *boxes* with permuted axes.

    Args:
        boxes: boxes of tasks.
        order: the old axes that become z, y and x.
    """
    if not isinstance(boxes, BoxGrid):
        return [box.turned(order) for box in boxes]
    grid = (boxes.start, boxes.size, boxes.stride, boxes.count)
    start, size, stride, count = (value.turned(order) for value in grid)
    clip = boxes.clip_stop and boxes.clip_stop.turned(order)
    return BoxGrid(start, size, stride, count, clip)


def boxes_between(boxes: Boxes, low: Zyx, high: Zyx) -> Boxes:
    """Return *boxes* with *low* added to their starts and *high* to their stops."""
    if isinstance(boxes, BoxGrid):
        clip = None if boxes.clip_stop is None else boxes.clip_stop + high
        return BoxGrid(boxes.start + low, boxes.size + high - low, boxes.stride, boxes.count, clip)
    return [BoundingBox(box.start + low, box.stop + high) for box in boxes]


def shrunk_boxes(boxes: Boxes, factor: Zyx) -> Boxes:
    """Return *boxes* in voxels that are *factor* times larger, rounded outward."""
    if factor == (1, 1, 1):
        return boxes
    if isinstance(boxes, BoxGrid) and not any((*(boxes.start % factor), *(boxes.stride % factor))):
        clip = None if boxes.clip_stop is None else -(-boxes.clip_stop // factor)
        start, size = boxes.start // factor, -(-boxes.size // factor)
        return BoxGrid(start, size, boxes.stride // factor, boxes.count, clip)
    return [box.coarser(factor) for box in boxes]


def coarser_nm(size_nm: tuple[float, float, float], factor: Zyx) -> tuple[float, float, float]:
    """Return the size of voxels that are *factor* times larger, nanometres, zyx."""
    z, y, x = (nm * f for nm, f in zip(size_nm, factor, strict=True))
    return z, y, x

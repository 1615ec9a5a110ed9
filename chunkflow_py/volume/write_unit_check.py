"""Check that tasks do not share write units, so that tasks can write at the same time.

A write unit is the box of voxels that is stored as one object: a block, or a shard of a sharded
volume. Writing a part of a unit would read the unit, change it, and write it again, so of two tasks
that share a unit one would overwrite the voxels of the other.
"""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import AXES, BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import AlignmentError

if TYPE_CHECKING:
    from collections.abc import Iterable

_CROP = "crop the saved chunks with crop-margin, or generate tasks that do not overlap"


def check_alignment(
    boxes: BoxGrid | Iterable[BoundingBox], unit: Zyx, bounds: BoundingBox, url: str
) -> None:
    """Refuse boxes whose boundaries cut a write unit of a volume.

    Two tasks that share a write unit would overwrite each other's voxels. Write units begin at the
    start of *bounds*. A box must begin and end at boundaries of write units. A box may also begin
    before *bounds*, and may end at or beyond the end of *bounds*. Two boxes may share voxels only
    if they are identical.

    Args:
        boxes: boxes of all tasks; a grid is checked axis by axis, without listing its boxes.
        unit: extent of a block or shard of the volume, voxels, zyx.
        bounds: box of all voxels of the volume.
        url: address of the volume, for messages.

    Raises:
        AlignmentError: a box cuts a write unit (the message gives the nearest sizes that work), or
            two boxes overlap.
    """
    if not isinstance(boxes, BoxGrid):
        boxes = list(boxes)
    check_disjoint(boxes, url)
    if isinstance(boxes, BoxGrid):
        for axis, name in enumerate(AXES):
            for low, high in boxes.intervals(axis):
                if _cuts(low, high, axis, unit, bounds):
                    msg = (
                        f"tasks of size {boxes.size} at stride {boxes.stride} from {boxes.start} "
                        f"cut the write units of size {unit} of {url}; the write units begin at "
                        f"{bounds.start}, but one task covers {low}-{high} along {name} (zyx, "
                        "voxels); "
                        f"{_remedy(boxes, unit, bounds)}"
                    )
                    raise AlignmentError(msg)
        return
    for box in boxes:
        if any(_cuts(box.start[a], box.stop[a], a, unit, bounds) for a in range(3)):
            nearest = box.aligned_outward(unit, bounds.start).intersection(bounds)
            msg = (
                f"box {box} is not aligned to the write units of size {unit} of {url}, which begin "
                f"at {bounds.start} (zyx, voxels); the nearest aligned box is {nearest}"
            )
            raise AlignmentError(msg)


def check_disjoint(boxes: BoxGrid | Iterable[BoundingBox], url: str) -> None:
    """Refuse boxes that share voxels, unless the boxes are identical.

    Only boxes that share a cell of a coarse grid are compared, so that the time does not grow with
    the square of the number of boxes. Along each axis, a cell is as long as the shortest box.

    Raises:
        AlignmentError: two boxes overlap; the message names both.
    """
    if isinstance(boxes, BoxGrid):
        for axis, name in enumerate(AXES):
            if boxes.count[axis] > 1 and boxes.size[axis] > boxes.stride[axis]:
                msg = (
                    f"tasks of size {boxes.size} at stride {boxes.stride} overlap along {name} "
                    f"(zyx, voxels) and would overwrite each other's voxels in {url}; {_CROP}"
                )
                raise AlignmentError(msg)
        return
    distinct = [box for box in dict.fromkeys(boxes) if not box.is_empty]
    if len(distinct) < 2:
        return
    cell = Zyx(*(min(box.size[axis] for box in distinct) for axis in range(3)))
    cells: dict[tuple[int, ...], list[BoundingBox]] = {}
    for box in distinct:
        low, high = box.start // cell, -(-box.stop // cell)
        for place in product(*(range(a, b) for a, b in zip(low, high, strict=True))):
            for other in cells.setdefault(place, []):
                if not other.intersection(box).is_empty:
                    msg = (
                        f"tasks {other} and {box} overlap and would overwrite each other's voxels "
                        f"in {url}; {_CROP}"
                    )
                    raise AlignmentError(msg)
            cells[place].append(box)


def _cuts(low: int, high: int, axis: int, unit: Zyx, bounds: BoundingBox) -> bool:
    first, last, step = bounds.start[axis], bounds.stop[axis], unit[axis]
    cut_low = low > first and (low - first) % step != 0
    cut_high = high < last and (high - first) % step != 0
    return cut_low or cut_high


def _remedy(grid: BoxGrid, unit: Zyx, bounds: BoundingBox) -> str:
    shift = grid.start - bounds.start
    sizes = []
    for options in (math.floor, math.ceil):
        size = Zyx(*(max(1, options(s / u)) * u for s, u in zip(grid.size, unit, strict=True)))
        if size not in sizes:
            sizes.append(size)
    remedy = f"task sizes that work: {' or '.join(str(size) for size in sizes)}"
    if any(s % u for s, u in zip(shift, unit, strict=True)):
        near = bounds.start + shift // unit * unit
        remedy += f", starting at {near}"
    return remedy

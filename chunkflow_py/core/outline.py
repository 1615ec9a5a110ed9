"""`Outline`: the facts about tasks and volumes that operators get before the first task.

An operator can change the box of each task, for example by cropping. The functions of this module
take the boxes of all tasks before an operator (a grid or a list), and return the boxes after the
operator. `BoxIndex` finds boxes by their location.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import product
from typing import TYPE_CHECKING, overload

from chunkflow_py.core.geometry import UNIT_SCALE, BoundingBox, BoxGrid, Scale, Zyx, hull_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from fractions import Fraction

    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.volume.labelling import Labelling

Boxes = BoxGrid | Sequence[BoundingBox]


@dataclass(frozen=True)
class Outline:
    """What is known about tasks and volumes before the first task, from one operator's view.

    Attributes:
        boxes: the boxes of all tasks, in voxels of the operator's first input; ``None`` if
            unknown (without a source, or if the source is a queue).
        domain: bounds of the volume that the operator's first input comes from, if known.
        has_tasks: whether tasks have boxes when they reach the operator, even if these boxes are
            not known yet.
        has_times: whether tasks have a time index; ``None`` if this is not known yet.
        time_points: number of different time points of all tasks; 1 if not known.
        voxels: dtype, channels and kind (such as ``image``) of the operator's first input, if
            known.
        times: length of the time axis of the volume that the operator's first input comes from;
            ``None`` if the volume has no time axis.
        voxel_size_nm: voxel size of the operator's first input, nanometres, zyx, if known.
        scale: size of a voxel of the operator's first input, in voxels of the pipeline's input,
            zyx. The boxes of tasks are stored in voxels of the pipeline's input.
        labelling: how tasks labelled the objects of the operator's first input, if the ids are
            unique in the volume.
        is_divided: whether the tasks divide a volume; false if the user gave the box of one task.
        saved_as: for an operator with the hook ``labelling``: the dtypes of the volumes that will
            store its labels, as far as they are known.
    """

    boxes: Boxes | None = None
    domain: BoundingBox | None = None
    has_tasks: bool = False
    has_times: bool | None = None
    time_points: int = 1
    voxels: Voxels | None = None
    times: int | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    scale: Scale = UNIT_SCALE
    labelling: Labelling | None = None
    is_divided: bool = False
    saved_as: tuple[str, ...] = ()

    @property
    def task_count(self) -> int:
        """The number of tasks, or 0 if it is not known."""
        boxes = self.boxes or ()
        return len(boxes) * (self.time_points if isinstance(boxes, BoxGrid) else 1)

    @property
    def region(self) -> BoundingBox | None:
        """The smallest box around all tasks."""
        return hull_of(self.boxes)

    @property
    def bounds(self) -> BoundingBox | None:
        """The smallest box around the domain and all tasks; output volumes must cover this box."""
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
    """Return *boxes* with *low* added to their starts and *high* to their stops.

    Raises:
        GeometryError: one of the new boxes would contain no voxel.
    """
    if isinstance(boxes, BoxGrid):
        for smallest in (boxes[0], boxes[len(boxes) - 1]):  # the end of the region may cut the last
            smallest.between(low, high)
        clip = None if boxes.clip_stop is None else boxes.clip_stop + high
        return BoxGrid(boxes.start + low, boxes.size + high - low, boxes.stride, boxes.count, clip)
    return [box.between(low, high) for box in boxes]


class ScaledBoxes(Sequence[BoundingBox]):
    """Boxes converted to voxels of another size; each box is converted when it is read.

    Args:
        boxes: boxes of all tasks, in voxels of the pipeline's input.
        scale: size of a voxel after the conversion, in voxels of *boxes*.
    """

    def __init__(self, boxes: Boxes, scale: Scale) -> None:
        self.boxes, self.scale = boxes, scale

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.boxes)

    @overload
    def __getitem__(self, index: int) -> BoundingBox: ...
    @overload
    def __getitem__(self, index: slice) -> list[BoundingBox]: ...
    def __getitem__(self, index: int | slice) -> BoundingBox | list[BoundingBox]:
        """Return a box, or the boxes of a slice."""
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        return self.scale.coarser(self.boxes[index])

    @cached_property
    def bounds(self) -> BoundingBox:
        """The smallest box around all boxes."""
        return self.scale.coarser(hull_of(self.boxes) or BoundingBox(Zyx(0, 0, 0), Zyx(0, 0, 0)))

    @property
    def largest(self) -> Zyx:
        """Extent that no box exceeds, voxels, zyx."""
        if isinstance(self.boxes, BoxGrid):
            size = self.boxes.size
        else:
            size = reduce(Zyx.high, (box.size for box in self.boxes))
        return largest_scaled(size, self.scale)

    def unscaled(self, box: BoundingBox) -> BoundingBox | None:
        """Return the box in *boxes* that converts to *box*; ``None`` if there is no such box."""
        if not isinstance(self.boxes, BoxGrid):
            return self._unscaled.get(box)
        for point in self.scale.owners(box.start):
            cell = self.boxes.cell_of(point)
            if cell is not None and self.scale.coarser(found := self.boxes.box(cell)) == box:
                return found
        return None

    @cached_property
    def _unscaled(self) -> dict[BoundingBox, BoundingBox]:
        return {self.scale.coarser(box): box for box in self.boxes}


def scaled_boxes(boxes: Boxes, scale: Scale) -> Boxes:
    """Convert *boxes* to voxels of another size, as `Scale.coarser` does.

    The result is a grid if *boxes* is a grid whose start and stride are whole numbers of new
    voxels. If a factor is fractional, the size and ``clip_stop`` of the grid must be whole numbers
    of new voxels, too. Otherwise, the result is a list or `ScaledBoxes`.

    Args:
        boxes: boxes of tasks.
        scale: size of a new voxel, in voxels of *boxes*.
    """
    if scale == UNIT_SCALE:
        return boxes
    is_whole = all(factor.denominator == 1 for factor in scale)
    if isinstance(boxes, BoxGrid):
        places = [boxes.start, boxes.stride]
        if not is_whole:  # otherwise rounding the ends outward keeps the boxes equal
            places += [boxes.size, *([boxes.clip_stop] if boxes.clip_stop else [])]
        if not any(
            at % factor for place in places for at, factor in zip(place, scale, strict=True)
        ):
            first = scale.coarser(BoundingBox.from_size(boxes.start, boxes.size))
            stride = [step // factor for step, factor in zip(boxes.stride, scale, strict=True)]
            clip = None
            if boxes.clip_stop is not None:
                clip = scale.coarser(BoundingBox(boxes.start, boxes.clip_stop)).stop
            return BoxGrid(first.start, first.size, Zyx(*map(int, stride)), boxes.count, clip)
    return [scale.coarser(box) for box in boxes] if is_whole else ScaledBoxes(boxes, scale)


def largest_scaled(size: Zyx, scale: Scale) -> Zyx:
    """Return the largest extent, in new voxels, that a box of *size* can have when converted.

    The extent depends on where the box begins.

    Args:
        size: extent of the box before the conversion, in old voxels, zyx.
        scale: size of a new voxel, in old voxels.
    """
    rows = zip(size, scale, strict=True)
    return Zyx(*(-(-n // f) + (n % f != 0 or f.denominator > 1) for n, f in rows))


def coarser_nm(
    size_nm: tuple[float, float, float], factor: Iterable[Fraction | int]
) -> tuple[float, float, float]:
    """Return the size of voxels that are *factor* times larger, nanometres, zyx."""
    z, y, x = (float(nm * f) for nm, f in zip(size_nm, factor, strict=True))
    return z, y, x


class BoxIndex:
    """Index of the boxes of tasks, to look up a box, or the boxes that intersect a region.

    Args:
        boxes: grid or list of boxes. The number of a box is its index in this grid or list.
    """

    def __init__(self, boxes: Boxes) -> None:
        # The boxes of a list are sorted into cells as large as the largest box.
        self._scaled: tuple[ScaledBoxes, BoxIndex] | None = None
        if isinstance(boxes, ScaledBoxes):
            self._scaled = boxes, BoxIndex(boxes.boxes)
            return
        self._boxes = boxes
        self._cells: dict[tuple[int, ...], list[int]] = {}
        self._numbers: dict[BoundingBox, int] = {}
        if isinstance(boxes, BoxGrid):
            return
        self._cell = Zyx(1, 1, 1)
        for box in boxes:
            self._cell = self._cell.high(box.size)
        for number, box in enumerate(boxes):
            self._numbers.setdefault(box, number)
            for cell in self._cells_of(box):
                self._cells.setdefault(cell, []).append(number)

    def number(self, box: BoundingBox) -> int | None:
        """Return the number of *box*; ``None`` if *box* is not one of the boxes."""
        if self._scaled is not None:
            scaled, index = self._scaled
            found = scaled.unscaled(box)
            return None if found is None else index.number(found)
        boxes = self._boxes
        if not isinstance(boxes, BoxGrid):
            return self._numbers.get(box)
        cell = (box.start - boxes.start) // boxes.stride
        if cell != cell.high((0, 0, 0)).low(boxes.count - 1) or boxes.box(cell) != box:
            return None
        return (cell.z * boxes.count.y + cell.y) * boxes.count.x + cell.x

    def touching(self, region: BoundingBox) -> Iterator[tuple[int, BoundingBox]]:
        """Yield the number and the box of each box that intersects *region*."""
        if self._scaled is not None:
            scaled, index = self._scaled
            # A box may gain up to one voxel by rounding.
            for number, unscaled in index.touching(scaled.scale.finer(region.grow((1, 1, 1)))):
                box = scaled.scale.coarser(unscaled)
                if not box.intersection(region).is_empty:
                    yield number, box
            return
        boxes = self._boxes
        if not isinstance(boxes, BoxGrid):
            found = {n for cell in self._cells_of(region) for n in self._cells.get(cell, ())}
            for number in sorted(found):
                if not boxes[number].intersection(region).is_empty:
                    yield number, boxes[number]
            return
        low = -(-(region.start - boxes.start - boxes.size + 1) // boxes.stride)
        high = (region.stop - 1 - boxes.start) // boxes.stride
        spans = zip(low.high((0, 0, 0)), (high + 1).low(boxes.count), strict=True)
        for z, y, x in product(*(range(first, stop) for first, stop in spans)):
            box = boxes.box((z, y, x))
            if not box.intersection(region).is_empty:
                yield (z * boxes.count.y + y) * boxes.count.x + x, box

    def _cells_of(self, box: BoundingBox) -> Iterator[tuple[int, ...]]:
        if box.is_empty:
            return iter(())
        low, high = box.start // self._cell, (box.stop - 1) // self._cell
        return product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))

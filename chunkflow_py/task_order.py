"""In which order the boxes of a grid come: raster, or along a curve that stays near.

```
raster          morton          hilbert         neighbours along a curve share blocks that both
0  1  2  3      0  1  4  5      0  1 14 15      read, which a bounded cache then still holds
4  5  6  7      2  3  6  7      3  2 13 12
8  9 10 11      8  9 12 13      4  7  8 11
12 13 14 15    10 11 14 15      5  6  9 10
```

Nothing is stored: the box of a number is found by descent from the whole grid, in O(log n) steps,
whatever the extents; powers of two are not needed. Tasks 7 to 9 are the same ones for every job
that numbers the same grid in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Literal, get_args, overload

from chunkflow_py.geometry import BoundingBox, BoxGrid, Zyx

if TYPE_CHECKING:
    from collections.abc import Iterator

Order = Literal["raster", "morton", "hilbert"]
ORDERS: tuple[Order, ...] = get_args(Order)


def cells(count: Zyx, order: Order = "raster", first: int = 0) -> Iterator[Zyx]:
    """Yield the cells of a grid in an order, from number *first* on.

    Args:
        count: cells along each axis.
        order: of the cells.
        first: how many to pass.
    """
    if order == "hilbert":
        yield from _hilbert(count, first)
        return
    cell = _morton if order == "morton" else _raster
    for index in range(first, count.product()):
        yield cell(count, index)


def positions(count: Zyx, order: Order = "raster", first: int = 0) -> Iterator[int]:
    """Yield the raster positions of the cells of a grid in an order, from number *first* on."""
    rows, columns = count.y, count.x
    for z, y, x in cells(count, order, first):
        yield (z * rows + y) * columns + x


@dataclass(frozen=True)
class OrderedBoxes(Sequence[BoundingBox]):
    """The boxes of a grid in an order of their own.

    Attributes:
        grid: of the boxes.
        order: in which they come.
    """

    grid: BoxGrid
    order: Order = "raster"

    def __len__(self) -> int:
        """Return the number of boxes."""
        return len(self.grid)

    @overload
    def __getitem__(self, index: int) -> BoundingBox: ...
    @overload
    def __getitem__(self, index: slice) -> list[BoundingBox]: ...
    def __getitem__(self, index: int | slice) -> BoundingBox | list[BoundingBox]:
        """Return box number *index*, in O(log n) steps.

        Raises:
            IndexError: there is no such box.
        """
        if isinstance(index, slice):
            return [self[k] for k in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            msg = f"box {index} is not one of the {len(self)} boxes of this grid"
            raise IndexError(msg)
        return next(self.part(range(index, index + 1)))

    def __iter__(self) -> Iterator[BoundingBox]:
        """Yield the boxes in order."""
        return self.part(range(len(self)))

    def part(self, indexes: range) -> Iterator[BoundingBox]:
        """Yield the boxes of these numbers, which follow each other."""
        chosen = islice(cells(self.grid.count, self.order, indexes.start), len(indexes))
        return map(self.grid.box, chosen)


def _raster(count: Zyx, index: int) -> Zyx:
    rest, x = divmod(index, count.x)
    return Zyx(*divmod(rest, count.y), x)


def _morton(count: Zyx, index: int) -> Zyx:
    """Return a cell of the Z-order: the bits of z, y and x interleaved, x the lowest.

    The grid is descended as an octree over the next powers of two. At each level every axis is
    cut at the same power of two; parts that lie outside of the grid hold no cells and are passed.
    """
    start, size = [0, 0, 0], list(count)
    for bit in reversed(range((max(count) - 1).bit_length())):
        half = 1 << bit
        for axis in range(3):
            # Cells whose bit of this axis is 0 come first, whatever their lower bits are.
            low = min(size[axis], half)
            others = size[(axis + 1) % 3] * size[(axis + 2) % 3]
            if index < low * others:
                size[axis] = low
            else:
                index -= low * others
                start[axis] += half
                size[axis] -= half
    return Zyx(*start)


def _hilbert(count: Zyx, first: int) -> Iterator[Zyx]:
    """Yield the cells of the generalised Hilbert curve, after Jakub Červený's "gilbert".

    Cells that follow each other touch: at a face where all extents are even, and elsewhere too but
    for a few, which touch at an edge or a corner.
    """
    # The curve runs from one end of the longest axis to the other; the others follow as x, y, z.
    axes = sorted((2, 1, 0), key=lambda axis: count[axis] < max(count))
    a, b, c = (_along(axis, count[axis]) for axis in axes)
    parts = [(Zyx(0, 0, 0), a, b, c)]  # to be passed, the next one last
    while parts:
        start, a, b, c = part = parts.pop()
        number = _length(a) * _length(b) * _length(c)
        if first >= number:
            first -= number
        elif finer := _parts(*part):
            parts += reversed(finer)
        else:  # a single row, whose other extents are 1
            step = _unit(max(a, b, c, key=_length))
            for k in range(first, number):
                yield start + step * k
            first = 0


def _parts(start: Zyx, a: Zyx, b: Zyx, c: Zyx) -> list[tuple[Zyx, Zyx, Zyx, Zyx]]:
    """Cut the box of edges *a*, *b*, *c* into the boxes that the curve passes one by one.

    The curve enters at *start* and leaves at the other end of *a*. Edges are vectors along an axis.
    """
    w, h, d = _length(a), _length(b), _length(c)
    if sorted((w, h, d))[1] == 1:
        return []
    a2, b2, c2 = _half(a), _half(b), _half(c)
    last_a, last_b, last_c = start + a - _unit(a), b2 - _unit(b), c - _unit(c)
    if 2 * w > 3 * h and 2 * w > 3 * d:
        return [(start, a2, b, c), (start + a2, a - a2, b, c)]
    if 3 * h > 4 * d:
        return [
            (start, b2, c, a2),
            (start + b2, a, b - b2, c),
            (last_a + last_b, -b2, c, a2 - a),
        ]
    if 3 * d > 4 * h:
        return [
            (start, c2, a2, b),
            (start + c2, a, b, c - c2),
            (last_a + c2 - _unit(c), -c2, a2 - a, b),
        ]
    return [
        (start, b2, c2, a2),
        (start + b2, c, a2, b - b2),
        (start + last_b + last_c, a, -b2, c2 - c),
        (last_a + b2 + last_c, -c, a2 - a, b - b2),
        (last_a + last_b, -b2, c2, a2 - a),
    ]


def _along(axis: int, length: int) -> Zyx:
    return Zyx(*(length if k == axis else 0 for k in range(3)))


def _length(edge: Zyx) -> int:
    return abs(sum(edge))


def _unit(edge: Zyx) -> Zyx:
    return Zyx(*((v > 0) - (v < 0) for v in edge))


def _half(edge: Zyx) -> Zyx:
    """Return half of an edge, an even number of cells where that is possible."""
    half = _unit(edge) * (_length(edge) // 2)
    return half + _unit(edge) if _length(half) % 2 and _length(edge) > 2 else half

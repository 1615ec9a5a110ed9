"""In which order the boxes of a grid come: raster, or along a curve that stays near.

```
raster          morton          hilbert         neighbours along a curve share blocks that both
0  1  2  3      0  1  4  5      0  1 14 15      read, which a bounded cache then still holds
4  5  6  7      2  3  6  7      3  2 13 12
8  9 10 11      8  9 12 13      4  7  8 11
12 13 14 15    10 11 14 15      5  6  9 10
```

No list is stored: the box of a number is found by descent from the whole grid, in O(log n) steps,
whatever the extents; powers of two are not needed. Tasks 7 to 9 are the same ones for every job
that numbers the same grid in the same order.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import TYPE_CHECKING, Literal, get_args, overload

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx

if TYPE_CHECKING:
    from collections.abc import Iterator

Order = Literal["raster", "morton", "hilbert"]
ORDERS: tuple[Order, ...] = get_args(Order)

_Shape = tuple[Zyx, Zyx, Zyx]  # edges of a part, vectors along an axis each
_Part = tuple[Zyx, _Shape]  # its first cell, from that of the part it is cut from
_ORIGIN = Zyx(0, 0, 0)
_SMALL = 128  # cells of a part that is kept


def cells(count: Zyx, order: Order = "raster", first: int = 0) -> Iterator[Zyx]:
    """Yield the cells of a grid in an order, from number *first* on.

    Args:
        count: cells along each axis.
        order: of the cells.
        first: how many to pass.
    """
    for position in positions(count, order, first):
        rest, x = divmod(position, count.x)
        z, y = divmod(rest, count.y)
        yield Zyx(z, y, x)


def positions(count: Zyx, order: Order = "raster", first: int = 0) -> Iterator[int]:
    """Yield the raster positions of the cells of a grid in an order, from number *first* on.

    The grid is cut into the parts that a curve passes one by one, these are cut again, and so on.
    Small parts have few shapes, each of which is worked out once.

    Args:
        count: cells along each axis.
        order: of the cells.
        first: how many to pass.
    """
    if order == "raster":
        yield from range(first, count.product())
        return
    axes = [0, 1, 2]
    if order == "hilbert":
        # From one end of the longest axis to the other; the others follow as x, y, z.
        axes = sorted((2, 1, 0), key=lambda axis: count[axis] < max(count))
    a, b, c = (_along(axis, count[axis]) for axis in axes)
    cut = _hilbert if order == "hilbert" else _morton
    step = Zyx(count.y * count.x, count.x, 1)
    known: dict[_Shape, array[int]] = {}

    def finer(shape: _Shape) -> list[tuple[int, _Shape]]:
        return [(sum(start * step), edges) for start, edges in cut(*shape)]

    def row(shape: _Shape) -> range | None:
        """Return the positions of a part that is a single row, from its start."""
        along = sum(_unit(max(shape, key=_length)) * step)
        number = max(map(_length, shape))
        return range(0, number * along, along) if _number(shape) == number else None

    def pattern(shape: _Shape) -> array[int]:
        if shape not in known:
            known[shape] = array("q", row(shape) or ())
            if not known[shape]:
                for start, part in finer(shape):
                    known[shape].extend(start + position for position in pattern(part))
        return known[shape]

    parts: list[tuple[int, _Shape]] = [(0, (a, b, c))]
    while parts:  # to be passed, the next one last
        start, shape = parts.pop()
        if first >= (number := _number(shape)):
            first -= number
            continue
        found = pattern(shape) if number <= _SMALL else row(shape)
        if found is None:
            parts += ((start + shift, part) for shift, part in reversed(finer(shape)))
            continue
        for position in found[first:] if first else found:
            yield start + position
        first = 0


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


def _morton(a: Zyx, b: Zyx, c: Zyx) -> Iterator[_Part]:
    """Cut a box of edges along z, y and x into the parts that the Z-order passes one by one.

    The Z-order interleaves the bits of z, y and x, x the lowest. Every axis is cut at the same
    power of two; cells whose bit of z is 0 come first, then those whose bit of y is.
    """
    size = Zyx(a.z, b.y, c.x)
    half = 1 << ((max(size) - 1).bit_length() - 1)
    z, y, x = ([(0, min(n, half)), (half, n - half)] for n in size)
    for (z0, dz), (y0, dy), (x0, dx) in product(z, y, x):
        if min(dz, dy, dx) > 0:
            yield Zyx(z0, y0, x0), (_along(0, dz), _along(1, dy), _along(2, dx))


def _hilbert(a: Zyx, b: Zyx, c: Zyx) -> Iterator[_Part]:
    """Cut a box of edges *a*, *b*, *c* into the parts that the Hilbert curve passes one by one.

    The curve, after Jakub Červený's "gilbert", enters at the start and leaves at the other end of
    *a*. Edges are vectors along an axis. Cells that follow each other touch: at a face where all
    extents are even, and elsewhere too but for a few, which touch at an edge or a corner.
    """
    w, h, d = _length(a), _length(b), _length(c)
    a2, b2, c2 = _half(a), _half(b), _half(c)
    last_a, last_b, last_c = a - _unit(a), b2 - _unit(b), c - _unit(c)
    if 2 * w > 3 * h and 2 * w > 3 * d:
        yield _ORIGIN, (a2, b, c)
        yield a2, (a - a2, b, c)
    elif 3 * h > 4 * d:
        yield _ORIGIN, (b2, c, a2)
        yield b2, (a, b - b2, c)
        yield last_a + last_b, (-b2, c, a2 - a)
    elif 3 * d > 4 * h:
        yield _ORIGIN, (c2, a2, b)
        yield c2, (a, b, c - c2)
        yield last_a + c2 - _unit(c), (-c2, a2 - a, b)
    else:
        yield _ORIGIN, (b2, c2, a2)
        yield b2, (c, a2, b - b2)
        yield last_b + last_c, (a, -b2, c2 - c)
        yield last_a + b2 + last_c, (-c, a2 - a, b - b2)
        yield last_a + last_b, (-b2, c2, a2 - a)


def _number(shape: _Shape) -> int:
    a, b, c = shape
    return _length(a) * _length(b) * _length(c)


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

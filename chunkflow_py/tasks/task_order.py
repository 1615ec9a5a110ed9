"""Orders of the boxes of a grid: raster, or along a space-filling curve.

In this grid of 4 x 4 boxes, each number is the position of a box in the order:

```
raster          morton          hilbert
0  1  2  3      0  1  4  5      0  1 14 15
4  5  6  7      2  3  6  7      3  2 13 12
8  9 10 11      8  9 12 13      4  7  8 11
12 13 14 15    10 11 14 15      5  6  9 10
```

Tasks that load a margin around their box read some blocks of the volume several times. Along a
curve, the boxes that share a block follow each other closely, so the block is often still in the
cache.

The order is computed, not stored: recursive subdivision of the grid finds the box with a given
number in O(log n) steps. The extents of the grid need not be powers of two. The order depends only
on the grid, so all runs over the same grid assign the same box to a number.
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

_Shape = tuple[Zyx, Zyx, Zyx]  # edges of a part, each a vector along an axis
_Part = tuple[Zyx, _Shape]  # first cell, relative to that of the enclosing part, and edges
_ORIGIN = Zyx(0, 0, 0)
_SMALL = 128  # parts of up to this many cells are cached


def cells(count: Zyx, order: Order = "raster", first: int = 0) -> Iterator[Zyx]:
    """Yield the (z, y, x) indexes of the cells of a grid in the given order.

    Args:
        count: number of cells along each axis, zyx.
        order: order of the cells.
        first: number of cells to skip at the start of the order.
    """
    for position in positions(count, order, first):
        rest, x = divmod(position, count.x)
        z, y = divmod(rest, count.y)
        yield Zyx(z, y, x)


def positions(count: Zyx, order: Order = "raster", first: int = 0) -> Iterator[int]:
    """Yield the raster index of each cell of a grid, in the given order of the cells.

    The grid is divided recursively into the parts that the order visits one after the other. Many
    small parts have equal shapes, so the positions are computed once for each shape.

    Args:
        count: number of cells along each axis, zyx.
        order: order of the cells.
        first: number of cells to skip at the start of the order.
    """
    if order == "raster":
        yield from range(first, count.product())
        return
    axes = [0, 1, 2]
    if order == "hilbert":
        # The curve runs along the longest axis; the others follow in the order x, y, z.
        axes = sorted((2, 1, 0), key=lambda axis: count[axis] < max(count))
    a, b, c = (_along(axis, count[axis]) for axis in axes)
    cut = _hilbert if order == "hilbert" else _morton
    step = Zyx(count.y * count.x, count.x, 1)
    known: dict[_Shape, array[int]] = {}

    def finer(shape: _Shape) -> list[tuple[int, _Shape]]:
        return [(sum(start * step), edges) for start, edges in cut(*shape)]

    def row(shape: _Shape) -> range | None:
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
    while parts:  # the next part to visit is the last of the list
        start, shape = parts.pop()
        if first >= (number := _number(shape)):
            first -= number
            continue
        offsets = pattern(shape) if number <= _SMALL else row(shape)
        if offsets is None:
            parts += ((start + shift, part) for shift, part in reversed(finer(shape)))
            continue
        for position in offsets[first:] if first else offsets:
            yield start + position
        first = 0


@dataclass(frozen=True)
class OrderedBoxes(Sequence[BoundingBox]):
    """The boxes of a grid as a sequence in the given order.

    Attributes:
        grid: grid of the boxes.
        order: order of the boxes.
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
            IndexError: *index* is negative, or not below the number of boxes.
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
        """Yield a part of the sequence: the boxes at *indexes*, a range with step 1."""
        chosen = islice(cells(self.grid.count, self.order, indexes.start), len(indexes))
        return map(self.grid.box, chosen)


def _morton(a: Zyx, b: Zyx, c: Zyx) -> Iterator[_Part]:
    # Z-order interleaves the bits of z, y and x; x has the lowest bit. All axes are divided at the
    # same power of two. Parts are sorted by z, then y, then x.
    size = Zyx(a.z, b.y, c.x)
    half = 1 << ((max(size) - 1).bit_length() - 1)
    z, y, x = ([(0, min(n, half)), (half, n - half)] for n in size)
    for (z0, dz), (y0, dy), (x0, dx) in product(z, y, x):
        if min(dz, dy, dx) > 0:
            yield Zyx(z0, y0, x0), (_along(0, dz), _along(1, dy), _along(2, dx))


def _hilbert(a: Zyx, b: Zyx, c: Zyx) -> Iterator[_Part]:
    # The construction is Jakub Červený's "gilbert": the curve enters at the start of the box and
    # leaves at the far end of *a*. Edges are vectors along an axis. Consecutive cells share a face
    # if all extents are even; otherwise a few pairs share only an edge or a corner.
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
    # About half of an edge: an even number of cells if the edge has more than two.
    half = _unit(edge) * (_length(edge) // 2)
    return half + _unit(edge) if _length(half) % 2 and _length(edge) > 2 else half

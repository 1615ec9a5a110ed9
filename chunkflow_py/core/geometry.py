"""Positions, boxes and grids of boxes, as integers in voxels, zyx; boxes are half-open."""

from __future__ import annotations

import math
import re
import sys
from dataclasses import dataclass, replace
from functools import reduce
from numbers import Integral
from typing import TYPE_CHECKING, NamedTuple

from chunkflow_py.errors import GeometryError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from fractions import Fraction

AXES = ("z", "y", "x")


class Zyx(NamedTuple):
    """Three integers in zyx order: a position, an extent or a step, in voxels.

    Arithmetic is elementwise, with another triple or with one integer for all axes.
    """

    z: int
    y: int
    x: int

    @classmethod
    def of(cls, values: Iterable[int]) -> Zyx:
        """Return *values* as a Zyx.

        Raises:
            GeometryError: *values* are not exactly three whole numbers.
        """
        if type(values) is cls:
            z, y, x = values
            if type(z) is int and type(y) is int and type(x) is int:
                return values  # the usual case
        items = tuple(values)
        try:
            whole = tuple(int(v) for v in items)
        except (OverflowError, TypeError, ValueError):  # infinity, None, text
            whole = ()
        if len(items) != 3 or whole != items:
            msg = f"expected three whole numbers (z, y, x), got {items}"
            raise GeometryError(msg)
        return cls(*whole)

    def turned(self, order: Sequence[int]) -> Zyx:
        """Return the triple permuted: number i of the result is number ``order[i]`` of *self*."""
        return Zyx(*(self[axis] for axis in order))

    @property
    def as_option(self) -> str:
        """The numbers in the form of an option value: ``20 256 256``."""
        return f"{self.z} {self.y} {self.x}"

    def _zip(self, other: Iterable[int] | int, op: Callable[[int, int], int]) -> Zyx:
        if isinstance(other, Zyx):
            others: tuple[int, ...] = other
        else:
            # int() for NumPy's integers, which are Integral but no int.
            others = (int(other),) * 3 if isinstance(other, Integral) else Zyx.of(other)  # type: ignore[arg-type]
        return Zyx(op(self.z, others[0]), op(self.y, others[1]), op(self.x, others[2]))

    def __add__(self, other: Iterable[int] | int) -> Zyx:  # type: ignore[override]
        """Add elementwise, instead of concatenating as tuples do."""
        return self._zip(other, lambda a, b: a + b)

    def __sub__(self, other: Iterable[int] | int) -> Zyx:
        """Subtract elementwise."""
        return self._zip(other, lambda a, b: a - b)

    def __mul__(self, other: Iterable[int] | int) -> Zyx:  # type: ignore[override]
        """Multiply elementwise, instead of repeating as tuples do."""
        return self._zip(other, lambda a, b: a * b)

    def __floordiv__(self, other: Iterable[int] | int) -> Zyx:
        """Divide elementwise, rounding towards minus infinity."""
        return self._zip(other, lambda a, b: a // b)

    def __mod__(self, other: Iterable[int] | int) -> Zyx:
        """Return the elementwise remainder, in [0, other)."""
        return self._zip(other, lambda a, b: a % b)

    def __neg__(self) -> Zyx:
        """Negate elementwise."""
        return Zyx(-self.z, -self.y, -self.x)

    def low(self, other: Iterable[int]) -> Zyx:
        """Return the elementwise minimum of this triple and *other*."""
        return self._zip(other, min)

    def high(self, other: Iterable[int]) -> Zyx:
        """Return the elementwise maximum of this triple and *other*."""
        return self._zip(other, max)

    def product(self) -> int:
        """Return z·y·x, the number of voxels of an extent."""
        return self.z * self.y * self.x

    def __str__(self) -> str:
        """Return ``(z, y, x)``."""
        return f"({self.z}, {self.y}, {self.x})"


class Scale(NamedTuple):
    """The size of a coarse voxel in fine voxels: three exact factors, in zyx order.

    ```
    fine voxels                  |  0  |  1  |  2  |  3  |  4  |  5  |
    coarse voxels, factor 3/2    |   0    |   1    |   2    |   3    |
    ```

    Both kinds of voxels are counted from the origin of the coordinates. Whole factors are stored as
    `int`, so that the command line does not have to import `fractions`.
    """

    z: Fraction | int
    y: Fraction | int
    x: Fraction | int

    @classmethod
    def of(cls, values: Iterable[Fraction | int | str]) -> Scale:
        """Return the scale with the factors *values* (z, y, x), each such as ``2`` or ``"3/2"``.

        Raises:
            GeometryError: *values* are not exactly three positive numbers.
        """
        items = tuple(values)
        factors: tuple[Fraction | int, ...] = ()
        if all(type(value) is int for value in items):
            factors = items  # type: ignore[assignment]
        else:
            from fractions import Fraction

            try:
                exact = [Fraction(value) for value in items]
            except (OverflowError, TypeError, ValueError, ZeroDivisionError):
                exact = []
            factors = tuple(int(f) if f.denominator == 1 else f for f in exact)
        if len(factors) != 3 or min(factors) <= 0:
            msg = f"expected three positive fractions (z, y, x), got {items}"
            raise GeometryError(msg)
        return cls(*factors)

    @classmethod
    def between(cls, coarse_nm: Sequence[float], fine_nm: Sequence[float]) -> Scale:
        """Return the scale between coarse and fine voxels, given their sizes in nm, zyx.

        Each size is used as the decimal number that Python prints: 0.3 counts as exactly 3/10.
        """
        from fractions import Fraction

        pairs = zip(coarse_nm, fine_nm, strict=True)
        return cls.of(Fraction(repr(float(a))) / Fraction(repr(float(b))) for a, b in pairs)

    def __mul__(self, other: Iterable[Fraction | int]) -> Scale:  # type: ignore[override]
        # (coarse in medium voxels) * (medium in fine voxels) = coarse in fine voxels
        return Scale.of(a * b for a, b in zip(self, other, strict=True))

    @property
    def inverse(self) -> Scale:
        """The size of a fine voxel in coarse voxels."""
        from fractions import Fraction

        return Scale.of(Fraction(1) / factor for factor in self)

    @property
    def is_whole(self) -> tuple[bool, bool, bool]:
        """Whether the factor along each axis is a whole number."""
        return self.z.denominator == 1, self.y.denominator == 1, self.x.denominator == 1

    def turned(self, order: Sequence[int]) -> Scale:
        """Return the scale permuted: axis i of the result is axis ``order[i]`` of this scale."""
        return Scale(*(self[axis] for axis in order))

    def coarser(
        self, box: BoundingBox, origin: Iterable[Fraction | int] = (0, 0, 0)
    ) -> BoundingBox:
        """Convert *box* from fine voxels to coarse voxels.

        Along an axis with a whole factor, coarse voxels that the box covers only partly are
        included, as in `BoundingBox.coarser`. Along an axis with a fractional factor, the result
        contains the coarse voxels whose centres are inside the box. If boxes tile a volume, and all
        factors are fractional, no two of the converted boxes share a voxel.

        Args:
            box: box of fine voxels.
            origin: corner at which coarse voxel 0 begins, in fine voxels, zyx.
        """
        spans = []
        for start, stop, factor, zero in zip(box.start, box.stop, self, origin, strict=True):
            if factor.denominator == 1:
                spans.append(((start - zero) // factor, -((zero - stop) // factor)))
            else:  # rounded, and a half down
                ends = (start - zero, stop - zero)
                first, last = ((2 * at - factor) / (2 * factor) for at in ends)
                spans.append((math.ceil(first), math.ceil(last)))
        (z0, z1), (y0, y1), (x0, x1) = spans
        return BoundingBox(Zyx(z0, y0, x0), Zyx(z1, y1, x1))

    def finer(self, box: BoundingBox) -> BoundingBox:
        """Return the smallest box of fine voxels that covers *box*, a box of coarse voxels."""
        starts = (math.floor(a * factor) for a, factor in zip(box.start, self, strict=True))
        stops = (math.ceil(a * factor) for a, factor in zip(box.stop, self, strict=True))
        return BoundingBox(Zyx(*starts), Zyx(*stops))

    def inside(self, box: BoundingBox) -> BoundingBox:
        """Return the coarse voxels that *box*, a box of fine voxels, covers completely."""
        starts = [-(-a // factor) for a, factor in zip(box.start, self, strict=True)]
        stops = [a // factor for a, factor in zip(box.stop, self, strict=True)]
        return BoundingBox(Zyx(*starts), Zyx(*map(max, starts, stops)))

    def owners(self, voxel: Zyx) -> Iterator[Zyx]:
        """Yield two fine voxels that overlap *voxel*, a coarse voxel.

        If a box contains one of the two fine voxels, `coarser` converts the box to a box that
        contains *voxel*. Along an axis with a whole factor, the first result is at the end of
        *voxel*, and the second result is at its start. Along an axis with a fractional factor, both
        results contain the centre of *voxel*.
        """
        centre = [(2 * a + 1) * factor // 2 for a, factor in zip(voxel, self, strict=True)]
        covered = self.finer(BoundingBox.from_size(voxel, (1, 1, 1)))
        for corner in (covered.stop - 1, covered.start):
            rows = zip(self, corner, centre, strict=True)
            yield Zyx(*(at if factor.denominator == 1 else middle for factor, at, middle in rows))

    def whole_offset(self, offset: Zyx) -> Zyx:
        """Convert *offset* from coarse voxels to fine voxels.

        Raises:
            GeometryError: the offset is not a whole number of fine voxels.
        """
        moved = [a * factor for a, factor in zip(offset, self, strict=True)]
        if any(value.denominator != 1 for value in moved):
            needed = [factor.denominator for factor in self]
            msg = (
                f"the offset {offset} (zyx, in voxels after resample) is not a whole number of "
                f"voxels before resample, because resample makes voxels {self} times larger; "
                f"use an offset of multiples of {needed}, or put the operator in front of resample"
            )
            raise GeometryError(msg)
        return Zyx(*map(int, moved))

    @property
    def as_numbers(self) -> tuple[int | str, ...]:
        """The factors (z, y, x) for JSON: integers such as ``2`` and texts such as ``"3/2"``."""
        return tuple(int(f) if f.denominator == 1 else str(f) for f in self)

    def __str__(self) -> str:
        """Return ``(z, y, x)``."""
        return f"({self.z}, {self.y}, {self.x})"


UNIT_SCALE = Scale(1, 1, 1)

_BOX = re.compile(r"(-?[0-9]+)-(-?[0-9]+)_(-?[0-9]+)-(-?[0-9]+)_(-?[0-9]+)-(-?[0-9]+)")
_REGION = re.compile(r"(?:t([0-9]+)_)?(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True, order=True)
class BoundingBox:
    """A half-open box of voxels: *start* is inside, *stop* is not.

    Printed and parsed as ``z0-z1_y0-y1_x0-x1``; negative numbers keep their sign, as in
    ``-8-8_0-64_0-64``.
    """

    start: Zyx
    stop: Zyx

    def __post_init__(self) -> None:
        """Raise a `GeometryError` if the stop is before the start."""
        object.__setattr__(self, "start", Zyx.of(self.start))
        object.__setattr__(self, "stop", Zyx.of(self.stop))
        (z0, y0, x0), (z1, y1, x1) = self.start, self.stop
        if z1 < z0 or y1 < y0 or x1 < x0:
            msg = (
                f"box stop {self.stop} lies before its start {self.start} (zyx, voxels); "
                "swap them or give a positive size"
            )
            raise GeometryError(msg)

    @classmethod
    def from_size(cls, start: Iterable[int], size: Iterable[int]) -> BoundingBox:
        """Return the box of extent *size* that begins at *start*."""
        first = Zyx.of(start)
        return cls(first, first + Zyx.of(size))

    @classmethod
    def parse(cls, text: str) -> BoundingBox:
        """Return the box written as *text*, such as ``0-64_0-512_0-512``.

        Raises:
            GeometryError: *text* is not a box string, or its stop is before its start.
        """
        match = _BOX.fullmatch(text.strip())
        if match is None:
            msg = (
                f"{text!r} is not a box; write z0-z1_y0-y1_x0-x1 in voxels, "
                "such as 0-64_0-512_0-512 or -8-8_0-64_0-64"
            )
            raise GeometryError(msg)
        z0, z1, y0, y1, x0, x1 = (int(group) for group in match.groups())
        return cls(Zyx(z0, y0, x0), Zyx(z1, y1, x1))

    def __str__(self) -> str:
        """Return ``z0-z1_y0-y1_x0-x1``."""
        return "_".join(f"{a}-{b}" for a, b in zip(self.start, self.stop, strict=True))

    @property
    def size(self) -> Zyx:
        """The extent in voxels."""
        return self.stop - self.start

    @property
    def voxels(self) -> int:
        """The number of voxels in the box."""
        return self.size.product()

    @property
    def is_empty(self) -> bool:
        """Whether the box contains no voxel."""
        return self.voxels == 0

    def slices(self, origin: Iterable[int] = (0, 0, 0)) -> tuple[slice, slice, slice]:
        """Return the slices that select this box in an array whose first voxel is at *origin*."""
        start, stop = self.start - origin, self.stop - origin
        return slice(start.z, stop.z), slice(start.y, stop.y), slice(start.x, stop.x)

    def translate(self, shift: Iterable[int]) -> BoundingBox:
        """Return the box moved by *shift*."""
        return BoundingBox(self.start + shift, self.stop + shift)

    def grow(self, low: Iterable[int], high: Iterable[int] | None = None) -> BoundingBox:
        """Return the box enlarged by *low* at its start and *high* (default: *low*) at its stop."""
        before = Zyx.of(low)
        after = before if high is None else Zyx.of(high)
        return BoundingBox(self.start - before, self.stop + after)

    def between(self, low: Zyx, high: Zyx) -> BoundingBox:
        """Return the box with *low* added to its start and *high* to its stop.

        Raises:
            GeometryError: the new box would contain no voxel.
        """
        start, stop = self.start + low, self.stop + high
        if not all(a < b for a, b in zip(start, stop, strict=True)):
            msg = (
                f"adding {low} to the start and {high} to the stop of box {self} leaves no voxel: "
                f"the box would begin at {start} and end at {stop} (zyx, voxels); crop or move "
                "less, or make tasks larger"
            )
            raise GeometryError(msg)
        return BoundingBox(start, stop)

    def contains(self, other: BoundingBox) -> bool:
        """Return whether all voxels of *other* are in this box; empty boxes are in every box."""
        return other.is_empty or self.intersection(other) == other

    def intersection(self, other: BoundingBox) -> BoundingBox:
        """Return the box of the voxels that this box and *other* share, or an empty box."""
        start = self.start.high(other.start)
        return BoundingBox(start, self.stop.low(other.stop).high(start))

    def hull(self, other: BoundingBox) -> BoundingBox:
        """Return the smallest box around this box and *other*."""
        return BoundingBox(self.start.low(other.start), self.stop.high(other.stop))

    def coarser(self, factor: Iterable[int]) -> BoundingBox:
        """Return the smallest box that covers this box, in voxels that are *factor* times larger.

        Coarse voxel k covers the fine voxels from k·factor up to, but not including,
        (k+1)·factor. Therefore, the start is rounded down and the stop is rounded up.
        """
        return BoundingBox(self.start // factor, -(-self.stop // factor))

    def turned(self, order: Sequence[int]) -> BoundingBox:
        """Return the box permuted: axis i of the result is axis ``order[i]`` of this box."""
        return BoundingBox(self.start.turned(order), self.stop.turned(order))

    def aligned_outward(
        self, unit: Iterable[int], origin: Iterable[int] = (0, 0, 0)
    ) -> BoundingBox:
        """Return the smallest box around this box that starts and stops at multiples of *unit*.

        Args:
            unit: distance between allowed positions, voxels, zyx.
            origin: one allowed position, from which the multiples are counted.

        Raises:
            GeometryError: a unit is below 1.
        """
        step = Zyx.of(unit)
        if min(step) < 1:
            msg = f"unit {step} must be at least 1 in every axis (zyx, voxels)"
            raise GeometryError(msg)
        start = (self.start - origin) // step * step + origin
        stop = -(-(self.stop - origin) // step) * step + origin
        return BoundingBox(start, stop)


def same_size_nm(first: Sequence[float], second: Sequence[float]) -> bool:
    """Return whether two voxel sizes agree to 0.1 %.

    (1, 1, 1) nm stands for an unknown size and agrees with every size.
    """
    if (1, 1, 1) in (tuple(first), tuple(second)):
        return True
    return all(math.isclose(a, b, rel_tol=1e-3) for a, b in zip(first, second, strict=True))


def equal_boxes_remedy(first: BoundingBox, second: BoundingBox) -> str:
    """Return the end of an error message that says how to make the boxes of two chunks equal."""
    common = first.intersection(second)
    return "load both for the same box" if common.is_empty else f"cut both to {common}"


def hull_of(boxes: BoxGrid | Sequence[BoundingBox] | None) -> BoundingBox | None:
    """Return the smallest box around all *boxes*, or ``None`` if there are none."""
    if not boxes:
        return None
    bounds: BoundingBox | None = getattr(boxes, "bounds", None)
    if bounds is not None:
        return bounds
    return reduce(BoundingBox.hull, boxes)


@dataclass(frozen=True, slots=True, order=True)
class Region:
    """The part of a volume that one task covers: a box and, for time series, a time index.

    Printed and parsed as a box string, with ``t3_`` before it for time index 3.
    """

    bbox: BoundingBox
    time: int | None = None

    @classmethod
    def parse(cls, text: str) -> Region:
        """Return the region written as *text*, such as ``t3_0-64_0-512_0-512``.

        Raises:
            GeometryError: *text* is not a box string.
        """
        match = _REGION.fullmatch(text.strip())
        time, box = match.groups() if match else (None, text)
        return cls(BoundingBox.parse(box), None if time is None else int(time))

    def with_box(self, bbox: BoundingBox) -> Region:
        """Return a region with the same time index and another box."""
        return replace(self, bbox=bbox)

    def __str__(self) -> str:
        """Return the box string, with the time index before it if there is one."""
        return str(self.bbox) if self.time is None else f"t{self.time}_{self.bbox}"


@dataclass(frozen=True, slots=True)
class BoxGrid:
    """Boxes of one size at start + k·stride, in raster order (z slowest, x fastest).

    ```
    region  |----------------------------|            here, stride = size
    boxes   |--------|--------|--------|--------|     all boxes have the same size (clip_stop=None)
            |--------|--------|--------|-|            the last box is cut (clip_stop=region.stop)
    ```

    Only this description is stored: ten million boxes take no more memory than ten.

    Attributes:
        start: first voxel of the first box.
        size: extent of a box, voxels.
        stride: distance from the start of one box to the start of the next, voxels.
        count: number of boxes along each axis.
        clip_stop: position at which boxes are cut off, or ``None`` to keep all boxes at full size.
    """

    start: Zyx
    size: Zyx
    stride: Zyx
    count: Zyx
    clip_stop: Zyx | None = None

    def __post_init__(self) -> None:
        """Raise a `GeometryError` for a size, stride or count below 1, or too many boxes."""
        for name in ("size", "stride", "count"):
            value = getattr(self, name)
            if min(value) < 1:
                msg = f"grid {name} must be at least 1 in every axis, got {value} (zyx)"
                raise GeometryError(msg)
        if self.count.product() > sys.maxsize:
            msg = (
                f"a grid of {self.count} boxes of {self.size} (zyx, voxels) has more boxes than "
                f"the limit of {sys.maxsize}; make the boxes larger or the region smaller"
            )
            raise GeometryError(msg)

    @classmethod
    def covering(
        cls,
        region: BoundingBox,
        size: Zyx,
        stride: Zyx | None = None,
        *,
        respect_stop: bool = False,
    ) -> BoxGrid:
        """Return the boxes that cover *region*.

        Args:
            region: box to cover; must not be empty.
            size: extent of a box, voxels.
            stride: distance from one box to the next, voxels (default: *size*, so that boxes tile).
            respect_stop: whether to cut off the last boxes at the end of the region.

        Raises:
            GeometryError: the region is empty, or a size or stride is below 1.
        """
        if region.is_empty:
            msg = f"region {region} contains no voxel; give it a positive size"
            raise GeometryError(msg)
        step = size if stride is None else stride
        if min(step) < 1 or min(size) < 1:
            msg = f"box size {size} and stride {step} must be at least 1 in every axis (zyx)"
            raise GeometryError(msg)
        span = region.size - size
        count = Zyx(*(1 + max(0, math.ceil(a / b)) for a, b in zip(span, step, strict=True)))
        return cls(region.start, size, step, count, region.stop if respect_stop else None)

    def __len__(self) -> int:
        """Return the number of boxes."""
        return self.count.product()

    def intervals(self, axis: int) -> list[tuple[int, int]]:
        """Return the (start, stop) of each box along one axis, in voxels (axis 0 is z)."""
        result = []
        for k in range(self.count[axis]):
            low = self.start[axis] + k * self.stride[axis]
            high = low + self.size[axis]
            if self.clip_stop is not None:
                high = min(high, self.clip_stop[axis])
            result.append((low, high))
        return result

    def __getitem__(self, index: int) -> BoundingBox:
        """Return box number *index* in raster order.

        Raises:
            IndexError: *index* is negative, or not below the number of boxes.
        """
        if not 0 <= index < len(self):
            msg = f"box {index} is not one of the {len(self)} boxes of this grid"
            raise IndexError(msg)
        rest, x = divmod(index, self.count.x)
        return self.box((*divmod(rest, self.count.y), x))

    def cell_of(self, point: Zyx) -> Zyx | None:
        """Return the grid index (z, y, x) of the box that contains *point*; ``None`` if none does.

        If several boxes contain the point, the box with the largest index along each axis is
        chosen.
        """
        cell = ((point - self.start) // self.stride).low(self.count - 1)
        if cell.low((0, 0, 0)) != (0, 0, 0):
            return None
        box = self.box(cell)
        is_inside = all(a <= p < b for a, p, b in zip(box.start, point, box.stop, strict=True))
        return cell if is_inside else None

    def box(self, cell: Iterable[int]) -> BoundingBox:
        """Return the box at the grid index *cell* (z, y, x)."""
        start = self.start + self.stride * cell
        stop = start + self.size
        return BoundingBox(start, stop if self.clip_stop is None else stop.low(self.clip_stop))

    def __iter__(self) -> Iterator[BoundingBox]:
        """Yield the boxes in raster order."""
        return (self[index] for index in range(len(self)))

    @property
    def bounds(self) -> BoundingBox:
        """The smallest box around all boxes."""
        return self[0].hull(self[len(self) - 1])

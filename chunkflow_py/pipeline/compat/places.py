"""The Cartesian and BoundingBox classes of chunkflow 1.x; coordinates may be fractions."""

from __future__ import annotations

import itertools
import math
import operator
from collections import UserList
from dataclasses import dataclass
from numbers import Number
from typing import TYPE_CHECKING, Any, NamedTuple

from chunkflow_py.core import geometry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray


class Cartesian(NamedTuple):
    """Three numbers, zyx; ``a < b`` is true if a is less than b on each of the three axes.

    Arithmetic is elementwise.
    """

    z: Any
    y: Any
    x: Any

    @classmethod
    def from_collection(cls, col: Iterable[Any]) -> Cartesian:
        """Return a Cartesian of three values in the order zyx."""
        return cls(*col)

    def _with(self, other: Any, op: Callable[[Any, Any], Any]) -> Cartesian:
        others = (other,) * 3 if isinstance(other, Number) else tuple(other)
        return Cartesian(*(op(a, b) for a, b in zip(self, others, strict=True)))

    def _all(self, other: Any, op: Callable[[Any, Any], Any]) -> bool:
        return all(self._with(other, op))

    def __add__(self, other: Any) -> Cartesian:
        """Add one number to all axes, or one number per axis."""
        return self._with(other, operator.add)

    def __sub__(self, other: Any) -> Cartesian:
        """Subtract one number from all axes, or one number per axis."""
        return self._with(other, operator.sub)

    def __mul__(self, other: Any) -> Cartesian:
        """Multiply by one number, or by one number per axis."""
        return self._with(other, operator.mul)

    def __floordiv__(self, other: Any) -> Cartesian:
        """Divide, rounding down."""
        return self._with(other, operator.floordiv)

    def __truediv__(self, other: Any) -> Cartesian:
        """Divide by one number, or by one number per axis, without rounding."""
        return self._with(other, operator.truediv)

    def __mod__(self, other: Any) -> Cartesian:
        return self._with(other, operator.mod)

    def __neg__(self) -> Cartesian:
        return Cartesian(-self.z, -self.y, -self.x)

    def __eq__(self, other: object) -> bool:
        """Return whether all three numbers equal *other*, which is one number or three."""
        if other is None or isinstance(other, str):
            return False
        return self._all(other, operator.eq)

    def __ne__(self, other: object) -> bool:
        """Return whether at least one of the three numbers differs from *other*."""
        return not self == other

    def __lt__(self, other: Any) -> bool:
        """Return whether all three numbers are less than *other*."""
        return self._all(other, operator.lt)

    def __le__(self, other: Any) -> bool:
        """Return whether all three numbers are at most *other*."""
        return self._all(other, operator.le)

    def __gt__(self, other: Any) -> bool:
        """Return whether all three numbers are greater than *other*."""
        return self._all(other, operator.gt)

    def __ge__(self, other: Any) -> bool:
        """Return whether all three numbers are at least *other*."""
        return self._all(other, operator.ge)

    def __hash__(self) -> int:
        return hash(self.tuple)

    @property
    def ceil(self) -> Cartesian:
        """The numbers rounded up."""
        return Cartesian(*map(math.ceil, self))

    @property
    def floor(self) -> Cartesian:
        """The numbers rounded down."""
        return Cartesian(*map(math.floor, self))

    @property
    def inverse(self) -> Cartesian:
        """The numbers in reverse order: xyz for zyx."""
        return Cartesian(self.x, self.y, self.z)

    @property
    def tuple(self) -> tuple[Any, Any, Any]:
        """The numbers as a tuple."""
        return (self.z, self.y, self.x)

    @property
    def list(self) -> list[Any]:
        """The numbers as a list."""
        return [self.z, self.y, self.x]

    @property
    def vec(self) -> NDArray[Any]:
        """The numbers as an array."""
        import numpy as np

        return np.asarray(self.tuple)


def to_cartesian(values: Iterable[Any] | None) -> Cartesian | None:
    """Convert three values to a Cartesian; ``None`` stays ``None``."""
    return None if values is None else Cartesian.from_collection(values)


def plain(values: Iterable[Any]) -> Cartesian:
    """Convert three numbers to Python numbers: whole numbers to int, other numbers to float."""
    numbers = (float(value) for value in values)
    return Cartesian(*(int(value) if value.is_integer() else value for value in numbers))


@dataclass(frozen=True)
class BoundingBox:
    """A half-open box, zyx."""

    start: Cartesian
    stop: Cartesian

    def __post_init__(self) -> None:
        """Convert both corners to Cartesian."""
        object.__setattr__(self, "start", Cartesian.from_collection(self.start))
        object.__setattr__(self, "stop", Cartesian.from_collection(self.stop))

    @classmethod
    def from_string(cls, string: str) -> BoundingBox:
        """Parse ``z0-z1_y0-y1_x0-x1``, ignoring a leading folder and a file extension."""
        name = string.rpartition("/")[2].partition(".")[0]
        box = geometry.BoundingBox.parse(name)
        return cls(Cartesian(*box.start), Cartesian(*box.stop))

    @classmethod
    def from_delta(cls, start: Iterable[Any], plus: Iterable[Any]) -> BoundingBox:
        """Return the box that starts at *start* and has the size *plus*."""
        first = Cartesian.from_collection(start)
        return cls(first, first + plus)

    @classmethod
    def from_list(cls, lst: Any) -> BoundingBox:
        """Return the box of six numbers: three of the start, then three of the stop."""
        return cls(Cartesian(*lst[:3]), Cartesian(*lst[-3:]))

    @classmethod
    def from_bbox(cls, bbox: Any) -> BoundingBox:
        """Convert a box of cloud-volume, or any object with minpt and maxpt."""
        return cls(plain(bbox.minpt), plain(bbox.maxpt))

    @classmethod
    def from_slices(cls, slices: Iterable[slice]) -> BoundingBox:
        """Return the box that three slices cover, zyx."""
        three = tuple(slices)
        return cls(
            Cartesian(*(each.start for each in three)), Cartesian(*(each.stop for each in three))
        )

    @classmethod
    def from_points(cls, points: Any) -> BoundingBox:
        """Return the box from the lowest to the highest coordinates of points of shape (n, 3)."""
        import numpy as np

        array = np.asarray(points)
        return cls(plain(array.min(axis=0)), plain(array.max(axis=0)))

    @classmethod
    def from_center(cls, center: Iterable[Any], extent: Any, even_size: bool = True) -> BoundingBox:
        """Return the box from *center* - *extent* to *center* + *extent*.

        If *even_size* is false, the stop is 1 larger, so that the size is odd.
        """
        middle = Cartesian.from_collection(center)
        return cls(middle - extent, middle + extent + (0 if even_size else 1))

    @property
    def minpt(self) -> Cartesian:
        """Start of the box."""
        return self.start

    @property
    def maxpt(self) -> Cartesian:
        """Stop of the box."""
        return self.stop

    @property
    def shape(self) -> Cartesian:
        """Size of the box, zyx."""
        return self.stop - self.start

    def size3(self) -> Cartesian:
        """Return `shape`; cloud-volume uses this name."""
        return self.shape

    @property
    def string(self) -> str:
        """The box as text, ``z0-z1_y0-y1_x0-x1``."""
        return "_".join(f"{a}-{b}" for a, b in zip(self.start, self.stop, strict=True))

    def to_filename(self) -> str:
        """Return `string`; cloud-volume uses this name."""
        return self.string

    @property
    def slices(self) -> tuple[slice, ...]:
        """One slice for each axis."""
        return tuple(slice(a, b) for a, b in zip(self.start, self.stop, strict=True))

    def clone(self) -> BoundingBox:
        """Return an equal box."""
        return BoundingBox(self.start, self.stop)

    def inverse_order(self) -> BoundingBox:
        """Return the box in the order xyz."""
        return BoundingBox(self.start.inverse, self.stop.inverse)

    def adjust(self, size: Any) -> BoundingBox:
        """Return the box with both ends moved.

        Args:
            size: one number, or three numbers (zyx), by which both ends move outwards; negative
                numbers move both ends inwards. Of six numbers, the first three are added to the
                start, and the last three to the stop.
        """
        if size is None:
            return self
        six = len(size) == 6 if not isinstance(size, Number) else False
        before, after = (size[:3], size[3:]) if six else (Cartesian(0, 0, 0) - size, size)
        return BoundingBox(self.start + before, self.stop + after)

    def adjust_corner(self, corner_offset: Any) -> BoundingBox:
        """Return the box with six numbers added: three to its start, then three to its stop."""
        return self.adjust(tuple(corner_offset))

    def contains(self, point: Iterable[Any]) -> bool:
        """Return whether a point is in the box; as in 1.x, the stop counts as inside."""
        where = Cartesian.from_collection(point)
        return self.start <= where <= self.stop

    def union(self, bbox2: BoundingBox) -> BoundingBox:
        """Return the smallest box that contains both boxes."""
        return BoundingBox(self.start._with(bbox2.start, min), self.stop._with(bbox2.stop, max))

    def intersection(self, bbox2: BoundingBox) -> BoundingBox:
        """Return the common part; if there is none, the stop is below the start along some axis."""
        return BoundingBox(self.start._with(bbox2.start, max), self.stop._with(bbox2.stop, min))

    def is_aligned_with(self, block_shape: Iterable[Any]) -> bool:
        """Return whether start and stop are multiples of *block_shape* on all axes."""
        return self.start % block_shape == 0 and self.stop % block_shape == 0

    def decompose(self, block_size: Iterable[Any]) -> BoundingBoxes:
        """Split the box into blocks, beginning at its start; partial blocks are omitted."""
        block = Cartesian.from_collection(block_size)
        axes = (
            range(a, b - step + 1, step)
            for a, b, step in zip(self.start, self.stop, block, strict=True)
        )
        return BoundingBoxes(BoundingBox.from_delta(at, block) for at in itertools.product(*axes))

    def __add__(self, other: Any) -> BoundingBox:
        """Move the box by *other*."""
        return BoundingBox(self.start + other, self.stop + other)

    def __sub__(self, other: Any) -> BoundingBox:
        """Move the box by the negative of *other*."""
        return BoundingBox(self.start - other, self.stop - other)

    def __mul__(self, other: Any) -> BoundingBox:
        """Multiply start and stop by *other*."""
        return BoundingBox(self.start * other, self.stop * other)

    def __floordiv__(self, other: Any) -> BoundingBox:
        """Divide start and stop by *other*, rounding down."""
        return BoundingBox(self.start // other, self.stop // other)


class BoundingBoxes(UserList[BoundingBox]):
    """A list of boxes."""

    @classmethod
    def from_array(cls, arr: Any, is_zyx: bool = True) -> BoundingBoxes:
        """Return the boxes of an array of shape (n, 6): start and stop, each zyx or xyz."""
        boxes = (BoundingBox.from_list(row) for row in arr.tolist())
        return cls(box if is_zyx else box.inverse_order() for box in boxes)

    @property
    def array(self) -> NDArray[Any]:
        """Array of shape (n, 6): for each box, its start (zyx), then its stop (zyx)."""
        import numpy as np

        return np.asarray([(*box.start, *box.stop) for box in self.data], int).reshape(-1, 6)

"""Plans: the numbered tasks of a step, and lookup of a task by number or by box.

In this example of a plan over a grid of six boxes, the tasks are 2 and 5:

```
grid        0   1   2   3   4   5        number of each box: its position in raster order
kept        0       2   3       5        a mask or regions of interest exclude boxes 1 and 4
order       0 -> 2 -> 5 -> 3             order of the tasks: along a curve, or by number
indexes          2 -> 5                  positions 1 and 2 of this order (task 0 has position 0)
```

With a time axis, the number of a task is time index * (boxes in the grid) + number of its box. A
plan over a grid stores no list of boxes, only a description of the grid and at most one bit for
each box.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, Protocol

from chunkflow_py.core.geometry import BoxGrid, Region, Zyx
from chunkflow_py.errors import GeometryError
from chunkflow_py.tasks.task_list import ListPlan, check_part, no_task, written_part
from chunkflow_py.tasks.task_order import ORDERS, positions

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.tasks.task_order import Order

__all__ = ["GridPlan", "ListPlan", "Plan", "plan_from_json"]

_BITS_OF = tuple(tuple(bit for bit in range(8) if byte >> bit & 1) for byte in range(256))


class Plan(Protocol):
    """The numbered tasks of one step.

    Attributes:
        span: largest possible number of a task plus 1. Some numbers below *span* may have no task.
        boxes: grid or list of boxes that new outputs must cover. It contains the boxes of all
            tasks, and can contain further boxes.
        times: number of time points, if each box is processed at each time point; ``None`` without
            a time axis.
        time_points: time indices of the tasks, ascending; empty without a time axis.
    """

    @property
    def span(self) -> int: ...  # noqa: D102
    @property
    def boxes(self) -> Boxes: ...  # noqa: D102
    @property
    def times(self) -> int | None: ...  # noqa: D102
    @property
    def time_points(self) -> Sequence[int]: ...  # noqa: D102

    def __len__(self) -> int:
        """Return the number of tasks."""

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the tasks in the order of the plan."""

    def __contains__(self, number: int) -> bool:
        """Return whether a task has this number."""

    def region(self, number: int) -> Region:
        """Return the region of a task."""

    def text(self, number: int) -> str:
        """Return ``str(region(number))``, but faster."""

    def number(self, region: Region) -> int:
        """Return the number of the task on *region*.

        Raises:
            GeometryError: no task of the plan has this region; the message names the nearest task.
        """

    def to_json(self) -> tuple[dict[str, Any], bytes]:
        """Return a description for JSON, and the content of a binary file (possibly empty).

        Equal plans return equal descriptions and contents, so a checksum of both identifies a plan.
        """


@dataclass(frozen=True)
class GridPlan:
    """A plan with one task for each box of a grid, or for each box that *kept* selects.

    Attributes:
        grid: grid of the boxes.
        order: order in which tasks are yielded. The numbers of tasks do not depend on the order.
        indexes: positions in this order of the tasks that the plan contains, a range with step 1.
            ``None`` means all tasks.
        times: number of time points, or ``None`` without a time axis.
        kept: one bit for each box of the grid; only boxes whose bit is 1 have tasks. The bit of box
            0 is the lowest bit of the first byte. ``None`` means all boxes.
    """

    grid: BoxGrid
    _: KW_ONLY
    order: Order = "raster"
    indexes: range | None = None
    times: int | None = None
    kept: bytes | None = None

    def __post_init__(self) -> None:
        """Check the values, and set *kept* and *indexes* to ``None`` if they select all tasks.

        Raises:
            GeometryError: *kept* or *indexes* do not fit the grid, or *times* is less than 1.
        """
        total = len(self.grid)
        if self.kept is not None:
            if len(self.kept) != -(-total // 8) or self.kept[-1] >> ((total - 1) % 8 + 1):
                msg = (
                    f"the mask of a plan of {total} boxes must have {-(-total // 8)} bytes: one "
                    f"bit for each box, and 0 in the unused bits of the last byte. This mask has "
                    f"{len(self.kept)} bytes, of which the last is "
                    f"{self.kept[-1:].hex() or 'missing'}; make the plan again"
                )
                raise GeometryError(msg)
            if _count(self.kept) == total:
                object.__setattr__(self, "kept", None)
        if self.times is not None and self.times < 1:
            msg = f"a plan needs at least 1 time point, not {self.times}"
            raise GeometryError(msg)
        if self.indexes is not None:
            check_part(self.indexes, self._planned)
            if len(self.indexes) == self._planned:
                object.__setattr__(self, "indexes", None)

    @property
    def span(self) -> int:
        """Number of boxes in the grid, times the number of time points."""
        return len(self.grid) * (self.times or 1)

    @property
    def time_points(self) -> range:
        """The time indices of the tasks; empty without a time axis."""
        if self.times is None:
            return range(0)
        part = range(self._planned) if self.indexes is None else self.indexes
        each = self._planned // self.times
        return range(part.start // each, -(-part.stop // each))

    @property
    def boxes(self) -> BoxGrid:
        """The whole grid, which new outputs must cover. Some of its boxes may not be tasks."""
        return self.grid

    def __len__(self) -> int:
        """Return the number of tasks."""
        return self._planned if self.indexes is None else len(self.indexes)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the tasks in the order of the plan, in constant memory."""
        each = self._planned // (self.times or 1)
        part = range(self._planned) if self.indexes is None else self.indexes
        for time in range(part.start // each, -(-part.stop // each)) if part else ():
            low, high = max(part.start - time * each, 0), min(part.stop - time * each, each)
            shift = time * len(self.grid)
            boxes = self._positions(low, high)
            yield from boxes if shift == 0 else (shift + position for position in boxes)

    def __contains__(self, number: int) -> bool:
        """Return whether a task has this number."""
        if not 0 <= number < self.span:
            return False
        if self.indexes is not None:
            if self.order == "raster" and self.kept is None:
                return number in self.indexes
            return _has(self._selected, number)
        return self.kept is None or _has(self.kept, number % len(self.grid))

    def tasks_in_layer(self, time: int, layer: int) -> int:
        """Return the number of tasks in one layer of the grid (boxes of equal z) at one time index.

        Args:
            time: time index; 0 without a time axis.
            layer: index of the layer along z.
        """
        size = self.grid.count.y * self.grid.count.x
        first = time * len(self.grid) + layer * size
        if self.kept is None and self.indexes is None:
            return size
        if self.indexes is not None:
            return _count_between(self._selected, first, first + size)
        return _count_between(self.kept or b"", layer * size, (layer + 1) * size)

    def region(self, number: int) -> Region:
        """Return the region of a task.

        *number* may also be the number of a box that *kept* or *indexes* exclude from the plan.

        Raises:
            IndexError: *number* is negative, or not below *span*.
        """
        time, position = self._place(number)
        return Region(self.grid[position], time)

    def text(self, number: int) -> str:
        """Return ``str(region(number))`` without making the region."""
        time, position = self._place(number)
        (z0, y0, x0), (z1, y1, x1) = self._corners(position)
        text = f"{z0}-{z1}_{y0}-{y1}_{x0}-{x1}"
        return text if time is None else f"t{time}_{text}"

    def number(self, region: Region) -> int:
        """Return the number of the task on *region*.

        Raises:
            GeometryError: no task of the plan has this region; the message names the nearest task.
        """
        grid, box = self.grid, region.bbox
        cell = (box.start - grid.start) // grid.stride
        if cell == cell.high((0, 0, 0)).low(grid.count - 1):
            position = (cell.z * grid.count.y + cell.y) * grid.count.x + cell.x
            if self._corners(position) == (box.start, box.stop) and self._has_time(region.time):
                number = position + (region.time or 0) * len(grid)
                if number in self:
                    return number
        raise self._missing(region)

    def to_json(self) -> tuple[dict[str, Any], bytes]:
        """Return a description of the plan for JSON, and the bits of *kept* as bytes."""
        grid = self.grid
        description = {
            "kind": "grid",
            "start": [*grid.start],
            "size": [*grid.size],
            "stride": [*grid.stride],
            "count": [*grid.count],
            "clip_stop": None if grid.clip_stop is None else [*grid.clip_stop],
            "order": self.order,
            "indexes": written_part(self.indexes),
            "times": self.times,
        }
        return description, self.kept or b""

    @cached_property
    def _planned(self) -> int:
        boxes = len(self.grid) if self.kept is None else _count(self.kept)
        return boxes * (self.times or 1)

    @cached_property
    def _selected(self) -> bytes:
        """One bit for each task number: 1 if the plan contains the task."""
        bits = bytearray(-(-self.span // 8))
        for number in self:
            bits[number >> 3] |= 1 << (number & 7)
        return bytes(bits)

    def _positions(self, low: int, high: int) -> Iterator[int]:
        if self.kept is None:
            if self.order == "raster":
                return iter(range(low, high))
            return islice(positions(self.grid.count, self.order, low), high - low)
        if self.order == "raster":
            return islice(_bits(self.kept), low, high)
        kept, along = self.kept, positions(self.grid.count, self.order)
        return islice((n for n in along if kept[n >> 3] >> (n & 7) & 1), low, high)

    def _place(self, number: int) -> tuple[int | None, int]:
        if not 0 <= number < self.span:
            msg = f"task {number} is not one of the numbers 0 to {self.span - 1} of this plan"
            raise IndexError(msg)
        time, position = divmod(number, len(self.grid))
        return (None if self.times is None else time), position

    def _corners(self, position: int) -> tuple[tuple[int, int, int], tuple[int, int, int]]:
        grid = self.grid
        rest, x = divmod(position, grid.count[2])
        z, y = divmod(rest, grid.count[1])
        (z0, y0, x0), (dz, dy, dx), (lz, ly, lx) = grid.start, grid.stride, grid.size
        z0, y0, x0 = z0 + z * dz, y0 + y * dy, x0 + x * dx
        z1, y1, x1 = z0 + lz, y0 + ly, x0 + lx
        if (clip := grid.clip_stop) is not None:
            z1, y1, x1 = min(z1, clip[0]), min(y1, clip[1]), min(x1, clip[2])
        return (z0, y0, x0), (z1, y1, x1)

    def _has_time(self, time: int | None) -> bool:
        return time is None if self.times is None else time is not None and 0 <= time < self.times

    def _missing(self, region: Region) -> GeometryError:
        grid = self.grid
        rounded = (region.bbox.start - grid.start + grid.stride // 2) // grid.stride
        cell = rounded.high((0, 0, 0)).low(grid.count - 1)
        number = (cell.z * grid.count.y + cell.y) * grid.count.x + cell.x
        if self.times is not None:
            number += min(max(region.time or 0, 0), self.times - 1) * len(grid)
        why = "is not one of the plan's boxes"
        if self.region(number) == region:
            why = "is excluded from the plan"
        elif self.times is None and region.time is not None:
            why = "has a time index, but the plan has no time axis"
        elif not self._has_time(region.time):
            why = f"needs a time index from 0 to {(self.times or 1) - 1}"
        nearest = number if number in self else self._nearest(number)
        return no_task(region, why, None if nearest is None else self.region(nearest))

    def _nearest(self, number: int) -> int | None:
        if not len(self):
            return None
        if self.indexes is None:
            first = number - number % len(self.grid)
            return first + _nearest_bit(self.kept or b"", number - first)
        if self.order == "raster" and self.kept is None:
            return min(max(number, self.indexes[0]), self.indexes[-1])
        return _nearest_bit(self._selected, number)


def plan_from_json(description: Mapping[str, Any], content: bytes) -> GridPlan | ListPlan:
    """Return the plan from the two values that `Plan.to_json` has returned.

    Args:
        description: first value of `Plan.to_json`.
        content: second value of `Plan.to_json`.

    Raises:
        GeometryError: *description* does not describe a plan, or *content* does not match it.
    """
    values = dict(description)
    try:
        kind, indexes = values.pop("kind"), values.pop("indexes")
        part = None if indexes is None else range(*indexes)
        if kind == "list" and len(content) == values["count"] * ListPlan.row_bytes:
            return ListPlan.from_rows(content, part)
        if kind == "grid" and values["order"] in ORDERS:
            start, size, stride, count = (
                Zyx.of(values.pop(name)) for name in ("start", "size", "stride", "count")
            )
            clip = values.pop("clip_stop")
            grid = BoxGrid(start, size, stride, count, None if clip is None else Zyx.of(clip))
            return GridPlan(grid, indexes=part, kept=content or None, **values)
        reason = f"its kind or order is unknown, or its file size is wrong ({len(content)} bytes)"
    except (KeyError, TypeError, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
    msg = (
        f"the description {str(dict(description))[:200]} does not describe a plan, or is damaged "
        f"({reason}); make the plan again"
    )
    raise GeometryError(msg)


# --- bits, the lowest of each byte first ----------------------------------------------------------


def _has(bits: bytes, number: int) -> bool:
    return bool(bits[number >> 3] >> (number & 7) & 1)


def _count(bits: bytes) -> int:
    return int.from_bytes(bits, "little").bit_count()


def _count_between(bits: bytes, start: int, stop: int) -> int:
    value = int.from_bytes(bits[start >> 3 : -(-stop // 8)], "little") >> (start & 7)
    return (value & ((1 << (stop - start)) - 1)).bit_count()


def _bits(bits: bytes) -> Iterator[int]:
    for index, byte in enumerate(bits):
        if byte:
            first = 8 * index
            for bit in _BITS_OF[byte]:
                yield first + bit


def _nearest_bit(bits: bytes, number: int) -> int:
    index = number >> 3
    after = len(bits) - len(bits[index + 1 :].lstrip(b"\0"))
    before = len(bits[:index].rstrip(b"\0")) - 1
    near = [k for k in (before, index, after) if 0 <= k < len(bits)]
    return min((8 * k + bit for k in near for bit in _BITS_OF[bits[k]]),
               key=lambda bit: abs(bit - number))  # fmt: skip

"""Plans whose tasks are a list of regions; see `task_plan`."""

from __future__ import annotations

import struct
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.errors import GeometryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_ROW = struct.Struct("<7q")  # z, y, x of the start, the same of the stop, time or -1


@dataclass(frozen=True)
class ListPlan:
    """A plan with one task per region of a list, numbered in the order of the list.

    Attributes:
        regions: regions of the tasks, without duplicates.
        indexes: positions in the list of the tasks that the plan contains, a range with step 1.
            ``None`` means all tasks.
    """

    regions: Sequence[Region]
    _: KW_ONLY
    indexes: range | None = None
    row_bytes: ClassVar[int] = _ROW.size

    def __post_init__(self) -> None:
        """Copy the regions, and set *indexes* to ``None`` if they select the whole list.

        Raises:
            GeometryError: a region occurs twice, or *indexes* go beyond the list, or their step
                is not 1.
        """
        object.__setattr__(self, "regions", tuple(self.regions))
        if len(self._numbers) != len(self.regions):
            task = next(r for n, r in enumerate(self.regions) if self._numbers[r] != n)
            msg = f"task {task} occurs twice in a list of {len(self.regions)} tasks; list it once"
            raise GeometryError(msg)
        if self.indexes is not None:
            check_part(self.indexes, len(self.regions))
            if len(self.indexes) == len(self.regions):
                object.__setattr__(self, "indexes", None)

    @property
    def span(self) -> int:
        """Number of regions in the list; tasks have the numbers 0 to *span* - 1."""
        return len(self.regions)

    @property
    def times(self) -> None:
        """Always ``None``, because each region contains its time index."""
        return

    @cached_property
    def time_points(self) -> tuple[int, ...]:
        """The time indices of the regions, in ascending order."""
        return tuple(sorted({each.time for each in self.regions if each.time is not None}))

    @cached_property
    def boxes(self) -> list[BoundingBox]:
        """Boxes of all regions of the list, also of regions that *indexes* do not select."""
        return [region.bbox for region in self.regions]

    @cached_property
    def _numbers(self) -> dict[Region, int]:
        return {region: number for number, region in enumerate(self.regions)}

    @property
    def _part(self) -> range:
        return range(self.span) if self.indexes is None else self.indexes

    def __len__(self) -> int:
        """Return the number of tasks."""
        return len(self._part)

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the tasks."""
        return iter(self._part)

    def __contains__(self, number: int) -> bool:
        """Return whether a task has this number."""
        return number in self._part

    def region(self, number: int) -> Region:
        """Return the region of a task.

        *number* may also be the number of a task that *indexes* exclude from the plan.

        Raises:
            IndexError: *number* is not a position in the list.
        """
        if not 0 <= number < self.span:
            msg = f"task {number} is not one of the numbers 0 to {self.span - 1} of this plan"
            raise IndexError(msg)
        return self.regions[number]

    def text(self, number: int) -> str:
        """Return ``str(region(number))``."""
        return str(self.region(number))

    def number(self, region: Region) -> int:
        """Return the number of the task on *region*.

        Raises:
            GeometryError: no task of the plan has this region; the message names the nearest task.
        """
        number = self._numbers.get(region)
        if number is not None and number in self._part:
            return number
        why = "is not one of the plan's boxes" if number is None else "is excluded from the plan"

        def distance(other: Region) -> int:
            pairs = zip(_numbers_of(region), _numbers_of(other), strict=True)
            return sum(abs(a - b) for a, b in pairs)

        tasks = (self.regions[k] for k in self._part)
        raise no_task(region, why, min(tasks, key=distance, default=None))

    @classmethod
    def from_rows(cls, rows: bytes, indexes: range | None = None) -> ListPlan:
        """Recreate a plan from *rows*, the bytes that `to_json` has returned."""
        return cls([_region_of(row) for row in _ROW.iter_unpack(rows)], indexes=indexes)

    def to_json(self) -> tuple[dict[str, Any], bytes]:
        """Return a description of the plan, and the regions as bytes, 56 bytes for each region.

        Each region is stored as seven little-endian int64: z, y, x of the start, z, y, x of the
        stop, and the time index (-1 without a time axis).

        Raises:
            GeometryError: a number does not fit into 64 bits.
        """
        try:
            rows = b"".join(_ROW.pack(*_numbers_of(region)) for region in self.regions)
        except struct.error as error:
            msg = (
                f"a box of the list has coordinates beyond {2**63 - 1}, which a plan cannot store "
                f"({error}); correct the box"
            )
            raise GeometryError(msg) from error
        return {"kind": "list", "count": self.span, "indexes": written_part(self.indexes)}, rows


def _numbers_of(region: Region) -> tuple[int, ...]:
    time = -1 if region.time is None else region.time
    return (*region.bbox.start, *region.bbox.stop, time)


def _region_of(row: Sequence[int]) -> Region:
    return Region(BoundingBox(Zyx(*row[:3]), Zyx(*row[3:6])), None if row[6] < 0 else row[6])


def written_part(indexes: range | None) -> list[int] | None:
    """Return *indexes* as JSON: ``[start, stop]``, or ``None`` if all tasks are selected."""
    return None if indexes is None else [indexes.start, indexes.stop]


def check_part(indexes: range, total: int) -> None:
    """Check that *indexes* select consecutive tasks of a plan with *total* tasks.

    Raises:
        GeometryError: *indexes* go beyond the plan, or their step is not 1.
    """
    if indexes.step != 1 or not 0 <= indexes.start <= indexes.stop <= total:
        msg = (
            f"tasks {indexes} were requested, but the plan has {total} tasks, 0 to {total - 1}; "
            "request consecutive tasks of the plan"
        )
        raise GeometryError(msg)


def no_task(region: Region, why: str, near: Region | None) -> GeometryError:
    """Return the error to raise for a region without a task.

    Args:
        region: the region.
        why: second part of the message, after the region, such as "is excluded from the plan".
        near: region of the nearest task, for the message (``None`` if the plan has no tasks).
    """
    hint = "the plan has no tasks" if near is None else f"the nearest task is {near}"
    return GeometryError(f"{region} {why}; {hint}")

"""A plan over the regions of a list, numbered as they come; see `chunkflow_py.tasks.task_plan`."""

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
    """The tasks on regions of a list, numbered as they come.

    Attributes:
        regions: of the tasks, each once.
        indexes: which of them, step 1; ``None``: all.
    """

    regions: Sequence[Region]
    _: KW_ONLY
    indexes: range | None = None
    row_bytes: ClassVar[int] = _ROW.size

    def __post_init__(self) -> None:
        """Keep the regions, and leave out what says nothing.

        Raises:
            GeometryError: a region comes twice, or there are none of these indexes.
        """
        object.__setattr__(self, "regions", tuple(self.regions))
        if len(self._numbers) != len(self.regions):
            twice = next(r for n, r in enumerate(self.regions) if self._numbers[r] != n)
            msg = (
                f"task {twice} comes twice in a list of {len(self.regions)}; leave one of them out"
            )
            raise GeometryError(msg)
        if self.indexes is not None:
            check_part(self.indexes, len(self.regions))
            if len(self.indexes) == len(self.regions):
                object.__setattr__(self, "indexes", None)

    @property
    def span(self) -> int:
        """Numbers end before this."""
        return len(self.regions)

    @property
    def times(self) -> None:
        """Time points are part of the regions."""
        return

    @cached_property
    def boxes(self) -> list[BoundingBox]:
        """The boxes of the whole list, whatever part of it is worked on."""
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
        """Tell whether *number* is that of a task."""
        return number in self._part

    def region(self, number: int) -> Region:
        """Return the region of a task.

        Raises:
            IndexError: there is none of this number; that it is a task is not checked.
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
            GeometryError: the plan has no such task; names the nearest.
        """
        number = self._numbers.get(region)
        if number is not None and number in self._part:
            return number
        why = "is none of the plan's boxes" if number is None else "is left out of the plan"

        def distance(other: Region) -> int:
            pairs = zip(_numbers_of(region), _numbers_of(other), strict=True)
            return sum(abs(a - b) for a, b in pairs)

        tasks = (self.regions[k] for k in self._part)
        raise no_task(region, why, min(tasks, key=distance, default=None))

    @classmethod
    def from_rows(cls, rows: bytes, indexes: range | None = None) -> ListPlan:
        """Return the plan of which `to_json` has written these rows."""
        return cls([_region_of(row) for row in _ROW.iter_unpack(rows)], indexes=indexes)

    def to_json(self) -> tuple[dict[str, Any], bytes]:
        """Return a description, and a row of seven numbers a region.

        A row is z, y, x of the start, the same of the stop, and the time index or -1: int64,
        lowest byte first.

        Raises:
            GeometryError: a number does not fit into 64 bits.
        """
        try:
            rows = b"".join(_ROW.pack(*_numbers_of(region)) for region in self.regions)
        except struct.error as error:
            msg = f"a box of the list goes beyond {2**63 - 1} voxels ({error}); make it smaller"
            raise GeometryError(msg) from error
        return {"kind": "list", "count": self.span, "indexes": written_part(self.indexes)}, rows


def _numbers_of(region: Region) -> tuple[int, ...]:
    time = -1 if region.time is None else region.time
    return (*region.bbox.start, *region.bbox.stop, time)


def _region_of(row: Sequence[int]) -> Region:
    return Region(BoundingBox(Zyx(*row[:3]), Zyx(*row[3:6])), None if row[6] < 0 else row[6])


def written_part(indexes: range | None) -> list[int] | None:
    """Return what JSON takes for a part of the tasks of a plan."""
    return None if indexes is None else [indexes.start, indexes.stop]


def check_part(indexes: range, total: int) -> None:
    """Refuse a part of the tasks of a plan that has not so many.

    Raises:
        GeometryError: there are none of these indexes, or not each follows on the last.
    """
    if indexes.step != 1 or not 0 <= indexes.start <= indexes.stop <= total:
        msg = f"tasks {indexes} were asked for, but there are {total}, 0 to {total - 1}"
        raise GeometryError(msg)


def no_task(region: Region, why: str, near: Region | None) -> GeometryError:
    """Return the error for a region that is no task, with the nearest that is one."""
    hint = "there are no tasks at all" if near is None else f"the nearest task is {near}"
    return GeometryError(f"{region} {why}; {hint}")

"""Which tasks there are: a plan numbers them, and finds the number of each.

```
grid        0   1   2   3   4   5        numbers are positions in the raster order of the grid
kept        0       2   3       5        a mask or regions of interest leave some out
order       0 -> 2 -> 5 -> 3             in which tasks are made: along a curve, or as numbered
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.geometry import Region
    from chunkflow_py.hooks import Boxes


class Plan(Protocol):
    """The tasks of one stage.

    Attributes:
        span: numbers are 0 to *span* - 1; some of them may not be tasks.
        boxes: a grid or list of boxes around which all outputs must fit; may hold more than the
            tasks, never less.
        times: number of time points each box is worked on for, or ``None`` without a time axis.
    """

    span: int
    boxes: Boxes
    times: int | None

    def __len__(self) -> int:
        """Return the number of tasks."""

    def __iter__(self) -> Iterator[int]:
        """Yield the numbers of the tasks, in the order in which they are to be made."""

    def __contains__(self, number: int) -> bool:
        """Tell whether *number* is that of a task."""

    def region(self, number: int) -> Region:
        """Return the region of a task."""

    def number(self, region: Region) -> int:
        """Return the number of the task on *region*.

        Raises:
            GeometryError: the plan has no such task; names the nearest.
        """

    def to_json(self) -> tuple[dict[str, Any], bytes]:
        """Return a description, and the content of a file that belongs to it (may be empty)."""

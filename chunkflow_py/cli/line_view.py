"""What a terminal shows while a line runs.

```
#######.............  35%  3 of 8 tasks, 1 skipped   1:02 gone, ends in 1:55, Tue 14:02
12.4 Mvoxel/s   9% of the time outside of the network   GPU 88% busy, 12.1 of 80 GB
read     load-zarr 0-64_512-1024_0-512, 3.1 s
compute  inference 0-64_0-512_512-1024, 31 of 68, 12.0 s
write    waits
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from chunkflow_py.cli.pace import bar, duration, end_in, voxel_speed
from chunkflow_py.cli.screen import Row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.cli.gpu_use import GpuWatch
    from chunkflow_py.cli.line_state import LineState, Work

T = TypeVar("T")


def line_rows(state: LineState, gpu: GpuWatch) -> list[Row]:
    """Return the view of a line."""
    rows = [
        Row(overall(state.share(), counted(state), state.elapsed_s, state.left_s()), "bold"),
        Row(speeds(state.voxels_per_second, state.outside_network(), gpu)),
    ]
    rows += [_lane(lane, state.working(lane)) for lane in state.lanes]
    return [row for row in rows if row.text]


def overall(share: float | None, tasks: str, elapsed_s: float, left_s: float | None) -> str:
    """Return how far it is, and when it ends."""
    done = "" if share is None else f"{bar(share)} {share:4.0%}  "
    end = "" if left_s is None else f", {end_in(left_s)}"
    return f"{done}{tasks}   {duration(elapsed_s)} gone{end}"


def speeds(per_second: float | None, outside: float | None, gpu: GpuWatch) -> str:
    """Return how fast it is, and what the network has of it; nothing before that is known."""
    words = [
        "" if per_second is None else voxel_speed(per_second),
        "" if outside is None else f"{outside:.0%} of the time outside of the network",
        gpu.words(),
    ]
    return "   ".join(word for word in words if word)


def counted(state: LineState) -> str:
    """Return how many tasks are done."""
    total = "" if state.total is None else f" of {state.total}"
    one = state.total == 1 or (state.total is None and state.ended == 1)
    words = f"{state.ended}{total} task{'' if one else 's'}"
    for number, what in ((state.skipped, "skipped"), (state.failed, "failed")):
        words += f", {number} {what}" if number else ""
    return words


def _lane(lane: str, working: Sequence[Work]) -> Row:
    if not working:
        return Row(f"{lane:<7}  waits", "dim")
    return Row(f"{lane:<7}  {at_work(working, _work)}")


def at_work(working: Sequence[T], say: Callable[[T], str]) -> str:
    """Return what the first is, and how many there are beside it."""
    more = f", and {len(working) - 1} more" if len(working) > 1 else ""
    return say(working[0]) + more


def _work(work: Work) -> str:
    inside = f", {work.done} of {work.total}" if work.total else ""
    return f"{work.label} {work.task}".strip() + f"{inside}, {duration(work.seconds)}"

"""What a terminal shows while a worker works.

```
#######.............   35%  affinity: 412 of 1180 tasks, 1 failure   1:02 gone, ends in 1:55
12.4 Mvoxel/s   9% of the time outside of the network   GPU 88% busy, 12.1 of 80 GB
 0  load-zarr 0-64_0-512_0-512, 0.3 s | inference 0-64_0-512_512-1024, 31 of 68, 12.0 s
 1  starts
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.cli.line_view import at_work, overall, speeds
from chunkflow_py.cli.pace import duration
from chunkflow_py.cli.screen import Row

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.cli.gpu_use import GpuWatch
    from chunkflow_py.cli.work_state import WorkState
    from chunkflow_py.run.worker.looks import ChildLook, TaskLook


def work_rows(state: WorkState, gpu: GpuWatch) -> list[Row]:
    """Return the view of a worker."""
    head = overall(state.share(), _counted(state), state.elapsed_s, state.left_s())
    rows = [
        Row(head, "bold"),
        Row(speeds(state.voxels_per_second, state.outside_network(), gpu)),
    ]
    children = state.look.children if state.look else ()
    rows += [_child(child) for child in children]
    return [row for row in rows if row.text]


def _counted(state: WorkState) -> str:
    by_all = state.by_all
    words = f"{state.stage}: {state.ended if by_all is None else by_all} of {state.tasks} tasks"
    if by_all is not None and by_all != state.ended:
        words += f", {state.ended} of them here"
    for number, what in (
        (state.skipped, "skipped"),
        (state.given_up, "given up"),
        (state.failures, "failure" if state.failures == 1 else "failures"),
    ):
        words += f", {number} {what}" if number else ""
    return words


def _child(child: ChildLook) -> Row:
    name = f"{child.number:>2}" + (f" on GPU {child.device}" if child.device else "")
    if child.seconds is None:
        return Row(f"{name}  starts", "dim")
    lanes = [
        at_work(working, _task)
        for lane in ("read", "compute", "write")
        if (working := _in_lane(child.tasks, lane))
    ]
    return Row(f"{name}  {' | '.join(lanes)}") if lanes else Row(f"{name}  waits", "dim")


def _in_lane(tasks: Sequence[TaskLook], lane: str) -> list[TaskLook]:
    return [task for task in tasks if task.lane == lane]


def _task(task: TaskLook) -> str:
    inside = f", {task.done} of {task.total}" if task.total else ""
    return f"{task.operator} {task.box}{inside}, {duration(task.seconds)}"

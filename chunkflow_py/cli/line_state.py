"""What a line is doing and has done: counted from what its pipeline tells, in several threads."""

from __future__ import annotations

import time
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from chunkflow_py.cli.pace import Pace
from chunkflow_py.pipeline.hooks import RunsNetwork

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator


@dataclass
class Work:
    """An operator at work on a task.

    Attributes:
        label: of the operator.
        lane: of the operator.
        task: as it is printed.
        since: seconds of the monotonic clock.
        done: of what it does within.
        total: the same, 0 if it does not tell.
    """

    label: str
    lane: str
    task: str
    since: float
    done: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """How much of it is done, as far as it tells."""
        return self.done / self.total if self.total else 0.0

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.since


class LineState:
    """One run of a line.

    Args:
        operators: of the line, in order.
        total: number of tasks, if it is known.

    Attributes:
        seconds: of all tasks together, by operator.
        done, skipped, failed: tasks.
        voxels: of the boxes of the tasks that are done or skipped.
    """

    def __init__(self, operators: Sequence[Operator] = (), total: int | None = None) -> None:
        """Begin with nothing done."""
        self.operators, self.total = operators, total
        self.seconds = {stage.name: 0.0 for stage in operators}
        self.done = self.skipped = self.failed = self.voxels = 0
        self._began = time.monotonic()
        self._lanes: dict[str, str] = {stage.name: stage.lane for stage in operators}
        self._network = [stage.body for stage in operators if isinstance(stage.body, RunsNetwork)]
        self._work: dict[tuple[int, str], Work] = {}
        self._steps: dict[int, int] = {}  # operators that have ended, of tasks that have not
        self._pace = Pace()
        self._lock = Lock()

    # --- what it is told -------------------------------------------------------------------------

    def started(self, label: str, task: Task) -> None:
        """Note that an operator begins on a task."""
        name = "" if task.region is None else str(task)
        with self._lock:
            self._work[id(task), label] = Work(label, self._lanes[label], name, time.monotonic())

    def progressed(self, label: str, task: Task, done: int, total: int) -> None:
        """Note how far an operator is."""
        with self._lock:
            if work := self._work.get((id(task), label)):
                work.done, work.total = done, total

    def finished(self, label: str, task: Task, seconds: float) -> None:
        """Note that an operator is done with a task."""
        with self._lock:
            self._work.pop((id(task), label), None)
            self._steps[id(task)] = self._steps.get(id(task), 0) + 1
            self.seconds[label] += seconds

    def task_finished(self, task: Task, voxels: int | None) -> None:
        """Note that a task has come to the end of the line."""
        with self._lock:
            self._steps.pop(id(task), None)
            if task.failed:
                self.failed += 1
                return
            self.done += task.outcome is None
            self.skipped += task.outcome is not None
            self.voxels += voxels or 0
            self._pace.reached(self.voxels)

    # --- what it tells ---------------------------------------------------------------------------

    @property
    def ended(self) -> int:
        """How many tasks are done or skipped."""
        return self.done + self.skipped

    @property
    def elapsed_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @property
    def voxels_per_second(self) -> float | None:
        """Lately; ``None`` before there was a task with voxels."""
        with self._lock:
            return self._pace.per_second if self.voxels else None

    @property
    def network_s(self) -> float | None:
        """For how long the network has run; ``None`` if there is none."""
        if not self._network:
            return None
        return sum(body.network_seconds for body in self._network)

    def outside_network(self) -> float | None:
        """Return the share of the time in which the network did not run, if there is one."""
        network_s = self.network_s
        if network_s is None or not self.elapsed_s:
            return None
        return max(0.0, 1 - network_s / self.elapsed_s)

    def working(self, lane: str | None = None) -> list[Work]:
        """Return what is at work now, in one lane or in all, the oldest first."""
        with self._lock:
            found = [work for work in self._work.values() if lane in (None, work.lane)]
        return sorted(found, key=lambda work: work.since)

    @property
    def lanes(self) -> list[str]:
        """Those that the line has."""
        there = set(self._lanes.values())
        return [lane for lane in ("read", "compute", "write") if lane in there]

    def share(self) -> float | None:
        """Return how much of the work is done, operators of one task alike; ``None`` if unknown."""
        if not self.total or not self.operators:
            return None
        with self._lock:
            inside = sum(work.share for work in self._work.values())
            steps = sum(self._steps.values()) + inside
        return min(1.0, (self.ended + self.failed + steps / len(self.operators)) / self.total)

    def left_s(self) -> float | None:
        """Return how many seconds it still takes, once that can be told."""
        share = self.share()
        if self.total == 1:  # operators are not alike: one tells for itself
            telling = [work for work in self.working() if work.done]
            return max(
                (work.seconds * (work.total / work.done - 1) for work in telling), default=None
            )
        return self.elapsed_s * (1 / share - 1) if share and self.ended else None


def voxels_of(task: Task) -> int | None:
    """Return the voxels of a task's box, or those of the largest of its chunks if it has none."""
    if task.bbox is not None:
        return task.bbox.size.product()
    boxes = [getattr(item, "bbox", None) for item in task.items.values()]
    return max((box.size.product() for box in boxes if box is not None), default=None)

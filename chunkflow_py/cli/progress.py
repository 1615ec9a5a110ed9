"""Progress of a pipeline or a worker: counts, speeds, remaining time, and rows of the view.

```
events of a pipeline (pipeline.Listener) --> PipelineProgress --+
                                                                +--> Progress --> progress_rows
events of a worker (its listener)        --> WorkerProgress ----+
```

`PipelineProgress` and `WorkerProgress` count tasks in the same way. `PipelineProgress` gets the
running operators from events; `WorkerProgress` gets the running operators from snapshots of the
worker processes. The two classes estimate the remaining time differently, because a pipeline
executes all its tasks itself, but a worker shares the tasks with other workers.

```
#######.............  35%  3 of 8 tasks, 1 skipped   1:02 elapsed, ends in 1:55, Tue 14:02
12.4 Mvoxel/s   9% of the time outside of the network   GPU 88% busy, 12.1 of 80 GB
read     load-zarr 0-64_512-1024_0-512, 3.1 s            (a pipeline: one row per stage)
compute  inference 0-64_0-512_512-1024, 31 of 68, 12.0 s
write    waits

 0  load-zarr 0-64_0-512_0-512, 0.3 s | inference 0-64_0-512_512-1024, 31 of 68, 12.0 s
 1  starts                                               (a worker: one row per process)
```

In these rows, ``31 of 68`` means that 31 of the 68 patches of the task are finished.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from chunkflow_py.cli.screen import Row

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from chunkflow_py.cli.gpu_use import GpuWatch
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.run.ledger.ledger_record import Record
    from chunkflow_py.run.worker.supervisor import WorkerSnapshot
    from chunkflow_py.run.worker.worker_pool import ProcessSnapshot

STAGES = ("read", "compute", "write")
WINDOW_S = 60.0  # seconds that a speed is averaged over, at least
SAMPLES = 20  # steps that a speed is averaged over, at least: tasks may take minutes


class Pace:
    """Recent speed of a quantity that grows in steps, such as the number of finished voxels.

    Args:
        amount: value of the quantity at the beginning.
    """

    def __init__(self, amount: float = 0.0) -> None:
        self._steps = deque([(time.monotonic(), amount)])

    def reached(self, amount: float) -> None:
        """Record that the quantity has now reached *amount*."""
        now = time.monotonic()
        self._steps.append((now, amount))
        while len(self._steps) > SAMPLES and self._steps[1][0] < now - WINDOW_S:
            self._steps.popleft()

    @property
    def per_second(self) -> float | None:
        """Recent increase of the quantity per second; ``None`` before the first increase.

        The value decreases while the quantity does not grow.
        """
        if len(self._steps) < 2:
            return None
        (since, first), (_, last) = self._steps[0], self._steps[-1]
        return (last - first) / max(time.monotonic() - since, 1e-9)


@dataclass
class Activity:
    """An operator that is running on a task.

    Attributes:
        operator: name of the operator.
        stage: ``read``, ``compute`` or ``write``.
        box: box of the task.
        since: time at which the operator started on the task, seconds of `time.monotonic`.
        done: number of finished units of work, such as patches.
        total: number of all units of work; 0 if the operator does not report progress.
    """

    operator: str
    stage: str
    box: str
    since: float
    done: int = 0
    total: int = 0

    @property
    def share(self) -> float:
        """Share of the operator's work that is done, in [0, 1]; 0 if unknown."""
        return self.done / self.total if self.total else 0.0

    @property
    def seconds(self) -> float:
        """Seconds since the operator started on the task."""
        return time.monotonic() - self.since

    def __str__(self) -> str:
        """Return operator, box, progress and duration as text for a row of the view."""
        inside = f", {self.done} of {self.total}" if self.total else ""
        return f"{self.operator} {self.box}".strip() + f"{inside}, {duration(self.seconds)}"


class Progress(ABC):
    """Counts and speed of tasks, and the operators that are running; thread-safe.

    Args:
        total: number of all tasks, if known.

    Attributes:
        done, skipped, failed: numbers of tasks that were done, were skipped or failed in this
            process. A worker counts a task as failed only after the last attempt at the task.
        voxels: number of voxels in the boxes of done and skipped tasks.
        written_bytes: bytes that done and skipped tasks stored; 0 for a pipeline without a ledger.
        seconds: dict from the name of an operator to its seconds, summed over all tasks.
    """

    def __init__(self, total: int | None) -> None:
        self.total = total
        self.done = self.skipped = self.failed = 0
        self.voxels = self.written_bytes = 0
        self.seconds: dict[str, float] = {}
        self._began = time.monotonic()
        self._pace = Pace()
        self._lock = Lock()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the progress was created."""
        return time.monotonic() - self._began

    @property
    def voxels_per_second(self) -> float | None:
        """Recent speed in voxels per second; ``None`` until the first voxels are finished."""
        with self._lock:
            return self._pace.per_second if self.voxels else None

    @property
    @abstractmethod
    def ended(self) -> int:
        """Number of tasks that ended and will not run again."""

    @abstractmethod
    def share(self) -> float | None:
        """Return the share of all work that is done, in [0, 1]; ``None`` if unknown."""

    @abstractmethod
    def left_s(self) -> float | None:
        """Return the estimated seconds until all tasks have ended; ``None`` if unknown."""

    @abstractmethod
    def outside_network(self) -> float | None:
        """Return the share of the time, in [0, 1], in which no neural network ran.

        The result is ``None`` if the pipeline has no neural network, or if nothing was measured
        yet.
        """

    @abstractmethod
    def counted(self) -> str:
        """Return the numbers of tasks as text, such as ``3 of 8 tasks, 1 skipped``."""

    @abstractmethod
    def activity_rows(self) -> Iterable[Row]:
        """Return a row of the view for each stage or worker process, with the running operators."""

    def _count(self, outcome: str, voxels: int) -> None:
        """Count a task that ended; the caller holds the lock."""
        setattr(self, outcome, getattr(self, outcome) + 1)
        if outcome != "failed":
            self.voxels += voxels
        self._pace.reached(self.voxels)

    def _add_seconds(self, seconds: Mapping[str, float]) -> None:
        for name, value in seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value


class PipelineProgress(Progress):
    """Progress of a pipeline.

    Args:
        operators: operators of the pipeline, in order.
        total: number of all tasks, if known.

    Attributes:
        processes: snapshots of the processes that run the tasks; empty if this process runs them.
    """

    def __init__(self, operators: Sequence[Operator] = (), total: int | None = None) -> None:
        super().__init__(total)
        self.operators = operators
        self.seconds = {operator.name: 0.0 for operator in operators}
        self._stage_of: dict[str, str] = {each.name: each.stage for each in operators}
        self._networks = [o.hooks for o in operators if o.hooks.declares("network_seconds")]
        self.processes: Sequence[ProcessSnapshot] = ()
        self._active: dict[tuple[int, str], Activity] = {}
        self._finished: dict[int, int] = {}  # id of a running task -> finished operators

    def operator_started(self, name: str, task: Task) -> None:
        """Record that an operator has started on a task."""
        box = "" if task.region is None else str(task)
        with self._lock:
            activity = Activity(name, self._stage_of[name], box, time.monotonic())
            self._active[id(task), name] = activity

    def operator_progressed(self, name: str, task: Task, done: int, total: int) -> None:
        """Record that an operator has finished *done* of its *total* units of work."""
        with self._lock:
            if activity := self._active.get((id(task), name)):
                activity.done, activity.total = done, total

    def operator_finished(self, name: str, task: Task, seconds: float) -> None:
        """Record that an operator has finished with a task, and add the seconds that it took."""
        with self._lock:
            self._active.pop((id(task), name), None)
            self._finished[id(task)] = self._finished.get(id(task), 0) + 1
            self._add_seconds({name: seconds})

    def task_ended(self, task: Task) -> int | None:
        """Count a task that has left the pipeline, and return its number of voxels."""
        voxels = task_voxels(task)
        outcome = "failed" if task.failed else "done" if task.outcome is None else "skipped"
        with self._lock:
            self._finished.pop(id(task), None)
            self._count(outcome, voxels or 0)
        return voxels

    @property
    def ended(self) -> int:
        """Number of tasks that are done or skipped."""
        return self.done + self.skipped

    @property
    def network_s(self) -> float | None:
        """Seconds that the neural networks of the pipeline have run; ``None`` without a network."""
        if not self._networks:
            return None
        return sum(hooks.network_seconds for hooks in self._networks)

    def outside_network(self) -> float | None:
        """Return the share of the elapsed time in which no neural network ran, if known."""
        network_s = self.network_s
        if network_s is None or not self.elapsed_s:
            return None
        return max(0.0, 1 - network_s / self.elapsed_s)

    def share(self) -> float | None:
        """Return the share of the work that is done; ``None`` if unknown.

        The estimate assumes that all operators take equally long.
        """
        if not self.total or not self.operators:
            return None
        with self._lock:
            inside = sum(activity.share for activity in self._active.values())
            finished = sum(self._finished.values()) + inside
        tasks = self.ended + self.failed + finished / len(self.operators)
        return min(1.0, tasks / self.total)

    def left_s(self) -> float | None:
        """Return the estimated seconds until all tasks have ended; ``None`` if unknown."""
        share = self.share()
        if self.total == 1:  # operators differ in speed: use the progress of the running ones only
            known = [activity for activity in self.active() if activity.done]
            return max(
                (each.seconds * (each.total / each.done - 1) for each in known), default=None
            )
        return self.elapsed_s * (1 / share - 1) if share and self.ended else None

    def active(self, stage: str | None = None) -> list[Activity]:
        """Return the running operators of one stage (default: of all), earliest start first."""
        with self._lock:
            chosen = [each for each in self._active.values() if stage in (None, each.stage)]
        return sorted(chosen, key=lambda activity: activity.since)

    def counted(self) -> str:
        """Return the numbers of tasks as text, such as ``3 of 8 tasks, 1 skipped``."""
        total = "" if self.total is None else f" of {self.total}"
        is_one = self.total == 1 or (self.total is None and self.ended == 1)
        counts = ((self.skipped, "skipped"), (self.failed, "failed"))
        return f"{self.ended}{total} task{'' if is_one else 's'}{_nonzero(counts)}"

    def activity_rows(self) -> Iterable[Row]:
        """Yield one row per process, with the running operators.

        If this process runs the tasks, yield one row per stage (read, compute, write).
        """
        yield from map(_process_row, self.processes)
        if self.processes:
            return
        present = set(self._stage_of.values())
        for stage in STAGES:
            if stage in present:
                active = self.active(stage)
                text = f"{stage:<7}  {_first_of(active) if active else 'waits'}"
                yield Row(text, "" if active else "dim")

    @property
    def is_idle(self) -> bool:
        """Whether no task is in the pipeline."""
        return not (self._finished or self._active)


class WorkerProgress(Progress):
    """Progress of a worker on one step of a run.

    Args:
        step: name of the step.
        total: number of all tasks of the step.

    Attributes:
        failures: number of failed attempts in this worker.
        snapshot: running operators of each worker process; ``None`` if not known yet.
    """

    total: int

    def __init__(self, step: str = "", total: int = 0) -> None:
        super().__init__(total)
        self.step = step
        self.failures = 0
        self.snapshot: WorkerSnapshot | None = None
        self._recorded: tuple[int, int] | None = None  # tasks of all workers, and of this one then
        self._tasks = Pace()

    def task_ended(self, record: Record) -> int:
        """Count a task whose outcome this worker has recorded, and return its number of voxels."""
        from chunkflow_py.monitor.run_facts import voxels_of  # here: pipelines do not need it

        voxels = voxels_of(record)
        with self._lock:
            self._count("failed" if record.state == "dead" else record.state, voxels)
            if record.state != "dead":
                self.written_bytes += record.stored_bytes
                self._add_seconds(record.seconds)
            if self._recorded is not None:
                self._tasks.reached(self._by_all())
        return voxels

    def recorded(self, number: int) -> None:
        """Store *number*, the number of tasks that all workers together have recorded."""
        with self._lock:
            is_first = self._recorded is None
            self._recorded = number, self.ended
            if is_first:
                self._tasks = Pace(number)
            else:
                self._tasks.reached(number)

    @property
    def ended(self) -> int:
        """Number of tasks that this worker has recorded."""
        return self.done + self.skipped + self.failed

    @property
    def by_all(self) -> int | None:
        """Number of tasks that all workers have recorded; ``None`` before the ledger is first read.

        The number includes the tasks that this worker has recorded since the ledger was last read.
        """
        with self._lock:
            return self._by_all() if self._recorded is not None else None

    def _by_all(self) -> int:
        number, own = self._recorded or (0, 0)
        return min(self.total, number + self.ended - own)

    def share(self) -> float | None:
        """Return the share of the step's tasks that are recorded; ``None`` if unknown."""
        done = self.by_all
        return None if done is None or not self.total else done / self.total

    def left_s(self) -> float | None:
        """Return the estimated seconds until the step ends, at the recent speed of all workers."""
        done = self.by_all
        with self._lock:
            pace = self._tasks.per_second
        left = None if done is None else self.total - done
        return left / pace if left and pace else None

    def outside_network(self) -> float | None:
        """Return the share of the time in which no network ran, if known.

        The time is summed over all worker processes.
        """
        processes = self.snapshot.processes if self.snapshot else ()
        known = [each for each in processes if each.network_seconds is not None and each.seconds]
        if not known:
            return None
        running = sum(each.network_seconds or 0.0 for each in known)
        return max(0.0, 1 - running / sum(each.seconds or 0.0 for each in known))

    def counted(self) -> str:
        """Return the numbers of tasks as text, preceded by the name of the step."""
        by_all = self.by_all
        text = f"{self.step}: {self.ended if by_all is None else by_all} of {self.total} tasks"
        if by_all is not None and by_all != self.ended:
            text += f", {self.ended} of them here"
        failures = "failure" if self.failures == 1 else "failures"
        counts = (self.skipped, "skipped"), (self.failed, "given up"), (self.failures, failures)
        return text + _nonzero(counts)

    def activity_rows(self) -> Iterable[Row]:
        """Return a row of the view for each worker process, with its running operators."""
        return [_process_row(each) for each in self.snapshot.processes] if self.snapshot else []


def task_voxels(task: Task) -> int | None:
    """Return the number of voxels of a task's box.

    If the task has no box, return the number of voxels of its largest chunk; ``None`` without a
    chunk.
    """
    if task.bbox is not None:
        return task.bbox.size.product()
    boxes = [getattr(item, "bbox", None) for item in task.items.values()]
    return max((box.size.product() for box in boxes if box is not None), default=None)


# --- the view -------------------------------------------------------------------------------------


def progress_rows(progress: Progress, gpu: GpuWatch) -> list[Row]:
    """Return the rows of the progress view: counts, speeds and running operators."""
    share, left_s = progress.share(), progress.left_s()
    done = "" if share is None else f"{bar(share)} {share:4.0%}  "
    end = "" if left_s is None else f", {end_in(left_s)}"
    head = f"{done}{progress.counted()}   {duration(progress.elapsed_s)} elapsed{end}"
    speed, outside = progress.voxels_per_second, progress.outside_network()
    speeds = [
        "" if speed is None else voxel_speed(speed),
        "" if outside is None else f"{outside:.0%} of the time outside of the network",
        gpu.text(),
    ]
    rows = [Row(head, "bold"), Row("   ".join(text for text in speeds if text))]
    return [row for row in (*rows, *progress.activity_rows()) if row.text]


def _process_row(process: ProcessSnapshot) -> Row:
    name = f"{process.number:>2}" + (f" on GPU {process.device}" if process.device else "")
    if process.seconds is None:
        return Row(f"{name}  starts", "dim")
    now = time.monotonic()
    active = [
        Activity(task.operator, task.stage, task.box, now - task.seconds, task.done, task.total)
        for task in process.tasks
    ]
    by_stage = [[each for each in active if each.stage == stage] for stage in STAGES]
    texts = [_first_of(some) for some in by_stage if some]
    return Row(f"{name}  {' | '.join(texts)}") if texts else Row(f"{name}  waits", "dim")


def _first_of(active: Sequence[Activity]) -> str:
    more = f", and {len(active) - 1} more" if len(active) > 1 else ""
    return f"{active[0]}{more}"


def _nonzero(counts: Iterable[tuple[int, str]]) -> str:
    return "".join(f", {number} {what}" for number, what in counts if number)


def bar(share: float, width: int = 20) -> str:
    """Return a progress bar of *width* characters; *share* is in [0, 1]."""
    filled = min(width, int(share * width + 0.5))
    return "#" * filled + "." * (width - filled)


def voxel_speed(per_second: float) -> str:
    """Return a speed in voxels per second as text with an SI prefix, such as ``12.4 Mvoxel/s``."""
    for factor, prefix in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_second >= factor:
            return f"{per_second / factor:.3g} {prefix}voxel/s"
    return f"{per_second:.3g} voxel/s"


def duration(seconds: float) -> str:
    """Return *seconds* as text: ``4.2 s``, ``1:02`` (min:s), ``3:07:45`` or ``2 d 03:07``."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    minutes, hours, days = whole // 60 % 60, whole // 3600 % 24, whole // 86400
    if days:
        return f"{days} d {hours:02d}:{minutes:02d}"
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def end_in(seconds: float) -> str:
    """Return a text such as ``ends in 1:55, Tue 14:02`` for an end that is *seconds* from now."""
    end = time.localtime(time.time() + seconds)
    return f"ends in {duration(seconds)}, {time.strftime('%a %H:%M', end)}"

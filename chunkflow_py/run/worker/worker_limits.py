"""Settings of a worker, and limits of the time, tasks and money that the worker may use.

```
start --- receives tasks ---| no time for another task: finishes begun tasks |--- deadline
```
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass, field, replace
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import OptionError, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

logger = logging.getLogger(__name__)

SHUTDOWN_SHARE = 0.02  # share of the walltime that is reserved for the shutdown
LONGEST_SHUTDOWN_S = 20.0

KEPT_DURATIONS = 1024  # most recent tasks of this worker whose durations are kept
SAMPLED_DURATIONS = 256  # tasks of other workers whose durations are read from the ledger
READ_AGAIN_S = 600.0  # time between two reads of durations from the ledger

_COMMAND_TIMEOUT_S = 20


# --- one worker ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerLimits:
    """The limits at which a worker stops; ``None`` means no limit.

    Attributes:
        max_tasks: limit of the number of attempts on tasks, including failed attempts.
        walltime_s: limit of the time from the start of the worker to its exit, in seconds.
        max_cost: limit of the cost of the worker, in any currency.
        cost_per_hour: price of this machine per hour, in the same currency.
        idle_exit_s: limit of the time that the worker waits for a task before it exits, in seconds.
        spent_s: seconds that the worker has already run, which count towards *walltime_s* and
            *max_cost*.
    """

    max_tasks: int | None = None
    walltime_s: float | None = None
    max_cost: float | None = None
    cost_per_hour: float | None = None
    idle_exit_s: float | None = None
    spent_s: float = 0.0

    def __post_init__(self) -> None:
        """Check that the cost can be computed.

        Raises:
            OptionError: the cost is limited, but the price of the machine is unknown.
        """
        if self.max_cost is not None and not self.cost_per_hour:
            msg = (
                f"--max-cost {self.max_cost} needs the price of this machine; add --cost-per-hour "
                "PRICE"
            )
            raise OptionError(msg)

    @property
    def deadline_s(self) -> float | None:
        """Seconds from now until all tasks must have ended; ``None`` if there is no limit."""
        bounds = [] if self.walltime_s is None else [_without_shutdown(self.walltime_s)]
        if self.max_cost is not None and self.cost_per_hour:
            bounds.append(3600 * self.max_cost / self.cost_per_hour)
        return min(bounds) - self.spent_s if bounds else None

    @property
    def reason(self) -> str:
        """Description of the limit that determines the deadline, for messages."""
        walltime_s = self.walltime_s
        if (
            walltime_s is not None
            and self.deadline_s == _without_shutdown(walltime_s) - self.spent_s
        ):
            return f"the walltime of {walltime_s:g} s"
        return f"the cost limit of {self.max_cost} at {self.cost_per_hour} per hour"

    def after(self, seconds: float, tasks: int) -> WorkerLimits:
        """Return the limits that remain for the next step or the next run.

        Args:
            seconds: time in seconds that the worker has run under these limits.
            tasks: number of tasks that have ended on the worker under these limits.
        """
        most = None if self.max_tasks is None else max(0, self.max_tasks - tasks)
        return replace(self, max_tasks=most, spent_s=self.spent_s + seconds)

    def idle_left_s(self, idle_s: float) -> float:
        """Return how many more seconds a worker may wait after *idle_s* seconds without a task."""
        bounds = [] if self.idle_exit_s is None else [self.idle_exit_s - idle_s]
        if (deadline_s := self.deadline_s) is not None:
            bounds.append(deadline_s)
        return min(bounds, default=math.inf)

    @property
    def reached(self) -> str | None:
        """Message about the limit that is reached; ``None`` if another task may begin."""
        if self.max_tasks == 0:
            return "the limit of --max-tasks is reached"
        deadline_s = self.deadline_s
        return f"{self.reason} is used up" if deadline_s is not None and deadline_s <= 0 else None


def _without_shutdown(walltime_s: float) -> float:
    return walltime_s - min(LONGEST_SHUTDOWN_S, SHUTDOWN_SHARE * walltime_s)


def walltime_of_job() -> float:
    """Return the remaining seconds of the Slurm job in which this process runs.

    Raises:
        OptionError: the process does not run in a Slurm job, or the job has no time limit.
    """
    end = os.environ.get("SLURM_JOB_END_TIME", "")
    if is_digits(end):
        return max(0.0, int(end) - time.time())
    job = os.environ.get("SLURM_JOB_ID", "")
    if not job:
        msg = (
            "--walltime auto reads the time limit of a Slurm job, but SLURM_JOB_ID is not set; use "
            "--walltime SECONDS"
        )
        raise OptionError(msg)
    try:
        time_left = subprocess.run(
            ["squeue", "--noheader", "--job", job, "--format", "%L"],
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.SubprocessError) as error:
        msg = (
            f"squeue did not report the remaining time of job {job} ({error}); use "
            "--walltime SECONDS"
        )
        raise OptionError(msg) from error
    return parse_time_left(time_left)


def parse_time_left(text: str) -> float:
    """Return the seconds of a duration in Slurm's format: ``1-02:03:04``, ``02:03:04``, ``3:04``.

    Raises:
        OptionError: the text is not a duration, for example ``UNLIMITED``.
    """
    days, dash, clock = text.rpartition("-")
    fields = clock.split(":")
    if not all(is_digits(each) for each in [days if dash else "0", *fields]) or len(fields) > 3:
        msg = f"Slurm reports the remaining time {text!r}, which is not a duration; omit --walltime"
        raise OptionError(msg)
    seconds = 0
    for each in fields:
        seconds = 60 * seconds + int(each)
    return float(86400 * int(days or 0) + seconds)


# --- one task ------------------------------------------------------------------------------------


class Bound(NamedTuple):
    """A time limit in seconds, and the explanation of the limit for messages."""

    seconds: float
    why: str


@dataclass(frozen=True)
class TaskLimit:
    """The run time after which a task is killed (``--task-limit``).

    Attributes:
        seconds: limit of the run time of every task in seconds; infinity for no limit, ``None`` for
            the value ``auto``, which derives the limit from the durations of finished tasks.
        tasks: with ``auto``, number of tasks that must finish before the limit is derived from the
            median of their durations.
        first_s: with ``auto``, the limit in seconds while fewer than `tasks` tasks have finished.
            With any value, the start of a worker process may take this long; see `start_s`.
        times, least_s: with ``auto``, when `tasks` tasks have finished, the limit becomes their
            median duration multiplied by `times`, but at least `least_s` seconds.
    """

    seconds: float | None = None
    first_s: float = 6 * 3600.0
    least_s: float = 3600.0
    times: float = 20.0
    tasks: int = 8

    @property
    def shortest_s(self) -> float:
        """Smallest possible limit in seconds; no task with a shorter run time is ever killed."""
        return min(self.first_s, self.least_s) if self.seconds is None else self.seconds

    @property
    def start_s(self) -> float:
        """Seconds that a worker process may take until it is ready for its first task."""
        return self.first_s if self.seconds is None else max(self.first_s, self.seconds)

    def after(self, durations: Sequence[float]) -> Bound:
        """Return the limit of a task, given the durations of finished tasks in seconds."""
        remedy = "if tasks may take longer, set --task-limit SECONDS or --task-limit none"
        if self.seconds is not None:
            why = f"--task-limit allows {self.seconds:g} s; {remedy}"
            return Bound(self.seconds, why)
        if len(durations) < self.tasks:
            why = (
                f"--task-limit auto allows {self.first_s:g} s per task until {self.tasks} tasks of "
                f"the step have finished; {remedy}"
            )
            return Bound(self.first_s, why)
        middle = median(durations)
        seconds = max(self.least_s, self.times * middle)
        why = (
            f"--task-limit auto allows {seconds:.4g} s, the larger of {self.least_s:g} s and "
            f"{self.times:g} times the median run time ({middle:.3g} s) of the {len(durations)} "
            f"tasks that have finished; {remedy}"
        )
        return Bound(seconds, why)


class TaskDurations:
    """Durations of done tasks of a step, and the time limit that is derived from them.

    If this worker has done fewer tasks than ``--task-limit auto`` needs, the durations in the
    ledger are read, too.

    Args:
        limit: limit of the duration of a task.
        recorded: function that returns the durations of done tasks in the ledger, in seconds. The
            function is called in a separate thread, and only if a task runs longer than
            `TaskLimit.shortest_s`.
    """

    def __init__(self, limit: TaskLimit, recorded: Callable[[], Iterable[float]]) -> None:
        self.limit = limit
        self._recorded = recorded
        self._own: deque[float] = deque(maxlen=KEPT_DURATIONS)
        self._others: list[float] = []
        self._read_at = -math.inf
        self._reader: threading.Thread | None = None

    def add(self, seconds: float) -> None:
        """Add the duration, in seconds, of a task that is done."""
        self._own.append(seconds)

    def exceeded(self, seconds: float) -> Bound | None:
        """Return the limit if a run time of *seconds* exceeds the limit, else ``None``."""
        limit = self.limit
        if seconds <= limit.shortest_s:
            return None
        durations: Sequence[float] = self._own
        if limit.seconds is None and len(durations) < limit.tasks:
            self._start_reading()
            durations = max(durations, self._others, key=len)
        bound = limit.after(durations)
        return bound if seconds > bound.seconds else None

    def _start_reading(self) -> None:
        now = time.monotonic()
        is_reading = self._reader is not None and self._reader.is_alive()
        if is_reading or now < self._read_at or len(self._others) >= self.limit.tasks:
            return
        self._read_at = now + READ_AGAIN_S
        self._reader = threading.Thread(target=self._read, name="durations", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        try:
            self._others = list(islice(self._recorded(), SAMPLED_DURATIONS))
        except BaseException as error:  # noqa: BLE001  (the limit does not change)
            logger.warning("cannot read the durations of tasks from the ledger: %s", named(error))


# --- settings ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker; times are in seconds.

    Attributes:
        processes: number of worker processes.
        devices: devices to assign to the processes in turn; if empty, every process sees all
            devices.
        lease_s: duration of a lease; a lease is renewed after a third of this time.
        max_failures: number of permanent failures after which a task is given up.
        max_transient: number of transient failures after which a task is given up.
        max_worker_lost: number of attempts during which the whole worker disappeared, after which
            a task is given up.
        retry_s: delay before a failed task is retried for the first time; each further delay is
            twice as long.
        task_limit: limit of the time from the start of a task's first operator to the end of its
            last operator.
        until_complete: whether to wait for tasks that other workers have leased.
        limits: limits of time, tasks and money.
        grace_s: time in which tasks that have begun may finish after a request to stop.
        receive_wait_s: longest time that one request to the queue waits for messages.
        disk_wait_s: length of the first pause after the disk was full.
        records_attempts: whether the ledger must record each attempt before the attempt begins.
            True with ``--device-class any``, because workers may then compute different bytes.
        watches_notices: whether to poll metadata servers of clouds for preemption notices.
        ahead: number of tasks that each stage of the pipeline prefetches; ``None`` for the default.
    """

    processes: int = 1
    devices: Sequence[str | None] = ()
    lease_s: float = 120.0
    max_failures: int = 3
    max_transient: int = 20
    max_worker_lost: int = 20
    retry_s: float = 5.0
    task_limit: TaskLimit = field(default_factory=TaskLimit)
    until_complete: bool = True
    limits: WorkerLimits = field(default_factory=WorkerLimits)
    grace_s: float = 90.0
    receive_wait_s: float = 10.0
    disk_wait_s: float = 15.0
    records_attempts: bool = False
    watches_notices: bool = True
    ahead: int | None = None


def gpu_numbers() -> tuple[str, ...]:
    """Return the numbers of the GPUs that nvidia-smi lists; empty if nvidia-smi cannot be run.

    The numbers are not read with a GPU library, because the library would reserve memory on a GPU.
    """
    try:
        listed = subprocess.run(
            ["nvidia-smi", "--query-gpu=index", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
            check=True,
        ).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(line.strip() for line in listed.splitlines() if is_digits(line.strip()))

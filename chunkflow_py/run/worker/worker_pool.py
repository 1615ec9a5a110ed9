"""The pool of worker processes: distributes tasks, restarts processes, and blames fatal tasks.

```
jobs -> ready ---------> process 0: a b c     as many tasks as the pipeline accepts
        alone ---------> process 1: d         one task at a time
```

The queue ``ready`` contains tasks that can run in any process. The queue ``alone`` contains tasks
that must not share a process with other tasks. If a worker process dies with exactly one task
running, that task is blamed: the failure counts against the task. If several tasks were running, no
task is blamed, and each of them is retried alone.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.core.interrupts import STOP
from chunkflow_py.errors import ChunkflowError, OptionError
from chunkflow_py.run.worker.failure_cause import cause_of_exit, memory_kills
from chunkflow_py.run.worker.failure_policy import LONGEST_TRACEBACK, Fault
from chunkflow_py.run.worker.worker_process import (
    MOST_TASKS,
    STACKS_SIGNAL,
    PipelineBroken,
    ProcessOptions,
    ProgressBoard,
    TaskProgress,
    process_main,
    send,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from chunkflow_py.run.ledger.ledger_record import FailureCause
    from chunkflow_py.run.worker.task_receiver import Job
    from chunkflow_py.run.worker.worker_limits import TaskDurations, WorkerSettings
    from chunkflow_py.run.worker.worker_process import MakePipeline, PipelineReady, TaskEnded

logger = logging.getLogger(__name__)

QUEUED_S = 0.05  # seconds of work queued in a process, so that it never waits for the supervisor
RESERVE_S = 0.25  # seconds of work queued in the supervisor
MOST_RESERVED = 1024
OVERHEAD_S = 0.0003  # run time of a task in a process outside its operators
WATCH_S = 0.25
STARTS = 3  # failed starts in a row that end the worker
TRANSIENT_STARTS = 20  # the same for transient failures
RESTART_S, LONGEST_RESTART_S = 0.5, 30.0
STACKS_S = 0.3  # time for a process to print its stacks before it is killed
END_S = 10.0

_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGABRT: "aborted",
}


@dataclass(frozen=True)
class ProcessStart:
    """The program and environment of all worker processes of a supervisor.

    Attributes:
        make_pipeline: picklable function that takes the `TaskFeed` of a process, and makes and
            checks the pipeline of the step.
        environment: environment variables to set before the modules of *make_pipeline* are
            imported.
        threads: number of threads of compute libraries; ``None`` for the number that environment
            variables such as ``OMP_NUM_THREADS`` set. The number can change the bytes of a result,
            so it does not depend on the number of processes.
    """

    make_pipeline: MakePipeline
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None


# --- snapshots -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskSnapshot:
    """A task that a worker process has begun.

    Attributes:
        box: box of the task, as a string.
        operator: label of the operator that works on the task; empty between two operators.
        stage: stage of the operator: read, compute or write.
        seconds: time since the first operator began to work on the task.
        done: number of parts of the task, such as patches, that the operator has finished.
        total: number of all parts of the task; 0 if the operator does not report parts.
    """

    box: str
    operator: str
    stage: str
    seconds: float
    done: int = 0
    total: int = 0


@dataclass(frozen=True, slots=True)
class ProcessSnapshot:
    """The state of a worker process at one instant.

    Attributes:
        number: position of the process in its pool.
        pid: process id.
        device: the only device that the process sees; ``None`` for all devices.
        seconds: time since the process became ready for tasks; ``None`` if it is not ready yet.
        network_seconds: total run time of the network; ``None`` if the pipeline has no network.
        read_bytes: number of bytes that loaders have fetched from storage, before decompression.
            Loaders that do not count bytes are left out.
        memory_bytes: resident host memory; 0 if the system does not report it.
        tasks: tasks that the process has begun, the oldest first.
    """

    number: int
    pid: int
    device: str | None
    seconds: float | None
    network_seconds: float | None
    read_bytes: int
    memory_bytes: int
    tasks: tuple[TaskSnapshot, ...]


# --- the pool ------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class _Seat:
    """One position in the pool; if its process dies, a new process replaces it.

    Attributes:
        number: number of the position, and of each process at this position.
        device: the only device that processes at this position see; ``None`` for all devices.
        process: the current process.
        restart_at: time at which to start the next process.
        deaths: number of consecutive deaths of processes at this position, without an ended task
            in between.
        failed_starts: number of consecutive failed starts.
        runs_alone: whether the process runs tasks that must run alone, one at a time.
        kill_at: time at which to kill the process because of *verdict*.
        verdict: slot of the task to blame, and the reason. The slot is a position on the
            `ProgressBoard`; ``None`` blames no task.
        times_gone: number of checks at which the process was dead, but its pipe was still open.
        idle_since: time since which the process has had tasks without running any of them.
    """

    number: int
    device: str | None
    process: WorkerProcess | None = None
    restart_at: float = 0.0
    deaths: int = 0
    failed_starts: int = 0
    runs_alone: bool = False
    kill_at: float | None = None
    verdict: tuple[int | None, str] | None = None
    times_gone: int = 0
    idle_since: float | None = None

    @property
    def working(self) -> WorkerProcess | None:
        process = self.process
        return process if process and process.window and not process.is_ending else None


def held_tasks(windows: Sequence[int], mean_s: float | None) -> int:
    """Return how many unfinished tasks a worker should have so that no process has to wait.

    Args:
        windows: for each process, the number of tasks that its pipeline accepts at the same time.
        mean_s: mean duration of a task in seconds; ``None`` if it is not known.
    """
    held = sum(_process_tasks(window, mean_s) for window in windows)
    if not windows or mean_s is None:
        return held
    return held + min(MOST_RESERVED, int(RESERVE_S / mean_s * len(windows)))


def _process_tasks(window: int, mean_s: float | None) -> int:
    return min(MOST_TASKS, window + (0 if mean_s is None else int(QUEUED_S / mean_s)))


class WorkerPool:
    """The worker processes of a supervisor; to be used only in the supervisor's thread.

    Args:
        start: program and environment of the processes.
        settings: settings of the worker, with the number of processes and their devices.
        post: function that is called in other threads with a process and the list of its messages.
            When the pipe of the process is closed, ``None`` replaces the list.
        on_blamed: function that is called when a task has killed its process or exceeded its time
            limit. Its arguments are the task, the fault, and the run time of the task in seconds.
        durations: durations of done tasks, and the time limit that is derived from them.

    Attributes:
        mean_s, longest_s: mean and longest duration of the tasks so far, in seconds.
    """

    def __init__(
        self,
        start: ProcessStart,
        settings: WorkerSettings,
        post: Callable[[WorkerProcess, Sequence[Any] | None], None],
        on_blamed: Callable[[Job, Fault, float | None], None],
        durations: TaskDurations,
    ) -> None:
        self._start = start
        self._durations = durations
        self._post = post
        self._on_blamed = on_blamed
        devices = list(settings.devices) or [None]
        self._seats = [
            _Seat(number, devices[number % len(devices)]) for number in range(settings.processes)
        ]
        self._ready: deque[Job] = deque()
        self._alone: deque[Job] = deque()
        self._watch_at = 0.0
        self.mean_s: float | None = None
        self.longest_s = 0.0

    def _processes(self) -> list[WorkerProcess]:
        return [seat.process for seat in self._seats if seat.process is not None]

    # --- tasks -----------------------------------------------------------------------------------

    def add(self, jobs: Iterable[Job]) -> None:
        """Add tasks, which `feed` will send to processes."""
        self._ready.extend(jobs)

    def run_alone(self, job: Job) -> None:
        """Run a task in a process that runs no other task at the same time."""
        self._alone.append(job)
        if not any(seat.runs_alone for seat in self._seats):
            self._seats[job.number % len(self._seats)].runs_alone = True

    @property
    def target(self) -> int:
        """Number of tasks that the pool should have so that no process has to wait for a task."""
        windows = [seat.working.window for seat in self._seats if seat.working]
        return held_tasks(windows, self.mean_s)

    def ready_s(self, now: float) -> float:
        """Return the seconds since the first process became ready; 0 if no process is ready."""
        processes = [seat.working for seat in self._seats]
        since = [each.ready_at for each in processes if each and each.ready_at is not None]
        return now - min(since, default=now)

    def _window(self, process: WorkerProcess) -> int:
        return _process_tasks(process.window, self.mean_s)

    def feed(self) -> None:
        """Send tasks to the processes that can take more of them."""
        if not self._ready and not self._alone:
            return
        open_processes = []
        for seat in self._seats:
            process = seat.working
            if process is None:
                continue
            if seat.runs_alone and not process.jobs:
                job = self._next_alone()
                if job is not None:
                    process.give([job])
                seat.runs_alone = job is not None
            if not seat.runs_alone:
                open_processes.append(process)
        if not open_processes:
            return
        held = sum(len(process.jobs) for process in open_processes)
        level = -(-(held + len(self._ready)) // len(open_processes))
        for process in open_processes:
            room = min(level, self._window(process)) - len(process.jobs)
            jobs = [self._ready.popleft() for _ in range(min(room, len(self._ready)))]
            jobs = [job for job in jobs if not job.is_given_up]
            if jobs:
                process.give(jobs)

    def _next_alone(self) -> Job | None:
        while self._alone:
            job = self._alone.popleft()
            if not job.is_given_up:
                return job
        return None

    def ended(self, process: WorkerProcess, ended: TaskEnded) -> Job | None:
        """Remove an ended task from its process; return its job, ``None`` if it was given up."""
        job = process.take(ended.slot)
        if job is None or job.is_given_up:
            return None
        if ended.state != "lost":
            if ended.state == "done":
                self._durations.add(sum(ended.seconds.values()))
            seconds = sum(ended.seconds.values()) + OVERHEAD_S
            self.longest_s = max(self.longest_s, seconds)
            mean = seconds if self.mean_s is None else self.mean_s
            self.mean_s = mean + 0.05 * (seconds - mean)
            self._seats[process.number].deaths = 0
        return job

    def snapshots(self) -> tuple[ProcessSnapshot, ...]:
        """Return the current state of each process."""
        return tuple(process.snapshot() for process in self._processes())

    def given_up(self) -> set[int]:
        """Return the numbers of the tasks that were given up but are still in a process."""
        jobs = (job for process in self._processes() for job in process.jobs.values())
        return {job.number for job in jobs if job.is_given_up}

    def withdraw_untouched(self) -> list[Job]:
        """Withdraw and return the tasks that no process has begun."""
        jobs = [*self._ready, *self._alone]
        self._ready.clear()
        self._alone.clear()
        for process in self._processes():
            untouched = [
                (slot, job)
                for slot, job in process.jobs.items()
                if process.is_untouched(slot) and not job.is_given_up
            ]
            if untouched:
                process.cancel((slot, job.number) for slot, job in untouched)
                jobs += [job for _, job in untouched]
        return [job for job in jobs if not job.is_given_up]

    def withdraw_loaded(self) -> list[Job]:
        """Withdraw and return the begun tasks that have not reached the compute stage."""
        jobs: list[Job] = []
        for process in self._processes():
            is_computing = False
            loaded: list[tuple[int, Job]] = []
            for slot, stage in process.stages_of_begun():  # tasks pass the stages in this order
                job = process.jobs[slot]
                if (stage == "read" or (not stage and is_computing)) and not job.is_given_up:
                    loaded.append((slot, job))
                is_computing |= stage == "compute"
            if loaded:
                process.cancel((slot, job.number) for slot, job in loaded)
                jobs += [job for _, job in loaded]
        return jobs

    def cancel(self, job: Job) -> None:
        """Stop a task before its next operator."""
        if job.is_cancelled:
            return
        job.is_cancelled = True
        for process, slot in self._holders(job):
            process.cancel([(slot, job.number)])

    def abandon(self, job: Job, why: str) -> None:
        """Kill the process that has a task, and retry the other tasks of the process.

        Args:
            job: the task.
            why: the reason, for messages.
        """
        for process, _ in self._holders(job):
            seat = self._seats[process.number]
            if seat.kill_at is None:
                seat.kill_at = time.monotonic()
                seat.verdict = (None, why)

    def holds(self, job: Job) -> bool:
        """Return whether a process still has the task of *job*."""
        return any(True for _ in self._holders(job))

    def _holders(self, job: Job) -> Iterator[tuple[WorkerProcess, int]]:
        for process in self._processes():
            for slot, each in process.jobs.items():
                if each is job:
                    yield process, slot
                    return

    # --- processes -------------------------------------------------------------------------------

    def tick(self, now: float) -> None:
        """Start missing processes, and kill processes in which a time limit is exceeded.

        Raises:
            ChunkflowError: processes have failed to start, or died, several times in a row.
        """
        is_due = now >= self._watch_at
        if is_due:
            self._watch_at = now + WATCH_S
        for seat in self._seats:
            if seat.process is None:
                if now >= seat.restart_at:
                    self._begin(seat, now)
                continue
            if seat.kill_at is not None and now >= seat.kill_at:
                if now >= seat.kill_at + END_S:  # blocked in the kernel, e.g. by a file server
                    self.exited(seat.process)
                    continue
                seat.process.kill()
            if is_due:
                self._watch(seat, seat.process, now)

    def _begin(self, seat: _Seat, now: float) -> None:
        try:
            seat.process = WorkerProcess(seat.number, self._start, seat.device, self._post)
        except OSError as error:  # too many processes, or not enough memory
            seat.restart_at = now + RESTART_S
            self._start_failed(seat, None, f"the operating system cannot start a process: {error}")

    def _watch(self, seat: _Seat, process: WorkerProcess, now: float) -> None:
        if not process.poll():
            seat.times_gone += 1
            if seat.times_gone > 4:  # one of its child processes keeps the pipe open
                self.exited(process)
            return
        if seat.kill_at is not None:
            return
        verdict = self._hanging(seat, process, now)
        if verdict is not None:
            seat.verdict = verdict
            seat.kill_at = now + STACKS_S
            if process.window:  # else it may not have installed the signal handler yet
                process.dump_stacks()

    def _hanging(
        self, seat: _Seat, process: WorkerProcess, now: float
    ) -> tuple[int | None, str] | None:
        """Return the slot of the task to blame for an exceeded time limit, and the reason.

        The slot is ``None`` if the process is to blame. Return ``None`` if no limit is exceeded.
        """
        if not process.window:
            limit_s = self._durations.limit.start_s
            if now - process.began <= limit_s:
                return None
            return None, f"the process was not ready for a task within {limit_s:g} s"
        begun = [(at.seconds, slot) for slot in process.begun() if (at := process.progress(slot))]
        if not process.jobs or begun:
            seat.idle_since = None
        elif seat.idle_since is None:
            seat.idle_since = now
        # The task that began first keeps the others waiting.
        taken_s, slot = max(begun, default=(now - (seat.idle_since or now), None))
        bound = self._durations.exceeded(taken_s)
        if bound is None:
            return None
        if slot is None:
            return None, (
                f"the process has had tasks for {taken_s:.0f} s, but has not begun any of them: "
                f"{bound.why}"
            )
        return slot, f"cut off after {taken_s:.0f} s in {process.place(slot)}: {bound.why}"

    def ready(self, process: WorkerProcess, ready: PipelineReady) -> None:
        """Record that a process is ready for tasks."""
        process.ready(ready)
        self._seats[process.number].failed_starts = 0

    def exited(self, process: WorkerProcess) -> None:
        """Determine why a process has ended, blame a task at fault, and retry the other tasks.

        Raises:
            OptionError: the command line is wrong.
            ChunkflowError: processes have failed to start, or died, several times in a row.
        """
        seat = self._seats[process.number]
        if seat.process is not process:
            return
        process.reap()
        end = process.how_ended()
        cause = end.reason
        jobs = {slot: job for slot, job in process.jobs.items() if not job.is_given_up}
        begun = [slot for slot in process.begun() if slot in jobs]
        verdict = seat.verdict
        was_ready = process.window > 0
        was_asked_to_end = process.is_ending
        places = {slot: process.place(slot) for slot in begun}
        taken = {slot: at.seconds for slot in begun if (at := process.progress(slot))}
        seat.process = None
        seat.kill_at = None
        seat.verdict = None
        seat.times_gone = 0
        seat.idle_since = None
        process.jobs.clear()
        process.close()
        if was_asked_to_end:
            return
        if verdict is not None:
            blamed, why = verdict
            logger.warning("worker process %d was killed: %s", seat.number, why)
        else:
            blamed = begun[0] if len(begun) == 1 else None
            why = cause
            if blamed is not None:
                why = f"the process was {cause}" if cause.startswith("killed") else cause
                why = f"{why} in {places[blamed]}"
            logger.warning("worker process %d has died: %s", seat.number, cause)
            seat.deaths += not begun  # if tasks had begun, one of them is to blame
        pause = RESTART_S * 2 ** min(seat.deaths, 10) if seat.deaths > 1 else 0.0
        seat.restart_at = time.monotonic() + min(LONGEST_RESTART_S, pause)
        suspects = [] if verdict or blamed is not None else begun
        self._ready.extendleft(
            job for slot, job in jobs.items() if slot != blamed and slot not in suspects
        )
        for slot in suspects:
            self._alone.append(jobs[slot])
            seat.runs_alone = True
        if blamed is not None and blamed in jobs:
            fault = Fault("permanent", why, end.output, cause="hang" if verdict else end.cause)
            self._on_blamed(jobs[blamed], fault, taken.get(blamed))
        if not was_ready:
            self._start_failed(seat, process.broken, verdict[1] if verdict else cause)
        elif seat.deaths > TRANSIENT_STARTS:
            msg = (
                f"worker process {seat.number} has died {seat.deaths} times in a row, the last "
                f"time: {cause}"
            )
            raise ChunkflowError(msg)

    def _start_failed(self, seat: _Seat, broken: PipelineBroken | None, cause: str) -> None:
        seat.failed_starts += 1
        if broken is not None and broken.is_usage:
            raise OptionError(cause)
        is_transient = broken is not None and broken.fault.kind == "transient"
        if seat.failed_starts >= (TRANSIENT_STARTS if is_transient else STARTS):
            msg = (
                f"worker process {seat.number} has failed to start {seat.failed_starts} times in a "
                f"row: {cause}"
            )
            raise ChunkflowError(msg)

    def end(self) -> None:
        """Ask all processes to end; kill the processes that still run after `END_S` seconds."""
        processes = self._processes()
        for process in processes:
            if process.window:
                process.end()
            else:  # it is still starting
                process.kill()
        deadline = time.monotonic() + END_S
        for process in processes:
            process.process.join(max(0.0, deadline - time.monotonic()))
        self.kill()

    def kill(self) -> None:
        """Kill all processes immediately."""
        processes = self._processes()
        for process in processes:
            process.is_ending = True
            process.kill()
        for process in processes:
            process.reap()
            process.close()
            self._seats[process.number].process = None


# --- one process ---------------------------------------------------------------------------------


class WorkerProcess:
    """The supervisor's handle of a worker process, and the tasks that were sent to the process.

    Args:
        number: position of the process in the pool.
        start: program and environment of the process.
        device: the only device that the process sees; ``None`` for all devices.
        post: function that is called in another thread. Its arguments are the process and a list
            of messages from the process. When the pipe of the process is closed, ``None`` replaces
            the list.

    Attributes:
        jobs: jobs of the tasks in the process, with the slot on the progress board as key.
        operators: labels of the pipeline's operators; empty until the process is ready.
        stages: stage of each operator: read, compute or write.
        began: time at which the process was started, in seconds of the monotonic clock.
        ready_at: time at which the process became ready for tasks, in seconds of the monotonic
            clock; ``None`` until then.
        device: the only device that the process sees; ``None`` for all devices.
        window: number of tasks that the pipeline accepts at the same time; 0 until the process is
            ready.
        broken: why the pipeline cannot continue, if the process has reported this.
        is_ending: whether the process was asked to end.
    """

    def __init__(
        self,
        number: int,
        start: ProcessStart,
        device: str | None,
        post: Callable[[WorkerProcess, Sequence[object] | None], None],
    ) -> None:
        """Start the process.

        On Linux, the kernel kills the process when the calling thread ends.
        """
        context = multiprocessing.get_context("spawn")
        self.number = number
        self.jobs: dict[int, Job] = {}
        self.operators: tuple[str, ...] = ()
        self.stages: tuple[str, ...] = ()
        self.began = time.monotonic()
        self.ready_at: float | None = None
        self.device = device
        self.window = 0
        self.broken: PipelineBroken | None = None
        self.is_ending = False
        self._free = list(range(MOST_TASKS))
        self._board = ProgressBoard(context)
        self._crash_file = _CrashFile()
        self._memory_kills = memory_kills()
        self._peak_bytes = 0
        self._memory_bytes = 0
        self._post = post
        self._connection, theirs = context.Pipe()
        options = ProcessOptions(
            self._board,
            self._crash_file,
            os.getpid(),
            device,
            start.threads,
            dict(start.environment),
            logging.DEBUG if logger.isEnabledFor(logging.DEBUG) else logging.WARNING,
        )
        pickled = pickle.dumps(start.make_pipeline, protocol=5)
        self.process = context.Process(
            target=process_main, args=(theirs, pickled, options), name=f"process-{number}"
        )
        # Block stop signals until the new process ignores them, and in the resource tracker.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
        try:
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # the call above unblocks some
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self._reader = threading.Thread(target=self._read, name=f"process-{number}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                messages = pickle.loads(self._connection.recv_bytes())  # noqa: S301 our own process
            except Exception as error:  # noqa: BLE001  (what it sends may be damaged)
                if not isinstance(error, (EOFError, OSError)):
                    logger.warning(
                        "worker process %d sent a message that cannot be read: %s",
                        self.number,
                        error,
                    )
                self._post(self, None)
                return
            self._post(self, messages)

    # --- tasks -----------------------------------------------------------------------------------

    def give(self, jobs: Iterable[Job]) -> None:
        """Send tasks to the process, which can have at most `MOST_TASKS` tasks at a time."""
        rows = []
        for job in jobs:
            slot = self._free.pop()
            self._board.clear(slot)
            self.jobs[slot] = job
            rows.append((slot, job.number, job.box))
        send(self._connection, ("tasks", rows))

    def take(self, slot: int) -> Job | None:
        """Free a slot of the progress board; return its job, or ``None`` if the slot was free."""
        job = self.jobs.pop(slot, None)
        if job is not None:
            self._free.append(slot)
        return job

    def cancel(self, tasks: Iterable[tuple[int, int]]) -> None:
        """Stop tasks before their next operator; each task is given as (slot, number in the plan).

        The tasks stay in `jobs` until they have ended.
        """
        send(self._connection, ("cancel", list(tasks)))

    def progress(self, slot: int) -> TaskProgress | None:
        """Return the progress of the task in a slot; ``None`` if it has not begun or has ended."""
        return self._board.progress(slot)

    def is_untouched(self, slot: int) -> bool:
        """Return whether the task in a slot has not begun."""
        return self._board.is_untouched(slot)

    def begun(self) -> list[int]:
        """Return the slots of the tasks that have begun but not ended."""
        return [slot for slot in self.jobs if self._board.progress(slot) is not None]

    def stages_of_begun(self) -> list[tuple[int, str]]:
        """Return the slot of each begun task with its stage, the oldest task first.

        The stage is read, compute or write, or empty between two operators.
        """
        begun = [(slot, at) for slot in self.jobs if (at := self._board.progress(slot)) is not None]
        begun.sort(key=lambda each: -each[1].seconds)
        return [(slot, self._stage_of(at)) for slot, at in begun]

    def _stage_of(self, progress: TaskProgress) -> str:
        operator = progress.operator
        if operator is None or operator >= len(self.stages):
            return ""
        return self.stages[operator]

    def place(self, slot: int) -> str:
        """Return a phrase that names the operator that works on a task, for messages."""
        progress = self.progress(slot)
        if progress is None or progress.operator is None:
            return "between two operators"
        if progress.operator >= len(self.operators):
            return f"operator {progress.operator + 1}"
        return f"operator {self.operators[progress.operator]}"

    def snapshot(self) -> ProcessSnapshot:
        """Return the current state of the process."""
        tasks = []
        for slot, job in self.jobs.items():
            progress = self._board.progress(slot)
            if progress is None:
                continue
            operator, stage = "", ""
            if progress.operator is not None and progress.operator < len(self.stages):
                operator = self.operators[progress.operator]
                stage = self.stages[progress.operator]
            parts = progress.done, progress.total
            tasks.append(TaskSnapshot(job.box, operator, stage, progress.seconds, *parts))
        return ProcessSnapshot(
            self.number,
            self.process.pid or 0,
            self.device,
            None if self.ready_at is None else time.monotonic() - self.ready_at,
            self._board.network_seconds,
            self._board.read_bytes,
            self._memory_bytes,
            tuple(sorted(tasks, key=lambda task: -task.seconds)),
        )

    # --- life cycle ------------------------------------------------------------------------------

    def ready(self, message: PipelineReady) -> None:
        """Record that the process is ready for tasks."""
        self.operators = message.operators
        self.stages = message.stages
        self.window = message.window
        self.ready_at = time.monotonic()
        self.poll()

    def poll(self) -> bool:
        """Update the memory use of the process; return whether the process is alive."""
        with suppress(OSError, ValueError, IndexError):  # no /proc, or the process has ended
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            peak, self._memory_bytes = (
                1024 * int(status.partition(f"{name}:")[2].split(maxsplit=1)[0])
                for name in ("VmHWM", "VmRSS")
            )
            self._peak_bytes = max(self._peak_bytes, peak)
        return self.process.is_alive()

    def end(self) -> None:
        """Ask the process to end after the tasks that were sent to it."""
        self.is_ending = True
        send(self._connection, ("end", None))

    def dump_stacks(self) -> None:
        """Make the process print the stacks of its threads; the process continues."""
        with suppress(OSError, TypeError):  # it has ended
            os.kill(self.process.pid, STACKS_SIGNAL)  # type: ignore[arg-type]

    def kill(self) -> None:
        """Kill the process, without waiting until its pipe is closed."""
        self.process.kill()

    def reap(self) -> None:
        """Wait until the process has ended, and close this end of the pipe.

        `how_ended` may be called afterwards. A process cannot be killed while it is blocked in the
        kernel, for example by a file server that does not answer. Such a process is left running.
        """
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(5)
        # The reader may be in a read. A reader that waits for an abandoned process ends with us.
        if self._reader is not threading.current_thread():
            self._reader.join(1)
        self._connection.close()

    def how_ended(self) -> ProcessEnd:
        """Return how and why a process that was reaped has ended."""
        output = self._crash_file.text()
        if self.broken is not None:
            fault = self.broken.fault
            return ProcessEnd(fault.reason, fault.traceback or output, fault.cause)
        code = self.process.exitcode
        if code is None:
            reason = "cannot be killed: it is blocked in the kernel, for example by a file server"
            return ProcessEnd(reason, output, "hang")
        before, after = self._memory_kills, memory_kills()
        is_counted = before is not None and after is not None
        cause = cause_of_exit(code, is_memory_kill=is_counted and after != before)
        if code >= 0:
            return ProcessEnd(f"ended with exit code {code}", output, cause)
        number = signal.Signals(-code)
        if number == signal.SIGKILL:
            killer = "by a user or a program, because the system reports no lack of memory"
            if cause == "host-memory":
                killer = "by the system for lack of memory"
            elif not is_counted:
                killer = "probably for lack of memory, or by a user"
            peak = f"; peak memory {describe_bytes(self._peak_bytes)}" if self._peak_bytes else ""
            return ProcessEnd(f"killed by SIGKILL, {killer}{peak}", output, cause)
        meaning = f" ({_SIGNALS[number]})" if number in _SIGNALS else ""
        return ProcessEnd(f"killed by {number.name}{meaning}", output, cause)

    def close(self) -> None:
        """Close the files that belong to the process."""
        self._crash_file.file.close()
        with suppress(ValueError):  # it cannot be killed
            self.process.close()


class ProcessEnd(NamedTuple):
    """The end of a worker process.

    Attributes:
        reason: how the process has ended, as a phrase.
        output: what Python printed when the process crashed.
        cause: cause of the end, for records.
    """

    reason: str
    output: str
    cause: FailureCause


class _CrashFile:
    """An unnamed temporary file for the stacks that Python prints when a process crashes."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 closed with the process

    def __reduce__(self) -> tuple[Any, ...]:
        return _descriptor, (DupFd(self.file.fileno()),)

    def text(self) -> str:
        self.file.seek(0)
        return self.file.read()[-LONGEST_TRACEBACK:].decode(errors="replace")


def _descriptor(handed: Any) -> int:
    descriptor: int = handed.detach()
    return descriptor

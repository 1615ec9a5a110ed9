"""Run tasks in a Dask worker, whose threads share one pipeline of the step.

```
thread 1: perform(number) --+-> TaskFeed -> pipeline, in its own thread -> outcome -> ledger
thread 2: perform(number) --'               (one network for all threads of the process)
```

A worker with one thread has one task at a time in its pipeline. With three threads, one task is
read while the network works on a second task and a third task is written.
"""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
import traceback
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

from chunkflow_py.core.failpoints import reached
from chunkflow_py.core.stack_samples import protect_stack_samples
from chunkflow_py.core.temporary_folders import end_process
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.pipeline import Listener
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.worker.failure_policy import Fault, count_failure, fault_of
from chunkflow_py.run.worker.worker import check_version, pipeline_source
from chunkflow_py.run.worker.worker_limits import Bound, TaskDurations, TaskLimit
from chunkflow_py.run.worker.worker_process import (
    THREAD_VARIABLES,
    PatchCounter,
    ProcessLease,
    TaskEnded,
    TaskFeed,
    profile_of,
    task_ended,
)
from chunkflow_py.run.worker_records import WorkerRegistration, WorkerStart
from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.run.worker.failure_policy import AttemptLimits
    from chunkflow_py.run.worker.worker import MakeSourcedPipeline
    from chunkflow_py.run.worker_records import WorkerEnd

PACKAGE = "chunkflow_py"
SAME_VERSIONS = ("python", "dask", "distributed")  # packages whose versions must be equal
WATCH_S = 0.5  # time between two checks of a task's time limit
END_S = 1.0  # time to report why a process exits; its nanny then restarts it
RETRY_S = 2.0  # delay of a task whose process was about to exit


@dataclass(frozen=True)
class WorkOrder:
    """The description of a step for Dask workers, which is sent with every task.

    Attributes:
        run: address of the run, with the SHA-256 that its spec must have.
        stage: name of the step.
        make_pipeline: picklable function that takes the `PipelineSource` of the step and a source
            of tasks, and returns the pipeline of the step.
        limits: number of failures after which a task is given up.
        task_limit: limit of the run time of a task.
        allow_code: whether the pipeline may run code that is not part of this package.
        threads: number of threads of compute libraries; ``None`` for the number that the
            environment variables set.
        ahead: number of tasks that each stage of the pipeline prefetches; ``None`` for the default.
        versions: names and versions of packages of the client; workers must have equal versions.
        same_version: whether to refuse a run that another version of chunkflow_py has submitted.
    """

    run: str
    stage: str
    make_pipeline: MakeSourcedPipeline
    limits: AttemptLimits
    task_limit: TaskLimit = field(default_factory=TaskLimit)
    allow_code: bool = True
    threads: int | None = None
    ahead: int | None = None
    versions: tuple[tuple[str, str], ...] = ()
    same_version: bool = False


class TaskNotEnded(NamedTuple):
    """The reason why a task has not succeeded, as reported to the client.

    Attributes:
        state: ``failed``: the failure was counted, and the task is to be retried. ``dead``: the
            failure was counted, and the task was given up. ``shortage``: the failure was not
            counted, because the machine may be at fault. ``pipeline-broken``: the pipeline could
            not be created, or could not continue. ``refused``: the command line is wrong, or this
            machine is not suitable. ``worker-ends``: the process was about to exit.
        fault: the failure.
        worker: name of the worker process.
        delay_s: seconds before a retry.
        is_alone: whether no other task was in the process at the time of the failure.
    """

    state: Literal["failed", "dead", "shortage", "pipeline-broken", "refused", "worker-ends"]
    fault: Fault
    worker: str
    delay_s: float = 0.0
    is_alone: bool = True


class NotEndedError(Exception):
    """A task has not ended, or was given up.

    This exception brings a `TaskNotEnded` to the client. Dask stores exceptions in the scheduler,
    where they are safe. Dask stores results in the worker, so a result would be lost if the worker
    died before the client fetched the result.
    """

    def __init__(self, task: TaskNotEnded) -> None:
        super().__init__(task)
        self.task = task

    def __str__(self) -> str:
        return self.task.fault.reason

    def __repr__(self) -> str:
        return f"NotEndedError({self})"


def perform(order: WorkOrder, number: int) -> None:
    """Run one task of a step, and record its outcome in the ledger.

    Raises:
        NotEndedError: the task has not ended, or was given up.
        ChunkflowError: the ledger cannot be reached.
    """
    while True:
        pipeline = _pipeline_for(order)
        attempt = pipeline.registration.attempts()
        if pipeline.ledger.find([number]):
            return  # another client has completed it
        if pipeline.records_attempts:
            pipeline.ledger.begin(number, attempt, pipeline.profile)
        with suppress(_PipelineEndedError):  # make the next pipeline
            ended, is_alone = pipeline.perform(number)
            break
    if ended.fault is not None:
        task = _count(order, pipeline, attempt, ended, ended.fault, is_alone=is_alone)
        raise NotEndedError(task)
    record = Record(
        number,
        pipeline.plan.text(number),
        ended.state,  # type: ignore[arg-type]  # done or skipped
        pipeline.spec,
        attempt,
        process_name(),
        pipeline.profile,
        ended.seconds,
        tuple(Stored(*each) for each in ended.written),
        ended.reason,
        missing_blocks=ended.missing_blocks,
        patches=ended.patches,
    )
    reached("written-not-recorded")
    is_first = pipeline.ledger.record([record])[0]
    if pipeline.records_attempts and not is_first:
        pipeline.ledger.finish(record)


def _count(
    order: WorkOrder,
    pipeline: _SharedPipeline,
    attempt: str,
    ended: TaskEnded,
    fault: Fault,
    *,
    is_alone: bool,
) -> TaskNotEnded:
    name, limits = process_name(), order.limits
    if fault.kind == "resource":
        return TaskNotEnded("shortage", fault, name, limits.delay_s, is_alone)
    failure = FailedAttempt(
        ended.number,
        pipeline.plan.text(ended.number),
        attempt,
        name,
        fault.kind,
        fault.reason,
        fault.traceback,
        seconds=sum(ended.seconds.values()),
        cause=fault.cause,
    )
    record, delay_s = count_failure(pipeline.ledger, failure, limits, pipeline.spec)
    return TaskNotEnded("dead" if record else "failed", fault, name, delay_s, is_alone)


def process_name() -> str:
    """Return the name of this process for records: host name and process id."""
    return f"{socket.gethostname()}-{os.getpid()}"


# --- versions ------------------------------------------------------------------------------------


def versions_here() -> tuple[tuple[str, str], ...]:
    """Return a pair (name, version) for each package in `SAME_VERSIONS`."""
    python = ".".join(map(str, sys.version_info[:2]))
    return ("python", python), *((package, version(package)) for package in SAME_VERSIONS[1:])


def check_here(wanted: Iterable[tuple[str, str]]) -> None:
    """Check that this process has the same package versions as the client.

    Raises:
        OptionError: a version differs. The message contains both versions.
    """
    here = dict(versions_here())
    for package, theirs in wanted:
        if here[package] != theirs:
            msg = (
                f"this worker has {package} {here[package]}, but the client has version {theirs}; "
                f"install the same version of {package} on all machines"
            )
            raise OptionError(msg)


# --- pipelines of this process -------------------------------------------------------------------

_pipelines: dict[tuple[str, str], _SharedPipeline] = {}
_lock = threading.Lock()
_ending: list[str] = []  # reasons why this process is about to exit


def release(run: str) -> None:
    """Release the pipelines of a run when their tasks have ended; return without waiting."""
    # In a new thread: another thread that makes a pipeline may hold the lock, and this thread has
    # to handle messages of the worker.
    threading.Thread(target=_release, args=(run,), name="release", daemon=True).start()


def _release(run: str) -> None:
    with _lock:
        for key in [key for key in _pipelines if key[0] == run]:
            _pipelines.pop(key).end()


def _pipeline_for(order: WorkOrder) -> _SharedPipeline:
    """Return the pipeline of a step; create the pipeline if it does not exist.

    Raises:
        NotEndedError: the pipeline cannot be created.
    """
    key = order.run, order.stage
    protect_stack_samples()
    with _lock:
        _check_process()
        if key not in _pipelines or _pipelines[key].has_ended:
            for other in [each for each in _pipelines if each[0] == order.run]:
                _pipelines.pop(other).end()  # of an earlier step
            try:
                _pipelines[key] = _SharedPipeline(order)
            except BaseException as error:
                raise _broken(error) from error
        return _pipelines[key]


def _check_process() -> None:
    if _ending:
        fault = Fault("transient", f"the worker process is about to exit: {_ending[0]}")
        raise NotEndedError(TaskNotEnded("worker-ends", fault, process_name(), RETRY_S))


def _end_process(reason: str) -> None:
    """Schedule the exit of this process, whose state can no longer be trusted."""
    _ending.append(reason)
    timer = threading.Timer(END_S, end_process, (1,))
    timer.daemon = True
    timer.start()


def _broken(error: BaseException) -> NotEndedError:
    is_usage = isinstance(error, OptionError)
    state: Literal["refused", "pipeline-broken"] = "refused" if is_usage else "pipeline-broken"
    return NotEndedError(TaskNotEnded(state, fault_of(error), process_name()))


class _PipelineEndedError(Exception):
    """The pipeline accepts no more tasks."""


@dataclass(eq=False)
class _RunningTask:
    """A task in a pipeline.

    Attributes:
        ended: future of two values: the outcome of the task, and whether no other task was in the
            pipeline when this task ended.
        begun: time at which the first operator began, in seconds of the monotonic clock; ``None``
            until then.
        operator: label of the operator that works on the task; empty between two operators.
        thread: id of the thread in which the operator works.
    """

    ended: Future[tuple[TaskEnded, bool]] = field(default_factory=Future)
    begun: float | None = None
    operator: str = ""
    thread: int = 0


class _SharedPipeline(Listener):
    """The pipeline of a step in this process.

    Args:
        order: description of the step.

    Attributes:
        plan, ledger: plan and ledger of the step.
        spec: hash of the step.
        profile: compute profile (backend, device, threads and precision) as one line.
        records_attempts: whether the ledger must record each attempt before the attempt begins.
        has_ended: whether the pipeline no longer accepts tasks.
        registration: object that registers this process as a worker of the run.

    Raises:
        OptionError: the command line is wrong, or this machine would compute different bytes than
            the first worker of the run.
        ChunkflowError: an operator cannot start.
    """

    def __init__(self, order: WorkOrder) -> None:
        check_here(order.versions)
        if order.threads is not None:
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(order.threads)))
        self._home = RunDirectory.parse(order.run)
        stage = self._home.spec.step(order.stage)
        check_version(self._home, must_be_same=order.same_version)
        self.registration = WorkerRegistration(self._home.store, WorkerStart.here(process_name()))
        self._stage = stage
        self.plan = self._home.plan(stage.name)
        self.ledger = self._home.ledger(stage.name)
        self._durations = TaskDurations(order.task_limit, self.ledger.durations)
        self.spec = stage.hash
        self.records_attempts = stage.device_class == "any"
        self.profile = ""
        self.has_ended = False
        self._changing = threading.Lock()
        self._slots = itertools.count()
        self._tasks: dict[int, _RunningTask] = {}
        self._ready: Future[None] = Future()
        self._feed = TaskFeed(lambda _: None)
        source = pipeline_source(self._home, stage, allow_code=order.allow_code, ahead=order.ahead)
        self._pipeline = order.make_pipeline(source, self._feed)
        self._pipeline.listener = self
        self._patches = PatchCounter(self._pipeline.operators)
        threading.Thread(target=self._run, name=f"pipeline-{stage.name}", daemon=True).start()
        self._ready.result()
        self.registration.begin()

    def perform(self, number: int) -> tuple[TaskEnded, bool]:
        """Run a task, and return its outcome.

        The second value is whether no other task was in the pipeline when the task ended.

        Raises:
            NotEndedError: the pipeline or the process cannot continue.
        """
        with self._changing:
            if self.has_ended:
                raise _PipelineEndedError
            slot, task = next(self._slots), _RunningTask()
            self._tasks[slot] = task
            self._feed.add([(slot, number, self.plan.text(number))])
        try:
            while not wait([task.ended], WATCH_S).done:
                _check_process()
                taken_s = 0.0 if task.begun is None else monotonic() - task.begun
                if (bound := self._durations.exceeded(taken_s)) is not None:
                    fault = self._give_up(task, taken_s, bound)
                    seconds = {task.operator: taken_s}
                    return TaskEnded(slot, number, "failed", None, fault, seconds), True
            return task.ended.result()
        finally:
            with self._changing:
                self._tasks.pop(slot, None)

    def _give_up(self, task: _RunningTask, taken_s: float, bound: Bound) -> Fault:
        frame = sys._current_frames().get(task.thread)
        where = f" in operator {task.operator}" if task.operator else ""
        reason = f"cut off after {taken_s:.0f} s{where}: {bound.why}"
        _end_process(reason)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        return Fault("permanent", reason, stack, breaks_process=True, cause="hang")

    def end(self) -> None:
        """Accept no more tasks, but let the tasks in the pipeline finish."""
        with self._changing:
            self.has_ended = True
            self._feed.end()

    def _run(self) -> None:
        error: NotEndedError | _PipelineEndedError = _PipelineEndedError()
        why: WorkerEnd = "complete"
        try:
            for task in self._pipeline.run():
                self._ended(task)
                del task  # it may refer to chunks
        except BaseException as problem:  # noqa: BLE001  (sent to the client, which reports it)
            error = _broken(problem)
            why = error.task.fault.cause
            if not self._ready.done():
                self._ready.set_exception(problem)
        with self._changing:
            self.has_ended = True
            for waiting in self._tasks.values():
                if not waiting.ended.done():
                    waiting.ended.set_exception(error)
        self.registration.stopping(why, str(error) or "no task is left")

    def _ended(self, task: Task) -> None:
        if not isinstance(task.lease, ProcessLease):
            return
        self._feed.forget(task.lease)
        ended = self._patches.counted(task_ended(task, task.lease))
        if ended.state == "done":
            self._durations.add(sum(ended.seconds.values()))
        if ended.fault and ended.fault.breaks_process:
            _end_process(ended.fault.reason)
        with self._changing:
            running = self._tasks.get(task.lease.slot)
            if running is not None:
                running.ended.set_result((ended, len(self._tasks) == 1))

    # --- callbacks of the pipeline ---------------------------------------------------------------

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:  # noqa: ARG002
        """Check this process's compute profile before its first task begins."""
        profile = profile_of(operators)
        self._home.check_profile(self._stage.name, profile)
        self.registration.learned(device=(profile or {}).get("device", ""))
        self.profile = ", ".join(f"{key} {value}" for key, value in (profile or {}).items())
        self._ready.set_result(None)

    def operator_started(self, label: str, task: Task) -> None:
        running = self._running(task)
        if running is not None:
            running.operator, running.thread = label, threading.get_ident()
            running.begun = running.begun or monotonic()

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:  # noqa: ARG002
        running = self._running(task)
        if running is not None:
            running.operator, running.thread = "", 0

    def _running(self, task: Task) -> _RunningTask | None:
        return self._tasks.get(task.lease.slot) if isinstance(task.lease, ProcessLease) else None

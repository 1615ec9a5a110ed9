"""What runs in a worker process of Dask: the line of a stage, made once, shared by its threads.

```
perform(number) --> feed -> line, in a thread of its own -> outcome -> ledger
perform(number) -->         one network, however many threads the worker has
```

A worker with one thread has one task at a time in its line; with three, one task is read while the
network works on another and a third is written.
"""

from __future__ import annotations

import itertools
import os
import secrets
import socket
import sys
import threading
import traceback
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Literal, NamedTuple

from chunkflow_py.core.failpoints import reached
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.pipeline import Listener
from chunkflow_py.run.dask.dask_versions import check_here
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.worker.failure_policy import Fault, count_failure, fault_of
from chunkflow_py.run.worker.worker import line_of_stage
from chunkflow_py.run.worker.worker_limits import Bound, TaskDurations, TaskLimit
from chunkflow_py.run.worker.worker_process import (
    THREAD_VARIABLES,
    ProcessLease,
    TaskEnded,
    TaskFeed,
    profile_of,
    task_ended,
)
from chunkflow_py.store.protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.run.worker.failure_policy import AttemptLimits
    from chunkflow_py.run.worker.worker import MakeLine

LOOK_S = 0.5  # between two looks whether a task takes too long
END_S = 1.0  # for telling why a process ends itself; its nanny starts another one
AGAIN_S = 2.0  # after which a task comes again that it had


@dataclass(frozen=True)
class Order:
    """What a worker process needs to work on a stage; goes to it with every task.

    Attributes:
        run: address of the run, with the digest that pins its spec.
        stage: name of the stage.
        make_line: makes the line of the stage from its source; a function of a module.
        caps: failures that end a task.
        task_limit: for which a task may take.
        allow_code: whether the line may run code that is not part of this package.
        threads: for libraries that ask the environment; ``None``: as it is.
        ahead: how far lanes may work ahead.
        versions: of what must be the same here as with the client.
    """

    run: str
    stage: str
    make_line: MakeLine
    caps: AttemptLimits
    task_limit: TaskLimit = field(default_factory=TaskLimit)
    allow_code: bool = True
    threads: int | None = None
    ahead: int | None = None
    versions: tuple[tuple[str, str], ...] = ()


class Left(NamedTuple):
    """Why a task has not ended, as the client is told.

    Attributes:
        how: ``failed``: counted, and to be tried again; ``dead``: counted for the last time;
            ``short``: this machine's fault, not counted; ``broken``: the line could not be made, or
            go on; ``refused``: the line is wrong, or this machine is; ``again``: nobody's fault.
        fault: what went wrong.
        worker: name of the process.
        delay_s: after which it is to be tried again.
        is_alone: whether no other task was in the process.
    """

    how: Literal["failed", "dead", "short", "broken", "refused", "again"]
    fault: Fault
    worker: str
    delay_s: float = 0.0
    is_alone: bool = True


class NotEndedError(Exception):
    """A task has not ended, or was given up.

    Raised, since Dask keeps errors with its scheduler, and results with workers, which may die.
    """

    def __init__(self, left: Left) -> None:
        """Keep what the client needs to know."""
        super().__init__(left)
        self.left = left

    def __str__(self) -> str:
        """Return the reason."""
        return self.left.fault.reason

    def __repr__(self) -> str:
        """Return it as Dask's logs and dashboards show it."""
        return f"NotEndedError({self})"


def perform(order: Order, number: int) -> None:
    """Do one task of a stage, and record how it ended.

    Raises:
        NotEndedError: it has not ended, or only because it was given up.
        ChunkflowError: the ledger cannot be reached.
    """
    attempt = secrets.token_hex(8)
    while True:
        line = _line_for(order)
        if line.ledger.find([number]):
            return  # another client's
        if line.records_attempts:
            line.ledger.begin(number, attempt, line.profile)
        with suppress(_LineEndedError):  # then the next one is made
            ended, is_alone = line.perform(number)
            break
    if ended.fault is not None:
        raise NotEndedError(_left(order, line, attempt, ended, ended.fault, is_alone=is_alone))
    record = Record(
        number,
        line.plan.text(number),
        ended.state,  # type: ignore[arg-type]  # done or skipped
        line.spec,
        attempt,
        process_name(),
        line.profile,
        ended.seconds,
        tuple(Stored(*each) for each in ended.written),
        ended.reason,
        missing_blocks=ended.missing_blocks,
    )
    reached("written-not-recorded")
    is_first = line.ledger.record([record])[0]
    if line.records_attempts and not is_first:
        line.ledger.finish(record)


def _left(
    order: Order, line: _Line, attempt: str, ended: TaskEnded, fault: Fault, *, is_alone: bool
) -> Left:
    """Count a failure, unless it is this machine's, and return what the client is told."""
    name = process_name()
    if fault.kind == "resource":
        return Left("short", fault, name, order.caps.delay_s, is_alone)
    who = ended.number, line.plan.text(ended.number), attempt, name
    why = fault.kind, fault.reason, fault.traceback
    failure = FailedAttempt(*who, *why, seconds=sum(ended.seconds.values()))
    record, delay_s = count_failure(line.ledger, failure, order.caps, line.spec)
    return Left("dead" if record else "failed", fault, name, delay_s, is_alone)


def release(run: str) -> None:
    """Let go of the lines of a run, soon: what is in them is finished first."""
    # Not in this thread, which is that of the worker's messages: a line may be about to be made.
    threading.Thread(target=_release, args=(run,), name="release", daemon=True).start()


def _release(run: str) -> None:
    with _lock:
        for key in [key for key in _lines if key[0] == run]:
            _lines.pop(key).end()


def process_name() -> str:
    """Return how this process is called in records."""
    return f"{socket.gethostname()}-{os.getpid()}"


# --- lines --------------------------------------------------------------------------------------

_lines: dict[tuple[str, str], _Line] = {}
_lock = threading.Lock()
_ending: list[str] = []  # why this process ends itself


class _LineEndedError(Exception):
    """The line takes no more tasks."""


@dataclass(eq=False)
class _InHand:
    """A task in a line.

    Attributes:
        ended: how it came to the end of the line, and whether no other was in it then.
        begun: seconds of the monotonic clock.
        operator: at which it is.
        thread: in which that works.
    """

    ended: Future[tuple[TaskEnded, bool]] = field(default_factory=Future)
    begun: float | None = None
    operator: str = ""
    thread: int = 0


def _line_for(order: Order) -> _Line:
    """Return the line of a stage, which is made unless it is there.

    Raises:
        NotEndedError: it cannot be made.
    """
    key = order.run, order.stage
    with _lock:
        _check_process()
        if key not in _lines or _lines[key].has_ended:
            for other in [each for each in _lines if each[0] == order.run]:
                _lines.pop(other).end()  # a stage before this one
            try:
                _lines[key] = _Line(order)
            except BaseException as error:
                raise _broken(error) from error
        return _lines[key]


def _check_process() -> None:
    if _ending:
        fault = Fault("transient", f"its process is about to end: {_ending[0]}")
        raise NotEndedError(Left("again", fault, process_name(), AGAIN_S))


def _end_process(reason: str) -> None:
    """End this process soon: nothing that comes next in it would go well."""
    _ending.append(reason)
    timer = threading.Timer(END_S, os._exit, (1,))
    timer.daemon = True
    timer.start()


def _broken(error: BaseException) -> NotEndedError:
    how: Literal["refused", "broken"] = "refused" if isinstance(error, OptionError) else "broken"
    return NotEndedError(Left(how, fault_of(error), process_name()))


class _Line(Listener):
    """The line of a stage in this process.

    Args:
        order: says which.

    Attributes:
        plan, ledger: of the stage.
        spec: hash of the stage's spec.
        profile: numerical profile, as one line.
        records_attempts: whether attempts are recorded before they write.
        has_ended: whether it takes no more tasks.

    Raises:
        OptionError: the line is wrong, or this machine computes other bytes than the run's.
        ChunkflowError: whatever keeps an operator from beginning.
    """

    def __init__(self, order: Order) -> None:
        """Make the line, enter its operators, and compare the profile."""
        check_here(order.versions)
        if order.threads is not None:
            os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(order.threads)))
        self._home = RunDirectory.parse(order.run)
        stage = self._stage = self._home.spec.step(order.stage)
        self.plan, self.ledger = self._home.plan(stage.name), self._home.ledger(stage.name)
        self._durations = TaskDurations(order.task_limit, self.ledger.durations)
        self.spec, self.records_attempts = stage.hash, stage.device_class == "any"
        self.profile, self.has_ended = "", False
        self._changing = threading.Lock()
        self._slots = itertools.count()
        self._tasks: dict[int, _InHand] = {}
        self._ready: Future[None] = Future()
        self._feed = TaskFeed(lambda _: None)
        line = line_of_stage(self._home, stage, allow_code=order.allow_code, ahead=order.ahead)
        self._pipeline = order.make_line(line, self._feed)
        self._pipeline.listener = self
        threading.Thread(target=self._run, name=f"line-{stage.name}", daemon=True).start()
        self._ready.result()

    def perform(self, number: int) -> tuple[TaskEnded, bool]:
        """Return how a task came to the end of the line, and whether no other was in it then.

        Raises:
            NotEndedError: the line, or the process, cannot go on.
        """
        with self._changing:
            if self.has_ended:
                raise _LineEndedError
            slot, task = next(self._slots), _InHand()
            self._tasks[slot] = task
            self._feed.add([(slot, number, self.plan.text(number))])
        try:
            while not wait([task.ended], LOOK_S).done:
                _check_process()
                taken_s = 0.0 if task.begun is None else monotonic() - task.begun
                if (bound := self._durations.exceeded(taken_s)) is not None:
                    fault = self._cut(task, taken_s, bound)
                    seconds = {task.operator: taken_s}
                    return TaskEnded(slot, number, "failed", None, fault, seconds), True
            return task.ended.result()
        finally:
            with self._changing:
                self._tasks.pop(slot, None)

    def _cut(self, task: _InHand, taken_s: float, bound: Bound) -> Fault:
        """Give up a task that hangs, and with it this process."""
        frame = sys._current_frames().get(task.thread)
        where = f" in operator {task.operator}" if task.operator else ""
        reason = f"cut off after {taken_s:.0f} s{where}: {bound.why}"
        _end_process(reason)
        stack = "".join(traceback.format_stack(frame)) if frame else ""
        return Fault("permanent", reason, stack, breaks_process=True)

    def end(self) -> None:
        """Finish what is in it, and take no more."""
        with self._changing:
            self.has_ended = True
            self._feed.end()

    def _run(self) -> None:
        error: NotEndedError | _LineEndedError = _LineEndedError()
        try:
            for task in self._pipeline.run():
                self._took(task)
                del task  # it may hold chunks
        except BaseException as problem:  # noqa: BLE001  (sent to the client, which reports it)
            error = _broken(problem)
            if not self._ready.done():
                self._ready.set_exception(problem)
        with self._changing:
            self.has_ended = True
            for waiting in self._tasks.values():
                if not waiting.ended.done():
                    waiting.ended.set_exception(error)

    def _took(self, task: Task) -> None:
        if not isinstance(task.lease, ProcessLease):
            return
        self._feed.forget(task.lease)
        ended = task_ended(task, task.lease)
        if ended.state == "done":
            self._durations.add(sum(ended.seconds.values()))
        if ended.fault and ended.fault.breaks_process:
            _end_process(ended.fault.reason)
        with self._changing:
            in_hand = self._tasks.get(task.lease.slot)
            if in_hand is not None:
                in_hand.ended.set_result((ended, len(self._tasks) == 1))

    # --- what the pipeline tells -----------------------------------------------------------------

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:  # noqa: ARG002
        """Compare the profile, when all operators have been entered."""
        profile = profile_of(operators)
        self._home.check_profile(self._stage.name, profile)
        self.profile = ", ".join(f"{key} {value}" for key, value in (profile or {}).items())
        self._ready.set_result(None)

    def operator_started(self, label: str, task: Task) -> None:
        """Note where a task is."""
        in_hand = self._in_hand(task)
        if in_hand is not None:
            in_hand.operator, in_hand.thread = label, threading.get_ident()
            in_hand.begun = in_hand.begun or monotonic()

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:  # noqa: ARG002
        """Note that it is between two."""
        in_hand = self._in_hand(task)
        if in_hand is not None:
            in_hand.operator, in_hand.thread = "", 0

    def _in_hand(self, task: Task) -> _InHand | None:
        return self._tasks.get(task.lease.slot) if isinstance(task.lease, ProcessLease) else None

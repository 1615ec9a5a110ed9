"""The main function of a worker process: runs the pipeline on tasks from the supervisor.

```
supervisor -- tasks, cancel, end --> TaskFeed -> pipeline (main thread) -> Sender -- outcomes -->
                  pipe                             |                                   pipe
                                             ProgressBoard (shared memory)
```

A worker process makes no decisions, and ignores signals that ask a worker to stop. A worker process
never outlives its supervisor. On Linux, the kernel kills the process when the supervisor ends. On
other systems, the process exits when its pipe is closed.
"""

from __future__ import annotations

import contextlib
import faulthandler
import logging
import os
import pickle
import signal
import sys
import threading
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.interrupts import STOP, leave_closed_terminal
from chunkflow_py.core.operator_base import SourceBase, hook, hook_value
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.core.temporary_folders import end_process
from chunkflow_py.errors import LeaseLostError, OptionError
from chunkflow_py.pipeline.overlap import stages_of
from chunkflow_py.pipeline.pipeline import Listener
from chunkflow_py.run.worker.failure_policy import Fault, fault_of, skip_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.context import SpawnContext

    from chunkflow_py.core.operator_base import OperatorBase
    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.ledger.ledger_record import State
    from chunkflow_py.store.store_protocol import Stored

    MakePipeline = Callable[["TaskFeed"], Pipeline]

STACKS_SIGNAL = signal.SIGUSR2  # makes a process print the stacks of its threads
SEND_S = 10.0  # time to send the last messages
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
MOST_TASKS = 256  # tasks of one process, and slots of its board

# Modules that log a choice of the process once. This message is forwarded even at level INFO.
_INFORMS = ("chunkflow_py.inference.patch_exchange", "chunkflow_py.run.exchange_store")

_PR_SET_PDEATHSIG = 1
_BETWEEN_OPERATORS = -1
_ENDED = -2


@dataclass(frozen=True)
class ProcessOptions:
    """Options of a worker process.

    Attributes:
        board: shared memory for the progress of the process.
        crash_file: descriptor of the file for the stacks that Python prints at a crash.
        supervisor: process id of the supervisor.
        device: the only device that the process sees (``CUDA_VISIBLE_DEVICES``); ``None`` for all
            devices.
        threads: number of threads of compute libraries; ``None`` for the number that environment
            variables such as ``OMP_NUM_THREADS`` set.
        environment: further environment variables.
        log_level: lowest level of the log messages to forward to the supervisor.
    """

    board: ProgressBoard
    crash_file: Any
    supervisor: int
    device: str | None = None
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    log_level: int = logging.WARNING


# --- messages to the supervisor ------------------------------------------------------------------


class PipelineReady(NamedTuple):
    """Message: all operators have been entered, so the process accepts tasks.

    Attributes:
        profile: compute profile of all operators; ``None`` if no operator has a profile.
        operators: labels of the operators.
        window: number of tasks that the pipeline accepts at the same time.
        stages: stage of each operator: read, compute or write.
    """

    profile: dict[str, str] | None
    operators: tuple[str, ...]
    window: int
    stages: tuple[str, ...] = ()


class TaskEnded(NamedTuple):
    """Message: a task has reached the end of the pipeline.

    Attributes:
        slot: slot of the task on the `ProgressBoard`.
        number: number of the task in the plan.
        state: ``done``, ``skipped``, ``failed``, or ``lost`` if the lease of the task was lost.
        reason: why the task was skipped; ``None`` if it was not skipped.
        fault: why the task failed; ``None`` if it did not fail.
        seconds: run time of each operator in seconds, with the name of the operator as key.
        written: URL, size and checksum of each stored object.
        missing_blocks: number of input blocks that were not stored and were read as the fill value.
        patches: numbers of computed and exchanged patches; see the attribute `patches` of
            `chunkflow_py.run.ledger.ledger_record.Record`.
        began: time at which each operator began, in seconds since 1970, with the name of the
            operator as key.
    """

    slot: int
    number: int
    state: State | str
    reason: str | None = None
    fault: Fault | None = None
    seconds: dict[str, float] = {}  # noqa: RUF012 never changed
    written: tuple[tuple[str, int | None, str | None], ...] = ()
    missing_blocks: int = 0
    patches: dict[str, int] = {}  # noqa: RUF012 never changed
    began: dict[str, float] = {}  # noqa: RUF012 never changed


class LogMessage(NamedTuple):
    """Message: an entry of the process's log.

    Attributes:
        level: level of the entry, as in the module `logging`.
        text: text of the entry, one or more lines.
    """

    level: int
    text: str


class PipelineBroken(NamedTuple):
    """Message: the pipeline cannot be created, or cannot continue.

    Attributes:
        fault: the reason.
        is_usage: whether the command line is wrong, in which case a retry would not help.
    """

    fault: Fault
    is_usage: bool = False


# --- shared memory -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TaskProgress:
    """The progress of a task that has begun but not ended.

    Attributes:
        operator: index of the operator that works on the task; ``None`` between two operators.
        seconds: time since the first operator began to work on the task.
        done: number of parts of the task, such as patches, that the operator has finished.
        total: number of all parts of the task; 0 if the operator does not report parts.
    """

    operator: int | None
    seconds: float
    done: int = 0
    total: int = 0


class ProgressBoard:
    """Progress of the tasks of a worker process, in memory shared with its supervisor.

    Messages would not be enough, because a process can crash before it sends a message. The process
    writes to the board before an operator begins and after the operator ends, each time with a
    single write to memory. After a crash, the board therefore shows which tasks had begun, in which
    operator, and when. The board has one slot for each task. A pickled board refers to the same
    shared memory.

    Args:
        context: multiprocessing context of the processes that share the board.
    """

    def __init__(self, context: SpawnContext) -> None:
        self._state: Any = context.RawArray("q", MOST_TASKS)  # operator + 1, or 0: not begun
        self._since: Any = context.RawArray("d", MOST_TASKS)
        self._done: Any = context.RawArray("q", MOST_TASKS)
        self._total: Any = context.RawArray("q", MOST_TASKS)
        self._sums: Any = context.RawArray("d", [-1.0, 0.0])

    # Called by the supervisor

    def clear(self, slot: int) -> None:
        """Prepare a slot for a task that has not begun."""
        self._since[slot] = 0.0
        self._state[slot] = 0

    def progress(self, slot: int) -> TaskProgress | None:
        """Return the progress of the task in a slot; ``None`` if it has not begun or has ended."""
        state = self._state[slot]
        if state in (0, _ENDED):
            return None
        seconds = time.monotonic() - self._since[slot]
        parts = self._done[slot], self._total[slot]
        return TaskProgress(state - 1 if state > 0 else None, seconds, *parts)

    def is_untouched(self, slot: int) -> bool:
        """Return whether the task in a slot has not begun."""
        return not self._state[slot]

    @property
    def network_seconds(self) -> float | None:
        """Run time of the network in seconds; ``None`` if the pipeline has no network."""
        seconds: float = self._sums[0]
        return None if seconds < 0 else seconds

    @property
    def read_bytes(self) -> int:
        """Number of bytes that loaders have fetched from storage; some loaders do not count."""
        return int(self._sums[1])

    # Called by the worker process

    def begin(self, slot: int, operator: int) -> None:
        """Record that operator number *operator* (from 0) starts to work on the task in *slot*."""
        if not self._since[slot]:
            self._since[slot] = time.monotonic()
        self._total[slot] = 0
        self._state[slot] = operator + 1

    def advance(self, slot: int, done: int, total: int) -> None:
        """Record that the operator has done *done* of *total* parts of the task in *slot*."""
        self._done[slot] = done
        self._total[slot] = total

    def count(self, network_seconds: float | None, read_bytes: int) -> None:
        """Record the total run time of the network, and the total number of bytes read."""
        self._sums[0] = -1.0 if network_seconds is None else network_seconds
        self._sums[1] = read_bytes

    def leave_operator(self, slot: int) -> None:
        """Record that the task in *slot* is between two operators."""
        self._state[slot] = _BETWEEN_OPERATORS

    def end(self, slot: int) -> None:
        """Record that the task in *slot* has reached the end of the pipeline."""
        self._state[slot] = _ENDED


# --- the process ---------------------------------------------------------------------------------


def process_main(connection: Connection, pickled: bytes, options: ProcessOptions) -> None:
    """Run a pipeline over the tasks that the supervisor sends; the main function of the process.

    Args:
        connection: pipe to the supervisor.
        pickled: pickled function that takes a `TaskFeed` and returns the pipeline. Unpickling
            imports the modules of the function, so the environment variables are set first.
        options: options of the process.
    """
    _set_up(options)
    sender = Sender(connection)
    _forward_log(options.log_level, sender.send)
    feed = TaskFeed(sender.send)
    reader = threading.Thread(target=_read, args=(connection, feed), name="reader", daemon=True)
    reader.start()
    try:
        _run_pipeline(pickled, feed, sender, options.board)
    except BaseException as error:  # noqa: BLE001  (sent to the supervisor, which reports it)
        sender.send(PipelineBroken(fault_of(error), isinstance(error, OptionError)))
        status = 1
    else:
        status = 0
    sender.close()
    if status:
        # Do not wait for threads of the pipeline: their results are not needed any more.
        end_process(status)


def _set_up(options: ProcessOptions) -> None:
    """Set up the process: signals, death of the supervisor, crash reports, and environment."""
    # Terminals and Slurm send these signals to every process, but only the supervisor handles them.
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, leave_closed_terminal)  # continues
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != options.supervisor:
            os._exit(1)  # the supervisor died before the call
    faulthandler.enable(options.crash_file, all_threads=True)
    faulthandler.register(STACKS_SIGNAL, options.crash_file, all_threads=True)
    os.environ.update(options.environment)
    if options.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.device
    if options.threads is not None:
        os.environ.update(dict.fromkeys(THREAD_VARIABLES, str(options.threads)))


def _run_pipeline(pickled: bytes, feed: TaskFeed, sender: Sender, board: ProgressBoard) -> None:
    make_pipeline: MakePipeline = pickle.loads(pickled)  # noqa: S301 from our supervisor
    pipeline = make_pipeline(feed)
    pipeline.listener = _BoardListener(board, pipeline, sender.send)
    patches = PatchCounter(pipeline.operators)
    for task in pipeline.run():
        if isinstance(task.lease, ProcessLease):
            ended = patches.counted(task_ended(task, task.lease))
            if ended.fault and ended.fault.breaks_process:
                sender.send(PipelineBroken(ended.fault))
                sender.close()
                end_process(1)  # the board still shows this task in its operator, for the blame
            board.end(task.lease.slot)
            feed.forget(task.lease)
            sender.send(ended)
        del task  # it may hold chunks


@dataclass(slots=True, eq=False)
class ProcessLease:
    """A stand-in for the lease of a task in a worker process; the supervisor has the real lease.

    Attributes:
        slot, number: slot of the task on the board, and its number in the plan.
        lost: whether the supervisor has lost the lease.
        began: time at which each operator began to work on the task, in seconds since 1970, with
            the label of the operator as key.
    """

    slot: int
    number: int
    lost: bool = False
    began: dict[str, float] = field(default_factory=dict)

    def acknowledge(self) -> None:
        """Do nothing, because the supervisor acknowledges the message of a recorded task."""

    def release(self) -> None:
        """Do nothing, because the supervisor releases the message of a failed task."""


class TaskFeed(SourceBase):
    """The tasks that the supervisor sends; the source of the pipeline.

    Attributes:
        boxes: boxes of all tasks, set by the function that makes the pipeline; ``None`` if the
            boxes are unknown.
    """

    boxes: Boxes | None = hook_value(None)

    def __init__(self, send: Callable[[object], None]) -> None:
        self._send = send
        self._waiting: SimpleQueue[tuple[ProcessLease, str] | None] = SimpleQueue()
        self._leases: dict[tuple[int, int], ProcessLease] = {}

    def __iter__(self) -> Iterator[Task]:
        """Yield tasks until `end` is called and all tasks that were added earlier are yielded."""
        while (item := self._waiting.get()) is not None:
            lease, box = item
            if lease.lost:
                self.forget(lease)
                self._send(TaskEnded(lease.slot, lease.number, "lost"))
                continue
            yield Task(Region.parse(box), lease=lease)

    def add(self, tasks: Iterable[tuple[int, int, str]]) -> None:
        """Add tasks to yield; each task is given as (slot, number in the plan, box)."""
        for slot, number, box in tasks:
            lease = self._leases[slot, number] = ProcessLease(slot, number)
            self._waiting.put((lease, box))

    def cancel(self, tasks: Iterable[tuple[int, int]]) -> None:
        """Stop tasks before their next operator; each is given as (slot, number in the plan)."""
        for key in tasks:
            if lease := self._leases.get(key):
                lease.lost = True

    def forget(self, lease: ProcessLease) -> None:
        """Drop the lease of a task that has ended."""
        self._leases.pop((lease.slot, lease.number), None)

    def end(self) -> None:
        """End the iteration after all tasks that were added."""
        self._waiting.put(None)

    @hook
    def stop(self) -> None:
        """Call `end`, so that a failed pipeline does not wait for another task."""
        self.end()


class _BoardListener(Listener):
    def __init__(
        self, board: ProgressBoard, pipeline: Pipeline, send: Callable[[object], None]
    ) -> None:
        self._board = board
        self._pipeline = pipeline
        self._send = send
        self._numbers: dict[str, int] = {}
        self._hooks: list[OperatorBase] = []

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:  # noqa: ARG002
        self._numbers = {each.name: number for number, each in enumerate(operators)}
        ahead = self._pipeline.ahead
        window = sum(stage.tasks for stage in stages_of(operators, ahead)) if ahead else 1
        labels, stages = tuple(self._numbers), tuple(each.stage for each in operators)
        self._hooks = [each.hooks for each in operators]
        self._count()
        self._send(PipelineReady(profile_of(operators), labels, max(1, window), stages))

    def operator_started(self, label: str, task: Task) -> None:
        if isinstance(task.lease, ProcessLease):
            self._board.begin(task.lease.slot, self._numbers[label])
            task.lease.began.setdefault(label, time.time())

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:  # noqa: ARG002
        if isinstance(task.lease, ProcessLease):
            self._board.advance(task.lease.slot, done, total)
        self._count()

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:  # noqa: ARG002
        self._count()
        if isinstance(task.lease, ProcessLease):
            self._board.leave_operator(task.lease.slot)

    def _count(self) -> None:
        running = [h.network_seconds for h in self._hooks if h.declares("network_seconds")]
        costs = [hooks.traffic for hooks in self._hooks]
        read = sum(cost.stored_bytes for cost in costs if cost is not None)
        self._board.count(sum(running) if running else None, read)


# --- outcomes ------------------------------------------------------------------------------------


class PatchCounter:
    """Adds patch counts to each outcome, such as the number of computed patches.

    The counts cover the time since the previous outcome of this process.

    Args:
        operators: operators of the pipeline, which count the patches.
    """

    def __init__(self, operators: Sequence[Operator]) -> None:
        self._hooks = [each.hooks for each in operators if each.hooks.declares("patch_counts")]
        self._reported: Counter[str] = Counter()

    def counted(self, ended: TaskEnded) -> TaskEnded:
        """Return *ended*, with the numbers of patches if the task is done or skipped."""
        if not self._hooks or ended.state not in ("done", "skipped"):
            return ended
        counts: Counter[str] = Counter()
        for hooks in self._hooks:
            counts.update(hooks.patch_counts)
        new = counts - self._reported
        self._reported += new
        return ended._replace(patches=dict(new))


def task_ended(task: Task, lease: ProcessLease) -> TaskEnded:
    """Return the message that *task* has reached the end of the pipeline.

    If the outcome cannot be described, for example because a plugin has stored invalid values in
    the task, the task counts as ``failed``.
    """
    try:
        return _task_ended(task, lease)._replace(began=lease.began)
    except Exception as error:  # noqa: BLE001  (a plugin may have put anything into the task)
        return TaskEnded(lease.slot, lease.number, "failed", None, fault_of(error))


def _task_ended(task: Task, lease: ProcessLease) -> TaskEnded:
    written = tuple(_sendable(each) for each in task.written)
    common, missing = (lease.slot, lease.number), task.missing_blocks
    match task.outcome:
        case None:
            return TaskEnded(*common, "done", None, None, task.seconds, written, missing)
        case Skip() as skip:
            reason = skip_reason(skip)
            return TaskEnded(*common, "skipped", reason, None, task.seconds, written, missing)
        case error:
            if lease.lost or isinstance(error.cause, LeaseLostError):
                return TaskEnded(*common, "lost")
            return TaskEnded(*common, "failed", None, fault_of(error), task.seconds)


def _sendable(stored: Stored) -> tuple[str, int | None, str | None]:
    size, checksum = stored.size, stored.checksum
    return (
        str(stored.url),
        None if size is None else int(size),
        None if checksum is None else str(checksum),
    )


def profile_of(operators: Sequence[Operator]) -> dict[str, str] | None:
    """Merge the compute profiles of all operators into one; ``None`` if no operator has one.

    If two operators have different values for a key, the value of the later operator is stored
    with the key ``OPERATOR.KEY``.
    """
    merged: dict[str, str] = {}
    for each in operators:
        for name, content in (each.hooks.profile or {}).items():
            key, value = str(name), str(content)
            same = merged.setdefault(key, value) == value
            if not same:
                merged[f"{each.name}.{key}"] = value
    return merged or None


# --- the pipe ------------------------------------------------------------------------------------


def send(connection: Connection, messages: object) -> None:
    """Send messages over a pipe; drop them if the receiving process has ended."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send_bytes(pickle.dumps(messages, protocol=5))


class Sender:
    """Sends messages in its own thread; messages that arrive together are sent in one batch.

    If sending fails, the process exits, because the supervisor would wait forever for outcomes that
    cannot be sent.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._waiting: SimpleQueue[object] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """Queue a message, which the thread will send; return immediately."""
        self._waiting.put(message)

    def close(self) -> None:
        """Wait until all messages are sent, but at most `SEND_S` seconds."""
        self._waiting.put(None)
        self._thread.join(SEND_S)

    def _run(self) -> None:
        with _ends_process():
            self._send()

    def _send(self) -> None:
        ends = False
        while not ends:
            batch = [self._waiting.get()]
            with contextlib.suppress(Empty):
                while True:
                    batch.append(self._waiting.get_nowait())
            ends = None in batch
            batch = [message for message in batch if message is not None]
            if batch:
                send(self._connection, batch)


def _read(connection: Connection, feed: TaskFeed) -> None:
    with _ends_process():
        _receive(connection, feed)


def _receive(connection: Connection, feed: TaskFeed) -> None:
    while True:
        try:
            request, content = pickle.loads(connection.recv_bytes())  # noqa: S301 our supervisor
        except (EOFError, OSError):
            end_process(1)  # the supervisor is gone
        if request == "tasks":
            feed.add(content)
        elif request == "cancel":
            feed.cancel(content)
        else:
            feed.end()


@contextlib.contextmanager
def _ends_process() -> Iterator[None]:
    try:
        yield
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        end_process(1)


def _forward_log(level: int, send: Callable[[object], None]) -> None:
    """Forward log messages and warnings, including those of libraries, to the supervisor."""
    logging.getLogger().addHandler(_LogForwarder(send))
    logging.getLogger("chunkflow_py").setLevel(level)
    for name in _INFORMS:
        logging.getLogger(name).setLevel(min(level, logging.INFO))
    logging.captureWarnings(capture=True)


class _LogForwarder(logging.Handler):
    """Sends log messages to the supervisor, the only process that writes to stderr."""

    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(LogMessage(record.levelno, self.format(record)))

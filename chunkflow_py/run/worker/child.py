"""What runs in a child: the line, fed by its supervisor.

```
supervisor -- tasks, cancel, end --> reader -> feed -> line (main thread) -> sender -- outcomes -->
```

A child decides nothing. It hears no signal that asks it to stop, and lives no longer than its
supervisor: the kernel kills it then (Linux), and the end of its pipe ends it everywhere else.
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
import traceback
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, NamedTuple

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.interrupts import STOP, leave_closed_terminal
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import LeaseLostError, OptionError
from chunkflow_py.pipeline.hooks import HasProfile, HasTraffic, RunsNetwork
from chunkflow_py.pipeline.lanes import lanes_of
from chunkflow_py.pipeline.pipeline import Listener
from chunkflow_py.run.worker.failure_policy import Fault, fault_of, skip_reason

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from multiprocessing.connection import Connection

    from chunkflow_py.pipeline.hooks import Boxes
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.ledger.ledger_record import State
    from chunkflow_py.run.worker.board import Board
    from chunkflow_py.store.protocol import Stored

    MakeLine = Callable[["Feed"], Pipeline]

WHERE = signal.SIGUSR2  # asks where all threads are
SEND_S = 10.0  # for the last messages
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Options:
    """How a child is set up.

    Attributes:
        board: where it says what it does.
        faults: descriptor of the file for what Python says when the process crashes.
        supervisor: process id of who has started it.
        device: the one device that it sees (``CUDA_VISIBLE_DEVICES``); ``None``: all.
        threads: for libraries that ask the environment; ``None``: as it is.
        environment: further variables.
        log_level: from which on its supervisor wants to hear of its log.
    """

    board: Board
    faults: Any
    supervisor: int
    device: str | None = None
    threads: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    log_level: int = logging.WARNING


class Ready(NamedTuple):
    """All bodies of the line have been entered.

    Attributes:
        profile: numerical profile of all bodies, if any has one.
        operators: their labels.
        window: how many tasks the line can hold.
        lanes: of the operators.
    """

    profile: dict[str, str] | None
    operators: tuple[str, ...]
    window: int
    lanes: tuple[str, ...] = ()


class Ended(NamedTuple):
    """A task has come to the end of the line.

    Attributes:
        slot: of the board.
        number: of the task.
        state: ``done``, ``skipped``, ``failed``, or ``lost`` if its lease was.
        reason: why it was skipped.
        fault: why it failed.
        seconds: by operator.
        written: what was stored: URL, size, checksum.
        missing_blocks: see `Task`.
    """

    slot: int
    number: int
    state: State | str
    reason: str | None = None
    fault: Fault | None = None
    seconds: dict[str, float] = {}  # noqa: RUF012 never changed
    written: tuple[tuple[str, int | None, str | None], ...] = ()
    missing_blocks: int = 0


class Said(NamedTuple):
    """A line of the child's log.

    Attributes:
        level: of `logging`.
        text: it may have several lines.
    """

    level: int
    text: str


class Broken(NamedTuple):
    """The line cannot be made, or cannot go on.

    Attributes:
        fault: why.
        is_usage: whether the line itself is wrong, so that no other try would help.
    """

    fault: Fault
    is_usage: bool = False


@dataclass(slots=True, eq=False)
class ChildLease:
    """The lease of a task, as its child knows it: the supervisor keeps it and ends it."""

    slot: int
    number: int
    lost: bool = False

    def acknowledge(self) -> None:
        """Do nothing: the supervisor does it when the task is recorded."""

    def release(self) -> None:
        """Do nothing: the supervisor does it when the task has failed."""


class Feed:
    """The tasks that the supervisor sends; the source of the line.

    Attributes:
        boxes: around which outputs must fit; set by who makes the line, if it is known.
    """

    boxes: Boxes | None = None

    def __init__(self, send: Callable[[object], None]) -> None:
        """Begin without tasks."""
        self._send = send
        self._waiting: SimpleQueue[tuple[ChildLease, str] | None] = SimpleQueue()
        self._leases: dict[tuple[int, int], ChildLease] = {}

    def __iter__(self) -> Iterator[Task]:
        """Yield tasks until there are no more."""
        while (item := self._waiting.get()) is not None:
            lease, box = item
            if lease.lost:
                self.forget(lease)
                self._send(Ended(lease.slot, lease.number, "lost"))
                continue
            yield Task(Region.parse(box), lease=lease)

    def add(self, tasks: Iterable[tuple[int, int, str]]) -> None:
        """Take tasks: slot, number, box."""
        for slot, number, box in tasks:
            lease = self._leases[slot, number] = ChildLease(slot, number)
            self._waiting.put((lease, box))

    def cancel(self, tasks: Iterable[tuple[int, int]]) -> None:
        """Let tasks stop where they are: slot, number."""
        for key in tasks:
            if lease := self._leases.get(key):
                lease.lost = True

    def forget(self, lease: ChildLease) -> None:
        """Drop a task that has ended."""
        self._leases.pop((lease.slot, lease.number), None)

    def end(self) -> None:
        """Say that no more tasks come."""
        self._waiting.put(None)

    stop = end  # the hook of a source: a pipeline that fails must not wait for another task


class Sender:
    """Sends from a thread of its own, all that has come up together in one go.

    If that fails the process ends: its supervisor would wait for outcomes that never come.
    """

    def __init__(self, connection: Connection) -> None:
        """Start the thread."""
        self._connection = connection
        self._waiting: SimpleQueue[object] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sender", daemon=True)
        self._thread.start()

    def send(self, message: object) -> None:
        """Send a message soon."""
        self._waiting.put(message)

    def close(self) -> None:
        """Wait until all has been sent, or nobody reads it."""
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


class _BoardListener(Listener):
    """Writes on the board what the line does."""

    def __init__(self, board: Board, pipeline: Pipeline, send: Callable[[object], None]) -> None:
        self._board, self._pipeline, self._send = board, pipeline, send
        self._numbers: dict[str, int] = {}
        self._bodies: list[Any] = []

    def run_started(self, operators: Sequence[Operator], tasks: int | None) -> None:  # noqa: ARG002
        self._numbers = {each.name: number for number, each in enumerate(operators)}
        ahead = self._pipeline.ahead
        window = sum(lane.tasks for lane in lanes_of(operators, ahead)) if ahead else 1
        names, lanes = tuple(self._numbers), tuple(each.lane for each in operators)
        self._bodies = [each.body for each in operators]
        self._count()
        self._send(Ready(profile_of(operators), names, max(1, window), lanes))

    def operator_started(self, label: str, task: Task) -> None:
        if isinstance(task.lease, ChildLease):
            self._board.begin(task.lease.slot, self._numbers[label])

    def operator_progressed(self, label: str, task: Task, done: int, total: int) -> None:  # noqa: ARG002
        if isinstance(task.lease, ChildLease):
            self._board.advance(task.lease.slot, done, total)
        self._count()

    def operator_finished(self, label: str, task: Task, seconds: float) -> None:  # noqa: ARG002
        self._count()
        if isinstance(task.lease, ChildLease):
            self._board.wait(task.lease.slot)

    def _count(self) -> None:
        running = [each.network_seconds for each in self._bodies if isinstance(each, RunsNetwork)]
        costs = [each.traffic for each in self._bodies if isinstance(each, HasTraffic)]
        read = sum(cost.stored_bytes for cost in costs if cost is not None)
        self._board.count(sum(running) if running else None, read)


class _Teller(logging.Handler):
    """Hands lines of the log to the supervisor: it alone writes to stderr, in order."""

    def __init__(self, send: Callable[[object], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        self._send(Said(record.levelno, self.format(record)))


@contextlib.contextmanager
def _ends_process() -> Iterator[None]:
    """End the process if its link to the supervisor fails; the supervisor then sees its death."""
    try:
        yield
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        os._exit(1)


def send(connection: Connection, messages: object) -> None:
    """Send over a pipe; what an ended reader cannot take is of no use any more."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.send_bytes(pickle.dumps(messages, protocol=5))


def child_main(connection: Connection, line: bytes, options: Options) -> None:
    """Run a line over the tasks that come; the main function of a child process.

    Args:
        connection: to the supervisor.
        line: pickled function that makes the line from its source. Its modules are imported here,
            when the environment is set.
        options: see there.
    """
    _settle(options)
    sender = Sender(connection)
    _tell(options.log_level, sender.send)
    feed = Feed(sender.send)
    reader = threading.Thread(target=_read, args=(connection, feed), name="reader", daemon=True)
    reader.start()
    try:
        _work(line, feed, sender, options.board)
    except BaseException as error:  # noqa: BLE001  (sent to the supervisor, which reports it)
        sender.send(Broken(fault_of(error), isinstance(error, OptionError)))
        status = 1
    else:
        status = 0
    sender.close()
    if status:
        # Threads of the line may still be at work; nothing that they do counts any more.
        os._exit(status)


def _settle(options: Options) -> None:
    """Make this process deaf, mortal and talkative in its last moment."""
    # What asks a worker to stop is for its supervisor; terminals and Slurm send it to everybody.
    for number in STOP:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, leave_closed_terminal)  # and go on
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP)
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != options.supervisor:
            os._exit(1)  # it has died before
    faulthandler.enable(options.faults, all_threads=True)
    faulthandler.register(WHERE, options.faults, all_threads=True)
    os.environ.update(options.environment)
    if options.device is not None:
        os.environ["CUDA_VISIBLE_DEVICES"] = options.device
    if options.threads is not None:
        os.environ.update(dict.fromkeys(THREADS, str(options.threads)))


def _tell(level: int, send: Callable[[object], None]) -> None:
    """Tell the supervisor what is logged and warned of, by libraries too."""
    logging.getLogger().addHandler(_Teller(send))
    logging.getLogger("chunkflow_py").setLevel(level)
    logging.captureWarnings(capture=True)


def _read(connection: Connection, feed: Feed) -> None:
    with _ends_process():
        _receive(connection, feed)


def _receive(connection: Connection, feed: Feed) -> None:
    while True:
        try:
            verb, content = pickle.loads(connection.recv_bytes())  # noqa: S301 from our supervisor
        except (EOFError, OSError):
            os._exit(1)  # there is nobody whom an outcome could be told
        if verb == "tasks":
            feed.add(content)
        elif verb == "cancel":
            feed.cancel(content)
        else:
            feed.end()


def _work(line: bytes, feed: Feed, sender: Sender, board: Board) -> None:
    make_line: MakeLine = pickle.loads(line)  # noqa: S301 from our supervisor
    pipeline = make_line(feed)
    pipeline.listener = _BoardListener(board, pipeline, sender.send)
    for task in pipeline.run():
        if isinstance(task.lease, ChildLease):
            ended = ended_of(task, task.lease)
            if ended.fault and ended.fault.breaks_process:
                sender.send(Broken(ended.fault))
                sender.close()
                os._exit(1)  # with the board as it is: who was in which operator
            board.end(task.lease.slot)
            feed.forget(task.lease)
            sender.send(ended)
        del task  # it may hold chunks


def ended_of(task: Task, lease: ChildLease) -> Ended:
    """Return how a task came to the end of its line; if that cannot be said, it has failed."""
    try:
        return _ended_of(task, lease)
    except Exception as error:  # noqa: BLE001  (a plugin may have put anything into the task)
        return Ended(lease.slot, lease.number, "failed", None, fault_of(error))


def _ended_of(task: Task, lease: ChildLease) -> Ended:
    written = tuple(_plain(each) for each in task.written)
    common, missing = (lease.slot, lease.number), task.missing_blocks
    match task.outcome:
        case None:
            return Ended(*common, "done", None, None, task.seconds, written, missing)
        case Skip() as skip:
            reason = skip_reason(skip)
            return Ended(*common, "skipped", reason, None, task.seconds, written, missing)
        case error:
            if lease.lost or isinstance(error.cause, LeaseLostError):
                return Ended(*common, "lost")
            return Ended(*common, "failed", None, fault_of(error), task.seconds)


def _plain(stored: Stored) -> tuple[str, int | None, str | None]:
    """Return what was stored, as types that can be sent."""
    size, checksum = stored.size, stored.checksum
    return (
        str(stored.url),
        None if size is None else int(size),
        None if checksum is None else str(checksum),
    )


def profile_of(operators: Sequence[Operator]) -> dict[str, str] | None:
    """Join the profiles of all bodies; what they do not agree on is said for each."""
    merged: dict[str, str] = {}
    for each in operators:
        profile = each.body.profile if isinstance(each.body, HasProfile) else None
        for name, said in (profile or {}).items():
            key, value = str(name), str(said)
            same = merged.setdefault(key, value) == value
            if not same:
                merged[f"{each.name}.{key}"] = value
    return merged or None

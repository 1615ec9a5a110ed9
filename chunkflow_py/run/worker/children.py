"""A child as its supervisor sees it: started, fed, watched, and told why it has died."""

from __future__ import annotations

import logging
import multiprocessing
import os
import pickle
import signal
import tempfile
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import resource_tracker
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from chunkflow_py.core.interrupts import STOP
from chunkflow_py.core.memory import describe_bytes
from chunkflow_py.run.worker.board import SLOTS, Board, Progress
from chunkflow_py.run.worker.child import WHERE, Broken, Options, child_main, send
from chunkflow_py.run.worker.failure_policy import LONGEST_TRACEBACK
from chunkflow_py.run.worker.looks import ChildLook, TaskLook

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from chunkflow_py.run.worker.child import MakeLine

logger = logging.getLogger(__name__)

Job = TypeVar("Job")

_SIGNALS = {
    signal.SIGSEGV: "segmentation fault",
    signal.SIGBUS: "bus error",
    signal.SIGFPE: "arithmetic error",
    signal.SIGILL: "illegal instruction",
    signal.SIGABRT: "aborted",
}


@dataclass(frozen=True)
class ChildStart:
    """What all children of a supervisor have in common.

    Attributes:
        make_line: makes the line of the stage from its source, checked; a function of a module
            (or a partial of one), which the child imports.
        environment: variables that are set before the modules of *make_line* are imported.
        threads: for libraries that ask the environment; ``None``: as it is. It belongs to the
            numerical profile, so that it does not follow the number of processes by itself.
    """

    make_line: MakeLine
    environment: Mapping[str, str] = field(default_factory=dict)
    threads: int | None = None


class _Faults:
    """A file without a name, for what Python says in the last moment of a child."""

    def __init__(self) -> None:
        self.file = tempfile.TemporaryFile()  # noqa: SIM115 closed with the child

    def __reduce__(self) -> tuple[Any, ...]:
        return _descriptor, (DupFd(self.file.fileno()),)

    def text(self) -> str:
        self.file.seek(0)
        return self.file.read()[-LONGEST_TRACEBACK:].decode(errors="replace")


def _descriptor(handed: Any) -> int:
    descriptor: int = handed.detach()
    return descriptor


class Child(Generic[Job]):
    """One process, and the tasks that it holds.

    Args:
        number: among the children of its supervisor.
        start: what it runs.
        device: that it sees, or ``None`` for all.
        post: called in a thread with the child and a list of its messages, or ``None`` when its
            pipe has ended.

    Attributes:
        jobs: what it holds, by slot of its board.
        operators: labels of the line's operators; empty before it is ready.
        lanes: of these operators.
        began: when it was started, by the monotonic clock.
        ready_at: since when it can take tasks, by the monotonic clock.
        device: that it sees, or ``None`` for all.
        window: how many tasks its line can hold; 0 before it is ready.
        broken: what it has said of its end.
        is_ending: whether it was told to end.
    """

    def __init__(
        self,
        number: int,
        start: ChildStart,
        device: str | None,
        post: Callable[[Child[Job], Sequence[object] | None], None],
    ) -> None:
        """Start the process.

        It lives no longer than the thread that calls this: the kernel kills it with that thread.
        """
        context = multiprocessing.get_context("spawn")
        self.number = number
        self.jobs: dict[int, Job] = {}
        self.operators: tuple[str, ...] = ()
        self.lanes: tuple[str, ...] = ()
        self.began = time.monotonic()
        self.ready_at: float | None = None
        self.device = device
        self.window = 0
        self.broken: Broken | None = None
        self.is_ending = False
        self._free = list(range(SLOTS))
        self._board = Board(context)
        self._faults = _Faults()
        self._kills, self._peak_bytes, self._memory_bytes = memory_kills(), 0, 0
        self._post = post
        self._connection, theirs = context.Pipe()
        options = Options(
            self._board,
            self._faults,
            os.getpid(),
            device,
            start.threads,
            dict(start.environment),
            logging.DEBUG if logger.isEnabledFor(logging.DEBUG) else logging.WARNING,
        )
        line = pickle.dumps(start.make_line, protocol=5)
        self.process = context.Process(
            target=child_main, args=(theirs, line, options), name=f"child-{number}"
        )
        # Signals that come while it starts wait until it is deaf to them; the process that tracks
        # shared memory must not hear them either.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP)
        try:
            resource_tracker.ensure_running()
            signal.pthread_sigmask(signal.SIG_BLOCK, STOP)  # the call above unblocks some
            self.process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
        self._reader = threading.Thread(target=self._read, name=f"child-{number}", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while True:
            try:
                messages = pickle.loads(self._connection.recv_bytes())  # noqa: S301 our own child
            except Exception as error:  # noqa: BLE001  (what it sends may be damaged)
                if not isinstance(error, (EOFError, OSError)):
                    logger.warning("child %d: a message cannot be read: %s", self.number, error)
                self._post(self, None)
                return
            self._post(self, messages)

    # --- tasks ---------------------------------------------------------------------------------

    def give(self, tasks: Iterable[tuple[Job, int, str]]) -> None:
        """Send tasks: what the supervisor knows them by, number, box; at most `SLOTS` in all."""
        rows = []
        for job, number, box in tasks:
            slot = self._free.pop()
            self._board.clear(slot)
            self.jobs[slot] = job
            rows.append((slot, number, box))
        send(self._connection, ("tasks", rows))

    def take(self, slot: int) -> Job | None:
        """Return the task of a slot that is free from now on."""
        job = self.jobs.pop(slot, None)
        if job is not None:
            self._free.append(slot)
        return job

    def cancel(self, tasks: Iterable[tuple[int, int]]) -> None:
        """Let tasks stop as soon as they can: slot, number. They stay held until they do."""
        send(self._connection, ("cancel", list(tasks)))

    def progress(self, slot: int) -> Progress | None:
        """Return where a task is, or ``None`` if it has not begun, or has ended."""
        return self._board.progress(slot)

    def is_untouched(self, slot: int) -> bool:
        """Return whether a task has not begun."""
        return self._board.is_untouched(slot)

    def begun(self) -> list[int]:
        """Return the slots of the tasks that have begun and not ended."""
        return [slot for slot in self.jobs if self._board.progress(slot) is not None]

    def operator(self, slot: int) -> str:
        """Return where a task is, in words."""
        progress = self.progress(slot)
        if progress is None or progress.operator is None:
            return "between two operators"
        if progress.operator >= len(self.operators):
            return f"operator {progress.operator + 1}"
        return f"operator {self.operators[progress.operator]}"

    def seen(self, box: Callable[[Job], str]) -> ChildLook:
        """Return what it does now.

        Args:
            box: returns that of a task.
        """
        tasks = []
        for slot, job in self.jobs.items():
            progress = self._board.progress(slot)
            if progress is None:
                continue
            at = progress.operator
            known = at is not None and at < len(self.lanes)
            where = (self.operators[at], self.lanes[at]) if known and at is not None else ("", "")
            inside = progress.done, progress.total
            tasks.append(TaskLook(box(job), *where, progress.seconds, *inside))
        return ChildLook(
            self.number,
            self.process.pid or 0,
            self.device,
            None if self.ready_at is None else time.monotonic() - self.ready_at,
            self._board.network_seconds,
            self._board.read_bytes,
            self._memory_bytes,
            tuple(sorted(tasks, key=lambda task: -task.seconds)),
        )

    # --- the process ---------------------------------------------------------------------------

    def look(self) -> bool:
        """Return whether the process lives; notes how much memory it has."""
        with suppress(OSError, ValueError, IndexError):  # there is no /proc, or no such process
            status = Path(f"/proc/{self.process.pid}/status").read_text()
            peak, self._memory_bytes = (
                1024 * int(status.partition(f"{name}:")[2].split(maxsplit=1)[0])
                for name in ("VmHWM", "VmRSS")
            )
            self._peak_bytes = max(self._peak_bytes, peak)
        return self.process.is_alive()

    def end(self) -> None:
        """Tell it that no more tasks come."""
        self.is_ending = True
        send(self._connection, ("end", None))

    def ask_where(self) -> None:
        """Have it write down where all its threads are; it goes on."""
        with suppress(OSError, TypeError):  # it has ended
            os.kill(self.process.pid, WHERE)  # type: ignore[arg-type]

    def kill(self) -> None:
        """Kill it at once; its pipe ends soon."""
        self.process.kill()

    def reap(self) -> None:
        """Wait for the process, whose pipe has ended, and let go of it; `cause` still works.

        One that waits in the kernel, as for a file server that does not answer, cannot be killed:
        it is left behind.
        """
        self.process.join(5)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(5)
        # It may be about to read; one that a process left behind keeps waiting dies with us.
        if self._reader is not threading.current_thread():
            self._reader.join(1)
        self._connection.close()

    def cause(self) -> tuple[str, str]:
        """Return why it has died, in words, and what Python said of it."""
        said = self._faults.text()
        if self.broken is not None:
            return self.broken.fault.reason, self.broken.fault.traceback or said
        code = self.process.exitcode
        if code is None:
            return "cannot be killed: it waits in the kernel, as for a file server", said
        if code >= 0:
            return f"ended with exit code {code}", said
        if -code == signal.SIGKILL:
            return f"killed by SIGKILL, {self._killer()}", said
        number = signal.Signals(-code)
        words = f" ({_SIGNALS[number]})" if number in _SIGNALS else ""
        return f"killed by {number.name}{words}", said

    def _killer(self) -> str:
        peak = f"; its peak was {describe_bytes(self._peak_bytes)}" if self._peak_bytes else ""
        if memory_kills() > self._kills:
            return f"by the system for lack of memory{peak}"
        return f"most likely for memory, or by hand{peak}"

    def close(self) -> None:
        """Let go of files."""
        self._faults.file.close()
        with suppress(ValueError):  # it cannot be killed
            self.process.close()


def memory_kills() -> int:
    """Return how many processes the system has killed for lack of memory, as far as it tells."""
    found = 0
    for path in _counters():
        with suppress(OSError, ValueError, IndexError):
            lines = [line for line in path.read_text().splitlines() if line.startswith("oom_kill ")]
            found += sum(int(line.split()[1]) for line in lines)
    return found


def _counters() -> list[Path]:
    """Return the files that count them: of the machine, and of our group of processes."""
    files = [Path("/proc/vmstat")]
    with suppress(OSError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            if not controllers:
                files.append(Path(f"/sys/fs/cgroup{group}/memory.events"))
            elif "memory" in controllers.split(","):
                files.append(Path(f"/sys/fs/cgroup/memory{group}/memory.oom_control"))
    return files

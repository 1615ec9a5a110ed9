"""What rehearsals have found: processes are started, heard, and ended in time."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from time import monotonic, time
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


@dataclass(frozen=True)
class TaskSeen:
    """One task of a rehearsal.

    Attributes:
        at: seconds from the start of the process to the end of the task.
        bbox: of the task; ``None`` for a line without tasks.
        seconds: by operator.
        written: bytes, as stored.
        objects: how many were stored.
    """

    at: float
    bbox: BoundingBox | None
    seconds: dict[str, float]
    written: int
    objects: int


@dataclass
class Observation:
    """What one process of a rehearsal has told.

    Attributes:
        ready_s: from its start until it could begin; ``None``: it never could.
        ahead: tasks that its lanes worked ahead.
        tasks: that it has done.
        peak_bytes: the most memory it has held.
        parts: memory foretold, by what takes it.
        unknown: operators of which not all is foretold.
        device_bytes: of the GPU, foretold.
        devices: that networks ran on.
        begun: operator -> seconds at which it began on the first task, and what of it is done.
        traffic: bytes by loader: stored, decoded, needed.
        failure: why it ended.
        is_refused: whether it was refused before its first task, as what does not fit here is.
        is_whole: whether it ended by itself.
        is_cut: whether its time was up.
    """

    ready_s: float | None = None
    ahead: int = 0
    tasks: list[TaskSeen] = field(default_factory=list)
    peak_bytes: int = 0
    parts: dict[str, int] = field(default_factory=dict)
    unknown: tuple[str, ...] = ()
    device_bytes: int = 0
    devices: tuple[str, ...] = ()
    begun: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    traffic: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    failure: str | None = None
    is_refused: bool = False
    is_whole: bool = False
    is_cut: bool = False

    @property
    def foretold_bytes(self) -> int:
        """What the line was expected to take of the host's memory."""
        return sum(self.parts.values())

    def hear(self, event: dict[str, Any]) -> None:
        """Take in one event, see `chunkflow_py.planning.rehearsal`."""
        kind = event["event"]
        self.peak_bytes = max(self.peak_bytes, event.get("peak", 0))
        if kind == "ready":
            self.ready_s, self.ahead, self.parts = event["at"], event["ahead"], event["parts"]
            self.unknown, self.devices = tuple(event["unknown"]), tuple(event["devices"])
            self.device_bytes = event["device_bytes"]
        elif kind == "progress":
            name, at, share = event["operator"], event["at"], event["share"]
            start = self.begun.get(name, (at, at, 0.0))[0]
            if not self.tasks:
                self.begun[name] = (start, at, share)
        elif kind == "task":
            box = event["task"]
            self.tasks.append(
                TaskSeen(
                    event["at"],
                    None if box is None else BoundingBox.parse(box),
                    event["seconds"],
                    event["written"],
                    event["objects"],
                )
            )
            self.traffic = {name: tuple(amounts) for name, amounts in event["traffic"].items()}
        elif kind == "failure":
            self.failure, self.is_refused = event["failure"], event.get("refused", False)
        elif kind == "end":
            self.is_whole = True


def observe(
    module: str,
    request: dict[str, Any],
    numbers: Sequence[Sequence[int]],
    seconds: float,
    folder: Path | None,
) -> list[Observation]:
    """Rehearse in several processes at once, and return what each has found.

    Args:
        module: that a process runs.
        request: what all are told.
        numbers: of the tasks of each process.
        seconds: after which what has not ended is ended.
        folder: in which to write what is thrown away (default: that of the system).
    """
    found = [Observation() for _ in numbers]
    with TemporaryDirectory(prefix=".plan-", dir=folder or gettempdir()) as scratch:
        processes: list[tuple[subprocess.Popen[str], threading.Thread]] = []
        end = monotonic() + seconds
        try:
            for number, some in enumerate(numbers):
                place = Path(scratch) / str(number)
                place.mkdir()
                told = {**request, "numbers": list(some), "scratch": str(place)}
                processes.append(_started(module, told, found[number]))
            for (process, thread), seen in zip(processes, found, strict=True):
                thread.join(max(0.0, end - monotonic()))
                note_peak(process.pid, seen)
        finally:
            for (process, thread), seen in zip(processes, found, strict=False):
                seen.is_cut = thread.is_alive()
                process.kill()
                process.wait()
                thread.join()
                if process.stdout is not None:
                    process.stdout.close()
    return found


def note_peak(pid: int, found: Observation) -> None:
    """Note how much memory a process has held, if it is still there."""
    with suppress(OSError, ValueError, IndexError):
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace")
        peak = 1024 * int(status.partition("VmHWM:")[2].split(maxsplit=1)[0])
        found.peak_bytes = max(found.peak_bytes, peak)


def _started(
    module: str, request: dict[str, Any], found: Observation
) -> tuple[subprocess.Popen[str], threading.Thread]:
    process = subprocess.Popen(
        [sys.executable, "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    if process.stdin is not None:
        with suppress(BrokenPipeError):  # it has died, which is heard below
            json.dump({**request, "started": time()}, process.stdin)
        process.stdin.close()
    lines: Iterable[str] = process.stdout or ()

    def hear() -> None:
        for line in lines:
            found.hear(json.loads(line))
        code = process.wait()
        if not (found.is_whole or found.failure or found.is_cut):
            why = ", for its memory perhaps" if code == -9 else ""
            found.failure = f"the process of the rehearsal ended with code {code}{why}"

    thread = threading.Thread(target=hear, name="rehearsal", daemon=True)
    thread.start()
    return process, thread

"""What a worker is doing and has done on one stage: counted from what its supervisor tells."""

from __future__ import annotations

import time
from threading import Lock
from typing import TYPE_CHECKING

from chunkflow_py.cli.pace import Pace
from chunkflow_py.core.geometry import Region

if TYPE_CHECKING:
    from chunkflow_py.run.ledger.record import Record
    from chunkflow_py.run.worker.looks import WorkerLook


class WorkState:
    """One stage of a run, as one worker sees it.

    Args:
        stage: its name.
        tasks: how many there are.

    Attributes:
        done, skipped, given_up: tasks that this worker has recorded so.
        failures: attempts that have failed here.
        seconds: by operator, of the tasks that it has recorded.
        voxels, written_bytes: of the same.
        look: what it does now, if it is known.
    """

    def __init__(self, stage: str = "", tasks: int = 0) -> None:
        """Begin with nothing done."""
        self.stage, self.tasks = stage, tasks
        self.done = self.skipped = self.given_up = self.failures = 0
        self.seconds: dict[str, float] = {}
        self.voxels = self.written_bytes = 0
        self.look: WorkerLook | None = None
        self._began = time.monotonic()
        self._recorded: tuple[int, int] | None = None  # by all, and by this worker at that time
        self._voxels, self._tasks = Pace(), Pace()
        self._lock = Lock()

    def task_ended(self, record: Record) -> int:
        """Count a task; return its voxels."""
        voxels = Region.parse(record.box).bbox.size.product()
        with self._lock:
            if record.state == "dead":
                self.given_up += 1
            else:
                self.done += record.state == "done"
                self.skipped += record.state == "skipped"
                self.voxels += voxels
                self.written_bytes += record.stored_bytes
                for name, seconds in record.seconds.items():
                    self.seconds[name] = self.seconds.get(name, 0.0) + seconds
            self._voxels.reached(self.voxels)
            if self._recorded is not None:
                self._tasks.reached(self._by_all())
        return voxels

    def recorded(self, number: int) -> None:
        """Take how many tasks the ledger says that all workers have recorded."""
        with self._lock:
            is_first = self._recorded is None
            self._recorded = number, self.ended
            if is_first:
                self._tasks = Pace(number)
            else:
                self._tasks.reached(number)

    @property
    def ended(self) -> int:
        """How many tasks this worker has recorded."""
        return self.done + self.skipped + self.given_up

    @property
    def by_all(self) -> int | None:
        """How many tasks all workers have recorded, as far as is known; ``None``: not asked yet."""
        with self._lock:
            return self._by_all() if self._recorded is not None else None

    def _by_all(self) -> int:
        number, own = self._recorded or (0, 0)
        return min(self.tasks, number + self.ended - own)

    @property
    def elapsed_s(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began

    @property
    def voxels_per_second(self) -> float | None:
        """Lately, of this worker; ``None`` before there was a task with voxels."""
        with self._lock:
            return self._voxels.per_second if self.voxels else None

    def share(self) -> float | None:
        """Return how much of the stage is recorded, if that is known."""
        done = self.by_all
        return None if done is None or not self.tasks else done / self.tasks

    def left_s(self) -> float | None:
        """Return how many seconds the stage still takes at the pace of late."""
        done = self.by_all
        with self._lock:
            pace = self._tasks.per_second
        left = None if done is None else self.tasks - done
        return left / pace if left and pace else None

    def outside_network(self) -> float | None:
        """Return the share of the processes' time in which no network ran, if they have one."""
        children = self.look.children if self.look else ()
        known = [each for each in children if each.network_seconds is not None and each.seconds]
        if not known:
            return None
        running = sum(each.network_seconds or 0.0 for each in known)
        return max(0.0, 1 - running / sum(each.seconds or 0.0 for each in known))

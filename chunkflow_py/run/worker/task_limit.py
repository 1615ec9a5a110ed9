"""How long a task may take before it is cut off: a number, or derived from the tasks before it."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from dataclasses import dataclass
from itertools import islice
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

from chunkflow_py.errors import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

logger = logging.getLogger(__name__)

KEPT = 1024  # durations of tasks that this worker has finished last
SAMPLE = 256  # durations of tasks that others have finished
READ_AGAIN_S = 600.0  # the ledger, for more of them


class Bound(NamedTuple):
    """A limit in seconds, and how it was derived, as the end of a sentence."""

    seconds: float
    why: str


@dataclass(frozen=True)
class TaskLimit:
    """The option ``--task-limit``.

    Attributes:
        seconds: that every task may take; infinite: there is no limit; ``None``: ``auto``.
        first_s: with ``auto``, until *tasks* tasks of the step have finished.
        least_s, times: with ``auto``, afterwards: *times* the median of their seconds, but at least
            *least_s*.
        tasks: from how many on the median counts.
    """

    seconds: float | None = None
    first_s: float = 6 * 3600.0
    least_s: float = 3600.0
    times: float = 20.0
    tasks: int = 8

    @property
    def shortest_s(self) -> float:
        """Below which no task is cut off, whatever others have taken."""
        return min(self.first_s, self.least_s) if self.seconds is None else self.seconds

    @property
    def start_s(self) -> float:
        """How long a process may take until it is ready for its first task."""
        return self.first_s if self.seconds is None else max(self.first_s, self.seconds)

    def after(self, durations: Sequence[float]) -> Bound:
        """Return the limit when tasks of the step have taken so many seconds."""
        remedy = "if tasks may take longer, give --task-limit SECONDS or none"
        if self.seconds is not None:
            why = f"--task-limit allows {self.seconds:g} s; {remedy}"
            return Bound(self.seconds, why)
        if len(durations) < self.tasks:
            why = (
                f"--task-limit auto allows {self.first_s:g} s until {self.tasks} tasks of the step "
                f"have finished; {remedy}"
            )
            return Bound(self.first_s, why)
        middle = median(durations)
        seconds = max(self.least_s, self.times * middle)
        why = (
            f"--task-limit auto allows {seconds:.4g} s, the larger of {self.least_s:g} s and "
            f"{self.times:g} times the median of {middle:.3g} s of {len(durations)} tasks that "
            f"have finished; {remedy}"
        )
        return Bound(seconds, why)


class Durations:
    """How long tasks of a step have taken: those of this worker, or else those in the ledger.

    Args:
        limit: of a task.
        recorded: returns the seconds of tasks that the ledger has as done. It is called in a thread
            of its own, and only once a task takes longer than others have ever been cut off after.
    """

    def __init__(self, limit: TaskLimit, recorded: Callable[[], Iterable[float]]) -> None:
        """Know of none."""
        self.limit, self._recorded = limit, recorded
        self._own: deque[float] = deque(maxlen=KEPT)
        self._others: list[float] = []
        self._read_at = -math.inf
        self._reader: threading.Thread | None = None

    def add(self, seconds: float) -> None:
        """Note what a task has taken that is done."""
        self._own.append(seconds)

    def exceeded(self, seconds: float) -> Bound | None:
        """Return the limit if a task is beyond it that has taken so many seconds."""
        limit = self.limit
        if seconds <= limit.shortest_s:
            return None
        durations: Sequence[float] = self._own
        if limit.seconds is None and len(durations) < limit.tasks:
            self._read()
            durations = max(durations, self._others, key=len)
        bound = limit.after(durations)
        return bound if seconds > bound.seconds else None

    def _read(self) -> None:
        """Ask the ledger, now and then, without waiting for it."""
        now = time.monotonic()
        is_reading = self._reader is not None and self._reader.is_alive()
        if is_reading or now < self._read_at or len(self._others) >= self.limit.tasks:
            return
        self._read_at = now + READ_AGAIN_S
        self._reader = threading.Thread(target=self._ask, name="durations", daemon=True)
        self._reader.start()

    def _ask(self) -> None:
        try:
            self._others = list(islice(self._recorded(), SAMPLE))
        except BaseException as error:  # noqa: BLE001  (the limit stays what it is)
            logger.warning("the ledger does not tell what tasks have taken: %s", named(error))

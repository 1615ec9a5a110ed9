"""When a worker takes no tasks for a while, and when it gives up: what failures in a row mean.

| failure          | what follows                                                                |
|------------------|-----------------------------------------------------------------------------|
| network is down  | a pause that doubles with each one in a row                                 |
| disk is full     | all that has not begun is given back; after a pause one task is tried       |
| memory is short  | the machine's fault, unless others succeed on it: then it is the task's     |
| store refuses    | nobody's fault at first; of two in a row it is the worker's                 |
"""

from __future__ import annotations

import random
from typing import Literal

LONGEST_PAUSE_S = 60.0
FIRST_PAUSE_S = 0.5


class Patience:
    """Counts failures in a row.

    Args:
        disk_wait_s: before the first try on a disk that was full.

    Attributes:
        until: no task is taken before, seconds of the monotonic clock.
        is_probing: whether one task is tried alone, to see whether it is over.
    """

    def __init__(self, disk_wait_s: float) -> None:
        """Begin without failures."""
        self._disk_wait_s = disk_wait_s
        self._passing = self._full = 0
        self._has_succeeded = False
        self._short: int | None = None  # task that was short of memory last
        self._refused: set[int] = set()  # tasks that were refused access
        self._is_refused = False
        self.until = 0.0
        self.is_probing = False

    def succeeded(self) -> None:
        """A task has ended well."""
        self._has_succeeded = True
        self._short = None
        self._is_refused = False
        self._passing = self._full = 0
        self.until, self.is_probing = 0.0, False

    def network_failed(self, now: float) -> None:
        """A task has failed for what may pass by itself."""
        self._passing += 1
        pause = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(self._passing, 20))
        self.until = max(self.until, now + pause * random.uniform(0.5, 1))  # noqa: S311 jitter

    def disk_full(self, now: float) -> float:
        """A disk was full; return for how many seconds none is taken.

        What was in hand then fails as well, which does not make the pause longer.
        """
        if self.is_probing and now < self.until:
            return self.until - now
        longest = max(LONGEST_PAUSE_S, self._disk_wait_s)
        pause = min(longest, self._disk_wait_s * (1 << self._full))
        self._full = min(self._full + 1, 10)
        self.until, self.is_probing = now + pause, True
        return pause

    def memory_short(self, task: int) -> Literal["blame", "release", "stop"]:
        """Say what to do when a task that ran alone was short of memory.

        A worker on which tasks have succeeded blames the task, but stops when another one meets
        the same right after it; one on which none has succeeded blames nobody, tries once more and
        stops then.
        """
        last, self._short = self._short, task
        if self._has_succeeded:
            return "blame" if last in (None, task) else "stop"
        return "release" if last is None else "stop"

    def access_refused(self, task: int) -> Literal["blame", "release", "stop"]:
        """Say what to do when the store has refused what a task wanted, after all tries.

        A worker with credentials that do not suffice must not use up the attempts of all tasks:
        it stops at the second refusal in a row. A task that is refused again while others are not
        is blamed.
        """
        again, self._is_refused = self._is_refused, True
        if again:
            return "stop"
        if task in self._refused:
            return "blame"
        self._refused.add(task)
        return "release"

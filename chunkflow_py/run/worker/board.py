"""What a child is doing, in memory that its supervisor shares: it is there when the child is not.

A pipe tells what the child had time to send; a crash comes between two sends. The board is written
before an operator begins and after it ends, by one store into memory each, so that after any crash
it says exactly which tasks had begun, in which operator, and when.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.context import SpawnContext

SLOTS = 256  # tasks that one child may hold
_WAITING = -1  # between two operators
_ENDED = -2


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a task is that has begun and not ended.

    Attributes:
        operator: position of the operator that works on it, or ``None`` between two.
        seconds: since its first operator began.
        done: of what the operator does within.
        total: the same; 0 if it does not tell.
    """

    operator: int | None
    seconds: float
    done: int = 0
    total: int = 0


class Board:
    """One slot a task; pickled by handing the memory to the child.

    Args:
        context: of the processes that share it.
    """

    def __init__(self, context: SpawnContext) -> None:
        """Begin with all slots free."""
        self._state: Any = context.RawArray("q", SLOTS)
        self._since: Any = context.RawArray("d", SLOTS)
        self._done: Any = context.RawArray("q", SLOTS)
        self._total: Any = context.RawArray("q", SLOTS)
        self._sums: Any = context.RawArray("d", [-1.0, 0.0])

    # The supervisor's side

    def clear(self, slot: int) -> None:
        """Make a slot ready for a task that has not begun."""
        self._since[slot] = 0.0
        self._state[slot] = 0

    def progress(self, slot: int) -> Progress | None:
        """Return where the task of a slot is, or ``None`` if it has not begun, or has ended."""
        state = self._state[slot]
        if state in (0, _ENDED):
            return None
        seconds = time.monotonic() - self._since[slot]
        inside = self._done[slot], self._total[slot]
        return Progress(state - 1 if state > 0 else None, seconds, *inside)

    def is_untouched(self, slot: int) -> bool:
        """Return whether the task of a slot has not begun."""
        return not self._state[slot]

    @property
    def network_seconds(self) -> float | None:
        """For how long the child's network has run; ``None`` if it has none."""
        seconds: float = self._sums[0]
        return None if seconds < 0 else seconds

    @property
    def read_bytes(self) -> int:
        """How many bytes its loaders have fetched, as far as they count."""
        return int(self._sums[1])

    # The child's side

    def begin(self, slot: int, operator: int) -> None:
        """Say that operator number *operator* begins on the task."""
        if not self._since[slot]:
            self._since[slot] = time.monotonic()
        self._total[slot] = 0
        self._state[slot] = operator + 1

    def advance(self, slot: int, done: int, total: int) -> None:
        """Say how far the operator is within."""
        self._done[slot] = done
        self._total[slot] = total

    def count(self, network_seconds: float | None, read_bytes: int) -> None:
        """Say for how long the network has run, and how much was read."""
        self._sums[0] = -1.0 if network_seconds is None else network_seconds
        self._sums[1] = read_bytes

    def wait(self, slot: int) -> None:
        """Say that an operator is done with the task."""
        self._state[slot] = _WAITING

    def end(self, slot: int) -> None:
        """Say that the task has come to the end of the line."""
        self._state[slot] = _ENDED

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
    """

    operator: int | None
    seconds: float


class Board:
    """One slot a task; pickled by handing the memory to the child.

    Args:
        context: of the processes that share it.
    """

    def __init__(self, context: SpawnContext) -> None:
        """Begin with all slots free."""
        self._state: Any = context.RawArray("q", SLOTS)
        self._since: Any = context.RawArray("d", SLOTS)

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
        return Progress(state - 1 if state > 0 else None, seconds)

    def is_untouched(self, slot: int) -> bool:
        """Return whether the task of a slot has not begun."""
        return not self._state[slot]

    # The child's side

    def begin(self, slot: int, operator: int) -> None:
        """Say that operator number *operator* begins on the task."""
        if not self._since[slot]:
            self._since[slot] = time.monotonic()
        self._state[slot] = operator + 1

    def wait(self, slot: int) -> None:
        """Say that an operator is done with the task."""
        self._state[slot] = _WAITING

    def end(self, slot: int) -> None:
        """Say that the task has come to the end of the line."""
        self._state[slot] = _ENDED

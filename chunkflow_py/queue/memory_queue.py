"""A queue in the memory of this process, for tests and simulations."""

from __future__ import annotations

import math
import time
from collections import deque
from dataclasses import dataclass, field
from heapq import heappop, heappush
from threading import Condition
from typing import TYPE_CHECKING

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import QueueError
from chunkflow_py.queue.queue_protocol import Counts, DeadLetter, Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence


@dataclass(slots=True)
class _Taken:
    """A message that was received at least once.

    Attributes:
        body: text of the message.
        receives: number of times that the message was received.
        ends: time at which the message can be received again, in seconds of the queue's clock.
        is_leased: whether the message is leased until `ends`; false after a release.
        changes: number of times that `ends` was set. The heap `_State.ends` may also contain
            entries of this message with a smaller number; these entries are ignored.
    """

    body: str
    receives: int
    ends: float = 0.0
    is_leased: bool = False
    changes: int = 0


@dataclass(slots=True)
class _State:
    """The messages that all `MemoryQueue` objects of one name share."""

    changed: Condition = field(default_factory=Condition)
    waiting: deque[str] = field(default_factory=deque)  # never received
    taken: dict[int, _Taken] = field(default_factory=dict)
    # A heap of (time, number, changes).
    ends: list[tuple[float, int, int]] = field(default_factory=list)
    dead: list[DeadLetter] = field(default_factory=list)
    numbers: int = 0


_STATES: dict[str, _State] = {}


class MemoryQueue:
    """A queue in this process's memory; implements `chunkflow_py.queue.queue_protocol.Queue`."""

    longest_lease_s = math.inf

    def __init__(
        self, name: str, *, create: bool = False, clock: Callable[[], float] | None = None
    ) -> None:
        """Open the queue called *name*.

        Args:
            name: name of the queue, unique within this process.
            create: whether to create the queue if it does not exist.
            clock: function that returns seconds, for tests; if given, `receive` never waits.

        Raises:
            QueueError: the queue does not exist.
        """
        self.url = f"memory://{name}"
        if create:
            _STATES.setdefault(name, _State())
        if name not in _STATES:
            msg = (
                f"queue {self.url} does not exist in this process; "
                f"generate-tasks --queue-name and submit --queue create it"
            )
            raise QueueError(msg)
        self._state = _STATES[name]
        self._clock = clock or time.monotonic
        self._waits = clock is None

    def send(self, bodies: Iterable[str]) -> int:
        """Add messages; return the number of messages sent."""
        sent = 0
        for sent, body in enumerate(bodies, 1):  # noqa: B007 returned below
            with self._state.changed:
                self._state.waiting.append(body)
                self._state.changed.notify()
        return sent

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Return free messages, each leased for *lease_s* seconds; *most* limits their number."""
        deadline = self._clock() + wait_s
        with self._state.changed:
            while True:
                now = self._clock()
                messages = self._take(most, now, now + lease_s)
                if messages or now >= deadline or not self._waits:
                    return messages
                ends = self._state.ends
                until = min(deadline, ends[0][0]) if ends else deadline
                self._state.changed.wait(max(0.001, until - now))

    def _take(self, most: int, now: float, ends: float) -> list[Message]:
        state = self._state
        free: list[tuple[int, _Taken]] = []
        while len(free) < most and state.ends and state.ends[0][0] <= now:
            _, number, changes = heappop(state.ends)
            taken = state.taken.get(number)
            if taken is not None and taken.changes == changes:
                free.append((number, taken))
        while len(free) < most and state.waiting:
            state.numbers += 1
            taken = state.taken[state.numbers] = _Taken(state.waiting.popleft(), 0)
            free.append((state.numbers, taken))
        return [self._lease(number, taken, ends) for number, taken in free]

    def _lease(self, number: int, taken: _Taken, ends: float) -> Message:
        taken.receives += 1
        self._hide(number, taken, ends, is_leased=True)
        return Message(taken.body, f"{number}:{taken.receives}", taken.receives)

    def _hide(self, number: int, taken: _Taken, ends: float, *, is_leased: bool) -> None:
        taken.ends, taken.is_leased = ends, is_leased
        taken.changes += 1
        heappush(self._state.ends, (ends, number, taken.changes))

    def _find_leased(self, message: Message) -> tuple[int, _Taken] | None:
        number, _, receives = message.handle.partition(":")
        if not (is_digits(number) and is_digits(receives)):
            return None
        taken = self._state.taken.get(int(number))
        if taken is None or not taken.is_leased or taken.receives != int(receives):
            return None
        return int(number), taken

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove the messages of finished tasks; return the messages whose lease was lost."""
        lost = []
        with self._state.changed:
            for message in messages:
                if leased := self._find_leased(message):
                    del self._state.taken[leased[0]]
                else:
                    lost.append(message)
        return lost

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Make leases end *lease_s* seconds from now; return the messages whose lease was lost."""
        lost = []
        with self._state.changed:
            for message in messages:
                if leased := self._find_leased(message):
                    self._hide(*leased, self._clock() + lease_s, is_leased=True)
                else:
                    lost.append(message)
            self._state.changed.notify_all()
        return lost

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Make messages available to all receivers after *delay_s* seconds."""
        with self._state.changed:
            for message in messages:
                if leased := self._find_leased(message):
                    self._hide(*leased, self._clock() + delay_s, is_leased=False)
            self._state.changed.notify_all()

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Move messages to the dead letters, with the reason."""
        with self._state.changed:
            for message in messages:
                if leased := self._find_leased(message):
                    del self._state.taken[leased[0]]
                    self._state.dead.append(DeadLetter(leased[1].body, reason))

    def counts(self, *, dead: bool = True) -> Counts:  # noqa: ARG002 counting them is free
        """Count the waiting, leased and dead messages."""
        with self._state.changed:
            now = self._clock()
            taken = self._state.taken.values()
            leased = sum(each.is_leased and each.ends > now for each in taken)
            waiting = len(self._state.waiting) + len(taken) - leased
            return Counts(waiting, leased, len(self._state.dead))

    def leased(self, most: int) -> list[str]:
        """Return the texts of messages that are leased now; *most* limits their number."""
        with self._state.changed:
            now = self._clock()
            taken = self._state.taken.values()
            return [each.body for each in taken if each.is_leased and each.ends > now][:most]

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the dead letters; they stay in the queue."""
        yield from list(self._state.dead)

    def close(self) -> None:
        """Do nothing: the messages stay in memory until the process ends."""

"""Leases of messages, renewed by a thread from the moment of receipt.

```
receipt                 renewed            renewed                     the queue does not answer
   |-- a third of it --|-- a third of it --|-- tried again … ---------|
   |<------------------ lease ------------------->|                    ends: it is lost
```

A lease is counted from before the request that began it, by a clock that goes on while the machine
sleeps. One that has ended is lost for good, even if the queue would still renew it: somebody else
may have received the message meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.core.failpoints import removed
from chunkflow_py.errors import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.queue.queue_protocol import Message, Queue

logger = logging.getLogger(__name__)

DROP_WAIT_S = 1.0  # for a renewal under way


def boottime() -> float:
    """Return seconds since the machine started, also those in which it slept."""
    # Only Linux has it; elsewhere a clock that no one can set is the next best.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(eq=False, slots=True)
class Held:
    """A message whose lease is renewed; it is the lease of a task (`chunkflow_py.core.task.Lease`).

    Attributes:
        message: as it was received.
        ends: before this time of the keeper's clock the lease surely lasts, in seconds.
        until: beyond which the queue lets nobody keep it, by the same clock.
    """

    message: Message
    ends: float
    until: float
    _keeper: LeaseKeeper = field(repr=False)
    _kept: bool = True
    _lost: bool = False

    @property
    def lost(self) -> bool:
        """Whether the lease ended before the message was dropped; it stays so."""
        if self._kept and not self._lost and self._keeper.clock() >= self.ends:
            self._lost = True
        return self._lost

    @property
    def dropped(self) -> bool:
        """Whether it was given back to the queue: acknowledged, released or buried."""
        return not self._kept

    def acknowledge(self) -> None:
        """Drop it, and tell the queue that the task is finished, unless somebody else has it."""
        self._keeper.drop(self)
        if self._lost or self._keeper.queue.acknowledge([self.message]):
            logger.warning("%s was not leased to us any more when finished", self.message.body)

    def release(self, delay_s: float = 0.0) -> None:
        """Drop it, and let others receive the message after *delay_s*."""
        self._keeper.drop(self)
        if not self._lost:
            self._keeper.queue.release([self.message], delay_s)

    def bury(self, reason: str) -> None:
        """Drop it, and put the message aside with the reason."""
        self._keeper.drop(self)
        if not self._lost:
            self._keeper.queue.bury([self.message], reason)


class LeaseKeeper:
    """Renews the leases of the messages it holds, every third of a lease, until they are dropped.

    Args:
        queue: from which the messages come.
        lease_s: how long each renewal lasts, in seconds.
        clock: in seconds; must go on while the machine sleeps.
        on_lost: called in the keeper's thread for each message whose lease is lost.

    Attributes:
        renewals, losses: of leases so far.
    """

    def __init__(
        self,
        queue: Queue,
        lease_s: float,
        *,
        clock: Callable[[], float] = boottime,
        on_lost: Callable[[Held], None] | None = None,
    ) -> None:
        """Begin with nothing held; the thread starts with the first message."""
        self.queue, self.lease_s, self.clock, self.on_lost = queue, lease_s, clock, on_lost
        self.renewals = self.losses = 0
        self._held: set[Held] = set()
        self._under_way: set[Held] = set()
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LeaseKeeper:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop renewing."""
        self.close()

    @property
    def held(self) -> list[Held]:
        """What is held now."""
        with self._changed:
            return list(self._held)

    def receive(self, most: int, wait_s: float = 0.0) -> list[Held]:
        """Receive up to *most* messages and hold them.

        Waits up to *wait_s* for the first, but no longer than a third of a lease: who waits cannot
        tell when within the wait a lease has begun.
        """
        since = self.clock()
        messages = self.queue.receive(most, self.lease_s, min(wait_s, self.lease_s / 3))
        return [self.hold(message, since) for message in messages]

    def hold(self, message: Message, since: float | None = None) -> Held:
        """Renew the lease of *message* from now on.

        Args:
            message: received with a lease of `lease_s`.
            since: the time of the clock before the request that received it; ``None``: now.
        """
        since = self.clock() if since is None else since
        held = Held(message, since + self.lease_s, since + self.queue.longest_lease_s, self)
        with self._changed:
            self._held.add(held)
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="leases", daemon=True)
                self._thread.start()
            self._changed.notify_all()
        return held

    def drop(self, *held: Held) -> None:
        """Stop renewing these; to be called before they are acknowledged or released.

        Waits for a renewal of theirs that is under way, for up to `DROP_WAIT_S`: it would hide a
        message again that is released meanwhile.
        """
        with self._changed:
            for each in held:
                _ = each.lost  # from now on it does not change
                each._kept = False
                self._held.discard(each)
            self._changed.wait_for(lambda: self._under_way.isdisjoint(held), DROP_WAIT_S)

    def release_all(self) -> None:
        """Give back whatever is held, at once."""
        held = self.held
        self.drop(*held)
        self.queue.release([each.message for each in held if not each.lost])

    def close(self) -> None:
        """Stop renewing; what is still held ends by itself."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        again_at = 0.0  # after a failure
        while True:
            with self._changed:
                if self._closed:
                    return
                now = self.clock()
                # Those that are nearly due go along: one request renews many.
                due = [held for held in self._held if self._due(held) <= now + self.lease_s / 12]
                if not due or now < again_at:
                    next_s = min((self._due(held) for held in self._held), default=now + 60) - now
                    next_s = max(next_s, again_at - now, 0.001)
                    # Looks up now and then: the condition's clock stops while the machine sleeps.
                    self._changed.wait(min(next_s, self.lease_s / 12))
                    continue
                self._under_way = set(due)
            try:
                answered = self._renew(due)
            finally:
                with self._changed:
                    self._under_way = set()
                    self._changed.notify_all()
            again_at = 0.0 if answered else self.clock() + self.lease_s / 24

    def _due(self, held: Held) -> float:
        if held.ends + self.lease_s / 3 > held.until:  # the queue would not renew it
            return held.ends + self.lease_s / 12
        return held.ends - self.lease_s * 2 / 3

    def _renew(self, due: Sequence[Held]) -> bool:
        """Renew or lose each; return whether the queue has answered."""
        before = self.clock()
        self._lose([held for held in due if held.lost])
        due = [held for held in due if not held.lost]
        if not due:
            return True
        if removed("heartbeat"):
            return False
        try:
            refused = self.queue.extend([held.message for held in due], self.lease_s)
        except BaseException as error:  # noqa: BLE001  (the thread must live, or all leases end)
            left = min(held.ends for held in due) - self.clock()
            logger.warning("cannot renew leases, of which %.0f s are left: %s", left, named(error))
            return False
        gone = {message.handle for message in refused}
        for held in due:
            # One that ended before the answer came stays lost.
            if held.message.handle not in gone and not held.lost:
                held.ends = before + self.lease_s
                self.renewals += 1
        self._lose([held for held in due if held.message.handle in gone])
        return True

    def _lose(self, lost: Sequence[Held]) -> None:
        with self._changed:
            # What was dropped meanwhile was acknowledged or released, and therefore not renewed.
            lost = [held for held in lost if held in self._held]
            self._held.difference_update(lost)
            self.losses += len(lost)
            for held in lost:
                held._lost = True
        for held in lost:
            logger.warning("the lease of %s is lost; another worker may take it", held.message.body)
            if self.on_lost:
                self.on_lost(held)

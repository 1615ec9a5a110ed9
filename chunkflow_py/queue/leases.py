"""Renew the leases of messages, in a thread, until the messages are no longer needed.

The lease of a message is renewed until the message is acknowledged, released, or buried, that is,
moved to the dead letters.

```
receipt             renewed             renewed      the queue does not answer: retries …
   |-- lease / 3 ------|-- lease / 3 ------|-- lease / 3 -|-- lease / 3 -|-- lease / 3 -|
                                           |<------------------ lease ----------------->| lost
```

The duration of a lease is counted from the moment before the request is sent, with a clock that
keeps running while the machine sleeps. A lease that has ended stays lost, even if the queue would
still renew it, because another worker may have received the message in the meantime.
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.core.failpoints import removed
from chunkflow_py.errors import named
from chunkflow_py.queue.queue_protocol import EndsWaits

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.queue.queue_protocol import Message, Queue

logger = logging.getLogger(__name__)

DROP_WAIT_S = 1.0  # longest wait for a renewal under way


def boottime() -> float:
    """Return the seconds since the machine started, including the time it was asleep."""
    # Only Linux has CLOCK_BOOTTIME; elsewhere, use a clock that cannot be set.
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


@dataclass(eq=False, slots=True)
class Held:
    """A received message whose lease is renewed; implements `chunkflow_py.core.task.Lease`.

    Attributes:
        message: the message, with the handle of its receipt.
        ends: time until which the lease is certain to last without another renewal.
        until: latest time at which the lease can end; some queues limit the total duration of a
            lease, including renewals. `ends` and `until` are in seconds of the clock of the
            `LeaseKeeper`.
    """

    message: Message
    ends: float
    until: float
    _keeper: LeaseKeeper = field(repr=False)
    _kept: bool = True
    _lost: bool = False

    @property
    def lost(self) -> bool:
        """Whether the lease ended before the message was acknowledged, released or buried.

        A lost lease stays lost.
        """
        if self._kept and not self._lost and self._keeper.clock() >= self.ends:
            self._lost = True
        return self._lost

    @property
    def dropped(self) -> bool:
        """Whether the message was acknowledged, released or buried."""
        return not self._kept

    def acknowledge(self) -> None:
        """Stop renewing the lease, and remove the message unless the lease is lost."""
        self._keeper.drop(self)
        if self._lost or self._keeper.queue.acknowledge([self.message]):
            logger.warning(
                "the lease of %s was lost before its task was acknowledged; another worker may "
                "repeat the task",
                self.message.body,
            )

    def release(self, delay_s: float = 0.0) -> None:
        """Stop renewing the lease; all receivers can take the message after *delay_s* seconds."""
        self._keeper.drop(self)
        if not self._lost:
            self._keeper.queue.release([self.message], delay_s)

    def bury(self, reason: str) -> None:
        """Stop renewing the lease, and move the message with *reason* to the dead letters."""
        self._keeper.drop(self)
        if not self._lost:
            self._keeper.queue.bury([self.message], reason)


class LeaseKeeper:
    """Renews the leases of messages, each lease when a third of its duration has passed.

    Args:
        queue: queue that delivered the messages.
        lease_s: duration of a lease, and of each renewal, in seconds.
        clock: function that returns seconds; the clock must keep running while the machine sleeps.
        on_lost: function that the keeper's thread calls with each message whose lease is lost.

    Attributes:
        renewals: number of renewed leases.
        losses: number of lost leases.
    """

    def __init__(
        self,
        queue: Queue,
        lease_s: float,
        *,
        clock: Callable[[], float] = boottime,
        on_lost: Callable[[Held], None] | None = None,
    ) -> None:
        self.queue, self.lease_s, self.clock, self.on_lost = queue, lease_s, clock, on_lost
        self.renewals = self.losses = 0
        self._held: set[Held] = set()
        self._under_way: set[Held] = set()
        self._closed = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> LeaseKeeper:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def held(self) -> list[Held]:
        """The messages whose leases are renewed."""
        with self._changed:
            return list(self._held)

    def receive(
        self, most: int, wait_s: float = 0.0, stop: threading.Event | None = None
    ) -> list[Held]:
        """Receive messages, and renew their leases from now on; *most* limits their number.

        If no message is free, wait for one, up to *wait_s* seconds, but at most a third of the
        duration of a lease. If the queue implements `EndsWaits`, setting *stop* ends the wait.
        Other queues ignore *stop*.

        The queue does not report when a lease began. Therefore, the lease is assumed to begin when
        the wait begins.
        """
        since = self.clock()
        wait_s = min(wait_s, self.lease_s / 3)
        if isinstance(self.queue, EndsWaits):
            messages = self.queue.receive_until(stop, most, self.lease_s, wait_s)
        else:
            messages = self.queue.receive(most, self.lease_s, wait_s)
        return [self.hold(message, since) for message in messages]

    def hold(self, message: Message, since: float | None = None) -> Held:
        """Renew the lease of *message* from now on.

        Args:
            message: a message that was received with a lease of `lease_s`.
            since: time of `clock` just before the message was requested (default: now).
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
        """Stop renewing the leases of *held*, before the messages are acknowledged or released.

        If a renewal is under way, this method waits up to `DROP_WAIT_S` seconds for its end. A
        renewal that arrived at the queue after the release would hide the message again.
        """
        with self._changed:
            for each in held:
                _ = each.lost  # reading it stores whether the lease is lost by now
                each._kept = False
                self._held.discard(each)
            self._changed.wait_for(lambda: self._under_way.isdisjoint(held), DROP_WAIT_S)

    def release_all(self) -> None:
        """Stop renewing all leases, and release the messages without delay."""
        held = self.held
        self.drop(*held)
        self.queue.release([each.message for each in held if not each.lost])

    def close(self) -> None:
        """Stop renewing all leases, so that the leases expire."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    # --- the thread ----------------------------------------------------------------------------

    def _run(self) -> None:
        retry_at = 0.0  # after a failure
        while True:
            with self._changed:
                if self._closed:
                    return
                now = self.clock()
                # Renew leases that are nearly due in the same request.
                due = [held for held in self._held if self._due(held) <= now + self.lease_s / 12]
                if not due or now < retry_at:
                    next_s = min((self._due(held) for held in self._held), default=now + 60) - now
                    next_s = max(next_s, retry_at - now, 0.001)
                    # Wake up regularly: the condition's clock stops while the machine sleeps.
                    self._changed.wait(min(next_s, self.lease_s / 12))
                    continue
                self._under_way = set(due)
            try:
                has_answered = self._renew(due)
            finally:
                with self._changed:
                    self._under_way = set()
                    self._changed.notify_all()
            retry_at = 0.0 if has_answered else self.clock() + self.lease_s / 24

    def _due(self, held: Held) -> float:
        if held.ends + self.lease_s / 3 > held.until:  # the queue would not renew it
            return held.ends + self.lease_s / 12
        return held.ends - self.lease_s * 2 / 3

    def _renew(self, due: Sequence[Held]) -> bool:
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
            remaining_s = min(held.ends for held in due) - self.clock()
            logger.warning(
                "cannot renew %d leases, the first of which ends in %.0f s: %s",
                len(due),
                remaining_s,
                named(error),
            )
            return False
        refused_handles = {message.handle for message in refused}
        for held in due:
            # A lease that ended before the answer arrived stays lost.
            if held.message.handle not in refused_handles and not held.lost:
                held.ends = before + self.lease_s
                self.renewals += 1
        self._lose([held for held in due if held.message.handle in refused_handles])
        return True

    def _lose(self, lost: Sequence[Held]) -> None:
        with self._changed:
            # Leases that were dropped meanwhile are not lost: their tasks have been settled.
            lost = [held for held in lost if held in self._held]
            self._held.difference_update(lost)
            self.losses += len(lost)
            for held in lost:
                held._lost = True
        for held in lost:
            logger.warning(
                "lost the lease of %s; another worker may execute this task", held.message.body
            )
            if self.on_lost:
                self.on_lost(held)

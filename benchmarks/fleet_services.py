"""Simulated S3 and SQS: objects and messages are real, time and limits are simulated.

| service | limit                                              | what happens beyond               |
|---------|----------------------------------------------------|-----------------------------------|
| S3      | 3,500 writes, 5,500 reads a second under a prefix  | SlowDown, tried again with jitter |
| S3      | one update of an object at a time                  | a conflict, read and tried again  |
| SQS     | 120,000 messages in flight                         | OverLimit: nothing is received    |
| SQS     | 12 hours from receipt, however often renewed       | the lease ends                    |
"""

from __future__ import annotations

import heapq
import random
from collections import Counter, defaultdict
from contextlib import contextmanager
from itertools import count, islice
from typing import TYPE_CHECKING

from chunkflow_py.queue.memory_queue import MemoryQueue
from chunkflow_py.store.network_retry import RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chunkflow_py.queue.queue_protocol import Message

READS_PER_S, WRITES_PER_S = 5500, 3500
IN_FLIGHT = 120_000
BATCH = 10  # messages of one request
LISTED = 1000  # keys of one request
LATENCY_S = {"GET": 0.03, "PUT": 0.06, "LIST": 0.08, "DELETE": 0.03}
CONNECTIONS = 16  # of a worker
RETRY_POLICY = RetryPolicy()


class Clock:
    """The time of a simulation in seconds, which the simulation sets."""

    now = 0.0

    def __call__(self) -> float:
        """Return the time."""
        return self.now


class Timeline(Clock):
    """A clock, and what will happen at which time."""

    def __init__(self) -> None:
        """Start at time 0, with nothing to happen."""
        self._pending: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Call a function at a simulated time."""
        heapq.heappush(self._pending, (when, next(self._numbers), event))

    def step(self) -> None:
        """Go to the time of the next event, and call it."""
        self.now, _, event = heapq.heappop(self._pending)
        event()


class SimulatedS3:
    """Objects in memory with the latency of S3; see `chunkflow_py.store.store_protocol.Store`.

    Attributes:
        requests: number of requests of each kind.
        slow_downs: number of rejections; each rejected request is tried again.
        conflicts: number of updates that failed because of a concurrent update.
        elapsed: time of the requests since it was set to 0, one after the other, in seconds.
    """

    url = "mem://fleet"
    is_local = False
    connections = 1

    def __init__(self, clock: Clock) -> None:
        """Start without objects."""
        self._clock = clock
        self._folders: dict[str, dict[str, bytes]] = defaultdict(dict)
        self._rates: dict[int, Counter[tuple[str, bool]]] = defaultdict(Counter)  # by second
        self._updated: dict[str, tuple[float, float]] = {}
        self._connections = 1
        self.requests: Counter[str] = Counter()
        self.slow_downs = self.conflicts = 0
        self.elapsed = 0.0

    def __len__(self) -> int:
        """Return the number of objects."""
        return sum(map(len, self._folders.values()))

    @contextmanager
    def in_background(self) -> Iterator[None]:
        """Run requests in the background: nobody waits for them, and they share connections."""
        before, self._connections = self.elapsed, CONNECTIONS
        yield
        self.elapsed, self._connections = before, 1

    # --- limits ----------------------------------------------------------------------------------

    def ask(self, kind: str, prefix: str, number: int = 1, connections: int = 1) -> None:
        """Make requests under a prefix."""
        self.requests[kind] += number
        is_read = kind in ("GET", "LIST")
        most = READS_PER_S if is_read else WRITES_PER_S
        tries = 0
        while number:
            second = int(self._clock.now + self.elapsed)
            used = self._rates[second][prefix, is_read]
            fits = min(number, most - used)
            self._rates[second][prefix, is_read] = used + fits
            number -= fits
            self.elapsed += -(-fits // connections) * LATENCY_S[kind] / self._connections
            if number:
                self.slow_downs += number
                bound = min(RETRY_POLICY.longest_wait_s, RETRY_POLICY.first_wait_s * 2**tries)
                self.elapsed += random.uniform(0, bound)
                tries += 1
        if len(self._rates) > 1000:
            since = int(self._clock.now)
            for second in [second for second in self._rates if second < since]:
                del self._rates[second]

    # --- objects ---------------------------------------------------------------------------------

    def _folder(self, key: str) -> tuple[str, dict[str, bytes]]:
        prefix = key[: key.rindex("/") + 1]
        return prefix, self._folders[prefix]

    def get(self, key: str) -> bytes | None:
        """Return the whole object."""
        prefix, folder = self._folder(key)
        self.ask("GET", prefix)
        return folder.get(key)

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return a part of an object."""
        data = self.get(key)
        return None if data is None else data[start : stop if start >= 0 else None]

    def put(self, key: str, data: bytes | memoryview, **_: object) -> None:
        """Write an object."""
        prefix, folder = self._folder(key)
        self.ask("PUT", prefix)
        folder[key] = bytes(data)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless there is one."""
        prefix, folder = self._folder(key)
        self.ask("PUT", prefix)
        if key in folder:
            return False
        folder[key] = bytes(data)
        return True

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace an object; after a concurrent update, read and change it again."""
        prefix, folder = self._folder(key)
        connections, self._connections = self._connections, 1
        try:
            while True:
                begun = self._clock.now + self.elapsed
                self.ask("GET", prefix)
                new = change(folder.get(key))
                self.ask("PUT", prefix)
                ended, other = self._clock.now + self.elapsed, self._updated.get(key, (0.0, 0.0))
                if begun >= other[1] or ended <= other[0]:
                    break
                self.conflicts += 1
        finally:
            self._connections = connections
        self._updated[key] = begun, ended
        folder[key] = bytes(new)
        return new

    def delete(self, key: str) -> None:
        """Remove an object."""
        prefix, folder = self._folder(key)
        self.ask("DELETE", prefix)
        folder.pop(key, None)

    def size(self, key: str) -> int | None:
        """Return the length of an object."""
        data = self.get(key)
        return None if data is None else len(data)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield keys."""
        folder = prefix[: prefix.rfind("/") + 1]
        found: list[str] = []
        for name in [name for name in self._folders if name.startswith(folder)]:
            found += [key for key in self._folders[name] if key.startswith(prefix)]
        self.ask("LIST", folder, 1 + len(found) // LISTED)
        yield from found


class SimulatedSqs(MemoryQueue):
    """Messages in memory, sent when few wait, and the number of requests.

    Attributes:
        requests: number of requests; a request carries up to ten messages.
        over_limit: number of requests that were refused because too many messages were in flight.
        peak: largest number of messages in flight.
    """

    longest_lease_s = 12 * 3600.0

    def __init__(self, name: str, clock: Clock, bodies: Iterator[str]) -> None:
        """Create the queue; *bodies* are sent when few messages wait, in the same order."""
        super().__init__(name, create=True, clock=clock)
        self._bodies = bodies
        self.requests = self.over_limit = self.peak = 0

    def _asked(self, messages: int) -> None:
        self.requests += max(1, -(-messages // BATCH))

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Receive, unless too many messages are in flight."""
        self._asked(most)
        in_flight = len(self._state.taken)
        self.peak = max(self.peak, in_flight)
        if in_flight >= IN_FLIGHT:
            self.over_limit += 1
            return []
        self._fill()
        return super().receive(most, lease_s, wait_s)

    def _fill(self) -> None:
        if len(self._state.waiting) < IN_FLIGHT:
            self._asked(self.send(islice(self._bodies, IN_FLIGHT)))

    def waiting(self) -> int:
        """Return the number of messages that can be received now, or a part of a large number."""
        self._fill()
        return self.counts().waiting

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove messages."""
        self._asked(len(messages))
        return super().acknowledge(messages)

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Renew leases."""
        self._asked(len(messages))
        return super().extend(messages, lease_s)

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Give messages back."""
        self._asked(len(messages))
        super().release(messages, delay_s)

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Put messages aside: one request to keep them, one to send them, one to remove them."""
        self._asked(3 * BATCH * len(messages))
        super().bury(messages, reason)

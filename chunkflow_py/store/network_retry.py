"""Retry failed network calls, with a back-off and for a limited time.

The back-off is random between 0 and a bound that doubles with each try. With this full jitter,
calls that failed at the same time are not repeated at the same time.

These failures are retried: the HTTP statuses 408, 425, 429, 500, 502, 503 and 504; connections that
are refused, reset or silent; and truncated bodies. All other failures, such as status 403, are
final.

If no connection can be made to a host that has never responded to this process, calls fail after
5 s, because a wrong address is likelier than an outage. Calls that take a long time are logged
while they wait.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

TRANSIENT_STATUS = (408, 425, 429, 500, 502, 503, 504)


@dataclass(frozen=True)
class RetryPolicy:
    """Deadlines and back-off of network calls, all in seconds.

    Attributes:
        connect_s: time limit for opening a connection.
        stall_s: time limit of waiting for data; a connection without data for longer is closed.
        longest_s: time limit of one try; a large object over a slow connection takes minutes.
        budget_s: time after which a call is not tried again; a try in progress may end later.
        unreachable_s: used instead of `budget_s` if no connection can be made to a host that has
            responded to this process before.
        unheard_s: used instead of `budget_s` if no connection can be made to a host that has never
            responded to this process, because the address may be wrong.
        first_wait_s: upper bound of the random wait after the first failure.
        longest_wait_s: upper bound of the random wait after any failure.
    """

    connect_s: float = 5
    stall_s: float = 20
    longest_s: float = 600
    budget_s: float = 120
    unreachable_s: float = 30
    unheard_s: float = 5
    first_wait_s: float = 0.05
    longest_wait_s: float = 10


@dataclass(frozen=True)
class Failure:
    """The cause of a failed network call.

    Attributes:
        message: reason of the failure, without addresses and credentials.
        status: HTTP status, if there was a response.
        code: error code of the cloud service, such as ``NoSuchBucket``; empty if there is none.
        is_transient: whether another try may succeed.
        is_unreachable: whether no connection could be made.
    """

    message: str
    status: int | None = None
    code: str = ""
    is_transient: bool = False
    is_unreachable: bool = False


class CallFailedError(Exception):
    """A call has failed permanently, or has exceeded its time limit.

    Attributes:
        failure: failure of the last try.
        tries: number of tries.
        seconds: total time of all tries and of the waits between them.
    """

    def __init__(self, failure: Failure, tries: int, seconds: float) -> None:
        """Build the message from the last failure and the number of tries."""
        self.failure, self.tries, self.seconds = failure, tries, seconds
        tried = f" ({tries} tries in {seconds:.0f} s)" if tries > 1 else ""
        super().__init__(failure.message + tried)


def retried(
    call: Callable[[], Result],
    understand: Callable[[Exception], Failure],
    retry_policy: RetryPolicy,
    where: str,
    silent_s: float = 0.0,
) -> Result:
    """Call *call*, repeat it after each transient failure, and return its result.

    Args:
        call: function that makes one try; it may be called many times.
        understand: function that classifies an exception that *call* raised; it raises the
            exception again if the network was not the cause.
        retry_policy: deadlines and back-off.
        where: host or bucket, without credentials; named in the log.
        silent_s: seconds for which the server may delay its answer, as in a long poll; this time
            does not count as a long wait in the log.

    Raises:
        CallFailedError: the failure is not transient, or the time limit is exceeded.
    """
    waiting = _Waiting(where, time.monotonic(), retry_policy.budget_s, silent_s)
    with _NOTES.watch(waiting):
        for tries in count(1):
            try:
                result = call()
            except Exception as error:  # noqa: BLE001 `understand` classifies it
                failure = understand(error)
            else:
                _HEARD.add(where)
                return result
            if failure.status is not None:
                _HEARD.add(where)
            elapsed = time.monotonic() - waiting.start
            bound = min(
                retry_policy.longest_wait_s, retry_policy.first_wait_s * 2 ** min(tries - 1, 30)
            )
            wait = random.uniform(0, bound)  # noqa: S311 not a secret
            limit = _limit(failure, retry_policy, where)
            if not failure.is_transient or elapsed >= limit:
                # Without the cause, whose text is the raw response.
                raise CallFailedError(failure, tries, elapsed) from None
            waiting.message, waiting.limit_s = failure.message, limit
            _NOTES.add(where, failure.message)
            time.sleep(min(wait, limit - elapsed))
    raise AssertionError  # pragma: no cover count never ends


_HEARD: set[str] = set()  # hosts that have responded to this process


def _limit(failure: Failure, retry_policy: RetryPolicy, where: str) -> float:
    if not failure.is_unreachable:
        return retry_policy.budget_s
    if where in _HEARD:
        return retry_policy.unreachable_s
    return min(retry_policy.unheard_s, retry_policy.unreachable_s)


@dataclass(eq=False)
class _Waiting:
    """A call in progress, with its host, start time, time limit and last failure."""

    where: str
    start: float
    limit_s: float
    silent_s: float
    message: str = ""


class _Notes:
    """Logs retries, with at most one summary every 10 s, so that retries do not flood the log.

    While calls are in progress, a separate thread also logs the call that has waited longest, so
    that a user who sees no progress learns the reason and the remaining time.
    """

    EVERY_S = 10
    LONG_S = 4  # seconds before a call with failures is logged
    LONG_WITHOUT_AN_ANSWER_S = 8  # the same for a call without failures

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._said = self._said_of_waiting = -float(self.EVERY_S)
        self._waiting: set[_Waiting] = set()
        self._watcher: threading.Thread | None = None
        self._pause = threading.Event()  # never set

    @contextmanager
    def watch(self, waiting: _Waiting) -> Iterator[None]:
        with self._lock:
            self._waiting.add(waiting)
            if self._watcher is None or not self._watcher.is_alive():
                self._watcher = threading.Thread(target=self._look, daemon=True)
                self._watcher.start()
        try:
            yield
        finally:
            with self._lock:
                self._waiting.discard(waiting)

    def _look(self) -> None:
        while True:
            self._pause.wait(1)
            with self._lock:
                if not self._waiting:
                    self._watcher = None
                    return
                # Calls with failures first, then the longest.
                worst = min(
                    self._waiting, key=lambda each: (not each.message, each.start + each.silent_s)
                )
                now = time.monotonic()
                seconds = now - worst.start
                long = self.LONG_WITHOUT_AN_ANSWER_S + worst.silent_s
                if worst.message:
                    long = self.LONG_S
                if seconds < long or now - self._said_of_waiting < self.EVERY_S:
                    continue
                self._said_of_waiting = now
            left = max(0, worst.limit_s - seconds)
            level = logging.WARNING if worst.message else logging.INFO
            message = worst.message or f"a call has taken {seconds:.0f} s"
            logger.log(level, "%s: %s; retries end in %.0f s", worst.where, message, left)

    def add(self, where: str, message: str) -> None:
        with self._lock:
            self._count += 1
            now = time.monotonic()
            if now - self._said < self.EVERY_S:
                return
            number, self._count, self._said = self._count, 0, now
        logger.info("retried %d network calls; the last failure, at %s: %s", number, where, message)


_NOTES = _Notes()

"""The acknowledger of a worker: acknowledges, releases and buries messages in a thread.

To bury a message is to move it to the dead letters. Messages that arrive while a request to the
queue is pending share the next request.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from chunkflow_py.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chunkflow_py.queue.leases import Held, LeaseKeeper

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

TRIES = 3  # for one request; afterwards the leases expire
PAUSE_S = 1.0


class BatchThread(ABC):
    """A thread that processes items in batches.

    Items that arrive while a batch is processed form the next batch.

    Args:
        name: name of the thread.
        on_error: function that is called in the thread with an unexpected error. The thread then
            continues.
    """

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._is_busy = False
        self._is_closed = False
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _add(self, items: Iterable[Any]) -> None:
        with self._changed:
            self._waiting.extend(items)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until all items are processed; return ``False`` after a timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._is_busy, max(0.0, timeout_s)
            )

    def close(self) -> None:
        """Let the thread end after it has processed all items; return without waiting."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._is_closed)
                if not self._waiting:
                    return
                batch = list(self._waiting)
                self._waiting.clear()
                self._is_busy = True
            try:
                self._process(batch)
            except BaseException as error:  # noqa: BLE001  (raised in the supervisor's thread)
                self._on_error(error)
            finally:
                with self._changed:
                    self._is_busy = False
                    self._changed.notify_all()

    @abstractmethod
    def _process(self, batch: list[Any]) -> None: ...


@dataclass(frozen=True, slots=True)
class _Request:
    action: Literal["acknowledge", "release", "bury"]
    leases: Sequence[Held]
    delay_s: float = 0.0
    reason: str = ""


class Acknowledger(BatchThread):
    """Acknowledges and releases messages, and moves messages to the dead letters.

    Messages whose lease is lost are not changed. Each method adds a request for the thread and
    returns without waiting.

    Args:
        keeper: object that renews the leases of the messages, and sends requests to the queue.
        on_error: function that is called in the thread with an unexpected error.
    """

    def __init__(self, keeper: LeaseKeeper, on_error: Callable[[BaseException], None]) -> None:
        self._keeper = keeper
        self._queue = keeper.queue
        super().__init__("acknowledger", on_error)

    def acknowledge(self, leases: Sequence[Held]) -> None:
        """Remove the messages of finished tasks from the queue."""
        self._add([_Request("acknowledge", leases)])

    def release(self, leases: Sequence[Held], delay_s: float = 0.0) -> None:
        """Return messages to the queue; any worker may receive them after *delay_s* seconds."""
        if leases:
            self._add([_Request("release", leases, delay_s)])

    def bury(self, leases: Sequence[Held], reason: str) -> None:
        """Move messages to the dead letters, and store *reason* with each of them."""
        self._add([_Request("bury", leases, reason=reason)])

    def _process(self, batch: list[_Request]) -> None:
        # Renewing one of these leases now would hide its message again after the release.
        self._keeper.drop(*(lease for request in batch for lease in request.leases))
        groups: dict[tuple[str, float, str], list[Held]] = {}
        for request in batch:
            group = groups.setdefault((request.action, request.delay_s, request.reason), [])
            group += [lease for lease in request.leases if not lease.lost]
        # Releases first: other workers wait for these messages.
        for action, delay_s, reason in sorted(groups, key=lambda key: key[0] != "release"):
            messages = [lease.message for lease in groups[action, delay_s, reason]]
            if not messages:
                continue
            if action == "release":
                self._try(partial(self._queue.release, messages, delay_s))
            elif action == "bury":
                self._try(partial(self._queue.bury, messages, reason))
            else:
                lost = self._try(partial(self._queue.acknowledge, messages)) or []
                for message in lost:
                    logger.debug(
                        "the lease of message %s was lost before the message was acknowledged; "
                        "another worker may repeat the task",
                        message.body,
                    )

    def _try(self, request: Callable[[], Result]) -> Result | None:
        for tries in range(TRIES):
            try:
                return request()
            except QueueError as error:
                # After the last try, the lease expires; a second delivery is harmless.
                logger.warning(
                    "cannot acknowledge or release messages of %s: %s", self._queue.url, error
                )
            if tries < TRIES - 1:
                threading.Event().wait(PAUSE_S)
        return None

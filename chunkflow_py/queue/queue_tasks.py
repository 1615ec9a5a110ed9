"""The tasks of a queue for a line of operators: taken one by one, and given back."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.core.task import Task
from chunkflow_py.errors import QueueError
from chunkflow_py.queue.leases import LeaseKeeper
from chunkflow_py.queue.message_body import BodyError, parse_body
from chunkflow_py.queue.queue_protocol import open_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.queue.leases import Held

logger = logging.getLogger(__name__)

POLL_S = 2.0  # of one request; how long ctrl-C may have to wait for it
LONGEST_BACK_OFF_S = 900.0
USUAL_RETRIES = 30


@dataclass
class QueueTasks:
    """The tasks of a queue, each with its lease.

    Attributes:
        queue_name: URL of the queue, or name of one of Amazon SQS.
        lease_s: after which others may take the task of a worker that has died, in seconds.
        num: how many tasks to take; -1: as long as there are any.
        retry_times: how often to look into an empty queue before the line ends. Thirty times take
            longer than a lease: what a worker held that has died comes back before.
        keep_task: acknowledge nothing; what was taken is given back when the line ends.
    """

    queue_name: str
    lease_s: float = 120.0
    num: int = -1
    retry_times: int = USUAL_RETRIES
    keep_task: bool = False
    _stopped: threading.Event = field(default_factory=threading.Event, repr=False)
    _keeper: LeaseKeeper | None = field(default=None, repr=False)

    def __enter__(self) -> QueueTasks:
        """Open the queue."""
        self._keeper = LeaseKeeper(open_queue(self.queue_name), self.lease_s)
        return self

    def __exit__(self, *_: object) -> None:
        """Give back what is held, and close the queue."""
        if self._keeper is not None:
            try:
                self._keeper.release_all()
            except QueueError as error:
                logger.warning("tasks come back when their leases end, not at once: %s", error)
            finally:
                self._keeper.close()
                self._keeper.queue.close()
                self._keeper = None

    def __iter__(self) -> Iterator[Task]:
        """Yield tasks until enough were taken, or the queue stays empty."""
        left = math.inf if self.num < 0 else self.num
        while left and (held := self._next()) is not None:
            try:
                region = parse_body(held.message.body).region
            except BodyError as error:
                logger.warning("put aside: %s", error)
                held.bury(str(error))
                continue
            left -= 1
            yield Task(region, lease=held)

    def _next(self) -> Held | None:
        """Return the next message, or ``None`` if the queue stays empty."""
        if self._keeper is None:
            msg = f"{self.queue_name} is not open: tasks are taken inside of a with block"
            raise QueueError(msg)
        end = time.monotonic() + self.retry_times * max(POLL_S, 1.1 * self.lease_s / USUAL_RETRIES)
        while not self._stopped.is_set():
            left_s = end - time.monotonic()
            if found := self._keeper.receive(1, max(0.0, min(POLL_S, left_s))):
                return found[0]
            if left_s <= 0:
                logger.info("%s is empty", self.queue_name)
                break
        return None

    def stop(self) -> None:
        """Take no more tasks."""
        self._stopped.set()

    def settle(self, task: Task) -> None:
        """Acknowledge a task that is done or skipped, and give back one that failed, for later."""
        held: Held = task.lease  # type: ignore[assignment]  # it is one of ours
        if held.dropped or (self.keep_task and not task.failed):
            return
        if task.failed:
            # Each time later, so that a task that always fails does not keep its worker busy.
            held.release(min(LONGEST_BACK_OFF_S, 30.0 * held.message.receives))
        else:
            held.acknowledge()

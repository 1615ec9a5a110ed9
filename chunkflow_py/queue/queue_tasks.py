"""The source that receives the tasks of a pipeline from a queue, one at a time."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.core.operator_base import SourceBase, hook
from chunkflow_py.core.task import Task
from chunkflow_py.errors import QueueError
from chunkflow_py.queue.leases import LeaseKeeper
from chunkflow_py.queue.message_body import BodyError, parse_body
from chunkflow_py.queue.queue_protocol import open_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.queue.leases import Held

logger = logging.getLogger(__name__)

POLL_S = 2.0  # longest wait of one request, and so of Ctrl-C
LONGEST_BACK_OFF_S = 900.0
USUAL_RETRIES = 30


@dataclass
class QueueTasks(SourceBase):
    """Receives tasks from a queue, and renews the lease of each task until the task has ended.

    Attributes:
        queue_name: URL of the queue, or name of a queue of Amazon SQS.
        lease_s: duration of a lease in seconds. If a worker dies, another worker receives its task
            after this time.
        num: number of tasks to receive; with -1, tasks are received until the queue is empty.
        retry_times: number of consecutive polls that find the queue empty before the pipeline
            ends. The default, 30 polls, takes longer than a lease. So the tasks of a dead worker
            can be received again before the pipeline ends.
        keep_task: whether to keep finished tasks in the queue; these tasks are released when the
            pipeline ends.
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
        """Release the tasks that are still leased, and close the queue."""
        if self._keeper is not None:
            try:
                self._keeper.release_all()
            except QueueError as error:
                logger.warning(
                    "cannot release tasks: %s; other workers receive the tasks when the leases end",
                    error,
                )
            finally:
                self._keeper.close()
                self._keeper.queue.close()
                self._keeper = None

    def __iter__(self) -> Iterator[Task]:
        """Yield tasks until `num` tasks have been received, or the queue stays empty."""
        remaining = math.inf if self.num < 0 else self.num
        while remaining and (held := self._next()) is not None:
            try:
                region = parse_body(held.message.body).region
            except BodyError as error:
                logger.warning("moved a message to the dead letters: %s", error)
                held.bury(str(error))
                continue
            remaining -= 1
            yield Task(region, lease=held)

    def _next(self) -> Held | None:
        if self._keeper is None:
            msg = f"queue {self.queue_name} is not open; iterate over its tasks inside a with block"
            raise QueueError(msg)
        end = time.monotonic() + self.retry_times * max(POLL_S, 1.1 * self.lease_s / USUAL_RETRIES)
        while not self._stopped.is_set():
            remaining_s = end - time.monotonic()
            if received := self._keeper.receive(1, max(0.0, min(POLL_S, remaining_s))):
                return received[0]
            if remaining_s <= 0:
                logger.info("queue %s is empty", self.queue_name)
                break
        return None

    @hook
    def stop(self) -> None:
        """Receive no more tasks."""
        self._stopped.set()

    @hook
    def settle(self, task: Task) -> None:
        """Acknowledge a done or skipped task, or release a failed task for a later attempt."""
        held: Held = task.lease  # type: ignore[assignment]  # made by __iter__
        if held.dropped or (self.keep_task and not task.failed):
            return
        if task.failed:
            # Wait longer each time, so that a task that always fails does not occupy workers.
            held.release(min(LONGEST_BACK_OFF_S, 30.0 * held.message.receives))
        else:
            held.acknowledge()

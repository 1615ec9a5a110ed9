"""Whether a stage is complete: asked of the ledger while a worker has nothing to do.

Never of the queue alone: what is leased by another worker may come back, and what was acknowledged
is in the ledger. The queue is asked first, since that costs little, and the ledger when nothing
waits there, or what waits does not come: it may be of another run, or there twice.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkflowError
from chunkflow_py.run.worker.failure_policy import fault_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.queue.protocol import Counts, Queue
    from chunkflow_py.run.ledger.ledger import Ledger

FIRST_CHECK_S, LONGEST_CHECK_S = 0.1, 30.0
DISTRUST_S = 5.0  # between two checks, from which on a queue is not believed that tasks wait in it


class CompletionWatch:
    """Asks now and then, while its owner is idle.

    Args:
        queue: of the tasks.
        ledger: of the tasks.
        total: how many there are.
        quiet_s: for which nothing waits and nothing is leased, before that is believed.
        until_complete: whether to wait for tasks that others have.
        post: called in a thread with ``checked`` and what the queue counts, how many tasks have
            ended, and how many of them as failures (``None`` where that was not asked), ``stuck``
            and why, ``fatal`` and an error.
    """

    def __init__(
        self,
        queue: Queue,
        ledger: Ledger,
        total: int,
        quiet_s: float,
        until_complete: bool,
        post: Callable[[str, Any], None],
    ) -> None:
        """Begin busy."""
        self._queue, self._ledger, self._total, self._post = queue, ledger, total, post
        self._quiet_s, self._until_complete = quiet_s, until_complete
        self._idle_since: float | None = None
        self._quiet_since: float | None = None
        self._check_at, self._check_s, self._is_checking = 0.0, FIRST_CHECK_S, False

    def busy(self) -> None:
        """Say that there is work."""
        self._idle_since = self._quiet_since = None

    def idle(self, now: float) -> float:
        """Say that there is nothing to do; return for how many seconds there was nothing."""
        if self._idle_since is None:
            self._idle_since = now
            self._check_at, self._check_s = now + FIRST_CHECK_S, FIRST_CHECK_S
        elif not self._is_checking and now >= self._check_at:
            self._is_checking = True
            threading.Thread(target=self._check, name="check", daemon=True).start()
        return now - self._idle_since

    def _check(self) -> None:
        queued: Counts | None = None
        ended: int | None = None
        dead: int | None = None
        try:
            queued = self._queue.counts(dead=False)
            if queued.waiting == 0 or self._check_s > DISTRUST_S:
                ended = self._ledger.ended()
                if ended >= self._total:
                    recorded = self._ledger.counts()
                    ended, dead = recorded.finished, recorded.dead
        except ChunkflowError as error:
            if fault_of(error).is_final:
                self._post("fatal", error)
            else:
                self._post("stuck", str(error))
        except BaseException as error:  # noqa: BLE001  (raised in the supervisor's thread)
            self._post("fatal", error)
        self._post("checked", (queued, ended, dead))

    def checked(self, now: float, queued: Counts | None, ended: int | None) -> str | None:
        """Take what a check has found; return why there is no use in waiting, if there is none."""
        self._is_checking = False
        # Many workers wait for the last task: they must not all ask at the same time.
        self._check_at = now + self._check_s * random.uniform(0.7, 1.3)  # noqa: S311
        self._check_s = min(LONGEST_CHECK_S, 1.5 * self._check_s)
        if self._idle_since is None or queued is None or ended is None or queued.waiting:
            self._quiet_since = None
            return None
        missing = self._total - ended
        if not self._until_complete:
            return f"the queue is empty; {missing} tasks are not recorded yet"
        if queued.leased:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now - self._quiet_since > self._quiet_s:
            return f"{missing} tasks are neither queued nor recorded; chunkflow repair queues them"
        return None

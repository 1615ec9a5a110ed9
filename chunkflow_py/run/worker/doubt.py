"""Tasks whose workers end with them, found out by how often their messages have come.

A child that dies is counted by its supervisor. Where all of a worker dies, as when a container's
limit of memory ends its processes, nobody is left to count: the message just comes again. So a task
whose message has come too often is *doubtful*:

```
came more than three times -> begun, in the ledger -> runs alone -> record or failure, as ever
                                     |                   |
                          counted by who gets it next    given back in order: withdrawn
```

That a message has come is no failure by itself: releases and drains are not the task's fault. Nor
is a mark a failure like others: workers are killed from outside, too, however healthy the task.
Such attempts are a kind of their own, ``worker-lost``; only many of them end a task.
"""

from __future__ import annotations

import random
import threading
from typing import TYPE_CHECKING

from chunkflow_py.run.ledger.record import Failure
from chunkflow_py.run.worker.failure_policy import AttemptLimits, count_failure

if TYPE_CHECKING:
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.record import Record
    from chunkflow_py.run.worker.intake import Job

RECEIVES = 3  # of a message, after which its task is doubtful
AGAIN_S = 4.0  # at most, before a doubtful task comes again while there is one at work
GIVEN_BACK = "given back by its worker in order"
SILENT = (
    "its worker was not heard of again: it was killed from outside, or this task ended all of its "
    "processes, as where a container has too little memory"
)


class Doubt:
    """What one worker does with doubtful tasks.

    Args:
        ledger: where it is told that they have begun.
        caps: of failures.
        spec: hash of the stage's spec, for the records of tasks that are given up.
        keeps_attempts: whether it must stay in the ledger that an attempt has begun.
    """

    def __init__(
        self, ledger: Ledger, caps: AttemptLimits, spec: str, *, keeps_attempts: bool
    ) -> None:
        """Doubt nothing yet."""
        self._ledger, self._caps, self._spec = ledger, caps, spec
        self._keeps_attempts = keeps_attempts
        self._lock = threading.Lock()
        self._one: Job | None = None  # what runs alone must be the only one that could be blamed

    def is_next(self, job: Job) -> bool:
        """Mark a task if it is doubtful; return whether it can be run now."""
        job.is_doubtful = max(lease.message.receives for lease in job.leases) > RECEIVES
        with self._lock:
            if not job.is_doubtful or (self._one is not None and not _is_over(self._one)):
                return not job.is_doubtful
            self._one = job
            return True

    @staticmethod
    def delay_s() -> float:
        """Return after how many seconds a task comes again that cannot be run now."""
        return random.uniform(AGAIN_S / 2, AGAIN_S)  # noqa: S311 jitter

    def begin(self, job: Job, profile: str | None) -> Record | None:
        """Count what has become of earlier attempts on a doubtful task, and tell that it begins.

        Args:
            job: that is doubtful.
            profile: numerical profile of this worker, if the ledger is told of all attempts.

        Returns:
            The record of a task that is given up instead; it is in the ledger.
        """
        ended = {failure.attempt for failure in self._ledger.failures(job.number)}
        for attempt in self._ledger.attempts(job.number):
            if attempt.record is None and attempt.attempt not in ended:
                who = job.number, job.box, attempt.attempt, "unknown"
                failure = Failure(*who, "worker-lost", SILENT)
                record, _ = count_failure(self._ledger, failure, self._caps, self._spec)
                if record is not None:
                    return record
        self._ledger.begin(job.number, job.attempt, profile or "")
        return None

    def withdraw(self, job: Job) -> None:
        """Tell that an attempt on a doubtful task has ended in order, without an outcome."""
        if not self._keeps_attempts:
            self._ledger.withdraw(job.number, job.attempt)
            attempts = self._ledger.attempts(job.number)
            if all(each.attempt != job.attempt for each in attempts):
                return
        # It has to stay, or is on the task's page by now: say that it was not lost.
        who = job.number, job.box, job.attempt, "unknown"
        self._ledger.fail(Failure(*who, "transient", GIVEN_BACK))


def _is_over(job: Job) -> bool:
    return all(lease.dropped or lease.lost for lease in job.leases)

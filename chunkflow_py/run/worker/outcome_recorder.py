"""The recorder of a worker: writes outcomes to the ledger before their messages are acknowledged.

```
done, skipped -> write the record (durable) -> acknowledge the message
failed        -> count the failure -> release for a later attempt, or record as dead and bury
no outcome    -> remove the mark of a suspected poison task -> release
```

To bury a message is to move it to the dead letters. A poison task is a task that kills its worker;
`chunkflow_py.run.worker.task_receiver` explains the mark.

Outcomes that arrive during a write to the ledger are written together in the next write, which
waits only once for the disk. The messages of these tasks share one request to the queue.
"""

from __future__ import annotations

import logging
import random
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from chunkflow_py.core.failpoints import reached, removed
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.run.worker.acknowledger import PAUSE_S, BatchThread
from chunkflow_py.run.worker.failure_policy import AttemptLimits, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.worker.acknowledger import Acknowledger
    from chunkflow_py.run.worker.task_receiver import Job, PoisonTaskGuard

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

LONGEST_PAUSE_S = 15.0


class OutcomeRecorder(BatchThread):
    """Writes records and failures to the ledger, then passes messages to the acknowledger.

    Args:
        ledger: ledger of the step.
        acknowledger: acknowledges or releases the messages of recorded tasks, or moves them to the
            dead letters.
        limits: number of failures after which a task is given up.
        spec: hash of the step, for the records of tasks that are given up.
        guard: detector of poison tasks.
        post: function that is called in the recorder's thread with the name and the content of an
            event. ``recorded``: a list of tuples (job, record, failure); the record is ``None`` if
            none was written, and the failure is ``None`` if the attempt did not fail. ``stuck``:
            the reason why a write to the ledger has failed and is repeated. ``fatal``: an error.
        records_attempts: whether to record the output of an attempt even if another attempt on
            the same task was recorded first.
    """

    def __init__(
        self,
        ledger: Ledger,
        acknowledger: Acknowledger,
        limits: AttemptLimits,
        spec: str,
        guard: PoisonTaskGuard,
        post: Callable[[str, Any], None],
        *,
        records_attempts: bool = False,
    ) -> None:
        self._records_attempts = records_attempts
        self._ledger = ledger
        self._acknowledger = acknowledger
        self._limits = limits
        self._spec = spec
        self._guard = guard
        self._post = post
        self._given_up = threading.Event()
        super().__init__("recorder", lambda error: post("fatal", error))

    def record(self, outcomes: Sequence[tuple[Job, Record | FailedAttempt]]) -> None:
        """Queue outcomes, which the thread writes to the ledger; return immediately."""
        self._add(outcomes)

    def withdraw(self, job: Job, delay_s: float) -> None:
        """Queue the release of a suspected poison task without an outcome; return at once."""
        self._add([(job, delay_s)])

    def give_up(self) -> None:
        """Stop retrying failed writes, and release the tasks whose outcomes were not written."""
        self._given_up.set()

    def _process(self, batch: list[tuple[Job, Record | FailedAttempt | float]]) -> None:
        records: list[tuple[Job, Record]] = []
        failures: list[tuple[Job, FailedAttempt]] = []
        for job, outcome in batch:
            if isinstance(outcome, Record):
                records.append((job, outcome))
            elif isinstance(outcome, FailedAttempt):
                failures.append((job, outcome))
            else:
                self._retrying(partial(self._guard.withdraw, job))
                self._acknowledger.release(job.leases, outcome)
        recorded: list[tuple[Job, Record | None, FailedAttempt | None]] = []
        if records:
            is_recorded = self._record(records)
            recorded += [(job, record if is_recorded else None, None) for job, record in records]
        for job, failure in failures:
            recorded.append((job, self._count(job, failure), failure))
        if recorded:
            self._post("recorded", recorded)

    def _record(self, ended: Sequence[tuple[Job, Record]]) -> bool:
        leases = [lease for job, _ in ended for lease in job.leases]
        if unsafe := removed("ledger-before-acknowledgement"):
            self._acknowledger.acknowledge(leases)
            self._acknowledger.flush(60)
        reached("written-not-recorded")
        records = [record for _, record in ended]
        first = self._retrying(lambda: self._ledger.record(records))
        if first is None:
            self._acknowledger.release(leases)
            return False
        if self._records_attempts:
            for record, is_first in zip(records, first, strict=True):
                if not is_first:
                    self._retrying(partial(self._ledger.finish, record))
        reached("recorded-not-acknowledged")
        if not unsafe:
            self._acknowledger.acknowledge(leases)
        return True

    def _count(self, job: Job, failure: FailedAttempt) -> Record | None:
        counts = self._retrying(lambda: self._ledger.fail(failure))
        record, delay_s = self._limits.judge(failure, counts or {}, self._spec)
        if counts is None or record is None:
            self._acknowledger.release(job.leases, delay_s)
            return None
        if self._retrying(lambda: self._ledger.record([record])) is None:
            self._acknowledger.release(job.leases)
            return None
        self._acknowledger.bury(job.leases, record.reason or "")
        return record

    def _retrying(self, call: Callable[[], Result]) -> Result | None:
        """Repeat *call* until it succeeds; return ``None`` after a permanent error or `give_up`."""
        pause_s = PAUSE_S
        while True:
            try:
                return call()
            except ChunkflowError as error:
                fault = fault_of(error)
                if fault.is_final:
                    self._post("fatal", error)
                    return None
                logger.warning("cannot write to the ledger, trying again: %s", fault.reason)
                self._post("stuck", fault.reason)
            if self._given_up.wait(pause_s * random.uniform(0.5, 1)):  # noqa: S311 jitter
                return None
            pause_s = min(LONGEST_PAUSE_S, 2 * pause_s)

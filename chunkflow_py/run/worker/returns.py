"""Gives messages back to their queue, and settles tasks in the ledger before: two threads.

```
ended tasks -> Settler: record (durable) -> Returns: acknowledge
failures    -> Settler: counted there    -> Returns: release for later, or bury after the record
```

Whatever has come up while one call was under way goes into the next one: a batch is written with
one wait for the disk, and removed from the queue in one request.
"""

from __future__ import annotations

import logging
import random
import threading
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from chunkflow_py.core.failpoints import reached, removed
from chunkflow_py.errors import ChunkflowError, QueueError
from chunkflow_py.run.ledger.record import Failure, Record
from chunkflow_py.run.worker.failure_policy import AttemptLimits, fault_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chunkflow_py.queue.leases import Held, LeaseKeeper
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.worker.doubt import Doubt
    from chunkflow_py.run.worker.intake import Job

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

TRIES = 3  # of giving back; then the lease ends by itself
PAUSE_S = 1.0


class _Batches(ABC):
    """A thread that takes all that has come up at once."""

    def __init__(self, name: str, on_error: Callable[[BaseException], None]) -> None:
        self._changed = threading.Condition()
        self._waiting: deque[Any] = deque()
        self._busy = self._ends = False
        self._on_error = on_error
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def _add(self, items: Iterable[Any]) -> None:
        with self._changed:
            self._waiting.extend(items)
            self._changed.notify_all()

    def flush(self, timeout_s: float) -> bool:
        """Wait until nothing is left to do; return whether that is so."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not self._waiting and not self._busy, max(0.0, timeout_s)
            )

    def close(self) -> None:
        """End the thread when it has done what is there."""
        with self._changed:
            self._ends = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ends)
                if not self._waiting:
                    return
                batch = list(self._waiting)
                self._waiting.clear()
                self._busy = True
            try:
                self._do(batch)
            except BaseException as error:  # noqa: BLE001  (raised in the supervisor's thread)
                self._on_error(error)
            finally:
                with self._changed:
                    self._busy = False
                    self._changed.notify_all()

    @abstractmethod
    def _do(self, batch: list[Any]) -> None:
        """Do all of it; called in the thread."""


@dataclass(frozen=True, slots=True)
class _Return:
    """What is to be done with messages."""

    how: Literal["acknowledge", "release", "bury"]
    leases: Sequence[Held]
    delay_s: float = 0.0
    reason: str = ""


class Returns(_Batches):
    """Acknowledges, releases and buries messages; what is lost already is left alone.

    Args:
        keeper: of the leases, and the queue.
        on_error: called in the thread with what must not happen.
    """

    def __init__(self, keeper: LeaseKeeper, on_error: Callable[[BaseException], None]) -> None:
        """Start the thread."""
        self._keeper, self._queue = keeper, keeper.queue
        super().__init__("returns", on_error)

    def acknowledge(self, leases: Sequence[Held]) -> None:
        """Remove messages of finished tasks, soon."""
        self._add([_Return("acknowledge", leases)])

    def release(self, leases: Sequence[Held], delay_s: float = 0.0) -> None:
        """Let others receive messages, soon, after *delay_s*."""
        if leases:
            self._add([_Return("release", leases, delay_s)])

    def bury(self, leases: Sequence[Held], reason: str) -> None:
        """Put messages aside, soon."""
        self._add([_Return("bury", leases, reason=reason)])

    def _do(self, batch: list[_Return]) -> None:
        # Renewing one of them now would hide it again from those it is released to.
        self._keeper.drop(*(lease for each in batch for lease in each.leases))
        groups: dict[tuple[str, float, str], list[Held]] = {}
        for each in batch:
            group = groups.setdefault((each.how, each.delay_s, each.reason), [])
            group += [lease for lease in each.leases if not lease.lost]
        # Released first: others wait for these.
        for how, delay_s, reason in sorted(groups, key=lambda key: key[0] != "release"):
            messages = [lease.message for lease in groups[how, delay_s, reason]]
            if not messages:
                continue
            if how == "release":
                self._try(partial(self._queue.release, messages, delay_s))
            elif how == "bury":
                self._try(partial(self._queue.bury, messages, reason))
            else:
                lost = self._try(partial(self._queue.acknowledge, messages)) or []
                for message in lost:
                    logger.debug("%s was not ours any more when it was finished", message.body)

    def _try(self, call: Callable[[], Result]) -> Result | None:
        for tries in range(TRIES):
            try:
                return call()
            except QueueError as error:
                # Not worth more: the lease ends by itself, and what comes of that is harmless.
                logger.warning("%s: cannot give back messages: %s", self._queue.url, error)
            if tries < TRIES - 1:
                threading.Event().wait(PAUSE_S)
        return None


class Settler(_Batches):
    """Writes records and failures, then has the messages returned.

    Args:
        ledger: where they are written.
        returns: of the messages.
        caps: of failures.
        spec: hash of the stage's spec, for the records of tasks that are given up.
        doubt: of this worker.
        post: called in the thread: ``settled`` with a list of (job, its record or ``None``, its
            failure or ``None``; neither if it was given back), ``stuck`` with why, ``fatal`` with
            an error.
        records_attempts: whether what another attempt has written than the task's own is recorded.
    """

    def __init__(
        self,
        ledger: Ledger,
        returns: Returns,
        caps: AttemptLimits,
        spec: str,
        doubt: Doubt,
        post: Callable[[str, Any], None],
        *,
        records_attempts: bool = False,
    ) -> None:
        """Start the thread."""
        self._records_attempts = records_attempts
        self._ledger, self._returns, self._caps, self._spec = ledger, returns, caps, spec
        self._doubt = doubt
        self._post = post
        self._given_up = threading.Event()
        super().__init__("settler", lambda error: post("fatal", error))

    def settle(self, ended: Sequence[tuple[Job, Record | Failure]]) -> None:
        """Write these, soon."""
        self._add(ended)

    def withdraw(self, job: Job, delay_s: float) -> None:
        """Take back that a doubtful task has begun, and release it, soon."""
        self._add([(job, delay_s)])

    def give_up(self) -> None:
        """Try nothing again from now on: what cannot be written is released."""
        self._given_up.set()

    def _do(self, batch: list[tuple[Job, Record | Failure | float]]) -> None:
        records = [(job, said) for job, said in batch if isinstance(said, Record)]
        failures = [(job, said) for job, said in batch if isinstance(said, Failure)]
        for job, said in batch:
            if isinstance(said, float):
                self._tried(partial(self._doubt.withdraw, job))
                self._returns.release(job.leases, said)
        settled: list[tuple[Job, Record | None, Failure | None]] = []
        if records:
            is_recorded = self._record(records)
            settled += [(job, record if is_recorded else None, None) for job, record in records]
        for job, failure in failures:
            settled.append((job, self._fail(job, failure), failure))
        if settled:
            self._post("settled", settled)

    def _record(self, ended: Sequence[tuple[Job, Record]]) -> bool:
        leases = [lease for job, _ in ended for lease in job.leases]
        if unsafe := removed("ledger-before-acknowledgement"):
            self._returns.acknowledge(leases)
            self._returns.flush(60)
        reached("written-not-recorded")
        records = [record for _, record in ended]
        first = self._tried(lambda: self._ledger.record(records))
        if first is None:
            self._returns.release(leases)
            return False
        if self._records_attempts:
            for record, is_first in zip(records, first, strict=True):
                if not is_first:
                    self._tried(partial(self._ledger.finish, record))
        reached("recorded-not-acknowledged")
        if not unsafe:
            self._returns.acknowledge(leases)
        return True

    def _fail(self, job: Job, failure: Failure) -> Record | None:
        """Count a failure; return the record if it was the last."""
        counts = self._tried(lambda: self._ledger.fail(failure))
        record, delay = self._caps.judge(failure, counts or {}, self._spec)
        if counts is None or record is None:
            self._returns.release(job.leases, delay)
            return None
        if self._tried(lambda: self._ledger.record([record])) is None:
            self._returns.release(job.leases)
            return None
        self._returns.bury(job.leases, record.reason or "")
        return record

    def _tried(self, call: Callable[[], Result]) -> Result | None:
        """Return what *call* returns, trying again what may pass; ``None`` when it is given up."""
        pause = PAUSE_S
        while True:
            try:
                return call()
            except ChunkflowError as error:
                fault = fault_of(error)
                if fault.is_final:
                    self._post("fatal", error)
                    return None
                logger.warning("the ledger cannot be written for now: %s", fault.reason)
                self._post("stuck", fault.reason)
            if self._given_up.wait(pause * random.uniform(0.5, 1)):  # noqa: S311 jitter
                return None
            pause = min(15.0, 2 * pause)

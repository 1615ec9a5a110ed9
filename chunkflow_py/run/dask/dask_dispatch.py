"""Hands the tasks of a stage to a scheduler of Dask, and hears what became of them.

```
ledger: missing -> a few for each thread -> scheduler -> workers: perform -> ledger
                      ^-- later: what has failed, with a pause <-- why it has not ended
```

A worker that dies has died of one of the tasks that it had; Dask blames them all, and gives up who
was blamed a few times (``KilledWorker``). Such a task runs again when nothing else does, and only
what happens then counts against it.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import secrets
import signal
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.interrupts import Interrupted, on_stop_signals, restore_signals
from chunkflow_py.errors import ChunkflowError, OptionError
from chunkflow_py.run.dask.dask_worker import Left, NotEndedError, Order, perform
from chunkflow_py.run.ledger.ledger_record import FailedAttempt
from chunkflow_py.run.worker.failure_policy import FailurePolicy, Fault, count_failure, fault_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.worker.worker import Working

logger = logging.getLogger(__name__)

PER_THREAD = 4  # tasks that the scheduler is given at a time
LEAST_AT_ONCE = 128  # so that a cluster that grows with its work has a reason to
LOOK_S = 5.0  # between two looks at the size of the cluster
TICK_S = 0.2
SAY_S = 60.0
BREAKS = 3  # in a row, of lines that cannot be made, before it is given up


class Stop:
    """Why to stop, and whether: signals, the deadline, or what came up.

    Attributes:
        reason: in words, if it is to stop.
        deadline: seconds of the monotonic clock.
    """

    def __init__(self) -> None:
        """Go on."""
        self.reason: str | None = None
        self.deadline: float | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Stop:
        """Listen to signals, if this is the main thread."""
        if threading.current_thread() is threading.main_thread():
            self._before = on_stop_signals(self._hear)
        return self

    def __exit__(self, *_: object) -> None:
        """Let others listen."""
        restore_signals(self._before)

    def _hear(self, number: int) -> None:
        if self.reason is not None:
            raise Interrupted  # the second one: leave at once
        self.reason = f"got {signal.Signals(number).name}"

    def now(self, reason: str) -> None:
        """Stop."""
        self.reason = self.reason or reason

    def looks(self) -> bool:
        """Tell whether it is to stop."""
        if self.deadline is not None and time.monotonic() >= self.deadline:
            self.now("the time is over")
        return self.reason is not None


@dataclass(eq=False)
class _Flight:
    """A task that the scheduler has."""

    number: int
    future: Any
    is_alone: bool


class Dispatch:
    """The tasks of one stage.

    Args:
        client: of the scheduler.
        home: of the run.
        order: what workers are told.
        working: failures and limits.
        stop: when to.

    Raises:
        OptionError: the line is wrong, a worker computes other bytes than the run's first one, or
            the package is not installed there.
        ChunkflowError: the ledger refuses, or the line cannot be made.
    """

    def __init__(
        self, client: Any, home: RunDirectory, order: Order, working: Working, stop: Stop
    ) -> None:
        """Send nothing yet."""
        self._client, self._order, self._stop, self._worker = client, order, stop, working.worker
        settings = working.settings
        self._plan, self._ledger = home.plan(order.stage), home.ledger(order.stage)
        self._spec, self._limits = home.spec.step(order.stage).hash, settings.limits
        self._call = partial(perform, order)
        self._numbers: Iterator[int] = self._ledger.missing(self._plan)
        if settings.limits.max_tasks is not None:
            self._numbers = itertools.islice(self._numbers, settings.limits.max_tasks)
        self._is_exhausted = False
        self._flying: dict[Any, _Flight] = {}
        self._done: SimpleQueue[Any] = SimpleQueue()
        self._later: list[tuple[float, int]] = []
        self._suspects: deque[int] = deque()
        self._policy = FailurePolicy(settings.disk_wait_s, settings.retry_s)
        self._name, self._count = f"{order.stage}-{secrets.token_hex(16)}", itertools.count()
        self._ended = self._breaks = 0
        self._threads, self._look_at, self._say_at = 0, 0.0, time.monotonic() + SAY_S

    def run(self) -> None:
        """Work until nothing is missing, or there is a reason to stop."""
        try:
            while not self._stop.looks():
                now = time.monotonic()
                self._look(now)
                self._submit(now)
                if self._is_exhausted and not (self._flying or self._later or self._suspects):
                    if self._limits.max_tasks is not None:
                        self._stop.now(f"{self._ended} tasks have ended, as many as asked for")
                    return
                self._hear()
        finally:
            flying = [each.future for each in self._flying.values()]
            self._flying.clear()
            if flying and self._client.status == "running":
                logger.warning("what workers have begun they finish, and record")
                self._client.cancel(flying)

    def _look(self, now: float) -> None:
        """Look how large the cluster is, and say how far the stage is."""
        if self._client.status not in ("running", "connecting"):
            self._stop.now("the scheduler is gone")
        elif now >= self._look_at and self._client.status == "running":
            self._look_at = now + LOOK_S
            with suppress(OSError):
                self._threads = sum(self._client.nthreads().values())
        if now >= self._say_at:
            self._say_at = now + SAY_S
            logger.info(
                "stage %s: %d tasks have ended since the start; the cluster has %d threads",
                self._order.stage,
                self._ended,
                self._threads,
            )

    # --- out -------------------------------------------------------------------------------------

    def _submit(self, now: float) -> None:
        if self._client.status != "running" or now < self._policy.back_off.until:
            return
        if any(flight.is_alone for flight in self._flying.values()):
            return
        most = max(LEAST_AT_ONCE, PER_THREAD * self._threads)
        if self._policy.back_off.is_probing:
            most = 1
        room = most - len(self._flying)
        if room < most / 4:
            return  # in larger batches it takes less
        chosen: list[int] = []
        while len(chosen) < room and self._later and self._later[0][0] <= now:
            chosen.append(heapq.heappop(self._later)[1])
        if not self._is_exhausted and len(chosen) < room:
            fresh = list(itertools.islice(self._numbers, room - len(chosen)))
            self._is_exhausted = len(fresh) < room - len(chosen)
            chosen += fresh
        if chosen:
            self._send(chosen)
        elif self._is_exhausted and self._suspects and not self._flying:
            self._send([self._suspects.popleft()], is_alone=True)

    def _send(self, numbers: list[int], *, is_alone: bool = False) -> None:
        keys = [(self._name, next(self._count)) for _ in numbers]
        futures = self._client.map(self._call, numbers, key=keys, pure=False, retries=0)
        for number, future in zip(numbers, futures, strict=True):
            self._flying[future.key] = _Flight(number, future, is_alone)
            future.add_done_callback(self._done.put)

    # --- and back --------------------------------------------------------------------------------

    def _hear(self) -> None:
        with suppress(Empty):
            self._heard(self._done.get(timeout=TICK_S))
            while True:
                self._heard(self._done.get_nowait())

    def _heard(self, future: Any) -> None:
        flight = self._flying.pop(future.key, None)
        if flight is None:
            return
        if future.status == "finished":
            self._ended += 1
            self._breaks = 0
            self._policy.succeeded()
        elif future.status == "error":
            self._failed(flight, future.exception())
        else:  # the scheduler was lost, or somebody has cancelled it
            self._again(flight.number, self._order.caps.delay_s)

    def _again(self, number: int, delay_s: float) -> None:
        heapq.heappush(self._later, (time.monotonic() + delay_s, number))

    def _failed(self, flight: _Flight, error: BaseException) -> None:
        from distributed import KilledWorker

        if isinstance(error, NotEndedError):
            self._left(flight, error.left)
        elif isinstance(error, KilledWorker):
            self._killed(flight, error)
        elif isinstance(error, ImportError) or "deserializ" in str(error):
            msg = f"the cluster cannot run this package ({error}); install the same one everywhere"
            raise OptionError(msg) from error
        else:
            fault = fault_of(error)
            if fault.is_final:
                raise error
            self._policy.back_off.network_failed(time.monotonic())
            self._again(flight.number, self._order.caps.delay_s)

    def _left(self, flight: _Flight, left: Left) -> None:
        box, reason = self._plan.text(flight.number), left.fault.reason
        logger.warning("task %s on %s: %s", box, left.worker, reason)
        if left.how == "refused":
            msg = f"worker {left.worker} is refused: {reason}"
            raise OptionError(msg)
        if left.how == "dead":
            self._ended += 1
        elif left.how == "short":
            self._short(flight, left)
        else:
            delay_s = left.delay_s
            if left.how == "broken":
                delay_s = self._order.caps.delay_s
                self._breaks += left.fault.kind == "permanent"
                if self._breaks >= BREAKS:
                    msg = f"the line of stage {self._order.stage} cannot be made: {reason}"
                    raise ChunkflowError(msg)
            if left.fault.kind != "permanent" and left.how != "again":
                self._policy.back_off.network_failed(time.monotonic())
            self._again(flight.number, delay_s)

    def _short(self, flight: _Flight, left: Left) -> None:
        decision = self._policy.decide(
            flight.number, left.fault, left.worker, is_alone=left.is_alone
        )
        match decision.action:
            case "count":
                self._count_failure(flight.number, decision.fault)
            case "retry-alone":
                self._suspects.append(flight.number)
            case "pause":
                logger.error("%s", decision.message)
                self._again(flight.number, decision.delay_s)
            case "retry" | "stop":
                self._again(flight.number, left.delay_s)
                if decision.action == "stop":
                    self._stop.now(decision.message)

    def _killed(self, flight: _Flight, error: Any) -> None:
        deaths = error.allowed_failures + 1
        times = "once" if deaths == 1 else f"{deaths} times"
        last = f"the last was {error.last_worker.address}; its log may say why"
        if not flight.is_alone:
            reason = f"its worker died {times}, with other tasks in hand: it runs again, alone"
            self._suspects.append(flight.number)
            failure = self._failure(flight.number, Fault("transient", f"{reason}; {last}"))
            self._ledger.fail(failure)
            return
        fault = Fault("permanent", f"the worker died {times} on this task alone; {last}")
        for _ in range(deaths):
            if self._count_failure(flight.number, fault, again=False):
                return
        self._suspects.append(flight.number)

    def _count_failure(self, number: int, fault: Fault, *, again: bool = True) -> bool:
        """Count a failure; return whether it was the last."""
        failure = self._failure(number, fault)
        record, delay_s = count_failure(self._ledger, failure, self._order.caps, self._spec)
        if record is not None:
            logger.error("gave up task %s: %s", record.box, record.reason)
            self._ended += 1
        elif again:
            self._again(number, delay_s)
        return record is not None

    def _failure(self, number: int, fault: Fault) -> FailedAttempt:
        return FailedAttempt(
            number,
            self._plan.text(number),
            secrets.token_hex(8),
            self._worker,
            fault.kind,
            fault.reason,
            fault.traceback,
        )

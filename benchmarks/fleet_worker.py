"""A worker of a simulated fleet: what a supervisor does, called at its simulated time.

Lease keeper, receiver, recorder, acknowledger and ledger are the real ones; their threads do not
run. The machine is simulated: it computes, exchanges patches, stalls and is interrupted.
"""

from __future__ import annotations

import random
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from fleet_services import CONNECTIONS, LATENCY_S

from chunkflow_py.queue.leases import LeaseKeeper
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
from chunkflow_py.run.ledger.ledger_segments import Compactor
from chunkflow_py.run.worker.acknowledger import Acknowledger, BatchThread
from chunkflow_py.run.worker.failure_policy import AttemptLimits
from chunkflow_py.run.worker.outcome_recorder import OutcomeRecorder
from chunkflow_py.run.worker.task_receiver import MessageFilter, PoisonTaskGuard, TaskReceiver
from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleet_services import SimulatedS3
    from simulate_exchange import Attempt
    from simulate_fleet import Simulation

    from chunkflow_py.run.worker.task_receiver import Job

EPOCH = 1_750_000_000.0  # time of the start in records, seconds since 1970
SPEC, STAGE = "5f2c" * 8, "inference"
POISON = 1_000_003  # one task in this many always fails
TYPICAL = 4099  # number of different durations
POLL_S = 10.0  # time of a receive that finds nothing


class _Inline(BatchThread):
    """Processes items at once instead of in a thread."""

    def __init__(self, _: str, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error

    def _add(self, items: Any) -> None:
        self._process(list(items))


class InlineAcknowledger(Acknowledger, _Inline):
    """`Acknowledger` without a thread."""


class InlineRecorder(OutcomeRecorder, _Inline):
    """`OutcomeRecorder` without a thread."""


class _InlineCompactor(Compactor):
    """Compact at once instead of in a background thread."""

    store: SimulatedS3

    def _compact_fullest(self) -> None:
        with self.store.in_background():
            super()._compact_fullest()


class FleetLedger(Ledger):
    """The ledger, which also keeps whether a record was the first of its task."""

    def __init__(self, store: SimulatedS3, span: int) -> None:
        """Compact at once; compactions take no simulated time."""
        super().__init__(store, STAGE, span, in_background=False)
        self._compactor = _InlineCompactor(self._segments, self._journal, in_background=False)
        self._compactor.store = store
        self.is_first = False

    def record(self, records: Sequence[Record]) -> list[bool]:
        """Record, and keep whether the first record was the first of its task."""
        first = super().record(records)
        self.is_first = first[0]
        return first


class Worker:
    """One machine with one process, from its start to its end."""

    def __init__(self, simulation: Simulation, number: int, before_s: float) -> None:
        """Create the parts of a supervisor, whose machine is paid for since *before_s* seconds."""
        self.simulation, fleet = simulation, simulation.fleet
        self._name = f"worker-{number}"
        self._since = simulation.clock.now - before_s
        self._ready: deque[tuple[Job, float]] = deque()  # with the time at which it is read
        self._held = 0
        self._computing: tuple[Job, float] | None = None
        self._writing: dict[Job, float] = {}
        self._attempt: Attempt | None = None  # what it has computed of the current task
        self._storing: list[Attempt] = []  # attempts whose parts are being stored
        self._is_alive, self._drains, self._renews = True, False, False
        self.is_interrupted = False  # whether the machine was taken away, or will be
        self._stalled_until = 0.0
        self.keeper = LeaseKeeper(simulation.queue, fleet.lease_s, clock=simulation.clock)
        self.keeper.close()  # its thread never starts
        self.acknowledger = InlineAcknowledger(self.keeper, _raise)
        caps = AttemptLimits()
        guard = PoisonTaskGuard(simulation.ledger, caps, SPEC, keeps_attempts=False)
        self.recorder = InlineRecorder(
            simulation.ledger, self.acknowledger, caps, SPEC, guard, self._posted
        )
        messages = MessageFilter(simulation.plan, STAGE, {STAGE: SPEC})
        self.receiver = TaskReceiver(
            messages,
            self._name,
            self.keeper,
            simulation.ledger,
            self.acknowledger,
            self._posted,
            POLL_S,
        )
        self.receiver.close()  # its thread ends
        self.receiver.join(60)
        simulation.workers[self] = None

    def age(self) -> float:
        """Return the time that is paid for, in seconds."""
        return self.simulation.clock.now - self._since

    @property
    def is_idle(self) -> bool:
        """Whether the worker has no task."""
        return not self._held

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        self.simulation.clock.at(self.simulation.clock.now + seconds, partial(self._do, event))

    def _do(self, event: Callable[[], None]) -> None:
        if not self._is_alive:
            return
        remaining = self._stalled_until - self.simulation.clock.now
        if remaining > 0:
            self._at(remaining, event)
        else:
            event()

    def begin(self) -> None:
        """Take tasks until it is interrupted."""
        fleet = self.simulation.fleet
        if fleet.interruptions:
            end = self._notice if random.random() < fleet.noticed else self._killed
            self._at(random.expovariate(fleet.interruptions / 3600), end)
        if fleet.stalls:
            self._at(random.expovariate(fleet.stalls / 3600), self._stall)
        self._take()

    # --- tasks -----------------------------------------------------------------------------------

    def _take(self) -> None:
        """Receive as many tasks as fit."""
        wanted = self.simulation.fleet.window - self._held
        if self._drains or wanted < 1:
            return
        simulation = self.simulation
        simulation.s3.elapsed = 0.0
        jobs = self.receiver._jobs(self.keeper.receive(wanted))
        self._held += len(jobs)
        for job in jobs:
            simulation.events["read"] += 1
            simulation.s3.ask("GET", "volume/", simulation.fleet.reads, CONNECTIONS)
            self._ready.append((job, simulation.clock.now + simulation.s3.elapsed))
        if not self._renews and self.keeper.held:
            self._renew()
        if self._held:
            self._compute()
        else:
            self._at(POLL_S + random.uniform(0, 1), self._take)

    def _compute(self) -> None:
        if self._computing is not None or not self._ready:
            return
        simulation = self.simulation
        job, readable = self._ready[0]
        if readable > simulation.clock.now:
            self._at(readable - simulation.clock.now, self._compute)
            return
        del self._ready[0]
        simulation.events["attempts"] += 1
        self._computing = job, simulation.clock.now
        if simulation.exchange is None:
            self._at(simulation.seconds[job.number % TYPICAL], partial(self._computed, job))
            return
        self._attempt = simulation.exchange.begin(job.number)
        self._next_layer(job)

    def _next_layer(self, job: Job) -> None:
        """Look up the parts of the next layer of patches, and compute the other patches."""
        simulation, attempt = self.simulation, self._attempt
        assert simulation.exchange is not None
        assert attempt is not None
        patches = simulation.exchange.next_layer(attempt)
        if patches is None:
            self._computed(job)
            return
        simulation.ask_exchange("LIST")
        seconds = simulation.seconds[job.number % TYPICAL] * patches / simulation.patches_per_task
        self._at(seconds, partial(self._next_layer, job))

    def _computed(self, job: Job) -> None:
        assert self._computing is not None
        simulation = self.simulation
        seconds = simulation.clock.now - self._computing[1]
        self._computing = None
        self._writing[job] = seconds
        simulation.events["computed"] += 1
        if self._attempt is not None:
            self._store(self._attempt)
            self._attempt = None
        simulation.s3.elapsed = 0.0
        simulation.s3.ask("PUT", "volume/", simulation.fleet.writes, CONNECTIONS)
        self._at(simulation.s3.elapsed, partial(self._written, job))
        self._compute()

    def _store(self, attempt: Attempt) -> None:
        """Store the parts of an attempt; other tasks see them when all bytes are written."""
        simulation = self.simulation
        simulation.ask_exchange("GET", simulation.exchange.read(attempt))
        unfinished = simulation.unfinished(simulation.exchange.consumers(attempt))
        size = sum(n for step, n in attempt.parts() if attempt.number + step in unfinished)
        self._storing.append(attempt)

        def stored() -> None:
            self._storing.remove(attempt)
            simulation.ask_exchange("PUT", simulation.exchange.end(attempt, unfinished))

        self._at(LATENCY_S["PUT"] + size / simulation.fleet.part_mb_s / 1e6, stored)

    def _written(self, job: Job) -> None:
        simulation, seconds = self.simulation, self._writing.pop(job)
        self._held -= 1
        if job.lost:
            simulation.events["lost"] += 1
            simulation.wasted_s += seconds
            self.acknowledger.release(job.leases)
        else:
            simulation.s3.elapsed = 0.0
            self.recorder.record([(job, self._outcome(job, seconds))])
        if self._drains and not self._writing and not self._computing:
            self._leave()
        elif not self._drains:
            self._take()

    def _outcome(self, job: Job, seconds: float) -> Record | FailedAttempt:
        """Return how an attempt ends."""
        simulation = self.simulation
        who = job.number, job.box, job.attempt, self._name
        now = EPOCH + simulation.clock.now
        if job.number % POISON == POISON // 2:
            return FailedAttempt(*who, "permanent", "poison", "Traceback …", now)
        if random.random() < simulation.fleet.transient:
            return FailedAttempt(*who, "transient", "the network is down", "Traceback …", now)
        times = {"load-zarr": 2.5, "inference": seconds, "save-zarr": 1.5}
        written = (Stored(f"s3://volume/{job.number}", 33_554_432, "0" * 32),)
        return Record(
            job.number, job.box, "done", SPEC, job.attempt, self._name, "torch 2.13", times,
            written, finished=now,
        )  # fmt: skip

    def _posted(self, kind: str, content: Any) -> None:
        """Receive the events that a supervisor receives."""
        if kind == "fatal":
            raise content
        simulation = self.simulation
        if kind == "recorded":
            for job, record, failure in content:
                simulation.events["failed"] += failure is not None
                if record is None:
                    continue
                if simulation.ledger.is_first:
                    simulation.events["finished"] += 1
                    if simulation.exchange is not None:
                        simulation.ask_exchange("LIST")
                        simulation.ask_exchange("DELETE", simulation.exchange.recorded(job.number))
                else:
                    simulation.events["too_late"] += 1
                    simulation.wasted_s += simulation.seconds[job.number % TYPICAL]

    def _renew(self) -> None:
        """Do one round of the keeper's thread, and schedule the next one."""
        keeper, now = self.keeper, self.simulation.clock.now
        due = [held for held in keeper.held if keeper._due(held) <= now + keeper.lease_s / 12]
        if due:
            keeper._renew(due)
        held = keeper.held
        self._renews = bool(held)
        if held:
            self._at(max(0.001, min(map(keeper._due, held)) - now), self._renew)

    # --- the end ---------------------------------------------------------------------------------

    def _stall(self) -> None:
        """Stall, for less or more than a lease."""
        fleet = self.simulation.fleet
        self.simulation.events["stalls"] += 1
        self._stalled_until = self.simulation.clock.now + random.uniform(0, 3) * fleet.lease_s
        self._at(random.expovariate(fleet.stalls / 3600), self._stall)

    def stop(self, grace_s: float | None = None) -> None:
        """Take no more tasks, release those that have not begun, and finish the others.

        Args:
            grace_s: time in which they can be finished; default: as long as it takes.
        """
        self._drains = True
        for job, _ in self._ready:
            self.acknowledger.release(job.leases)
        self._ready.clear()
        if not (self._computing or self._writing):
            self._leave()
        elif grace_s is not None:
            self._at(grace_s, self._leave)

    def interrupt(self) -> None:
        """Take the machine away, with or without notice."""
        if random.random() < self.simulation.fleet.noticed:
            self._notice()
        else:
            self._killed()

    def _notice(self) -> None:
        self.simulation.events["interruptions"] += 1
        self.is_interrupted = True
        self.stop(self.simulation.fleet.grace_s)

    def _leave(self) -> None:
        """Release the tasks that are not finished."""
        unfinished = [*self._writing, *([self._computing[0]] if self._computing else [])]
        for job in unfinished:
            self.acknowledger.release(job.leases)
        self._end()

    def _killed(self) -> None:
        """End without notice: the leases expire."""
        self.simulation.events["interruptions"] += 1
        self.simulation.events["killed"] += 1
        self.is_interrupted = True
        self._end()

    def _end(self) -> None:
        simulation = self.simulation
        begun = [simulation.clock.now - self._computing[1]] if self._computing else []
        simulation.wasted_s += sum(self._writing.values()) + sum(begun)
        simulation.worker_s += self.age()
        if self._attempt is not None:
            simulation.events["patches_killed"] += self._attempt.patches
        for attempt in self._storing:  # their parts are lost
            simulation.exchange.computed += attempt.patches
        self._is_alive = False
        del simulation.workers[self]
        simulation.ended(self)


def _raise(error: Exception) -> None:
    raise error

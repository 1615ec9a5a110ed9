"""A fleet of spot instances on one run, simulated: makespan, wasted work, requests and cost.

    python benchmarks/simulate_fleet.py [--tasks 15e6] [--workers 3600] [--grow] [--output FILE]

What is real: messages and their parsing, plan, queue (`memory://`, with a clock that is told the
time), leases and their renewal (`LeaseKeeper`), the look into the ledger on receipt (`Intake`),
records, failures, caps and back-off (`Settler`), giving back (`Returns`), the ledger with its pages
and folds. Their threads do not run: each step is called when it is its time. What is simulated:
machines, tasks that take time, interruptions, and the services (`fleet_services.py`). A call on the
ledger happens at one instant of the simulation, so that races within one are not seen here; they
have tests of their own.
"""

from __future__ import annotations

import argparse
import heapq
import json
import random
import sys
from collections import Counter, deque
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fleet_services import CONNECTIONS, Clock, SimulatedS3, SimulatedSqs

from chunkflow_py.geometry import Zyx
from chunkflow_py.queue.body import body_text
from chunkflow_py.queue.leases import LeaseKeeper
from chunkflow_py.run import returns
from chunkflow_py.run.fold import Folder
from chunkflow_py.run.intake import Intake, Work
from chunkflow_py.run.ledger import Ledger
from chunkflow_py.run.record import Failure, Record
from chunkflow_py.store.protocol import Stored
from chunkflow_py.task_grid import task_grid
from chunkflow_py.task_plan import GridPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from chunkflow_py.run.intake import Job

EPOCH = 1_750_000_000.0  # of records, seconds since 1970
SPEC, STAGE = "5f2c" * 8, "inference"
BOX = Zyx(64, 512, 512)
POISON = 1_000_003  # one task in so many always fails
TYPICAL = 4099  # different durations
SAY_S = 15.0  # between two words of progress
POLL_S = 10.0  # of a receive that finds nothing


@dataclass(frozen=True)
class Fleet:
    """What is simulated; times in seconds, prices in dollars.

    Attributes:
        tasks, workers: how many.
        task_s: mean time of a task on its worker; they vary log-normally, sigma 0.3.
        interruptions: of a worker in an hour; *noticed* of them with two minutes' notice.
        boot_s: until the machine that replaces one is at work.
        stalls: of a worker in an hour, each up to three leases long: it is a zombie afterwards.
        duplicates: share of messages that are there twice.
        transient: share of attempts that fail for what passes by itself.
        window: tasks that a worker holds: one computed, the others waiting.
        lease_s, grace_s: as of `chunkflow work`.
        reads, writes: objects of the volumes for a task, on their way while others are computed.
        worker_price: an hour of a machine.
        put_price, get_price, sqs_price: of a million requests.
    """

    tasks: int = 15_000_000
    workers: int = 3600
    task_s: float = 60.0
    interruptions: float = 0.05
    noticed: float = 0.8
    boot_s: float = 180.0
    stalls: float = 0.001
    duplicates: float = 0.0001
    transient: float = 0.0005
    window: int = 3
    lease_s: float = 120.0
    grace_s: float = 90.0
    reads: int = 36
    writes: int = 16
    worker_price: float = 0.20
    put_price: float = 5.0
    get_price: float = 0.4
    sqs_price: float = 0.4
    seed: int = 0


# --- real parts, without their threads -----------------------------------------------------------


class _Inline(returns._Batches):
    """Does at once what its thread would do soon."""

    def __init__(self, _: str, on_error: Callable[[Exception], None]) -> None:
        self._on_error = on_error

    def _add(self, items: Any) -> None:
        self._do(list(items))


class InlineReturns(returns.Returns, _Inline):
    """`Returns` without a thread."""


class InlineSettler(returns.Settler, _Inline):
    """`Settler` without a thread."""


class _Folder(Folder):
    """Folds at once what a thread would fold beside those who record."""

    store: SimulatedS3

    def _fold_fullest(self) -> None:
        with self.store.in_background():
            super()._fold_fullest()


class FleetLedger(Ledger):
    """The ledger, which also tells which records were the first of their tasks."""

    def __init__(self, store: SimulatedS3, span: int) -> None:
        """Fold at once, but in nobody's time."""
        super().__init__(store, STAGE, span, in_background=False)
        self._folder = _Folder(self._pages, self._loose, in_background=False)
        self._folder.store = store
        self.is_first = False

    def record(self, records: Sequence[Record]) -> list[bool]:
        """Record, and keep whether it was the first."""
        first = super().record(records)
        self.is_first = first[0]
        return first


# --- the fleet -----------------------------------------------------------------------------------


class Simulation:
    """One run of a fleet."""

    def __init__(self, fleet: Fleet) -> None:
        """Plan the tasks; nobody is at work yet."""
        random.seed(fleet.seed)
        self.fleet, self.clock = fleet, Clock()
        across = min(1000, fleet.tasks)
        grid = task_grid(BOX, Zyx(0, 0, 0), grid_size=Zyx(1, -(-fleet.tasks // across), across))
        self.plan = GridPlan(grid, indexes=range(fleet.tasks))
        self.s3 = SimulatedS3(self.clock)
        self.ledger = FleetLedger(self.s3, self.plan.span)
        self.queue = SimulatedSqs(f"fleet-{id(self)}", self.clock, self._bodies())
        self.seconds = [
            random.lognormvariate(-0.045, 0.3) * fleet.task_s  # mean 1
            for _ in range(TYPICAL)
        ]
        self.said: Counter[str] = Counter()
        self.workers: dict[Worker, None] = {}  # at work; in order, so that sums repeat
        self.wasted_s = self.worker_s = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def _bodies(self) -> Iterator[str]:
        """Yield the messages, some of them twice."""
        for number in self.plan:
            body = body_text(str(self.plan.region(number)), SPEC, STAGE)
            yield body
            if random.random() < self.fleet.duplicates:
                self.said["duplicates"] += 1
                yield body

    def at(self, when: float, event: Callable[[], None]) -> None:
        """Do something at a time."""
        heapq.heappush(self._events, (when, next(self._numbers), event))

    def run(self) -> dict[str, Any]:
        """Let the fleet work until each task is recorded; return what is to be told of it."""
        start = told = perf_counter()
        for _ in range(self.fleet.workers):
            self.at(random.uniform(0, self.fleet.boot_s), self.boot)
        while self.said["finished"] < self.fleet.tasks:
            when, _, event = heapq.heappop(self._events)
            self.clock.now = when
            event()
            if perf_counter() - told > SAY_S:
                told = perf_counter()
                share = self.said["finished"] / self.fleet.tasks
                print(f"{share:.1%}, {told - start:.0f} s", file=sys.stderr, flush=True)
        makespan = self.clock.now
        during = dict(self.s3.requests)
        left = len(self.s3)
        self.ledger.fold()
        return self._told(makespan, during, left) | {"simulated_in_s": perf_counter() - start}

    def boot(self) -> None:
        """Begin a worker."""
        Worker(self, next(self._numbers)).begin()

    def _told(self, makespan: float, requests: dict[str, int], left: int) -> dict[str, Any]:
        fleet, counts = self.fleet, self.ledger.counts(EPOCH + makespan)
        longest_s = max(self.seconds)
        return {
            "fleet": asdict(fleet),
            "makespan_s": makespan,
            "ideal_s": fleet.task_s * fleet.tasks / fleet.workers,
            "worker_s": self.worker_s + sum(worker.age() for worker in self.workers),
            "wasted_s": self.wasted_s,
            "longest_s": longest_s + self.write_s(),
            "done": counts.done,
            "dead": counts.dead,
            "failures": counts.failures,
            "missing": sum(1 for _ in self.ledger.missing(self.plan)),
            "objects": len(self.s3),
            "objects_before_fold": left,
            "requests": requests,
            "volume_reads": self.said["read"] * fleet.reads,
            "volume_writes": self.said["computed"] * fleet.writes,
            "sqs_requests": self.queue.requests,
            "in_flight": self.queue.peak,
            "over_limit": self.queue.over_limit,
            "slow_downs": self.s3.slow_downs,
            "conflicts": self.s3.conflicts,
            **self.said,
        }

    def write_s(self) -> float:
        """Return how long it takes to write the objects of a task, nobody else being there."""
        return -(-self.fleet.writes // CONNECTIONS) * 0.06


class Worker:
    """One machine with one process, from its start to its end."""

    def __init__(self, simulation: Simulation, number: int) -> None:
        """Make what a supervisor has."""
        self.simulation, fleet = simulation, simulation.fleet
        self._name = f"worker-{number}"
        self._since = simulation.clock.now
        self._ready: deque[tuple[Job, float]] = deque()  # with when it is read
        self._held = 0
        self._computing: tuple[Job, float] | None = None
        self._writing: dict[Job, float] = {}
        self._is_alive, self._drains, self._renews = True, False, False
        self._stalled_until = 0.0
        self.keeper = LeaseKeeper(simulation.queue, fleet.lease_s, clock=simulation.clock)
        self.keeper.close()  # its thread never starts
        self.returns = InlineReturns(self.keeper, _raise)
        self.settler = InlineSettler(
            simulation.ledger, self.returns, returns.Caps(), SPEC, self._posted
        )
        work = Work(self._name, simulation.plan, STAGE, {STAGE: SPEC})
        self.intake = Intake(
            work, self.keeper, simulation.ledger, self.returns, self._posted, POLL_S
        )
        self.intake.close()  # its thread ends
        self.intake.join(60)
        simulation.workers[self] = None

    def age(self) -> float:
        """Return for how long it has been paid."""
        return self.simulation.clock.now - self._since + self.simulation.fleet.boot_s

    def _at(self, seconds: float, event: Callable[[], None]) -> None:
        self.simulation.at(self.simulation.clock.now + seconds, partial(self._do, event))

    def _do(self, event: Callable[[], None]) -> None:
        if not self._is_alive:
            return
        left = self._stalled_until - self.simulation.clock.now
        if left > 0:
            self._at(left, event)
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
        jobs = self.intake._jobs(self.keeper.receive(wanted))
        self._held += len(jobs)
        for job in jobs:
            simulation.said["read"] += 1
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
        simulation.said["attempts"] += 1
        self._computing = job, simulation.clock.now
        self._at(simulation.seconds[job.number % TYPICAL], partial(self._computed, job))

    def _computed(self, job: Job) -> None:
        assert self._computing is not None
        simulation = self.simulation
        seconds = simulation.clock.now - self._computing[1]
        self._computing = None
        self._writing[job] = seconds
        simulation.said["computed"] += 1
        simulation.s3.elapsed = 0.0
        simulation.s3.ask("PUT", "volume/", simulation.fleet.writes, CONNECTIONS)
        self._at(simulation.s3.elapsed, partial(self._written, job))
        self._compute()

    def _written(self, job: Job) -> None:
        simulation, seconds = self.simulation, self._writing.pop(job)
        self._held -= 1
        if job.lost:
            simulation.said["lost"] += 1
            simulation.wasted_s += seconds
            self.returns.release(job.leases)
        else:
            simulation.s3.elapsed = 0.0
            self.settler.settle([(job, self._outcome(job, seconds))])
        if self._drains and not self._writing and not self._computing:
            self._leave()
        elif not self._drains:
            self._take()

    def _outcome(self, job: Job, seconds: float) -> Record | Failure:
        """Return how an attempt ends."""
        simulation = self.simulation
        who = job.number, job.box, job.attempt, self._name
        now = EPOCH + simulation.clock.now
        if job.number % POISON == POISON // 2:
            return Failure(*who, "permanent", "poison", "Traceback …", now)
        if random.random() < simulation.fleet.transient:
            return Failure(*who, "transient", "the network is down", "Traceback …", now)
        times = {"load-zarr": 2.5, "inference": seconds, "save-zarr": 1.5}
        written = (Stored(f"s3://volume/{job.number}", 33_554_432, "0" * 32),)
        return Record(
            job.number, job.box, "done", SPEC, job.attempt, self._name, "torch 2.13", times,
            written, finished=now,
        )  # fmt: skip

    def _posted(self, kind: str, content: Any) -> None:
        """Hear what a supervisor hears."""
        if kind == "fatal":
            raise content
        simulation = self.simulation
        if kind == "settled":
            for job, record, failure in content:
                simulation.said["failed"] += failure is not None
                if record is None:
                    continue
                if simulation.ledger.is_first:
                    simulation.said["finished"] += 1
                else:
                    simulation.said["too_late"] += 1
                    simulation.wasted_s += simulation.seconds[job.number % TYPICAL]

    def _renew(self) -> None:
        """Do one round of the keeper's thread, and come back when the next one is due."""
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
        """Stand still, longer than a lease or not."""
        fleet = self.simulation.fleet
        self.simulation.said["stalls"] += 1
        self._stalled_until = self.simulation.clock.now + random.uniform(0, 3) * fleet.lease_s
        self._at(random.expovariate(fleet.stalls / 3600), self._stall)

    def _notice(self) -> None:
        """Take no more, give back what has not begun, finish what can be."""
        self.simulation.said["interruptions"] += 1
        self._drains = True
        for job, _ in self._ready:
            self.returns.release(job.leases)
        self._ready.clear()
        if self._computing or self._writing:
            self._at(self.simulation.fleet.grace_s, self._leave)
        else:
            self._leave()

    def _leave(self) -> None:
        """Give back the rest."""
        left = [*self._writing, *([self._computing[0]] if self._computing else [])]
        for job in left:
            self.returns.release(job.leases)
        self._end()

    def _killed(self) -> None:
        """End without a word: leases end by themselves."""
        self.simulation.said["interruptions"] += 1
        self.simulation.said["killed"] += 1
        self._end()

    def _end(self) -> None:
        simulation = self.simulation
        begun = [simulation.clock.now - self._computing[1]] if self._computing else []
        simulation.wasted_s += sum(self._writing.values()) + sum(begun)
        simulation.worker_s += self.age()
        self._is_alive = False
        del simulation.workers[self]
        simulation.at(simulation.clock.now + simulation.fleet.boot_s, simulation.boot)


def _raise(error: Exception) -> None:
    raise error


def main() -> None:
    """Simulate, and print or write what was found."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=float, default=Fleet.tasks)
    parser.add_argument("--workers", type=int, nargs="+", default=[Fleet.workers])
    parser.add_argument("--task-seconds", type=float, default=Fleet.task_s)
    parser.add_argument("--output", type=Path, help="JSON; else it goes to stdout")
    arguments = parser.parse_args()
    found = []
    for workers in arguments.workers:
        fleet = Fleet(int(arguments.tasks), workers, arguments.task_seconds)
        found.append(Simulation(fleet).run())
        print(json.dumps(found[-1]), file=sys.stderr, flush=True)
    text = json.dumps(found, indent=1) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()

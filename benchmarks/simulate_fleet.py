"""A fleet of spot instances on one run, simulated: makespan, wasted work, requests and cost.

    python benchmarks/simulate_fleet.py [--tasks 15e6] [--workers 3600 ...] [--output FILE]

What is real: messages and their parsing, plan, queue (`memory://`, with a clock that is told the
time), leases and their renewal (`LeaseKeeper`), the look into the ledger on receipt
(`TaskReceiver`), records, failures, limits and back-off (`OutcomeRecorder`), giving back
(`Acknowledger`), the ledger with its pages and folds. Their
threads do not run: each step is called when it is its time. What is simulated:
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
from collections import Counter
from dataclasses import asdict, dataclass
from itertools import count
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fleet_services import CONNECTIONS, Clock, SimulatedS3, SimulatedSqs
from fleet_worker import EPOCH, SPEC, STAGE, TYPICAL, FleetLedger, Worker

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.queue.message_body import body_text
from chunkflow_py.tasks.task_grid import task_grid
from chunkflow_py.tasks.task_plan import GridPlan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


BOX = Zyx(64, 512, 512)
SAY_S = 15.0  # between two words of progress


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
        self.ledger.compact()
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

"""A fleet of spot instances on one run, simulated: makespan, wasted work, requests and cost.

    python benchmarks/simulate_fleet.py [--tasks 15e6] [--workers 3600 ...] [--exchange]
        [--output FILE]

Real: the plan and the order of sending, messages and their parsing, the queue (`memory://`, with a
simulated clock), leases and their renewal (`LeaseKeeper`), the ledger lookup on receipt
(`TaskReceiver`), records, failures, limits and back-off (`OutcomeRecorder`), the release of tasks
(`Acknowledger`), the ledger with its segments and compactions. Their threads do not run: each step
is called at its simulated time. Simulated: machines, the durations of tasks, interruptions, the
services (`fleet_services.py`), and with --exchange the patches that tasks exchange
(`simulate_exchange.py`). A call on the ledger takes no simulated time, so the simulation does not
show races within a call; separate tests do.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fleet_services import CONNECTIONS, SimulatedS3, SimulatedSqs, Timeline
from fleet_worker import EPOCH, SPEC, STAGE, TYPICAL, FleetLedger, Worker
from simulate_exchange import TASK, SharedPatches, SimulatedExchange

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.queue.message_body import body_text
from chunkflow_py.run.ledger.ledger_segments import SegmentHeader
from chunkflow_py.tasks.checkerboard import checkerboard
from chunkflow_py.tasks.task_grid import task_grid
from chunkflow_py.tasks.task_plan import GridPlan

if TYPE_CHECKING:
    from collections.abc import Iterator


PROGRESS_S = 15.0  # time between two lines of progress


@dataclass(frozen=True)
class Fleet:
    """What is simulated; times in seconds, prices in dollars.

    Attributes:
        tasks, workers: number of tasks and of workers.
        task_s: mean time of a task on its worker, log-normal with sigma 0.3; with *exchange*, the
            time if it computes all its patches.
        interruptions: interruptions of a worker per hour; the share *noticed* comes with notice.
        boot_s: time until the machine that replaces an interrupted one is at work.
        stalls: stalls of a worker per hour. A stall lasts up to three leases; the worker then
            continues as a zombie.
        duplicates: share of messages that are in the queue twice.
        transient: share of attempts that fail because of a temporary fault.
        window: number of tasks that a worker holds: it computes one, the others wait.
        lease_s, grace_s: options of `chunkflow work`.
        reads, writes: objects of the volumes that a task reads and writes, while others compute.
        worker_price: price of a machine per hour.
        put_price, get_price, sqs_price: price of a million requests.
        exchange: whether tasks exchange patches and are sent in checkerboard order.
        part_mb_s: bandwidth of a worker for writing what it stores for other tasks, MB/s.
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
    exchange: bool = False
    part_mb_s: float = 100.0


# --- the fleet -----------------------------------------------------------------------------------


class Simulation:
    """One run of a fleet."""

    def __init__(self, fleet: Fleet, clock: Timeline | None = None) -> None:
        """Plan the tasks; no worker has started."""
        random.seed(fleet.seed)
        self.fleet, self.clock = fleet, clock or Timeline()
        self.exchange: SimulatedExchange | None = None
        if fleet.exchange:
            count_zyx = cube_of(fleet.tasks)
            self.exchange = SimulatedExchange(SharedPatches.of(count_zyx))
        else:
            across = min(1000, fleet.tasks)
            count_zyx = Zyx(1, -(-fleet.tasks // across), across)
        grid = task_grid(TASK, Zyx(0, 0, 0), grid_size=count_zyx)
        self.plan = GridPlan(grid, indexes=range(fleet.tasks))
        self.s3 = SimulatedS3(self.clock)
        self.ledger = FleetLedger(self.s3, self.plan.span)
        self.queue = SimulatedSqs(f"fleet-{id(self)}", self.clock, self._bodies())
        self.seconds = [
            random.lognormvariate(-0.045, 0.3) * fleet.task_s  # mean 1
            for _ in range(TYPICAL)
        ]
        self.events: Counter[str] = Counter()
        self.workers: dict[Worker, None] = {}  # at work; in order, so that sums are reproducible
        self.wasted_s = self.worker_s = 0.0
        self.exchange_requests: Counter[str] = Counter()
        self.patches_per_task = 0.0
        if self.exchange is not None:
            self.patches_per_task = self.exchange.shared.without_exchange / fleet.tasks
        self._begun = 0

    def _bodies(self) -> Iterator[str]:
        """Yield the messages, some of them twice."""
        in_order = checkerboard(self.plan, self.fleet.workers) if self.exchange else self.plan
        for number in in_order:
            body = body_text(str(self.plan.region(number)), SPEC, STAGE)
            yield body
            if random.random() < self.fleet.duplicates:
                self.events["duplicates"] += 1
                yield body

    def ask_exchange(self, kind: str, number: int = 1) -> None:
        """Make requests to the exchange, which other work of the worker hides."""
        if number:
            self.exchange_requests[kind] += number
            with self.s3.in_background():
                self.s3.ask(kind, "exchange/", number, CONNECTIONS)

    def unfinished(self, numbers: list[int]) -> set[int]:
        """Return those of the given tasks that have no record in the ledger."""
        before = self.s3.requests.copy()
        with self.s3.in_background():
            ended = self.ledger.find(numbers)
        self.exchange_requests += self.s3.requests - before
        return set(numbers) - ended.keys()

    def run(self) -> dict[str, Any]:
        """Let the fleet work until each task is recorded; return the results."""
        start = printed = perf_counter()
        for _ in range(self.fleet.workers):
            self.clock.at(random.uniform(0, self.fleet.boot_s), self.boot)
        while self.events["finished"] < self.fleet.tasks:
            self.clock.step()
            if perf_counter() - printed > PROGRESS_S:
                printed = perf_counter()
                share = self.events["finished"] / self.fleet.tasks
                text = f"{share:.1%} of the tasks are recorded after {printed - start:.0f} s"
                print(text, file=sys.stderr, flush=True)
        return self.results(self.clock.now) | {"simulated_in_s": perf_counter() - start}

    def boot(self) -> None:
        """Start a worker on a new machine."""
        self.begin(self.fleet.boot_s)

    def begin(self, before_s: float) -> Worker:
        """Start a worker, whose machine is paid for since *before_s* seconds."""
        self._begun += 1
        worker = Worker(self, self._begun, before_s)
        worker.begin()
        return worker

    def ended(self, _: Worker) -> None:
        """Replace the machine of a worker that has ended."""
        self.clock.at(self.clock.now + self.fleet.boot_s, self.boot)

    def paid_s(self) -> float:
        """Return the time of machines that is paid for so far, in seconds."""
        return self.worker_s + sum(worker.age() for worker in self.workers)

    def results(self, makespan: float) -> dict[str, Any]:
        """Compact the ledger, and return the results of a run that took *makespan* seconds."""
        during, objects = dict(self.s3.requests), len(self.s3)
        self.ledger.compact()
        return self._results(makespan, during, objects)

    def _results(self, makespan: float, requests: dict[str, int], objects: int) -> dict[str, Any]:
        fleet, counts = self.fleet, self.ledger.counts(EPOCH + makespan)
        longest_s = max(self.seconds)
        return {
            "fleet": asdict(fleet),
            "makespan_s": makespan,
            "ideal_s": fleet.task_s * fleet.tasks / fleet.workers,
            "worker_s": self.paid_s(),
            "wasted_s": self.wasted_s,
            "longest_s": longest_s + self.write_s(),
            "done": counts.done,
            "dead": counts.dead,
            "failures": counts.failures,
            "missing": sum(1 for _ in self.ledger.missing(self.plan)),
            "objects": len(self.s3),
            "objects_before_fold": objects,
            "requests": requests,
            "volume_reads": self.events["read"] * fleet.reads,
            "volume_writes": self.events["computed"] * fleet.writes,
            "sqs_requests": self.queue.requests,
            "in_flight": self.queue.peak,
            "over_limit": self.queue.over_limit,
            "slow_downs": self.s3.slow_downs,
            "conflicts": self.s3.conflicts,
            **self.events,
            **({"exchange": self._exchanged(self.exchange)} if self.exchange else {}),
        }

    def _exchanged(self, exchange: SimulatedExchange) -> dict[str, Any]:
        shared = exchange.shared
        return {
            "distinct": shared.distinct,
            "without": shared.without_exchange,
            "computed": exchange.computed,
            "killed": self.events["patches_killed"],
            "bytes_written": exchange.bytes_written,
            "objects_written": exchange.objects_written,
            "bytes_read": exchange.bytes_read,
            "objects_read": exchange.objects_read,
            "peak_bytes": exchange.peak_bytes,
            "requests": dict(self.exchange_requests),
        }

    def write_s(self) -> float:
        """Return the time to write the objects of a task while no other worker writes."""
        return -(-self.fleet.writes // CONNECTIONS) * 0.06


def cube_of(tasks: int) -> Zyx:
    """Return the counts along z, y and x of a grid that is nearly a cube of *tasks* tasks.

    Raises:
        ValueError: the number of tasks has no such factors.
    """
    near = round(tasks ** (1 / 3))
    for z in range(near, 0, -1):
        if tasks % z == 0:
            rest = tasks // z
            y = next(y for y in range(int(rest**0.5), 0, -1) if rest % y == 0)
            if rest // y <= 8 * z:
                return Zyx(z, y, rest // y)
    msg = f"{tasks} tasks do not fill a grid; choose a number with small factors, such as 100,000"
    raise ValueError(msg)


def main() -> None:
    """Simulate, and print or write the results."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=float, default=Fleet.tasks)
    parser.add_argument("--workers", type=int, nargs="+", default=[Fleet.workers])
    parser.add_argument("--task-seconds", type=float, default=Fleet.task_s)
    parser.add_argument("--exchange", action="store_true", help="let tasks exchange patches")
    parser.add_argument("--output", type=Path, help="JSON file for the results; default: stdout")
    arguments = parser.parse_args()
    # Thousands of workers read the same headers in one process: parse each text once.
    parse = SegmentHeader.from_line
    SegmentHeader.from_line = lru_cache(maxsize=1 << 14)(parse)  # type: ignore[method-assign]
    results = []
    for workers in arguments.workers:
        fleet = Fleet(
            int(arguments.tasks), workers, arguments.task_seconds, exchange=arguments.exchange
        )
        results.append(Simulation(fleet).run())
        print(json.dumps(results[-1]), file=sys.stderr, flush=True)
    text = json.dumps(results, indent=1) + "\n"
    if arguments.output:
        arguments.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()

"""Several runs on one pool of spot machines, simulated: priorities, budgets, shortages, upgrades.

    python benchmarks/simulate_events.py [--tasks 200e3] [--workers 360] [--write-docs]

Each run is a `Simulation` of `simulate_fleet.py` with a queue and a ledger of its own; all have one
clock. This file simulates what decides how many machines there are and which run they work on:

- Each machine looks at the runs every `LOOK_S` seconds. It works on the run with the highest
  priority that has waiting tasks. To change to it, it finishes its current task.
- Ended machines are replaced, in the zone where they were, while tasks are waiting.
- What happens at a given time is a list of events: `Submit`, `Budget`, `Shortage`, `Upgrade`.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from dataclasses import asdict, dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from fleet_report import event_lines
from fleet_services import Timeline
from page import write_between
from processes import RESULTS, ROOT
from simulate_fleet import PROGRESS_S, Fleet, Simulation
from table import as_markdown, as_text

from chunkflow_py.run.ledger.ledger_segments import SegmentHeader

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fleet_worker import Worker

HOUR = 3600.0
LOOK_S = 30.0  # time between two looks of a machine at the runs, and of the fleet at its machines
LOAD_S = 60.0  # to load the network of another run
ZONES = ("a", "b", "c")
RESULT, PAGE = RESULTS / "fleet-events.json", ROOT / "docs" / "costs.md"


# --- what happens --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Submit:
    """A run is submitted."""

    at_h: float
    run: str
    tasks: int
    priority: int = 0

    def happen(self, pool: Pool) -> None:
        """Let machines work on the run."""
        pool.run(self.run).is_submitted = True


@dataclass(frozen=True)
class Budget:
    """All machines of a run together may cost an amount in dollars from its start on.

    The simulation lasts until all runs are complete, so a later event must raise a small budget.
    """

    at_h: float
    run: str
    dollars: float

    def happen(self, pool: Pool) -> None:
        """Set the budget, or raise it."""
        pool.run(self.run).set_budget(self.dollars)


@dataclass(frozen=True)
class Shortage:
    """A zone has no capacity: a share of its machines is taken away, and none is replaced."""

    at_h: float
    zone: str
    hours: float
    taken: float

    def happen(self, pool: Pool) -> None:
        """Interrupt machines of the zone, and start none before the end."""
        pool.without_capacity.add(self.zone)
        of_zone = [worker for worker, at in pool.machines.items() if at.zone == self.zone]
        for worker in of_zone[: round(self.taken * len(of_zone))]:
            worker.interrupt()
        pool.later(self.hours, partial(pool.without_capacity.remove, self.zone))


@dataclass(frozen=True)
class Upgrade:
    """All machines are replaced by machines with a new image, a share of them at a time."""

    at_h: float
    share: float
    every_s: float

    def happen(self, pool: Pool) -> None:
        """Begin the first wave."""
        pool.version += 1
        self._wave(pool, round(self.share * pool.fleet.workers))

    def _wave(self, pool: Pool, size: int) -> None:
        old = [worker for worker, at in pool.machines.items() if at.version < pool.version]
        for worker in old[:size]:
            pool.replaced += 1
            pool.end(worker)
        if pool.has_old():
            pool.later(self.every_s / HOUR, partial(self._wave, pool, size))
        else:
            pool.upgraded_h = pool.clock.now / HOUR


Event = Submit | Budget | Shortage | Upgrade


# --- the pool ------------------------------------------------------------------------------------


class PoolRun(Simulation):
    """One of the runs of a pool.

    Attributes:
        name, priority, submitted_h: the same as of its `Submit`.
        ended_s: time at which each task was recorded.
        stops: for each budget that was reached: the budget, the number of machines at that time,
            and when work continues, the cost until then and the hours without work.
        before, after: number of tasks of runs of lower priority that are recorded when the run gets
            its first machines, and when it has no waiting tasks for the first time.
    """

    def __init__(self, pool: Pool, submit: Submit) -> None:
        """Plan the tasks."""
        super().__init__(replace(pool.fleet, tasks=submit.tasks), pool.clock)
        self.pool, self.name = pool, submit.run
        self.priority, self.submitted_h = submit.priority, submit.at_h
        self.is_submitted = self._is_stopped = False
        self.ended_s: float | None = None
        self.before: int | None = None
        self.after: int | None = None
        self.stops: list[dict[str, float]] = []
        self._budget, self._stopped_s = float("inf"), 0.0

    def ended(self, worker: Worker) -> None:
        """Let the pool decide what the machine does next."""
        self.pool.ended(worker)

    def is_open(self) -> bool:
        """Return whether machines may work on the run."""
        return self.is_submitted and self.ended_s is None and not self._is_stopped

    def spent(self) -> float:
        """Return the cost of the run's machines so far, in dollars."""
        return self.paid_s() / HOUR * self.fleet.worker_price

    def set_budget(self, dollars: float) -> None:
        """Let the run cost this amount in all, and continue if it had stopped."""
        self._budget = dollars
        if self._is_stopped:
            self._is_stopped = False
            waited_h = (self.clock.now - self._stopped_s) / HOUR
            self.stops[-1] |= {"cost": self.spent(), "waited_h": waited_h}

    def look(self) -> None:
        """See whether the run is complete, and whether its budget is spent."""
        if self.ended_s is None and self.events["finished"] == self.fleet.tasks:
            self.ended_s = self.clock.now
        if self.is_open() and self.spent() >= self._budget:
            self._is_stopped, self._stopped_s = True, self.clock.now
            self.stops.append({"budget": self._budget, "workers": len(self.workers)})

    def pool_results(self) -> dict[str, Any]:
        """Return the results of a complete run."""
        assert self.ended_s is not None
        return {
            "run": self.name,
            "priority": self.priority,
            "submitted_h": self.submitted_h,
            "stops": self.stops,
            "before": self.before,
            "after": self.after,
            **self.results(self.ended_s - self.submitted_h * HOUR),
        }


@dataclass
class Machine:
    """A machine of the pool.

    Attributes:
        zone: where it is.
        version: number of its image.
        leaves: whether its worker has been told to stop.
        ends: whether it ends with its worker.
    """

    zone: str
    version: int
    leaves: bool = False
    ends: bool = False


class Pool:
    """Machines in several zones, which work on several runs.

    Attributes:
        machines: machines at work, by their workers.
        replaced: number of machines that an upgrade has ended.
        upgraded_h: when no machine had an older image any more, hours.
        most_missing: largest number of machines that could not be started although tasks waited.
        missing_h: hours of such machines.
    """

    def __init__(self, fleet: Fleet, events: Sequence[Event]) -> None:
        """Plan all runs; none is submitted, and there is no machine."""
        self.fleet, self.events, self.clock = fleet, events, Timeline()
        submits = [event for event in events if isinstance(event, Submit)]
        submits.sort(key=lambda submit: -submit.priority)
        self.runs = [PoolRun(self, submit) for submit in submits]
        self.machines: dict[Worker, Machine] = {}
        self.without_capacity: set[str] = set()
        self.version = self.replaced = 0
        self.most_missing = 0
        self.upgraded_h = self.missing_h = 0.0
        self._starting: list[Machine] = []  # they boot, or load the network of another run

    def run(self, name: str) -> PoolRun:
        """Return a run by its name."""
        (found,) = (run for run in self.runs if run.name == name)
        return found

    def later(self, hours: float, event: Callable[[], None]) -> None:
        """Call a function after some hours."""
        self.clock.at(self.clock.now + hours * HOUR, event)

    def simulate(self) -> dict[str, Any]:
        """Let the machines work until each task of each run is recorded; return the results."""
        start = printed = perf_counter()
        for event in self.events:
            self.later(event.at_h, partial(event.happen, self))
        self.later(0.0, self._look)
        while any(run.ended_s is None for run in self.runs):
            self.clock.step()
            if perf_counter() - printed > PROGRESS_S:
                printed = perf_counter()
                done = {run.name: run.events["finished"] for run in self.runs}
                print(f"{self.clock.now / HOUR:.1f} h: {done}", file=sys.stderr, flush=True)
        return {
            "events": [{"event": type(each).__name__, **asdict(each)} for each in self.events],
            "runs": [run.pool_results() for run in self.runs],
            "machines": self.fleet.workers,
            "replaced": self.replaced,
            "upgraded_h": self.upgraded_h,
            "old": sum(each.version < self.version for each in self.machines.values()),
            "most_missing": self.most_missing,
            "missing_h": self.missing_h,
            "look_s": LOOK_S,
            "simulated_in_s": perf_counter() - start,
        }

    # --- every 30 seconds --------------------------------------------------------------------

    def _look(self) -> None:
        """Start missing machines, and move machines to the run that they should work on."""
        self.later(LOOK_S / HOUR, self._look)
        for run in self.runs:
            run.look()
        wanted = self._wanted()
        self._watch(wanted)
        room = -(-wanted.queue.waiting() // self.fleet.window) if wanted else 0
        for run in self.runs:
            is_lower = wanted is not None and run.priority < wanted.priority
            for worker in list(run.workers if run is not wanted else ()):
                machine = self.machines[worker]
                if machine.leaves:
                    continue
                if not run.is_open() or (room and (is_lower or worker.is_idle)):
                    room -= run.is_open()
                    machine.leaves = True
                    worker.stop()
        for zone in ZONES:
            if zone in self.without_capacity:
                continue
            for _ in range(min(room, self._missing(zone))):
                room -= 1
                boot_s = self.fleet.boot_s + random.uniform(0, LOOK_S)
                self._start(Machine(zone, self.version), boot_s)
        missing = min(room, sum(map(self._missing, ZONES)))
        self.most_missing = max(self.most_missing, missing)
        self.missing_h += missing * LOOK_S / HOUR

    def _wanted(self) -> PoolRun | None:
        """Return the run that machines should work on."""
        return next((run for run in self.runs if run.is_open() and run.queue.waiting()), None)

    def _missing(self, zone: str) -> int:
        of_pool = [*self.machines.values(), *self._starting]
        return self.fleet.workers // len(ZONES) - sum(each.zone == zone for each in of_pool)

    def _watch(self, wanted: PoolRun | None) -> None:
        """Keep how much other runs have done when a run begins, and when no task of it waits."""
        for run in self.runs:
            lower = [other for other in self.runs if other.priority < run.priority]
            recorded = sum(other.events["finished"] for other in lower)
            if run is wanted and run.before is None:
                run.before = recorded
            elif run is not wanted and run.before is not None and run.after is None:
                run.after = recorded

    # --- machines ----------------------------------------------------------------------------

    def _start(self, machine: Machine, seconds: float) -> None:
        """Start a worker on a machine after some seconds, which are paid for."""
        self._starting.append(machine)
        self.later(seconds / HOUR, partial(self._begin, machine, seconds))

    def _begin(self, machine: Machine, before_s: float) -> None:
        self._starting.remove(machine)
        wanted = self._wanted()
        if wanted is not None:
            machine.leaves = False
            self.machines[wanted.begin(before_s)] = machine

    def has_old(self) -> bool:
        """Return whether a machine has an older image."""
        of_pool = [*self.machines.values(), *self._starting]
        return any(machine.version < self.version for machine in of_pool)

    def end(self, worker: Worker) -> None:
        """Let a machine end, after the tasks that its worker can finish in time."""
        self.machines[worker].leaves = self.machines[worker].ends = True
        worker.stop(self.fleet.grace_s)

    def ended(self, worker: Worker) -> None:
        """Let the machine of a worker take the next run, unless the machine ends, too."""
        machine = self.machines.pop(worker)
        if not (worker.is_interrupted or machine.ends or self._wanted() is None):
            self._start(machine, LOAD_S)


# --- the command ---------------------------------------------------------------------------------


def scenario(fleet: Fleet) -> list[Event]:
    """Return what happens to a survey of three quarters of the tasks, and to an urgent run."""
    hours = fleet.tasks * fleet.task_s / fleet.workers / HOUR  # if nothing happened
    urgent = fleet.tasks // 4
    survey_dollars = (fleet.tasks - urgent) * fleet.task_s / HOUR * fleet.worker_price
    return [
        Submit(0.0, "survey", fleet.tasks - urgent),
        Budget(0.0, "survey", round(0.8 * survey_dollars)),
        Submit(0.2 * hours, "urgent", urgent, priority=10),
        Shortage(0.3 * hours, "b", 0.3 * hours, taken=0.5),
        Upgrade(0.7 * hours, share=0.1, every_s=300.0),
        Budget(1.1 * hours, "survey", 2 * round(survey_dollars)),
    ]


def documented() -> str:
    """Return the text for the page, from the recorded results."""
    lines = event_lines(json.loads(RESULT.read_text()))
    return f"\n{as_markdown(lines)}\nRecorded in `benchmarks/results/{RESULT.name}`.\n\n"


def main() -> None:
    """Simulate and record, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=float, default=200e3)
    parser.add_argument("--workers", type=int, default=360)
    parser.add_argument("--output", type=Path, default=RESULT, help="JSON file for the results")
    parser.add_argument("--write-docs", action="store_true", help=f"only rewrite {PAGE.name}")
    arguments = parser.parse_args()
    if not arguments.write_docs:
        # Hundreds of workers read the same headers in one process: parse each text once.
        parse = SegmentHeader.from_line
        SegmentHeader.from_line = lru_cache(maxsize=1 << 14)(parse)  # type: ignore[method-assign]
        fleet = Fleet(int(arguments.tasks), arguments.workers)
        found = Pool(fleet, scenario(fleet)).simulate()
        arguments.output.write_text(json.dumps(found, indent=1) + "\n")
        print(as_text(event_lines(found)))
    if arguments.output == RESULT:
        write_between(PAGE, documented())


if __name__ == "__main__":
    main()

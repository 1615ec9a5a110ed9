"""Collect the data of the dashboard from the ledger and the queue of a run."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import GeometryError, OptionError, QueueError
from chunkflow_py.monitor.dashboard.task_history import TaskHistory
from chunkflow_py.monitor.dashboard.task_map import TaskMap
from chunkflow_py.monitor.dashboard.task_states import (
    CODES,
    DONE,
    FAILED,
    TaskStates,
)
from chunkflow_py.monitor.run_facts import StepStatus, run_state
from chunkflow_py.monitor.run_volumes import volumes_of
from chunkflow_py.queue.message_body import parse_body
from chunkflow_py.queue.queue_protocol import TellsLeased, open_queue
from chunkflow_py.run.spending import spending_text
from chunkflow_py.store import open_store

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chunkflow_py.queue.queue_protocol import Counts, Queue
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

_SHARE = 5  # an update that takes a second is followed by five seconds without one
_HISTORY_S = 0.7  # time for reading whole segments in each update
_LEASED = 10_000  # most leased messages to request from the queue

BY_LEASES = "tasks whose messages are leased by a worker"
BY_MARKS = "only tasks that a worker has marked as begun; workers do not mark every task"


class StepWatch:
    """Collects the data of the dashboard about one step of a run.

    Args:
        home: run directory.
        stage: the step.
    """

    def __init__(self, home: RunDirectory, stage: RunStep) -> None:
        """Read the plan of the step, but not yet the states of its tasks; see `update`."""
        self._home, self.stage = home, stage
        taken = home.spec.reused.get(stage.name)
        store = home.store if taken is None else open_store(taken)
        self.plan: Plan = home.plan(stage.name)
        self.layout = TaskMap.of(self.plan)
        older = home.spec.is_older
        self.states = TaskStates(store, stage.name, self.layout.is_task, older=older)
        self.history = TaskHistory(self.states)
        self.closed = False

    def update(self, bodies: Iterable[str] | None) -> None:
        """Update the states of the step's tasks.

        Args:
            bodies: texts of the leased messages; ``None`` if the queue cannot list leased messages.
        """
        closed = self._home.is_closed(self.stage.name)
        if not (closed and self.closed):
            self.states.update(None if bodies is None else self._numbers(bodies))
        self.closed = closed

    def _numbers(self, bodies: Iterable[str]) -> set[int]:
        """Return the numbers of all tasks of this step that are named in the messages."""
        found = set()
        for text in bodies:
            try:
                body = parse_body(text)
                if body.run in (None, self.stage.hash) and body.stage in (None, self.stage.name):
                    found.add(self.plan.number(body.region))
            except (QueueError, GeometryError):
                continue  # a task of another run on the same queue, or not a task
        return found

    def status(self, now: float) -> StepStatus:
        """Return the progress of the step at the time *now*, in seconds since 1970."""
        taken_from = self._home.spec.reused.get(self.stage.name)
        totals = self.states.totals(now)
        return StepStatus.of(self.stage, totals, closed=self.closed, taken_from=taken_from)

    def summary(self, status: StepStatus) -> dict[str, Any]:
        """Return the figures that the page shows about the step, such as counts of tasks."""
        import numpy as np

        counts = np.bincount(self.states.codes, minlength=len(CODES)).tolist()
        totals = status.totals
        return {
            "name": status.name,
            "tasks": status.tasks,
            "counts": dict(zip(CODES, counts, strict=True)),
            "left": status.left,
            "failed_attempts": totals.failures,
            "stored_bytes": totals.stored_bytes,
            "missing_blocks": totals.missing_blocks,
            "seconds": totals.seconds,
            "first": totals.first,
            "last": totals.last,
            "tasks_per_s": status.tasks_per_s,
            "expected_s": status.expected_s if status.left else None,
            "closed": status.closed,
            "taken_from": status.taken_from,
            "line": " ".join(name for name, _ in self.stage.options),
        }


class RunWatch:
    """Collects the data of the dashboard about a whole run; thread-safe.

    Args:
        home: run directory.
        price: US dollars per hour of one worker; ``None`` if unknown.
        source: text for the page that says where the price comes from.
    """

    def __init__(self, home: RunDirectory, price: float | None = None, source: str = "") -> None:
        """Read the plans of the run, but not yet its state; see `update`.

        Raises:
            OptionError: the run does not exist.
        """
        self._home, self._source = home, source
        self._price = None if price is None else float(f"{price:.6g}")  # as the page shows it
        self._stages = {stage.name: StepWatch(home, stage) for stage in home.spec.steps}
        self._lock = threading.Lock()
        self._next = 0.0
        self._counts: Counts | None = None
        self._queue: Queue | None = None
        self._running_source = ""
        self._spending = ""

    def stage(self, name: str) -> StepWatch:
        """Return the step called *name*; if the name is empty, return the first open step.

        A step is open while some of its tasks have not ended, or have failed too often and were
        given up. If no step is open, the last step is returned.

        Raises:
            OptionError: the run has no step of this name.
        """
        if not name:
            open_ones = (each for each in self._stages.values() if not each.closed)
            return next(open_ones, [*self._stages.values()][-1])
        if name not in self._stages:
            msg = f"the run has no step {name!r}; give one of its steps: {', '.join(self._stages)}"
            raise OptionError(msg)
        return self._stages[name]

    def update(self, name: str = "") -> StepWatch:
        """Update the states of all steps, and read records of one step.

        The states are updated at most once a second.

        Returns:
            The step called *name*, whose records were read.

        Raises:
            ChunkflowError: the run cannot be read.
        """
        with self._lock:
            began = time.monotonic()
            if began >= self._next:
                self._home.check_not_deleted()
                bodies = self._ask_queue()
                self._spending = self._spending_text()
                for each in self._stages.values():
                    each.update(bodies)
                    if bodies and not each.closed:
                        bodies = []  # leased messages belong to the first open step
                took = time.monotonic() - began
                self._next = began + max(1.0, _SHARE * took)
            stage = self.stage(name)
            stage.history.read(_HISTORY_S)
            return stage

    def _ask_queue(self) -> list[str] | None:
        """Return the texts of leased messages; ``None`` if the queue cannot list them."""
        self._counts, bodies = None, None
        if not (url := self._home.spec.queue):
            self._running_source = f"{BY_MARKS} (the run has no queue)"
            return None
        try:
            if self._queue is None:
                self._queue = open_queue(url)
            self._counts = self._queue.counts()
            if isinstance(self._queue, TellsLeased):
                bodies = self._queue.leased(_LEASED)
        except QueueError as error:
            self._running_source = f"{BY_MARKS} (the queue cannot be read: {error})"
            logger.warning("%s", error)
            self.close()
            return None
        self._running_source = BY_MARKS if bodies is None else BY_LEASES
        return bodies

    def _spending_text(self) -> str:
        try:
            return spending_text(self._home)
        except OptionError as error:
            return str(error)

    def close(self) -> None:
        """Close the connection to the queue."""
        if self._queue is not None:
            self._queue.close()
            self._queue = None

    # Data that the page requests

    def status(self, name: str = "") -> dict[str, Any]:
        """Return the data of the page: progress of all steps, and details of the step *name*."""
        watch = self.update(name)
        with self._lock:
            now = time.time()
            steps = [(each, each.status(now)) for each in self._stages.values()]
            known, ended = watch.history.coverage()
            workers = watch.history.workers(now)
            return {
                "address": self._home.address,
                "now": now,
                "state": run_state(status for _, status in steps),
                "stages": [each.summary(status) for each, status in steps],
                "queue": self._counts and asdict(self._counts),
                "queue_url": self._home.spec.queue,
                "running": self._running_source,
                "stage": watch.stage.name,
                "version": watch.states.version,
                "throughput": watch.history.throughput(now),
                "workers": workers,
                "errors": watch.history.errors(),
                "history": {"known": known, "ended": ended, "pages": len(watch.history.left)},
                "spending": self._spending,
                "price": self._price,
                "price_source": "" if self._price is None else self._source,
                "cost": cost(workers["hours"], ended, watch.stage.tasks, self._price),
            }

    def volumes(self) -> list[str]:
        """Return the addresses of the volumes that the steps read and write, without duplicates."""
        steps = [each.stage for each in self._stages.values()]
        places = [place for step in steps for place in volumes_of(step)[0]]
        return list(dict.fromkeys(place.address for place in places))

    def layout(self, name: str) -> dict[str, Any]:
        """Return the layout of the map of the step called *name*, and the names of the states."""
        return self.stage(name).layout.to_json() | {"codes": CODES}

    def cells(self, name: str) -> bytes:
        """Return the index of each task's cell in the map, as uint32, little-endian.

        The result is empty if each index is equal to the task number.
        """
        cells = self.stage(name).layout.cells
        return b"" if cells is None else cells.astype("<u4").tobytes()

    def map(self, name: str, since: int) -> tuple[int, bool, bytes]:
        """Return the states of a step's tasks that changed after version *since*, or of all tasks.

        Returns:
            The present version; whether the result contains all tasks; and the states, encoded as
            in `TaskStates.changes`.
        """
        with self._lock:
            states = self.stage(name).states
            return states.version, *states.changes(since)

    def brief(self, name: str, number: int) -> dict[str, Any]:
        """Return the facts about a task that are in memory, without reading the ledger."""
        watch = self.stage(name)
        if number not in watch.plan:
            msg = f"step {name} has no task {number}"
            raise GeometryError(msg)
        with self._lock:
            code = int(watch.states.codes[number])
            tries = int(watch.states.tries[number])
            ended = code in (DONE, FAILED) or CODES[code] == "skipped"
            return {
                "number": number,
                "box": watch.plan.text(number),
                "state": CODES[code],
                "failed_attempts": tries,
                # The last failed attempt gives the task up; it is not an additional attempt.
                "attempts": tries + (ended and (code != FAILED or tries == 0)),
            } | watch.history.about(number)

    def task(self, name: str, number: int) -> dict[str, Any]:
        """Return the facts about a task, with its record and failures, read from the ledger."""
        brief = self.brief(name, number)
        ledger = self._home.ledger(self.stage(name).stage.name)
        attempts = ledger.attempts(number)
        records = [each.record for each in attempts if each.record is not None]
        begun = [asdict(each) for each in attempts if each.record is None]
        failures = sorted(ledger.failures(number), key=lambda each: each.when)
        return brief | {
            "records": [asdict(record) for record in records],
            "begun": begun,
            "failures": [asdict(failure) for failure in failures],
        }


def cost(hours: float, ended: int, tasks: int, price: float | None) -> dict[str, float | None]:
    """Return the cost of a step so far, and the estimated cost of the complete step.

    Args:
        hours: hours of all workers so far, added up.
        ended: number of tasks that have ended.
        tasks: number of all tasks of the step.
        price: US dollars per hour of one worker; ``None`` if unknown.
    """
    whole = hours * tasks / ended if ended else None
    return {
        "hours": hours,
        "hours_foretold": whole,
        "spent": None if price is None else hours * price,
        "foretold": None if price is None or whole is None else whole * price,
    }

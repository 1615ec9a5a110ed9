"""The status of a run: finished tasks from the ledger, waiting tasks from the queue."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.errors import ChunkflowError, QueueError
from chunkflow_py.monitor.run_facts import (
    FailedTask,
    StepStatus,
    cause_text,
    failed_tasks,
    failing_tasks,
    patch_texts,
    run_state,
)
from chunkflow_py.queue.queue_protocol import Counts, open_queue
from chunkflow_py.run.exchange_store import ExchangeAmount, amount_in
from chunkflow_py.run.spending import budget_of, describe, spending_of
from chunkflow_py.run.worker_records import WorkerCounts, WorkerRecords
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.monitor.run_facts import RunState
    from chunkflow_py.run.exchange_store import ExchangeSettings
    from chunkflow_py.run.ledger.ledger_record import Totals
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.submission_record import SubmissionRecord

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunStatus:
    """Progress of a run.

    Attributes:
        address: address of the run, with the hash of its spec.
        stages: progress of each step.
        queue: numbers of waiting, leased and dead messages in the queue; ``None`` if the run has no
            queue, or the queue cannot be read.
        queue_url: URL of the queue; empty if the run has no queue.
        failures: tasks that were given up, up to a limit.
        exchange: settings of the exchange of patches; ``None`` if no step runs a network.
        exchanged: amount of data in the exchange; ``None`` if the exchange cannot be read.
        workers: number of workers that have started, and number of workers that have stopped.
        submission: who submitted the run, and when; ``None`` if this was not recorded.
        failing: tasks that have failed and will be tried again, up to a limit; empty if these
            tasks were not requested.
        budget: budget of the run, US dollars; ``None`` if the run has no budget or the budget
            cannot be read.
        spent: cost of all workers that know their price, US dollars; ``None`` if no worker knows
            its price.
    """

    address: str
    stages: tuple[StepStatus, ...]
    queue: Counts | None
    queue_url: str
    failures: tuple[FailedTask, ...]
    failing: tuple[FailedTask, ...] = ()
    exchange: ExchangeSettings | None = None
    exchanged: ExchangeAmount | None = None
    budget: float | None = None
    spent: float | None = None
    workers: WorkerCounts = field(default_factory=WorkerCounts)
    submission: SubmissionRecord | None = None

    @property
    def state(self) -> RunState:
        """State of the run: ``complete``, ``complete but for failures``, or ``unfinished``."""
        return run_state(self.stages)

    def to_json(self) -> dict[str, Any]:
        """Return the status as a dictionary that can be written as JSON."""
        return {
            "address": self.address,
            "stages": [_step_json(step) for step in self.stages],
            "queue": self.queue and asdict(self.queue),
            "queue_url": self.queue_url,
            "failures": [asdict(task) for task in self.failures],
            "failing": [asdict(task) for task in self.failing],
            "exchange": self._exchange_json(),
            "budget": self.budget,
            "spent": self.spent,
            "workers": asdict(self.workers),
            "submission": self.submission and asdict(self.submission),
            "state": self.state,
        }

    def _exchange_json(self) -> dict[str, Any] | None:
        if self.exchange is None:
            return None
        amount = self.exchanged
        return {
            "mode": self.exchange.mode,
            "url": without_secrets(self.exchange.url) or None,
            "limit_bytes": self.exchange.limit,
            "objects": amount and amount.objects,
            "bytes": amount and amount.bytes,
        }

    def _exchange_lines(self) -> Iterator[str]:
        if self.exchange is None or self.exchange.mode == "off":
            return
        name = "exchange of patches"
        if self.exchange.url:
            name += f" {without_secrets(self.exchange.url)}"
        if self.exchanged is None:
            yield f"  {name}: cannot be read; a warning on stderr gives the reason"
        elif self.exchanged.objects or self.state != "complete":
            size = describe_bytes(self.exchanged.bytes)
            yield f"  {name}: {self.exchanged.objects} objects, {size}"

    def _worker_parts(self) -> Iterator[str]:
        yield f"{self.workers.started} started"
        for why, count in self.workers.stopped.items():
            yield f"{count} stopped ({why})"
        if self.workers.silent:
            yield f"{self.workers.silent} at work or lost"

    def lines(self) -> Iterator[str]:
        """Yield the lines of text that `chunkflow status` prints."""
        yield f"{self.address}: {self.state}"
        for step in self.stages:
            yield f"  {step.name}: {', '.join(_step_parts(step))}"
        if self.queue is not None:
            dead = "" if self.queue.dead is None else f", {self.queue.dead} dead letters"
            yield (
                f"  queue {self.queue_url}: {self.queue.waiting} waiting, {self.queue.leased} in "
                f"flight{dead}"
            )
        elif self.queue_url:
            yield f"  queue {self.queue_url}: cannot be read; a warning on stderr gives the reason"
        if self.workers.started:
            yield f"  workers: {', '.join(self._worker_parts())}"
        yield from self._exchange_lines()
        run, is_over = self.address.partition("#")[0], self.state != "unfinished"
        if text := describe(run, self.budget, self.spent, is_over=is_over):
            yield f"  {text}"
        for task in (*self.failures, *self.failing):
            yield from _task_lines(task)


def status_of(home: RunDirectory, most: int = 20, *, attempts: bool = False) -> RunStatus:
    """Return the progress of a run.

    Args:
        home: run directory.
        most: limit of the number of tasks in the list of given-up tasks, and in the list of tasks
            that will be tried again.
        attempts: whether to read the failed attempts of each task, and to list the tasks that will
            be tried again.
    """
    steps: list[StepStatus] = []
    failures: list[FailedTask] = []
    failing: list[FailedTask] = []
    for stage in home.spec.steps:
        name, totals = stage.name, home.counts(stage.name)
        taken_from = home.spec.reused.get(name)
        steps.append(
            StepStatus.of(stage, totals, closed=home.is_closed(name), taken_from=taken_from)
        )
        if totals.dead:
            room = most - len(failures)
            failures += failed_tasks(name, home.ledger(name), room, attempts=attempts)
        if attempts and totals.failures:
            failing += failing_tasks(name, home.ledger(name), most - len(failing))
    url = home.spec.queue
    queue = _queue_counts(url) if url else None
    exchange, spending = home.exchange, spending_of(home.store)
    return RunStatus(
        home.address,
        tuple(steps),
        queue,
        url,
        tuple(failures),
        tuple(failing),
        exchange,
        None if exchange is None else _exchanged(home),
        _budget(home),
        spending.cost if spending.reports else None,
        WorkerRecords(home.store).counts(),
        home.submission,
    )


def _budget(home: RunDirectory) -> float | None:
    try:
        return budget_of(home.store)
    except ChunkflowError as error:
        logger.warning("%s", error)
        return None


def _exchanged(home: RunDirectory) -> ExchangeAmount | None:
    """Return the amount of data in a run's exchange; ``None`` if this machine cannot read it."""
    amount = ExchangeAmount()
    try:
        for step in home.spec.steps:
            if (exchange := home.exchange_of(step.name)) is not None:
                amount += amount_in(open_store(exchange.url))
    except Exception as error:  # noqa: BLE001  (whatever others have put there)
        logger.warning("the exchange of patches cannot be read: %s", error)
        return None
    return amount


def _queue_counts(url: str) -> Counts | None:
    """Return the numbers of messages by state; ``None`` if this machine cannot read the queue."""
    try:
        with closing(open_queue(url)) as queue:
            return queue.counts()
    except QueueError as error:
        logger.warning("%s", error)
        return None


def _step_json(step: StepStatus) -> dict[str, Any]:
    totals = step.totals
    return {
        "name": step.name,
        "hash": step.hash,
        "tasks": step.tasks,
        "done": totals.done,
        "skipped": totals.skipped,
        "failed": totals.dead,
        "attempts_failed": totals.failures,
        "attempts_failed_s": totals.failed_s,
        "attempts_failed_causes": totals.causes,
        "stored_bytes": totals.stored_bytes,
        "missing_blocks": totals.missing_blocks,
        "patches": totals.patches,
        "tasks_per_s": totals.recent,
        "seconds": totals.seconds,
        "closed": step.closed,
        "taken_from": step.taken_from,
        "left": step.left,
        "expected_s": step.expected_s,
    }


def _step_parts(step: StepStatus) -> Iterator[str]:
    totals = step.totals
    yield f"{totals.done} of {step.tasks} tasks done"
    for count, what in (
        (totals.skipped, "skipped"),
        (totals.dead, "failed"),
        (step.left, "left"),
        (totals.failures, f"failed attempts{_failed_attempts(totals)}"),
        (totals.missing_blocks, "missing blocks read as the fill value"),
    ):
        if count:
            yield f"{count} {what}"
    if totals.stored_bytes:
        yield f"{describe_bytes(totals.stored_bytes)} stored"
    yield from patch_texts(totals.patches)
    if step.left and step.expected_s:
        yield f"{step.tasks_per_s:.3g} tasks/s"
        end = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() + step.expected_s))
        yield f"expected to end at {end}"
    if step.taken_from:
        yield f"taken over from {step.taken_from}"


def _task_lines(task: FailedTask) -> Iterator[str]:
    """Yield the lines about a failed task: reason of the failure, then attempts with tracebacks."""
    if task.reason is None:
        yield f"  failed, to be tried again: {task.stage} {task.box}"
    else:
        yield f"  failed {task.stage} {task.box}: {task.reason}"
    for number, each in enumerate(task.attempts, 1):
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.when))
        what = each.kind if each.cause in (None, each.kind) else f"{each.kind} ({each.cause})"
        which = f"attempt {number} of {len(task.attempts)}, {what}, {each.worker}, {when}"
        yield f"    {which}{_seconds(each.seconds)}: {each.reason}"
        yield from (f"      {line}" for line in each.traceback.splitlines())


def _failed_attempts(totals: Totals) -> str:
    """Return the causes of the failed attempts and the lost seconds as text in parentheses."""
    causes = cause_text(totals.causes, totals.failures) if totals.causes else ""
    seconds = f"{totals.failed_s:.3g} s" if totals.failed_s else ""
    inside = "; ".join(filter(None, (causes, seconds)))
    return f" ({inside})" if inside else ""


def _seconds(seconds: float | None) -> str:
    return f" ({seconds:.3g} s)" if seconds else ""

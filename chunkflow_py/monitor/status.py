"""How far a run is: counted from its records, and from its queue what is not in them yet."""

from __future__ import annotations

import logging
import time
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.memory import describe_bytes
from chunkflow_py.errors import QueueError
from chunkflow_py.queue.protocol import Counts, open_queue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.run.home import RunHome
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.record import Failure

logger = logging.getLogger(__name__)

_AT_ONCE = 256  # tasks of which it is asked whether they have ended


@dataclass(frozen=True)
class StageStatus:
    """How far a stage is.

    Attributes:
        name: of the stage.
        hash: that its messages and records say.
        tasks: how many there are.
        done, skipped, failed: how many have ended so.
        attempts_failed: how many attempts have failed, of these and others.
        attempts_failed_s: seconds that they took, as far as it is known.
        stored_bytes: by those that are done.
        missing_blocks: that they have read as the fill value, as nothing is stored there.
        tasks_per_s: of late, or ``None`` if nothing has ended of late.
        seconds: by operator, of all that are done.
        closed: whether all have ended well, so that the next stage is open.
        taken_from: URL of the run whose output was taken over.
    """

    name: str
    hash: str
    tasks: int
    done: int
    skipped: int
    failed: int
    attempts_failed: int
    attempts_failed_s: float
    stored_bytes: int
    missing_blocks: int
    tasks_per_s: float | None
    seconds: dict[str, float]
    closed: bool
    taken_from: str | None = None

    @property
    def left(self) -> int:
        """How many have not ended."""
        return self.tasks - self.done - self.skipped - self.failed


@dataclass(frozen=True)
class FailedTask:
    """A task of which attempts have failed.

    Attributes:
        stage: of the task.
        number: of the task.
        box: of the task.
        reason: why it was given up; ``None``: it will be tried again.
        attempts: that failed, the first one first, as far as they were asked for.
    """

    stage: str
    number: int
    box: str
    reason: str | None
    attempts: tuple[Failure, ...] = ()

    def words(self) -> Iterator[str]:
        """Yield lines for a person: the task, and its attempts with their tracebacks."""
        if self.reason is None:
            yield f"  to be tried again {self.stage} {self.box}"
        else:
            yield f"  failed {self.stage} {self.box}: {self.reason}"
        for number, each in enumerate(self.attempts, 1):
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(each.when))
            who = f"attempt {number} of {len(self.attempts)}, {each.kind}, {each.worker}, {when}"
            who += _taken(each.seconds)
            yield f"    {who}: {each.reason}"
            yield from (f"      {line}" for line in each.traceback.splitlines())


@dataclass(frozen=True)
class RunStatus:
    """How far a run is.

    Attributes:
        address: of the run, with its digest.
        stages: of it.
        queue: what waits there and what is leased; ``None`` if it cannot be asked.
        queue_url: of the queue.
        failures: tasks that were given up, the first ones.
        failing: tasks of which attempts have failed and that will be tried again, the first ones,
            as far as they were asked for.
    """

    address: str
    stages: tuple[StageStatus, ...]
    queue: Counts | None
    queue_url: str
    failures: tuple[FailedTask, ...]
    failing: tuple[FailedTask, ...] = ()

    @property
    def state(self) -> str:
        """``complete``, ``complete but for failures``, or ``unfinished``."""
        if all(stage.closed or stage.left + stage.failed == 0 for stage in self.stages):
            return "complete"
        going = next(s for s in self.stages if not s.closed and s.left + s.failed)
        return "unfinished" if going.left else "complete but for failures"

    def to_json(self) -> dict[str, Any]:
        """Return all of it for a program."""
        said = asdict(self)
        said["state"] = self.state
        for stage, each in zip(self.stages, said["stages"], strict=True):
            each["left"] = stage.left
            each["expected_s"] = _expected(stage)
        return said

    def words(self) -> Iterator[str]:
        """Yield lines for a person."""
        yield f"{self.address}: {self.state}"
        for stage in self.stages:
            parts = [f"{stage.done} of {stage.tasks} tasks done"]
            parts += [
                f"{count} {what}"
                for count, what in (
                    (stage.skipped, "skipped"),
                    (stage.failed, "failed"),
                    (stage.left, "left"),
                    (stage.attempts_failed, f"failed attempts{_taken(stage.attempts_failed_s)}"),
                    (stage.missing_blocks, "missing blocks read as the fill value"),
                )
                if count
            ]
            if stage.stored_bytes:
                parts.append(f"{describe_bytes(stage.stored_bytes)} stored")
            if stage.tasks_per_s and stage.left:
                parts.append(f"{stage.tasks_per_s:.3g} tasks/s")
                end = time.strftime("%Y-%m-%d %H:%M", time.localtime(time.time() + _seconds(stage)))
                parts.append(f"expected to end at {end}")
            if stage.taken_from:
                parts.append(f"taken over from {stage.taken_from}")
            yield f"  {stage.name}: {', '.join(parts)}"
        if self.queue is not None:
            dead = "" if self.queue.dead is None else f", {self.queue.dead} dead letters"
            yield (
                f"  queue {self.queue_url}: {self.queue.waiting} waiting, {self.queue.leased} in "
                f"flight{dead}"
            )
        elif self.queue_url:
            yield f"  queue {self.queue_url}: cannot be asked"
        for task in (*self.failures, *self.failing):
            yield from task.words()


def status_of(home: RunHome, most: int = 20, *, attempts: bool = False) -> RunStatus:
    """Return how far a run is.

    Args:
        home: of the run.
        most: how many failed tasks to list.
        attempts: also read what each of their attempts has said, and list those that will be
            tried again.
    """
    stages: list[StageStatus] = []
    failures: list[FailedTask] = []
    failing: list[FailedTask] = []
    for stage in home.spec.stages:
        ledger, counts = home.ledger(stage.name), home.counts(stage.name)
        stages.append(
            StageStatus(
                stage.name,
                stage.hash,
                stage.tasks,
                counts.done,
                counts.skipped,
                counts.dead,
                counts.failures,
                counts.failed_s,
                counts.stored_bytes,
                counts.missing_blocks,
                counts.recent,
                counts.seconds,
                home.is_closed(stage.name),
                home.spec.reused.get(stage.name),
            )
        )
        if counts.dead and len(failures) < most:
            dead = islice(ledger.records(states={"dead"}), most - len(failures))
            failures += [FailedTask(stage.name, r.number, r.box, r.reason or "") for r in dead]
        if attempts and counts.failures and len(failing) < most:
            failing += _failing(stage.name, ledger, most - len(failing))
    if attempts:
        failures = [_with_attempts(task, home.ledger(task.stage)) for task in failures]
        failing = [_with_attempts(task, home.ledger(task.stage)) for task in failing]
    url = home.spec.queue
    waiting = _queue_counts(url) if url else None
    return RunStatus(home.address, tuple(stages), waiting, url, tuple(failures), tuple(failing))


def _failing(stage: str, ledger: Ledger, most: int) -> list[FailedTask]:
    """Return tasks of which attempts have failed and that have not ended, the first ones."""
    tried = {failure.number: failure.box for failure in ledger.failures()}
    waiting = iter(tried)
    found: list[int] = []
    while len(found) < most and (some := list(islice(waiting, _AT_ONCE))):
        ended = ledger.find(some)
        found += [number for number in some if number not in ended]
    return [FailedTask(stage, number, tried[number], None) for number in found[:most]]


def _with_attempts(task: FailedTask, ledger: Ledger) -> FailedTask:
    found = sorted(ledger.failures(task.number), key=attrgetter("when"))
    return replace(task, attempts=tuple(found))


def _queue_counts(url: str) -> Counts | None:
    """Return what the queue says; who may read a run may not always ask its queue."""
    try:
        with closing(open_queue(url)) as queue:
            return queue.counts()
    except QueueError as error:
        logger.warning("%s", error)
        return None


def _taken(seconds: float | None) -> str:
    """Return in words what attempts have taken, if it is known."""
    return f" ({seconds:.3g} s)" if seconds else ""


def _seconds(stage: StageStatus) -> float:
    return stage.left / stage.tasks_per_s if stage.tasks_per_s else 0.0


def _expected(stage: StageStatus) -> float | None:
    return _seconds(stage) if stage.tasks_per_s else None

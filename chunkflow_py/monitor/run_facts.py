"""The facts of a run that status, report and dashboard share.

Every reader of a run answers the same questions, so each rule stands here once:

| question                            | answer                                         |
|-------------------------------------|------------------------------------------------|
| how far is a step, when will it end | `StepStatus`, from the sums in the ledger      |
| is the run complete                 | `run_state`                                    |
| which tasks failed, and why         | `failed_tasks` and `failing_tasks`             |
| which attempts failed alike         | `ErrorGroups`: one group per kind and reason   |
| what do all records say together    | `StepFacts`: one pass, in constant memory      |

The sums in the ledger cost a read per segment; `StepFacts` reads every record, as only records hold
voxels, workers and reasons.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import Region
from chunkflow_py.run.ledger.ledger_record import LedgerCounts, Sums, Totals

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
    from chunkflow_py.run.run_spec import RunStep

BINS = 1024  # of time, at most
SLOWEST = 5  # tasks that are named
REASONS = 1000  # different ones that are counted separately; further ones are counted together
OTHERS = "other reasons"
_BOXES = 5  # of tasks that have read missing blocks
_EXAMPLES = 3  # failures kept per group
_LONGEST_REASON = 300  # characters by which failures are grouped
_TASKS_AT_ONCE = 256  # looked up in one request to the ledger


# --- how far a step is ----------------------------------------------------------------------------


@dataclass(frozen=True)
class StepStatus:
    """Progress of a step, by the sums in its ledger.

    Attributes:
        name: of the step.
        hash: that its messages and records carry.
        tasks: in all.
        totals: sums over the tasks that ended and the attempts that failed.
        closed: whether all tasks ended well, so that the next step is open.
        taken_from: URL of the run whose output was taken over.
    """

    name: str
    hash: str
    tasks: int
    totals: LedgerCounts
    closed: bool
    taken_from: str | None = None

    @classmethod
    def of(
        cls, step: RunStep, totals: LedgerCounts, *, closed: bool, taken_from: str | None
    ) -> StepStatus:
        """Return the status of a step of a spec."""
        return cls(step.name, step.hash, step.tasks, totals, closed, taken_from)

    @property
    def left(self) -> int:
        """Tasks that have not ended."""
        return self.tasks - self.totals.finished

    @property
    def tasks_per_s(self) -> float:
        """Tasks that ended per second in the last minutes; 0 if none did or none is left."""
        return self.totals.recent if self.left else 0.0

    @property
    def expected_s(self) -> float | None:
        """Seconds until the step ends at its recent speed; ``None`` without one."""
        return self.left / self.totals.recent if self.totals.recent else None


def run_state(steps: Iterable[StepStatus]) -> str:
    """Return ``complete``, ``complete but for failures``, or ``unfinished``."""
    for step in steps:
        if not step.closed and step.left + step.totals.dead:
            return "unfinished" if step.left else "complete but for failures"
    return "complete"


# --- what failed ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailedTask:
    """A task with failed attempts.

    Attributes:
        stage: name of the step of the task.
        number: of the task.
        box: of the task.
        reason: why it was given up; ``None``: it will be tried again.
        attempts: that failed, the oldest first, if they were asked for.
    """

    stage: str
    number: int
    box: str
    reason: str | None
    attempts: tuple[FailedAttempt, ...] = ()


def failed_tasks(
    step: str, ledger: Ledger, most: int, *, attempts: bool = True
) -> list[FailedTask]:
    """Return the first *most* tasks that were given up.

    Args:
        step: name of the step.
        ledger: of the step.
        most: number of tasks to return, at most.
        attempts: also read their failed attempts.
    """
    if most <= 0:
        return []
    return [
        FailedTask(
            step,
            record.number,
            record.box,
            record.reason or "",
            _attempts_on(ledger, record.number) if attempts else (),
        )
        for record in islice(ledger.records(states={"dead"}), most)
    ]


def failing_tasks(step: str, ledger: Ledger, most: int) -> list[FailedTask]:
    """Return the first *most* tasks with failed attempts that will be tried again."""
    boxes = {failure.number: failure.box for failure in ledger.failures()}
    numbers = iter(boxes)
    failing: list[int] = []
    while len(failing) < most and (some := list(islice(numbers, _TASKS_AT_ONCE))):
        ended = ledger.find(some)
        failing += [number for number in some if number not in ended]
    return [
        FailedTask(step, number, boxes[number], None, _attempts_on(ledger, number))
        for number in failing[:most]
    ]


def _attempts_on(ledger: Ledger, number: int) -> tuple[FailedAttempt, ...]:
    return tuple(sorted(ledger.failures(number), key=attrgetter("when")))


@dataclass
class ErrorGroup:
    """Attempts that failed in the same way.

    Attributes:
        kind: whose fault it is.
        reason: without the box of the task and without numbers.
        count: of the attempts.
        last: when the last one failed, seconds since 1970.
        examples: the latest ones, the latest first.
    """

    kind: str
    reason: str
    count: int = 0
    last: float = 0.0
    examples: list[FailedAttempt] = field(default_factory=list)


class ErrorGroups:
    """Failed attempts, grouped by kind and reason.

    Two reasons are the same if they differ in the box of their task and in other numbers only.
    After `REASONS` groups, attempts with a new reason are counted together, by kind.
    """

    def __init__(self, failures: Iterable[FailedAttempt] = ()) -> None:
        """Group some failures."""
        self._groups: dict[tuple[str, str], ErrorGroup] = {}
        for failure in failures:
            self.add(failure)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def add(self, failure: FailedAttempt) -> None:
        """Count one failed attempt."""
        reason = failure.reason.replace(failure.box, "(box)") if failure.box else failure.reason
        reason = re.sub(r"(?<![A-Za-z])[0-9]+", "#", reason)[:_LONGEST_REASON]
        self._count(ErrorGroup(failure.kind, reason, 1, failure.when, [failure]))

    def update(self, other: ErrorGroups) -> None:
        """Count all attempts of *other*."""
        for group in other.ranked():
            self._count(group)

    def ranked(self) -> list[ErrorGroup]:
        """Return all groups, the largest first."""
        return sorted(
            self._groups.values(), key=lambda group: (-group.count, group.reason, group.kind)
        )

    def kinds(self) -> Counter[str]:
        """Return the number of attempts by kind."""
        kinds: Counter[str] = Counter()
        for group in self._groups.values():
            kinds[group.kind] += group.count
        return kinds

    def _count(self, more: ErrorGroup) -> None:
        key = more.kind, more.reason
        if key not in self._groups and len(self._groups) >= REASONS:
            key = more.kind, OTHERS
        group = self._groups.setdefault(key, ErrorGroup(*key))
        group.count += more.count
        group.last = max(group.last, more.last)
        latest = sorted([*group.examples, *more.examples], key=lambda each: -each.when)
        group.examples = latest[:_EXAMPLES]


# --- what all records of a step say together ------------------------------------------------------


@dataclass
class OverTime:
    """Amounts over time in at most `BINS` bins, which widen as time goes on.

    Attributes:
        width_s: of a bin; a power of two, so that the bins of one width are whole bins of another.
        bins: seconds since 1970 divided by the width -> amount.
    """

    width_s: float = 1 / 64
    bins: dict[int, float] = field(default_factory=dict)
    _low: int = 0
    _high: int = 0

    def add(self, when: float, amount: float) -> None:
        """Add an amount at a time, seconds since 1970."""
        key = int(when // self.width_s)
        self._low = min(self._low, key) if self.bins else key
        self._high = max(self._high, key) if self.bins else key
        self.bins[key] = self.bins.get(key, 0.0) + amount
        while self._high - self._low >= BINS:
            merged: dict[int, float] = {}
            for old, value in self.bins.items():
                merged[old // 2] = merged.get(old // 2, 0.0) + value
            self.bins, self.width_s = merged, 2 * self.width_s
            self._low, self._high = self._low // 2, self._high // 2


@dataclass
class WorkerFacts:
    """Work of one worker.

    Attributes:
        tasks: that it ended, in whatever way.
        start: when its first task began, at the latest, and
        stop: when its last task ended, seconds since 1970 by its own clock.
    """

    tasks: int = 0
    start: float = float("inf")
    stop: float = float("-inf")


@dataclass
class StepFacts(Totals):
    """Facts of a step that need all its records and failures, not only their sums.

    Attributes:
        voxels: of the boxes of tasks that are done.
        most_s: seconds of the slowest task by operator.
        objects, stored: number of objects written, and their bytes, by protocol of the store.
        missing_tasks: number of tasks that have read blocks as the fill value.
        missing_boxes: some of these tasks.
        over_time: voxels that were done.
        workers: by name.
        profiles: compute profile -> number of tasks.
        skip_reasons: why tasks were skipped -> number of tasks.
        slowest: seconds and box of the slowest tasks, the slowest first.
        untimed: failed attempts of unknown length.
        errors: the failed attempts.
        failed: tasks that were given up, the first ones.
    """

    voxels: int = 0
    most_s: dict[str, float] = field(default_factory=dict)
    objects: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    missing_tasks: int = 0
    missing_boxes: list[str] = field(default_factory=list)
    over_time: OverTime = field(default_factory=OverTime)
    workers: dict[str, WorkerFacts] = field(default_factory=dict)
    profiles: Counter[str] = field(default_factory=Counter)
    skip_reasons: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    untimed: int = 0
    errors: ErrorGroups = field(default_factory=ErrorGroups, compare=False)
    failed: Sequence[FailedTask] = ()

    @classmethod
    def of_step(cls, step: str, ledger: Ledger, most: int) -> StepFacts:
        """Return the facts in the ledger of a step, with at most *most* dead tasks."""
        facts = cls.of(ledger.records(), ledger.failures())
        facts.failed = failed_tasks(step, ledger, most)
        return facts

    @classmethod
    def of(cls, records: Iterable[Record], failures: Iterable[FailedAttempt] = ()) -> StepFacts:
        """Return the facts in *records* and *failures*, which may come in any order."""
        facts = cls()
        for record in records:
            facts._add_record(record)
        for failure in failures:
            facts.add_totals(Sums.of_failure(failure))
            facts.untimed += failure.seconds is None
            facts.errors.add(failure)
        facts.slowest.sort(reverse=True)
        return facts

    @property
    def start(self) -> float | None:
        """When the first task began, seconds since 1970; ``None`` if no task ended."""
        return min((each.start for each in self.workers.values()), default=None)

    @property
    def wall_s(self) -> float:
        """From the start of the first task to the end of the last one."""
        return 0.0 if self.start is None or self.last is None else self.last - self.start

    @property
    def machine_s(self) -> float:
        """From the start of each worker's first task to the end of its last, of all workers."""
        return sum(each.stop - each.start for each in self.workers.values())

    @property
    def mean_s(self) -> float:
        """Seconds of all operators on a task that is done, on average."""
        return sum(self.seconds.values()) / self.done if self.done else 0.0

    @property
    def wasted_s(self) -> float:
        """Seconds of all operators on attempts that failed.

        Those of unknown length, such as of workers that died, count as much as a task that is done.
        """
        return self.failed_s + self.untimed * self.mean_s

    def _add_record(self, record: Record) -> None:
        self.add_totals(Sums.of(record))
        total_s = sum(record.seconds.values())
        voxels = voxels_of(record) if record.state == "done" else 0
        self.voxels += voxels
        self.over_time.add(record.finished, voxels)
        for name, value in record.seconds.items():
            self.most_s[name] = max(self.most_s.get(name, 0.0), value)
        for each in record.written:
            if each.size is not None:
                protocol = each.url.partition("://")[0]
                self.objects[protocol] += 1
                self.stored[protocol] += each.size
        if record.missing_blocks:
            self.missing_tasks += 1
            if len(self.missing_boxes) < _BOXES:
                self.missing_boxes.append(record.box)
        worker = self.workers.setdefault(record.worker, WorkerFacts())
        worker.tasks += 1
        worker.start = min(worker.start, record.finished - total_s)
        worker.stop = max(worker.stop, record.finished)
        count_bounded(self.profiles, record.profile)
        if record.state == "skipped":
            count_bounded(self.skip_reasons, record.reason or "no reason given")
        entry = (total_s, record.box)
        if len(self.slowest) < SLOWEST:
            heappush(self.slowest, entry)
        else:
            heappushpop(self.slowest, entry)


def voxels_of(record: Record) -> int:
    """Return the voxels of the box of a task."""
    return Region.parse(record.box).bbox.voxels


def count_bounded(counter: Counter[str], text: str) -> None:
    """Count a text; new texts are counted together once there are `REASONS` different ones."""
    known = text in counter or len(counter) < REASONS
    counter[text if known else OTHERS] += 1

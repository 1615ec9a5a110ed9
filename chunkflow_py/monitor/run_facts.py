"""Compute the facts about a run that the commands status, report and dashboard share.

Status, report and dashboard answer these questions with the same code, so that their answers agree:

| question                                      | answer                                       |
|-----------------------------------------------|----------------------------------------------|
| How far has a step come, and when will it end | `StepStatus`, from the sums in the ledger    |
| Is the run complete                           | `run_state`                                  |
| Which tasks failed, and why                   | `failed_tasks` and `failing_tasks`           |
| Which attempts failed in the same way         | `ErrorGroups`, by kind and reason of failure |
| What are the totals over all records          | `StepFacts`: one pass, in constant memory    |

To get the sums, one read per segment of the ledger is enough. `StepFacts` reads every record,
because only records contain boxes, workers and reasons.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Literal, get_args

from chunkflow_py.core.geometry import Region
from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.run.ledger.ledger_record import REFUSED_PARTS, LedgerCounts, Sums, Totals
from chunkflow_py.run.worker_records import worker_id

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.ledger_record import FailedAttempt, Record
    from chunkflow_py.run.run_spec import RunStep

# States of a run; the state that is furthest from complete comes first.
RunState = Literal["unfinished", "complete but for failures", "complete"]
RUN_STATES: tuple[RunState, ...] = get_args(RunState)
BINS = 1024  # most bins of time
SLOWEST = 5  # slowest tasks that are listed
REASONS = 1000  # different reasons that are counted separately; others are counted together
OTHERS = "other reasons"
_BOXES = 5  # listed boxes of tasks that have read missing blocks
_EXAMPLES = 3  # failures kept per group
_LONGEST_REASON = 300  # characters by which failures are grouped
_TASKS_AT_ONCE = 256  # tasks looked up in one request to the ledger


# --- progress of a step ---------------------------------------------------------------------------


@dataclass(frozen=True)
class StepStatus:
    """Progress of a step, computed from the sums in the step's ledger.

    Attributes:
        name: name of the step.
        hash: hash of the step; queue messages and records of the step contain this hash.
        tasks: number of all tasks of the step.
        totals: sums over the tasks that have ended and over the failed attempts.
        closed: whether all tasks have ended and none was given up; the next step may then begin.
        taken_from: URL of the run whose output is used for this step; ``None`` if this run executes
            the step.
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
        """Create the status from a step of the spec and the totals of the step."""
        return cls(step.name, step.hash, step.tasks, totals, closed, taken_from)

    @property
    def left(self) -> int:
        """Number of tasks that have not ended."""
        return self.tasks - self.totals.finished

    @property
    def tasks_per_s(self) -> float:
        """Number of tasks that ended per second, averaged over the last ten minutes."""
        return self.totals.recent if self.left else 0.0

    @property
    def expected_s(self) -> float | None:
        """Seconds until the step ends at the recent speed; ``None`` if no task ended recently."""
        return self.left / self.totals.recent if self.totals.recent else None


def run_state(steps: Iterable[StepStatus]) -> RunState:
    """Return the state of a run: ``complete``, ``complete but for failures``, or ``unfinished``.

    A run is ``complete but for failures`` if all tasks have ended and some tasks were given up.
    """
    for step in steps:
        if not step.closed and step.left + step.totals.dead:
            return "unfinished" if step.left else "complete but for failures"
    return "complete"


def cause_text(causes: Mapping[str, int], failures: int) -> str:
    """Return the number of failed attempts of each cause as text, the most frequent cause first.

    Args:
        causes: number of failed attempts by cause, see `FailureCause`.
        failures: number of all failed attempts, including attempts whose cause was not recorded by
            an older version.
    """
    unknown = failures - sum(causes.values())
    known = sorted(causes.items(), key=lambda item: (-item[1], item[0]))
    counts = [*known, ("of unknown cause", unknown)] if unknown > 0 else known
    return ", ".join(f"{count:,} {cause}" for cause, count in counts)


def patch_texts(patches: Mapping[str, int]) -> Iterator[str]:
    """Yield phrases about the patches of a step and the exchange of patches.

    Args:
        patches: counts by name, see `chunkflow_py.run.ledger.ledger_record.PATCH_COUNTS`; if the
            dictionary is empty, no phrase is yielded.
    """
    if not patches:
        return
    computed, found = patches.get("computed", 0), patches.get("found", 0)
    yield f"{computed} patches computed and {found} taken from other tasks"
    if refused := {name: patches[name] for name in REFUSED_PARTS if name in patches}:
        kinds = ", ".join(f"{count} {name}" for name, count in refused.items())
        yield f"{sum(refused.values())} stored parts of patches could not be used ({kinds})"
    written, read = (patches.get(name, 0) for name in ("written_bytes", "read_bytes"))
    if written or read:
        yield (
            f"{describe_bytes(written)} written to and {describe_bytes(read)} read from the "
            "exchange of patches"
        )


# --- failures -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class FailedTask:
    """A task with failed attempts.

    Attributes:
        stage: name of the step that the task belongs to.
        number: number of the task in the plan of the step.
        box: text of the task's box.
        reason: reason why the task was given up; ``None`` if the task will be tried again.
        attempts: failed attempts, the oldest first; empty if attempts were not requested.
    """

    stage: str
    number: int
    box: str
    reason: str | None
    attempts: tuple[FailedAttempt, ...] = ()


def failed_tasks(
    step: str, ledger: Ledger, most: int, *, attempts: bool = True
) -> list[FailedTask]:
    """Return the tasks of a step that were given up, in the order of the ledger.

    Args:
        step: name of the step.
        ledger: ledger of the step.
        most: limit of the number of tasks.
        attempts: whether to read the failed attempts of these tasks.
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


def failing_tasks(step: str, ledger: Ledger, limit: int) -> list[FailedTask]:
    """Return at most *limit* tasks that have failed attempts and will be tried again."""
    boxes = {failure.number: failure.box for failure in ledger.failures()}
    numbers = iter(boxes)
    failing: list[int] = []
    while len(failing) < limit and (some := list(islice(numbers, _TASKS_AT_ONCE))):
        ended = ledger.find(some)
        failing += [number for number in some if number not in ended]
    return [
        FailedTask(step, number, boxes[number], None, _attempts_on(ledger, number))
        for number in failing[:limit]
    ]


def _attempts_on(ledger: Ledger, number: int) -> tuple[FailedAttempt, ...]:
    return tuple(sorted(ledger.failures(number), key=attrgetter("when")))


@dataclass
class ErrorGroup:
    """Attempts that failed in the same way.

    Attributes:
        kind: kind of the failures, such as ``permanent``; see `FailureKind`.
        reason: reason of the failures. Placeholders replace numbers and the box of the task.
        count: number of attempts in the group.
        last: time of the latest failure, in seconds since 1970.
        examples: some of the failed attempts, the latest first.
    """

    kind: str
    reason: str
    count: int = 0
    last: float = 0.0
    examples: list[FailedAttempt] = field(default_factory=list)


class ErrorGroups:
    """Failed attempts, grouped by the kind and the reason of the failure.

    Two reasons belong to one group if they differ only in numbers and in the box of the task. Once
    there are `REASONS` groups, attempts with new reasons are counted in one additional group for
    each kind.
    """

    def __init__(self, failures: Iterable[FailedAttempt] = ()) -> None:
        """Group *failures* by kind and reason."""
        self._groups: dict[tuple[str, str], ErrorGroup] = {}
        for failure in failures:
            self.add(failure)

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._groups)

    def add(self, failure: FailedAttempt) -> None:
        """Add one failed attempt to the group of its kind and reason."""
        reason = failure.reason.replace(failure.box, "(box)") if failure.box else failure.reason
        reason = re.sub(r"(?<![A-Za-z])[0-9]+", "#", reason)[:_LONGEST_REASON]
        self._count(ErrorGroup(failure.kind, reason, 1, failure.when, [failure]))

    def update(self, other: ErrorGroups) -> None:
        """Add all attempts of the groups *other* to these groups."""
        for group in other.ranked():
            self._count(group)

    def ranked(self) -> list[ErrorGroup]:
        """Return all groups, the group with the most attempts first."""
        return sorted(
            self._groups.values(), key=lambda group: (-group.count, group.reason, group.kind)
        )

    def kinds(self) -> Counter[str]:
        """Return the number of failed attempts of each kind."""
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


# --- totals over all records of a step ------------------------------------------------------------


@dataclass
class OverTime:
    """Sums of an amount in at most `BINS` time bins, which become wider as the time span grows.

    Attributes:
        width_s: width of a bin in seconds. The width is a power of two, so a wider bin consists of
            whole narrower bins.
        bins: sum of the amount in each bin, by the start of the bin (in seconds since 1970, divided
            by the width).
    """

    width_s: float = 1 / 64
    bins: dict[int, float] = field(default_factory=dict)
    _low: int = 0
    _high: int = 0

    def add(self, when: float, amount: float) -> None:
        """Add an amount at the time *when*, in seconds since 1970."""
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
    """Work that one worker has recorded.

    Attributes:
        tasks: number of tasks that the worker recorded, with any outcome.
        start: start of the worker's first task, in seconds since 1970 by the clock of the worker.
            It is computed as the end of the task minus the seconds of all its operators.
        stop: end of the worker's last task, in seconds since 1970 by the clock of the worker.
    """

    tasks: int = 0
    start: float = float("inf")
    stop: float = float("-inf")


@dataclass
class StepFacts(Totals):
    """Facts about a step, computed from all records and failed attempts in its ledger.

    Attributes:
        voxels: number of voxels in the boxes of done tasks.
        most_s: seconds that each operator took in its slowest task, by operator name.
        objects: number of objects written, by the protocol of the store, such as ``s3``.
        stored: number of bytes written, by the protocol of the store, such as ``s3``.
        missing_tasks: number of tasks that have read missing blocks as the fill value.
        missing_boxes: boxes of some of the tasks that have read missing blocks.
        over_time: number of voxels in done tasks, by the time at which the tasks ended.
        workers: work that each worker has recorded, by the name of the worker.
        attempts: number of tasks that each worker has recorded. The key is the id of the worker,
            with which the names of its attempts begin; see `chunkflow_py.run.worker_records`.
        profiles: number of tasks by compute profile (backend, device, threads and precision).
        skip_reasons: number of skipped tasks, by the reason for skipping.
        slowest: seconds and box of the slowest tasks, the slowest first.
        untimed: number of failed attempts of unknown duration.
        errors: failed attempts, grouped by the kind and the reason of the failure.
        failed: some of the tasks that were given up, in the order of the ledger.
    """

    voxels: int = 0
    most_s: dict[str, float] = field(default_factory=dict)
    objects: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    missing_tasks: int = 0
    missing_boxes: list[str] = field(default_factory=list)
    over_time: OverTime = field(default_factory=OverTime)
    workers: dict[str, WorkerFacts] = field(default_factory=dict)
    attempts: Counter[str] = field(default_factory=Counter)
    profiles: Counter[str] = field(default_factory=Counter)
    skip_reasons: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)
    untimed: int = 0
    errors: ErrorGroups = field(default_factory=ErrorGroups, compare=False)
    failed: Sequence[FailedTask] = ()

    @classmethod
    def of_step(cls, step: str, ledger: Ledger, most: int) -> StepFacts:
        """Collect the facts from the ledger of a step; *most* limits the list of given-up tasks."""
        facts = cls.of(ledger.records(), ledger.failures())
        facts.failed = failed_tasks(step, ledger, most)
        return facts

    @classmethod
    def of(cls, records: Iterable[Record], failures: Iterable[FailedAttempt] = ()) -> StepFacts:
        """Collect the facts from records and failed attempts, which may be in any order."""
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
        """Start of the first task, in seconds since 1970; ``None`` until a task has ended.

        The start of a task is known from its record, which is written when the task ends.
        """
        return min((each.start for each in self.workers.values()), default=None)

    @property
    def wall_s(self) -> float:
        """Seconds from the start of the first task to the end of the last task."""
        return 0.0 if self.start is None or self.last is None else self.last - self.start

    @property
    def machine_s(self) -> float:
        """Working time of all workers, in seconds.

        The time of a worker is counted from the start of its first task to the end of its last
        task.
        """
        return sum(each.stop - each.start for each in self.workers.values())

    @property
    def mean_s(self) -> float:
        """Mean seconds that all operators together took for a done task."""
        return sum(self.seconds.values()) / self.done if self.done else 0.0

    @property
    def wasted_s(self) -> float:
        """Seconds that all operators together spent on failed attempts.

        An attempt of unknown duration counts as the mean duration of a done task.
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
        self.attempts[worker_id(record.attempt)] += 1
        count_bounded(self.profiles, record.profile)
        if record.state == "skipped":
            count_bounded(self.skip_reasons, record.reason or "no reason given")
        entry = (total_s, record.box)
        if len(self.slowest) < SLOWEST:
            heappush(self.slowest, entry)
        else:
            heappushpop(self.slowest, entry)


def voxels_of(record: Record) -> int:
    """Return the number of voxels in the box of a record's task."""
    return Region.parse(record.box).bbox.voxels


def count_bounded(counter: Counter[str], text: str) -> None:
    """Count a text; once *counter* has `REASONS` different texts, count new texts as `OTHERS`."""
    known = text in counter or len(counter) < REASONS
    counter[text if known else OTHERS] += 1

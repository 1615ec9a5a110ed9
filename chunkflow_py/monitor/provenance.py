"""The origin of each task's output: chunkflow_py version, container image and machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Region
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.run.worker_records import WorkerRecords, WorkerStart

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.run.ledger.ledger_record import Record
    from chunkflow_py.store.store_protocol import Store

# Facts about a worker that can change its output, or explain it.
TITLES = {
    "version": "chunkflow_py",
    "image": "image",
    "python": "Python",
    "torch": "PyTorch",
    "device": "device",
    "instance_type": "instance type",
    "zone": "zone",
}
Facts = tuple[tuple[str, str], ...]  # names and values of the facts that are known
NO_RECORD = "a worker without a record"
_AT_ONCE = 10_000  # records of tasks whose workers are looked up together


@dataclass(frozen=True)
class TaskOrigin:
    """The record of a task, and the record about the worker that ran the task.

    Attributes:
        step: name of the step.
        record: record of the task.
        start: record that the worker stored when it started; ``None`` if a worker of an older
            version stored no such record.
    """

    step: str
    record: Record
    start: WorkerStart | None

    def to_json(self) -> dict[str, Any]:
        """Return the origin as a dictionary that can be written as JSON."""
        record, start = self.record, self.start
        return {
            "step": self.step,
            "box": record.box,
            "state": record.state,
            "written": [stored.url for stored in record.written if stored.size is not None],
            "finished": record.finished,
            "worker": record.worker,
            "worker_id": start and start.id,
            "host": start and start.host,
            "user": start and start.user,
            **{name: start and getattr(start, name) for name in TITLES},
            "profile": record.profile,
        }


def facts_of(start: WorkerStart | None) -> Facts:
    """Return the known facts about a worker, such as its version and device; see `TITLES`."""
    values = ((name, getattr(start, name, "")) for name in TITLES)
    return tuple((name, value) for name, value in values if value)


def origins_of(home: RunDirectory, at: Zyx | None = None) -> Iterator[TaskOrigin]:
    """Yield the origin of each recorded task of a run.

    Args:
        home: run directory.
        at: position (zyx, in voxels at the resolution of the tasks); only tasks whose box contains
            this position are yielded. ``None`` yields all tasks.
    """
    for step in home.spec.steps:
        owner = home.spec.reused.get(step.name)
        workers = WorkerRecords((home if owner is None else RunDirectory(owner)).store)
        records = (each for each in home.ledger(step.name).records() if _contains(each, at))
        while some := list(islice(records, _AT_ONCE)):
            workers.read(record.attempt for record in some)
            for record in some:
                yield TaskOrigin(step.name, record, workers.start_of(record.attempt))


def _contains(record: Record, at: Zyx | None) -> bool:
    if at is None:
        return True
    box = Region.parse(record.box).bbox
    return all(low <= x < high for low, x, high in zip(box.start, at, box.stop, strict=True))


def summary_of(origins: Iterator[TaskOrigin]) -> Iterator[str]:
    """Yield a line of text for each step and each kind of worker, with the number of tasks.

    Workers are of one kind if all facts about them are equal; see `facts_of`.
    """
    counts: Counter[tuple[str, Facts]] = Counter()
    for origin in origins:
        counts[origin.step, facts_of(origin.start)] += 1
    for (step, facts), count in counts.items():
        yield f"  {step}: {count:,} tasks by {_text(facts)}"


def counts_of(store: Store, attempts: Mapping[str, int]) -> Counter[Facts]:
    """Count the tasks of each kind of worker.

    Workers are of one kind if all facts about them are equal; see `facts_of`.

    Args:
        store: store of the run directory.
        attempts: number of tasks by the id of the worker; see `worker_id`.
    """
    workers, counts = WorkerRecords(store), Counter[Facts]()
    names = {f"{worker}-": count for worker, count in attempts.items()}
    workers.read(names)
    for name, count in names.items():
        counts[facts_of(workers.start_of(name))] += count
    return counts


def line_of(origin: TaskOrigin) -> str:
    """Return one line about the origin of a task."""
    record = origin.record
    name = record.worker if origin.start is None else f"{record.worker} ({origin.start.id})"
    facts = _text(facts_of(origin.start))
    return f"  {origin.step} {record.box}: {record.state} by worker {name}, {facts}"


def _text(facts: Facts) -> str:
    return ", ".join(f"{TITLES[name]} {value}" for name, value in facts) or NO_RECORD

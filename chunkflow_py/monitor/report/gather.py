"""What the records of a stage say together: read once, one after the other, in constant memory.

The headers of the ledger's pages do not tell voxels, times, workers and reasons, so that a pass
over all records is needed, which then tells the rest as well.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from heapq import heappush, heappushpop
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import Region

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chunkflow_py.run.ledger.record import Record

BINS = 1024  # of time, at most
SLOWEST = 5
REASONS = 1000  # different ones that are counted each; further ones together
OTHERS = "other reasons"
_EXAMPLES = 5


@dataclass
class OverTime:
    """Amounts over time, in as many bins as the memory is worth: they widen as time goes on.

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
class WorkerShare:
    """What one worker has done.

    Attributes:
        tasks: that it has ended, in whatever way.
        voxels: of those that are done.
        seconds: of all operators.
        start: when its first task began, at the latest, and
        stop: when its last task ended, seconds since 1970 by its own clock.
    """

    tasks: int = 0
    voxels: int = 0
    seconds: float = 0.0
    start: float = float("inf")
    stop: float = float("-inf")


@dataclass
class Gathered:
    """What the records of a stage say together.

    Attributes:
        done, skipped, dead: how many tasks have ended so.
        voxels: of the boxes of tasks that are done.
        seconds, most_s: by operator: of all tasks together, and of the slowest one.
        objects, stored: how many objects were written, and their bytes, by protocol of the store.
        missing_tasks, missing_blocks: tasks that have read blocks as the fill value, and how many.
        missing_boxes: some of these tasks.
        over_time: voxels that were done.
        workers: by name.
        profiles: numerical profile -> number of tasks.
        reasons: why tasks were skipped -> how many.
        slowest: seconds and box of the slowest tasks, the slowest first.
    """

    done: int = 0
    skipped: int = 0
    dead: int = 0
    voxels: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    most_s: dict[str, float] = field(default_factory=dict)
    objects: Counter[str] = field(default_factory=Counter)
    stored: Counter[str] = field(default_factory=Counter)
    missing_tasks: int = 0
    missing_blocks: int = 0
    missing_boxes: list[str] = field(default_factory=list)
    over_time: OverTime = field(default_factory=OverTime)
    workers: dict[str, WorkerShare] = field(default_factory=dict)
    profiles: Counter[str] = field(default_factory=Counter)
    reasons: Counter[str] = field(default_factory=Counter)
    slowest: list[tuple[float, str]] = field(default_factory=list)

    @classmethod
    def of(cls, records: Iterable[Record]) -> Gathered:
        """Return what *records* say, in whatever order they come."""
        found = cls()
        for record in records:
            found._add(record)
        found.slowest.sort(reverse=True)
        return found

    @property
    def tasks(self) -> int:
        """How many tasks have ended."""
        return self.done + self.skipped + self.dead

    @property
    def stored_bytes(self) -> int:
        """Bytes of all objects that were written."""
        return sum(self.stored.values())

    @property
    def start(self) -> float | None:
        """When the first task began, seconds since 1970; ``None`` without any that ended."""
        return min((each.start for each in self.workers.values()), default=None)

    @property
    def stop(self) -> float | None:
        """When the last task ended."""
        return max((each.stop for each in self.workers.values()), default=None)

    @property
    def wall_s(self) -> float:
        """From the start of the first task to the end of the last one."""
        return 0.0 if self.start is None or self.stop is None else self.stop - self.start

    @property
    def machine_s(self) -> float:
        """From the start of each worker's first task to the end of its last, of all workers."""
        return sum(each.stop - each.start for each in self.workers.values())

    def _add(self, record: Record) -> None:
        total = sum(record.seconds.values())
        voxels = Region.parse(record.box).bbox.voxels if record.state == "done" else 0
        setattr(self, record.state, getattr(self, record.state) + 1)
        self.voxels += voxels
        for name, value in record.seconds.items():
            self.seconds[name] = self.seconds.get(name, 0.0) + value
            self.most_s[name] = max(self.most_s.get(name, 0.0), value)
        for each in record.written:
            if each.size is not None:
                protocol = each.url.partition("://")[0]
                self.objects[protocol] += 1
                self.stored[protocol] += each.size
        if record.missing_blocks:
            self.missing_tasks += 1
            self.missing_blocks += record.missing_blocks
            if len(self.missing_boxes) < _EXAMPLES:
                self.missing_boxes.append(record.box)
        self.over_time.add(record.finished, voxels)
        share = self.workers.setdefault(record.worker, WorkerShare())
        share.tasks += 1
        share.voxels += voxels
        share.seconds += total
        share.start = min(share.start, record.finished - total)
        share.stop = max(share.stop, record.finished)
        count(self.profiles, record.profile)
        if record.state == "skipped":
            count(self.reasons, record.reason or "no reason given")
        entry = (total, record.box)
        if len(self.slowest) < SLOWEST:
            heappush(self.slowest, entry)
        else:
            heappushpop(self.slowest, entry)


def count(counter: Counter[str], reason: str) -> None:
    """Count a reason, unless there are very many different ones already."""
    known = reason in counter or len(counter) < REASONS
    counter[reason if known else OTHERS] += 1

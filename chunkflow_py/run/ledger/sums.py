"""What can be added up over tasks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chunkflow_py.run.ledger.record import Failure, Record

RECENT_MINUTES = 10
_MINUTES = 16  # of which the number of tasks that ended is kept


@dataclass
class Totals:
    """What there is to say of several tasks together.

    Attributes:
        done, skipped, dead: number of tasks that ended so.
        failures: number of attempts that failed.
        failed_s: seconds that they took, as far as it is known.
        stored_bytes: by tasks that are done.
        missing_blocks: that tasks have read as the fill value.
        seconds: by operator.
        first, last: when the first and the last task ended, seconds since 1970 by the clocks of
            workers; ``None`` before the first.
    """

    done: int = 0
    skipped: int = 0
    dead: int = 0
    failures: int = 0
    failed_s: float = 0.0
    stored_bytes: int = 0
    missing_blocks: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None

    @property
    def finished(self) -> int:
        """Number of tasks that ended, in whatever way."""
        return self.done + self.skipped + self.dead

    def add_totals(self, other: Totals) -> None:
        """Add the totals of *other*."""
        self.done += other.done
        self.skipped += other.skipped
        self.dead += other.dead
        self.failures += other.failures
        self.failed_s = round(self.failed_s + other.failed_s, 6)
        self.stored_bytes += other.stored_bytes
        self.missing_blocks += other.missing_blocks
        for name, value in other.seconds.items():
            self.seconds[name] = round(self.seconds.get(name, 0) + value, 6)
        ends = [
            each for each in (self.first, self.last, other.first, other.last) if each is not None
        ]
        if ends:
            self.first, self.last = min(ends), max(ends)


@dataclass
class Sums(Totals):
    """Totals to which more can be added.

    Attributes:
        minutes: number of tasks that ended in a minute since 1970; only the latest ones.
    """

    minutes: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record) -> Sums:
        """Return what one record adds."""
        when = record.finished
        sums = cls(
            stored_bytes=record.stored_bytes,
            missing_blocks=record.missing_blocks,
            seconds=record.seconds,
            first=when,
            last=when,
            minutes={int(when // 60): 1},
        )
        setattr(sums, record.state, 1)
        return sums

    @classmethod
    def of_failure(cls, failure: Failure) -> Sums:
        """Return what one attempt that failed adds."""
        return cls(failures=1, failed_s=failure.seconds or 0.0)

    def add(self, other: Sums) -> None:
        """Add the totals and the minutes of *other*."""
        self.add_totals(other)
        for minute, count in other.minutes.items():
            self.minutes[minute] = self.minutes.get(minute, 0) + count
        if len(self.minutes) > _MINUTES:
            latest = max(self.minutes)
            for minute in [each for each in self.minutes if each <= latest - _MINUTES]:
                del self.minutes[minute]

    def copy(self) -> Sums:
        """Return one that may be added to."""
        return replace(self, seconds=dict(self.seconds), minutes=dict(self.minutes))


@dataclass
class LedgerCounts(Totals):
    """What there is to say of all tasks of a stage together.

    Attributes:
        recent: tasks that ended per second in the last minutes.
    """

    recent: float = 0.0

    @classmethod
    def of(cls, parts: Iterable[Sums], now: float) -> LedgerCounts:
        """Return what parts say together at *now*, seconds since 1970."""
        total, recent = Sums(), 0
        since = int(now // 60) - RECENT_MINUTES
        for part in parts:
            total.add(part)
            recent += sum(count for minute, count in part.minutes.items() if minute >= since)
        seconds = now - max(60.0 * since, total.first or 0.0)
        said = {name: value for name, value in vars(total).items() if name != "minutes"}
        return cls(**said, recent=recent / max(1.0, seconds))

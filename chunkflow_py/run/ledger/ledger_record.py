"""The lines of a ledger (records of tasks and of failed attempts), and sums over these lines.

Every line is *sealed*: it ends in a tab and the CRC-32 of the text before the tab, so a truncated
or changed line is never mistaken for a record. A parsed line is a `LedgerEntry`.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import asdict, dataclass, field, fields, replace
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args

from chunkflow_py.core.plain_text import bounded
from chunkflow_py.errors import VolumeError
from chunkflow_py.store.store_address import public, public_line
from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

State = Literal["done", "skipped", "dead"]
# permanent: the task itself fails. transient: the cause may pass, for example a network outage.
# resource: the machine is at fault, for example because its disk is full. worker-lost: the whole
# worker or its machine died, so that the cause is unknown.
FailureKind = Literal["permanent", "transient", "resource", "worker-lost"]
# Causes of failed attempts, and of the end of workers; `run.worker.failure_cause` decides them.
FailureCause = Literal[
    "error",  # the pipeline raised an error
    "network",  # the network, a store or the queue did not answer
    "host-memory",  # out of host memory
    "gpu-memory",  # out of GPU memory
    "disk-full",
    "no-access",  # a store refused access
    "faulty-device",  # a GPU computes wrong values
    "hang",  # the task exceeded its time limit
    "segfault",  # SIGSEGV or SIGBUS ended the worker process
    "crash",  # another signal of a crash, such as SIGABRT, or an exit code ended the worker process
    "killed",  # a signal from outside ended the process, for example kill -9
    "preempted",  # the cloud took the machine back
    "evicted",  # the scheduler, such as Kubernetes or Slurm, stopped the worker
    "worker-lost",  # the worker disappeared, and left no notice
]
CAUSES: tuple[FailureCause, ...] = get_args(FailureCause)
# Kinds of entries: the record of a task, the beginning of an attempt, the output of an attempt that
# was not first, and failed attempts by the kind of their failure.
Kind = Literal["record", "begun", "finished"] | FailureKind
STATES: tuple[State, ...] = get_args(State)
FAILURES: tuple[FailureKind, ...] = get_args(FailureKind)
ATTEMPTS: tuple[Kind, ...] = ("record", "begun", "finished")
KINDS: tuple[Kind, ...] = (*ATTEMPTS, *FAILURES)
RECENT_MINUTES = 10  # over which the rate of tasks is averaged

# Counts about patches in records: patches that were computed; patches that were found in the
# exchange of the run; stored parts of patches that could not be used, by reason; bytes that were
# read from and written to the exchange.
REFUSED_PARTS = ("damaged", "foreign", "misplaced", "unreadable")
PATCH_COUNTS = ("computed", "found", *REFUSED_PARTS, "read_bytes", "written_bytes")

_MINUTES_KEPT = 16
_LATEST = 1e13  # largest valid time, in seconds since 1970
_NUMBER = '{"number":'  # how the JSON of every entry begins
_SEAL_DIGITS = 8
# Longest text that is kept, in characters; this package writes no longer texts.
_LONGEST = {"profile": 4000, "reason": 4000, "traceback": 20_000}
_LONGEST_NAME = 300


@dataclass(frozen=True, slots=True)
class Record:
    """The record of a task that has ended; a task has at most one record, which does not change.

    Attributes:
        number: number of the task in the plan of its step.
        box: box of the task, as a box string such as ``0-64_0-512_0-512``.
        state: ``done``, ``skipped``, or ``dead`` if the task was given up.
        spec: hash of the step.
        attempt: unique name of the attempt that ended the task.
        worker: name of the worker that made the attempt.
        profile: compute profile (backend, device, threads and precision) as one line; empty if the
            output does not depend on the profile.
        seconds: run time of each operator in seconds, with the name of the operator as key.
        written: objects that the task has stored, or omitted because they were empty.
        reason: why the task was skipped or given up; ``None`` if it is done.
        finished: time at which the task ended, in seconds since 1970 by the worker's clock; used
            only for display and rates.
        missing_blocks: number of input blocks that were not stored and were read as the fill value.
        patches: how many patches were computed or read from the exchange, how many stored parts of
            patches could not be used, and how many bytes were read and written. The keys are the
            names in `PATCH_COUNTS`. The numbers cover the time since the previous record of the
            same worker process. If the process dies, the numbers since its last record are lost.
            The dictionary is empty if the tasks of the run exchange no patches.
    """

    number: int
    box: str
    state: State
    spec: str
    attempt: str
    worker: str
    profile: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    written: tuple[Stored, ...] = ()
    reason: str | None = None
    finished: float = field(default_factory=time.time)
    missing_blocks: int = 0
    patches: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # Addresses in `written` stay as they are: they are compared with the store.
        _clean(self, "box", "spec", "attempt", "worker", "profile", "reason")
        seconds = {public_line(name, _LONGEST_NAME): s for name, s in self.seconds.items()}
        object.__setattr__(self, "seconds", seconds)

    @property
    def stored_bytes(self) -> int:
        """Sum of the sizes of all stored objects."""
        return sum(stored.size or 0 for stored in self.written)

    def to_json(self) -> str:
        """Return the record as one line of JSON that begins with the number of the task."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["written"] = [[each.url, each.size, each.checksum] for each in self.written]
        values["seconds"] = {name: round(value, 6) for name, value in self.seconds.items()}
        if not self.missing_blocks:
            del values["missing_blocks"]  # most records have none
        if not self.patches:
            del values["patches"]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Parse a record from the JSON that `to_json` returns.

        Raises:
            VolumeError: the JSON is damaged.
        """
        with reading(text):
            values: dict[str, Any] = json.loads(text)
            values["written"] = tuple(_stored(*each) for each in values["written"])
            record = cls(**values)
            is_good = record.state in STATES and 0 <= record.finished < _LATEST
            if not (is_good and 0 <= sum(record.seconds.values()) < _LATEST):
                msg = 'the value of "state", "finished" or "seconds" is not valid'
                raise ValueError(msg)
            _check_types(record, _RECORD_TYPES)
            for name, count in record.patches.items():
                if name not in PATCH_COUNTS or type(count) is not int or not 0 <= count < _LATEST:
                    msg = 'the value of "patches" is not valid'
                    raise ValueError(msg)
        return record


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    """An attempt that failed.

    Attributes:
        number: number of the task.
        box: box of the task, as a box string such as ``0-64_0-512_0-512``.
        attempt: unique name of the attempt.
        worker: name of the worker that made the attempt.
        kind: kind of the failure: permanent, transient, resource or worker-lost.
        reason: description of the failure, in one sentence.
        traceback: traceback of the exception, or the final output of the process that died.
        when: time of the failure, in seconds since 1970 by the worker's clock; used only for
            display.
        seconds: run time of all operators in seconds; ``None`` if the time is unknown.
        cause: name of the cause, such as ``gpu-memory``; ``None`` if the version that wrote the
            record did not store causes.
    """

    number: int
    box: str
    attempt: str
    worker: str
    kind: FailureKind
    reason: str
    traceback: str = ""
    when: float = field(default_factory=time.time)
    seconds: float | None = None
    cause: FailureCause | None = None

    def __post_init__(self) -> None:
        _clean(self, "box", "attempt", "worker", "reason")
        text = public(bounded(self.traceback, _LONGEST["traceback"]))
        object.__setattr__(self, "traceback", text)

    def to_json(self) -> str:
        """Return the failure as one line of JSON that begins with the number of the task."""
        values = asdict(self)
        if self.seconds is None:
            del values["seconds"]
        else:
            values["seconds"] = round(self.seconds, 6)
        if self.cause is None:
            del values["cause"]
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> FailedAttempt:
        """Parse a failed attempt from the JSON that `to_json` returns.

        Raises:
            VolumeError: the JSON is damaged.
        """
        with reading(text):
            failure = cls(**json.loads(text))
            _check_types(failure, _FAILURE_TYPES)
            if failure.kind not in FAILURES or not 0 <= failure.when < _LATEST:
                msg = 'the value of "kind" or "when" is not valid'
                raise ValueError(msg)
            if failure.cause is not None and failure.cause not in CAUSES:
                msg = 'the value of "cause" is not valid'
                raise ValueError(msg)
        return failure


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt on a task, in a step in which each attempt may write different bytes.

    Attributes:
        number: number of the task.
        attempt: unique name of the attempt.
        profile: compute profile (backend, device, threads and precision), on which the bytes that
            the attempt writes depend.
        record: outcome and output of the attempt; ``None`` if the attempt has not ended, or if its
            worker has died.
    """

    number: int
    attempt: str
    profile: str
    record: Record | None = None

    def __post_init__(self) -> None:
        _clean(self, "attempt", "profile")

    def to_json(self) -> str:
        """Return the attempt as one line of JSON that begins with the number of the task.

        The line records only that the attempt has begun; `record` is not included.
        """
        values = {"number": self.number, "attempt": self.attempt, "profile": self.profile}
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Attempt:
        """Parse an attempt from the JSON that `to_json` returns.

        Raises:
            VolumeError: the JSON is damaged.
        """
        with reading(text):
            attempt = cls(**json.loads(text))
            _check_types(attempt, _ATTEMPT_TYPES)
        return attempt


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """A valid line of the ledger about one task.

    Attributes:
        kind: ``record`` for the record of a task; ``begun`` or ``finished`` for the beginning or
            the end of an attempt; for a failed attempt, the kind of the failure.
        generation: number of times that the task had been reopened when the entry was written.
        text: JSON of the entry, which begins with the number of the task.
        content: the parsed JSON.
    """

    kind: Kind
    generation: int
    text: str
    content: Record | FailedAttempt | Attempt = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the JSON in `text`.

        Raises:
            VolumeError: the JSON is damaged, or describes a failure whose kind is not `kind`.
        """
        content_type: type[Record | FailedAttempt | Attempt] = FailedAttempt
        if self.kind in ATTEMPTS:
            content_type = Attempt if self.kind == "begun" else Record
        content = content_type.from_json(self.text)
        if isinstance(content, FailedAttempt) and content.kind != self.kind:
            msg = f"an entry of the kind {self.kind} contains a failure of the kind {content.kind}"
            raise VolumeError(msg)
        object.__setattr__(self, "content", content)

    @property
    def number(self) -> int:
        """Number of the task."""
        return self.content.number

    def to_line(self) -> str:
        """Return the entry as a sealed line of a segment."""
        return sealed(f"{self.kind} {self.generation} {self.text}")


@dataclass
class Totals:
    """Sums over several tasks.

    Attributes:
        done, skipped, dead: number of tasks in each state.
        failures: number of failed attempts.
        failed_s: run time of the failed attempts in seconds; an unknown run time counts as 0.
        causes: number of failed attempts, with their cause as key. Attempts without a recorded
            cause are not counted.
        stored_bytes: size of all objects that the tasks have stored, in bytes.
        missing_blocks: number of input blocks that were not stored and were read as the fill value.
        patches: sums of the counts in `Record.patches`.
        seconds: run time of each operator in seconds, with the name of the operator as key.
        first, last: earliest and latest time at which a task ended, in seconds since 1970 by the
            clocks of the workers; ``None`` if no task has ended.
    """

    done: int = 0
    skipped: int = 0
    dead: int = 0
    failures: int = 0
    failed_s: float = 0.0
    causes: dict[str, int] = field(default_factory=dict)
    stored_bytes: int = 0
    missing_blocks: int = 0
    patches: dict[str, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None

    @property
    def finished(self) -> int:
        """Number of tasks that ended in any state."""
        return self.done + self.skipped + self.dead

    def add_totals(self, other: Totals) -> None:
        """Add the totals of *other* to these totals."""
        self.done += other.done
        self.skipped += other.skipped
        self.dead += other.dead
        self.failures += other.failures
        self.failed_s = round(self.failed_s + other.failed_s, 6)
        for cause, count in other.causes.items():
            self.causes[cause] = self.causes.get(cause, 0) + count
        self.stored_bytes += other.stored_bytes
        self.missing_blocks += other.missing_blocks
        for name, count in other.patches.items():
            self.patches[name] = self.patches.get(name, 0) + count
        for name, value in other.seconds.items():
            self.seconds[name] = round(self.seconds.get(name, 0) + value, 6)
        ends = (self.first, self.last, other.first, other.last)
        known = [end for end in ends if end is not None]
        if known:
            self.first, self.last = min(known), max(known)


@dataclass
class Sums(Totals):
    """Totals of a segment, with the number of ended tasks in each recent minute.

    Attributes:
        minutes: number of tasks that ended in each of the latest minutes, with the number of
            minutes since 1970 as key.
    """

    minutes: dict[int, int] = field(default_factory=dict)

    @classmethod
    def of(cls, record: Record) -> Sums:
        """Return the sums for a single task, given its record."""
        when = record.finished
        sums = cls(
            stored_bytes=record.stored_bytes,
            missing_blocks=record.missing_blocks,
            patches=record.patches,
            seconds=record.seconds,
            first=when,
            last=when,
            minutes={int(when // 60): 1},
        )
        setattr(sums, record.state, 1)
        return sums

    @classmethod
    def of_failure(cls, failure: FailedAttempt) -> Sums:
        """Return the sums for a single failed attempt."""
        causes = {} if failure.cause is None else {failure.cause: 1}
        return cls(failures=1, failed_s=failure.seconds or 0.0, causes=causes)  # type: ignore[arg-type]

    def add(self, other: Sums) -> None:
        """Add the totals and the counts per minute of *other* to these sums."""
        self.add_totals(other)
        for minute, count in other.minutes.items():
            self.minutes[minute] = self.minutes.get(minute, 0) + count
        if len(self.minutes) > _MINUTES_KEPT:
            latest = max(self.minutes)
            for minute in [each for each in self.minutes if each <= latest - _MINUTES_KEPT]:
                del self.minutes[minute]

    def copy(self) -> Sums:
        """Return a copy that can be changed independently."""
        return replace(
            self,
            causes=dict(self.causes),
            patches=dict(self.patches),
            seconds=dict(self.seconds),
            minutes=dict(self.minutes),
        )


@dataclass
class LedgerCounts(Totals):
    """Totals over all tasks of a step.

    Attributes:
        recent: average number of tasks that ended per second in the last `RECENT_MINUTES` minutes.
    """

    recent: float = 0.0

    @classmethod
    def of(cls, parts: Iterable[Sums], now: float) -> LedgerCounts:
        """Return the totals over *parts*, which are sums of segments or of single records.

        *now* is the current time in seconds since 1970, from which the recent rate is computed.
        """
        total, recent = Sums(), 0
        since = int(now // 60) - RECENT_MINUTES
        for part in parts:
            total.add(part)
            recent += sum(count for minute, count in part.minutes.items() if minute >= since)
        seconds = now - max(60.0 * since, total.first or 0.0)
        totals = {name: value for name, value in vars(total).items() if name != "minutes"}
        return cls(**totals, recent=recent / max(1.0, seconds))


def sealed(text: str) -> str:
    """Return *text* followed by its seal: a tab and the CRC-32 of *text* in hexadecimal."""
    return f"{text}\t{zlib.crc32(text.encode()):0{_SEAL_DIGITS}x}"


def unsealed(line: str, *, older: bool = False) -> str:
    """Check the seal of a line, and return the text before the seal.

    Args:
        line: a line of the ledger, as `sealed` returns it.
        older: whether to accept lines of version 0.1.0, which have no seal.

    Raises:
        VolumeError: the line was cut or changed.
    """
    text, tab, seal = line.rpartition("\t")
    if not tab and older:
        return line
    if not tab or seal != f"{zlib.crc32(text.encode(errors='replace')):0{_SEAL_DIGITS}x}":
        reason = f"is {seal!r}, which does not match" if tab else "is missing"
        raise _damaged(line, ValueError(f"the checksum of the line {reason}"))
    return text


def number_of(text: str) -> int:
    """Return the number of the task in the JSON *text* of a line, without parsing the JSON.

    Raises:
        VolumeError: the line is damaged.
    """
    try:
        return int(text[len(_NUMBER) : text.index(",")])
    except ValueError as error:
        raise _damaged(text, error) from error


class reading:  # noqa: N801  (a context manager, faster than a generator)
    """Context manager that turns errors of parsing a line into a `DamagedRecordError`.

    Args:
        text: the line that is parsed; the message of the error quotes it.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | bytes) -> None:
        self._text = text

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        kinds = ValueError | TypeError | KeyError | AttributeError | OverflowError | RecursionError
        if isinstance(error, kinds):
            raise _damaged(self._text, error) from error


class DamagedRecordError(VolumeError):
    """A line of a ledger was truncated or changed."""


def _damaged(text: str | bytes, error: Exception) -> DamagedRecordError:
    line = text.decode(errors="replace") if isinstance(text, bytes) else text
    msg = (
        f"a record of the ledger is damaged ({type(error).__name__}: {error}): "
        f"{line[:80]!r}; restore the ledger from a copy of the run, or use the version of "
        "chunkflow_py that wrote the record"
    )
    return DamagedRecordError(msg)


_RECORD_TYPES: dict[str, type | tuple[type, ...]] = {
    "number": int,
    "box": str,
    "spec": str,
    "attempt": str,
    "worker": str,
    "profile": str,
    "reason": (str, NoneType),
    "missing_blocks": int,
}
_FAILURE_TYPES: dict[str, type | tuple[type, ...]] = {
    "number": int,
    "box": str,
    "attempt": str,
    "worker": str,
    "reason": str,
    "traceback": str,
    "seconds": (int, float, NoneType),
}
_ATTEMPT_TYPES: dict[str, type | tuple[type, ...]] = {
    "number": int,
    "attempt": str,
    "profile": str,
    "record": NoneType,
}


def _check_types(
    content: Record | FailedAttempt | Attempt, types: Mapping[str, type | tuple[type, ...]]
) -> None:
    for name, wanted in types.items():
        value = getattr(content, name)
        if not isinstance(value, wanted) or isinstance(value, bool):
            msg = f"the value of {name!r} has the type {type(value).__name__}"
            raise TypeError(msg)
    if content.number < 0:
        msg = f"the number of the task is {content.number}"
        raise ValueError(msg)


def _stored(url: Any, size: Any, checksum: Any) -> Stored:
    good = isinstance(url, str) and isinstance(size, (int, NoneType)) and not isinstance(size, bool)
    if not (good and isinstance(checksum, (str, NoneType)) and (size is None or size >= 0)):
        msg = "an item of 'written' is not a list of an address, a size and a checksum"
        raise TypeError(msg)
    return Stored(url, size, checksum)


def _clean(content: Record | FailedAttempt | Attempt, *names: str) -> None:
    """Replace the texts in the attributes *names* with single lines that are safe to print."""
    for name in names:
        text = getattr(content, name)
        if text is not None:
            clean = public_line(text, _LONGEST.get(name, _LONGEST_NAME))
            if clean is not text:
                object.__setattr__(content, name, clean)

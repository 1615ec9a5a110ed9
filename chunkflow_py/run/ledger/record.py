"""What a run writes down: how each task ended, and each attempt that failed.

Every line of a ledger is *sealed*: it ends in a tab and the CRC-32 of what stands before, so that
a line that was cut, changed or mixed up is never taken for a record.
"""

from __future__ import annotations

import json
import time
import zlib
from dataclasses import asdict, dataclass, field, fields
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args

from chunkflow_py.core.plain_text import bounded
from chunkflow_py.errors import VolumeError
from chunkflow_py.store.address import public, public_line
from chunkflow_py.store.protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Mapping

State = Literal["done", "skipped", "dead"]
_STATES: tuple[State, ...] = get_args(State)
_LATEST = 1e13  # seconds since 1970
_NUMBER = '{"number":'  # so begins the JSON of a record and of a failure
_SEAL_DIGITS = 8
# permanent: the task's own fault; transient: may pass by itself, such as a network that is down;
# resource: this machine's, such as a full disk; worker-lost: all processes of the worker died, or
# its machine, so that nobody knows whose fault it was.
FailureKind = Literal["permanent", "transient", "resource", "worker-lost"]
# Characters of a text that are kept; only a stranger writes more.
_LONGEST = {"profile": 4000, "reason": 4000, "traceback": 20_000}
_LONGEST_NAME = 300


def sealed(text: str) -> str:
    """Return a line of the ledger with its seal: a tab, and the CRC-32 of *text* in hexadecimal."""
    return f"{text}\t{zlib.crc32(text.encode()):0{_SEAL_DIGITS}x}"


def unsealed(line: str, *, older: bool = False) -> str:
    """Return the text that `sealed` was given.

    Args:
        line: of the ledger.
        older: whether lines of version 0.1.0, which have no seal, are accepted as well.

    Raises:
        VolumeError: the line was cut or changed.
    """
    text, tab, seal = line.rpartition("\t")
    if not tab and older:
        return line
    if not tab or seal != f"{zlib.crc32(text.encode(errors='replace')):0{_SEAL_DIGITS}x}":
        found = f"ends in {seal!r}" if tab else "has no checksum"
        raise _damaged(line, ValueError(f"its checksum does not match: it {found}"))
    return text


@dataclass(frozen=True, slots=True)
class Record:
    """How a task ended; there is one for each task, and it does not change.

    Attributes:
        number: of the task in the plan of its stage.
        box: of the task, as a box string.
        state: ``done``, ``skipped`` (with a reason) or ``dead`` (given up, with the reason).
        spec: hash of the stage's spec.
        attempt: names the attempt that ended it; no two attempts have the same.
        worker: that made the attempt.
        profile: numerical profile, as one line; nothing if nothing depended on one.
        seconds: by operator.
        written: what was stored.
        reason: why the task was skipped or given up.
        finished: when, seconds since 1970 by the worker's clock; for people only.
        missing_blocks: of volumes, that are not stored and were read as the fill value.
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

    def __post_init__(self) -> None:
        """Make all text safe to show, whoever wrote it; what is stored is named as it is."""
        _clean(self, "box", "spec", "attempt", "worker", "profile", "reason")
        seconds = {public_line(name, _LONGEST_NAME): s for name, s in self.seconds.items()}
        object.__setattr__(self, "seconds", seconds)

    @property
    def stored_bytes(self) -> int:
        """How many bytes it has stored."""
        return sum(stored.size or 0 for stored in self.written)

    def to_json(self) -> str:
        """Return the record as one line of JSON, which begins with the number."""
        said = {each.name: getattr(self, each.name) for each in fields(self)}
        said["written"] = [[each.url, each.size, each.checksum] for each in self.written]
        said["seconds"] = {name: round(value, 6) for name, value in self.seconds.items()}
        if not self.missing_blocks:
            del said["missing_blocks"]  # as there are for few
        return json.dumps(said, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Record:
        """Return the record that `to_json` has written.

        Raises:
            VolumeError: it is damaged.
        """
        with reading(text):
            said: dict[str, Any] = json.loads(text)
            said["written"] = tuple(_stored(*each) for each in said["written"])
            record = cls(**said)
            is_good = record.state in _STATES and 0 <= record.finished < _LATEST
            if not (is_good and 0 <= sum(record.seconds.values()) < _LATEST):
                msg = "state, time or seconds cannot be"
                raise ValueError(msg)
            _check_types(record, _RECORD_TYPES)
        return record


@dataclass(frozen=True, slots=True)
class Failure:
    """An attempt that failed.

    Attributes:
        number: of the task.
        box: of the task.
        attempt: names the attempt.
        worker: that made it.
        kind: whose fault it is.
        reason: one sentence.
        traceback: of the exception, or what the process said when it died.
        when: seconds since 1970 by the worker's clock; for people only.
        seconds: that operators have spent on it; ``None`` if nobody knows.
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

    def __post_init__(self) -> None:
        """Make all text safe to show, whoever wrote it."""
        _clean(self, "box", "attempt", "worker", "reason")
        text = public(bounded(self.traceback, _LONGEST["traceback"]))
        object.__setattr__(self, "traceback", text)

    def to_json(self) -> str:
        """Return it as one line of JSON, which begins with the number."""
        said = asdict(self)
        if self.seconds is None:
            del said["seconds"]
        else:
            said["seconds"] = round(self.seconds, 6)
        return json.dumps(said, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Failure:
        """Return what `to_json` has written.

        Raises:
            VolumeError: it is damaged.
        """
        with reading(text):
            failure = cls(**json.loads(text))
            _check_types(failure, _FAILURE_TYPES)
            if failure.kind not in get_args(FailureKind) or not 0 <= failure.when < _LATEST:
                msg = "kind or time cannot be"
                raise ValueError(msg)
        return failure


@dataclass(frozen=True, slots=True)
class Attempt:
    """An attempt on a task, where attempts may write different bytes.

    Attributes:
        number: of the task.
        attempt: names the attempt.
        profile: numerical profile, which says what bytes it writes.
        record: what it has written; ``None`` if it has not ended, or died.
    """

    number: int
    attempt: str
    profile: str
    record: Record | None = None

    def __post_init__(self) -> None:
        """Make all text safe to show, whoever wrote it."""
        _clean(self, "attempt", "profile")

    def to_json(self) -> str:
        """Return it as it begins: one line of JSON, which begins with the number."""
        said = {"number": self.number, "attempt": self.attempt, "profile": self.profile}
        return json.dumps(said, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str | bytes) -> Attempt:
        """Return what `to_json` has written.

        Raises:
            VolumeError: it is damaged.
        """
        with reading(text):
            attempt = cls(**json.loads(text))
            _check_types(attempt, _ATTEMPT_TYPES)
        return attempt


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


def _check_types(said: Any, types: Mapping[str, type | tuple[type, ...]]) -> None:
    for name, wanted in types.items():
        value = getattr(said, name)
        if not isinstance(value, wanted) or isinstance(value, bool):
            msg = f"{name} is {type(value).__name__}"
            raise TypeError(msg)
    if said.number < 0:
        msg = f"number is {said.number}"
        raise ValueError(msg)


def _stored(url: Any, size: Any, checksum: Any) -> Stored:
    good = isinstance(url, str) and isinstance(size, (int, NoneType)) and not isinstance(size, bool)
    if not (good and isinstance(checksum, (str, NoneType)) and (size is None or size >= 0)):
        msg = "what was written is no address, length and checksum"
        raise TypeError(msg)
    return Stored(url, size, checksum)


def _clean(said: Record | Failure | Attempt, *names: str) -> None:
    """Make texts single lines that are safe to show."""
    for name in names:
        text = getattr(said, name)
        if text is not None:
            clean = public_line(text, _LONGEST.get(name, _LONGEST_NAME))
            if clean is not text:
                object.__setattr__(said, name, clean)


def number_of(text: str) -> int:
    """Return the number of the task that a line of JSON is about, without parsing the line.

    Raises:
        VolumeError: the line is damaged.
    """
    try:
        return int(text[len(_NUMBER) : text.index(",")])
    except ValueError as error:
        raise _damaged(text, error) from error


class reading:  # noqa: N801  (a context manager, quicker than a generator)
    """Translates what a damaged line of a ledger leads to.

    Args:
        text: the line.
    """

    __slots__ = ("_text",)

    def __init__(self, text: str | bytes) -> None:
        """Keep the line."""
        self._text = text

    def __enter__(self) -> None:
        """Begin to read it."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Say that it is damaged if it could not be read.

        Raises:
            VolumeError: instead of what was raised.
        """
        kinds = ValueError | TypeError | KeyError | AttributeError | OverflowError | RecursionError
        if isinstance(error, kinds):
            raise _damaged(self._text, error) from error


class DamagedRecordError(VolumeError):
    """A line of a ledger was cut or changed."""


def _damaged(text: str | bytes, error: Exception) -> DamagedRecordError:
    said = text.decode(errors="replace") if isinstance(text, bytes) else text
    msg = (
        f"a record of the ledger is damaged ({type(error).__name__}: {error}): "
        f"{said[:80]!r}; restore it from a copy of the run, or read it with the version of "
        "chunkflow_py that wrote it"
    )
    return DamagedRecordError(msg)

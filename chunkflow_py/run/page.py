"""A page of the ledger: what is known of the tasks of some consecutive numbers, in one object.

```
{"format":1,"size":2048,"states":…,"generations":…,"sums":…}     the header: one line of JSON
gzip( record {"number":7,…}                                      what was added first
      record {"number":5,…} )
gzip( record {"number":9,…}                                      what was added next, and so on
      permanent {"number":2,…} )
```

The header alone, which one read of a range brings, says how each task ended and what there is to
count. What is added is packed and put behind what is there, which is neither unpacked nor parsed.
``tail -n +2 PAGE | zcat`` shows a page to a person.

A *generation* is how often a task was reopened. What belongs to an earlier one is void.
"""

from __future__ import annotations

import base64
import gzip
import json
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

from chunkflow_py.errors import VolumeError
from chunkflow_py.run.record import Failure, FailureKind, Record, State, number_of
from chunkflow_py.run.sums import Sums

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

FORMAT = 1

STATES: tuple[State, ...] = get_args(State)
# What may be said of a task: how it ended, that an attempt failed (by kind), that one has begun,
# and what one that ended has written.
Kind = Literal["record", "begun", "finished"] | FailureKind
FAILURES: tuple[FailureKind, ...] = get_args(FailureKind)
ATTEMPTS: tuple[Kind, ...] = ("record", "begun", "finished")
_RECORD: tuple[Kind, ...] = ("record",)


class Entry(NamedTuple):
    """One line about one task.

    Attributes:
        kind: what it says.
        generation: of the task, for which it holds.
        text: JSON that begins with the number of the task.
    """

    kind: Kind
    generation: int
    text: str

    @property
    def number(self) -> int:
        """Of the task."""
        return number_of(self.text)


@dataclass(frozen=True)
class Header:
    """How each task of a page ended.

    Attributes:
        states: two bits a number, the lowest of the first byte for the first: 0 if the task has
            not ended, else 1 + the position in `STATES`.
        generations: of the tasks that were reopened, by their position in the page.
        sums: over the tasks of the page.
    """

    states: bytes
    generations: dict[int, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)

    @classmethod
    def empty(cls, size: int) -> Header:
        """Return that of a page of *size* numbers on which there is nothing."""
        return cls(bytes(-(-size // 4)))

    def state(self, position: int) -> State | None:
        """Return how the task at *position* of the page ended, or ``None`` if it has not."""
        code = self.states[position >> 2] >> (position & 3) * 2 & 3
        return STATES[code - 1] if code else None

    def generation(self, position: int) -> int:
        """Return how often the task at *position* of the page was reopened."""
        return self.generations.get(position, 0)

    def to_line(self, size: int) -> bytes:
        """Return the first line of a page of *size* numbers."""
        said = {
            "format": FORMAT,
            "size": size,
            "states": base64.b64encode(self.states).decode(),
            "generations": self.generations,
            "sums": asdict(self.sums),
        }
        return json.dumps(said, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes, size: int, where: str) -> Header:
        """Return the header that `to_line` has written.

        Raises:
            VolumeError: it is none, or of pages of another size; names *where*.
        """
        try:
            said: dict[str, Any] = json.loads(line)
            found = (said["format"], said["size"])
            if found != (FORMAT, size):
                msg = (
                    f"{where} is a page of {found[1]} tasks in format {found[0]}, this version of "
                    f"chunkflow_py reads pages of {size} in format {FORMAT}; "
                    "use the version that began the run"
                )
                raise VolumeError(msg)
            sums = said["sums"] | {"minutes": _by_number(said["sums"]["minutes"])}
            return cls(
                base64.b64decode(said["states"]), _by_number(said["generations"]), Sums(**sums)
            )
        except (ValueError, KeyError, TypeError) as error:
            msg = f"{where} is no page of a ledger ({error}); restore it from a copy of the run"
            raise VolumeError(msg) from error


def _by_number(said: dict[str, int]) -> dict[int, int]:
    return {int(key): value for key, value in said.items()}  # keys of JSON are strings


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        first: number of its first task.
        size: how many numbers it has.
        where: its address, for messages.
        header: how each task ended.
        body: the lines, packed.
    """

    first: int
    size: int
    where: str
    header: Header
    body: bytes = b""

    @classmethod
    def parse(cls, data: bytes | None, first: int, size: int, where: str) -> Page:
        """Return the page that an object holds; an empty one if there is none.

        Raises:
            VolumeError: it is no page of *size* numbers.
        """
        if data is None:
            return cls(first, size, where, Header.empty(size))
        line, _, body = data.partition(b"\n")
        return cls(first, size, where, Header.from_line(line, size, where), body)

    def to_bytes(self) -> bytes:
        """Return the object."""
        return self.header.to_line(self.size) + self.body

    def entries(self, kinds: Collection[Kind]) -> Iterator[Entry]:
        """Yield what is said of tasks, in the order in which it was added.

        Raises:
            VolumeError: the page is damaged.
        """
        try:
            text = gzip.decompress(self.body).decode()
        except (OSError, EOFError, zlib.error, ValueError) as error:
            msg = f"{self.where} is damaged ({error}); restore it from a copy of the run"
            raise VolumeError(msg) from error
        for line in text.splitlines():
            kind, _, said = line.partition(" ")
            if kind in kinds:
                yield Entry(kind, self.header.generation(number_of(said) - self.first), said)  # type: ignore[arg-type]

    def records(self, numbers: Collection[int] | None = None) -> Iterator[Record]:
        """Yield how the tasks ended, or those of some *numbers*."""
        for entry in self.entries(_RECORD):
            if numbers is None or entry.number in numbers:
                yield Record.from_json(entry.text)

    def failures(self) -> Iterator[Failure]:
        """Yield the attempts that failed."""
        if self.header.sums.failures:
            for entry in self.entries(FAILURES):
                yield Failure.from_json(entry.text)

    def added(self, entries: Iterable[Entry]) -> Page:
        """Return this page with *entries*, but for those that are void or came too late.

        A task has one record, the first; an attempt fails once.
        """
        states, sums = bytearray(self.header.states), self.header.sums.copy()
        failed: set[str] | None = None
        lines = []
        for entry in entries:
            position = entry.number - self.first
            if entry.generation != self.header.generation(position):
                continue
            byte, shift = position >> 2, (position & 3) * 2
            if entry.kind == "record":
                if states[byte] >> shift & 3:
                    continue
                record = Record.from_json(entry.text)
                states[byte] |= 1 + STATES.index(record.state) << shift
                sums.add(Sums.of(record))
            elif entry.kind in FAILURES:
                if failed is None:
                    failed = {each.attempt for each in self.failures()}
                failure = Failure.from_json(entry.text)
                if failure.attempt in failed:
                    continue
                failed.add(failure.attempt)
                sums.add(Sums.of_failure(failure))
            lines.append(f"{entry.kind} {entry.text}\n")
        packed = gzip.compress("".join(lines).encode(), 6, mtime=0) if lines else b""
        header = replace(self.header, states=bytes(states), sums=sums)
        return replace(self, header=header, body=self.body + packed)

    def without(self, numbers: Collection[int]) -> Page:
        """Return a page on which nothing is said of *numbers*, whose next generation begins."""
        generations = dict(self.header.generations)
        for number in numbers:
            position = number - self.first
            generations[position] = generations.get(position, 0) + 1
        header = replace(Header.empty(self.size), generations=generations)
        kept = [
            entry for entry in self.entries((*ATTEMPTS, *FAILURES)) if entry.number not in numbers
        ]
        return replace(self, header=header, body=b"").added(kept)

"""A page of the ledger: what is known of the tasks of some consecutive numbers, in one object.

```
{"format":2,"size":2048,"states":…,"generations":…,"sums":…,"body":[length, CRC-32]} TAB CRC-32
gzip( record 0 {"number":7,…} TAB CRC-32                  what was added first: kind, generation,
      record 0 {"number":5,…} TAB CRC-32 )                JSON, and the seal of the line
gzip( record 0 {"number":9,…} TAB CRC-32                  what was added next, and so on
      permanent 0 {"number":2,…} TAB CRC-32 )
```

The header alone, which one read of a range brings, says how each task ended and what there is to
count. What is added is packed and put behind what is there, which is neither unpacked nor parsed.
``tail -n +2 PAGE | zcat`` shows a page to a person.

A *generation* is how often a task was reopened. What belongs to an earlier one is void.

**Damage.** The header holds the length and the checksum of the body, and every line has a seal of
its own. A page that was cut or changed is rebuilt from the lines that can still be read, and only
from those: a task whose line is gone has no record, whatever the header says.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import zlib
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, get_args

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import VolumeError
from chunkflow_py.run.ledger.record import (
    Attempt,
    DamagedRecordError,
    Failure,
    FailureKind,
    Record,
    State,
    number_of,
    sealed,
    unsealed,
)
from chunkflow_py.run.ledger.sums import Sums

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator

logger = logging.getLogger(__name__)

FORMAT = 2
OLDER = 1  # of version 0.1.0: lines without generation and seal, a header without them

STATES: tuple[State, ...] = get_args(State)
# What may be said of a task: how it ended, that an attempt failed (by kind), that one has begun,
# and what one that ended has written.
Kind = Literal["record", "begun", "finished"] | FailureKind
FAILURES: tuple[FailureKind, ...] = get_args(FailureKind)
ATTEMPTS: tuple[Kind, ...] = ("record", "begun", "finished")
KINDS: tuple[Kind, ...] = (*ATTEMPTS, *FAILURES)
_RECORD: tuple[Kind, ...] = ("record",)
_MEMBER = b"\x1f\x8b\x08"  # so begins each part of a body
_PIECE = 1 << 20  # bytes that are unpacked at once
_LONGEST_LINE = 1 << 28  # bytes; a record of 10^6 blocks takes half of it


@dataclass(frozen=True, slots=True)
class Entry:
    """One line about one task; there is none of a line that cannot be read.

    Attributes:
        kind: what it says.
        generation: of the task, for which it holds.
        text: JSON that begins with the number of the task.
        said: what the JSON says.
    """

    kind: Kind
    generation: int
    text: str
    said: Record | Failure | Attempt = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Parse the JSON.

        Raises:
            VolumeError: it is damaged, or says something of another kind.
        """
        made: type[Record | Failure | Attempt] = Failure
        if self.kind in ATTEMPTS:
            made = Attempt if self.kind == "begun" else Record
        said = made.from_json(self.text)
        if isinstance(said, Failure) and said.kind != self.kind:
            msg = f"a failure of kind {self.kind} says that it is {said.kind}"
            raise VolumeError(msg)
        object.__setattr__(self, "said", said)

    @property
    def number(self) -> int:
        """Of the task."""
        return self.said.number

    def to_line(self) -> str:
        """Return the line of a page."""
        return sealed(f"{self.kind} {self.generation} {self.text}")


@dataclass(frozen=True)
class Header:
    """How each task of a page ended.

    Attributes:
        states: two bits a number, the lowest of the first byte for the first: 0 if the task has
            not ended, else 1 + the position in `STATES`.
        generations: of the tasks that were reopened, by their position in the page.
        sums: over the tasks of the page.
        body: length of the body in bytes, and its CRC-32; ``None`` in a page of an older version.
    """

    states: bytes
    generations: dict[int, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)
    body: tuple[int, int] | None = (0, 0)

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
            "body": self.body,
        }
        return sealed(json.dumps(said, separators=(",", ":"))).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes, size: int, where: str, *, older: bool = False) -> Header:
        """Return the header that `to_line` has written.

        Args:
            line: the first one of a page.
            size: how many numbers the page has.
            where: its address, for messages.
            older: whether the page is of version 0.1.0.

        Raises:
            DamagedHeaderError: it was cut or changed, or is of a page of another size.
            VolumeError: it is of a page of another format.
        """
        try:
            said: dict[str, Any] = json.loads(unsealed(line.decode(), older=older))
            wanted = OLDER if older else FORMAT
            if said["format"] != wanted and isinstance(said["format"], int):
                msg = (
                    f"{where} is a page in format {said['format']}, and those of this run have "
                    f"format {wanted}; use the version of chunkflow_py that began the run"
                )
                raise VolumeError(msg)
            if (said["format"], said["size"]) != (wanted, size):
                raise DamagedHeaderError(where)
            sums = said["sums"] | {"minutes": _by_number(said["sums"]["minutes"])}
            states = base64.b64decode(said["states"], validate=True)
            body = None if older else (int(said["body"][0]), int(said["body"][1]))
            header = cls(states, _by_number(said["generations"]), Sums(**sums), body)
            header.check(size)
        except (
            DamagedRecordError, ValueError, KeyError, IndexError, TypeError, AttributeError,
            RecursionError,
        ) as error:  # fmt: skip
            raise DamagedHeaderError(where) from error
        return header

    def check(self, size: int) -> None:
        """Refuse what no page of *size* numbers can say.

        Raises:
            ValueError: the states are of another number of tasks, or a generation is of none.
            TypeError: a sum is no number.
        """
        positions = all(0 <= position < size for position in self.generations)
        if len(self.states) != -(-size // 4) or not positions:
            msg = f"it has states of {4 * len(self.states)} tasks, not of {size}"
            raise ValueError(msg)
        Sums().add(self.sums)  # which only numbers can be added to


class DamagedHeaderError(VolumeError):
    """The first line of a page cannot be read; what lines of the page say still counts."""

    def __init__(self, where: str) -> None:
        """Name the page."""
        super().__init__(f"the header of {where} is damaged")


def _by_number(said: dict[str, int]) -> dict[int, int]:
    return {int(key): int(value) for key, value in said.items()}  # keys of JSON are strings


@dataclass(frozen=True)
class Page:
    """A whole page.

    Attributes:
        first: number of its first task.
        size: how many numbers it has.
        where: its address, for messages.
        header: how each task ended.
        body: the lines, packed.
        older: whether it is of version 0.1.0.
        damage: what is wrong with the object that it was read from; nothing: nothing is.
    """

    first: int
    size: int
    where: str
    header: Header
    body: bytes = b""
    older: bool = False
    damage: str = ""

    @classmethod
    def parse(
        cls, data: bytes | None, first: int, size: int, where: str, *, older: bool = False
    ) -> Page:
        """Return the page that an object holds; an empty one if there is none.

        Of a damaged one, a page of the lines that can be read; `damage` says so.

        Raises:
            VolumeError: it is a page of another format.
        """
        if data is None:
            return cls(first, size, where, Header.empty(size), older=older)
        line, _, body = data.partition(b"\n")
        try:
            header = Header.from_line(line, size, where, older=older)
        except DamagedHeaderError:
            page = cls(first, size, where, Header.empty(size), body, older)
            return page.rebuilt("its header was cut or changed", keeps_generations=False)
        page = cls(first, size, where, header, body, older)
        if older:
            return page
        found = len(body), zlib.crc32(body)
        if found == header.body:
            return page
        words = f"its body has {found[0]} bytes with the CRC-32 {found[1]:08x}"
        return page.rebuilt(f"{words}, and its header says {header.body}", keeps_generations=True)

    def rebuilt(self, damage: str, *, keeps_generations: bool) -> Page:
        """Return a page of the lines that can be read, and of nothing else.

        Args:
            damage: what is wrong.
            keeps_generations: whether the header is sound, so that its generations hold; else
                those of the lines do.
        """
        entries = list(self.entries(KINDS))
        generations = dict(self.header.generations)
        if not keeps_generations:
            for entry in entries:
                position = entry.number - self.first
                if entry.generation > generations.get(position, 0):
                    generations[position] = entry.generation
        header = replace(Header.empty(self.size), generations=generations)
        return replace(self, header=header, body=b"", damage=damage).added(entries)

    def to_bytes(self) -> bytes:
        """Return the object."""
        return self.header.to_line(self.size) + self.body

    def entries(
        self, kinds: Collection[Kind], numbers: Collection[int] | None = None
    ) -> Iterator[Entry]:
        """Yield what is said of tasks, in the order in which it was added.

        A line that cannot be read is left out.

        Args:
            kinds: which kinds of lines.
            numbers: of tasks; all of the page unless given.
        """
        for kind, generation, number, text in self.lines(kinds):
            if numbers is None or number in numbers:
                try:
                    yield Entry(kind, generation, text)
                except VolumeError as error:
                    logger.warning("%s: %s", self.where, error)

    def lines(self, kinds: Collection[Kind]) -> Iterator[tuple[Kind, int, int, str]]:
        """Yield kind, generation, number of the task and JSON of each line that is sound.

        The JSON is not parsed, which takes longer than all else.
        """
        damaged: list[VolumeError] = []
        for line in _lines(self.body):
            try:
                kind, generation, text = self._split(unsealed(line, older=self.older))
                number = number_of(text)
            except VolumeError as error:
                damaged.append(error)
                continue
            if kind in kinds and 0 <= number - self.first < self.size:
                yield kind, generation, number, text  # type: ignore[misc]
        if damaged:
            logger.warning(
                "%s: %d lines are damaged, the first one: %s", self.where, len(damaged), damaged[0]
            )

    def _split(self, text: str) -> tuple[str, int, str]:
        """Return kind, generation and JSON of a line."""
        if self.older:
            kind, _, said = text.partition(" ")
            return kind, self.header.generation(number_of(said) - self.first), said
        kind, generation, said = (*text.split(" ", 2), "", "")[:3]
        return kind, int(generation) if is_digits(generation) else -1, said

    def records(self, numbers: Collection[int] | None = None) -> Iterator[Record]:
        """Yield how the tasks ended, or those of some *numbers*, each once."""
        seen: set[int] = set()
        for entry in self.entries(_RECORD, numbers):
            if isinstance(entry.said, Record) and entry.number not in seen:
                seen.add(entry.number)
                yield entry.said

    def failures(self) -> Iterator[Failure]:
        """Yield the attempts that failed."""
        if self.header.sums.failures:
            for entry in self.entries(FAILURES):
                if isinstance(entry.said, Failure):
                    yield entry.said

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
            if entry.kind == "record" and isinstance(entry.said, Record):
                if states[byte] >> shift & 3:
                    continue
                states[byte] |= 1 + STATES.index(entry.said.state) << shift
                sums.add(Sums.of(entry.said))
            elif isinstance(entry.said, Failure):
                if failed is None:
                    failed = {each.attempt for each in self.failures()}
                if entry.said.attempt in failed:
                    continue
                failed.add(entry.said.attempt)
                sums.add(Sums.of_failure(entry.said))
            lines.append(f"{entry.to_line()}\n")
        packed = gzip.compress("".join(lines).encode(), 6, mtime=0) if lines else b""
        length, checksum = self.header.body or (0, 0)
        body = length + len(packed), zlib.crc32(packed, checksum)
        header = replace(self.header, states=bytes(states), sums=sums, body=body)
        return replace(self, header=header, body=self.body + packed)

    def without(self, numbers: Collection[int]) -> Page:
        """Return a page on which nothing is said of *numbers*, whose next generation begins."""
        generations = dict(self.header.generations)
        for number in numbers:
            position = number - self.first
            generations[position] = generations.get(position, 0) + 1
        header = replace(Header.empty(self.size), generations=generations)
        kept = [entry for entry in self.entries(KINDS) if entry.number not in numbers]
        return replace(self, header=header, body=b"", damage="").added(kept)


def _lines(body: bytes) -> Iterator[str]:
    """Yield the lines of a body, as far as it can be unpacked.

    Behind a part that is damaged the next one is looked for.
    """
    begin = 0
    while 0 <= begin < len(body):
        unpacking, rest, at = zlib.decompressobj(wbits=31), b"", begin
        try:
            while not unpacking.eof and len(rest) <= _LONGEST_LINE:
                if not (packed := unpacking.unconsumed_tail):
                    packed = body[at : at + _PIECE]
                    at += len(packed)
                text = unpacking.decompress(packed, _PIECE)
                if not packed and not text:
                    break  # it was cut
                *lines, rest = (rest + text).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        except zlib.error:
            pass
        is_whole = unpacking.eof
        begin = at - len(unpacking.unused_data) if is_whole else body.find(_MEMBER, begin + 1)

"""The segments of a ledger, and the compaction that moves journal entries into them.

A segment contains all entries about a range of consecutive tasks. Each segment is one object in the
folder with the stored name ``pages``:

```
{"format":2,"size":2048,"states":…,"generations":…,"sums":…,"body":[length, CRC-32]} TAB CRC-32
gzip( record 0 {"number":7,…} TAB CRC-32                  first entries added: kind, generation,
      record 0 {"number":5,…} TAB CRC-32 )                JSON, and the seal of the line
gzip( record 0 {"number":9,…} TAB CRC-32                  next entries added
      permanent 0 {"number":2,…} TAB CRC-32 )
```

The header contains the state of each task and the sums over all tasks. One ranged request reads the
header. New entries are compressed and appended. The existing body is neither decompressed nor
parsed. The command ``tail -n +2 SEGMENT | zcat`` prints the entries of a segment.

The *generation* of a task is the number of times that the task was reopened. Entries of an earlier
generation are *void*: all methods ignore them.

**Damage.** The header contains the length and the checksum of the body, and every line has its own
seal. A segment that was truncated or changed is rebuilt only from the lines that can still be read.
A task whose line is lost has no record, even if the header lists the task as ended.

**Compaction.** About one in `COMPACT_EVERY` calls that write an entry compacts the segment with the
most journal entries. So the journal stays small for any number of tasks, and no process has to
coordinate the compactions.
"""

from __future__ import annotations

import base64
import gzip
import json
import logging
import random
import re
import threading
import zlib
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import VolumeError
from chunkflow_py.run.ledger.ledger_journal import JournalKey, map_concurrently
from chunkflow_py.run.ledger.ledger_record import (
    FAILURES,
    KINDS,
    STATES,
    DamagedRecordError,
    FailedAttempt,
    LedgerEntry,
    Record,
    Sums,
    number_of,
    sealed,
    unsealed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from chunkflow_py.run.ledger.ledger_journal import Journal
    from chunkflow_py.run.ledger.ledger_record import Kind, State
    from chunkflow_py.store.store_protocol import Store

logger = logging.getLogger(__name__)

COMPACT_EVERY = 128
MOST_JOURNAL_ENTRIES = 4096  # above it, several segments are compacted, up to `MOST_SEGMENTS`
MOST_SEGMENTS = 32
MOST_CONFLICTS = 5  # updates lost to other processes after which a compaction gives up
HEADER_BYTES = 4096  # size of the first ranged read; almost all headers are shorter
AT_ONCE = 4  # whole segments in memory

_FORMAT = 2
_OMITTED = ("causes", "patches")  # sums that a header has only if they are not empty
_OLDER_FORMAT = 1  # of version 0.1.0: lines and header without generation and seal
_RECORD: tuple[Kind, ...] = ("record",)
_GZIP_MEMBER = b"\x1f\x8b\x08"  # first bytes of each part of a body
_PIECE_BYTES = 1 << 20  # bytes decompressed at a time
_LONGEST_LINE = 1 << 28  # bytes; a record of 10^6 blocks takes half of it
_NAME = re.compile("[0-9]{1,15}")


class SegmentStore:
    """All segments of one ledger.

    Args:
        store: store of the run.
        root: prefix of the ledger's keys.
        size: number of tasks of a segment.
        span: number of tasks, which are numbered 0 to *span* - 1.
        older: whether version 0.1.0 of the package wrote the ledger.

    Attributes:
        damaged: problem of each damaged segment, with the number of the segment as key.
        hints: latest known headers of segments with reopened tasks. A writer takes the generation
            of a task from these headers. The headers may be outdated, so the writer checks the
            generation again after the write.
        at_once: maximum number of whole segments to process at the same time.
    """

    def __init__(
        self, store: Store, root: str, size: int, span: int, *, older: bool = False
    ) -> None:
        self._store, self._root, self.size = store, f"{root}pages/", size
        self._count, self._older = -(-span // size), older
        self.damaged: dict[int, str] = {}
        self.hints = SegmentHeaders(size, {})
        self.at_once = min(AT_ONCE, store.connections)

    def listed(self) -> set[int]:
        """Return the numbers of the segments that exist; ignore objects with other names."""
        names = (key[len(self._root) :] for key in self._store.list(self._root))
        # Segment 7 is never stored as "07".
        numbers = (int(name) for name in names if _NAME.fullmatch(name) and str(int(name)) == name)
        return {number for number in numbers if number < self._count}

    def headers(self, segments: Collection[int]) -> SegmentHeaders:
        """Read the headers of some segments concurrently."""
        wanted = sorted(segments)
        headers = map_concurrently(self.header, wanted, self._store.connections)
        return SegmentHeaders(self.size, dict(zip(wanted, headers, strict=True)))

    def header(self, segment: int) -> SegmentHeader:
        """Read the header of a segment, usually with one ranged request."""
        length = HEADER_BYTES
        while (data := self._store.get_range(self._key(segment), 0, length)) is not None:
            line, separator, _ = data.partition(b"\n")
            if separator or len(data) < length:
                try:
                    header = SegmentHeader.from_line(
                        line, self.size, self.address(segment), older=self._older
                    )
                except DamagedSegmentHeaderError:
                    header = self.read(segment).header
                self._notice(segment, header)
                return header
            length *= 16
        return SegmentHeader.empty(self.size)

    def read(self, segment: int) -> Segment:
        """Read a whole segment; return an empty segment if it does not exist."""
        return self._parsed(segment, self._store.get(self._key(segment)))

    def update(self, segment: int, change: Callable[[Segment], Segment]) -> None:
        """Replace a segment by the result of *change*; no update by another process is lost."""
        new = self._store.update(
            self._key(segment), lambda old: change(self._parsed(segment, old)).to_bytes()
        )
        self._notice(segment, self._parsed(segment, new).header)

    def address(self, segment: int) -> str:
        """Return the address of a segment, for messages."""
        return f"{self._store.url.rstrip('/')}/{self._key(segment)}"

    def _key(self, segment: int) -> str:
        return f"{self._root}{segment}"

    def _parsed(self, number: int, data: bytes | None) -> Segment:
        where = self.address(number)
        segment = Segment.parse(data, number * self.size, self.size, where, older=self._older)
        if segment.damage:
            if self.damaged.get(number) != segment.damage:
                logger.warning(
                    "segment %s of the ledger is damaged: %s; tasks whose records cannot be read "
                    "count as not recorded; run chunkflow verify to list these tasks",
                    where,
                    segment.damage,
                )
            self.damaged[number] = segment.damage
        else:
            self.damaged.pop(number, None)
        return segment

    def _notice(self, segment: int, header: SegmentHeader) -> None:
        if header.generations:
            self.hints.by_segment[segment] = header


class SegmentHeaders:
    """The headers of some segments, as read at one time; a missing segment counts as empty.

    Args:
        size: number of tasks of a segment.
        by_segment: headers, with the number of the segment as key.
    """

    def __init__(self, size: int, by_segment: dict[int, SegmentHeader]) -> None:
        self.size, self.by_segment = size, by_segment

    def state(self, number: int) -> State | None:
        """Return the final state of a task, or ``None`` if no header lists it as ended."""
        segment, position = divmod(number, self.size)
        header = self.by_segment.get(segment)
        return None if header is None else header.state(position)

    def key(self, number: int, kind: Kind = "record", attempt: str = "") -> JournalKey:
        """Return the key of a journal entry for the current generation of a task."""
        segment, position = divmod(number, self.size)
        header = self.by_segment.get(segment)
        generation = 0 if header is None else header.generation(position)
        return JournalKey(segment, number, generation, kind, attempt)

    def is_void(self, entry: JournalKey | LedgerEntry) -> bool:
        """Return whether an entry belongs to an earlier generation of its task."""
        return self.key(entry.number).generation != entry.generation


@dataclass(frozen=True)
class SegmentHeader:
    """The state of each task of a segment, and sums over all tasks of the segment.

    Attributes:
        states: two bits per task, starting with the lowest bits of the first byte: 0 if the task
            has not ended, else 1 + the position of the task's state in `STATES`.
        generations: generation of each reopened task, with the position of the task in the segment
            as key.
        sums: sums over the tasks of the segment.
        body: length of the body in bytes, and CRC-32 of the body; ``None`` in a segment of
            version 0.1.0.
    """

    states: bytes
    generations: dict[int, int] = field(default_factory=dict)
    sums: Sums = field(default_factory=Sums)
    body: tuple[int, int] | None = (0, 0)

    @classmethod
    def empty(cls, size: int) -> SegmentHeader:
        """Return the header of an empty segment of *size* tasks."""
        return cls(bytes(-(-size // 4)))

    def state(self, position: int) -> State | None:
        """Return the final state of the task at *position*, or ``None`` if it has not ended."""
        code = self.states[position >> 2] >> (position & 3) * 2 & 3
        return STATES[code - 1] if code else None

    def generation(self, position: int) -> int:
        """Return the number of times that the task at *position* was reopened."""
        return self.generations.get(position, 0)

    def to_line(self, size: int) -> bytes:
        """Return the header as the encoded first line of a segment of *size* tasks."""
        values = {
            "format": _FORMAT,
            "size": size,
            "states": base64.b64encode(self.states).decode(),
            "generations": self.generations,
            "sums": {k: v for k, v in asdict(self.sums).items() if v or k not in _OMITTED},
            "body": self.body,
        }
        return sealed(json.dumps(values, separators=(",", ":"))).encode() + b"\n"

    @classmethod
    def from_line(cls, line: bytes, size: int, where: str, *, older: bool = False) -> SegmentHeader:
        """Parse a header from the line that `to_line` returns.

        Args:
            line: first line of a segment.
            size: number of tasks of the segment.
            where: address of the segment, for messages.
            older: whether version 0.1.0 wrote the segment.

        Raises:
            DamagedSegmentHeaderError: the header was truncated or changed, or belongs to a segment
                of another size.
            VolumeError: the segment has another format.
        """
        damages = (
            DamagedRecordError,
            ValueError,
            KeyError,
            IndexError,
            TypeError,
            AttributeError,
            RecursionError,
        )
        try:
            values: dict[str, Any] = json.loads(unsealed(line.decode(), older=older))
            wanted = _OLDER_FORMAT if older else _FORMAT
            if values["format"] != wanted and isinstance(values["format"], int):
                msg = (
                    f"segment {where} of the ledger has the format {values['format']}, but the "
                    f"ledger of this run must have the format {wanted}; use the version of "
                    "chunkflow_py that began the run"
                )
                raise VolumeError(msg)
            if (values["format"], values["size"]) != (wanted, size):
                raise DamagedSegmentHeaderError(where)
            sums = values["sums"] | {"minutes": _by_number(values["sums"]["minutes"])}
            states = base64.b64decode(values["states"], validate=True)
            body = None if older else (int(values["body"][0]), int(values["body"][1]))
            header = cls(states, _by_number(values["generations"]), Sums(**sums), body)
            header.check(size)
        except damages as error:
            raise DamagedSegmentHeaderError(where) from error
        return header

    def check(self, size: int) -> None:
        """Check that a segment of *size* tasks can have this header.

        Raises:
            ValueError: the number of states is wrong, or the position of a reopened task is outside
                of the segment.
            TypeError: a sum is not a number.
        """
        if len(self.states) != -(-size // 4):
            msg = f"the header has {4 * len(self.states)} states, but the segment has {size} tasks"
            raise ValueError(msg)
        outside = [position for position in self.generations if not 0 <= position < size]
        if outside:
            msg = f"the header lists a task at position {outside[0]} of a segment of {size} tasks"
            raise ValueError(msg)
        Sums().add(self.sums)  # raises unless all are numbers


class DamagedSegmentHeaderError(VolumeError):
    """The first line of a segment cannot be read; the lines of its body may still be valid."""

    def __init__(self, where: str) -> None:
        super().__init__(f"the header of ledger segment {where} is damaged")


def _by_number(values: dict[str, int]) -> dict[int, int]:
    return {int(key): int(value) for key, value in values.items()}  # JSON has string keys only


@dataclass(frozen=True)
class Segment:
    """One whole segment: the header and the entries.

    Attributes:
        first: number of the first task of the segment.
        size: number of tasks of the segment.
        where: address of the segment, for messages.
        header: states of the tasks, and sums over the tasks.
        body: the compressed lines.
        older: whether version 0.1.0 of the package wrote the segment.
        damage: problem of the stored object; empty if the object is not damaged.
    """

    first: int
    size: int
    where: str
    header: SegmentHeader
    body: bytes = b""
    older: bool = False
    damage: str = ""

    @classmethod
    def parse(
        cls, data: bytes | None, first: int, size: int, where: str, *, older: bool = False
    ) -> Segment:
        """Parse a stored segment; return an empty segment if *data* is ``None``.

        If the object is damaged, return a segment of the readable lines, and describe the problem
        in `damage`.

        Raises:
            VolumeError: the segment has another format.
        """
        if data is None:
            return cls(first, size, where, SegmentHeader.empty(size), older=older)
        line, _, body = data.partition(b"\n")
        try:
            header = SegmentHeader.from_line(line, size, where, older=older)
        except DamagedSegmentHeaderError:
            segment = cls(first, size, where, SegmentHeader.empty(size), body, older)
            return segment.rebuilt("the header was truncated or changed", keeps_generations=False)
        segment = cls(first, size, where, header, body, older)
        if older:
            return segment
        length, checksum = len(body), zlib.crc32(body)
        if (length, checksum) == header.body:
            return segment
        expected_length, expected_checksum = header.body or (0, 0)
        damage = (
            f"the body has {length} bytes and the CRC-32 {checksum:08x}, but according to the "
            f"header it has {expected_length} bytes and the CRC-32 {expected_checksum:08x}"
        )
        return segment.rebuilt(damage, keeps_generations=True)

    def rebuilt(self, damage: str, *, keeps_generations: bool) -> Segment:
        """Return a copy of this damaged segment that consists only of its readable lines.

        Args:
            damage: description of the problem.
            keeps_generations: whether to use the generations in the header. If the header is
                damaged, this must be false; then the generations in the lines are used.
        """
        entries = list(self.entries(KINDS))
        generations = dict(self.header.generations)
        if not keeps_generations:
            for entry in entries:
                position = entry.number - self.first
                if entry.generation > generations.get(position, 0):
                    generations[position] = entry.generation
        header = replace(SegmentHeader.empty(self.size), generations=generations)
        return replace(self, header=header, body=b"", damage=damage).added(entries)

    def to_bytes(self) -> bytes:
        """Return the segment in its stored form."""
        return self.header.to_line(self.size) + self.body

    def entries(
        self, kinds: Collection[Kind], numbers: Collection[int] | None = None
    ) -> Iterator[LedgerEntry]:
        """Yield the readable entries, in the order in which they were added.

        Args:
            kinds: kinds of the entries to yield, such as ``record``; see `LedgerEntry.kind`.
            numbers: numbers of the tasks; ``None`` for all tasks of the segment.
        """
        for kind, generation, number, text in self.lines(kinds):
            if numbers is None or number in numbers:
                try:
                    yield LedgerEntry(kind, generation, text)
                except VolumeError as error:
                    logger.warning("%s: %s", self.where, error)

    def lines(self, kinds: Collection[Kind]) -> Iterator[tuple[Kind, int, int, str]]:
        """Yield kind, generation, task number and unparsed JSON of each undamaged line.

        The JSON is not parsed, because this would take longer than all other work on a line.
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
                "ledger segment %s has %d damaged lines; the first: %s",
                self.where,
                len(damaged),
                damaged[0],
            )

    def records(self, numbers: Collection[int] | None = None) -> Iterator[Record]:
        """Yield the record of each task, or only of the tasks with these *numbers*."""
        seen: set[int] = set()
        for entry in self.entries(_RECORD, numbers):
            if isinstance(entry.content, Record) and entry.number not in seen:
                seen.add(entry.number)
                yield entry.content

    def failures(self) -> Iterator[FailedAttempt]:
        """Yield the failed attempts on tasks of the segment."""
        if self.header.sums.failures:
            for entry in self.entries(FAILURES):
                if isinstance(entry.content, FailedAttempt):
                    yield entry.content

    def added(self, entries: Iterable[LedgerEntry]) -> Segment:
        """Return this segment with *entries* added, except entries of earlier generations.

        If a task has several records, only the first is kept. Of several failures of one attempt,
        only the first is kept.
        """
        states, sums = bytearray(self.header.states), self.header.sums.copy()
        failed: set[str] | None = None
        lines = []
        for entry in entries:
            position = entry.number - self.first
            if entry.generation != self.header.generation(position):
                continue
            byte, shift = position >> 2, (position & 3) * 2
            if entry.kind == "record" and isinstance(entry.content, Record):
                if states[byte] >> shift & 3:
                    continue
                states[byte] |= 1 + STATES.index(entry.content.state) << shift
                sums.add(Sums.of(entry.content))
            elif isinstance(entry.content, FailedAttempt):
                if failed is None:
                    failed = {each.attempt for each in self.failures()}
                if entry.content.attempt in failed:
                    continue
                failed.add(entry.content.attempt)
                sums.add(Sums.of_failure(entry.content))
            lines.append(f"{entry.to_line()}\n")
        packed = gzip.compress("".join(lines).encode(), 6, mtime=0) if lines else b""
        length, checksum = self.header.body or (0, 0)
        body = length + len(packed), zlib.crc32(packed, checksum)
        header = replace(self.header, states=bytes(states), sums=sums, body=body)
        return replace(self, header=header, body=self.body + packed)

    def without(self, numbers: Collection[int]) -> Segment:
        """Return a segment without the entries of the tasks *numbers*.

        The generation of each of these tasks is increased by 1, so that entries of earlier
        generations in the journal are ignored.
        """
        generations = dict(self.header.generations)
        for number in numbers:
            position = number - self.first
            generations[position] = generations.get(position, 0) + 1
        header = replace(SegmentHeader.empty(self.size), generations=generations)
        kept = [entry for entry in self.entries(KINDS) if entry.number not in numbers]
        return replace(self, header=header, body=b"", damage="").added(kept)

    def _split(self, text: str) -> tuple[str, int, str]:
        if self.older:
            kind, _, content = text.partition(" ")
            return kind, self.header.generation(number_of(content) - self.first), content
        kind, generation, content = (*text.split(" ", 2), "", "")[:3]
        return kind, int(generation) if is_digits(generation) else -1, content


def _lines(body: bytes) -> Iterator[str]:
    """Yield those lines of the body of a segment that can be decompressed.

    After a damaged gzip member, continue with the next member that is found.
    """
    begin = 0
    while 0 <= begin < len(body):
        unpacking, rest, at = zlib.decompressobj(wbits=31), b"", begin
        try:
            while not unpacking.eof and len(rest) <= _LONGEST_LINE:
                if not (packed := unpacking.unconsumed_tail):
                    packed = body[at : at + _PIECE_BYTES]
                    at += len(packed)
                text = unpacking.decompress(packed, _PIECE_BYTES)
                if not packed and not text:
                    break  # the part is truncated
                *lines, rest = (rest + text).split(b"\n")
                yield from (line.decode(errors="replace") for line in lines)
        except zlib.error:
            pass
        is_whole = unpacking.eof
        begin = at - len(unpacking.unused_data) if is_whole else body.find(_GZIP_MEMBER, begin + 1)


class Compactor:
    """Moves the journal entries of one ledger to its segments.

    Args:
        segments: segments of the ledger.
        journal: journal of the ledger.
        in_background: whether `by_chance` runs in a separate thread.
    """

    def __init__(self, segments: SegmentStore, journal: Journal, *, in_background: bool) -> None:
        self._segments, self._journal = segments, journal
        self._in_background = in_background
        self._busy = threading.Lock()

    def all(self) -> None:
        """Compact all segments; if a segment cannot be stored, its entries stay in the journal."""

        def compact(item: tuple[int, Sequence[JournalKey]]) -> None:
            try:
                self._compact(*item)
            except VolumeError as error:
                logger.warning(
                    "cannot compact segment %d of the ledger: %s; no record is lost, because the "
                    "records stay in the journal of the ledger", item[0], error,
                )  # fmt: skip

        segments = list(self._journal.by_segment().items())
        map_concurrently(compact, segments, self._segments.at_once)

    def by_chance(self, entries: int) -> None:
        """Compact a few segments, with the probability *entries* / `COMPACT_EVERY`.

        The segments with the most journal entries are chosen.

        Call this method after each write, with the number of new entries.
        """
        if random.random() * COMPACT_EVERY >= entries:  # noqa: S311 not a secret
            return
        if not self._busy.acquire(blocking=False):
            return
        if self._in_background:
            threading.Thread(target=self._compact_fullest, name="ledger-compaction").start()
        else:
            self._compact_fullest()

    def _compact_fullest(self) -> None:
        try:
            chosen = self._journal.fullest(MOST_SEGMENTS, MOST_JOURNAL_ENTRIES)
            map_concurrently(self._compact_unless_busy, chosen, self._segments.at_once)
        except VolumeError as error:
            # Nothing is lost: the entries stay in the journal until another compaction.
            logger.warning("cannot compact the ledger: %s", error)
        finally:
            self._busy.release()

    def _compact_unless_busy(self, item: tuple[int, Sequence[JournalKey]]) -> None:
        segment, keys = item
        try:
            self._compact(segment, keys, MOST_CONFLICTS)
        except _BusyError:
            logger.debug("other processes are compacting segment %d of the ledger", segment)

    def _compact(
        self, segment: int, keys: Sequence[JournalKey], conflicts: int | None = None
    ) -> None:
        settled = _settled(keys, self._segments.headers([segment]))
        order = sorted(settled)  # similar lines next to each other compress better
        read = self._journal.read(order)
        entries = [entry for entry in read if entry is not None]
        tries = 0

        def add(old: Segment) -> Segment:
            nonlocal tries
            tries += 1
            if conflicts is not None and tries > conflicts:
                raise _BusyError
            new = old.added(entries)
            if len(new.body) == len(old.body) and not old.damage:
                raise _NothingToAddError
            return new

        with suppress(_NothingToAddError):
            self._segments.update(segment, add)
        # An unreadable entry stays for inspection until its task is reopened.
        headers = self._segments.headers([segment])
        moved = [
            key for key, entry in zip(order, read, strict=True) if entry or headers.is_void(key)
        ]
        self._journal.delete(moved)


def _settled(keys: Collection[JournalKey], headers: SegmentHeaders) -> list[JournalKey]:
    """Return *keys* without the keys of attempts that have begun but have no outcome yet.

    The worker may still withdraw such an attempt, which deletes the attempt's journal entry. If a
    compaction copied the entry to the segment at that moment, the entry would come back.
    """
    ended = {key.number for key in keys if key.kind == "record"}
    failed = {key.attempt for key in keys if key.kind in FAILURES}
    return [
        key
        for key in keys
        if key.kind != "begun"
        or key.attempt in failed
        or key.number in ended
        or headers.state(key.number)
        or headers.is_void(key)
    ]


class _BusyError(Exception):
    """This compaction gives up, because other processes update the segment at the same time."""


class _NothingToAddError(Exception):
    """The segment already has all entries, because another process has compacted them."""

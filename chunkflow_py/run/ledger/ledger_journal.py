"""The journal of a ledger: the entries that no compaction has moved to a segment yet.

```
loose/<shard>/<segment>.<number>.<generation>.record            how a task ended
loose/<shard>/<segment>.<number>.<generation>.<kind>.<attempt>  failure, begin or end of an attempt
```

Here, *number* is the number of the task, and *generation* is the number of times that the task was
reopened. Each entry is one object in a folder with the stored name ``loose``. The key of a record
does not contain the attempt, so put-if-absent can store only one record of the task. If the store
is a local folder, several records are written at once: one file with the lines of several tasks
gets a hard link for each of these tasks. Readers of a key therefore use only the line of the key's
task.

The shard, ``segment % 16``, spreads concurrent writes over several folders and key prefixes,
because clouds limit the rate of requests for each prefix.

An object that cannot be read counts as absent, and one warning names the object. Objects that are
not journal entries of this ledger, such as files of editors and file servers, are ignored.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from urllib.parse import quote, unquote

from chunkflow_py.core.failpoints import removed
from chunkflow_py.errors import VolumeError
from chunkflow_py.run.ledger.ledger_record import (
    KINDS,
    DamagedRecordError,
    LedgerEntry,
    number_of,
    sealed,
    unsealed,
)
from chunkflow_py.store.local_files import of_each_file
from chunkflow_py.store.store_protocol import Links, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chunkflow_py.run.ledger.ledger_record import Kind
    from chunkflow_py.store.store_protocol import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

SHARDS = 16
# A store that can link files keeps the records of one call in one object, up to these limits.
SHARED_LINES = 32
SHARED_CHARACTERS = 1 << 17
_KEY = re.compile(
    rf"([0-9a-f])/([0-9]{{1,15}})\.([0-9]{{1,18}})\.([0-9]{{1,9}})\.({'|'.join(KINDS)})(?:\.(.+))?"
)
_NUMBER = re.compile("[0-9]{1,15}")


class JournalKey(NamedTuple):
    """The parsed key of a journal entry.

    Attributes:
        segment: number of the segment to which the task belongs.
        number: number of the task.
        generation: number of times that the task had been reopened when the entry was written.
        kind: ``record`` for the record of a task; ``begun`` or ``finished`` for the beginning or
            the end of an attempt; for a failed attempt, the kind of the failure.
        attempt: name of the attempt that the entry describes; empty for a record.
    """

    segment: int
    number: int
    generation: int
    kind: Kind
    attempt: str = ""


class Journal:
    """The journal of one ledger.

    Args:
        store: store of the run.
        root: prefix of the ledger's keys.
        segment_size: number of tasks of a segment.
        span: number of tasks, which are numbered 0 to *span* - 1.
        older: whether version 0.1.0 of the package wrote the ledger; its lines have no checksum.

    Attributes:
        unreadable: problem of each entry that exists but could not be read, with the key of the
            entry as key.
    """

    def __init__(
        self, store: Store, root: str, segment_size: int, span: int, *, older: bool = False
    ) -> None:
        self._store, self._root = store, f"{root}loose/"
        self._segment_size, self._span, self._older = segment_size, span, older
        self.unreadable: dict[JournalKey, str] = {}

    def listed(self, segment: int | None = None, number: int | None = None) -> Iterator[JournalKey]:
        """Yield the keys of all entries, or only of the entries of one segment or one task."""
        prefix = self._root if segment is None else self._prefix(segment)
        return self._parsed_keys(
            self._store.list(prefix if number is None else f"{prefix}{number}.")
        )

    def by_segment(self) -> dict[int, list[JournalKey]]:
        """Return a dictionary from the number of each segment to the keys of its entries."""
        paths = self._paths_by_segment().items()
        return {segment: list(self._parsed_keys(some)) for segment, some in paths}

    def fullest(self, most_segments: int, most_left: int) -> list[tuple[int, list[JournalKey]]]:
        """Return the segments with the most journal entries, and the keys of these entries.

        Beginnings of attempts are not counted, because a compaction does not move all of them.

        Args:
            most_segments: maximum number of segments to return.
            most_left: return fewer segments if all other segments together have at most this
                number of entries.
        """
        by_segment = self._paths_by_segment()
        sizes = {
            segment: sum(".begun." not in path for path in paths)
            for segment, paths in by_segment.items()
        }
        remaining = sum(sizes.values())
        chosen = []
        for segment in sorted(sizes, key=lambda segment: -sizes[segment])[:most_segments]:
            chosen.append((segment, list(self._parsed_keys(by_segment[segment]))))
            remaining -= sizes[segment]
            if remaining <= most_left:
                break
        return chosen

    def read(self, keys: Sequence[JournalKey]) -> list[LedgerEntry | None]:
        """Return the entry of each key, or ``None`` if the entry does not exist or cannot be read.

        An entry that was moved to its segment does not exist any more. An entry that cannot be read
        is added to `unreadable`.
        """
        return self._map(self._read, keys)

    def address(self, key: JournalKey) -> str:
        """Return the address of an entry, for messages."""
        return f"{self._store.url.rstrip('/')}/{self._path(key)}"

    def replace_damaged(self, key: JournalKey, text: str) -> None:
        """Replace the record at *key* with *text* if the record exists but cannot be read."""

        def replaced(old: bytes | None) -> bytes:
            if old is not None:
                try:
                    self._parsed(key, old)
                except VolumeError:
                    pass
                else:
                    return old
            return sealed(text).encode()

        if self._store.size(self._path(key)) is not None:  # else its segment has it now
            self._store.update(self._path(key), replaced)

    def put(self, key: JournalKey, text: str) -> None:
        """Store an entry about an attempt: its beginning, its failure or its end.

        The key contains the name of the attempt, so no other worker writes to this key.
        """
        self._store.put(self._path(key), sealed(text).encode())

    def put_records(self, texts: Sequence[tuple[JournalKey, str]]) -> list[bool]:
        """Store each record whose task has no record yet; all records are of different tasks.

        For each record, return whether it was stored.
        """
        if removed("put-if-absent"):
            map_concurrently(lambda item: self.put(*item), texts, self._store.connections)
            return [True] * len(texts)
        if len(texts) > 1 and isinstance(self._store, Links):
            is_first = []
            for part in _parts(texts):
                content = "\n".join(sealed(text) for _, text in part).encode()
                paths = [self._path(key) for key, _ in part]
                is_first += self._store.put_each_if_absent(paths, content)
            return is_first

        def put(item: tuple[JournalKey, str]) -> bool:
            return self._store.put_if_absent(self._path(item[0]), sealed(item[1]).encode())

        return map_concurrently(put, texts, self._store.connections)

    def delete(self, keys: Sequence[JournalKey]) -> None:
        """Delete entries that were moved to their segment, or are of an earlier generation."""
        with together(self._store) as store:
            self._map(lambda key: store.delete(self._path(key)), keys)

    def _prefix(self, segment: int) -> str:
        return f"{self._root}{segment % SHARDS:x}/{segment}."

    def _path(self, key: JournalKey) -> str:
        path = f"{self._prefix(key.segment)}{key.number}.{key.generation}.{key.kind}"
        return f"{path}.{quote(key.attempt, safe='')}" if key.attempt else path

    def _paths_by_segment(self) -> dict[int, list[str]]:
        paths: defaultdict[str, list[str]] = defaultdict(list)
        for path in self._store.list(self._root):
            start = path.rindex("/") + 1
            paths[path[start : path.find(".", start)]].append(path)
        return {int(segment): some for segment, some in paths.items() if _NUMBER.fullmatch(segment)}

    def _parsed_keys(self, paths: Iterable[str]) -> Iterator[JournalKey]:
        """Yield the parsed keys of those paths that are entries of this ledger."""
        for path in paths:
            match = _KEY.fullmatch(path[len(self._root) :])
            if match is None:
                continue
            segment, number, generation = map(int, match.group(2, 3, 4))
            key = JournalKey(segment, number, generation, match[5], unquote(match[6] or ""))  # type: ignore[arg-type]
            is_ours = segment == number // self._segment_size and number < self._span
            if is_ours and self._path(key) == path:
                yield key

    def _read(self, key: JournalKey) -> LedgerEntry | None:
        data = self._store.get(self._path(key))
        if data is None:
            return None
        try:
            entry = self._parsed(key, data)
        except VolumeError as error:
            if key not in self.unreadable:
                logger.warning(
                    "ledger entry %s is ignored, and its task counts as not recorded: %s",
                    self.address(key),
                    error,
                )
            self.unreadable[key] = str(error)
            return None
        self.unreadable.pop(key, None)
        return entry

    def _parsed(self, key: JournalKey, data: bytes) -> LedgerEntry:
        """Return the entry from the line of *data* that belongs to the task of *key*.

        Raises:
            DamagedRecordError: no readable line belongs to this task.
        """
        damage: DamagedRecordError | None = None
        for line in data.decode(errors="replace").split("\n"):
            try:
                if number_of(line) == key.number:
                    text = unsealed(line, older=self._older)
                    return LedgerEntry(key.kind, key.generation, text)
            except DamagedRecordError as error:
                damage = damage or error
        if damage is not None and data:
            raise damage
        msg = f"the object has {len(data)} bytes, but no record of task {key.number}"
        raise DamagedRecordError(msg)

    def _map(self, work: Callable[[JournalKey], R], keys: Sequence[JournalKey]) -> list[R]:
        threads = self._store.connections
        if self._store.is_local:
            return of_each_file(work, keys, threads, "ledger")
        return map_concurrently(work, keys, threads)


def map_concurrently(work: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Apply *work* to all items in at most *threads* threads; return results in input order."""
    if len(items) < 2 or threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)), "ledger") as pool:
        return list(pool.map(work, items))


def _parts(texts: Iterable[tuple[JournalKey, str]]) -> Iterator[list[tuple[JournalKey, str]]]:
    part: list[tuple[JournalKey, str]] = []
    characters = 0
    for item in texts:
        characters += len(item[1])
        if part and (len(part) == SHARED_LINES or characters > SHARED_CHARACTERS):
            yield part
            part, characters = [], len(item[1])
        part.append(item)
    if part:
        yield part

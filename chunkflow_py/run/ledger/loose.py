"""What is known of tasks but not on their pages yet: an object for each thing.

```
loose/<shard>/<page>.<number>.<generation>.record              sealed lines, one of them the task's
loose/<shard>/<page>.<number>.<generation>.<kind>.<attempt>    a failure, a begin, a finish
```

The key of a record does not name the attempt: that only one can be put there makes it the one
record of the task. The shard, ``page % 16``, spreads what is written at the same time over
folders, and over the prefixes by which clouds limit the rate of requests.

An object that cannot be read counts as if it were not there, and is named in a warning, once. Keys
that are no loose object of this ledger, such as what editors and file servers leave behind, are
passed over.
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
from chunkflow_py.run.ledger.page import KINDS, Entry
from chunkflow_py.run.ledger.record import DamagedRecordError, number_of, sealed, unsealed
from chunkflow_py.store.local import of_each_file
from chunkflow_py.store.protocol import Links, together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from chunkflow_py.run.ledger.page import Kind
    from chunkflow_py.store.protocol import Store

logger = logging.getLogger(__name__)

T = TypeVar("T")
R = TypeVar("R")

SHARDS = 16
# Of records that share a content: each is read with all the others.
SHARED_LINES = 32
SHARED_CHARACTERS = 1 << 17
_NAME = re.compile(
    rf"([0-9a-f])/([0-9]{{1,15}})\.([0-9]{{1,18}})\.([0-9]{{1,9}})\.({'|'.join(KINDS)})(?:\.(.+))?"
)
_NUMBER = re.compile("[0-9]{1,15}")


class Name(NamedTuple):
    """What the key of a loose object says.

    Attributes:
        page: on which the task is.
        number: of the task.
        generation: of the task, for which the object holds.
        kind: what it says.
        attempt: that it is about; nothing for a record.
    """

    page: int
    number: int
    generation: int
    kind: Kind
    attempt: str = ""


def each(work: Callable[[T], R], items: Sequence[T], threads: int) -> list[R]:
    """Return what *work* makes of each item, several at the same time."""
    if len(items) < 2 or threads < 2:
        return [work(item) for item in items]
    with ThreadPoolExecutor(min(threads, len(items)), "ledger") as pool:
        return list(pool.map(work, items))


class LooseObjects:
    """The loose objects of one ledger.

    Args:
        store: that holds them.
        root: what their keys begin with.
        page: how many numbers a page has.
        span: numbers of tasks are 0 to *span* - 1.
        older: whether the ledger is of version 0.1.0, whose lines have no seal.

    Attributes:
        unreadable: names of records that were there and could not be read -> why.
    """

    def __init__(
        self, store: Store, root: str, page: int, span: int, *, older: bool = False
    ) -> None:
        """Keep where they are."""
        self._store, self._root = store, f"{root}loose/"
        self._page, self._span, self._older = page, span, older
        self.unreadable: dict[Name, str] = {}

    def _folder(self, page: int) -> str:
        return f"{self._root}{page % SHARDS:x}/{page}."

    def _key(self, name: Name) -> str:
        said = f"{self._folder(name.page)}{name.number}.{name.generation}.{name.kind}"
        return f"{said}.{quote(name.attempt, safe='')}" if name.attempt else said

    def listed(self, page: int | None = None, number: int | None = None) -> Iterator[Name]:
        """Yield the names of those there are: all, those of a page, or those of one task on it."""
        prefix = self._root if page is None else self._folder(page)
        return self._names(self._store.list(prefix if number is None else f"{prefix}{number}."))

    def by_page(self) -> dict[int, list[Name]]:
        """Return the names of all, by page."""
        return {page: list(self._names(keys)) for page, keys in self._keys_by_page().items()}

    def fullest(self, most_pages: int, most_left: int) -> list[tuple[int, list[Name]]]:
        """Return the names of the pages that have most, until few enough are left on the others.

        Args:
            most_pages: that are returned.
            most_left: how many names the others may have together.
        """
        pages = sorted(self._keys_by_page().items(), key=lambda item: -len(item[1]))
        left = sum(len(keys) for _, keys in pages)
        chosen = []
        for page, keys in pages[:most_pages]:
            chosen.append((page, list(self._names(keys))))
            left -= len(keys)
            if left <= most_left:
                break
        return chosen

    def _keys_by_page(self) -> dict[int, list[str]]:
        """Return the keys of all; there may be 100,000, so that little is read of each."""
        found: defaultdict[str, list[str]] = defaultdict(list)
        for key in self._store.list(self._root):
            start = key.rindex("/") + 1
            found[key[start : key.find(".", start)]].append(key)
        return {int(page): keys for page, keys in found.items() if _NUMBER.fullmatch(page)}

    def _names(self, keys: Iterable[str]) -> Iterator[Name]:
        """Yield what keys say; what is no loose object of this ledger is left out."""
        for key in keys:
            match = _NAME.fullmatch(key[len(self._root) :])
            if match is None:
                continue
            page, number, generation = map(int, match.group(2, 3, 4))
            name = Name(page, number, generation, match[5], unquote(match[6] or ""))  # type: ignore[arg-type]
            is_ours = page == number // self._page and number < self._span
            if is_ours and self._key(name) == key:
                yield name

    def read(self, names: Sequence[Name]) -> list[Entry | None]:
        """Return what they say.

        ``None`` for those that are gone, as they are on their page now, and for those that cannot
        be read, which are noted in `unreadable`.
        """
        return self._each(self._read, names)

    def _read(self, name: Name) -> Entry | None:
        data = self._store.get(self._key(name))
        if data is None:
            return None
        try:
            entry = self._parsed(name, data)
        except VolumeError as error:
            if name not in self.unreadable:
                logger.warning("%s counts as not recorded: %s", self.address(name), error)
            self.unreadable[name] = str(error)
            return None
        self.unreadable.pop(name, None)
        return entry

    def _parsed(self, name: Name, data: bytes) -> Entry:
        """Return what an object says of the task of its name.

        Raises:
            DamagedRecordError: no line of it that can be read is about that task.
        """
        damage: DamagedRecordError | None = None
        for line in data.decode(errors="replace").split("\n"):
            try:
                if number_of(line) == name.number:
                    text = unsealed(line, older=self._older)
                    return Entry(name.kind, name.generation, text)
            except DamagedRecordError as error:
                damage = damage or error
        if damage is not None and data:
            raise damage
        msg = f"none of its {len(data)} bytes is a record of task {name.number}"
        raise DamagedRecordError(msg)

    def address(self, name: Name) -> str:
        """Return the address of an object, for messages."""
        return f"{self._store.url.rstrip('/')}/{self._key(name)}"

    def mend(self, name: Name, text: str) -> None:
        """Put *text* in place of a record that is there and cannot be read."""

        def mended(old: bytes | None) -> bytes:
            if old is not None:
                try:
                    self._parsed(name, old)
                except VolumeError:
                    pass
                else:
                    return old
            return sealed(text).encode()

        if self._store.size(self._key(name)) is not None:  # or it is on its page now
            self._store.update(self._key(name), mended)

    def put(self, name: Name, text: str) -> None:
        """Put what names its attempt, so that nothing else can be there."""
        self._store.put(self._key(name), sealed(text).encode())

    def put_records(self, texts: Sequence[tuple[Name, str]]) -> list[bool]:
        """Put records, of different tasks; return for each whether it is the first of its task."""
        if removed("put-if-absent"):
            each(lambda item: self.put(*item), texts, self._store.connections)
            return [True] * len(texts)
        if len(texts) > 1 and isinstance(self._store, Links):
            said = []
            for part in _parts(texts):
                content = "\n".join(sealed(text) for _, text in part).encode()
                keys = [self._key(name) for name, _ in part]
                said += self._store.put_each_if_absent(keys, content)
            return said

        def put(item: tuple[Name, str]) -> bool:
            return self._store.put_if_absent(self._key(item[0]), sealed(item[1]).encode())

        return each(put, texts, self._store.connections)

    def delete(self, names: Sequence[Name]) -> None:
        """Remove what is on its page, or void."""
        with together(self._store) as store:
            self._each(lambda name: store.delete(self._key(name)), names)

    def _each(self, work: Callable[[Name], R], names: Sequence[Name]) -> list[R]:
        """Return what *work* makes of each, several at the same time where that is quicker."""
        threads = self._store.connections
        if self._store.is_local:
            return of_each_file(work, names, threads, "ledger")
        return each(work, names, threads)


def _parts(texts: Iterable[tuple[Name, str]]) -> Iterator[list[tuple[Name, str]]]:
    """Yield what shares a content."""
    part: list[tuple[Name, str]] = []
    characters = 0
    for item in texts:
        characters += len(item[1])
        if part and (len(part) == SHARED_LINES or characters > SHARED_CHARACTERS):
            yield part
            part, characters = [], len(item[1])
        part.append(item)
    if part:
        yield part

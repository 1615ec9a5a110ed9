"""The pages of a ledger in its store: which there are, what their headers say, how they change."""

from __future__ import annotations

import logging
import re
from typing import TYPE_CHECKING

from chunkflow_py.run.ledger.loose import Name, each
from chunkflow_py.run.ledger.page import DamagedHeaderError, Header, Page

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from chunkflow_py.run.ledger.page import Entry, Kind
    from chunkflow_py.run.ledger.record import State
    from chunkflow_py.store.protocol import Store

logger = logging.getLogger(__name__)

HEADER_BYTES = 4096  # hold the header of almost every page
AT_ONCE = 4  # whole pages in memory
_NAME = re.compile("[0-9]{1,15}")


class Headers:
    """Headers of some pages, as they were when they were read; the others are empty.

    Args:
        size: how many numbers a page has.
        by_page: the headers.
    """

    def __init__(self, size: int, by_page: dict[int, Header]) -> None:
        """Keep them."""
        self.size, self.by_page = size, by_page

    def state(self, number: int) -> State | None:
        """Return how a task ended, if its page says so."""
        page, position = divmod(number, self.size)
        return self.by_page[page].state(position) if page in self.by_page else None

    def name(self, number: int, kind: Kind = "record", attempt: str = "") -> Name:
        """Return the name under which something is loose that holds for a task."""
        page, position = divmod(number, self.size)
        generation = self.by_page[page].generation(position) if page in self.by_page else 0
        return Name(page, number, generation, kind, attempt)

    def is_void(self, loose: Name | Entry) -> bool:
        """Tell whether something loose is of a generation that has passed."""
        return self.name(loose.number).generation != loose.generation


class Pages:
    """The pages of one ledger.

    Args:
        store: that holds them.
        root: what their keys begin with.
        size: how many numbers a page has.
        span: numbers of tasks are 0 to *span* - 1.
        older: whether the ledger is of version 0.1.0.

    Attributes:
        damaged: pages that were cut or changed -> what is wrong with them.
        hints: headers as they were last seen, which may be long ago, of pages on which tasks were
            reopened: their generations are tried first, and looked up afterwards.
        at_once: how many whole pages to work on at the same time.
    """

    def __init__(
        self, store: Store, root: str, size: int, span: int, *, older: bool = False
    ) -> None:
        """Keep where they are."""
        self._store, self._root, self.size = store, f"{root}pages/", size
        self._count, self._older = -(-span // size), older
        self.damaged: dict[int, str] = {}
        self.hints = Headers(size, {})
        self.at_once = min(AT_ONCE, store.connections)

    def _key(self, page: int) -> str:
        return f"{self._root}{page}"

    def listed(self) -> set[int]:
        """Return which there are; what has another name is none."""
        names = (key[len(self._root) :] for key in self._store.list(self._root))
        # "07" is not where page 7 is.
        pages = (int(name) for name in names if _NAME.fullmatch(name) and str(int(name)) == name)
        return {page for page in pages if page < self._count}

    def headers(self, pages: Collection[int]) -> Headers:
        """Return what the headers of some pages say now; several are read at the same time."""
        wanted = sorted(pages)
        found = each(self.header, wanted, self._store.connections)
        return Headers(self.size, dict(zip(wanted, found, strict=True)))

    def header(self, page: int) -> Header:
        """Return what the header of a page says now; it takes one read of a range."""
        length = HEADER_BYTES
        while (data := self._store.get_range(self._key(page), 0, length)) is not None:
            line, separator, _ = data.partition(b"\n")
            if separator or len(data) < length:
                try:
                    header = Header.from_line(
                        line, self.size, self.address(page), older=self._older
                    )
                except DamagedHeaderError:
                    header = self.read(page).header
                self._notice(page, header)
                return header
            length *= 16
        return Header.empty(self.size)

    def read(self, page: int) -> Page:
        """Return a page."""
        return self._parsed(page, self._store.get(self._key(page)))

    def update(self, page: int, change: Callable[[Page], Page]) -> None:
        """Replace a page by what *change* makes of it, against concurrent updates."""
        new = self._store.update(
            self._key(page), lambda old: change(self._parsed(page, old)).to_bytes()
        )
        self._notice(page, self._parsed(page, new).header)

    def _parsed(self, page: int, data: bytes | None) -> Page:
        where = self.address(page)
        parsed = Page.parse(data, page * self.size, self.size, where, older=self._older)
        if parsed.damage:
            if self.damaged.get(page) != parsed.damage:
                logger.warning(
                    "%s is damaged: %s; tasks whose record on it cannot be read count as not "
                    "recorded, and chunkflow verify lists them",
                    where,
                    parsed.damage,
                )
            self.damaged[page] = parsed.damage
        else:
            self.damaged.pop(page, None)
        return parsed

    def address(self, page: int) -> str:
        """Return the address of a page, for messages."""
        return f"{self._store.url.rstrip('/')}/{self._key(page)}"

    def _notice(self, page: int, header: Header) -> None:
        if header.generations:
            self.hints.by_page[page] = header

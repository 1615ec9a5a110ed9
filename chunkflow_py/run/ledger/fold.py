"""Loose objects of a ledger are brought to their pages now and then, by those who record.

Of about `FOLD_EVERY` calls that record something, one folds the page that has most loose objects,
so that few are left however many tasks there are, and nobody has to be in charge of it.
"""

from __future__ import annotations

import logging
import random
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from chunkflow_py.errors import VolumeError
from chunkflow_py.run.ledger.loose import each

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.run.ledger.loose import LooseObjects, Name
    from chunkflow_py.run.ledger.page import Page
    from chunkflow_py.run.ledger.pages import Pages

logger = logging.getLogger(__name__)

FOLD_EVERY = 128
MOST_LOOSE = 4096  # above which more than one page is folded, up to `MOST_PAGES`
MOST_PAGES = 32
MOST_CONFLICTS = 5  # after which a page is left to those who are faster


class _BusyError(Exception):
    """Others change the page all the time."""


class _NothingToAddError(Exception):
    """Others have folded the same: at the end of a run, many do."""


class Folder:
    """Folds the pages of one ledger.

    Args:
        pages: of the ledger.
        loose: its loose objects.
        in_background: whether `by_chance` folds in a thread of its own.
    """

    def __init__(self, pages: Pages, loose: LooseObjects, *, in_background: bool) -> None:
        """Begin idle."""
        self._pages, self._loose, self._in_background = pages, loose, in_background
        self._busy = threading.Lock()

    def all(self) -> None:
        """Bring all that is loose to its page; what cannot be stays, as it is recorded anyway."""

        def fold(item: tuple[int, Sequence[Name]]) -> None:
            try:
                self._fold(*item)
            except VolumeError as error:
                logger.warning("page %d of the ledger could not be compacted: %s", item[0], error)

        each(fold, list(self._loose.by_page().items()), self._pages.at_once)

    def by_chance(self, objects: int) -> None:
        """Fold if it is this caller's turn, after it has put some loose *objects*."""
        if random.random() * FOLD_EVERY >= objects:  # noqa: S311 not a secret
            return
        if not self._busy.acquire(blocking=False):
            return
        if self._in_background:
            threading.Thread(target=self._fold_fullest, name="ledger-fold").start()
        else:
            self._fold_fullest()

    def _fold_fullest(self) -> None:
        try:
            chosen = self._loose.fullest(MOST_PAGES, MOST_LOOSE)
            each(self._fold_unless_busy, chosen, self._pages.at_once)
        except VolumeError as error:
            # All of it is recorded; only that many objects are left for another time.
            logger.warning("the ledger could not be compacted: %s", error)
        finally:
            self._busy.release()

    def _fold_unless_busy(self, item: tuple[int, Sequence[Name]]) -> None:
        page, names = item
        try:
            self._fold(page, names, MOST_CONFLICTS)
        except _BusyError:
            logger.debug("page %d of the ledger is left to others who fold it", page)

    def _fold(self, page: int, names: Sequence[Name], conflicts: int | None = None) -> None:
        # In order, as what is alike packs better.
        read = self._loose.read(order := sorted(names))
        entries = [entry for entry in read if entry is not None]
        tries = 0

        def add(old: Page) -> Page:
            nonlocal tries
            tries += 1
            if conflicts is not None and tries > conflicts:
                raise _BusyError
            new = old.added(entries)
            if len(new.body) == len(old.body) and not old.damage:
                raise _NothingToAddError
            return new

        with suppress(_NothingToAddError):
            self._pages.update(page, add)
        # What could not be read stays, so that it can be looked at, until its task is reopened.
        headers = self._pages.headers([page])
        moved = [n for n, entry in zip(order, read, strict=True) if entry or headers.is_void(n)]
        self._loose.delete(moved)

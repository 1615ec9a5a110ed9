"""The ledger of a stage: how each of its tasks ended. Completion is counted here, nowhere else.

```
record --put if absent--> loose/…/<page>.<number>.<generation>.record      one object a task
                                  |
                                 fold: now and then, by whoever records    some 100 of a page
                                  v
                          pages/<page>                                     one object, 2048 tasks
```

**The arbiter is put-if-absent of the loose object.** Of several attempts on a task one is first; it
is the task's record from then on. A fold copies loose objects to their page by `Store.update`
(compare and swap), and removes them once the page has them. What the page says wins over a loose
object. So a task that has ended has a loose record, or is on its page, or both, at every instant:

```
        put            page updated      removed
  ------|==============|=================|
   loose record is there ================|
                       |== on the page ====================================>
```

The races, each with why nothing is lost and nothing counted twice:

* *Two attempts record at once*: one put-if-absent is first. The other reads what is there, to tell
  a call that is made again after a lost reply (same attempt: it has won) from one that has lost.
* *A zombie records after the page has the task and the loose object is gone*: its put succeeds. So
  whoever has put looks at the page afterwards: if the task is there, it has lost, unless the page
  has its own attempt. Its stray object is void, as the page wins, and the next fold removes it. If
  the task is not on the page then, its object is the first, and no fold can remove it before the
  page has it.
* *Two folds of a page at once*: their updates follow each other; the second finds the tasks there.
* *A fold dies between update and removal*: both are there, the page wins, the next fold removes.
* *A reader looks while a fold moves a record*: it looks at the page, at the loose object, and, if
  it found neither, at the page again, where the record is by then. Who counts reads loose objects
  first, and skips those whose task is on the page.
* *A fold that is stopped and goes on much later*, when the task was reopened and has ended again:
  keys hold the *generation* of the task, which reopening raises, so that it removes only objects of
  its own generation. What an attempt records for a generation that has passed is put again.
* *The reply to an update is lost*: the store knows its own write; to add twice changes nothing.

Folds run in a thread of their own and hold nothing that a record waits for: one that hangs, with
its process, keeps nobody from recording.

**What cannot be read is not recorded.** A loose object or a page that was cut, emptied or changed
is named in a warning, and `unreadable` says which: its tasks count as not ended, whatever names
and headers say, and everything else goes on. Whoever records such a task puts its record in the
place of the damaged one. `missing`, `ended` and `counts` look at headers, which is enough to tell
how far a stage is; `records` reads every record, and is what `verify` believes.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from chunkflow_py.errors import GeometryError
from chunkflow_py.pipeline.stream import mapped
from chunkflow_py.run.ledger.fold import Folder
from chunkflow_py.run.ledger.loose import LooseObjects, each
from chunkflow_py.run.ledger.page import ATTEMPTS, FAILURES, STATES
from chunkflow_py.run.ledger.pages import Headers, Pages
from chunkflow_py.run.ledger.record import Attempt, Failure, Record
from chunkflow_py.run.ledger.sums import LedgerCounts, Sums

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from chunkflow_py.run.ledger.loose import Name
    from chunkflow_py.run.ledger.page import Entry, Kind
    from chunkflow_py.run.ledger.record import FailureKind, State
    from chunkflow_py.store.protocol import Store
    from chunkflow_py.tasks.plan import Plan

__all__ = ["PAGE", "Ledger", "LedgerCounts"]

PAGE = 2048


class Ledger:
    """How the tasks of one stage ended; safe to call from several threads.

    Args:
        store: of the run.
        stage: name of the stage.
        span: numbers of tasks are 0 to *span* - 1.
        page: how many numbers a page has; the same for all who ever open the ledger.
        in_background: whether to fold in a thread of its own, or inside of the calls that record.
        older: whether it was written by version 0.1.0: it can be read, not written.

    Raises (all methods):
        VolumeError: the store cannot be reached or refuses.
    """

    def __init__(
        self,
        store: Store,
        stage: str,
        span: int,
        *,
        page: int = PAGE,
        in_background: bool = True,
        older: bool = False,
    ) -> None:
        """Keep where it is; nothing is read or written."""
        self._stage, self._span = stage, span
        self._pages = Pages(store, f"ledger/{stage}/", page, span, older=older)
        self._loose = LooseObjects(store, f"ledger/{stage}/", page, span, older=older)
        self._folder = Folder(self._pages, self._loose, in_background=in_background)
        self._full: dict[int, int] = {}  # pages on which all tasks had ended, and how many

    # What there is

    def find(self, numbers: Iterable[int]) -> dict[int, State]:
        """Return how those of some tasks that have ended did."""
        waiting, found = set(numbers), {}
        headers = self._pages.headers({self._page(number) for number in waiting})
        while waiting:
            for number in list(waiting):
                if state := headers.state(number):
                    found[number] = state
                    waiting.discard(number)
            names = [headers.name(number) for number in waiting]
            absent = []
            for name, entry in zip(names, self._loose.read(names), strict=True):
                if entry is None:
                    absent.append(name)
                elif isinstance(entry.said, Record):
                    found[name.number] = entry.said.state
            # They have not ended, unless they have moved to the page since it was looked at.
            headers = self._pages.headers({name.page for name in absent})
            waiting = {n.number for n in absent if headers.state(n.number) or headers.is_void(n)}
        return found

    def missing(self, plan: Plan) -> Iterator[int]:
        """Yield the tasks of a plan that have no record, in the order of the plan."""
        loose = [name for name in self._loose.listed() if name.kind == "record"]
        entries = self._loose.read(loose)
        headers = self._pages.headers(self._pages.listed())
        ended = {entry.number for entry in entries if entry and not headers.is_void(entry)}
        for number in plan:
            if number not in ended and not headers.state(number):
                yield number

    def ended(self) -> int:
        """Return how many tasks have ended; for who asks often, as it asks for less than `counts`.

        No record is read, and no page twice on which all had ended. What is reopened there by
        another process does not show, so that who is told that all have ended has to count.
        """
        loose = [name for name in self._loose.listed() if name.kind == "record"]
        headers = self._pages.headers(self._pages.listed() - self._full.keys())
        found = {
            name.number
            for name in loose
            if name.page not in self._full
            and not headers.is_void(name)
            and not headers.state(name.number)
        }
        total = len(found) + sum(self._full.values())
        for page, header in headers.by_page.items():
            on_page = header.sums.done + header.sums.skipped + header.sums.dead
            total += on_page
            if on_page == min(self._pages.size, self._span - page * self._pages.size):
                self._full[page] = on_page
        return total

    def counts(self, now: float | None = None) -> LedgerCounts:
        """Return how many tasks have ended how, and what they took.

        Args:
            now: seconds since 1970, for the rate; by this machine's clock unless given.
        """
        names = list(self._loose.listed())
        entries = self._loose.read([n for n in names if n.kind in ("record", *FAILURES)])
        headers = self._pages.headers(self._pages.listed())
        parts = [header.sums for header in headers.by_page.values()]
        parts += [Sums.of(record) for record in _records(entries, headers)]
        parts += [Sums.of_failure(failure) for failure in _failures(entries, headers)]
        return LedgerCounts.of(parts, time.time() if now is None else now)

    def records(self, *, states: Collection[State] = STATES) -> Iterator[Record]:
        """Yield how tasks ended, in the order of their numbers, in constant memory."""
        loose = self._loose.by_page()
        # The header of a page may say less than its body: all pages are read for all records.
        some = self._pages.listed()
        if set(states) != set(STATES):
            pages = self._pages.headers(some).by_page.items()
            some = {page for page, header in pages if any(getattr(header.sums, s) for s in states)}

        def read(number: int) -> list[Record]:
            found = self._read(number, loose.get(number, ()))
            wanted = (record for record in found if record.state in states)
            return sorted(wanted, key=attrgetter("number"))

        for found in mapped(sorted(some.union(loose)), read, self._pages.at_once - 1, "ledger"):
            yield from found

    def durations(self) -> Iterator[float]:
        """Yield the seconds that operators have spent on the tasks that are done."""
        return (sum(record.seconds.values()) for record in self.records(states=["done"]))

    def page_of(self, number: int) -> int:
        """Return the page on which the record of a task is, for `records_of`."""
        return self._page(number)

    def records_of(self, page: int) -> dict[int, Record]:
        """Return the records of the tasks of a page, by their numbers."""
        return {record.number: record for record in self._read(page, self._loose.listed(page))}

    def _read(self, number: int, names: Iterable[Name]) -> list[Record]:
        entries = self._loose.read([name for name in names if name.kind == "record"])
        page = self._pages.read(number)
        headers = Headers(page.size, {number: page.header})
        return [*page.records(), *_records(entries, headers)]

    def failures(self, number: int | None = None) -> Iterator[Failure]:
        """Yield the attempts that failed: all, or those on one task."""
        if number is None:
            loose = self._loose.by_page()
            pages = self._pages.headers(self._pages.listed()).by_page.items()
            wanted = sorted({page for page, header in pages if header.sums.failures}.union(loose))
        else:
            wanted = [self._page(number)]
            loose = {wanted[0]: list(self._loose.listed(wanted[0], number))}
        for page in wanted:
            for failure in self._failed(page, loose.get(page, ())):
                if number in (None, failure.number):
                    yield failure

    def _failed(self, page: int, names: Iterable[Name]) -> Collection[Failure]:
        """Return the failures of a page, each once, be it loose, on the page, or both."""
        entries = self._loose.read([name for name in names if name.kind in FAILURES])
        headers = self._pages.headers([page])
        has_some = headers.by_page[page].sums.failures
        found = {f.attempt: f for f in self._pages.read(page).failures()} if has_some else {}
        found |= {failure.attempt: failure for failure in _failures(entries, headers)}
        return found.values()

    def attempts(self, number: int) -> list[Attempt]:
        """Return the attempts on a task that are known, each with what it has written if it ended.

        Those are the ones of which `begin` or `finish` told, and the one that is its record.
        """
        page = self._page(number)
        names = [n for n in self._loose.listed(page, number) if n.kind in ATTEMPTS]
        entries = [entry for entry in self._loose.read(names) if entry is not None]
        whole = self._pages.read(page)
        generation = whole.header.generation(number - whole.first)
        entries = [entry for entry in entries if entry.generation == generation]
        entries += whole.entries(ATTEMPTS, {number})
        found: dict[str, Attempt] = {}
        for entry in entries:
            said = entry.said
            if isinstance(said, Attempt):
                found.setdefault(said.attempt, said)
            elif isinstance(said, Record):
                found[said.attempt] = Attempt(number, said.attempt, said.profile, said)
        return list(found.values())

    def unreadable(self) -> dict[str, str]:
        """Return what of the ledger could not be read so far: addresses, and what is wrong."""
        found = {self._pages.address(page): why for page, why in self._pages.damaged.items()}
        loose = self._loose.unreadable.items()
        return found | {self._loose.address(name): why for name, why in loose}

    def unreadable_at(self, number: int) -> str:
        """Return the address of what could not be read of a task; nothing if all could be."""
        for name in self._loose.unreadable:
            if name.number == number and name.kind == "record":
                return self._loose.address(name)
        page = self._page(number)
        return self._pages.address(page) if page in self._pages.damaged else ""

    # What is told

    def record(self, records: Sequence[Record]) -> list[bool]:
        """Record how tasks ended; it is durable when this returns.

        Returns:
            For each whether it is the task's record: another attempt may have been first.

        Raises:
            GeometryError: a number is none of the stage.
        """
        texts = [record.to_json() for record in records]
        waiting = [(self._checked(record.number), i) for i, record in enumerate(records)]
        won: dict[int, bool] = {}
        while waiting:
            # One after the other, if several are of the same task.
            turn = dict(reversed(waiting))
            names = {index: self._pages.hints.name(number) for number, index in turn.items()}
            firsts = self._loose.put_records([(name, texts[i]) for i, name in names.items()])
            won |= self._judged(names, firsts, records)
            waiting = [(number, index) for number, index in waiting if index not in won]
        self._folder.by_chance(len(records))
        return [won[index] for index in range(len(records))]

    def _judged(
        self, names: dict[int, Name], firsts: list[bool], records: Sequence[Record]
    ) -> dict[int, bool]:
        """Return which records are those of their tasks; the others have to be put again.

        Args:
            names: by position in *records*, of what was put.
            firsts: for each of them, whether it was the first there.
            records: what was put.
        """
        won: dict[int, bool] = {}
        on_page: dict[int, list[int]] = defaultdict(list)
        headers = self._pages.headers({name.page for name in names.values()})
        for (index, name), is_first in zip(names.items(), firsts, strict=True):
            if headers.is_void(name):
                continue
            if headers.state(name.number):
                on_page[name.page].append(index)
            elif is_first:
                won[index] = True
            elif (entry := self._loose.read([name])[0]) is None:
                self._loose.mend(name, records[index].to_json())
            elif isinstance(entry.said, Record):
                won[index] = entry.said.attempt == records[index].attempt
        for page, indexes in on_page.items():
            numbers = {records[index].number for index in indexes}
            attempts = {r.number: r.attempt for r in self._pages.read(page).records(numbers)}
            for index in indexes:
                if (number := records[index].number) in attempts:
                    won[index] = attempts[number] == records[index].attempt
        return won

    def fail(self, failure: Failure) -> dict[FailureKind, int]:
        """Record that an attempt failed; it is durable when this returns.

        Returns:
            How many attempts on the task have failed, by kind, since it was last reopened.
        """
        name = self._put(failure.number, failure.kind, failure)
        found = self._failed(name.page, self._loose.listed(name.page, name.number))
        self._folder.by_chance(1)
        return dict(Counter(other.kind for other in found if other.number == failure.number))

    def begin(self, number: int, attempt: str, profile: str) -> None:
        """Record that an attempt is about to write, where attempts may write different bytes."""
        self._put(number, "begun", Attempt(number, attempt, profile))
        self._folder.by_chance(1)

    def withdraw(self, number: int, attempt: str) -> None:
        """Take back that an attempt has begun, unless it is on the task's page already."""
        names = self._loose.listed(self._page(number), number)
        self._loose.delete([n for n in names if n.kind == "begun" and n.attempt == attempt])

    def finish(self, record: Record) -> None:
        """Record what an attempt has written that is not the task's record."""
        self._put(record.number, "finished", record)
        self._folder.by_chance(1)

    def reopen(self, numbers: Iterable[int]) -> None:
        """Take back what is recorded of some tasks, failures included, so that they are done again.

        For repair and retry alone. An attempt that began before may still record what it wrote.
        """
        by_page: dict[int, set[int]] = defaultdict(set)
        for number in numbers:
            by_page[self._page(self._checked(number))].add(number)

        def reopen(page: int) -> None:
            self._pages.update(page, lambda old: old.without(by_page[page]))

        each(reopen, sorted(by_page), self._pages.at_once)

    def fold(self) -> None:
        """Bring all that is loose to its page: afterwards there is one object for 2048 tasks.

        What cannot be brought there is logged and stays where it is, as all of it is recorded.
        """
        self._folder.all()

    def _put(self, number: int, kind: Kind, said: Attempt | Failure | Record) -> Name:
        """Put what names its attempt, for the generation of the task that is now."""
        self._checked(number)
        while True:
            name = self._pages.hints.name(number, kind, said.attempt)
            self._loose.put(name, said.to_json())
            if not self._pages.headers([name.page]).is_void(name):
                return name

    def _checked(self, number: int) -> int:
        if not 0 <= number < self._span:
            msg = (
                f"task {number} is none of stage {self._stage}, whose tasks are numbered 0 to "
                f"{self._span - 1}; look which run it is of"
            )
            raise GeometryError(msg)
        return number

    def _page(self, number: int) -> int:
        return number // self._pages.size


def _records(entries: Iterable[Entry | None], headers: Headers) -> Iterator[Record]:
    """Yield the loose records that are those of their tasks: not void, nor on the page already."""
    for entry in entries:
        if entry is None or entry.kind != "record" or headers.is_void(entry):
            continue
        if not headers.state(entry.number) and isinstance(entry.said, Record):
            yield entry.said


def _failures(entries: Iterable[Entry | None], headers: Headers) -> Iterator[Failure]:
    """Yield the loose failures that are not void."""
    for entry in entries:
        if entry is None or headers.is_void(entry):
            continue
        if isinstance(entry.said, Failure):
            yield entry.said

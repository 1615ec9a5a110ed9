"""The ledger of a step: records how each task ended, and so determines when the step is complete.

```
record --put if absent--> journal: loose/…/<segment>.<number>.<generation>.record   one per task
                                  |
                            compaction, at random, by any process that records
                                  v
                          segment: pages/<segment>                        one per 2048 tasks
```

``loose`` and ``pages`` are the stored names of the journal's folder and of the segments' folder.

**Put-if-absent of the journal entry decides between attempts.** Of several attempts on a task, the
first that puts its entry provides the task's record. A compaction copies journal entries to their
segment with `Store.update` (compare and swap), and then deletes the entries. A segment takes
precedence over a journal entry. So at every instant, a task that has ended has a record in the
journal, in its segment, or in both:

```
        put          segment updated     deleted
  ------|==============|=================|
   the journal has it ===================|
                       |== the segment has it ===============================>
```

The possible races, and why no record is lost or counted twice:

* *Two attempts record at the same time*: one put-if-absent succeeds. The attempt whose put failed
  reads the entry. If the entry names this attempt, an earlier try of the put had succeeded, and
  only its reply was lost, so this attempt has won. If the entry names another attempt, this attempt
  has lost.
* *A zombie (an attempt whose lease has expired) puts its record after a compaction has moved the
  task's record from the journal to the segment*: the put of the zombie succeeds. So every put is
  followed by a read of the segment's header. If the segment has the task from another attempt, the
  zombie has lost. Its stray entry is ignored, because the segment takes precedence, and the next
  compaction deletes the entry. If the segment does not have the task, the zombie's entry is the
  task's record, and no compaction deletes the entry before the segment has the task.
* *Two compactions of a segment run at the same time*: one update follows the other. The second
  update finds that the segment already has the tasks.
* *A compaction dies between update and deletion*: the segment takes precedence, and the next
  compaction deletes the entry.
* *A reader runs while a compaction moves a record, or a zombie puts a record*: the reader reads the
  journal entry first and the segment second. The segment takes precedence. A compaction deletes a
  journal entry only after it has updated the segment. So if the segment does not have the task, the
  journal entry is the task's record. If there was no journal entry either, the task had no record
  when the reader looked for the entry.
* *A compaction is suspended and continues much later*, after a task was reopened and has ended
  again: keys contain the *generation* (the number of times that the task was reopened). The
  suspended compaction knows only keys of the earlier generation, so it deletes no entry of the new
  generation. After each put of a record, the worker reads the current generation in the segment's
  header. If the put used an earlier generation, the worker puts the record again.
* *An attempt is withdrawn while a compaction runs*: the journal entry that `begin` has stored
  stays in the journal until the attempt has failed or its task has ended.
* *The reply to an update is lost*: the store recognizes its own write, and adding an entry to a
  segment a second time has no effect.

Compactions run in their own thread, and recording never waits for a compaction. A compaction that
hangs does not prevent other processes from recording.

**A task whose record cannot be read counts as not ended.** A journal entry or segment that was
truncated, emptied or changed is named in a warning and in `unreadable`. The name and the header of
such an object are not trusted, but its readable lines remain usable. The next record of the task
replaces the damaged record. `missing`, `ended` and `counts` read only headers of segments.
`verify` uses `records`, which reads every record.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from operator import attrgetter
from typing import TYPE_CHECKING

from chunkflow_py.errors import GeometryError
from chunkflow_py.pipeline.stream import mapped
from chunkflow_py.run.ledger.ledger_journal import Journal, map_concurrently
from chunkflow_py.run.ledger.ledger_record import (
    ATTEMPTS,
    FAILURES,
    STATES,
    Attempt,
    FailedAttempt,
    LedgerCounts,
    Record,
    Sums,
)
from chunkflow_py.run.ledger.ledger_segments import Compactor, SegmentHeaders, SegmentStore

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from chunkflow_py.run.ledger.ledger_journal import JournalKey
    from chunkflow_py.run.ledger.ledger_record import FailureKind, Kind, LedgerEntry, State
    from chunkflow_py.store.store_protocol import Store

SEGMENT_SIZE = 2048


class Ledger:
    """The ledger of one step; safe to call from several threads.

    Args:
        store: store of the run.
        step: name of the step.
        span: number of tasks, which are numbered 0 to *span* - 1.
        segment_size: number of tasks of a segment; must not change after the first record.
        in_background: whether compactions run in a separate thread. If false, the methods that
            write to the ledger also compact it.
        older: whether version 0.1.0 of the package wrote the ledger, which is then read-only.

    Raises (all methods):
        VolumeError: the store cannot be reached or refuses access.
    """

    def __init__(
        self,
        store: Store,
        step: str,
        span: int,
        *,
        segment_size: int = SEGMENT_SIZE,
        in_background: bool = True,
        older: bool = False,
    ) -> None:
        self._step, self._span = step, span
        root = f"ledger/{step}/"
        self._segments = SegmentStore(store, root, segment_size, span, older=older)
        self._journal = Journal(store, root, segment_size, span, older=older)
        self._compactor = Compactor(self._segments, self._journal, in_background=in_background)
        self._full: dict[int, int] = {}  # segments in which all tasks had ended -> how many

    # Reading

    def find(self, numbers: Iterable[int]) -> dict[int, State]:
        """Return the state of each given task that has ended, with the task's number as key."""
        states: dict[int, State] = {}
        waiting = set(numbers)
        headers = self._segments.headers({self.segment_of(number) for number in waiting})
        while waiting:
            for number in list(waiting):
                if state := headers.state(number):
                    states[number] = state
                    waiting.discard(number)
            keys = [headers.key(number) for number in waiting]
            entries = self._journal.read(keys)
            # Read the headers again: meanwhile, a compaction may have moved records, and a zombie
            # may have put others.
            headers = self._segments.headers({key.segment for key in keys})
            waiting = {k.number for k in keys if headers.state(k.number) or headers.is_void(k)}
            for key, entry in zip(keys, entries, strict=True):
                if entry and isinstance(entry.content, Record) and key.number not in waiting:
                    states[key.number] = entry.content.state
        return states

    def missing(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the given tasks that have no record, in the given order."""
        entries = self._journal.read([key for key in self._journal.listed() if _is_record(key)])
        headers = self._segments.headers(self._segments.listed())
        ended = {entry.number for entry in entries if entry and not headers.is_void(entry)}
        for number in numbers:
            if number not in ended and not headers.state(number):
                yield number

    def ended(self) -> int:
        """Return the number of tasks that have ended, at less cost than `counts`.

        This method reads no records. A segment whose tasks had all ended at an earlier call is not
        read again. If another process has reopened some of these tasks, the number is too high.
        Call `counts` to confirm that all tasks have ended.
        """
        keys = [key for key in self._journal.listed() if _is_record(key)]
        headers = self._segments.headers(self._segments.listed() - self._full.keys())
        in_journal = {
            key.number
            for key in keys
            if key.segment not in self._full
            and not headers.is_void(key)
            and not headers.state(key.number)
        }
        total = len(in_journal) + sum(self._full.values())
        size = self._segments.size
        for segment, header in headers.by_segment.items():
            in_segment = header.sums.finished
            total += in_segment
            if in_segment == min(size, self._span - segment * size):
                self._full[segment] = in_segment
        return total

    def counts(self, now: float | None = None) -> LedgerCounts:
        """Return totals over all tasks of the step: states, failures, sizes, times and rate.

        Args:
            now: current time in seconds since 1970, from which `LedgerCounts.recent` is computed;
                ``None`` for the time of this machine's clock.
        """
        keys = list(self._journal.listed())
        entries = self._journal.read([key for key in keys if key.kind in ("record", *FAILURES)])
        headers = self._segments.headers(self._segments.listed())
        parts = [header.sums for header in headers.by_segment.values()]
        parts += [Sums.of(record) for record in _records(entries, headers)]
        parts += [Sums.of_failure(failure) for failure in _failures(entries, headers)]
        return LedgerCounts.of(parts, time.time() if now is None else now)

    def records(self, *, states: Collection[State] = STATES) -> Iterator[Record]:
        """Yield the records of tasks, ordered by the numbers of the tasks; memory use is constant.

        Args:
            states: yield only the records of tasks in these states.
        """
        journal = self._journal.by_segment()
        # A damaged header may lack tasks of the body: for all records, read all segments.
        segments = self._segments.listed()
        if set(states) != set(STATES):
            headers = self._segments.headers(segments).by_segment.items()
            segments = {
                segment
                for segment, header in headers
                if any(getattr(header.sums, state) for state in states)
            }

        def read(segment: int) -> list[Record]:
            records = self._read(segment, journal.get(segment, ()))
            wanted = (record for record in records if record.state in states)
            return sorted(wanted, key=attrgetter("number"))

        ahead = self._segments.at_once - 1
        for records in mapped(sorted(segments.union(journal)), read, ahead, "ledger"):
            yield from records

    def durations(self) -> Iterator[float]:
        """Yield the run time of each done task in seconds, summed over its operators."""
        return (sum(record.seconds.values()) for record in self.records(states=["done"]))

    def segment_of(self, number: int) -> int:
        """Return the number of the segment that contains a task; `records_of` takes this number."""
        return number // self._segments.size

    def records_of(self, segment: int) -> dict[int, Record]:
        """Return the records of the tasks of a segment, with the number of the task as key."""
        return {r.number: r for r in self._read(segment, self._journal.listed(segment))}

    def failures(self, number: int | None = None) -> Iterator[FailedAttempt]:
        """Yield all failed attempts, or only the failed attempts on task *number*."""
        if number is None:
            journal = self._journal.by_segment()
            headers = self._segments.headers(self._segments.listed()).by_segment.items()
            with_failures = {segment for segment, header in headers if header.sums.failures}
            segments = sorted(with_failures.union(journal))
        else:
            segments = [self.segment_of(number)]
            journal = {segments[0]: list(self._journal.listed(segments[0], number))}
        for segment in segments:
            for failure in self._failed(segment, journal.get(segment, ())):
                if number in (None, failure.number):
                    yield failure

    def attempts(self, number: int) -> list[Attempt]:
        """Return the known attempts on a task, each with its record if the attempt has ended.

        An attempt is known if `begin` or `finish` was called for it, or if the ledger stores the
        record of this attempt as the outcome of the task.
        """
        segment_number = self.segment_of(number)
        listed = self._journal.listed(segment_number, number)
        keys = [key for key in listed if key.kind in ATTEMPTS]
        entries = [entry for entry in self._journal.read(keys) if entry is not None]
        segment = self._segments.read(segment_number)
        generation = segment.header.generation(number - segment.first)
        entries = [entry for entry in entries if entry.generation == generation]
        entries += segment.entries(ATTEMPTS, {number})
        attempts: dict[str, Attempt] = {}
        for entry in entries:
            content = entry.content
            if isinstance(content, Attempt):
                attempts.setdefault(content.attempt, content)
            elif isinstance(content, Record):
                attempts[content.attempt] = Attempt(
                    number, content.attempt, content.profile, content
                )
        return list(attempts.values())

    def unreadable(self) -> dict[str, str]:
        """Return what is wrong with each object that cannot be read, with its address as key."""
        segments, journal = self._segments.damaged.items(), self._journal.unreadable.items()
        reasons = {self._segments.address(segment): reason for segment, reason in segments}
        return reasons | {self._journal.address(key): reason for key, reason in journal}

    def unreadable_at(self, number: int) -> str:
        """Return the address of the unreadable object that may contain the record of a task.

        Return an empty text if there is no such object.
        """
        for key in self._journal.unreadable:
            if key.number == number and key.kind == "record":
                return self._journal.address(key)
        segment = self.segment_of(number)
        return self._segments.address(segment) if segment in self._segments.damaged else ""

    # Writing

    def record(self, records: Sequence[Record]) -> list[bool]:
        """Record the outcomes of tasks; the records are durable when this method returns.

        Returns:
            For each record, whether it became the record of its task; false if another attempt on
            the task was recorded first.

        Raises:
            GeometryError: a record has a task number that does not exist in the step.
        """
        texts = [record.to_json() for record in records]
        waiting = [(self._checked(record.number), i) for i, record in enumerate(records)]
        won: dict[int, bool] = {}
        while waiting:
            # Put one record of each task at a time, as the same task may occur twice.
            batch = dict(reversed(waiting))
            keys = {index: self._segments.hints.key(number) for number, index in batch.items()}
            firsts = self._journal.put_records([(key, texts[i]) for i, key in keys.items()])
            won |= self._judged(keys, firsts, records)
            waiting = [(number, index) for number, index in waiting if index not in won]
        self._compactor.by_chance(len(records))
        return [won[index] for index in range(len(records))]

    def fail(self, failure: FailedAttempt) -> dict[FailureKind, int]:
        """Record a failed attempt; the failure is durable when this method returns.

        Returns:
            Number of failed attempts on the task since it was last reopened, with the kind of
            failure as key.
        """
        key = self._put(failure.number, failure.kind, failure)
        failures = self._failed(key.segment, self._journal.listed(key.segment, key.number))
        self._compactor.by_chance(1)
        return dict(Counter(other.kind for other in failures if other.number == failure.number))

    def begin(self, number: int, attempt: str, profile: str) -> None:
        """Record that an attempt begins."""
        self._put(number, "begun", Attempt(number, attempt, profile))
        self._compactor.by_chance(1)

    def withdraw(self, number: int, attempt: str) -> None:
        """Undo `begin` for an attempt that was released without an outcome.

        The entry that `begin` stored is deleted from the journal. No segment contains a copy of the
        entry, because a compaction copies it only after the attempt or its task has ended.
        """
        keys = self._journal.listed(self.segment_of(number), number)
        self._journal.delete([k for k in keys if k.kind == "begun" and k.attempt == attempt])

    def finish(self, record: Record) -> None:
        """Record the output of an attempt whose task already has a record from another attempt."""
        self._put(record.number, "finished", record)
        self._compactor.by_chance(1)

    def reopen(self, numbers: Iterable[int]) -> None:
        """Remove all entries of some tasks, including failures, so that the tasks run again.

        Use this method only for repair and retry. An attempt that began before this call may still
        record its output.
        """
        by_segment: dict[int, set[int]] = defaultdict(set)
        for number in numbers:
            by_segment[self.segment_of(self._checked(number))].add(number)

        def reopen(segment: int) -> None:
            self._segments.update(segment, lambda old: old.without(by_segment[segment]))

        map_concurrently(reopen, sorted(by_segment), self._segments.at_once)

    def compact(self) -> None:
        """Move the entries of the journal to their segments.

        Entries of attempts that have begun but not ended stay in the journal. If a segment cannot
        be compacted, a warning is logged, and its entries stay in the journal.
        """
        self._compactor.all()

    def _read(self, number: int, keys: Iterable[JournalKey]) -> list[Record]:
        entries = self._journal.read([key for key in keys if _is_record(key)])
        segment = self._segments.read(number)
        headers = SegmentHeaders(segment.size, {number: segment.header})
        return [*segment.records(), *_records(entries, headers)]

    def _failed(self, segment: int, keys: Iterable[JournalKey]) -> Collection[FailedAttempt]:
        entries = self._journal.read([key for key in keys if key.kind in FAILURES])
        headers = self._segments.headers([segment])
        failures: dict[str, FailedAttempt] = {}
        if headers.by_segment[segment].sums.failures:
            failures = {each.attempt: each for each in self._segments.read(segment).failures()}
        failures |= {each.attempt: each for each in _failures(entries, headers)}
        return failures.values()

    def _judged(
        self, keys: dict[int, JournalKey], firsts: list[bool], records: Sequence[Record]
    ) -> dict[int, bool]:
        won: dict[int, bool] = {}
        in_segment: dict[int, list[int]] = defaultdict(list)
        others = [key for key, is_first in zip(keys.values(), firsts, strict=True) if not is_first]
        entries = dict(zip(others, self._journal.read(others), strict=True))
        headers = self._segments.headers({key.segment for key in keys.values()})
        for (index, key), is_first in zip(keys.items(), firsts, strict=True):
            if headers.is_void(key):
                continue
            if headers.state(key.number):
                in_segment[key.segment].append(index)
            elif is_first:
                won[index] = True
            elif (entry := entries[key]) is None:
                self._journal.replace_damaged(key, records[index].to_json())
            elif isinstance(entry.content, Record):
                won[index] = entry.content.attempt == records[index].attempt
        for segment, indexes in in_segment.items():
            numbers = {records[index].number for index in indexes}
            stored = self._segments.read(segment).records(numbers)
            attempts = {record.number: record.attempt for record in stored}
            for index in indexes:
                if (number := records[index].number) in attempts:
                    won[index] = attempts[number] == records[index].attempt
        return won

    def _put(
        self, number: int, kind: Kind, content: Attempt | FailedAttempt | Record
    ) -> JournalKey:
        self._checked(number)
        while True:
            key = self._segments.hints.key(number, kind, content.attempt)
            self._journal.put(key, content.to_json())
            if not self._segments.headers([key.segment]).is_void(key):
                return key

    def _checked(self, number: int) -> int:
        if not 0 <= number < self._span:
            msg = (
                f"step {self._step} has no task {number}, because its tasks are numbered 0 to "
                f"{self._span - 1}; check that the task belongs to this run"
            )
            raise GeometryError(msg)
        return number


def _is_record(key: JournalKey) -> bool:
    return key.kind == "record"


def _records(entries: Iterable[LedgerEntry | None], headers: SegmentHeaders) -> Iterator[Record]:
    for entry in entries:
        if entry is None or entry.kind != "record" or headers.is_void(entry):
            continue
        if not headers.state(entry.number) and isinstance(entry.content, Record):
            yield entry.content


def _failures(
    entries: Iterable[LedgerEntry | None], headers: SegmentHeaders
) -> Iterator[FailedAttempt]:
    for entry in entries:
        if entry is None or headers.is_void(entry):
            continue
        if isinstance(entry.content, FailedAttempt):
            yield entry.content

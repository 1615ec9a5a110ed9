"""Track the state of every task of a step without reading the whole ledger in each update.

- Each update lists the journal, and reads the entries that are new since the last update.
- Each update reads the headers of the segments in which some tasks have not ended.
- Each update reads the headers of a few other segments, in turn. All tasks of these segments have
  ended, but the subcommands ``repair`` and ``retry`` may reopen tasks.

Compaction moves records from the journal to segments. Therefore, the journal is read before the
headers: if a record is moved between the two reads, the header contains the state of the task.
"""

from __future__ import annotations

from itertools import cycle, islice
from typing import TYPE_CHECKING

import numpy as np

from chunkflow_py.run.ledger.ledger import SEGMENT_SIZE
from chunkflow_py.run.ledger.ledger_journal import Journal
from chunkflow_py.run.ledger.ledger_record import (
    FAILURES,
    STATES,
    FailedAttempt,
    LedgerCounts,
    Record,
    Sums,
)
from chunkflow_py.run.ledger.ledger_segments import SegmentHeader, SegmentHeaders, SegmentStore

if TYPE_CHECKING:
    from collections.abc import Collection

    from numpy.typing import NDArray

    from chunkflow_py.run.ledger.ledger_journal import JournalKey
    from chunkflow_py.run.ledger.ledger_segments import Segment
    from chunkflow_py.store.store_protocol import Store

# Names of the states. A byte of the map is a position in this list; layout.json contains the list.
CODES = ("none", "missing", "done", "skipped", "failed", "running", "retry")
NONE, MISSING, DONE, SKIPPED, FAILED, RUNNING, RETRY = range(len(CODES))
_CODE_OF = dict(zip(STATES, (DONE, SKIPPED, FAILED), strict=True))
_BY_HEADER = np.array([MISSING, *(_CODE_OF[state] for state in STATES)], np.uint8)
_CLOSED_AT_ONCE = 16  # closed segments read again in each update


class TaskStates:
    """Tracks the state of every task of a step.

    Args:
        store: store of the run directory.
        stage: name of the step.
        is_task: for each number, whether the plan has a task with this number.
        segment_size: number of task numbers that a segment of the ledger covers.
        older: whether chunkflow_py 0.1.0 wrote the ledger.

    Attributes:
        codes: for each task number, the state of the task, as an index of `CODES`.
        changed: for each task number, the latest version in which the state of the task changed.
        version: number that increases with every update that changes a state.
        records: records in the journal that no segment contains yet, by task number.
        failures: failed attempts in the journal.
        segment_tries: for each task number, the number of failed attempts that its segment lists;
            0 if `TaskHistory` has not read the segment yet.
        headers: header of each segment at the last update, by the number of the segment.
    """

    def __init__(
        self,
        store: Store,
        stage: str,
        is_task: NDArray[np.bool_],
        segment_size: int = SEGMENT_SIZE,
        *,
        older: bool = False,
    ) -> None:
        """Set the state of every task to missing; `update` reads the ledger."""
        self._segments = SegmentStore(
            store, f"ledger/{stage}/", segment_size, len(is_task), older=older
        )
        self._journal = Journal(store, f"ledger/{stage}/", segment_size, len(is_task), older=older)
        self._is_task, self._size = is_task, segment_size
        self._ended = np.where(is_task, np.uint8(MISSING), np.uint8(NONE))
        self._read: dict[JournalKey, Record | FailedAttempt] = {}
        self._closed: set[int] = set()
        self._turn = cycle(range(-(-len(is_task) // segment_size) or 1))
        self._running: Collection[int] = ()
        self.codes = self._ended.copy()
        self.changed = np.zeros(len(is_task), np.uint32)
        self.version = 1
        self.records: dict[int, Record] = {}
        self.failures: list[FailedAttempt] = []
        self.segment_tries = np.zeros(len(is_task), np.uint16)
        self.headers: dict[int, SegmentHeader] = {}

    def update(self, leased: Collection[int] | None = None) -> None:
        """Update the states of all tasks from the ledger.

        Args:
            leased: numbers of the tasks whose messages are leased; these tasks are shown as
                running. If the queue cannot list leased messages (``None``), the tasks that a
                worker has marked as begun are shown as running.

        Raises:
            VolumeError: the store cannot be reached, or the ledger is damaged.
        """
        names = list(self._journal.listed())
        self._read_journal([name for name in names if name.kind in ("record", *FAILURES)])
        self._read_headers(names)
        known = SegmentHeaders(self._size, self.headers)
        held = {name: self._read[name] for name in self._read if not known.is_void(name)}
        self.records = {
            name.number: entry
            for name, entry in held.items()
            if isinstance(entry, Record) and not known.state(name.number)
        }
        self.failures = [entry for entry in held.values() if isinstance(entry, FailedAttempt)]
        begun = (name for name in names if name.kind == "begun" and not known.is_void(name))
        self._running = {name.number for name in begun} if leased is None else leased
        self.settle()

    def _read_journal(self, names: list[JournalKey]) -> None:
        new = [name for name in names if name not in self._read]
        there = set(names)
        self._read = {name: entry for name, entry in self._read.items() if name in there}
        for name, entry in zip(new, self._journal.read(new), strict=True):
            # Otherwise a compaction has moved the entry to its segment, or it is unreadable.
            if entry is not None and isinstance(entry.content, Record | FailedAttempt):
                self._read[name] = entry.content

    def _read_headers(self, names: list[JournalKey]) -> None:
        there = self._segments.listed()
        again = set(islice(self._turn, _CLOSED_AT_ONCE)) | {name.segment for name in names}
        wanted = (there - self._closed) | (there & again)
        for segment, header in self._segments.headers(wanted).by_segment.items():
            if header == self.headers.get(segment):
                continue
            self.headers[segment] = header
            tasks = self.numbers(segment)
            ended = _BY_HEADER[_two_bits(header.states, tasks.stop - tasks.start)]
            ended[~self._is_task[tasks]] = NONE
            self._ended[tasks] = ended
            self._closed.discard(segment)
            if not (ended == MISSING).any():
                self._closed.add(segment)

    def settle(self) -> None:
        """Compute the states from what `update` and `TaskHistory.read` have read."""
        codes = self._ended.copy()
        codes[(self.tries > 0) & (codes == MISSING)] = RETRY
        numbers = np.fromiter(self._running, np.int64, len(self._running))
        numbers = numbers[np.isin(codes[numbers], (MISSING, RETRY))]
        codes[numbers] = RUNNING
        for number, record in self.records.items():
            if self._is_task[number]:
                codes[number] = _CODE_OF[record.state]
        new = codes != self.codes
        if new.any():
            self.version += 1
            self.changed[new] = self.version
            self.codes = codes

    def numbers(self, segment: int) -> slice:
        """Return the range of task numbers in the segment with the number *segment*."""
        return slice(segment * self._size, min((segment + 1) * self._size, len(self._is_task)))

    @property
    def tries(self) -> NDArray[np.uint16]:
        """For each task number, the number of failed attempts that have been read."""
        tries = self.segment_tries.copy()
        numbers = [failure.number for failure in self.failures]
        np.add.at(tries, np.array(numbers, np.int64), 1)
        return tries

    def totals(self, now: float) -> LedgerCounts:
        """Return counts of tasks and sums, such as stored bytes, as of *now* (Unix time)."""
        parts = [header.sums for header in self.headers.values()]
        parts += [Sums.of(record) for record in self.records.values()]
        parts += [Sums.of_failure(failure) for failure in self.failures]
        return LedgerCounts.of(parts, now)

    def changes(self, since: int) -> tuple[bool, bytes]:
        """Return the states that have changed after version *since*, or all states.

        All states are returned if *since* is 0, or if more than a fifth of the states have changed.

        Returns:
            If the result contains all tasks: True and the code of each task (uint8). If it contains
            only the changed tasks: False and the numbers of these tasks (uint32, little-endian),
            followed by the codes of the changed tasks (uint8).
        """
        new = np.flatnonzero(self.changed > since) if since else None
        if new is None or 5 * len(new) > len(self.codes):
            return True, self.codes.tobytes()
        return False, new.astype("<u4").tobytes() + self.codes[new].tobytes()

    # For the history

    def segment(self, number: int) -> Segment:
        """Read the whole segment with the number *number*: header, records and failures."""
        return self._segments.read(number)


def _two_bits(states: bytes, count: int) -> NDArray[np.uint8]:
    """Return the first *count* two-bit numbers; the lowest bits of each byte come first."""
    bits = np.unpackbits(np.frombuffer(states, np.uint8), bitorder="little").reshape(-1, 2)
    codes: NDArray[np.uint8] = bits[:count, 0] + 2 * bits[:count, 1]
    return codes

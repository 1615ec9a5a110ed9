"""Verification of a step: comparison of the stored objects with plan, spec and records.

```
plan, spec   every task               -- no readable record --------->  "not recorded"
             metadata of the outputs  -- missing or changed --------->  "metadata"
records      one per task             -- failed permanently --------->  "failed"
             spec in the record       -- not the spec of the run ---->  "other spec"
             objects in the record    -- in no output of the step --->  "outside"
             objects of the task box  -- not in the record ---------->  "missing"
outputs      each object of a record:
               not in the store ------------------------------------->  "missing"
               other length or checksum ----------------------------->  "damaged"
               in the store, but recorded as not stored ------------->  "unexpected"
```

Each line of the drawing shows what is checked, the wrong state, and the kind of the problem that
`verify` then reports. A skipped task stores nothing, so no objects may exist in its box. In a run
on mixed devices, several attempts on one task may store different bytes. Such a task is valid if
all its objects are from one attempt. If its objects are from several attempts, the problem is a
"mixture".
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.store import open_store as open_any_store
from chunkflow_py.store.store_protocol import CHECKSUM_DIGITS, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from chunkflow_py.run.coverage import Coverage
    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.run.ledger.ledger_record import Attempt, Record
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.tasks.task_plan import Plan

DamageKind = Literal[
    "not recorded",
    "failed",
    "missing",
    "damaged",
    "unexpected",
    "mixture",
    "other spec",
    "outside",
    "metadata",
]

PARALLEL = 16
PIECE_BYTES = 16 << 20  # objects are read in pieces of this size
CACHED_CHECKS = 1 << 16  # objects whose checksums are cached, because tasks may share them


@dataclass(frozen=True, slots=True)
class Damage:
    """One problem of a step that `verify` has found.

    Attributes:
        number: number of the task; ``None`` if the problem concerns the whole step.
        box: box of the task, as text; empty if the problem concerns the whole step.
        kind: kind of the problem, such as ``missing``; see the drawing at the top of this module.
        reason: what is wrong, with the values that disagree, as text.
        url: address of the object; ``None`` if the problem does not concern a single object.
    """

    number: int | None
    box: str
    kind: DamageKind
    reason: str = ""
    url: str | None = None

    @property
    def remedy(self) -> Literal["repair", "retry --failed", "work"]:
        """The subcommand that corrects the problem."""
        if self.kind == "failed":
            return "retry --failed"
        return "work" if self.kind == "not recorded" and self.number is None else "repair"

    @property
    def can_be_repaired(self) -> bool:
        """Whether the subcommand ``chunkflow repair`` corrects the problem."""
        return self.remedy == "repair"

    def __str__(self) -> str:
        prefix = "" if self.number is None else f"{self.box}: "
        if self.url is None:
            problem: str = self.kind
        elif self.kind == "outside":
            problem = f"{self.url} is not in an output of this step"
        elif self.kind == "metadata":
            problem = f"metadata {self.url} has changed"
        else:
            problem = f"{self.url} is {self.kind}"
        return f"{prefix}{problem}{f' ({self.reason})' if self.reason else ''}"

    def to_json(self, step: str) -> dict[str, Any]:
        """Return the problem as a JSON object that includes *step*, the name of its step."""
        return {"stage": step, **asdict(self)}


def verify(
    ledger: Ledger,
    plan: Plan,
    open_store: Callable[[str], Store] = open_any_store,
    *,
    spec: str | None = None,
    coverage: Coverage | None = None,
    parallel: int = PARALLEL,
    mixed: bool = False,
) -> Iterator[Damage]:
    """Yield the problems of a step: unfinished tasks, and objects that differ from their records.

    The problems of one task are consecutive. Tasks without a record come last. Memory use is
    constant, except for one bit per task.

    Args:
        ledger: ledger of the step.
        plan: plan of the step.
        open_store: function that returns the store at the URL of a bucket or of the file system.
        spec: hash of the step, which each record must name; ``None`` accepts any hash.
        coverage: list of the objects that the records must name; ``None`` skips this check.
        parallel: number of objects to read at the same time.
        mixed: whether several attempts on one task may store different bytes.

    Raises:
        VolumeError: a store cannot be read. Its objects may still be intact.
    """
    for url, reason in coverage.invalid_documents() if coverage else ():
        yield Damage(None, "", "metadata", reason, url)
    recorded = bytearray(plan.span // 8 + 1)
    objects = _Objects(open_store, parallel)
    with objects:
        checks = _Checks(ledger, plan, spec, coverage, recorded)
        for record, mismatches in _compared(checks, objects, 4 * parallel):
            if record.state == "dead":
                yield Damage(record.number, record.box, "failed", record.reason or "")
            elif mismatches and mixed and all(each.url for each in mismatches):
                yield from _mixed_problems(checks, record, objects, mismatches)
            else:
                yield from mismatches
    for number in plan:
        if not recorded[number >> 3] >> (number & 7) & 1:
            unreadable = ledger.unreadable_at(number)
            reason = f"{unreadable} cannot be read" if unreadable else ""
            yield Damage(number, str(plan.region(number)), "not recorded", reason)


class _Checks:
    def __init__(
        self,
        ledger: Ledger,
        plan: Plan,
        spec: str | None,
        coverage: Coverage | None,
        recorded: bytearray,
    ) -> None:
        self._ledger, self._plan, self._spec = ledger, plan, spec
        self._coverage, self._recorded = coverage, recorded

    def records(self) -> Iterator[tuple[Record, list[Damage], list[Stored]]]:
        """Yield each task's record, the problems of this record, and the objects to check."""
        for record in self._ledger.records():
            number = record.number
            if number not in self._plan or self._recorded[number >> 3] >> (number & 7) & 1:
                continue
            if record.box != str(self._plan.region(number)):
                continue  # the record is of another plan, so this task has none
            self._recorded[number >> 3] |= 1 << (number & 7)
            yield record, *self._checked(record)

    def attempts(self, record: Record) -> Iterator[Attempt]:
        """Yield the attempts on the task of *record*, except the attempt that made *record*.

        Attempts that wrote objects outside of the outputs of the step are also left out.
        """
        for attempt in self._ledger.attempts(record.number):
            written = attempt.record.written if attempt.record else ()
            is_inside = self._coverage is None or all(
                self._coverage.is_output(stored.url) for stored in written
            )
            if is_inside and attempt.attempt != record.attempt:
                yield attempt

    def _checked(self, record: Record) -> tuple[list[Damage], list[Stored]]:
        # If an object was recorded twice, its last record counts.
        objects = {stored.url: stored for stored in record.written}
        if record.state == "dead":
            return [], []
        if self._spec is not None and record.spec != self._spec:
            reason = (
                f"the record was made for a step with the hash {record.spec}, but the hash of this "
                f"step is {self._spec}"
            )
            return [Damage(record.number, record.box, "other spec", reason)], []
        if self._coverage is None:
            return [], list(objects.values())
        problems = []
        for url in [url for url in objects if not self._coverage.is_output(url)]:
            problems.append(Damage(record.number, record.box, "outside", "", url))
            del objects[url]
        expected = self._coverage.expected(self._plan.region(record.number))
        absent = [url for url in expected if url not in objects]
        if record.state == "done" and absent:
            reason = (
                f"the record of the task lists only {len(expected) - len(absent)} of the "
                f"{len(expected)} objects that the task must record"
            )
            problems.append(Damage(record.number, record.box, "missing", reason, absent[0]))
        elif record.state == "skipped" and not self._coverage.skips_stored:
            objects |= {url: Stored(url) for url in absent if expected[url]}
        return problems, list(objects.values())


def _compared(
    checks: _Checks, objects: _Objects, ahead: int
) -> Iterator[tuple[Record, list[Damage]]]:
    waiting: deque[tuple[Record, list[Damage], list[tuple[Stored, Future[Stored]]]]] = deque()
    count = 0

    def next_compared() -> tuple[Record, list[Damage]]:
        record, problems, reads = waiting.popleft()
        return record, problems + _object_problems(record, reads)

    for record, problems, stored in checks.records():
        reads = objects.start_all(stored)
        waiting.append((record, problems, reads))
        count += len(reads)
        while waiting and count > ahead:
            count -= len(waiting[0][2])
            yield next_compared()
    while waiting:
        yield next_compared()


def _object_problems(
    record: Record, reads: Iterable[tuple[Stored, Future[Stored]]]
) -> list[Damage]:
    problems = []
    for stored, read in reads:
        if (mismatch := _mismatch(stored, read.result())) is not None:
            problems.append(Damage(record.number, record.box, *mismatch, stored.url))
    return problems


def _mismatch(recorded: Stored, found: Stored) -> tuple[DamageKind, str] | None:
    if recorded.size is None:
        if found.size is None:
            return None
        return "unexpected", f"nothing was recorded, but the object has {found.size} bytes"
    if found.size is None:
        return "missing", f"{recorded.size} bytes were recorded"
    if found.size != recorded.size:
        return "damaged", f"{recorded.size} bytes were recorded, but the object has {found.size}"
    if recorded.checksum is not None and found.checksum != recorded.checksum:
        reason = f"the SHA-256 begins with {found.checksum}, but {recorded.checksum} was recorded"
        return "damaged", reason
    return None


def _mixed_problems(
    checks: _Checks, record: Record, objects: _Objects, mismatches: list[Damage]
) -> Iterator[Damage]:
    by_url: dict[str, bool] = {stored.url: True for stored in record.written}
    for damage in mismatches:
        by_url[damage.url or ""] = False
    for attempt in checks.attempts(record):
        if attempt.record is None:
            continue
        problems = _object_problems(attempt.record, objects.start_all(attempt.record.written))
        if not problems:
            return
        for stored in attempt.record.written:
            matches = stored.url not in {damage.url for damage in problems}
            by_url[stored.url] = by_url.get(stored.url, False) or matches
    if all(by_url.values()):
        reason = "the objects of the task are from several attempts, which stored different bytes"
        yield Damage(record.number, record.box, "mixture", reason)
    else:
        yield from mismatches


class _Objects:
    def __init__(self, open_store: Callable[[str], Store], parallel: int) -> None:
        self._open, self._stores = open_store, dict[str, "Store"]()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(parallel, "verify")
        self._reads: OrderedDict[Stored, Future[Stored]] = OrderedDict()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def start_all(self, written: Iterable[Stored]) -> list[tuple[Stored, Future[Stored]]]:
        """Start to read objects in threads; the futures return the objects as they were read.

        If *written* contains the same object twice, only the later entry is used.
        """
        last = {stored.url: stored for stored in written}
        return [(stored, self._start(stored)) for stored in last.values()]

    def _start(self, stored: Stored) -> Future[Stored]:
        read = self._reads.pop(stored, None) or self._pool.submit(self._read, stored)
        self._reads[stored] = read
        if len(self._reads) > CACHED_CHECKS:
            self._reads.popitem(last=False)
        return read

    def _read(self, stored: Stored) -> Stored:
        root, key = split_address(stored.url)
        with self._lock:
            if root not in self._stores:
                self._stores[root] = self._open(root)
            store = self._stores[root]
        if stored.size is None or stored.checksum is None:
            return Stored(stored.url, store.size(key))
        # Read at most one byte more than recorded, which suffices to detect a larger object.
        stop, read, digest = stored.size + 1, 0, hashlib.sha256()
        for start in range(0, stop, PIECE_BYTES):
            piece = store.get_range(key, start, min(start + PIECE_BYTES, stop))
            if piece is None:
                return Stored(stored.url)
            digest.update(piece)
            read += len(piece)
            if start + PIECE_BYTES > read:
                break
        size = store.size(key) if read == stop else read
        return Stored(stored.url, size, digest.hexdigest()[:CHECKSUM_DIGITS])


def split_address(url: str) -> tuple[str, str]:
    """Split the address of an object into the URL of its store and its key in the store."""
    scheme, _, path = url.partition("://")
    if scheme == "file":
        return "file:///", path.lstrip("/")
    bucket, _, key = path.partition("/")
    return f"{scheme}://{bucket}", key

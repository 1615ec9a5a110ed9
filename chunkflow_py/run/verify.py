"""Compare what is stored with the plan, the spec and the records.

`verify` depends on three things only:

```
plan, spec   every task               -- no record that can be read -->  "not recorded"
             metadata of the outputs  -- gone or changed ------------->  "metadata"
records      one a task               -- given up -------------------->  "failed"
             spec that it names       -- another than the run's ------>  "other spec"
             objects that it names    -- in no output of the step --->  "outside"
             objects of its box       -- not in the record ----------->  "missing"
outputs      each object of a record:
               not there --------------------------------------------->  "missing"
               other length or bytes --------------------------------->  "damaged"
               there, although nothing was stored -------------------->  "unexpected"
```

A skipped task has stored nothing, so that no object may be where it would have written. Where
several kinds of devices work on one run, attempts on a task store different bytes. A task is sound
there if all its objects are those of one attempt; else it is a "mixture".
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
PIECE_BYTES = 16 << 20  # of one object in memory at once
KEPT = 1 << 16  # objects whose checksum is remembered, for tasks that share one


@dataclass(frozen=True, slots=True)
class Damage:
    """One difference between what is stored and what should be.

    Attributes:
        number: of the task; ``None`` for all tasks of the step.
        box: of the task.
        kind: what is wrong.
        reason: the values that disagree.
        url: of the object, if one is concerned.
    """

    number: int | None
    box: str
    kind: DamageKind
    reason: str = ""
    url: str | None = None

    @property
    def remedy(self) -> Literal["repair", "retry --failed", "work"]:
        """The subcommand that corrects it."""
        if self.kind == "failed":
            return "retry --failed"
        return "work" if self.kind == "not recorded" and self.number is None else "repair"

    @property
    def can_be_repaired(self) -> bool:
        """Whether `repair` corrects it."""
        return self.remedy == "repair"

    def __str__(self) -> str:
        """Return it as one line."""
        about = "" if self.number is None else f"{self.box}: "
        if self.url is None:
            what: str = self.kind
        elif self.kind == "other spec":
            what = f"{self.url} was recorded for another spec"
        elif self.kind == "outside":
            what = f"{self.url} is no output of this stage"
        elif self.kind == "metadata":
            what = f"metadata {self.url} has changed"
        else:
            what = f"{self.url} is {self.kind}"
        return f"{about}{what}{f' ({self.reason})' if self.reason else ''}"

    def to_json(self, step: str) -> dict[str, Any]:
        """Return the damage for JSON, with the name of its *step*."""
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
    """Yield what of a step is not done, or not stored as it was recorded.

    Memory does not grow with the number of tasks, but for one bit of each. What is wrong with one
    task comes together; what has no record comes last.

    Args:
        ledger: of the step.
        plan: of the step.
        open_store: URL of a bucket, or of the file system -> store.
        spec: hash of the step, which records must name; ``None`` accepts all.
        coverage: what records must name; ``None``: nobody knows.
        parallel: how many objects to read at once.
        mixed: whether attempts on one task may have stored different bytes.

    Raises:
        VolumeError: a store cannot be read, which is no damage.
    """
    for url, reason in coverage.wrong_documents() if coverage else ():
        yield Damage(None, "", "metadata", reason, url)
    recorded = bytearray(plan.span // 8 + 1)
    objects = _Objects(open_store, parallel)
    with objects:
        checks = _Checks(ledger, plan, spec, coverage, recorded)
        for record, mismatches in _compared(checks, objects, 4 * parallel):
            if record.state == "dead":
                yield Damage(record.number, record.box, "failed", record.reason or "")
            elif mismatches and mixed and all(each.url for each in mismatches):
                yield from _of_mixed(checks, record, objects, mismatches)
            else:
                yield from mismatches
    for number in plan:
        if not recorded[number >> 3] >> (number & 7) & 1:
            where = ledger.unreadable_at(number)
            reason = f"{where} cannot be read" if where else ""
            yield Damage(number, str(plan.region(number)), "not recorded", reason)


class _Checks:
    """Checks of records that need no object; notes which tasks have a record."""

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
        """Yield the records of the plan's tasks, each once.

        With what is wrong with each, and which objects are to be looked at.
        """
        for record in self._ledger.records():
            number = record.number
            if number not in self._plan or self._recorded[number >> 3] >> (number & 7) & 1:
                continue
            if record.box != str(self._plan.region(number)):
                continue  # it is of another plan: this task has none
            self._recorded[number >> 3] |= 1 << (number & 7)
            yield record, *self._checked(record)

    def attempts(self, record: Record) -> Iterator[Attempt]:
        """Yield the other attempts on a task, but for those that name what is no output."""
        for attempt in self._ledger.attempts(record.number):
            written = attempt.record.written if attempt.record else ()
            is_ours = self._coverage is None or all(
                self._coverage.is_output(stored.url) for stored in written
            )
            if is_ours and attempt.attempt != record.attempt:
                yield attempt

    def _checked(self, record: Record) -> tuple[list[Damage], list[Stored]]:
        # Of an object written twice, the last counts.
        objects = {stored.url: stored for stored in record.written}
        if record.state == "dead":
            return [], []
        if self._spec is not None and record.spec != self._spec:
            reason = f"its record is of spec {record.spec}, and the run's is {self._spec}"
            return [Damage(record.number, record.box, "other spec", reason)], []
        if self._coverage is None:
            return [], list(objects.values())
        wrong = []
        for url in [url for url in objects if not self._coverage.is_output(url)]:
            wrong.append(Damage(record.number, record.box, "outside", "", url))
            del objects[url]
        expected = self._coverage.expected(self._plan.region(record.number))
        absent = [url for url in expected if url not in objects]
        if record.state == "done" and absent:
            reason = (
                f"its record names {len(expected) - len(absent)} of the {len(expected)} objects "
                "that its box takes"
            )
            wrong.append(Damage(record.number, record.box, "missing", reason, absent[0]))
        elif record.state == "skipped" and not self._coverage.skips_stored:
            objects |= {url: Stored(url) for url in absent if expected[url]}
        return wrong, list(objects.values())


def _compared(
    checks: _Checks, objects: _Objects, ahead: int
) -> Iterator[tuple[Record, list[Damage]]]:
    """Yield the records of the plan with what is wrong with their objects, *ahead* of them."""
    waiting: deque[tuple[Record, list[Damage], list[tuple[Stored, Future[Stored]]]]] = deque()
    begun = 0

    def settled() -> tuple[Record, list[Damage]]:
        record, wrong, looks = waiting.popleft()
        return record, wrong + _settled(record, looks)

    for record, wrong, stored in checks.records():
        looks = objects.look_all(stored)
        waiting.append((record, wrong, looks))
        begun += len(looks)
        while waiting and begun > ahead:
            begun -= len(waiting[0][2])
            yield settled()
    while waiting:
        yield settled()


def _settled(record: Record, looks: Iterable[tuple[Stored, Future[Stored]]]) -> list[Damage]:
    found = []
    for stored, look in looks:
        if (wrong := _mismatch(stored, look.result())) is not None:
            found.append(Damage(record.number, record.box, *wrong, stored.url))
    return found


def _mismatch(recorded: Stored, found: Stored) -> tuple[DamageKind, str] | None:
    """Return what is wrong, and what disagrees."""
    if recorded.size is None:
        if found.size is None:
            return None
        return "unexpected", f"nothing was stored, and {found.size} bytes are there"
    if found.size is None:
        return "missing", f"{recorded.size} bytes were stored"
    if found.size != recorded.size:
        return "damaged", f"{recorded.size} bytes were stored, and {found.size} are there"
    if recorded.checksum is not None and found.checksum != recorded.checksum:
        what = "the SHA-256 of what was stored begins with"
        return "damaged", f"{what} {recorded.checksum}, of what is there with {found.checksum}"
    return None


def _of_mixed(
    checks: _Checks, record: Record, objects: _Objects, mismatches: list[Damage]
) -> Iterator[Damage]:
    """Yield what is wrong with a task whose objects are not those of its record."""
    by_url: dict[str, bool] = {stored.url: True for stored in record.written}
    for damage in mismatches:
        by_url[damage.url or ""] = False
    for attempt in checks.attempts(record):
        if attempt.record is None:
            continue
        wrong = _settled(attempt.record, objects.look_all(attempt.record.written))
        if not wrong:
            return
        for stored in attempt.record.written:
            fits = stored.url not in {damage.url for damage in wrong}
            by_url[stored.url] = by_url.get(stored.url, False) or fits
    if all(by_url.values()):
        reason = "its objects are of several attempts, which store different bytes"
        yield Damage(record.number, record.box, "mixture", reason)
    else:
        yield from mismatches


class _Objects:
    """Reads objects in threads; remembers the last ones, so that a shared one is read once."""

    def __init__(self, open_store: Callable[[str], Store], parallel: int) -> None:
        self._open, self._stores = open_store, dict[str, "Store"]()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(parallel, "verify")
        self._looks: OrderedDict[Stored, Future[Stored]] = OrderedDict()

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def look_all(self, written: Iterable[Stored]) -> list[tuple[Stored, Future[Stored]]]:
        """Begin to look at what was stored; of an object written twice, the last counts."""
        last = {stored.url: stored for stored in written}
        return [(stored, self._look(stored)) for stored in last.values()]

    def _look(self, stored: Stored) -> Future[Stored]:
        look = self._looks.pop(stored, None) or self._pool.submit(self._found, stored)
        self._looks[stored] = look
        if len(self._looks) > KEPT:
            self._looks.popitem(last=False)
        return look

    def _found(self, stored: Stored) -> Stored:
        root, key = split_address(stored.url)
        with self._lock:
            if root not in self._stores:
                self._stores[root] = self._open(root)
            store = self._stores[root]
        if stored.size is None or stored.checksum is None:
            return Stored(stored.url, store.size(key))
        # One byte more than there should be: an object that has grown is not read to its end.
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
    """Split the address of an object into the URL of its store's root and its key there."""
    scheme, _, path = url.partition("://")
    if scheme == "file":
        return "file:///", path.lstrip("/")
    bucket, _, key = path.partition("/")
    return f"{scheme}://{bucket}", key

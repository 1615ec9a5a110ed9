"""Is what was recorded still stored, just so? And what to do where it is not.

```
plan      every task  -- no record -->  "not recorded"
ledger    its record  -- dead ------->  "failed"
store     each object of a record that is done:
            not there ---------------->  "missing"
            other length or bytes ---->  "damaged"
            there, although nothing
            was stored --------------->  "unexpected"
```

Where devices of several kinds work on one run, attempts on a task store different bytes. A task is
fine there if its objects are those of one attempt, whichever; else it is a "mixture".
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict, deque
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import groupby, islice
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.store import open_store as open_any_store
from chunkflow_py.store.protocol import CHECKSUM_DIGITS, Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from chunkflow_py.queue.protocol import Queue
    from chunkflow_py.run.ledger import Ledger
    from chunkflow_py.run.record import Record
    from chunkflow_py.store.protocol import Store
    from chunkflow_py.task_plan import Plan

Kind = Literal["not recorded", "failed", "missing", "damaged", "unexpected", "mixture"]

PARALLEL = 16
PIECE_BYTES = 16 << 20  # of an object that are in memory at once
KEPT = 1 << 16  # objects whose checksum is remembered, for tasks that share one
BATCH = 1000


@dataclass(frozen=True, slots=True)
class Damage:
    """Something that is not as it should be.

    Attributes:
        number: of the task.
        box: of the task.
        kind: what is wrong.
        reason: what disagrees, with both values.
        url: of the object, if it is about one.
    """

    number: int
    box: str
    kind: Kind
    reason: str = ""
    url: str | None = None

    @property
    def can_be_repaired(self) -> bool:
        """Whether `repair` does it again; what was given up is for `retry_failed`."""
        return self.kind != "failed"

    def __str__(self) -> str:
        """Return it as one line."""
        what = self.kind if self.url is None else f"{self.url} is {self.kind}"
        return f"{self.box}: {what}{f' ({self.reason})' if self.reason else ''}"

    def to_json(self, stage: str) -> dict[str, Any]:
        """Return what can be said of it in JSON, with the *stage* whose task it is."""
        return {"stage": stage, **asdict(self)}


def verify(
    ledger: Ledger,
    plan: Plan,
    open_store: Callable[[str], Store] = open_any_store,
    *,
    parallel: int = PARALLEL,
    mixed: bool = False,
) -> Iterator[Damage]:
    """Yield what of a stage is not done, or not stored as it was recorded.

    Memory does not grow with the number of tasks, but for one bit or two of each. What is wrong
    with one task comes together.

    Args:
        ledger: of the stage.
        plan: of the stage.
        open_store: URL of a bucket, or of the file system -> store.
        parallel: how many objects to read at once.
        mixed: whether attempts on one task may have stored different bytes.

    Raises:
        VolumeError: a store cannot be read, which is no damage.
    """
    for number in ledger.missing(plan):
        yield Damage(number, str(plan.region(number)), "not recorded")
    objects = _Objects(open_store, parallel)
    with objects:
        for record, mismatches in _compared(ledger, plan, objects, 4 * parallel):
            if record.state == "dead":
                yield Damage(record.number, record.box, "failed", record.reason or "")
            elif mismatches and mixed:
                yield from _of_mixed(ledger, record, objects, mismatches)
            else:
                yield from mismatches


def _compared(
    ledger: Ledger, plan: Plan, objects: _Objects, ahead: int
) -> Iterator[tuple[Record, list[Damage]]]:
    """Yield the records of the plan with what is wrong with their objects, *ahead* of them."""
    waiting: deque[tuple[Record, list[tuple[Stored, Future[Stored]]]]] = deque()
    begun = 0
    records = (record for record in ledger.records() if record.number in plan)
    for record in records:
        looks = objects.look_all(record)
        waiting.append((record, looks))
        begun += len(looks)
        while waiting and begun > ahead:
            begun -= len(waiting[0][1])
            yield _settled(*waiting.popleft())
    while waiting:
        yield _settled(*waiting.popleft())


def _settled(
    record: Record, looks: Iterable[tuple[Stored, Future[Stored]]]
) -> tuple[Record, list[Damage]]:
    found = []
    for stored, look in looks:
        if (wrong := _mismatch(stored, look.result())) is not None:
            found.append(Damage(record.number, record.box, *wrong, stored.url))
    return record, found


def _mismatch(recorded: Stored, found: Stored) -> tuple[Kind, str] | None:
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
    ledger: Ledger, record: Record, objects: _Objects, mismatches: list[Damage]
) -> Iterator[Damage]:
    """Yield what is wrong with a task whose objects are not those of its record."""
    by_url: dict[str, bool] = {stored.url: True for stored in record.written}
    for damage in mismatches:
        by_url[damage.url or ""] = False
    for attempt in ledger.attempts(record.number):
        if attempt.record is None or attempt.attempt == record.attempt:
            continue
        _, wrong = _settled(attempt.record, objects.look_all(attempt.record))
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

    def look_all(self, record: Record) -> list[tuple[Stored, Future[Stored]]]:
        """Begin to look at the objects of a record; of one written twice, the last counts."""
        last = {stored.url: stored for stored in record.written}
        return [(stored, self._look(stored)) for stored in last.values()]

    def _look(self, stored: Stored) -> Future[Stored]:
        look = self._looks.pop(stored, None) or self._pool.submit(self._found, stored)
        self._looks[stored] = look
        if len(self._looks) > KEPT:
            self._looks.popitem(last=False)
        return look

    def _found(self, stored: Stored) -> Stored:
        root, key = _place(stored.url)
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


def _place(url: str) -> tuple[str, str]:
    """Return the URL of the bucket, or of the root of the file system, and the key below it."""
    scheme, _, path = url.partition("://")
    if scheme == "file":
        return "file:///", path.lstrip("/")
    bucket, _, key = path.partition("/")
    return f"{scheme}://{bucket}", key


def repair(
    ledger: Ledger,
    plan: Plan,
    queue: Queue,
    damages: Iterable[Damage],
    body_of: Callable[[int], str],
) -> int:
    """Have the tasks done again of which something is missing or damaged; return how many.

    Their records are taken back before their messages are sent. Who dies in between leaves them
    without a record, which the next `verify` finds. What was given up is left as it is.

    Args:
        ledger: of the stage.
        plan: of the stage.
        queue: of the run.
        damages: what `verify` yields.
        body_of: number of a task -> text of its message.
    """
    wrong = (each for each in damages if each.can_be_repaired and each.number in plan)
    kinds = ((number, next(group).kind) for number, group in groupby(wrong, lambda d: d.number))
    return _done_again(ledger, queue, kinds, body_of)


def retry_failed(ledger: Ledger, plan: Plan, queue: Queue, body_of: Callable[[int], str]) -> int:
    """Have the tasks done again that were given up, as if they had never failed; return how many.

    Args:
        ledger: of the stage.
        plan: of the stage.
        queue: of the run.
        body_of: number of a task -> text of its message.
    """
    dead = (record.number for record in ledger.records(states={"dead"}) if record.number in plan)
    return _done_again(ledger, queue, ((number, "failed") for number in dead), body_of)


def _done_again(
    ledger: Ledger,
    queue: Queue,
    tasks: Iterator[tuple[int, str]],
    body_of: Callable[[int], str],
) -> int:
    sent = 0
    while batch := dict(islice(tasks, BATCH)):
        ledger.reopen(number for number, kind in batch.items() if kind != "not recorded")
        sent += queue.send(map(body_of, batch))
    return sent

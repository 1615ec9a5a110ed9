"""The exchange of a run: a store through which tasks pass parts of patches to each other.

```
<exchange>/<step>-<hash>/<consumer>/<label>-<producer>
```

A patch at a task boundary lies partly in the box of task <producer> and partly in the box of task
<consumer>. Task <producer> runs the network on the patch, and stores the part of the output that
lies in the box of <consumer>. Task <consumer> then need not compute the patch; see
`chunkflow_py.inference.patch_exchange`. One object contains all parts that <producer> stored for
<consumer>. The <label> is the first part of a hash of network, weights and compute profile.

The exchange is the folder ``exchange`` in the run directory, or a folder at another URL, for
example on a disk that all workers share. The file ``exchange.json`` in the run directory contains
the `ExchangeSettings`.

The exchange only saves time. Workers compute all parts that are missing. If the store fails, the
exchange ends, but no task fails. When a task is recorded, the objects for this task are removed.
When the step is complete, all remaining objects are removed.

Everybody who can write to the exchange can change the output of the run, so the exchange needs the
same protection as the output. Everybody who can write to the run directory can choose the URL of
the exchange. Therefore, chunkflow writes, counts and removes only objects whose names have the form
above, so that no other files at this URL are lost.
"""

from __future__ import annotations

import json
import logging
import math
import re
import shutil
from collections import deque
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Literal, get_args

from chunkflow_py.core import strict_json
from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.errors import ChunkflowError, OptionError
from chunkflow_py.inference.shared_patches import MOST_WAITING_BYTES
from chunkflow_py.queue.daemon_threads import DaemonThreads
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.store import open_store
from chunkflow_py.store.local_files import TEMPORARY_PREFIX, write_whole
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.store.store_protocol import sizes_of
from chunkflow_py.store.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
    from concurrent.futures import Future

    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

Mode = Literal["auto", "on", "off"]
MODES: tuple[Mode, ...] = get_args(Mode)
FOLDER = "exchange"  # of the run directory

_MOST_LISTED = 1024  # objects of one task that are listed; a real task has about 6
_MOST_COUNTED = 1_000_000  # objects that are counted
_COUNT_S = 60.0  # between two counts of the stored bytes
_COUNT_SHARE = 20  # a count that takes 1 s is not repeated for 20 s
_REMOVE_S = 60.0  # longest time to remove all remaining objects
_MOST_REMOVING = 8  # simultaneous removals
_MOST_WAITING = 1024  # removals that wait for others
_CLOSE_S = 2.0  # longest time for which a worker that ends waits for writes or removals
_LONGEST_URL = 4096  # characters
_CONSUMER = re.compile(r"[0-9]{1,18}")
_PRODUCER = re.compile(r"[0-9a-f]{8}-[0-9]{1,18}")


@dataclass(frozen=True)
class ExchangeSettings:
    """Whether and where the tasks of a run exchange patches.

    Attributes:
        mode: ``on``: tasks exchange patches. ``off``: tasks exchange no patches. ``auto``: a worker
            process stops exchanging patches if the exchange takes longer than computing the
            patches.
        url: URL of the exchange; empty for the folder ``exchange`` in the run directory.
        limit: limit of the size of the exchange of one step, in bytes. ``None`` means half of the
            free space on a disk, and no limit in a bucket.
    """

    mode: Mode = "off"
    url: str = ""
    limit: int | None = None

    @classmethod
    def of(cls, text: str, limit: int | None = None) -> ExchangeSettings:
        """Return the settings for the value *text* of the option ``--exchange``.

        Raises:
            OptionError: the value is neither a mode nor a URL, or the URL has an unknown scheme.
        """
        if text in MODES:
            return cls(text, "", limit)
        if "/" not in text:
            msg = (
                f"--exchange {text} is not auto, on, off or a URL; to exchange patches in "
                f"the folder {text}, write --exchange ./{text}"
            )
            raise OptionError(msg)
        return cls("on", open_store(text).url, limit)

    def to_json(self) -> bytes:
        """Return the content of the file ``exchange.json``."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> ExchangeSettings:
        """Parse the content that `to_json` returns.

        Raises:
            ValueError: the content does not have this form.
        """
        values = strict_json.loads(content)
        names = ("mode", "url", "limit")
        if not isinstance(values, dict) or tuple(values) != names:
            msg = (
                f"the file must be a JSON object with the fields {', '.join(names)}, in this order"
            )
            raise ValueError(msg)
        mode, url, limit = (values[name] for name in names)
        good = mode in MODES and isinstance(url, str) and len(url) <= _LONGEST_URL
        good = good and url.isprintable() and (not url or "://" in url)
        if not (good and (limit is None or (type(limit) is int and limit >= 0))):
            msg = (
                f"mode {str(mode)[:80]!r}, url {str(url)[:80]!r} and limit {str(limit)[:80]!r} are "
                "not valid settings of an exchange"
            )
            raise ValueError(msg)
        return cls(mode, url, limit)


@dataclass(frozen=True)
class ExchangeAddress:
    """The address of the exchange of one step, as sent to worker processes.

    Attributes:
        run: URL of the run directory.
        settings: settings of the exchange of the run.
        step: name of the step.
        identity: hash of the step.
    """

    run: str
    settings: ExchangeSettings
    step: str
    identity: str

    @property
    def url(self) -> str:
        """URL of the folder or prefix that contains the objects of the step."""
        base = self.settings.url or f"{self.run.rstrip('/')}/{FOLDER}"
        return f"{base.rstrip('/')}/{self.step}-{self.identity[:16]}"

    def parts(self, plan: Plan) -> RunParts | None:
        """Open the exchange in a worker process; return ``None`` if this fails.

        Args:
            plan: plan of the step.
        """
        try:
            ledger = Ledger(open_store(self.run), self.step, plan.span)
            return RunParts(open_store(self.url), plan, ledger, self.identity, self.settings)
        except Exception as error:  # noqa: BLE001  (the exchange only saves time)
            logger.warning("tasks of this process exchange no patches: %s", error)
            return None


class RunParts:
    """Stores and reads the parts of patches that the tasks of a step exchange.

    The class implements `chunkflow_py.inference.patch_exchange.PartStore`.

    Args:
        store: store of the objects that tasks of the step exchange.
        plan: tasks of the step; parts are stored only for these tasks.
        ledger: ledger of the step; no parts are stored for tasks that are recorded there.
        identity: hash of the step.
        settings: settings of the exchange.
    """

    most_bytes = MOST_WAITING_BYTES

    def __init__(
        self, store: Store, plan: Plan, ledger: Ledger, identity: str, settings: ExchangeSettings
    ) -> None:
        self.identity = identity
        self.connections = store.connections
        self.must_save_time = settings.mode == "auto"
        self.writes = Transfers()
        self._store = store
        self._folder = store.url.removeprefix("file://") if store.is_local else None
        self._plan, self._ledger = plan, ledger
        self._room = _Room(store, self._folder, settings.limit)
        self._writers = ThreadPoolExecutor(2, "parts-out")
        self._writes: deque[Future[None]] = deque()
        self._pending = 0
        self._waiting: dict[tuple[str, str], Callable[[], bytes]] = {}  # not written yet
        self._lock = Lock()
        self._has_failed = False

    def producers(self, consumer: str) -> Collection[str]:
        """Return the names (``<label>-<producer>``) of the objects stored for task *consumer*.

        Raises:
            VolumeError: the store cannot be reached.
        """
        with self._lock:
            waiting = [producer for name, producer in self._waiting if name == consumer]
        keys = islice(self._store.list(f"{consumer}/"), _MOST_LISTED)
        listed = {key.rpartition("/")[2] for key in keys}
        return [name for name in listed.union(waiting) if _PRODUCER.fullmatch(name)]

    def read(self, consumer: str, producer: str, most: int) -> bytes | None:
        """Return the object that task *producer* has stored for task *consumer*.

        Return ``None`` if the object does not exist.

        Raises:
            VolumeError: the store cannot be reached, or the object is larger than the limit *most*,
                in bytes.
        """
        with self._lock:
            content = self._waiting.get((consumer, producer))
        if content is not None:  # the previous task of this process stored it
            return content()
        return self._store.get(f"{consumer}/{producer}", most)

    def write(self, consumer: str, producer: str, content: Callable[[], bytes], size: int) -> None:
        """Let a thread store an object; return at once.

        After a write has failed, no more objects are stored.

        Args:
            consumer: name of the task that may use the object.
            producer: name under which the object is stored, ``<label>-<producer>``.
            content: function that returns the bytes of the object; called in any thread.
            size: approximate size of the object, in bytes.
        """
        with self._lock:
            if self._has_failed or self._pending + size > MOST_WAITING_BYTES:
                return
            self._pending += size
            self._waiting[consumer, producer] = content
            while self._writes and self._writes[0].done():
                self._writes.popleft()
        self._writes.append(self._writers.submit(self._write, consumer, producer, content, size))

    def _write(self, consumer: str, producer: str, content: Callable[[], bytes], size: int) -> None:
        try:
            if not self._has_failed and self._room.take(size):
                with self.writes.one():
                    data = content()
                    self._put(f"{consumer}/{producer}", data)
                self.writes.add(len(data))
        except Exception as error:  # noqa: BLE001  (no failure here may concern a task)
            with self._lock:
                has_failed, self._has_failed = self._has_failed, True
            if not has_failed:
                logger.warning(
                    "this process stores no further parts of patches for other tasks: %s", error
                )
        finally:
            with self._lock:
                self._pending -= size
                self._waiting.pop((consumer, producer), None)

    def _put(self, key: str, data: bytes) -> None:
        if self._folder is None:
            self._store.put(key, data)
            return
        # Parts need not survive a power cut, and most are removed before they reach the disk.
        path = f"{self._folder}/{key}"
        try:
            write_whole(path, data, fsync=False)
        except ChunkflowError:  # the folder may have been removed as empty meanwhile
            write_whole(path, data, fsync=False)

    def unfinished(self, consumers: Sequence[str]) -> Collection[str]:
        """Return the tasks in *consumers* that belong to the step and have no record yet.

        Raises:
            VolumeError: the ledger cannot be read.
        """
        planned = [int(name) for name in consumers if int(name) in self._plan]
        recorded = self._ledger.find(planned)
        return [str(number) for number in planned if number not in recorded]

    def done(self, consumer: str) -> None:
        """Do nothing: `PartRemover` removes the objects when the task has been recorded."""

    def close(self) -> None:
        """Wait up to `_CLOSE_S` seconds for pending writes; do not write the remaining objects."""
        wait(self._writes, _CLOSE_S)
        self._writers.shutdown(cancel_futures=True)


class _Room:
    """An estimate of the space for further objects of a step, made by one process.

    From time to time, the process counts all objects. Until the next count, it adds only the
    objects that it stores itself. Objects of other processes are missing from this sum, so the
    exchange may become larger than *limit*.

    On a disk, the exchange takes at most half of the space that would be free if the exchange were
    empty. The other half stays free for outputs, queue and ledger, which may be on the same disk.

    Args:
        store: store of the objects.
        folder: folder of the store; ``None`` if the store is not on a disk.
        limit: limit in bytes; ``None`` if only the limit for disks applies.
    """

    def __init__(self, store: Store, folder: str | None, limit: int | None) -> None:
        self._store, self._folder, self._limit = store, folder, limit
        self._stored = 0
        self._count_at = 0.0
        self._least_free = 0.0
        self._is_full = False
        self._lock = Lock()

    def take(self, size: int) -> bool:
        """Return whether an object of *size* bytes may be stored; if so, count the object.

        This method may list all objects in the store.
        """
        if self._limit is None and self._folder is None:
            return True
        with self._lock:
            if monotonic() >= self._count_at:
                self._count()
            reason = ""
            if self._limit is not None and self._stored + size > self._limit:
                used, most = describe_bytes(self._stored), describe_bytes(self._limit)
                reason = f"the parts use {used} of at most {most}, the limit of --exchange-limit"
            elif self._free() - size < self._least_free:
                free = describe_bytes(int(self._least_free))
                reason = (
                    f"{free} of the disk must stay free: half of the space that would be free if "
                    "the exchange were empty"
                )
            self._stored += 0 if reason else size
            if reason and not self._is_full:
                self._is_full = True
                logger.info("parts of patches are not stored at present: %s", reason)
        return not reason

    def _free(self) -> float:
        """Return the number of free bytes of the disk; infinity if the store is not on a disk."""
        if self._folder is None:
            return math.inf
        place = Path(self._folder)
        while not place.exists() and place != place.parent:
            place = place.parent
        return shutil.disk_usage(place).free

    def _count(self) -> None:
        start = monotonic()
        with suppress(ChunkflowError, OSError):  # then the write fails, too, and says why
            self._stored = amount_in(self._store).bytes
        free = self._free()
        self._least_free = 0.0 if free == math.inf else (self._stored + free) / 2
        now = monotonic()
        self._count_at = now + max(_COUNT_S, _COUNT_SHARE * (now - start))


@dataclass(frozen=True)
class ExchangeAmount:
    """The number and the total size of objects in an exchange.

    Attributes:
        objects: number of objects.
        bytes: total size in bytes.
    """

    objects: int = 0
    bytes: int = 0

    def __add__(self, other: ExchangeAmount) -> ExchangeAmount:
        return ExchangeAmount(self.objects + other.objects, self.bytes + other.bytes)


def amount_in(store: Store) -> ExchangeAmount:
    """Return the number and total size of the objects in the exchange of a step.

    At most a million objects are counted.

    Raises:
        VolumeError: the store cannot be reached.
    """
    count = size = 0
    for key, length in islice(sizes_of(store), _MOST_COUNTED):
        if _is_object(key):
            count, size = count + 1, size + length
    return ExchangeAmount(count, size)


def _is_object(key: str) -> bool:
    consumer, _, producer = key.partition("/")
    return bool(_CONSUMER.fullmatch(consumer) and _PRODUCER.fullmatch(producer))


class PartRemover:
    """Removes the objects that other tasks stored for a task, as soon as the task is recorded.

    A daemon thread removes the objects. Nothing waits for a removal, because removals only save
    space. If a removal fails, or if too many removals are pending, objects remain until the step is
    complete.

    Args:
        address: exchange of the step.
    """

    def __init__(self, address: ExchangeAddress) -> None:
        self._address = address
        self._threads = DaemonThreads(_MOST_REMOVING, "parts-remover")
        self._removals: deque[Future[None]] = deque()

    def recorded(self, number: int) -> None:
        """Let a thread remove the objects for task *number*; return at once."""
        while self._removals and self._removals[0].done():
            self._removals.popleft()
        if len(self._removals) < _MOST_WAITING:
            with suppress(RuntimeError):  # no further thread can be started
                self._removals.append(self._threads.submit(self._remove, number))

    def close(self) -> None:
        """Wait up to `_CLOSE_S` seconds for pending removals; cancel all removals that remain."""
        wait(self._removals, _CLOSE_S)
        for removal in self._removals:
            removal.cancel()
        self._threads.close()

    @cached_property
    def _store(self) -> Store:
        return open_store(self._address.url)

    def _remove(self, number: int) -> None:
        try:
            store = self._store
            if store.is_local:
                _remove_files(_folder_of(store), str(number))
                return
            for key in islice(store.list(f"{number}/"), _MOST_LISTED):
                if _is_object(key):
                    store.delete(key)
        except Exception as error:  # noqa: BLE001  (no failure here may concern a worker)
            logger.debug("cannot remove parts of patches: %s", error)


def _folder_of(store: Store) -> Path:
    return Path(store.url.removeprefix("file://"))


def _remove_files(root: Path, consumer: str) -> None:
    """Remove the files and the folder of a task, or of all tasks if *consumer* is empty.

    The removal need not be durable, so this function is faster than `Store.delete`. If *consumer*
    is empty, temporary files of killed writers are removed, too. All other files stay.

    Raises:
        OSError: a folder cannot be listed.
    """
    end = monotonic() + _REMOVE_S
    folders = [root / consumer] if consumer else [each for each in root.iterdir() if each.is_dir()]
    for folder in folders:
        if not _CONSUMER.fullmatch(folder.name) or folder.is_symlink():
            continue
        with suppress(OSError):  # another worker may have removed the folder or the file
            for path in folder.iterdir():
                is_left = not consumer and path.name.startswith(TEMPORARY_PREFIX)
                if (is_left or _PRODUCER.fullmatch(path.name)) and monotonic() < end:
                    path.unlink(missing_ok=True)
            folder.rmdir()
    if not consumer:
        with suppress(OSError):
            root.rmdir()


def remove_parts(address: ExchangeAddress) -> None:
    """Remove all objects from the exchange of a step, in at most a minute.

    If objects may remain, the reason is logged.
    """
    end = monotonic() + _REMOVE_S
    try:
        store = open_store(address.url)
        if store.is_local:
            folder = _folder_of(store)
            if folder.is_dir():
                _remove_files(folder, "")
            if not address.settings.url:
                with suppress(OSError):  # not empty, because of another step
                    folder.parent.rmdir()
            return
        threads = DaemonThreads(_MOST_REMOVING, "parts-remover")
        removals: deque[Future[None]] = deque()
        try:
            for key in store.list(""):
                if _is_object(key):
                    removals.append(threads.submit(store.delete, key))
                while len(removals) >= _MOST_WAITING or (removals and removals[0].done()):
                    removals.popleft().result(max(0.0, end - monotonic()))
                if monotonic() > end:
                    raise TimeoutError
            while removals:
                removals.popleft().result(max(0.0, end - monotonic()))
        finally:
            for removal in removals:
                removal.cancel()
            threads.close()
    except TimeoutError:
        logger.info(
            "parts of patches remain in %s, because their removal takes more than %.0f s; these "
            "parts are not needed any more",
            without_secrets(address.url),
            _REMOVE_S,
        )
    except Exception as error:  # noqa: BLE001  (no failure here may concern a worker)
        logger.info(
            "parts of patches may remain in %s, although they are not needed any more: %s",
            without_secrets(address.url),
            error,
        )

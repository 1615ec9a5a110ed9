"""Records of workers: version, container image and machine, and why each worker stopped.

```
<run>/workers/<id>/started.json          stored before the first task of the worker
<run>/workers/<id>/stopped-<cause>.json  stored when the worker is asked to stop, or ends
```

The name of every attempt begins with the id of its worker. So the record of a task leads to the
records of the worker, even if two workers have the same name. If ``stopped-<cause>.json`` is
missing, the worker is still working or was lost. The cause is part of the key, so that listing the
keys is enough to count the workers.

No task depends on these records: they only tell people what happened. A worker that cannot store
its records continues. Every worker can write the records and the ledger, so a malicious worker can
forge both.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
import platform
import re
import secrets
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Literal, NamedTuple

from chunkflow_py.errors import ChunkflowError
from chunkflow_py.run.ledger.ledger_record import CAUSES, FailureCause
from chunkflow_py.run.submission_record import LONGEST_RECORD, known_fields, show_safely, user_name
from chunkflow_py.store.store_address import public_line

if TYPE_CHECKING:
    from collections.abc import Iterable

    from chunkflow_py.store.store_protocol import Store

logger = logging.getLogger(__name__)

# Why a worker has ended: no task was left for it, a limit of its options, or a cause of failures.
WorkerEnd = Literal["complete", "limit"] | FailureCause
ENDS: tuple[WorkerEnd, ...] = ("complete", "limit", *CAUSES)
FLUSH_S = 5.0  # longest wait for a record that is being stored when the worker ends

_FOLDER = "workers/"
_STARTED = "started.json"
_STOPPED = re.compile(r"stopped-([a-z-]+)\.json")
_ID = re.compile(r"([0-9a-f]{12})-")
_READERS = 16  # records that are read at the same time


@dataclass(frozen=True)
class WorkerStart:
    """The record of the start of a worker; an attribute that is unknown is an empty text.

    Attributes:
        id: unique id of the worker, 12 hexadecimal digits.
        worker: name of the worker; several workers may have the same name.
        when: time of the start, in seconds since 1970 by the worker's clock.
        version: version of chunkflow_py.
        python: version of Python.
        torch: version of PyTorch.
        image: container image, from the environment variable ``CHUNKFLOW_IMAGE``.
        host: name of the host, or of the container.
        instance_type: type of the machine in its cloud, from ``CHUNKFLOW_INSTANCE_TYPE`` or the
            metadata service of the cloud.
        zone: zone of the machine, from ``CHUNKFLOW_ZONE`` or the metadata service of the cloud.
        user: name of the user.
        device: device that the network runs on.
    """

    id: str
    worker: str
    when: float = 0.0
    version: str = ""
    python: str = ""
    torch: str = ""
    image: str = ""
    host: str = ""
    instance_type: str = ""
    zone: str = ""
    user: str = ""
    device: str = ""

    def __post_init__(self) -> None:
        """Make all texts single lines that are safe to show."""
        show_safely(self)

    @classmethod
    def here(cls, worker: str) -> WorkerStart:
        """Return the record of a worker that starts in this process, with a new id."""
        return cls(
            secrets.token_hex(6),
            worker,
            time.time(),
            version("chunkflow_py"),
            platform.python_version(),
            _version_of("torch"),
            os.environ.get("CHUNKFLOW_IMAGE", ""),
            socket.gethostname(),
            os.environ.get("CHUNKFLOW_INSTANCE_TYPE", ""),
            os.environ.get("CHUNKFLOW_ZONE", ""),
            user_name(),
        )

    def to_json(self) -> bytes:
        """Return the record as JSON."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def from_json(cls, content: bytes) -> WorkerStart:
        """Parse a record; fields that this version does not know are ignored.

        Raises:
            ValueError: *content* is not the record of the start of a worker.
        """
        known = known_fields(content, cls)
        if not {"id", "worker"} <= known.keys():
            msg = "the record of a worker has no id or no name"
            raise ValueError(msg)
        return cls(**known)


def _version_of(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


# --- writing --------------------------------------------------------------------------------------


class WorkerRegistration:
    """Stores the records of one worker; if the store fails, a warning is logged.

    The methods can be called in any thread. `learned` and `stopping` return at once.

    Args:
        store: store of the run directory.
        start: record of the start of the worker.

    Attributes:
        start: record of the start of the worker, with all values that are known by now.
    """

    def __init__(self, store: Store, start: WorkerStart) -> None:
        self.start = start
        self._store = store
        self._attempts = itertools.count()
        self._changing = threading.Lock()
        self._writing = threading.Lock()
        self._has_stopped = False
        self._threads: list[threading.Thread] = []

    def attempts(self) -> str:
        """Return a prefix for names of attempts of this worker; each call returns a new prefix."""
        return f"{self.start.id}-{next(self._attempts)}"

    def begin(self) -> None:
        """Store the record of the start; return when the record is stored."""
        self._put_start()

    def learned(self, **facts: str) -> None:
        """Add values that were unknown at the start; values that are already known do not change.

        Args:
            facts: values of attributes of `WorkerStart`, with the name of the attribute as key.
        """
        with self._changing:
            new = {k: v for k, v in facts.items() if v and not getattr(self.start, k)}
            if not new:
                return
            self.start = replace(self.start, **new)  # type: ignore[arg-type]
        self._later(self._put_start)

    def learned_machine(self, instance_type: str, zone: str) -> None:
        """Add the type and the zone of the machine, as the cloud calls them."""
        self.learned(instance_type=instance_type, zone=zone)

    def stopping(self, why: WorkerEnd, reason: str) -> None:
        """Store why the worker stops; only the first call counts."""
        if self._is_first_stop():
            self._later(self._put_stop, why, reason)

    def end(self, why: WorkerEnd, reason: str) -> None:
        """Store why the worker has ended, and wait until all records are stored.

        The reason is not stored again if `stopping` has stored one.
        """
        if self._is_first_stop():
            self._put_stop(why, reason)
        deadline = time.monotonic() + FLUSH_S
        for thread in list(self._threads):
            thread.join(max(0.0, deadline - time.monotonic()))

    def _is_first_stop(self) -> bool:
        with self._changing:
            is_first, self._has_stopped = not self._has_stopped, True
        return is_first

    def _later(self, write: object, *args: str) -> None:
        thread = threading.Thread(target=write, args=args, name="registration", daemon=True)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _put_start(self) -> None:
        with self._writing:  # so that the last one stored is the last one known
            self._put(_STARTED, self.start.to_json())

    def _put_stop(self, why: WorkerEnd, reason: str) -> None:
        content = {"when": time.time(), "reason": public_line(reason, 4000)}
        self._put(f"stopped-{why}.json", json.dumps(content).encode())

    def _put(self, name: str, content: bytes) -> None:
        try:
            self._store.put(f"{_FOLDER}{self.start.id}/{name}", content)
        except (ChunkflowError, OSError) as error:
            logger.warning(
                "the record of worker %s cannot be stored, and the worker continues: %s",
                self.start.worker,
                error,
            )


# --- reading --------------------------------------------------------------------------------------


class WorkerFate(NamedTuple):
    """The name of the worker that made an attempt, and why this worker has ended.

    Attributes:
        worker: name of the worker; ``unknown`` if it has stored no record.
        cause: why the worker has ended; ``worker-lost`` if the cause is unknown.
    """

    worker: str
    cause: FailureCause


@dataclass(frozen=True)
class WorkerCounts:
    """Number of workers of a run.

    Attributes:
        started: number of workers that have begun.
        stopped: number of workers that have stopped, with the cause as key. The most frequent cause
            comes first.
    """

    started: int = 0
    stopped: dict[str, int] = field(default_factory=dict)

    @property
    def silent(self) -> int:
        """Number of workers that still work, or were lost."""
        return max(0, self.started - sum(self.stopped.values()))


class WorkerRecords:
    """Reads the records of the workers of a run.

    Args:
        store: store of the run directory.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._starts: dict[str, WorkerStart | None] = {}

    def counts(self) -> WorkerCounts:
        """Count the workers that have started and stopped; reads only keys."""
        started, stopped = set(), {}
        for key in self._store.list(_FOLDER):
            worker, _, name = key.removeprefix(_FOLDER).partition("/")
            if name == _STARTED:
                started.add(worker)
            elif (match := _STOPPED.fullmatch(name)) and match[1] in ENDS:
                stopped[worker] = match[1]
        counts = Counter(why for worker, why in stopped.items() if worker in started)
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        return WorkerCounts(len(started), dict(ranked))

    def start_of(self, attempt: str) -> WorkerStart | None:
        """Return the start record of the worker that made an attempt; ``None`` if it is unknown."""
        worker = worker_id(attempt)
        if worker not in self._starts:
            self._starts[worker] = self._read(worker)
        return self._starts[worker]

    def read(self, attempts: Iterable[str]) -> None:
        """Read the records of many workers at the same time, so that `start_of` is fast."""
        missing = {worker_id(attempt) for attempt in attempts} - self._starts.keys()
        with ThreadPoolExecutor(_READERS) as pool:
            self._starts |= zip(missing, pool.map(self._read, missing), strict=True)

    def fate_of(self, attempt: str) -> WorkerFate:
        """Return the name of the worker that made an attempt, and why this worker has ended.

        If the records cannot be read, the cause is ``worker-lost``; no error is raised.
        """
        start, worker = None, worker_id(attempt)
        try:
            start = self.start_of(attempt)
            keys = list(self._store.list(f"{_FOLDER}{worker}/")) if start is not None else []
        except ChunkflowError as error:
            logger.warning("the records of worker %s cannot be read: %s", worker, error)
            keys = []
        names = {key.rpartition("/")[2] for key in keys}
        causes = (each for each in CAUSES if f"stopped-{each}.json" in names)
        cause: FailureCause = next(causes, "worker-lost")
        return WorkerFate("unknown" if start is None else start.worker, cause)

    def _read(self, worker: str) -> WorkerStart | None:
        if not worker:  # a worker of an earlier version, which stored no records
            return None
        # At most one byte more than a record may have, however large the object is.
        content = self._store.get_range(f"{_FOLDER}{worker}/{_STARTED}", 0, LONGEST_RECORD + 1)
        if content is None:
            return None
        try:
            start = WorkerStart.from_json(content)
        except ValueError as error:
            logger.warning("the record of worker %s is damaged: %s", worker, error)
            return None
        return replace(start, id=worker)


def worker_id(attempt: str) -> str:
    """Return the id of the worker that made *attempt*; empty if the name contains no id."""
    match = _ID.match(attempt)
    return "" if match is None else match[1]

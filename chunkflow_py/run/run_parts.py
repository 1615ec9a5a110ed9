"""Parts of patches that the tasks of a run exchange, as objects of a store.

```
<exchange>/<step>/<consumer>/<producer>     parts that task <producer> stored for task <consumer>
```

The exchange is the folder ``exchange`` in the run directory, or another URL, such as a disk that
all workers share. The file ``exchange.url`` in the run directory contains its URL. The exchange
only saves time, because workers compute all parts that are missing. The objects for a task are
removed when the task is recorded, and all remaining objects when the step is complete.

Everybody who can write to the exchange can change the output of the run, as can everybody who can
write to the output itself.
"""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkflowError
from chunkflow_py.run.run_directory import RunDirectory
from chunkflow_py.store import open_store

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from chunkflow_py.run.ledger.ledger import Ledger
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

_MOST_PENDING = 512 * 1024**2  # bytes that wait to be written; further objects are not stored


@dataclass(frozen=True)
class ExchangeAddress:
    """The address of the exchange of one step, which is sent to worker processes.

    Attributes:
        run: URL of the run directory.
        url: URL of the exchange of the run.
        step: name of the step.
        identity: hash of the step.
    """

    run: str
    url: str
    step: str
    identity: str

    def store(self) -> Store:
        """Open the store of the objects that tasks of the step exchange.

        Raises:
            VolumeError: the store cannot be reached.
        """
        return open_store(f"{self.url.rstrip('/')}/{self.step}")

    def parts(self) -> RunParts:
        """Open the exchange in a worker process, for the tasks of the process."""
        run = RunDirectory(self.run)
        return RunParts(self.store(), run.plan(self.step), run.ledger(self.step), self.identity)


class RunParts:
    """The part store of a run, see `chunkflow_py.inference.patch_exchange.PartStore`.

    Args:
        store: store of the objects that tasks of the step exchange.
        plan: tasks of the step; parts are stored only for these tasks.
        ledger: ledger of the step; no parts are stored for tasks that have a record in it.
        identity: hash of the step.
    """

    most_bytes = _MOST_PENDING

    def __init__(self, store: Store, plan: Plan, ledger: Ledger, identity: str) -> None:
        """Start the threads that write objects."""
        self.identity = identity
        self.connections = store.connections
        self._store = store
        self._plan, self._ledger = plan, ledger
        self._writers = ThreadPoolExecutor(2, "parts-out")
        self._pending = 0
        self._lock = Lock()
        self._has_failed = False

    def producers(self, consumer: str) -> Collection[str]:
        """Return the numbers of the tasks that have stored objects for task *consumer*.

        Raises:
            VolumeError: the store cannot be reached.
        """
        return [key.rpartition("/")[2] for key in self._store.list(f"{consumer}/")]

    def read(self, consumer: str, producer: str, most: int) -> bytes | None:
        """Return the object that task *producer* has stored for task *consumer*.

        Return ``None`` if the object does not exist.

        Raises:
            VolumeError: the store cannot be reached, or the object has more than *most* bytes.
        """
        return self._store.get(f"{consumer}/{producer}", most)

    def write(self, consumer: str, producer: str, content: Callable[[], bytes], size: int) -> None:
        """Store an object in a thread, without waiting; after a failed write, store no objects."""
        with self._lock:
            if self._has_failed or self._pending + size > _MOST_PENDING:
                return
            self._pending += size
        self._writers.submit(self._write, f"{consumer}/{producer}", content, size)

    def _write(self, key: str, content: Callable[[], bytes], size: int) -> None:
        try:
            self._store.put(key, content())
        except ChunkflowError as error:
            with self._lock:
                has_failed, self._has_failed = self._has_failed, True
            if not has_failed:
                logger.warning(
                    "this process stores no further parts of patches for other tasks: %s", error
                )
        finally:
            with self._lock:
                self._pending -= size

    def unfinished(self, consumers: Sequence[str]) -> Collection[str]:
        """Return those of *consumers* that are tasks of the step and have no record.

        Raises:
            VolumeError: the ledger cannot be read.
        """
        planned = [int(name) for name in consumers if int(name) in self._plan]
        recorded = self._ledger.find(planned)
        return [str(number) for number in planned if number not in recorded]

    def done(self, consumer: str) -> None:
        """Do nothing, because a task may need its objects again until it is recorded."""

    def close(self) -> None:
        """Finish the writes that have begun, and drop the objects that still wait."""
        self._writers.shutdown(cancel_futures=True)


class PartRemover:
    """Removes the objects for recorded tasks in a thread; if a removal fails, it is not repeated.

    Args:
        address: exchange of the step.
    """

    def __init__(self, address: ExchangeAddress) -> None:
        """Start the thread."""
        self._store = address.store()
        self._thread = ThreadPoolExecutor(1, "parts-remover")

    def recorded(self, number: int) -> None:
        """Let the thread remove the objects for task *number*."""
        self._thread.submit(self._remove, f"{number}/")

    def close(self, *, is_complete: bool) -> None:
        """Wait until the thread has ended; if the step is complete, remove all objects first."""
        if is_complete:
            self._thread.submit(self._remove, "")
        self._thread.shutdown()

    def _remove(self, prefix: str) -> None:
        try:
            for key in list(self._store.list(prefix)):
                self._store.delete(key)
        except ChunkflowError as error:
            logger.debug("cannot remove parts of patches: %s", error)

"""Collect the data of the dashboard about all runs below a prefix.

A `RunWatch` stores the state of each task of its run in memory. To limit the memory, only the runs
whose pages were requested most recently have a `RunWatch`.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError
from chunkflow_py.monitor.dashboard.run_watch import RunWatch
from chunkflow_py.monitor.pool_status import pool_status

if TYPE_CHECKING:
    from chunkflow_py.run.run_prefix import RunPrefix

WATCHED = 8  # runs whose data stay in memory
_SHARE = 5  # reading the table for a second is followed by five seconds without reading
_LEAST_S = 5.0  # time between two readings


class PoolWatch:
    """Collects the data of the dashboard about the runs of a prefix; thread-safe.

    Args:
        prefix: prefix of the runs.
        price: US dollars per hour of one worker; ``None`` if unknown.
        source: text for the pages that says where the price comes from.
    """

    def __init__(self, prefix: RunPrefix, price: float | None = None, source: str = "") -> None:
        self._prefix, self._price, self._source = prefix, price, source
        self._reading, self._lock = threading.Lock(), threading.Lock()
        self._next = 0.0
        self._latest: dict[str, Any] | None = None
        self._watches: dict[str, RunWatch] = {}  # the one requested last is at the end

    def runs(self) -> dict[str, Any]:
        """Return what `status PREFIX --json` prints, and the time at which the status was read.

        While a request reads the status, other requests receive the previous status.

        Raises:
            ChunkflowError: the prefix cannot be read.
        """
        if self._reading.acquire(blocking=self._latest is None):
            try:
                began = time.monotonic()
                if self._latest is None or began >= self._next:
                    self._latest = pool_status(self._prefix).to_json() | {"now": time.time()}
                    took = time.monotonic() - began
                    self._next = began + max(_LEAST_S, _SHARE * took)
            finally:
                self._reading.release()
        return self._latest or {}

    def watch(self, name: str) -> RunWatch:
        """Return the `RunWatch` of one run; *name* is the name of the run's folder.

        Raises:
            OptionError: there is no such run below the prefix.
        """
        with self._lock:
            watch = self._watches.pop(name, None)
            if watch is None:
                found = self._prefix.run(name)
                if found is None:
                    msg = f"there is no run {name!r} at {self._prefix.shown}; correct the address"
                    raise OptionError(msg)
                watch = RunWatch(found, self._price, self._source)
            self._watches[name] = watch
            while len(self._watches) > WATCHED:
                self._watches.pop(next(iter(self._watches))).close()
            return watch

    def close(self) -> None:
        """Close the connections to the queues of the runs."""
        with self._lock:
            for watch in self._watches.values():
                watch.close()
            self._watches.clear()

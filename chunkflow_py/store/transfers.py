"""Count the transferred objects and bytes, and measure the mean speed of the transfers."""

from __future__ import annotations

import math
from contextlib import contextmanager
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


class Transfers:
    """Number of finished transfers of objects, their bytes and their mean speed; thread-safe.

    Attributes:
        bytes: bytes of the finished transfers.
        finished: number of finished transfers.
    """

    def __init__(self) -> None:
        self.bytes = self.finished = 0
        self._active = 0
        self._since = self._busy_s = 0.0
        self._lock = Lock()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Measure the time of the ``with`` block, in which one object is transferred."""
        with self._lock:
            if not self._active:
                self._since = monotonic()
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._active -= 1
                if not self._active:
                    self._busy_s += monotonic() - self._since

    def add(self, size: int) -> None:
        """Count a finished transfer of *size* bytes."""
        with self._lock:
            self.bytes += size
            self.finished += 1

    @property
    def seconds(self) -> float:
        """Seconds in which at least one transfer was in progress."""
        with self._lock:
            return self._busy_s + (monotonic() - self._since if self._active else 0.0)

    @property
    def bytes_per_s(self) -> float:
        """Mean speed of the transfers so far; infinite before the first transfer is finished.

        Times without a transfer do not count.
        """
        return self.bytes / max(self.seconds, 1e-9) if self.finished else math.inf

"""Store parts of patches in the memory of a process, and beyond a limit in temporary files.

A part is the piece of a patch's output that one task passes to another task. An object contains all
parts that one task (the producer) stores for another task (the consumer).
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING

from chunkflow_py.errors import VolumeError
from chunkflow_py.store.local_files import TEMPORARY_PREFIX, os_errors
from chunkflow_py.store.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

MOST_BYTES = 128 * 1024**2


class LocalParts:
    """A `PartStore` for the tasks of one process.

    An object contains the parts (pieces of patches) that one task passes to another task, the
    consumer. The object is removed when the consumer is done.

    Args:
        most_bytes: limit of the memory for all objects together, in bytes. An object that would
            exceed this limit is stored in a temporary file.

    Attributes:
        identity, connections, most_bytes, must_save_time, writes: see
            `chunkflow_py.inference.patch_exchange.PartStore`.
    """

    identity = "local"
    connections = 0
    must_save_time = False

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        """Create an empty store."""
        self.most_bytes = most_bytes
        self.writes = Transfers()
        self._objects: dict[str, dict[str, bytes | Path]] = {}
        self._done: set[str] = set()
        self._bytes = 0
        self._files = 0
        self._is_closed = False
        self._folder: Path | None = None
        self._lock = Lock()

    def producers(self, consumer: str) -> Collection[str]:
        """Return the names under which tasks stored objects for the task *consumer*."""
        with self._lock:
            return tuple(self._objects.get(consumer, ()))

    def read(self, consumer: str, producer: str, most: int) -> bytes | None:
        """Return the object that *producer* stored for *consumer*; ``None`` if there is none.

        Args:
            consumer: name of the task that needs the object.
            producer: name under which the object was stored.
            most: limit of the size of the object, in bytes; ``None`` is returned for a larger one.

        Raises:
            VolumeError: a temporary file cannot be read.
        """
        with self._lock:
            content = self._objects.get(consumer, {}).get(producer)
        if isinstance(content, Path):
            with os_errors("read", content):
                content = content.read_bytes()
        return None if content is None or len(content) > most else content

    def write(self, consumer: str, producer: str, content: Callable[[], bytes], _: int) -> None:
        """Store an object that the task *consumer* can read.

        Args:
            consumer: name of the task that needs the object.
            producer: name under which the object is stored.
            content: function that returns the bytes of the object.

        Raises:
            VolumeError: a temporary file cannot be written, for example because the disk is full.
        """
        data = content()
        with self._lock:
            if self._is_closed:
                return
            fits = self._bytes + len(data) <= self.most_bytes
            kept = data if fits else self._spilled(data)
            self._bytes += len(data) if fits else 0
            self._objects.setdefault(consumer, {})[producer] = kept

    def _spilled(self, data: bytes) -> Path:
        if self._folder is None:
            with os_errors("create a folder in", tempfile.gettempdir()):
                self._folder = Path(tempfile.mkdtemp(prefix=f"{TEMPORARY_PREFIX}parts-"))
        self._files += 1
        path = self._folder / str(self._files)
        try:
            with os_errors("write", path):
                path.write_bytes(data)
        except VolumeError:
            path.unlink(missing_ok=True)  # a part of the file would keep the disk full
            raise
        return path

    def unfinished(self, consumers: Sequence[str]) -> Collection[str]:
        """Return the tasks in *consumers* that are not done."""
        with self._lock:
            return [name for name in consumers if name not in self._done]

    def done(self, consumer: str) -> None:
        """Record that the task *consumer* is done, and remove the objects for this task."""
        with self._lock:
            self._done.add(consumer)
            for content in self._objects.pop(consumer, {}).values():
                if isinstance(content, Path):
                    content.unlink(missing_ok=True)
                else:
                    self._bytes -= len(content)

    def close(self) -> None:
        """Remove all objects."""
        with self._lock:
            self._is_closed = True
            self._objects.clear()
            self._bytes = 0
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)
                self._folder = None

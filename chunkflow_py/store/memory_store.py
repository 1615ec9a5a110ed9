"""A store in the memory of this process: ``mem://name/prefix``, for tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from chunkflow_py.store.store_address import check_key, check_size

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# All stores of one name share their objects, like all clients of one bucket.
_OBJECTS: dict[str, bytes] = {}
_LOCK = threading.RLock()


class MemoryStore:
    """A store in memory; see `chunkflow_py.store.store_protocol.Store`."""

    is_local = False
    connections = 8

    def __init__(self, path: str) -> None:
        """Open the store at *path*: a name, or a name and a prefix of keys such as ``name/em``."""
        self._path = path.strip("/")
        self.url = f"mem://{self._path}"

    def _name(self, key: str) -> str:
        return f"{self._path}/{check_key(key, self.url)}"

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return the whole object, or ``None`` if it does not exist."""
        data = _OBJECTS.get(self._name(key))
        check_size(len(data or b""), most, key, self.url)
        return data

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes [start, stop) of an object, or its last ``-start`` bytes if *start* < 0."""
        data = self.get(key)
        return None if data is None else data[start : stop if start >= 0 else None]

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        *,
        content_type: str | None = None,  # noqa: ARG002 no headers are stored
        content_encoding: str | None = None,  # noqa: ARG002
        cache_control: str | None = None,  # noqa: ARG002
    ) -> None:
        """Write an object atomically."""
        with _LOCK:
            _OBJECTS[self._name(key)] = bytes(data)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless it exists; return whether this call wrote it."""
        name = self._name(key)
        with _LOCK:
            absent = name not in _OBJECTS
            if absent:
                _OBJECTS[name] = bytes(data)
        return absent

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace the content of an object with the result of *change*; return the new content."""
        with _LOCK:
            new = bytes(change(self.get(key)))
            self.put(key, new)
        return new

    def delete(self, key: str) -> None:
        """Remove an object; does nothing if it does not exist."""
        with _LOCK:
            _OBJECTS.pop(self._name(key), None)

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or ``None`` if it does not exist."""
        data = self.get(key)
        return None if data is None else len(data)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with *prefix*."""
        start = f"{self._path}/"
        with _LOCK:
            names = [name for name in _OBJECTS if name.startswith(start + prefix)]
        for name in names:
            yield name.removeprefix(start)

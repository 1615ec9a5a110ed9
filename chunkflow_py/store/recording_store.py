"""Wrap a store, to record the length and the checksum of each object that is written."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.store.store_protocol import Store


class RecordingStore:
    """A store that forwards all calls to another store, and records each `put`.

    Args:
        store: store to which all calls are forwarded.

    Attributes:
        written: one record for each `put` or `left_out`, in the order of completion.
    """

    def __init__(self, store: Store) -> None:
        """Wrap *store*; `written` is empty at first."""
        self._store = store
        self.url, self.is_local, self.connections = store.url, store.is_local, store.connections
        self.written: list[Stored] = []

    def _address(self, key: str) -> str:
        return f"{self.url.rstrip('/')}/{key}"

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        cache_control: str | None = None,
    ) -> None:
        """Write an object atomically, and record its address, length and checksum."""
        self._store.put(
            key,
            data,
            content_type=content_type,
            content_encoding=content_encoding,
            cache_control=cache_control,
        )
        self.written.append(Stored.of(self._address(key), data))

    def left_out(self, key: str) -> None:
        """Record that *key* has no object, because all voxels of its block have the fill value."""
        self.written.append(Stored(self._address(key)))

    # --- forwarded ------------------------------------------------------------------------------

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return the whole object, or ``None`` if it does not exist."""
        return self._store.get(key, most)

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes [start, stop) of an object, or its last ``-start`` bytes if *start* < 0."""
        return self._store.get_range(key, start, stop)

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless it exists; return whether it was written. Record nothing."""
        return self._store.put_if_absent(key, data)

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace an object by the result of *change*; return the new content. Record nothing."""
        return self._store.update(key, change)

    def delete(self, key: str) -> None:
        """Remove an object, and record nothing."""
        self._store.delete(key)

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or ``None`` if it does not exist."""
        return self._store.size(key)

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with *prefix*."""
        return self._store.list(prefix)

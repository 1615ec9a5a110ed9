"""The interface of all stores, and the records of written objects."""

from __future__ import annotations

import hashlib
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from chunkflow_py.core.failpoints import removed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager


CHECKSUM_DIGITS = 32


@dataclass(frozen=True)
class Access:
    """Credentials and billing of requests to a cloud.

    Attributes:
        anonymous: send requests without credentials, to read public data.
        requester_pays: bill requests to the caller instead of the owner of the bucket (S3, GCS).
    """

    anonymous: bool = False
    requester_pays: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """Record of one write, with which the written object can be verified later.

    Attributes:
        url: address of the object.
        size: length in bytes; ``None`` if nothing is stored because all voxels have the fill value.
        checksum: first 32 hexadecimal digits of the SHA-256 of the bytes as they are stored.
    """

    url: str
    size: int | None = None
    checksum: str | None = None

    @classmethod
    def of(cls, url: str, data: bytes | memoryview) -> Stored:
        """Return the record of an object with the content *data*."""
        size = memoryview(data).nbytes
        return cls(url, size, None if removed("checksum") else checksum_of(data))


@dataclass(frozen=True, slots=True)
class Leftover:
    """An object of an earlier run, at an address where a new run will write.

    Attributes:
        url: address of the object.
        remove: function that deletes the object; does nothing if the object no longer exists.
    """

    url: str
    remove: Callable[[], None]


def checksum_of(data: bytes | memoryview) -> str:
    """Return the checksum of *data* for a `Stored` record; other threads can run meanwhile."""
    return hashlib.sha256(data).hexdigest()[:CHECKSUM_DIGITS]


class Store(Protocol):
    """A flat set of objects (named byte strings) below one URL; thread-safe.

    A key is a path below the URL, with ``/`` between its parts. Every write is atomic: readers get
    the complete old or the complete new object. A write to a local store is on the disk when the
    call returns. Transient failures are retried for a limited time, so every call ends.

    Attributes:
        url: address as a user writes it, without credentials.
        is_local: whether the objects are files on this machine.
        connections: recommended number of concurrent calls.

    Raises (all methods):
        VolumeError: the store cannot be reached, or refuses the call; the message names a remedy.
    """

    url: str
    is_local: bool
    connections: int

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return the whole object, or ``None`` if it does not exist.

        Args:
            key: key of the object.
            most: limit of the size of the object, in bytes; a larger object is not read.

        Raises:
            VolumeError: the object is larger than the limit *most*.
        """

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes [start, stop) of an object, or fewer if the object ends before *stop*.

        If *start* is negative, *stop* must be 0, and the last ``-start`` bytes are returned. If the
        object does not exist, ``None`` is returned.
        """

    def put(
        self,
        key: str,
        data: bytes | memoryview,
        *,
        content_type: str | None = None,
        content_encoding: str | None = None,
        cache_control: str | None = None,
    ) -> None:
        """Write an object atomically.

        Stores in clouds store the keyword arguments as HTTP headers of the object. Other stores
        ignore these arguments.
        """

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless it exists; return whether this call wrote it.

        If the reply to a write is lost, the object is read back, so that a successful write is
        never reported as a conflict.
        """

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Replace an object by the result of *change*; concurrent updates are not lost.

        Args:
            key: key of the object.
            change: function that takes the old content (``None`` if the object does not exist) and
                returns the new content. If another process changes the object in the meantime, the
                function is called again with the changed content.

        Returns:
            The new content of the object.
        """

    def delete(self, key: str) -> None:
        """Remove an object; does nothing if it does not exist."""

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or ``None`` if it does not exist."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with *prefix*, in no particular order."""


@runtime_checkable
class Gathers(Protocol):
    """A store in which a group of writes takes less time than the same writes one by one."""

    def together(self) -> AbstractContextManager[Store]:
        """Return a context manager that yields a store; on exit, all writes to it are durable."""


@runtime_checkable
class Links(Protocol):
    """A store that writes the same content under many keys at little extra cost."""

    def put_each_if_absent(self, keys: Sequence[str], data: bytes | memoryview) -> list[bool]:
        """Write *data* under each key that has no object.

        Args:
            keys: distinct keys.
            data: content of each object.

        Returns:
            One bool for each key: whether this call wrote the object.
        """


@runtime_checkable
class Sizes(Protocol):
    """A store that lists the sizes of objects with their keys."""

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield the key and the length in bytes of each object that `Store.list` would yield."""


@runtime_checkable
class Subfolders(Protocol):
    """A store that lists the folders below its URL without listing the objects in them."""

    def subfolders(self) -> Iterator[str]:
        """Yield the name of each folder directly below the URL.

        A key such as ``a/b/c`` is in the folder ``a``.
        """


def subfolders_of(store: Store) -> set[str]:
    """Return the names of the folders directly below the URL of a store."""
    if isinstance(store, Subfolders):
        return set(store.subfolders())
    return {key.partition("/")[0] for key in store.list() if "/" in key}


def sizes_of(store: Store, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the key and the length in bytes of each object whose key begins with *prefix*."""
    if isinstance(store, Sizes):
        yield from store.sizes(prefix)
        return
    for key in store.list(prefix):
        if (size := store.size(key)) is not None:
            yield key, size


def together(store: Store) -> AbstractContextManager[Store]:
    """Return a context manager that yields a store; on exit, all writes to it are durable."""
    return store.together() if isinstance(store, Gathers) else nullcontext(store)

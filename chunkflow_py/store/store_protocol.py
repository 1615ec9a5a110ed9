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
        anonymous: without credentials, for public data.
        requester_pays: have the requests billed to the caller (S3 and GCS).
    """

    anonymous: bool = False
    requester_pays: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """Record of one write, by which the object can be verified later.

    Attributes:
        url: of the object.
        size: its length in bytes; ``None`` where nothing is stored, because all voxels have the
            value that missing ones are read as.
        checksum: SHA-256 of the bytes as they are stored, the first 32 hexadecimal digits.
    """

    url: str
    size: int | None = None
    checksum: str | None = None

    @classmethod
    def of(cls, url: str, data: bytes | memoryview) -> Stored:
        """Return the record of an object that holds *data*."""
        size = memoryview(data).nbytes
        return cls(url, size, None if removed("checksum") else checksum_of(data))


@dataclass(frozen=True, slots=True)
class Leftover:
    """An old object at an address where something else will be written.

    Attributes:
        url: of the object.
        remove: deletes it; does nothing if it is gone.
    """

    url: str
    remove: Callable[[], None]


def checksum_of(data: bytes | memoryview) -> str:
    """Return the checksum of *data* as `Stored` has it; other threads run meanwhile."""
    return hashlib.sha256(data).hexdigest()[:CHECKSUM_DIGITS]


class Store(Protocol):
    """A flat set of objects below one URL; safe to call from several threads.

    A key is a path below the URL, with ``/`` between its parts. Every write is atomic: under a key
    there is the old object or the new one, whole; a local write is on the disk when it returns.
    Every call ends: transient failures are retried under a budget of time.

    Attributes:
        url: address as a user writes it, without credentials.
        is_local: whether the objects are files of this machine.
        connections: useful number of concurrent calls.

    Raises (all methods):
        VolumeError: the store cannot be reached, or refuses; says what to change.
    """

    url: str
    is_local: bool
    connections: int

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return the whole object, or ``None`` if it does not exist.

        Args:
            key: of the object.
            most: bytes that it may have; one that has more is not read.

        Raises:
            VolumeError: it has more than *most* bytes.
        """

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes *start* to *stop* of an object, fewer where it ends before.

        A negative *start* counts from the end of the object, and *stop* is then 0: the last
        ``-start`` bytes. ``None`` if there is no such object.
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
        """Write an object whole. The headers are kept by clouds and ignored by folders."""

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless there is one; return whether it was written by this call.

        When the reply to a write is lost, the object is read back: what was written by this call
        is never reported as a conflict.
        """

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Apply *change* to an object; concurrent updates are not lost.

        Args:
            key: of the object.
            change: old content (``None`` if there is none) -> new content; may be called again
                when another process was faster.

        Returns:
            The new content.
        """

    def delete(self, key: str) -> None:
        """Remove an object; does nothing if it does not exist."""

    def size(self, key: str) -> int | None:
        """Return the length of an object in bytes, or ``None`` if it does not exist."""

    def list(self, prefix: str = "") -> Iterator[str]:
        """Yield the keys that begin with *prefix*, in no particular order."""


@runtime_checkable
class Gathers(Protocol):
    """A store that makes many writes cheaper when they are grouped."""

    def together(self) -> AbstractContextManager[Store]:
        """Give a store whose writes are durable when the block ends without an error."""


@runtime_checkable
class Links(Protocol):
    """A store that writes the same content under many keys at little extra cost."""

    def put_each_if_absent(self, keys: Sequence[str], data: bytes | memoryview) -> list[bool]:
        """Call `Store.put_if_absent` for each key with the same content; return the results.

        Args:
            keys: no two of which are the same.
            data: of all objects.
        """


def together(store: Store) -> AbstractContextManager[Store]:
    """Give the store to use for many writes, all of them durable when the block ends."""
    return store.together() if isinstance(store, Gathers) else nullcontext(store)

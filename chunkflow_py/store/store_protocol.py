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
        anonymous: send no credentials, for public data.
        requester_pays: bill the requests to the caller (S3 and GCS).
    """

    anonymous: bool = False
    requester_pays: bool = False


@dataclass(frozen=True, slots=True)
class Stored:
    """Record of one write, by which the object can be verified later.

    Attributes:
        url: address of the object.
        size: length in bytes; ``None`` if nothing is stored because all voxels have the fill value.
        checksum: SHA-256 of the bytes as they are stored, the first 32 hexadecimal digits.
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
    """An old object at an address where something else will be written.

    Attributes:
        url: address of the object.
        remove: deletes the object; does nothing if it does not exist any more.
    """

    url: str
    remove: Callable[[], None]


def checksum_of(data: bytes | memoryview) -> str:
    """Return the checksum of *data* for `Stored`; other threads can run meanwhile."""
    return hashlib.sha256(data).hexdigest()[:CHECKSUM_DIGITS]


class Store(Protocol):
    """A flat set of objects below one URL; safe to call from several threads.

    A key is a path below the URL, with ``/`` between its parts. Every write is atomic: a key has
    the complete old or new object. A local write is on the disk when it returns. Transient
    failures are retried for a limited time, so that every call ends.

    Attributes:
        url: address as a user writes it, without credentials.
        is_local: whether the objects are files of this machine.
        connections: useful number of concurrent calls.

    Raises (all methods):
        VolumeError: the store cannot be reached, or refuses the call; the message has a remedy.
    """

    url: str
    is_local: bool
    connections: int

    def get(self, key: str, most: int | None = None) -> bytes | None:
        """Return the whole object, or ``None`` if it does not exist.

        Args:
            key: key of the object.
            most: largest size, bytes; a larger object is not read.

        Raises:
            VolumeError: the object has more than *most* bytes.
        """

    def get_range(self, key: str, start: int, stop: int) -> bytes | None:
        """Return bytes *start* to *stop* of an object, or fewer if it ends earlier.

        With a negative *start*, *stop* is 0, and the last ``-start`` bytes are returned. The result
        is ``None`` if the object does not exist.
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
        """Write an object atomically. Clouds store the headers, folders ignore them."""

    def put_if_absent(self, key: str, data: bytes | memoryview) -> bool:
        """Write an object unless it exists; return whether this call wrote it.

        If the reply to a write is lost, the object is read back, so that a successful write is
        never reported as a conflict.
        """

    def update(self, key: str, change: Callable[[bytes | None], bytes]) -> bytes:
        """Apply *change* to an object; concurrent updates are not lost.

        Args:
            key: key of the object.
            change: old content (``None`` if there is none) -> new content; called again if another
                process was faster.

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
        """Return a context manager of a store; its writes are durable when the block succeeds."""


@runtime_checkable
class Links(Protocol):
    """A store that writes the same content under many keys at little extra cost."""

    def put_each_if_absent(self, keys: Sequence[str], data: bytes | memoryview) -> list[bool]:
        """Call `Store.put_if_absent` for each key with the same content; return the results.

        Args:
            keys: distinct keys.
            data: content of each object.
        """


def together(store: Store) -> AbstractContextManager[Store]:
    """Return a context manager of a store for many writes, durable when the block succeeds."""
    return store.together() if isinstance(store, Gathers) else nullcontext(store)

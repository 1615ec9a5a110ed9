"""Blocks that were decoded, kept for the next read up to a number of bytes, and fetched once."""

from __future__ import annotations

import mmap
from collections import OrderedDict
from concurrent.futures import Future
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from chunkflow_py.volume.engine.layout import Index


class BlockCache:
    """The blocks of one volume that were used last.

    Two tasks that read one block at the same time fetch it once: the first claims it, the other
    waits for what the first decodes.

    Args:
        limit: bytes of voxels to keep; 0 keeps nothing, and lets everyone fetch for himself.
    """

    def __init__(self, limit: int) -> None:
        """Begin empty."""
        self.limit, self.hits = limit, 0
        self._blocks: OrderedDict[Index, Future[NDArray[Any] | None]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def claim(self, block: Index) -> Future[NDArray[Any] | None] | None:
        """Return a block that is kept or on its way; ``None``: the caller is to fetch it.

        Who has claimed a block must `share` it or `give_up`. A future is cancelled when the reader
        that it comes from gives up.
        """
        if not self.limit:
            return None
        with self._lock:
            found = self._blocks.get(block)
            if found is None:
                self._blocks[block] = Future()
                return None
            self._blocks.move_to_end(block)
            self.hits += 1
            return found

    def share(self, block: Index, voxels: NDArray[Any] | None) -> None:
        """Give a claimed block to whoever waits for it, and keep it."""
        if not self.limit:
            return
        with self._lock:
            found = self._blocks.get(block)
            if found is None or found.done():
                return
            kept = voxels if voxels is None else _apart(voxels)
            found.set_result(kept)
            self._bytes += _size(voxels)
            for oldest in list(self._blocks):
                if self._bytes <= self.limit:
                    break
                self._drop(oldest)

    def give_up(self, blocks: Iterable[Index]) -> None:
        """Let others fetch what was claimed and not shared."""
        with self._lock:
            for block in blocks:
                found = self._blocks.get(block)
                if found is not None and found.cancel():
                    del self._blocks[block]

    def forget(self, blocks: Iterable[Index]) -> None:
        """Drop blocks that have changed."""
        with self._lock:
            for block in blocks:
                self._drop(block)

    def _drop(self, block: Index) -> None:
        found = self._blocks.get(block)
        if found is not None and found.done():  # others wait for what is on its way
            self._bytes -= _size(found.result())
            del self._blocks[block]


def _apart(voxels: NDArray[Any]) -> NDArray[Any]:
    """Return a copy in memory of its own.

    What stays for long in the heap, between buffers that come and go, cuts it into pieces that
    nothing else fits into: with the cache in the heap a line peaked a fifth higher.
    """
    copy: NDArray[Any] = np.frombuffer(mmap.mmap(-1, voxels.nbytes), voxels.dtype)
    copy = copy.reshape(voxels.shape)
    np.copyto(copy, voxels)
    return copy


def _size(voxels: NDArray[Any] | None) -> int:
    return 0 if voxels is None else voxels.nbytes

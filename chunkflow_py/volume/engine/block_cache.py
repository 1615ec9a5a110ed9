"""A cache of decoded blocks, limited in bytes; concurrent readers fetch a block only once."""

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

    from chunkflow_py.volume.engine.block_layout import Index


class BlockCache:
    """Least-recently-used cache of the blocks of one volume.

    If two tasks read a block at the same time, the block is fetched once: the first task claims the
    block, and the second task waits for the decoded voxels.

    Args:
        limit: limit of the cached voxels, in bytes; 0 turns the cache off, so every reader fetches
            its blocks.
    """

    def __init__(self, limit: int) -> None:
        """Create an empty cache."""
        self.limit, self.hits = limit, 0
        self._blocks: OrderedDict[Index, Future[NDArray[Any] | None]] = OrderedDict()
        self._bytes = 0
        self._lock = Lock()

    def claim(self, block: Index) -> Future[NDArray[Any] | None] | None:
        """Return the future of a block, or claim the block and return ``None``.

        A block has a future if it is cached, or if another reader is fetching it. After ``None``,
        the caller must fetch the block and call `share`. If the caller cannot fetch the block, the
        caller must call `give_up`, which cancels the future for which other readers wait.
        """
        if not self.limit:
            return None
        with self._lock:
            future = self._blocks.get(block)
            if future is None:
                self._blocks[block] = Future()
                return None
            self._blocks.move_to_end(block)
            self.hits += 1
            return future

    def share(self, block: Index, voxels: NDArray[Any] | None) -> None:
        """Cache the voxels of a claimed block, and pass them to the readers that wait for it.

        For a block that is not stored, *voxels* is ``None``.
        """
        if not self.limit:
            return
        with self._lock:
            future = self._blocks.get(block)
            if future is None or future.done():
                return
            future.set_result(voxels if voxels is None else _copy_outside_heap(voxels))
            self._bytes += _size(voxels)
            for oldest in list(self._blocks):
                if self._bytes <= self.limit:
                    break
                self._drop(oldest)

    def give_up(self, blocks: Iterable[Index]) -> None:
        """Release claims on blocks that were not shared, so that other readers fetch them."""
        with self._lock:
            for block in blocks:
                future = self._blocks.get(block)
                if future is not None and future.cancel():
                    del self._blocks[block]

    def forget(self, blocks: Iterable[Index]) -> None:
        """Drop blocks that were overwritten."""
        with self._lock:
            for block in blocks:
                self._drop(block)

    def _drop(self, block: Index) -> None:
        future = self._blocks.get(block)
        if future is not None and future.done():  # otherwise readers are still waiting for it
            self._bytes -= _size(future.result())
            del self._blocks[block]


def _copy_outside_heap(voxels: NDArray[Any]) -> NDArray[Any]:
    """Return a copy of *voxels* in a separate memory mapping.

    In the heap, cached blocks would remain between buffers that are freed. This fragmentation
    raises peak memory by a fifth.
    """
    copy: NDArray[Any] = np.frombuffer(mmap.mmap(-1, voxels.nbytes), voxels.dtype)
    copy = copy.reshape(voxels.shape)
    np.copyto(copy, voxels)
    return copy


def _size(voxels: NDArray[Any] | None) -> int:
    return 0 if voxels is None else voxels.nbytes

"""Memory for results, which is used again once nobody holds it any more."""

from __future__ import annotations

import mmap
import weakref
from math import prod
from threading import RLock
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SMALL = 4 << 20  # bytes, below which pages are not worth a thought
_KEPT = 2  # blocks that may lie idle: one being written while the next is computed


class ResultMemory:
    """Gives out arrays whose memory comes back when nobody uses them any more.

    The first touch of fresh memory costs more than all the arithmetic of blending: 0.7 s a GB
    against nothing for memory used before (measured, 2 threads; with large pages it took longer).
    """

    def __init__(self) -> None:
        """Hold nothing yet."""
        self._idle: list[mmap.mmap] = []
        self._lock = RLock()  # memory may come back by a collection within the lock
        self._open = True

    def empty(self, shape: tuple[int, ...], dtype: str) -> NDArray[Any]:
        """Return an array of any content; its memory is used again when its last view is gone."""
        kind = np.dtype(dtype)
        count = prod(shape)
        if count * kind.itemsize < _SMALL:
            return np.empty(shape, kind)
        block = self._block(count * kind.itemsize)
        array = np.frombuffer(block, kind, count)
        # Views of an array keep that array, so this one goes last.
        weakref.finalize(array, self._give_back, block).atexit = False
        return array.reshape(shape)

    def close(self) -> None:
        """Let go of memory that lies idle, now and from now on."""
        with self._lock:
            self._open = False
            self._idle.clear()

    def _block(self, size: int) -> mmap.mmap:
        with self._lock:
            for place, block in enumerate(self._idle):
                if len(block) == size:
                    return self._idle.pop(place)
            self._idle.clear()  # of chunks of another kind: not needed again soon
        return mmap.mmap(-1, size)

    def _give_back(self, block: mmap.mmap) -> None:
        with self._lock:
            if self._open and len(self._idle) < _KEPT:
                self._idle.append(block)

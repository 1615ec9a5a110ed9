"""Prevent a deadlock in Python 3.11 while a profiler samples the stacks of all threads."""

from __future__ import annotations

import gc
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from types import FrameType

_lock = threading.RLock()


def protect_stack_samples() -> None:
    """Make `sys._current_frames` suspend the garbage collector, in Python 3.11.

    In Python 3.11, `sys._current_frames` holds a lock of the interpreter while it allocates memory.
    If the allocation starts a garbage collection that runs Python code, another thread can continue
    in the meantime. If that thread ends, it waits for the lock while it holds the GIL, and all
    threads of the process wait forever (https://github.com/python/cpython/issues/106883). Later
    versions of Python do not collect garbage at this point.

    The profiler of a Dask worker calls `sys._current_frames` 100 times per second, and the threads
    of pipelines end often. Without this protection, a run on Dask can stop.
    """
    sample: Any = sys._current_frames
    if sys.version_info >= (3, 12) or getattr(sample, "is_protected", False):
        return

    def protected() -> dict[int, FrameType]:
        with _lock:
            was_enabled = gc.isenabled()
            gc.disable()
            try:
                found: dict[int, FrameType] = sample()
            finally:
                if was_enabled:
                    gc.enable()
        return found

    protected.is_protected = True  # type: ignore[attr-defined]
    sys._current_frames = protected

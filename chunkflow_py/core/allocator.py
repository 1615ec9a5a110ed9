"""Allocator settings that keep freed pages in the process instead of returning them.

```
as started      layer 1: map, fault page by page, free | layer 2: map, fault page by page, ...
kept pages      layer 1: take                          | layer 2: take what layer 1 left
```

The C library of Linux (glibc) maps each large buffer anew and unmaps it when it is freed. A network
frees and asks for buffers of the same sizes all the time, so that up to half of the time of a
forward pass is the kernel's, clearing the same pages again. What was measured, and what else was
tried, stands in docs/performance.md.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Names and numbers of <malloc.h>.
_MMAP_MAX = -4
_MMAP_MAX_DEFAULT = 65536
_SETTINGS = {
    # Large buffers come from the heap too, which is where freed memory can be kept.
    "M_MMAP_MAX": (_MMAP_MAX, 0),
    # Never give the end of the heap back; -1 stands for the largest size there is.
    "M_TRIM_THRESHOLD": (-1, -1),
    # One heap for all threads: those that glibc makes for other threads are cut into 64 MB pieces,
    # which are unmapped when they are empty, and the network runs in a thread of its own.
    "M_ARENA_MAX": (-8, 1),
}

_kept = False


def keep_freed_memory() -> bool:
    """Keep the memory that this process frees for its own next allocations.

    Call it first thing, before other threads start and before anything large is allocated; the
    command line does so by itself. It takes effect for the whole process and cannot be undone;
    calling it again changes nothing. The process then stays as large as it was at its peak, and
    ``numpy.zeros`` writes its zeros instead of leaving that to the kernel.

    Returns:
        Whether it was done: ``False`` where the C library is not glibc (macOS, Windows, Alpine
        Linux), whose allocators have no such settings.
    """
    global _kept  # noqa: PLW0603  (it is a fact of the process)
    if not _is_glibc():
        return False
    done = [_set(number, value) for number, value in _SETTINGS.values()]
    _kept = all(done)
    return _kept


def keeps_freed_memory() -> bool:
    """Return whether this process keeps the memory that it frees."""
    return _kept


def sleep_while_waiting() -> None:
    """Make idle OpenMP threads sleep instead of spinning.

    Call it before PyTorch is imported; the command line does. A spinning thread keeps a processor
    from other threads, such as those that read or compress, and the next operation then waits for
    all of them: with one other process on the same processors,
    blending took 6 to 12 s instead of 0.6 to 0.9 s. Alone, nothing is lost that can be measured.
    Environment variables that are already set (GOMP_SPINCOUNT, OMP_WAIT_POLICY) take precedence.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@contextmanager
def apart_from_heap() -> Iterator[None]:
    """Map large buffers apart from the heap again while this is entered.

    For the first forward of a network, in which libraries make small things that stay: between
    large buffers that come and go they would cut the heap into pieces. Measured, RSUNet: the
    process peaks at 0.93 to 1.16 GB instead of 1.04 to 1.60 GB. Not for two threads at once.
    """
    if not _kept:
        yield
        return
    _set(_MMAP_MAX, _MMAP_MAX_DEFAULT)
    try:
        yield
    finally:
        _set(_MMAP_MAX, 0)


def _set(number: int, value: int) -> bool:
    import ctypes  # not free, and of no use elsewhere

    return bool(ctypes.CDLL(None).mallopt(number, value) == 1)


def _is_glibc() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):  # another C library does not know the name
        return False

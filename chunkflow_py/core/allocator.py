"""Settings that make the C allocator keep freed memory in the process.

By default, the C library of Linux (glibc) requests new pages of memory from the kernel for each
large buffer (it maps the pages), and returns the pages when the buffer is freed (it unmaps them).
The kernel clears each page when the page is first used. A network frees and allocates buffers of
the same sizes all the time, so clearing may take up to half of the time of a forward pass. If the
process keeps freed memory, each layer of the network reuses the memory of earlier layers:

```
default       layer 1: map, clear each page, unmap    | layer 2: map, clear each page, unmap
kept memory   layer 1: allocate                       | layer 2: reuse the memory of layer 1
```

docs/performance.md has measurements, and the alternatives that were tried.
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
    # Never return the end of the heap to the kernel; -1 stands for the largest size.
    "M_TRIM_THRESHOLD": (-1, -1),
    # One heap for all threads: those that glibc makes for other threads consist of 64 MB pieces,
    # which are unmapped when they are empty, and the network runs in a thread of its own.
    "M_ARENA_MAX": (-8, 1),
}

_kept = False


def keep_freed_memory() -> bool:
    """Keep freed memory in this process for later allocations.

    Call this function before other threads start and before anything large is allocated, as the
    command line does. The effect on the process cannot be undone. A second call is harmless. After
    the call, the process stays as large as at its peak. ``numpy.zeros`` writes the zeros itself
    instead of receiving cleared pages from the kernel.

    Returns:
        ``True`` if the settings were made; ``False`` if the C library is not glibc (macOS, Windows,
        Alpine Linux), because other allocators have no such settings.
    """
    global _kept  # noqa: PLW0603  (a setting of the process)
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

    Call this function before PyTorch is imported, as the command line does. A spinning thread
    occupies a core that other threads need for reading and compressing. An OpenMP operation ends
    when all its threads have finished, so a single thread without a core makes the operation slow.
    With one other process on the same cores, blending the patches of a network took 6 to 12 s with
    spinning threads, but 0.6 to 0.9 s with sleeping threads. Without other processes, sleeping has
    no measurable cost. If the environment variable GOMP_SPINCOUNT or OMP_WAIT_POLICY is already
    set, its value is not changed.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


@contextmanager
def apart_from_heap() -> Iterator[None]:
    """Within a ``with`` block, allocate large buffers outside the heap, as glibc does by default.

    Use this context manager for the first forward pass of a network. In this pass, libraries make
    small allocations that are never freed. If large temporary buffers were on the heap too, the
    small allocations would fragment the heap. With RSUNet, the peak memory of the process is 0.93
    to 1.16 GB with this context manager, and 1.04 to 1.60 GB without. Not thread-safe.
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
    import ctypes  # takes time, and is needed only here

    return bool(ctypes.CDLL(None).mallopt(number, value) == 1)


def _is_glibc() -> bool:
    if not sys.platform.startswith("linux"):
        return False
    try:
        return "glibc" in (os.confstr("CS_GNU_LIBC_VERSION") or "")
    except (ValueError, OSError):  # another C library does not know the name
        return False

"""Memory of the process that runs networks."""

from __future__ import annotations

import ctypes
import logging
import sys

logger = logging.getLogger(__name__)

# Numbers of glibc's malloc.h.
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4


def keep_freed_memory() -> bool:
    """Tell the C library to keep freed memory instead of handing it back to the kernel.

    By default glibc maps every large buffer anew, so each layer of a network pays for page faults
    on fresh pages: up to half of the CPU time of a forward pass. Results do not change. Call it
    once, before the first large allocation; the command line does.

    Returns:
        Whether the C library took the settings (it is glibc on Linux).
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, 2**31 - 1), (_M_TOP_PAD, 64 * 2**20))
    taken = all(mallopt(name, value) == 1 for name, value in settings)
    logger.debug("freed memory is %s", "kept" if taken else "handed back to the kernel")
    return taken

"""Gzip, the same bytes for the same voxels: by libdeflate, whatever the processor and the thread.

libdeflate (in imagecodecs) compresses images about three times as fast as zlib, lets other threads
run, and clears the memory that it works in. ISA-L is three times faster again, but its bytes depend
on what its memory held before: about one in a thousand small blocks came out otherwise.
"""

from __future__ import annotations

import zlib
from typing import Any

from chunkflow_py.errors import needs_extra

FASTEST = 1
_SHORTEST = 18  # bytes of header and trailer
_MOST = 1032  # deflate never shrinks more than that


def compressed(data: Any, level: int = FASTEST) -> bytes:
    """Return *data*, anything with a buffer, gzipped; the header holds no time.

    Raises:
        MissingExtraError: imagecodecs is not installed.
    """
    with needs_extra("precomputed", "writing gzip"):
        from imagecodecs import gzip_encode
    return bytes(gzip_encode(data, level=level))


def gunzipped(data: Any) -> bytes:
    """Return what was gzipped.

    Raises:
        Exception: it is torn or damaged; length and checksum are looked at.
    """
    try:
        from imagecodecs import gzip_decode
    except ImportError:  # half as fast, and the same
        return zlib.decompress(data, 31)
    # The length stands at the end; what is torn has any number there.
    length = int.from_bytes(data[-4:], "little")
    if len(data) < _SHORTEST or length > _MOST * len(data):
        msg = f"gzip of {len(data)} bytes cannot hold the {length} that it says it does"
        raise ValueError(msg)
    return bytes(gzip_decode(data))

"""Gzip, the same bytes for the same voxels, whatever the processor and the thread.

| voxels                      | by                             | because, of images of 8 bits      |
|-----------------------------|--------------------------------|-----------------------------------|
| in general                  | libdeflate (in imagecodecs)    | 2.6 times as fast as zlib         |
| noise, as images mostly are | zlib-ng, only runs and Huffman | 4.5 times as fast, and 1 % larger |

Which it is, a sample of each block decides: where looking for repetitions finds none, it is left
out. ISA-L is faster than both, but its bytes depend on what its memory held before: about one in a
thousand small blocks came out otherwise.
"""

from __future__ import annotations

from typing import Any

from chunkflow_py.errors import check_extra, needs_extra

FASTEST = 1
_LARGE = 1 << 16  # bytes: below, either way takes no time
_SAMPLE = 1 << 14
_GAIN = 1.02  # what repetitions have to save to be looked for


def check_compressed() -> None:
    """See whether gzip can be written here, before there is anything to write.

    Raises:
        MissingExtraError: a library is not installed.
    """
    check_extra("precomputed", "writing gzip", "imagecodecs", "zlib_ng")


def compressed(data: Any, level: int = FASTEST) -> bytes:
    """Return *data*, anything with a buffer, gzipped; the header holds no time.

    Args:
        data: the bytes, contiguous.
        level: 1 to 9, as for zlib.

    Raises:
        MissingExtraError: a library is not installed.
    """
    with needs_extra("precomputed", "writing gzip"):
        from imagecodecs import gzip_encode
        from zlib_ng import zlib_ng
    content = memoryview(data).cast("B")
    if level == FASTEST and len(content) >= _LARGE and _is_noise(content):
        packing = zlib_ng.compressobj(FASTEST, zlib_ng.DEFLATED, 31, 9, zlib_ng.Z_RLE)
        return bytes(packing.compress(content) + packing.flush())
    return bytes(gzip_encode(data, level=level))


def _is_noise(content: memoryview) -> bool:
    """Tell whether a sample takes hardly less by repetitions than by the frequency of its bytes."""
    import numpy as np
    from imagecodecs import gzip_encode

    middle = len(content) // 2
    sample = bytes(content[middle - _SAMPLE // 2 : middle + _SAMPLE // 2])
    counts = np.bincount(np.frombuffer(sample, np.uint8))
    shares = counts[counts > 0] / _SAMPLE
    entropy = -float((shares * np.log2(shares)).sum()) / 8 * _SAMPLE
    return bool(entropy <= _GAIN * len(gzip_encode(sample, level=FASTEST)))

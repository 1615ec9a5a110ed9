"""Decompress untrusted data, never to more bytes than expected.

The metadata of a volume determine the number of bytes of a block. Compressed data may expand to a
thousand times as many bytes, so every decoder in this module raises an error if the decoded data
exceed the expected size. Other modules must not decompress the blocks of a volume themselves.

| format                           | how the decoded size is limited                              |
|----------------------------------|--------------------------------------------------------------|
| bz2, xz, several gzip members    | the decoder stops after the expected number of bytes         |
| blosc, lz4, single gzip member   | the length stored in the data is checked before decoding     |
| brotli, lzf, zlib                | the output buffer has the expected size                      |
| gzip and zlib, if imagecodecs is | the decoder stops after the expected number of bytes         |
| not installed                    |                                                              |
| zstd                             | the stored length is checked; if no length is stored, the    |
|                                  | output buffer has the expected size                          |
| npy, npz                         | the lengths and the headers of the array files are checked   |
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import math
import struct
import threading
import zlib
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from numpy.typing import NDArray

BLOCK_BYTES = 1 << 31  # of one decoded block; the limit of blosc and of Java arrays
DOCUMENT_BYTES = 1 << 22  # of one JSON document, whose objects take 25 times as much memory
ARRAYS_BYTES = 1 << 30  # of the arrays of one npz file

_DICTIONARY_BYTES = 1 << 27  # of lzma; its strongest preset has 2^26
_STREAMS = 256  # concatenated in one block; each costs a copy of the data after it
_ARRAYS = 64  # of one npz file
_LONGEST_HEADER = 1 << 16  # of an array file
_NO_ROOM = ("INSUFFICIENT_SPACE", "too small", "not large enough")  # in messages of imagecodecs
_ZSTD, _ZSTD_HEADER = b"\x28\xb5\x2f\xfd", 18  # bytes of the longest header
_SHORTEST = 18  # bytes of header and trailer of gzip
_MOST_DEFLATED = 1032  # the highest compression ratio of deflate
# NumPy parses headers of arrays as Python literals. Before 3.11.8 and 3.12.2, Python raises a
# SystemError when two threads parse at once (python/cpython#106905).
_header_lock = threading.Lock()


def packed_most(size: int) -> int:
    """Return an upper limit, in bytes, of the encoded size of *size* bytes of voxels.

    Most compressors enlarge noise only slightly. Two encodings enlarge data more: compressed
    segmentation with one voxel per object, and JPEG of noise.
    """
    return 4 * size + (1 << 20)


def decode(codec: str, data: Any, most: int) -> bytes:
    """Decompress *data*; raise an error if the decoded data exceed the limit *most*.

    Args:
        codec: name of a codec in `CODECS`.
        data: compressed data, as bytes or another object with a buffer.
        most: largest accepted size of the decoded data, bytes.

    Raises:
        TooLargeError: the decoded data are larger than *most*.
        Exception: the data are damaged; the type of the error depends on the decoder.
    """
    return CODECS[codec](data, most)


class TooLargeError(ValueError):
    """Compressed data decode to more bytes than expected."""

    def __init__(self, most: int) -> None:
        super().__init__(f"the data decode to more than the expected {most} bytes")


def _raw(data: Any, most: int) -> Any:
    if memoryview(data).nbytes > most:
        raise TooLargeError(most)
    return data


def _gzip(data: Any, most: int) -> bytes:
    try:
        from imagecodecs import gzip_decode
    except ImportError:  # zlib gives the same result at half the speed
        return _streams(_gunzip, data, most, alone=True)
    # The last four bytes are the decoded length; in a truncated file they are arbitrary.
    length = int.from_bytes(data[-4:], "little")
    if len(data) < _SHORTEST or length > _MOST_DEFLATED * len(data):
        msg = f"{len(data)} bytes of gzip cannot decode to the stated length of {length} bytes"
        raise ValueError(msg)
    if length > most:
        raise TooLargeError(most)
    return _in_room(gzip_decode, data, most)


def _zlib(data: Any, most: int) -> bytes:
    try:
        from imagecodecs import deflate_decode
    except ImportError:
        return _streams(zlib.decompressobj, data, most, alone=True)
    return _in_room(deflate_decode, data, most, out=most)


def _gunzip() -> Any:
    return zlib.decompressobj(31)


def _streams(new: Callable[[], Any], data: Any, most: int, *, alone: bool = False) -> bytes:
    parts: list[bytes] = []
    room = most + 1
    for _ in range(_STREAMS):
        stream = new()
        parts.append(stream.decompress(data, room))
        room -= len(parts[-1])
        if room <= 0:
            raise TooLargeError(most)
        if not stream.eof:
            msg = "the data end in the middle of a stream"
            raise ValueError(msg)
        data = stream.unused_data
        if alone or not data:
            return b"".join(parts)
    msg = f"the data have more streams than the {_STREAMS} allowed"
    raise ValueError(msg)


def unpack_lzma(data: Any, most: int, format_: int, filters: Any = None) -> bytes:
    """Decode lzma streams.

    Args:
        data: compressed data, one or more streams.
        most: largest accepted size of the decoded data, bytes.
        format_: a ``FORMAT_*`` constant of the module `lzma`.
        filters: the filter chain of a raw stream, which has no header.

    Raises:
        TooLargeError: the decoded data are larger than *most*.
        ValueError: a filter has a dictionary of more than 128 MiB; the presets of xz use less.
        Exception: the data are damaged.
    """
    if format_ != lzma.FORMAT_RAW:
        return _streams(
            lambda: lzma.LZMADecompressor(format_, memlimit=_DICTIONARY_BYTES), data, most
        )
    for each in filters or ():
        if int(each.get("dict_size") or 0) > _DICTIONARY_BYTES:
            msg = (
                f"the lzma dictionary has {each['dict_size']} bytes, more than the "
                f"{_DICTIONARY_BYTES} allowed"
            )
            raise ValueError(msg)
    room = most + 1
    found = lzma.LZMADecompressor(format_, filters=filters).decompress(data, room)
    if len(found) > most:
        raise TooLargeError(most)
    return found


def _in_room(decoder: Callable[..., Any], data: Any, most: int, **room: int) -> bytes:
    try:
        return bytes(decoder(data, **room))
    except RuntimeError as error:
        if any(text in str(error) for text in _NO_ROOM):
            raise TooLargeError(most) from error
        raise


def _zstd(data: Any, most: int) -> bytes:
    length = _zstd_length(data)
    if length is None:
        from imagecodecs import zstd_decode

        return _in_room(zstd_decode, data, most, out=most)
    if length > most:
        raise TooLargeError(most)
    from numcodecs import zstd

    return bytes(zstd.decompress(data))


def _zstd_length(data: Any) -> int | None:
    """Return the decoded size in the header of the first frame (RFC 8878); ``None`` if absent."""
    if len(data) < _ZSTD_HEADER:
        return None
    flags = data[4]
    is_alone = flags >> 5 & 1
    start = 5 + (not is_alone) + (0, 1, 2, 4)[flags & 3]
    size = (is_alone, 2, 4, 8)[flags >> 6]
    if bytes(data[:4]) != _ZSTD or size == 0:
        return None
    return int.from_bytes(data[start : start + size], "little") + (256 if size == 2 else 0)


def _brotli(data: Any, most: int) -> bytes:
    from imagecodecs import brotli_decode

    return _in_room(brotli_decode, data, most, out=most)


def _lzf(data: Any, most: int) -> bytes:
    from imagecodecs import lzf_decode

    return _in_room(lzf_decode, data, most, out=most)


def _lz4(data: Any, most: int) -> bytes:
    from numcodecs import lz4

    (length,) = struct.unpack_from("<i", data)
    if length > most:
        raise TooLargeError(most)
    return bytes(lz4.decompress(data))


def _blosc(data: Any, most: int) -> bytes:
    from numcodecs import blosc

    (length,), (stored,) = struct.unpack_from("<I", data, 4), struct.unpack_from("<I", data, 12)
    if stored != len(data):  # blosc does not check this
        msg = f"the data have {len(data)} bytes, but their blosc header states {stored} bytes"
        raise ValueError(msg)
    if length > most:
        raise TooLargeError(most)
    return bytes(blosc.decompress(data))


CODECS: Mapping[str, Callable[[Any, int], bytes]] = {
    "raw": _raw,
    "blosc": _blosc,
    "brotli": _brotli,
    "bz2": lambda data, most: _streams(bz2.BZ2Decompressor, data, most),
    "gzip": _gzip,
    "gzip members": lambda data, most: _streams(_gunzip, data, most),
    "lz4": _lz4,
    "lzf": _lzf,
    "xz": lambda data, most: unpack_lzma(data, most, lzma.FORMAT_AUTO),
    "zlib": _zlib,
    "zstd": _zstd,
}


# --- NumPy arrays ---------------------------------------------------------------------------------


def mapped_npy(path: Path) -> Any:
    """Return the array of a .npy file, mapped into memory; no object is unpickled.

    Returns:
        The array, or `numpy.lib.npyio.NpzFile` for an archive of arrays.

    Raises:
        ValueError, EOFError: the file is damaged, contains Python objects, or has a header of more
            than 64 KiB.
        OSError: the file cannot be read.
    """
    import numpy as np

    with path.open("rb") as file:
        head = file.read(12)
    length = int.from_bytes(head[8:12], "little")
    if head[:6] == b"\x93NUMPY" and head[6:7] > b"\1" and length > _LONGEST_HEADER:
        msg = f"the header has {length} bytes, more than the {_LONGEST_HEADER} allowed"
        raise ValueError(msg)
    with _header_lock:
        return np.load(path, mmap_mode="r", allow_pickle=False)


def npy(data: bytes, most: int) -> NDArray[Any]:
    """Return the array of a .npy file; no object is unpickled.

    Raises:
        ValueError: the file is damaged, or its header declares an array larger than the limit
            *most*, in bytes.
    """
    import numpy as np

    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
        version, np.lib.format.read_array_header_2_0
    )
    with _header_lock:
        shape, is_fortran, dtype = read(file, max_header_size=_LONGEST_HEADER)
    size = math.prod(shape) * dtype.itemsize
    if dtype.hasobject:
        msg = "the array contains Python objects, not numbers"
        raise ValueError(msg)
    if size > most:
        raise TooLargeError(most)
    if size != len(data) - file.tell():
        msg = (
            f"the array has {len(data) - file.tell()} bytes, but shape {shape} of {dtype} needs "
            f"{size}"
        )
        raise ValueError(msg)
    order: Literal["F", "C"] = "F" if is_fortran else "C"
    return np.ndarray(shape, dtype, data, file.tell(), order=order).copy(order="K")


def npz(data: bytes, most: int = ARRAYS_BYTES) -> dict[str, NDArray[Any]]:
    """Return the arrays of a .npz file by name; no object is unpickled.

    Raises:
        ValueError, EOFError, zipfile.BadZipFile, zlib.error: the file is damaged, contains more
            bytes of arrays than the limit *most*, or contains more than 64 arrays.
    """
    import zipfile

    arrays: dict[str, NDArray[Any]] = {}
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        members = archive.infolist()
        if len(members) > _ARRAYS:
            msg = f"the file contains {len(members)} arrays, more than the {_ARRAYS} allowed"
            raise ValueError(msg)
        for member in members:
            if member.file_size > most:
                raise TooLargeError(most)
            most -= member.file_size
            with archive.open(member) as file:
                # A member may be longer than the directory of the archive states.
                content = file.read(member.file_size)
            arrays[member.filename.removesuffix(".npy")] = npy(content, len(content))
    return arrays


# --- JSON -----------------------------------------------------------------------------------------


def parse_json(data: bytes | str, most: int | None = DOCUMENT_BYTES) -> Any:
    """Return the content of a JSON document.

    Args:
        data: the whole document.
        most: largest accepted length in bytes; ``None`` for documents of any length, such as lists
            of synapses.

    Raises:
        ValueError: the document is not JSON in UTF-8, is longer than the limit *most*, or is nested
            too deeply. A byte order mark is refused too, because other parsers refuse it.
    """
    if most is not None and len(data) > most:
        msg = f"the JSON has {len(data)} bytes, more than the {most} allowed"
        raise ValueError(msg)
    try:
        return json.loads(data if isinstance(data, str) else bytes(data).decode("utf-8"))
    except RecursionError:
        msg = "the JSON is nested too deeply"
        raise ValueError(msg) from None

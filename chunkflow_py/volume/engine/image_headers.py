"""Read the number of voxels that a compressed image declares in its header, before decoding it.

Decoders of image formats allocate as much memory as the header of an image declares. The metadata
of the volume give the size of a block, so a block whose header declares another size is refused.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SCANS = 64  # limit for a progressive JPEG: decoding a scan passes over the whole image
_START_OF_SCAN = b"\xff\xda"  # cannot occur in coded voxels, where a zero follows each 0xff
_MARK = 0xFF
_FRAMES = {*range(0xC0, 0xD0)} - {0xC4, 0xC8, 0xCC}
_PNG = b"\x89PNG\r\n\x1a\n"
_WORD = 0xFFFFFFFF


def check_declared(encoding: str, data: bytes, voxels: int, *, or_fewer: bool = False) -> None:
    """Refuse an image whose header does not declare this number of *voxels*.

    Args:
        encoding: one of `DECLARED`.
        data: the encoded image.
        voxels: expected number of voxels, summed over all channels. For formats that interleave the
            channels (jpeg, jxl, png), the expected number of pixels.
        or_fewer: whether to accept a header that declares fewer voxels.

    Raises:
        ValueError: the header declares another number.
        Exception: the header is damaged; a library may raise any error.
    """
    declared = DECLARED[encoding](data)
    if declared > voxels or (declared < voxels and not or_fewer):
        msg = f"the {encoding} header declares {declared} voxels, but {voxels} are expected"
        raise ValueError(msg)


def _jpeg(data: bytes) -> int:
    # ITU T.81, annex B: the first frame header has the number of pixels.
    scans = data.count(_START_OF_SCAN)
    if scans > _SCANS:
        msg = f"the jpeg image has {scans} scans, more than the limit of {_SCANS}"
        raise ValueError(msg)
    place = 2
    while data[place] == _MARK:
        kind = data[place + 1]
        if kind in _FRAMES:
            height, width = struct.unpack_from(">HH", data, place + 5)
            return int(height * width)
        if kind == _MARK:  # fill byte
            place += 1
        else:
            place += 2 + int.from_bytes(data[place + 2 : place + 4], "big")
    msg = "the jpeg image has no header"
    raise ValueError(msg)


def _png(data: bytes) -> int:
    if data[:8] != _PNG or data[12:16] != b"IHDR":
        msg = "the png image has no header"
        raise ValueError(msg)
    width, height = struct.unpack_from(">II", data, 16)
    return int(width * height)


def _jpeg2000(data: bytes) -> int:
    # The marker SIZ follows the marker at the start of the codestream.
    place = data.find(b"\xff\x4f\xff\x51")
    if place < 0:
        msg = "the jpeg2000 image has no header"
        raise ValueError(msg)
    width, height = struct.unpack_from(">II", data, place + 8)
    return int(width * height)


def _jxl(data: bytes) -> int:
    # ISO/IEC 18181-1, section D.2, defines the SizeHeader; ISO/IEC 18181-2 defines the boxes.
    if data[:2] != b"\xff\x0a":
        data = _jxl_codestream(data)
    bits = int.from_bytes(data[2:16], "little")

    def read(count: int) -> int:
        nonlocal bits
        value = bits & ((1 << count) - 1)
        bits >>= count
        return value

    eighths = read(1)

    def length() -> int:
        return 8 * (1 + read(5)) if eighths else 1 + read((9, 13, 18, 30)[read(2)])

    height = length()
    ratio = read(3)
    if ratio == 0:
        return height * length()
    wide, high = ((1, 1), (6, 5), (4, 3), (3, 2), (16, 9), (5, 4), (2, 1))[ratio - 1]
    return height * (height * wide // high)


def _jxl_codestream(data: bytes) -> bytes:
    place = 0
    while place + 8 <= len(data):
        size, kind = struct.unpack_from(">I4s", data, place)
        head = 8
        if size == 1:
            (size,), head = struct.unpack_from(">Q", data, place + 8), 16
        if kind in (b"jxlc", b"jxlp"):
            start = place + head + (4 if kind == b"jxlp" else 0)
            if data[start : start + 2] == b"\xff\x0a":
                return data[start:]
            break
        if size < head:
            break
        place += size
    msg = "the jxl image has no codestream"
    raise ValueError(msg)


def _compresso(data: bytes) -> int:
    import compresso

    header: Mapping[str, Any] = compresso.header(data)
    if header["id_size"] * header["data_width"] > len(data):
        msg = (
            f"the compresso stream has {len(data)} bytes, too few for the {header['id_size']} "
            "labels that its header declares"
        )
        raise ValueError(msg)
    return int(header["sx"] * header["sy"] * header["sz"])


def _crackle(data: bytes) -> int:
    import crackle

    header = crackle.header(data)
    if header.num_label_bytes > len(data):
        msg = (
            f"the crackle stream has {len(data)} bytes, but its header declares "
            f"{header.num_label_bytes} bytes of labels"
        )
        raise ValueError(msg)
    return int(header.sx * header.sy * header.sz)


def _zfpc(data: bytes) -> int:
    import zfpc
    import zfpy

    header = zfpc.ZfpcHeader.frombytes(data)
    voxels = math.prod(int(n) for n in header.shape())
    if header.num_streams() > len(data):
        msg = (
            f"the zfpc container has {len(data)} bytes, too few for the {header.num_streams()} "
            "streams that its header declares"
        )
        raise ValueError(msg)
    inside = 0
    for stream in zfpc.disassemble_container(header, data):
        shape = zfpy.header(stream)
        inside += math.prod(max(1, shape[axis]) for axis in ("nx", "ny", "nz", "nw"))
    if inside != voxels:
        msg = (
            f"the streams of the zfpc container declare {inside} voxels, but the header of the "
            f"container declares {voxels}"
        )
        raise ValueError(msg)
    return voxels


def _fpzip(data: bytes) -> int:
    # The header is range-coded; see fpzip's rcdecoder.inl.
    code = int.from_bytes(data[:4], "big")
    low, span, place = 0, _WORD, 4

    def take(count: int) -> None:
        nonlocal code, low, span, place
        for _ in range(count):
            code = (code << 8 | (data[place] if place < len(data) else 0)) & _WORD
            low, place = low << 8 & _WORD, place + 1

    def read(count: int) -> int:
        nonlocal low, span
        if count > 16:
            return read(16) | read(count - 16) << 16
        span >>= count
        value = (code - low & _WORD) // span
        low = low + value * span & _WORD
        while not (low ^ (low + span & _WORD)) >> 24:
            take(1)
            span = span << 8 & _WORD
        if not span >> 16:
            take(2)
            span = -low & _WORD
        return value

    if bytes(read(8) for _ in range(4)) != b"fpz\0":
        msg = "the fpzip stream has no header"
        raise ValueError(msg)
    read(16), read(8), read(1), read(7)  # version, type and precision
    return math.prod(read(32) for _ in range(4))


DECLARED: Mapping[str, Callable[[bytes], int]] = {
    "compresso": _compresso,
    "crackle": _crackle,
    "fpzip": _fpzip,
    "jpeg": _jpeg,
    "jpeg2000": _jpeg2000,
    "jxl": _jxl,
    "kempressed": _fpzip,
    "png": _png,
    "zfpc": _zfpc,
}

"""Blocks of one N5 dataset, as the block engine wants them: reading only.

```
| mode | n | x | y | z | (elements) | voxels, big endian, x fastest, compressed |
  u16   u16  u32 ...      u32 in mode 1
```

N5 counts x first, in the extents, in the keys and in the header. C order of (z, y, x) is the order
of its voxels. Blocks at the end of the array are cut. See https://github.com/saalfeldlab/n5
"""

from __future__ import annotations

import math
import re
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import decode
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume.engine.layout import Layout

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.volume.engine.layout import Index

_LZ4_HEADER = struct.Struct("<8sBiiI")  # magic, method, bytes stored, bytes, checksum
_LZ4_RAW, _LZ4_PACKED = 0x10, 0x20

# of N5 -> of `decode`
COMPRESSIONS = {
    "blosc": "blosc", "bzip2": "bz2", "gzip": "gzip", "lz4": "lz4", "raw": "raw", "xz": "xz",
    "zstd": "zstd",
}  # fmt: skip


class N5Layout(Layout):
    """Objects of one dataset.

    Args:
        document: its ``attributes.json``.
        axes: names of its axes, C order.
        prefix: key of the dataset in the store, empty or with a final ``/``.
        url: for messages.
    """

    def __init__(
        self, document: Mapping[str, Any], axes: Sequence[str], prefix: str, url: str
    ) -> None:
        """Read off shape and compression.

        Raises:
            VolumeError: voxels of this type, or this compression, are not known.
        """
        self.axes = tuple(axes)
        self.shape = tuple(int(length) for length in document["dimensions"])[::-1]
        self.block = self.unit = tuple(int(length) for length in document["blockSize"])[::-1]
        name = document["dataType"]
        try:
            self.dtype = np.dtype(name)
        except TypeError:
            self.dtype = np.dtype("O")
        if self.dtype.kind not in "iuf":
            msg = f"{url} holds {name}, but the voxels of a volume are numbers"
            raise VolumeError(msg)
        if len(self.block) != len(self.shape) or min(self.block, default=0) < 1:
            msg = f"{url} has blocks of {self.block[::-1]} for dimensions {self.shape[::-1]} (xyz)"
            raise VolumeError(msg)
        self._prefix, self.root = prefix, prefix.rstrip("/")
        # before version 2 of N5 there was a name only
        compression = document.get("compression") or {"type": document.get("compressionType")}
        self._unpack = _unpacking(compression, url)

    def key(self, unit: Index) -> str:
        """Return the key of the object that holds *unit*."""
        return f"{self._prefix}{'/'.join(str(number) for number in reversed(unit))}"

    def unit_of(self, key: str) -> Index | None:
        """Return the unit whose key this is."""
        names = key.removeprefix(self._prefix).split("/")
        if len(names) != len(self.shape) or not all(re.fullmatch("[0-9]+", n) for n in names):
            return None
        unit = tuple(int(name) for name in reversed(names))
        return unit if self.key(unit) == key else None

    def decode(self, data: bytes, block: Index) -> NDArray[Any]:  # noqa: ARG002 it has its extent
        """Return the voxels of a block.

        Raises:
            Exception: whatever the damage makes the codec stumble on.
            ValueError: header and voxels do not fit together.
        """
        mode, count = struct.unpack_from(">HH", data)
        if mode not in (0, 1) or count != len(self.shape):
            msg = f"its header says mode {mode} and {count} dimensions, not {len(self.shape)}"
            raise ValueError(msg)
        extent = struct.unpack_from(f">{count}I", data, 4)[::-1]
        if any(length > most for length, most in zip(extent, self.block, strict=True)):
            msg = f"its header says {extent} voxels, more than the {self.block} of a block"
            raise ValueError(msg)
        size = math.prod(extent) * self.dtype.itemsize
        voxels = self._unpack(memoryview(data)[4 + 4 * count + 4 * mode :], size)
        if len(voxels) != size:
            msg = f"it holds {len(voxels)} bytes, not the {size} of {extent} {self.dtype}"
            raise ValueError(msg)
        found = np.frombuffer(voxels, self.dtype.newbyteorder(">"))
        return found.astype(self.dtype, copy=False).reshape(extent)

    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:  # noqa: ARG002
        """Refuse: N5 is only read.

        Raises:
            VolumeError: always; `n5.open_volume` opens for reading only.
        """
        msg = f"block {block} cannot be written: N5 is only read; write to zarr:// instead"
        raise VolumeError(msg)


def _unpacking(compression: Mapping[str, Any], url: str) -> Callable[[Any, int], Any]:
    """Return what decompresses blocks: (data, number of bytes that are expected) -> content.

    Raises:
        VolumeError: the compression is not known.
    """
    kind = compression.get("type")
    if kind == "gzip" and compression.get("useZlib"):
        return partial(decode, "zlib")
    if kind not in COMPRESSIONS:
        names = ", ".join(sorted(COMPRESSIONS))
        msg = f"blocks of {url} are compressed by {kind!r}, which is not known; known: {names}"
        raise VolumeError(msg)
    return _lz4 if kind == "lz4" else partial(decode, COMPRESSIONS[kind])


def _lz4(data: memoryview, most: int) -> bytes:
    """Return what lz4-java's block stream holds: parts with a header each, the last one empty.

    Raises:
        ValueError: a header or its part is damaged, or there are more than *most* bytes.
    """
    parts: list[bytes] = []
    at = 0
    while True:
        magic, method, stored, size, _ = _LZ4_HEADER.unpack_from(data, at)
        at += _LZ4_HEADER.size
        if magic != b"LZ4Block" or stored < 0 or at + stored > len(data):
            msg = "a part of it (lz4) has no header, or ends too early"
            raise ValueError(msg)
        if size == 0:
            return b"".join(parts)
        part = bytes(data[at : at + stored])
        if method & 0xF0 == _LZ4_PACKED:
            part = decode("lz4", struct.pack("<i", size) + part, most)
        elif method & 0xF0 != _LZ4_RAW:
            msg = f"a part of it has method {method}, which lz4 has not"
            raise ValueError(msg)
        if len(part) != size:
            msg = f"a part of it holds {len(part)} bytes, not {size}"
            raise ValueError(msg)
        most -= size
        if most < 0:
            msg = f"it unpacks to {-most} bytes more than are expected"
            raise ValueError(msg)
        parts.append(part)
        at += stored

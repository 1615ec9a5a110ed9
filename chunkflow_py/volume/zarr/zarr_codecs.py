"""How blocks of zarr and N5 become bytes: chains of codecs, as the metadata of an array name them.

```
voxels  --transpose-->  --filter-->  --byte order-->  flat  --compress-->  --checksum-->  bytes
```

The codecs are those of numcodecs, called directly: they let other threads run, and are what
zarr-python calls as well. Codecs are looked up in a list of names: metadata are data, and numcodecs
has codecs, such as pickle, that would run what a stranger wrote into a block.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np

from chunkflow_py.core.decoding import decode, packed_most, unpack_lzma
from chunkflow_py.errors import VolumeError, needs_extra
from chunkflow_py.volume.engine.reproducible_gzip import gzip_compress

with needs_extra("zarr", "a zarr or N5 volume"):
    import google_crc32c
    import numcodecs

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

# of numcodecs; by these names in zarr v2, and with "numcodecs." before them in v3
FILTERS = ("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize")
COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
# These keep the number of bytes, or add a checksum.
KEEPERS = ("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3", "shuffle")
_WIDEST = 16  # bytes that a filter may make of one
_CHECKSUM = 64  # bytes that a checksum, or a filter, may add


class Step(Protocol):
    """One codec of a chain."""

    def encode(self, data: Any) -> Any:
        """Return what is stored for *data*: an array, or anything with a buffer."""

    def decode(self, data: Any, most: int) -> Any:
        """Return what *data* was before it was encoded: *most* bytes, or fewer."""

    def most(self, size: int) -> int:
        """Return the most bytes that *size* bytes may be encoded to."""


class Chain:
    """The codecs of an array.

    Args:
        steps: in the order of encoding.
        extent: of a block, in the order of the array's axes.
        dtype: of decoded voxels.
    """

    def __init__(self, steps: Iterable[Step], extent: Sequence[int], dtype: np.dtype[Any]) -> None:
        """Take the codecs."""
        self._steps, self._extent, self._dtype = tuple(steps), tuple(extent), dtype
        sizes = [math.prod(self._extent) * dtype.itemsize]
        for step in self._steps:
            sizes.append(step.most(sizes[-1]))
        self._sizes = tuple(sizes)  # before each step of encoding, and after the last

    def encode(self, voxels: NDArray[Any]) -> bytes:
        """Return the bytes of a whole block; they may share the memory of *voxels*."""
        data: Any = voxels
        for step in self._steps:
            data = step.encode(data)
        if isinstance(data, np.ndarray):
            # a view is as good as bytes for whoever writes it, and is no copy
            flat: Any = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            data = memoryview(flat)
        return cast("bytes", data)

    def decode(self, data: bytes) -> NDArray[Any]:
        """Return the voxels of a whole block; they may share the memory of *data*.

        Raises:
            Exception: whatever the damage makes a codec stumble on; `ValueError` if the number of
                voxels is not that of a block.
        """
        found: Any = data
        for step, most in zip(reversed(self._steps), self._sizes[-2::-1], strict=True):
            found = step.decode(found, most)
        voxels = _flat(found, self._dtype)
        if voxels.size != math.prod(self._extent):
            msg = f"it holds {voxels.size} voxels, not the {self._extent} of a block"
            raise ValueError(msg)
        return voxels.reshape(self._extent)


@dataclass(frozen=True)
class Transpose:
    """Stores the axes of a block in another order.

    Attributes:
        order: axis of the block for each axis of what is stored.
        extent: of the block.
        dtype: of the block.
    """

    order: tuple[int, ...]
    extent: tuple[int, ...]
    dtype: np.dtype[Any]

    def encode(self, data: Any) -> Any:
        """Return a view of the block with its axes in the other order."""
        return data.reshape(self.extent).transpose(self.order)

    def decode(self, data: Any, most: int) -> Any:  # noqa: ARG002 as many bytes as there are
        """Return a view with the axes of the block."""
        stored = [self.extent[axis] for axis in self.order]
        return _flat(data, self.dtype).reshape(stored).transpose(np.argsort(self.order))

    def most(self, size: int) -> int:
        """Return *size*."""
        return size


@dataclass(frozen=True)
class Bytes:
    """Lays the voxels out one after the other, in a byte order.

    Attributes:
        dtype: of the voxels, as this machine holds them.
        stored: the same type in the byte order of the array.
    """

    dtype: np.dtype[Any]
    stored: np.dtype[Any]

    def encode(self, data: Any) -> Any:
        """Return the voxels, flat."""
        return np.ascontiguousarray(data, self.stored).reshape(-1)

    def decode(self, data: Any, most: int) -> Any:  # noqa: ARG002 as many bytes as there are
        """Return the voxels, flat."""
        return _flat(data, self.stored).astype(self.dtype, copy=False)

    def most(self, size: int) -> int:
        """Return *size*."""
        return size


@dataclass(frozen=True)
class Filter:
    """A codec of numcodecs that changes the numbers, voxel by voxel."""

    codec: Any

    def encode(self, data: Any) -> Any:
        """Return the changed numbers, flat."""
        return np.asarray(self.codec.encode(np.ascontiguousarray(data).reshape(-1)))

    def decode(self, data: Any, most: int) -> Any:  # noqa: ARG002 one number for each
        """Return the numbers as they were, flat."""
        return self.codec.decode(data)

    def most(self, size: int) -> int:
        """Return the bytes of the widest type."""
        return _WIDEST * size + _CHECKSUM


@dataclass(frozen=True)
class Keeper:
    """A codec of numcodecs that keeps the number of bytes, or adds a checksum."""

    codec: Any

    def encode(self, data: Any) -> Any:
        """Reorder the bytes, or add the checksum."""
        return self.codec.encode(data)

    def decode(self, data: Any, most: int) -> Any:  # noqa: ARG002 never more than there are
        """Undo it; a checksum is looked at."""
        return self.codec.decode(data)

    def most(self, size: int) -> int:
        """Return *size* and that of a checksum."""
        return size + _CHECKSUM


@dataclass(frozen=True)
class Compressor:
    """A codec of numcodecs that compresses.

    Attributes:
        name: one of `COMPRESSORS`.
        codec: of numcodecs, by which is encoded.
    """

    name: str
    codec: Any

    def encode(self, data: Any) -> Any:
        """Compress; a gzip header holds no time."""
        return (
            gzip_compress(data, self.codec.level)
            if self.name == "gzip"
            else self.codec.encode(data)
        )

    def decode(self, data: Any, most: int) -> bytes:
        """Decompress; what has a length or a checksum is looked at."""
        if self.name == "lzma":
            return unpack_lzma(data, most, self.codec.format, self.codec.filters)
        return decode(self.name, data, most)

    def most(self, size: int) -> int:
        """Return what noise may become."""
        return packed_most(size)


class Crc32c:
    """Appends a checksum of four bytes, little endian, and looks at it."""

    def encode(self, data: Any) -> bytes:
        """Append it."""
        return b"".join((data, _crc32c(data)))

    def decode(self, data: Any, most: int) -> memoryview:  # noqa: ARG002 less than there is
        """Return what comes before it.

        Raises:
            ValueError: it is not that of the data.
        """
        content = memoryview(data)[:-4]
        if len(data) < 4 or _crc32c(content) != data[-4:]:
            msg = "its checksum (crc32c) is wrong"
            raise ValueError(msg)
        return content

    def most(self, size: int) -> int:
        """Return *size* and that of the checksum."""
        return size + 4


def v2_chain(document: Mapping[str, Any], dtype: np.dtype[Any], url: str) -> Chain:
    """Return the codecs of a zarr v2 array.

    Args:
        document: content of its ``.zarray``.
        dtype: of the voxels, as this machine holds them.
        url: for messages.

    Raises:
        VolumeError: a codec is not known.
    """
    extent = tuple(document["chunks"])
    steps: list[Step] = []
    if document["order"] == "F":
        steps.append(Transpose(tuple(range(len(extent)))[::-1], extent, dtype))
    steps.append(Bytes(dtype, np.dtype(document["dtype"])))
    for config in (*(document.get("filters") or ()), document.get("compressor")):
        if config is not None:
            found = dict(config)
            name = found.pop("id")
            if name == "zstd":  # every reader checks what a block says it has, whatever is written
                found["checksum"] = True  # in the metadata, where tensorstore refuses it
            steps.append(codec(name, found, url))
    return Chain(steps, extent, dtype)


def v3_chain(
    documents: Sequence[Mapping[str, Any]],
    extent: Sequence[int],
    dtype: np.dtype[Any],
    url: str,
) -> Chain:
    """Return the codecs of a zarr v3 array, or of the blocks of its shards.

    Args:
        documents: name and configuration of each, as the metadata have them.
        extent: of a block.
        dtype: of the voxels, as this machine holds them.
        url: for messages.

    Raises:
        VolumeError: a codec is not known.
    """
    steps: list[Step] = []
    now, kind = tuple(extent), dtype
    for document in documents:
        name, config = document["name"], dict(document.get("configuration") or {})
        if name == "transpose":
            order = config["order"]
            forward = {"C": range(len(now)), "F": reversed(range(len(now)))}
            # earlier drafts of the format had C and F here
            axes = tuple(forward[order] if isinstance(order, str) else order)
            steps.append(Transpose(axes, now, kind))
            now = tuple(now[axis] for axis in axes)
        elif name == "bytes":
            big = config.get("endian") == "big"
            steps.append(Bytes(kind, kind.newbyteorder(">" if big else "<")))
        elif name == "crc32c":
            steps.append(Crc32c())
        else:
            step = codec(name.removeprefix("numcodecs."), config, url, core=name)
            if isinstance(step, Filter):
                # some change the type; bytes need to know to which
                kind = np.asarray(step.encode(np.zeros(8, kind))).dtype
            steps.append(step)
    return Chain(steps, extent, dtype)


def codec(name: str, config: Mapping[str, Any], url: str, *, core: str | None = None) -> Step:
    """Return a codec of numcodecs.

    Args:
        name: in numcodecs.
        config: its settings.
        url: for messages.
        core: its name in the metadata, if that is another one.

    Raises:
        VolumeError: it is not one of `FILTERS`, `KEEPERS` and `COMPRESSORS`, or its settings are
            wrong.
    """
    if name not in (known := (*FILTERS, *KEEPERS, *COMPRESSORS)):
        names = ", ".join(sorted(known))
        msg = f"blocks of {url} are encoded by {core or name!r}, which is not known; known: {names}"
        raise VolumeError(msg)
    settings = {key: value for key, value in config.items() if key not in ("id", "name")}
    if name == "blosc" and isinstance(settings.get("shuffle"), str):
        shuffle = settings["shuffle"]
        settings["shuffle"] = ("noshuffle", "shuffle", "bitshuffle").index(shuffle)
    try:
        found: Any = numcodecs.get_codec({"id": name, **settings})
    except Exception as error:
        msg = f"blocks of {url} are encoded by {core or name!r} with wrong settings: {error}"
        raise VolumeError(msg) from error
    if name in FILTERS:
        return Filter(found)
    return Keeper(found) if name in KEEPERS else Compressor(name, found)


def _flat(data: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array, or anything with a buffer, as an array of one axis.

    Raises:
        ValueError: the number of bytes is no multiple of that of *dtype*.
    """
    if not isinstance(data, np.ndarray):
        return np.frombuffer(data, dtype)
    flat = data.reshape(-1)
    return flat if flat.dtype == dtype else flat.view(dtype)


def _crc32c(data: Any) -> bytes:
    # google_crc32c takes arrays, but no memoryview
    checksum: int = google_crc32c.value(np.frombuffer(data, np.uint8))
    return struct.pack("<I", checksum)

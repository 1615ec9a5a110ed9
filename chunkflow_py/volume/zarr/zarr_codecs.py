"""Encode and decode zarr blocks with the chain of codecs named in the metadata of the array.

```
voxels  --transpose-->  --filter-->  --byte order-->  flat  --compress-->  --checksum-->  bytes
```

The codecs are those of numcodecs, which zarr-python also uses. This module calls numcodecs
directly. Several threads can encode and decode at the same time, because the codecs release the
GIL. Only codecs on a fixed list are allowed, because some codecs of numcodecs, such as pickle,
would execute code that a stranger stored in a block.
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

# codecs of numcodecs: these are the names in zarr v2; in v3 they begin with "numcodecs."
FILTERS = ("astype", "bitround", "delta", "fixedscaleoffset", "packbits", "quantize")
COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
# these keep the number of bytes, or add a checksum
SIZE_KEEPING = ("adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3", "shuffle")
_WIDEST = 16  # a filter encodes one byte to at most this many
_CHECKSUM = 64  # a checksum, or a filter, adds at most this many bytes


class ZarrCodec(Protocol):
    """One codec of a chain."""

    def encode(self, data: Any) -> Any:
        """Encode *data*, an array or any object with a buffer."""

    def decode(self, data: Any, limit: int) -> Any:
        """Decode *data* to at most *limit* bytes."""

    def encoded_limit(self, size: int) -> int:
        """Return the largest number of bytes to which *size* bytes can be encoded."""


class CodecChain:
    """The codecs of an array.

    Args:
        codecs: codecs in the order of encoding.
        extent: extent of a block, in the order of the array's axes.
        dtype: type of the decoded voxels.
    """

    def __init__(
        self, codecs: Iterable[ZarrCodec], extent: Sequence[int], dtype: np.dtype[Any]
    ) -> None:
        """Compute the size limits of the data between the codecs."""
        self._codecs, self._extent, self._dtype = tuple(codecs), tuple(extent), dtype
        sizes = [math.prod(self._extent) * dtype.itemsize]
        for codec in self._codecs:
            sizes.append(codec.encoded_limit(sizes[-1]))
        self._sizes = tuple(sizes)  # before the first codec, and after each

    def encode(self, voxels: NDArray[Any]) -> bytes:
        """Return the bytes of a whole block; these bytes may share the memory of *voxels*."""
        data: Any = voxels
        for codec in self._codecs:
            data = codec.encode(data)
        if isinstance(data, np.ndarray):
            # a view can be written like bytes, and avoids a copy
            flat: Any = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            data = memoryview(flat)
        return cast("bytes", data)

    def decode(self, data: bytes) -> NDArray[Any]:
        """Return the voxels of a whole block, as an array that may share the memory of *data*.

        Raises:
            Exception: *data* are damaged; a codec may raise any error.
            ValueError: *data* decode to more or fewer voxels than a block has.
        """
        decoded: Any = data
        for codec, limit in zip(reversed(self._codecs), self._sizes[-2::-1], strict=True):
            decoded = codec.decode(decoded, limit)
        voxels = _flat(decoded, self._dtype)
        if voxels.size != math.prod(self._extent):
            msg = f"the data contain {voxels.size} voxels, but a block has {self._extent} voxels"
            raise ValueError(msg)
        return voxels.reshape(self._extent)


@dataclass(frozen=True)
class TransposeCodec:
    """Reorders the axes of a block.

    Attributes:
        order: for each axis in stored order, the position of this axis in the decoded block.
        extent: extent of the block.
        dtype: type of the voxels of the block.
    """

    order: tuple[int, ...]
    extent: tuple[int, ...]
    dtype: np.dtype[Any]

    def encode(self, data: Any) -> Any:
        """Return a view with the axes in stored order."""
        return data.reshape(self.extent).transpose(self.order)

    def decode(self, data: Any, limit: int) -> Any:  # noqa: ARG002 as many bytes as there are
        """Return a view with the axes in the order of the block."""
        stored = [self.extent[axis] for axis in self.order]
        return _flat(data, self.dtype).reshape(stored).transpose(np.argsort(self.order))

    def encoded_limit(self, size: int) -> int:
        """Return *size*, because this codec does not change the number of bytes."""
        return size


@dataclass(frozen=True)
class BytesCodec:
    """Flattens the voxels and sets their byte order.

    Attributes:
        dtype: type of the voxels in memory.
        stored: *dtype* in the byte order of the stored array.
    """

    dtype: np.dtype[Any]
    stored: np.dtype[Any]

    def encode(self, data: Any) -> Any:
        """Return the voxels as a flat array in the stored byte order."""
        return np.ascontiguousarray(data, self.stored).reshape(-1)

    def decode(self, data: Any, limit: int) -> Any:  # noqa: ARG002 as many bytes as there are
        """Return the voxels as a flat array in the byte order of memory."""
        return _flat(data, self.stored).astype(self.dtype, copy=False)

    def encoded_limit(self, size: int) -> int:
        """Return *size*, because this codec does not change the number of bytes."""
        return size


@dataclass(frozen=True)
class FilterCodec:
    """A codec of numcodecs, such as delta, that transforms numbers and may change their dtype."""

    codec: Any

    def encode(self, data: Any) -> Any:
        """Return the changed numbers as a flat array."""
        return np.asarray(self.codec.encode(np.ascontiguousarray(data).reshape(-1)))

    def decode(self, data: Any, limit: int) -> Any:  # noqa: ARG002 one number for each
        """Return the original numbers as a flat array."""
        return self.codec.decode(data)

    def encoded_limit(self, size: int) -> int:
        """Return the largest number of bytes to which *size* bytes can be encoded."""
        return _WIDEST * size + _CHECKSUM


@dataclass(frozen=True)
class SizeKeepingCodec:
    """A codec of numcodecs that keeps the number of bytes, or adds a checksum."""

    codec: Any

    def encode(self, data: Any) -> Any:
        """Reorder the bytes, or add the checksum."""
        return self.codec.encode(data)

    def decode(self, data: Any, limit: int) -> Any:  # noqa: ARG002 never more than there are
        """Restore the order of the bytes, or verify and remove the checksum."""
        return self.codec.decode(data)

    def encoded_limit(self, size: int) -> int:
        """Return *size* plus the largest size of a checksum."""
        return size + _CHECKSUM


@dataclass(frozen=True)
class CompressingCodec:
    """A codec of numcodecs that compresses.

    Attributes:
        name: one of `COMPRESSORS`.
        codec: codec of numcodecs, used for encoding.
    """

    name: str
    codec: Any

    def encode(self, data: Any) -> Any:
        """Compress *data*; a gzip header contains no time stamp."""
        return (
            gzip_compress(data, self.codec.level)
            if self.name == "gzip"
            else self.codec.encode(data)
        )

    def decode(self, data: Any, limit: int) -> bytes:
        """Decompress *data*, and verify the length or checksum if the format stores one."""
        if self.name == "lzma":
            return unpack_lzma(data, limit, self.codec.format, self.codec.filters)
        return decode(self.name, data, limit)

    def encoded_limit(self, size: int) -> int:
        """Return the size that *size* bytes of incompressible data have after compression."""
        return packed_most(size)


class Crc32cChecksum:
    """Appends a CRC32C checksum of four bytes, little endian, or verifies and removes it."""

    def encode(self, data: Any) -> bytes:
        """Append the checksum."""
        return b"".join((data, _crc32c(data)))

    def decode(self, data: Any, limit: int) -> memoryview:  # noqa: ARG002 less than there is
        """Verify the checksum, and return the data before it.

        Raises:
            ValueError: the checksum does not match the data.
        """
        content = memoryview(data)[:-4]
        if len(data) < 4 or _crc32c(content) != data[-4:]:
            msg = "the checksum (crc32c) is wrong"
            raise ValueError(msg)
        return content

    def encoded_limit(self, size: int) -> int:
        """Return *size* plus the size of the checksum."""
        return size + 4


def v2_chain(document: Mapping[str, Any], dtype: np.dtype[Any], url: str) -> CodecChain:
    """Return the codecs of a zarr v2 array.

    Args:
        document: content of the ``.zarray`` of the array.
        dtype: type of the voxels in memory.
        url: address of the volume, for messages.

    Raises:
        VolumeError: a codec is not supported.
    """
    extent = tuple(document["chunks"])
    codecs: list[ZarrCodec] = []
    if document["order"] == "F":
        codecs.append(TransposeCodec(tuple(range(len(extent)))[::-1], extent, dtype))
    codecs.append(BytesCodec(dtype, np.dtype(document["dtype"])))
    for config in (*(document.get("filters") or ()), document.get("compressor")):
        if config is not None:
            settings = dict(config)
            name = settings.pop("id")
            if name == "zstd":
                # Readers verify a checksum if the block has one. The metadata do not mention it,
                # because tensorstore refuses that.
                settings["checksum"] = True
            codecs.append(numcodecs_codec(name, settings, url))
    return CodecChain(codecs, extent, dtype)


def v3_chain(
    documents: Sequence[Mapping[str, Any]],
    extent: Sequence[int],
    dtype: np.dtype[Any],
    url: str,
) -> CodecChain:
    """Return the codecs of a zarr v3 array, or of the blocks of its shards.

    Args:
        documents: name and configuration of each codec, from the metadata.
        extent: extent of a block.
        dtype: type of the voxels in memory.
        url: address of the volume, for messages.

    Raises:
        VolumeError: a codec is not supported.
    """
    codecs: list[ZarrCodec] = []
    encoded_extent, encoded_dtype = tuple(extent), dtype
    for document in documents:
        name, config = document["name"], dict(document.get("configuration") or {})
        if name == "transpose":
            order = config["order"]
            forward = {"C": range(len(extent)), "F": reversed(range(len(extent)))}
            # earlier drafts of the format allow C and F here
            axes = tuple(forward[order] if isinstance(order, str) else order)
            codecs.append(TransposeCodec(axes, encoded_extent, encoded_dtype))
            encoded_extent = tuple(encoded_extent[axis] for axis in axes)
        elif name == "bytes":
            big = config.get("endian") == "big"
            stored = encoded_dtype.newbyteorder(">" if big else "<")
            codecs.append(BytesCodec(encoded_dtype, stored))
        elif name == "crc32c":
            codecs.append(Crc32cChecksum())
        else:
            codec = numcodecs_codec(name.removeprefix("numcodecs."), config, url, core=name)
            if isinstance(codec, FilterCodec):
                # a filter may change the dtype, which a later BytesCodec needs to know
                encoded_dtype = np.asarray(codec.encode(np.zeros(8, encoded_dtype))).dtype
            codecs.append(codec)
    return CodecChain(codecs, extent, dtype)


def numcodecs_codec(
    name: str, config: Mapping[str, Any], url: str, *, core: str | None = None
) -> ZarrCodec:
    """Return a codec of numcodecs.

    Args:
        name: name of the codec in numcodecs.
        config: settings of the codec.
        url: address of the volume, for messages.
        core: name of the codec in the metadata, if this name differs from *name*.

    Raises:
        VolumeError: the codec is not in `FILTERS`, `SIZE_KEEPING` or `COMPRESSORS`, or the settings
            are wrong.
    """
    if name not in (known := (*FILTERS, *SIZE_KEEPING, *COMPRESSORS)):
        names = ", ".join(sorted(known))
        msg = (
            f"the blocks of {url} are encoded with {core or name!r}, but only {names} are "
            "supported; store the array again with one of these codecs"
        )
        raise VolumeError(msg)
    settings = {key: value for key, value in config.items() if key not in ("id", "name")}
    if name == "blosc" and isinstance(settings.get("shuffle"), str):
        shuffle = settings["shuffle"]
        settings["shuffle"] = ("noshuffle", "shuffle", "bitshuffle").index(shuffle)
    try:
        codec: Any = numcodecs.get_codec({"id": name, **settings})
    except Exception as error:
        msg = (
            f"the metadata of {url} have wrong settings for the codec {core or name!r}: {error}; "
            "correct the metadata"
        )
        raise VolumeError(msg) from error
    if name in FILTERS:
        return FilterCodec(codec)
    return SizeKeepingCodec(codec) if name in SIZE_KEEPING else CompressingCodec(name, codec)


def _flat(data: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return an array, or any object with a buffer, as a flat array.

    Raises:
        ValueError: the number of bytes is not a multiple of the item size of *dtype*.
    """
    if not isinstance(data, np.ndarray):
        return np.frombuffer(data, dtype)
    flat = data.reshape(-1)
    return flat if flat.dtype == dtype else flat.view(dtype)


def _crc32c(data: Any) -> bytes:
    # google_crc32c accepts arrays, but not memoryviews
    checksum: int = google_crc32c.value(np.frombuffer(data, np.uint8))
    return struct.pack("<I", checksum)

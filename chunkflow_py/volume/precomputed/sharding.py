"""Read and write shards, the objects of the format ``neuroglancer_uint64_sharded_v1``.

```
| shard index | entries ... | minishard indices: number, gap and length of each entry |

  gap: number of bytes from the end of the previous entry to the start of the entry
```

Each shard is divided into minishards, groups of entries that share one index. The number of an
entry determines its shard and its minishard:

```
bits of hash(number >> preshift), from high to low:      (unused) | shard | minishard
```

Entries are blocks of a volume, annotations, meshes or skeletons. The number of a block is its
compressed Morton code.

Format: github.com/google/neuroglancer, ``datasource/precomputed/sharded.md`` and ``volume.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, overload

import numpy as np

from chunkflow_py.core.decoding import decode
from chunkflow_py.core.geometry import AXES, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume.engine.reproducible_gzip import gzip_compress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Read = Callable[[int, int], bytes | None]  # start and stop -> those bytes of the shard

_INDEX_BYTES = 1 << 24  # limit per minishard, which has a few hundred entries of 24 bytes each
_TYPE = "neuroglancer_uint64_sharded_v1"
_HASHES = ("identity", "murmurhash3_x86_128")
_ENCODINGS = ("raw", "gzip")
_PRESHIFT = 9  # up to 512 blocks share one index, which is read in one request
_MOST_MINISHARD_BITS = 22  # an index of 64 MiB in each shard
_UINT32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Sharding:
    """Assignment of numbered entries to shards: the field ``sharding`` of an info file.

    Attributes:
        preshift_bits: number of lowest bits of an entry's number that are ignored when its shard
            and minishard are chosen.
        minishard_bits: number of bits that choose the minishard within the shard.
        shard_bits: number of bits that choose the shard.
        hash: ``identity`` or ``murmurhash3_x86_128``.
        gzip_index: whether the indices of minishards are gzipped.
        gzip_data: whether entries are gzipped.
    """

    preshift_bits: int
    minishard_bits: int
    shard_bits: int
    hash: str = "identity"
    gzip_index: bool = True
    gzip_data: bool = True

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Sharding:
        """Parse the sharding of an info file.

        Raises:
            ValueError: the type or hash is not supported, or a field is not valid.
        """
        if document["@type"] != _TYPE or document["hash"] not in _HASHES:
            msg = (
                f"sharding {document['@type']!r} with hash {document['hash']!r} is not supported, "
                f"only {_TYPE!r} with hash {' or '.join(_HASHES)}"
            )
            raise ValueError(msg)
        bits = [document[f"{name}_bits"] for name in ("preshift", "minishard", "shard")]
        if not all(type(n) is int and 0 <= n <= 64 for n in bits) or bits[1] + bits[2] > 64:
            msg = (
                f"preshift_bits, minishard_bits and shard_bits are {bits}, but must be integers "
                "from 0 to 64, and the sum of minishard_bits and shard_bits must be at most 64"
            )
            raise ValueError(msg)
        if bits[1] > _MOST_MINISHARD_BITS:
            msg = f"minishard_bits is {bits[1]}; the limit is {_MOST_MINISHARD_BITS}"
            raise ValueError(msg)
        encodings = [
            document.get(f"{name}_encoding", "raw") for name in ("minishard_index", "data")
        ]
        if not all(encoding in _ENCODINGS for encoding in encodings):
            msg = (
                f"minishard_index_encoding and data_encoding are {encodings}, but must be raw or "
                "gzip"
            )
            raise ValueError(msg)
        index, data = (encoding == "gzip" for encoding in encodings)
        return cls(bits[0], bits[1], bits[2], document["hash"], index, data)

    def to_json(self) -> dict[str, Any]:
        """Return the sharding as an info file stores it."""
        return {
            "@type": _TYPE,
            "preshift_bits": self.preshift_bits,
            "hash": self.hash,
            "minishard_bits": self.minishard_bits,
            "shard_bits": self.shard_bits,
            "minishard_index_encoding": _ENCODINGS[self.gzip_index],
            "data_encoding": _ENCODINGS[self.gzip_data],
        }

    @classmethod
    def fitting(
        cls, shard: Zyx, block: Zyx, extent: Zyx, *, gzip_data: bool = True, exactly: bool = True
    ) -> Sharding:
        """Return the sharding whose shards are boxes of a given size.

        Args:
            shard: requested size of a shard, voxels, zyx; may be larger than *extent*.
            block: extent of a block, voxels, zyx.
            extent: extent of the volume, voxels, zyx.
            gzip_data: whether to gzip the blocks.
            exactly: whether shards must have the requested size; if false, choose the largest
                possible size up to the requested size.

        Raises:
            VolumeError: the size is not possible; the message gives the nearest possible size.
        """
        grid = -(-extent // block)
        order = axis_of_bits(grid)
        boxes = [box_of_bits(grid, count) * block for count in range(len(order) + 1)]
        # a shard that covers a whole axis may have any length along it
        clipped = [box.low(extent) for box in boxes]
        wanted = shard.low(extent)
        fits = [n for n, box in enumerate(clipped) if box.low(wanted) == box]
        if exactly and wanted not in clipped:
            nearest = boxes[min(range(len(clipped)), key=lambda n: _distance(clipped[n], wanted))]
            msg = (
                f"shards of {shard} cannot be built from blocks of {block} in a volume of {extent} "
                "(zyx, voxels): a shard grows from one block by doubling along x, y and z in turn, "
                "without the axes along which it already covers the volume; use the nearest "
                f"possible size, {nearest}"
            )
            raise VolumeError(msg)
        bits = clipped.index(wanted) if wanted in clipped else max(fits, default=0)
        preshift = min(bits, _PRESHIFT)
        return cls(preshift, bits - preshift, len(order) - bits, gzip_data=gzip_data)

    def shard_box(self, grid: Zyx) -> Zyx | None:
        """Return the number of blocks per shard, zyx, or ``None`` if shards are not boxes.

        Args:
            grid: number of blocks of the volume along each axis, zyx.
        """
        total = len(axis_of_bits(grid))
        bits = self.preshift_bits + self.minishard_bits
        if self.hash != "identity" or bits + self.shard_bits < total:
            return None
        return box_of_bits(grid, bits)

    @overload
    def place(self, number: int) -> tuple[int, int]: ...
    @overload
    def place(self, number: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]: ...
    def place(self, number: Any) -> tuple[Any, Any]:
        """Return the numbers of the shard and minishard that contain entry *number*.

        For an array of numbers, uint64, both results are arrays.
        """
        hashed = number >> self.preshift_bits
        if self.hash != "identity":
            hashed = murmurhash3_x86_128(hashed)
        minishard = hashed & ((1 << self.minishard_bits) - 1)
        return (hashed >> self.minishard_bits) & ((1 << self.shard_bits) - 1), minishard

    def first_number(self, shard: int) -> int:
        """Return the lowest block number in a shard, for a sharding without a hash."""
        return shard << (self.minishard_bits + self.preshift_bits)

    def file_name(self, shard: int) -> str:
        """Return the name of the file of a shard."""
        return f"{shard:0{max(1, -(-self.shard_bits // 4))}x}.shard"


def shard_content(
    sharding: Sharding,
    numbers: NDArray[np.uint64],
    lengths: NDArray[np.uint64],
    contents: Iterable[bytes | memoryview],
    gaps: NDArray[np.uint64] | None = None,
) -> bytes:
    """Return the content of a shard.

    Args:
        sharding: sharding of the shard.
        numbers: numbers of the entries, sorted by minishard, then by number.
        lengths: length of each entry, in bytes.
        contents: the bytes of the entries in the order of *numbers*, including the gaps; an item
            may contain several entries.
        gaps: for each entry, number of bytes between the previous entry and this entry (default:
            0). In a shard of meshes, for example, the fragments of a mesh are in the gap before the
            manifest of the mesh.
    """
    minishards = sharding.place(numbers)[1]
    index = np.zeros((1 << sharding.minishard_bits, 2), "<u8")
    parts: list[bytes | memoryview] = list(contents)
    gaps = np.zeros_like(lengths) if gaps is None else gaps
    end = int((gaps + lengths).sum())  # end of the entries; the minishard indices follow
    starts = np.flatnonzero(np.diff(minishards, prepend=minishards[:1] + np.uint64(1)))
    offset = 0
    for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=True):
        table = np.zeros((3, stop - start), "<u8")
        table[0] = np.diff(numbers[start:stop], prepend=np.uint64(0))
        # the index stores the gap between the end of an entry and the start of the next
        table[1], table[2] = gaps[start:stop], lengths[start:stop]
        table[1, 0] += offset
        offset = int(table[1:].sum())
        content = table.tobytes()
        parts.append(gzip_compress(content) if sharding.gzip_index else content)
        index[int(minishards[start])] = end, end + len(parts[-1])
        end += len(parts[-1])
    return b"".join([index.tobytes(), *parts])


def read_shard_index(read: Read, sharding: Sharding) -> NDArray[np.uint64] | None:
    """Return the positions of the indices of all minishards, as an array of shape (minishards, 2).

    Row i contains the start and the stop of the index of minishard i, in bytes after the end of the
    shard index. If the shard is not stored, the result is ``None``.

    Args:
        read: function (start, stop) -> bytes of the shard; ``None`` if the shard is not stored.
        sharding: sharding of the shard.

    Raises:
        ValueError: the shard is shorter than its index.
    """
    length = 16 << sharding.minishard_bits
    content = read(0, length)
    if content is None:
        return None
    if len(content) != length:
        msg = f"the shard has {len(content)} bytes, but its index alone needs {length} bytes"
        raise ValueError(msg)
    index: NDArray[np.uint64] = np.frombuffer(content, "<u8").reshape(-1, 2)
    return index


def read_minishard(
    read: Read, sharding: Sharding, bounds: NDArray[np.uint64]
) -> NDArray[np.uint64]:
    """Return number, start and stop of the n entries of a minishard, as an array of shape (3, n).

    The entries are sorted by number. Start and stop are byte positions in the shard.

    Args:
        read: function (start, stop) -> bytes of the shard.
        sharding: sharding of the shard.
        bounds: start and stop of the index of the minishard, from `read_shard_index`.

    Raises:
        ValueError: the index is damaged.
    """
    base = 16 << sharding.minishard_bits
    start, stop = (base + int(bound) for bound in bounds)
    if start == stop:
        return np.zeros((3, 0), np.uint64)
    if stop - start > _INDEX_BYTES:
        msg = (
            f"the index of a minishard has {stop - start} bytes, more than the limit of "
            f"{_INDEX_BYTES}"
        )
        raise ValueError(msg)
    content = exactly(read, start, stop)
    if sharding.gzip_index:
        content = unpacked(content, _INDEX_BYTES)
    index = np.frombuffer(content, "<u8").reshape(3, -1).copy()
    numbers, gaps, lengths = index
    np.cumsum(numbers, out=numbers)
    stops = np.cumsum(gaps + lengths) + np.uint64(base)
    index[1], index[2] = stops - lengths, stops
    return index[:, np.argsort(numbers, kind="stable")]


def exactly(read: Read, start: int, stop: int) -> bytes:
    """Return the bytes of a shard from *start* to *stop* (exclusive).

    Raises:
        ValueError: the shard ends before *stop*.
    """
    content = read(start, stop) or b""
    if start > stop or len(content) != stop - start:
        msg = f"the index refers to bytes {start} to {stop}, but the shard is shorter"
        raise ValueError(msg)
    return content


def unpacked(content: bytes, most: int) -> bytes:
    """Decompress gzip data of a shard.

    Args:
        content: the compressed data.
        most: limit of the decompressed bytes.

    Raises:
        ValueError: the data are damaged, or exceed the limit.
    """
    try:
        return decode("gzip", content, most)
    except Exception as error:  # the type of the error depends on the decoder
        msg = f"the gzip data of the shard cannot be decompressed ({error})"
        raise ValueError(msg) from error


@cache
def axis_of_bits(grid: Zyx) -> tuple[int, ...]:
    """Return the axis (0 is z) to which each bit of a block's number belongs, lowest bit first.

    Bits are assigned to x, y and z in turn. An axis is left out once it has enough bits for the
    number of blocks along this axis.

    Raises:
        VolumeError: block numbers need more than 64 bits.
    """
    highest = max((n - 1).bit_length() for n in grid)
    order = tuple(a for i in range(highest) for a in (2, 1, 0) if 1 << i < grid[a])
    if len(order) > 64:
        msg = (
            f"a grid of {grid} blocks (zyx) needs {len(order)} bits for block numbers; the limit "
            "is 64 bits; choose larger blocks"
        )
        raise VolumeError(msg)
    return order


def box_of_bits(grid: Zyx, count: int) -> Zyx:
    """Return the extent (blocks, zyx) of the box of all blocks with numbers below 2 ** *count*.

    Blocks whose numbers differ only in their lowest *count* bits form a box of this extent.
    """
    order = axis_of_bits(grid)[:count]
    return Zyx(*(1 << order.count(axis) for axis in range(len(AXES))))


@overload
def number_of_block(position: Zyx, grid: Zyx) -> int: ...
@overload
def number_of_block(position: Sequence[NDArray[Any]], grid: Zyx) -> NDArray[Any]: ...
def number_of_block(position: Any, grid: Zyx) -> Any:
    """Return the number (the compressed Morton code) of the block at *position* (blocks, zyx).

    If *position* is three arrays, the result is an array.
    """
    used, number = [0, 0, 0], 0 * position[0]
    for bit, axis in enumerate(axis_of_bits(grid)):
        number |= (position[axis] >> used[axis] & 1) << bit
        used[axis] += 1
    return number


def block_of_number(number: int, grid: Zyx) -> Zyx | None:
    """Return the position (blocks, zyx) of a block, or ``None`` if *number* is not in the grid."""
    position, used = [0, 0, 0], [0, 0, 0]
    order = axis_of_bits(grid)
    for bit, axis in enumerate(order):
        position[axis] |= (number >> bit & 1) << used[axis]
        used[axis] += 1
    block = Zyx(*position)
    return block if not number >> len(order) and block.low(grid - 1) == block else None


def murmurhash3_x86_128(value: Any) -> Any:
    """Return the lower 64 bits of the hash of a 64 bit number (or uint64 array), with seed 0.

    This is the reference implementation by Austin Appleby, ``MurmurHash3.cpp``, for 8 byte keys.
    """
    c1, c2, c3 = 0x239B961B, 0xAB0E9789, 0x38B34AE5
    k2 = _rotated((value >> 32) * c2, 16) * c3
    k1 = _rotated((value & _UINT32) * c1, 15) * c2
    h = [(k1 & _UINT32) ^ 8, (k2 & _UINT32) ^ 8, 8, 8]
    for final in (False, True):
        if final:
            h = [_mixed(part) for part in h]
        h[0] = sum(h) & _UINT32
        h[1:] = [(part + h[0]) & _UINT32 for part in h[1:]]
    return h[0] | h[1] << 32


def _rotated(value: Any, bits: int) -> Any:
    value &= _UINT32
    return (value << bits | value >> (32 - bits)) & _UINT32


def _mixed(h: Any) -> Any:
    h = ((h ^ h >> 16) * 0x85EBCA6B) & _UINT32
    h = ((h ^ h >> 13) * 0xC2B2AE35) & _UINT32
    return h ^ h >> 16


def _distance(size: Zyx, wanted: Zyx) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(size, wanted, strict=True))

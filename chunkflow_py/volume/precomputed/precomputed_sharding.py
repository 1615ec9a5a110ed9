"""Which shard of a precomputed volume holds a block.

```
number of a block              ... z1 y1 x1 z0 y0 x0    as many bits as the grid of blocks needs
hash(number >> preshift)       (unused) | shard | minishard
```

Without a hash the lowest bits are those of a box of blocks, so that a shard is a box.

Format: github.com/google/neuroglancer, ``datasource/precomputed/sharded.md`` and ``volume.md``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import AXES, Zyx
from chunkflow_py.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Mapping

_TYPE = "neuroglancer_uint64_sharded_v1"
_HASHES = ("identity", "murmurhash3_x86_128")
_ENCODINGS = ("raw", "gzip")
_PRESHIFT = 9  # up to 512 blocks share one index, which is read in one request
_MOST_MINISHARD_BITS = 22  # an index of 64 MiB in each shard
_UINT32 = 0xFFFFFFFF


@dataclass(frozen=True)
class Sharding:
    """How blocks are put together to shards.

    Attributes:
        preshift_bits: lowest bits of a block's number, which do not choose its place.
        minishard_bits: bits that choose the index within the shard.
        shard_bits: bits that choose the shard.
        hash: ``identity`` or ``murmurhash3_x86_128``.
        gzip_index: whether the indices of minishards are gzipped.
        gzip_data: whether blocks are gzipped.
    """

    preshift_bits: int
    minishard_bits: int
    shard_bits: int
    hash: str = "identity"
    gzip_index: bool = True
    gzip_data: bool = True

    @classmethod
    def parse(cls, said: Mapping[str, Any]) -> Sharding:
        """Return what an info file says.

        Raises:
            ValueError: it is not what the format allows.
        """
        if said["@type"] != _TYPE or said["hash"] not in _HASHES:
            msg = f"sharding {said['@type']!r} with hash {said['hash']!r} is not known"
            raise ValueError(msg)
        bits = [said[f"{name}_bits"] for name in ("preshift", "minishard", "shard")]
        if not all(type(n) is int and 0 <= n <= 64 for n in bits) or bits[1] + bits[2] > 64:
            msg = f"preshift, minishard and shard bits {bits} do not lie within 64"
            raise ValueError(msg)
        if bits[1] > _MOST_MINISHARD_BITS:
            msg = f"{bits[1]} bits for minishards, more than {_MOST_MINISHARD_BITS}"
            raise ValueError(msg)
        encodings = [said.get(f"{name}_encoding", "raw") for name in ("minishard_index", "data")]
        if not all(encoding in _ENCODINGS for encoding in encodings):
            msg = f"minishard index and data are encoded as {encodings}, not raw or gzip"
            raise ValueError(msg)
        index, data = (encoding == "gzip" for encoding in encodings)
        return cls(bits[0], bits[1], bits[2], said["hash"], index, data)

    def to_json(self) -> dict[str, Any]:
        """Return what the info file is to say."""
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
            shard: what is wanted, voxels; along an axis it may be longer than the volume.
            block: extent of a block, voxels.
            extent: of the volume, voxels.
            gzip_data: gzip the blocks.
            exactly: if not, take the largest shard that fits into the one that is wanted.

        Raises:
            VolumeError: there is no such sharding; names the nearest size that there is.
        """
        grid = -(-extent // block)
        order = axis_of_bits(grid)
        boxes = [box_of_bits(grid, count) * block for count in range(len(order) + 1)]
        # along an axis that a shard covers whole, it is as long as one likes
        cut = [box.low(extent) for box in boxes]
        wanted = shard.low(extent)
        fits = [n for n, box in enumerate(cut) if box.low(wanted) == box]
        if exactly and wanted not in cut:
            nearest = boxes[min(range(len(cut)), key=lambda n: _distance(cut[n], wanted))]
            msg = (
                f"shards of {shard} cannot be made of blocks {block} in a volume of {extent} "
                "(zyx, voxels): sharded precomputed volumes double a block along x, y, z in turn, "
                f"along each to the end of the volume; nearest possible is {nearest}"
            )
            raise VolumeError(msg)
        bits = cut.index(wanted) if wanted in cut else max(fits, default=0)
        preshift = min(bits, _PRESHIFT)
        return cls(preshift, bits - preshift, len(order) - bits, gzip_data=gzip_data)

    def shard_box(self, grid: Zyx) -> Zyx | None:
        """Return the blocks of a shard, zyx, or ``None`` where a shard is not a box.

        Args:
            grid: number of blocks along each axis.
        """
        total = len(axis_of_bits(grid))
        bits = self.preshift_bits + self.minishard_bits
        if self.hash != "identity" or bits + self.shard_bits < total:
            return None
        return box_of_bits(grid, bits)

    def place(self, number: int) -> tuple[int, int]:
        """Return shard and minishard of a block."""
        hashed = number >> self.preshift_bits
        if self.hash != "identity":
            hashed = murmurhash3_x86_128(hashed)
        minishard = hashed & ((1 << self.minishard_bits) - 1)
        return (hashed >> self.minishard_bits) & ((1 << self.shard_bits) - 1), minishard

    def first_number(self, shard: int) -> int:
        """Return the lowest number of a block in a shard, where there is no hash."""
        return shard << (self.minishard_bits + self.preshift_bits)

    def file_name(self, shard: int) -> str:
        """Return the name of the file of a shard."""
        return f"{shard:0{max(1, -(-self.shard_bits // 4))}x}.shard"


@cache
def axis_of_bits(grid: Zyx) -> tuple[int, ...]:
    """Return for each bit of a block's number, lowest first, the axis (0 is z) that it counts.

    x, y and z take turns; an axis leaves out when it has bits for all its blocks.

    Raises:
        VolumeError: 64 bits are not enough.
    """
    highest = max((n - 1).bit_length() for n in grid)
    order = tuple(a for i in range(highest) for a in (2, 1, 0) if 1 << i < grid[a])
    if len(order) > 64:
        msg = f"a grid of {grid} blocks (zyx) has more than 64 bits can number; take larger blocks"
        raise VolumeError(msg)
    return order


def box_of_bits(grid: Zyx, count: int) -> Zyx:
    """Return the blocks, zyx, whose numbers differ in the lowest *count* bits alone."""
    order = axis_of_bits(grid)[:count]
    return Zyx(*(1 << order.count(axis) for axis in range(len(AXES))))


def number_of_block(position: Zyx, grid: Zyx) -> int:
    """Return the number of the block at *position* (zyx), its compressed Morton code."""
    used, number = [0, 0, 0], 0
    for bit, axis in enumerate(axis_of_bits(grid)):
        number |= (position[axis] >> used[axis] & 1) << bit
        used[axis] += 1
    return number


def block_of_number(number: int, grid: Zyx) -> Zyx | None:
    """Return the position (zyx) of the block of a number, or ``None`` if the grid has none."""
    position, used = [0, 0, 0], [0, 0, 0]
    order = axis_of_bits(grid)
    for bit, axis in enumerate(order):
        position[axis] |= (number >> bit & 1) << used[axis]
        used[axis] += 1
    found = Zyx(*position)
    return found if not number >> len(order) and found.low(grid - 1) == found else None


def murmurhash3_x86_128(value: int) -> int:
    """Return the lower 64 bits of the hash of a 64 bit number, with seed 0.

    From the reference by Austin Appleby, ``MurmurHash3.cpp``, for a key of 8 bytes.
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


def _rotated(value: int, bits: int) -> int:
    value &= _UINT32
    return (value << bits | value >> (32 - bits)) & _UINT32


def _mixed(h: int) -> int:
    h = ((h ^ h >> 16) * 0x85EBCA6B) & _UINT32
    h = ((h ^ h >> 13) * 0xC2B2AE35) & _UINT32
    return h ^ h >> 16


def _distance(size: Zyx, wanted: Zyx) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(size, wanted, strict=True))

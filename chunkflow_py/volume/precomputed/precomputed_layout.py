"""Blocks of a precomputed volume: one object per block, or shards of many blocks.

```
8_8_40/0-64_0-64_0-32.gz      one block (x, y, z in voxels), gzipped, in a local folder
8_8_40/0-64_0-64_0-32         the same in a cloud, with the header Content-Encoding: gzip
8_8_40/0a.shard               | shard index | blocks ... | minishard indices: number, gap, length |
```

The number of a block determines its shard and its minishard (a group of blocks with one index):

```
number of a block              ... z1 y1 x1 z0 y0 x0    as many bits as the grid of blocks needs
hash(number >> preshift)       (unused) | shard | minishard
```

Without a hash, the lowest bits number the blocks of one box, so each shard is a box of blocks.

Format: github.com/google/neuroglancer, ``datasource/precomputed/sharded.md`` and ``volume.md``.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import decode, packed_most
from chunkflow_py.core.geometry import AXES, BoundingBox, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume.engine.block_layout import BlockLayout
from chunkflow_py.volume.engine.reproducible_gzip import gzip_compress
from chunkflow_py.volume.precomputed.precomputed_codec import PrecomputedCodec, decompressed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.engine.block_layout import Index
    from chunkflow_py.volume.precomputed.precomputed_info import PrecomputedLevel

    Read = Callable[[int, int], bytes | None]  # start and stop -> those bytes of the shard
    Spans = dict[int, tuple[int, int]]  # number of a block -> start and stop in the shard

_EXTENSIONS = ("", ".gz", ".br", ".zstd", ".xz", ".bz2")  # of cloud-volume
_BLOCK = re.compile(
    r"(?P<x>-?[0-9]+)--?[0-9]+_(?P<y>-?[0-9]+)--?[0-9]+_(?P<z>-?[0-9]+)--?[0-9]+"
    rf"(?P<end>{'|'.join(map(re.escape, _EXTENSIONS))})"
)
_CONTENT_TYPES = {
    "jpeg": "image/jpeg",
    "png": "image/png",
    "jxl": "image/jxl",
    "compressed_segmentation": "image/x.compressed_segmentation",
    "compresso": "image/x.compresso",
    "crackle": "image/x.crackle",
    "fpzip": "image/x.fpzip",
    "kempressed": "image/x.kempressed",
    "zfpc": "image/x.zfpc",
}
_CACHE_CONTROL = "no-cache"  # viewers must see new blocks
_HEX = re.compile("[0-9a-f]+")
_GAP_BYTES = 1 << 18  # reading a smaller gap between two blocks is cheaper than a second request
_CACHED_ENTRIES = 1 << 20  # of shard and minishard indices
_INDEX_BYTES = 1 << 24  # limit per minishard, which has a few hundred blocks of 24 bytes each
_TYPE = "neuroglancer_uint64_sharded_v1"
_HASHES = ("identity", "murmurhash3_x86_128")
_ENCODINGS = ("raw", "gzip")
_PRESHIFT = 9  # up to 512 blocks share one index, which is read in one request
_MOST_MINISHARD_BITS = 22  # an index of 64 MiB in each shard
_UINT32 = 0xFFFFFFFF


class PrecomputedLayout(BlockLayout):
    """Layout of a level with one object per block.

    Args:
        level: description of the level, from the info file.
        is_local: whether the store is a local folder, in which file extensions name the
            compression.

    Attributes:
        gzipped: whether blocks are gzipped when written.
    """

    def __init__(self, level: PrecomputedLevel, *, is_local: bool) -> None:
        """Load the library of the encoding.

        Raises:
            MissingExtraError: the library is not installed.
        """
        bounds, block = level.bounds, level.block_size
        lead = () if level.channels == 1 else (level.channels,)
        self.axes = ("c", "z", "y", "x") if lead else ("z", "y", "x")
        self.shape = (*lead, *bounds.size)
        self.block = self.unit = (*lead, *block)
        self.dtype = level.dtype
        self._level, self.root = level, level.key
        # in sharded volumes the sharding decides whether blocks are gzipped
        compress = level.compress if level.sharding is None else level.sharding.gzip_data
        self._codec = PrecomputedCodec(level.scale, level.dtype, compress=compress)
        self.gzipped = self._codec.gzipped
        self._is_local = is_local
        self._extension = ".gz" if self._codec.gzipped and is_local else ""  # of written blocks
        self._last_read = self._extension  # extension of the block that was read last
        self._has_others: bool | None = None  # whether the folder has blocks with rarer extensions

    def _box(self, block: Index) -> BoundingBox:
        """Return the box of a block, clipped to the volume."""
        bounds, size = self._level.bounds, self._level.block_size
        low = bounds.start + size * Zyx(*block[-3:])
        return BoundingBox(low, (low + size).low(bounds.stop))

    def _name(self, unit: Index) -> str:
        """Return the key of a block without its extension."""
        box = self._box(unit)
        spans = [f"{a}-{b}" for a, b in zip(box.start, box.stop, strict=True)]
        return f"{self._level.key}/{'_'.join(reversed(spans))}"

    def key(self, unit: Index) -> str:
        """Return the key under which a block is written."""
        return self._name(unit) + self._extension

    def unit_of(self, key: str) -> Index | None:
        """Return the block that object *key* stores; the key may have any extension."""
        match = _BLOCK.fullmatch(key.rpartition("/")[2])
        if match is None:
            return None
        low = Zyx(*(int(match[axis]) for axis in "zyx")) - self._level.bounds.start
        unit = (0,) * (len(self.block) - 3) + tuple(low // self._level.block_size)
        inside = low.low((0, 0, 0)) == (0, 0, 0) and low.low(self._level.bounds.size - 1) == low
        return unit if inside and self._name(unit) + match["end"] == key else None

    def decode(self, data: bytes, block: Index) -> NDArray[Any]:
        """Return the voxels of a block, clipped to the volume."""
        return self._codec.decode(data, (*self.shape[:-3], *self._box(block).size))

    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:  # noqa: ARG002
        """Return the bytes of a block."""
        return self._codec.encode(voxels)

    def fetch(
        self, store: Store, unit: Index, blocks: Sequence[Index]
    ) -> dict[Index, bytes | None]:
        """Return the bytes of a block, stored with any compression that cloud-volume can write."""
        name, data, most = self._name(unit), None, packed_most(self.block_bytes)
        for extension in self._extensions(self._last_read):
            data = store.get(name + extension, most)
            if data is not None:
                self._last_read = extension
                data = decompressed(data, extension, most)
                break
        return dict.fromkeys(blocks, data)

    def put(self, store: Store, unit: Index, blocks: Mapping[Index, bytes]) -> None:
        """Write a block, and remove its older copies with other extensions."""
        (data,) = blocks.values()
        name, encoding = self._name(unit), self._codec.encoding
        store.put(
            name + self._extension,
            data,
            content_type=content_type(encoding),
            content_encoding="gzip" if self._codec.gzipped and not self._is_local else None,
            cache_control=_CACHE_CONTROL,
        )
        for extension in self._stale(store):
            store.delete(name + extension)

    def remove(self, store: Store, unit: Index) -> None:
        """Remove a block, with all extensions."""
        for extension in self._extensions(self._extension):
            store.delete(self._name(unit) + extension)

    def exists(self, store: Store, unit: Index) -> bool:
        """Return whether a block is stored under a name with any extension."""
        name = self._name(unit)
        return any(store.size(name + e) is not None for e in self._extensions(self._last_read))

    def _stale(self, store: Store) -> Sequence[str]:
        """Return the extensions of older copies that must be removed after a write.

        If a block is stored both gzipped and without an extension, cloud-volume reads the copy
        without extension. Therefore, a write of either copy removes the other. Further extensions
        are rare. The folder is listed once to find out whether it has any, because checking all
        extensions for every block would take longer than writing a small block.
        """
        if not self._is_local:
            return ()
        rest = [e for e in self._extensions(self._extension)[1:] if e]
        if self._has_others is None:
            endings = (Path(key).suffix for key in store.list(f"{self._level.key}/"))
            self._has_others = any(ending in rest for ending in endings)
        return [*([""] if self._extension else [".gz"]), *(rest if self._has_others else ())]

    def _extensions(self, first: str) -> list[str]:
        """Return the extensions that a block may have, beginning with *first*.

        In clouds, blocks have no extension.
        """
        if not self._is_local:
            return [""]
        return [first, *(extension for extension in _EXTENSIONS if extension != first)]


def content_type(encoding: str) -> str:
    """Return the content type that cloud-volume gives to blocks of an encoding."""
    return _CONTENT_TYPES.get(encoding, "application/octet-stream")


class ShardedPrecomputedLayout(PrecomputedLayout):
    """Blocks of a level that are stored in shards.

    If each shard is a box of blocks, a shard is the write unit. With a hash, or with too few bits
    for shard numbers, the blocks of a shard are not neighbours, and the volume can only be read.
    """

    def __init__(self, level: PrecomputedLevel, sharding: Sharding, *, is_local: bool) -> None:
        """Derive the write unit from the sharding."""
        super().__init__(level, is_local=is_local)
        self._sharding = sharding
        self._grid = -(-level.bounds.size // level.block_size)
        self._box_of_blocks = sharding.shard_box(self._grid)
        if self._box_of_blocks is not None:
            self.unit = (*self.block[:-3], *(self._box_of_blocks * level.block_size))
        self._lock = Lock()
        self._indices: dict[tuple[int, int | None], Any] = {}  # by shard and minishard
        self._cached_entries = 0

    @property
    def writable(self) -> bool:
        """Whether each shard is a box of blocks, so that shards can be written."""
        return self._box_of_blocks is not None

    def key(self, unit: Index) -> str:
        """Return the key of the shard that stores *unit*."""
        return self._file(self._shard(unit))

    def unit_of(self, key: str) -> Index | None:
        """Return the unit of shard *key*; ``None`` if there is none, or if shards are not boxes."""
        name = key.removeprefix(f"{self._level.key}/").removesuffix(".shard")
        if self._box_of_blocks is None or not _HEX.fullmatch(name):
            return None
        shard = int(name, 16)
        position = block_of_number(self._sharding.first_number(shard), self._grid)
        if shard >> self._sharding.shard_bits or self._file(shard) != key or position is None:
            return None
        return (0,) * (len(self.block) - 3) + tuple(position // self._box_of_blocks)

    def _file(self, shard: int) -> str:
        return f"{self._level.key}/{self._sharding.file_name(shard)}"

    def _number(self, block: Index) -> int:
        return number_of_block(Zyx(*block[-3:]), self._grid)

    def _shard(self, unit: Index) -> int:
        first = Zyx(*unit[-3:]) * (self._box_of_blocks or 1)
        return self._sharding.place(number_of_block(first, self._grid))[0]

    # --- reading ---------------------------------------------------------------------------------

    def fetch(
        self, store: Store, unit: Index, blocks: Sequence[Index]
    ) -> dict[Index, bytes | None]:
        """Return the bytes of *blocks*; read the whole shard if they are at least half of it."""
        shard = self._shard(unit)
        key = self._file(shard)
        read: Read = lambda start, stop: store.get_range(key, start, stop)  # noqa: E731
        if 2 * len(blocks) >= self._blocks_of(unit) > 1:
            whole = store.get(key, self._most_stored())
            if whole is None:
                return dict.fromkeys(blocks)
            self._forget(shard)  # cached indices may be older than the shard
            read = lambda start, stop: whole[start:stop]  # noqa: E731
        spans = self._spans(read, shard, [self._number(block) for block in blocks])
        contents = _read_spans(read, spans)
        return {block: contents.get(self._number(block)) for block in blocks}

    def _most_stored(self) -> int:
        """Return the largest number of bytes that a shard may have."""
        blocks = (self._box_of_blocks or Zyx(1, 1, 1)).product()
        indices = (16 << self._sharding.minishard_bits) + packed_most(24 * blocks)
        return blocks * packed_most(self.block_bytes) + indices

    def exists(self, store: Store, unit: Index) -> bool:
        """Return whether *unit* is stored: a shard, or a block if shards are not boxes."""
        shard = self._shard(unit)
        if self.writable:
            return store.size(self._file(shard)) is not None
        read: Read = lambda start, stop: store.get_range(self._file(shard), start, stop)  # noqa: E731
        return bool(self._spans(read, shard, [self._number(unit)]))

    def _blocks_of(self, unit: Index) -> int:
        """Return the number of blocks of the volume in *unit*."""
        if self._box_of_blocks is None:
            return 1
        first = Zyx(*unit[-3:]) * self._box_of_blocks
        return ((first + self._box_of_blocks).low(self._grid) - first).product()

    def _spans(self, read: Read, shard: int, numbers: Sequence[int]) -> Spans:
        """Return the start and stop of each stored block in the shard: number -> (start, stop)."""
        spans: Spans = {}
        by_minishard = sorted((self._sharding.place(number)[1], number) for number in numbers)
        for minishard, group in groupby(by_minishard, key=lambda pair: pair[0]):
            index = self._minishard(read, shard, minishard)
            for _, number in group:
                row = int(np.searchsorted(index[0], np.uint64(number)))
                if row < index.shape[1] and index[0, row] == number:
                    span = int(index[1, row]), int(index[2, row])
                    if span[1] - span[0] > packed_most(self.block_bytes):
                        msg = f"its index gives {span[1] - span[0]} bytes to block {number}"
                        raise ValueError(msg)
                    spans[number] = span
        return spans

    def _minishard(self, read: Read, shard: int, minishard: int) -> NDArray[np.uint64]:
        """Return number, start and stop of each block of a minishard, (3, n), sorted by number."""
        known = self._known(shard, minishard)
        if known is not None:
            return known
        empty = np.zeros((3, 0), np.uint64)
        bounds = self._shard_index(read, shard)
        if bounds is None:
            return empty
        base = 16 << self._sharding.minishard_bits
        start, stop = (base + int(bound) for bound in bounds[minishard])
        if start == stop:
            return empty
        if stop - start > _INDEX_BYTES:
            msg = f"one of its indices has {stop - start} bytes; the limit is {_INDEX_BYTES}"
            raise ValueError(msg)
        codec = "gzip" if self._sharding.gzip_index else "raw"
        content = decode(codec, _exactly(read, start, stop), _INDEX_BYTES)
        index = np.frombuffer(content, "<u8").reshape(3, -1).copy()
        numbers, gaps, lengths = index
        np.cumsum(numbers, out=numbers)
        # the index stores the gap between the end of a block and the start of the next
        stops = np.cumsum(gaps + lengths) + np.uint64(base)
        index[1], index[2] = stops - lengths, stops
        index = index[:, np.argsort(numbers, kind="stable")]
        self._remember(shard, minishard, index)
        return index

    def _shard_index(self, read: Read, shard: int) -> NDArray[np.uint64] | None:
        """Return start and stop of each minishard index in the shard, shape (minishards, 2)."""
        known = self._known(shard, None)
        if known is not None:
            return known
        length = 16 << self._sharding.minishard_bits
        content = read(0, length)
        if content is None:
            return None
        if len(content) != length:
            msg = f"it ends after {len(content)} bytes, within its index of {length} bytes"
            raise ValueError(msg)
        index: NDArray[np.uint64] = np.frombuffer(content, "<u8").reshape(-1, 2)
        self._remember(shard, None, index)
        return index

    # --- cached indices --------------------------------------------------------------------------

    def _known(self, shard: int, minishard: int | None) -> NDArray[np.uint64] | None:
        with self._lock:
            return self._indices.get((shard, minishard))

    def _remember(self, shard: int, minishard: int | None, index: NDArray[np.uint64]) -> None:
        with self._lock:
            self._indices[shard, minishard] = index
            self._cached_entries += index.size
            while self._cached_entries > _CACHED_ENTRIES and len(self._indices) > 1:
                oldest = next(iter(self._indices))
                self._cached_entries -= self._indices.pop(oldest).size

    def _forget(self, shard: int) -> None:
        with self._lock:
            for key in [key for key in self._indices if key[0] == shard]:
                self._cached_entries -= self._indices.pop(key).size

    # --- writing ---------------------------------------------------------------------------------

    def put(self, store: Store, unit: Index, blocks: Mapping[Index, bytes]) -> None:
        """Write a whole shard."""
        shard = self._shard(unit)
        content = self._assembled({self._number(block): data for block, data in blocks.items()})
        self._forget(shard)
        store.put(
            self._file(shard),
            content,
            content_type="application/octet-stream",
            cache_control=_CACHE_CONTROL,
        )
        self._forget(shard)  # again: another thread may have read the old index meanwhile

    def remove(self, store: Store, unit: Index) -> None:
        """Remove a shard."""
        shard = self._shard(unit)
        store.delete(self._file(shard))
        self._forget(shard)

    def _assembled(self, blocks: Mapping[int, bytes]) -> bytes:
        """Return the content of a shard; *blocks* maps the number of a block to its bytes."""
        place = self._sharding.place
        numbers = sorted(blocks, key=lambda number: (place(number)[1], number))
        index = np.zeros((1 << self._sharding.minishard_bits, 2), "<u8")
        end = sum(map(len, blocks.values()))  # end of the blocks; the minishard indices follow
        parts: list[bytes] = [blocks[number] for number in numbers]
        offset = 0
        for minishard, group in groupby(numbers, key=lambda number: place(number)[1]):
            members = np.array(list(group), "<u8")
            lengths = [len(blocks[int(number)]) for number in members]
            table = np.zeros((3, len(members)), "<u8")
            table[0] = np.diff(members, prepend=np.uint64(0))
            table[1, 0] = offset
            table[2] = lengths
            offset += sum(lengths)
            content = table.tobytes()
            parts.append(gzip_compress(content) if self._sharding.gzip_index else content)
            index[minishard] = end, end + len(parts[-1])
            end += len(parts[-1])
        return b"".join([index.tobytes(), *parts])


def _read_spans(read: Read, spans: Spans) -> dict[int, bytes]:
    """Return the bytes of blocks: number -> bytes; read neighbouring blocks in one request."""
    contents: dict[int, bytes] = {}
    group: list[tuple[int, int, int]] = []

    def flush() -> None:
        first = group[0][0]
        content = _exactly(read, first, max(stop for _, stop, _ in group))
        for start, stop, number in group:
            contents[number] = content[start - first : stop - first]
        group.clear()

    for start, stop, number in sorted((*span, number) for number, span in spans.items()):
        if group and start > group[-1][1] + _GAP_BYTES:
            flush()
        group.append((start, stop, number))
    if group:
        flush()
    return contents


def _exactly(read: Read, start: int, stop: int) -> bytes:
    content = read(start, stop) or b""
    if start > stop or len(content) != stop - start:
        msg = f"its index refers to bytes {start} to {stop}, but the shard is shorter"
        raise ValueError(msg)
    return content


@dataclass(frozen=True)
class Sharding:
    """Assignment of blocks to shards: the field ``sharding`` of an info file.

    Attributes:
        preshift_bits: number of lowest bits of a block's number that do not affect its shard.
        minishard_bits: number of bits that choose the minishard within the shard.
        shard_bits: number of bits that choose the shard.
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
                f"preshift, minishard and shard bits are {bits}, but must be integers from 0 to "
                "64, and the last two must add up to at most 64"
            )
            raise ValueError(msg)
        if bits[1] > _MOST_MINISHARD_BITS:
            msg = f"minishard_bits is {bits[1]}; the limit is {_MOST_MINISHARD_BITS}"
            raise ValueError(msg)
        encodings = [
            document.get(f"{name}_encoding", "raw") for name in ("minishard_index", "data")
        ]
        if not all(encoding in _ENCODINGS for encoding in encodings):
            msg = f"minishard index and data are encoded as {encodings}, not raw or gzip"
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
            shard: requested size of a shard, voxels, zyx; it may be longer than the volume.
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
                f"shards of {shard} cannot be built from blocks {block} in a volume of {extent} "
                "(zyx, voxels): a shard is a block that is doubled along x, y, z in turn, along "
                "each axis up to the end of the volume; the nearest possible size is "
                f"{nearest}"
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

    def place(self, number: int) -> tuple[int, int]:
        """Return the numbers of the shard and minishard that contain block *number*."""
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


@cache
def axis_of_bits(grid: Zyx) -> tuple[int, ...]:
    """Return the axis (0 is z) to which each bit of a block's number belongs, lowest bit first.

    Bits are assigned to x, y and z in turn, until an axis has enough bits for all its blocks.

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
    """Return the extent (blocks, zyx) of the box of blocks that the lowest *count* bits number."""
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
    """Return the position (zyx) of a block by its number, or ``None`` if it is outside the grid."""
    position, used = [0, 0, 0], [0, 0, 0]
    order = axis_of_bits(grid)
    for bit, axis in enumerate(order):
        position[axis] |= (number >> bit & 1) << used[axis]
        used[axis] += 1
    block = Zyx(*position)
    return block if not number >> len(order) and block.low(grid - 1) == block else None


def murmurhash3_x86_128(value: int) -> int:
    """Return the lower 64 bits of the hash of a 64 bit number, with seed 0.

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


def _rotated(value: int, bits: int) -> int:
    value &= _UINT32
    return (value << bits | value >> (32 - bits)) & _UINT32


def _mixed(h: int) -> int:
    h = ((h ^ h >> 16) * 0x85EBCA6B) & _UINT32
    h = ((h ^ h >> 13) * 0xC2B2AE35) & _UINT32
    return h ^ h >> 16


def _distance(size: Zyx, wanted: Zyx) -> float:
    return sum(abs(math.log(a / b)) for a, b in zip(size, wanted, strict=True))

"""Locate, encode and decode the blocks of a precomputed volume: single objects, or shards.

```
8_8_40/0-64_0-64_0-32.gz      one block (x, y, z in voxels), gzipped, in a local folder
8_8_40/0-64_0-64_0-32         one block in a bucket, with the header Content-Encoding: gzip
8_8_40/0a.shard               many blocks in one shard; see `sharding`
```

The number of a block determines its shard. This number is the compressed Morton code of the block:

```
number of a block              ... z1 y1 x1 z0 y0 x0    as many bits as the grid of blocks needs
```

In most volumes, the numbers of the blocks of one shard differ only in their lowest bits, so each
shard is a box of neighbouring blocks. In some volumes, a hash of the number selects the shard, so
the blocks of a shard are not neighbours.

Format: github.com/google/neuroglancer, ``datasource/precomputed/sharded.md`` and ``volume.md``.
"""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import packed_most
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume.engine.block_layout import BlockLayout
from chunkflow_py.volume.precomputed.precomputed_codec import PrecomputedCodec, decompressed
from chunkflow_py.volume.precomputed.sharding import (
    Sharding,
    block_of_number,
    exactly,
    number_of_block,
    read_minishard,
    read_shard_index,
    shard_content,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.engine.block_layout import Index
    from chunkflow_py.volume.precomputed.precomputed_info import PrecomputedLevel
    from chunkflow_py.volume.precomputed.sharding import Read

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


class PrecomputedLayout(BlockLayout):
    """Layout of a level with one object per block.

    Args:
        level: description of the level, from the info file.
        is_local: whether the store is a local folder. In a folder, the extension of a file names
            its compression.

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
        """Return a dict with the encoded bytes of a block, from an object with any extension."""
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

        If a block is stored both with ``.gz`` and without an extension, cloud-volume reads the copy
        without extension. Therefore, a write of one copy removes the other copy. Blocks with other
        extensions are rare. The folder is listed only once, to see whether such blocks exist,
        because a check of all extensions for every block would take longer than writing a small
        block.
        """
        if not self._is_local:
            return ()
        rest = [e for e in self._extensions(self._extension)[1:] if e]
        if self._has_others is None:
            endings = (Path(key).suffix for key in store.list(f"{self._level.key}/"))
            self._has_others = any(ending in rest for ending in endings)
        return [*([""] if self._extension else [".gz"]), *(rest if self._has_others else ())]

    def _extensions(self, first: str) -> list[str]:
        """Return the file extensions that a block may have; *first* is the first item.

        In a bucket, names of blocks have no extension, and the list has one empty item.
        """
        if not self._is_local:
            return [""]
        return [first, *(extension for extension in _EXTENSIONS if extension != first)]


def content_type(encoding: str) -> str:
    """Return the content type that cloud-volume gives to blocks of an encoding."""
    return _CONTENT_TYPES.get(encoding, "application/octet-stream")


class ShardedPrecomputedLayout(PrecomputedLayout):
    """Blocks of a level that are stored in shards.

    If each shard is a box of blocks, a shard is the write unit. If the sharding hashes the numbers
    of blocks, or uses fewer bits than these numbers have, the blocks of a shard are not neighbours.
    Such a volume can only be read.
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
        """Return the unit that object *key* stores, or ``None`` if *key* is not the key of a shard.

        If the shards of the level are not boxes of blocks, the result is always ``None``.
        """
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
        """Return a dict with the encoded bytes of each of *blocks*, which are all in shard *unit*.

        If at least half of the blocks of the shard are requested, the whole shard is read.
        """
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
        """Return the limit of the size of a shard, in bytes."""
        blocks = (self._box_of_blocks or Zyx(1, 1, 1)).product()
        indices = (16 << self._sharding.minishard_bits) + packed_most(24 * blocks)
        return blocks * packed_most(self.block_bytes) + indices

    def exists(self, store: Store, unit: Index) -> bool:
        """Return whether *unit* is stored.

        A unit is a shard. If the shards are not boxes of blocks, a unit is a block.
        """
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
        spans: Spans = {}
        by_minishard = sorted((self._sharding.place(number)[1], number) for number in numbers)
        for minishard, group in groupby(by_minishard, key=lambda pair: pair[0]):
            index = self._minishard(read, shard, minishard)
            for _, number in group:
                row = int(np.searchsorted(index[0], np.uint64(number)))
                if row < index.shape[1] and index[0, row] == number:
                    span = int(index[1, row]), int(index[2, row])
                    if span[1] - span[0] > packed_most(self.block_bytes):
                        msg = (
                            f"the index of the shard says that block {number} has "
                            f"{span[1] - span[0]} bytes, which is more than a block can have"
                        )
                        raise ValueError(msg)
                    spans[number] = span
        return spans

    def _minishard(self, read: Read, shard: int, minishard: int) -> NDArray[np.uint64]:
        known = self._known(shard, minishard)
        if known is not None:
            return known
        bounds = self._shard_index(read, shard)
        if bounds is None:
            return np.zeros((3, 0), np.uint64)
        index = read_minishard(read, self._sharding, bounds[minishard])
        self._remember(shard, minishard, index)
        return index

    def _shard_index(self, read: Read, shard: int) -> NDArray[np.uint64] | None:
        known = self._known(shard, None)
        if known is not None:
            return known
        index = read_shard_index(read, self._sharding)
        if index is None:
            return None
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
        place = self._sharding.place
        numbers = sorted(blocks, key=lambda number: (place(number)[1], number))
        contents = [blocks[number] for number in numbers]
        lengths = np.array([len(content) for content in contents], np.uint64)
        return shard_content(self._sharding, np.array(numbers, np.uint64), lengths, contents)


def _read_spans(read: Read, spans: Spans) -> dict[int, bytes]:
    # Neighbouring blocks are read in one request.
    contents: dict[int, bytes] = {}
    group: list[tuple[int, int, int]] = []

    def flush() -> None:
        first = group[0][0]
        content = exactly(read, first, max(stop for _, stop, _ in group))
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

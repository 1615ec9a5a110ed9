"""Blocks of a precomputed volume put together to shards.

```
shard   | where the indices are | blocks ... | index of each minishard: number, place, length |
```
"""

from __future__ import annotations

import re
from itertools import groupby
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import decode, packed_most
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.volume.engine.deflate import compressed
from chunkflow_py.volume.precomputed.precomputed_layout import PrecomputedLayout
from chunkflow_py.volume.precomputed.precomputed_sharding import block_of_number, number_of_block

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.store.protocol import Store
    from chunkflow_py.volume.engine.layout import Index
    from chunkflow_py.volume.precomputed.precomputed_info import Level
    from chunkflow_py.volume.precomputed.precomputed_sharding import Sharding

    Read = Callable[[int, int], bytes | None]  # start and stop -> those bytes of the shard
    Spans = dict[int, tuple[int, int]]  # number of a block -> start and stop in the shard

_HEX = re.compile("[0-9a-f]+")
_GAP = 1 << 18  # bytes between two blocks that are read rather than asked for apart
_CACHED = 1 << 20  # entries of indices to keep
_INDEX_BYTES = 1 << 24  # of one minishard, which has a few hundred blocks, and 24 bytes for each


class ShardedLayout(PrecomputedLayout):
    """The blocks of one level in shards.

    Where a shard is a box of blocks, it is the unit, and can be written. By a hash, or by fewer
    bits than there are shards, blocks get together that do not lie together: these are only read.
    """

    def __init__(self, level: Level, sharding: Sharding, *, is_local: bool) -> None:
        """Take the unit from the sharding."""
        super().__init__(level, is_local=is_local)
        self._sharding = sharding
        self._grid = -(-level.bounds.size // level.block_size)
        self._box_of_blocks = sharding.shard_box(self._grid)
        if self._box_of_blocks is not None:
            self.unit = (*self.block[:-3], *(self._box_of_blocks * level.block_size))
        self._lock = Lock()
        self._cache: dict[tuple[int, int | None], Any] = {}
        self._cached = 0

    @property
    def writable(self) -> bool:
        """Whether a shard is a box of blocks."""
        return self._box_of_blocks is not None

    def key(self, unit: Index) -> str:
        """Return the key of the shard that holds *unit*."""
        return self._file(self._shard(unit))

    def unit_of(self, key: str) -> Index | None:
        """Return the unit whose shard this is; ``None`` also where a shard is no box."""
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
        """Return blocks of a shard: by ranges, or by the whole shard if half of it is wanted."""
        shard = self._shard(unit)
        key = self._file(shard)
        read: Read = lambda start, stop: store.get_range(key, start, stop)  # noqa: E731
        if 2 * len(blocks) >= self._blocks_of(unit) > 1:
            whole = store.get(key, self._most_stored())
            if whole is None:
                return dict.fromkeys(blocks)
            self._forget(shard)  # its indices are at hand, of this very moment
            read = lambda start, stop: whole[start:stop]  # noqa: E731
        spans = self._spans(read, shard, [self._number(block) for block in blocks])
        found = _read_spans(read, spans)
        return {block: found.get(self._number(block)) for block in blocks}

    def _most_stored(self) -> int:
        """Return the most bytes that a shard of a box of blocks may have."""
        blocks = (self._box_of_blocks or Zyx(1, 1, 1)).product()
        indices = (16 << self._sharding.minishard_bits) + packed_most(24 * blocks)
        return blocks * packed_most(self.block_bytes) + indices

    def exists(self, store: Store, unit: Index) -> bool:
        """Tell whether a shard is stored; where it is no box, whether the block is in it."""
        shard = self._shard(unit)
        if self.writable:
            return store.size(self._file(shard)) is not None
        read: Read = lambda start, stop: store.get_range(self._file(shard), start, stop)  # noqa: E731
        return bool(self._spans(read, shard, [self._number(unit)]))

    def _blocks_of(self, unit: Index) -> int:
        """Return how many blocks of the volume lie in *unit*."""
        if self._box_of_blocks is None:
            return 1
        first = Zyx(*unit[-3:]) * self._box_of_blocks
        return ((first + self._box_of_blocks).low(self._grid) - first).product()

    def _spans(self, read: Read, shard: int, numbers: Sequence[int]) -> Spans:
        """Return where blocks are in their shard; those that are not stored are left out."""
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
        """Return numbers, starts and stops of the blocks of a minishard, in order of numbers."""
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
            msg = f"an index of it has {stop - start} bytes, more than {_INDEX_BYTES}"
            raise ValueError(msg)
        codec = "gzip" if self._sharding.gzip_index else "raw"
        content = decode(codec, _exactly(read, start, stop), _INDEX_BYTES)
        index = np.frombuffer(content, "<u8").reshape(3, -1).copy()
        numbers, gaps, lengths = index
        np.cumsum(numbers, out=numbers)
        # each block begins a gap after the end of the one before
        stops = np.cumsum(gaps + lengths) + np.uint64(base)
        index[1], index[2] = stops - lengths, stops
        index = index[:, np.argsort(numbers, kind="stable")]
        self._remember(shard, minishard, index)
        return index

    def _shard_index(self, read: Read, shard: int) -> NDArray[np.uint64] | None:
        """Return where the indices of the minishards are, (minishard, 2)."""
        known = self._known(shard, None)
        if known is not None:
            return known
        length = 16 << self._sharding.minishard_bits
        content = read(0, length)
        if content is None:
            return None
        if len(content) != length:
            msg = f"it ends after {len(content)} bytes, within its index of {length}"
            raise ValueError(msg)
        index: NDArray[np.uint64] = np.frombuffer(content, "<u8").reshape(-1, 2)
        self._remember(shard, None, index)
        return index

    # --- indices that were read before -----------------------------------------------------------

    def _known(self, shard: int, minishard: int | None) -> NDArray[np.uint64] | None:
        with self._lock:
            return self._cache.get((shard, minishard))

    def _remember(self, shard: int, minishard: int | None, index: NDArray[np.uint64]) -> None:
        with self._lock:
            self._cache[shard, minishard] = index
            self._cached += index.size
            while self._cached > _CACHED and len(self._cache) > 1:
                self._cached -= self._cache.pop(next(iter(self._cache))).size

    def _forget(self, shard: int) -> None:
        with self._lock:
            for place in [place for place in self._cache if place[0] == shard]:
                self._cached -= self._cache.pop(place).size

    # --- writing ---------------------------------------------------------------------------------

    def put(self, store: Store, unit: Index, blocks: Mapping[Index, bytes]) -> None:
        """Write a shard, whole."""
        shard = self._shard(unit)
        content = self._assembled({self._number(block): data for block, data in blocks.items()})
        self._forget(shard)
        store.put(
            self._file(shard),
            content,
            content_type="application/octet-stream",
            cache_control="no-cache",
        )
        self._forget(shard)  # what was read meanwhile

    def remove(self, store: Store, unit: Index) -> None:
        """Remove a shard."""
        shard = self._shard(unit)
        store.delete(self._file(shard))
        self._forget(shard)

    def _assembled(self, blocks: Mapping[int, bytes]) -> bytes:
        """Return the content of a shard, of the blocks by their numbers."""
        place = self._sharding.place
        numbers = sorted(blocks, key=lambda number: (place(number)[1], number))
        index = np.zeros((1 << self._sharding.minishard_bits, 2), "<u8")
        end = sum(map(len, blocks.values()))  # of the blocks: indices follow
        parts: list[bytes] = [blocks[number] for number in numbers]
        before = 0
        for minishard, group in groupby(numbers, key=lambda number: place(number)[1]):
            here = np.array(list(group), "<u8")
            lengths = [len(blocks[int(number)]) for number in here]
            table = np.zeros((3, len(here)), "<u8")
            table[0] = np.diff(here, prepend=np.uint64(0))
            table[1, 0] = before
            table[2] = lengths
            before += sum(lengths)
            content = table.tobytes()
            parts.append(compressed(content) if self._sharding.gzip_index else content)
            index[minishard] = end, end + len(parts[-1])
            end += len(parts[-1])
        return b"".join([index.tobytes(), *parts])


def _read_spans(read: Read, spans: Spans) -> dict[int, bytes]:
    """Return the bytes of blocks; those that lie near each other are read in one go."""
    found: dict[int, bytes] = {}
    group: list[tuple[int, int, int]] = []

    def flush() -> None:
        first = group[0][0]
        content = _exactly(read, first, max(stop for _, stop, _ in group))
        for start, stop, number in group:
            found[number] = content[start - first : stop - first]
        group.clear()

    for start, stop, number in sorted((*span, number) for number, span in spans.items()):
        if group and start > group[-1][1] + _GAP:
            flush()
        group.append((start, stop, number))
    if group:
        flush()
    return found


def _exactly(read: Read, start: int, stop: int) -> bytes:
    content = read(start, stop) or b""
    if start > stop or len(content) != stop - start:
        msg = f"bytes {start} to {stop} of it are wanted, but it ends before"
        raise ValueError(msg)
    return content

"""Compute the keys of the blocks of a zarr array (v2 or v3), and read and write its shards.

A shard is one object that contains several blocks, in any order, and an index of their positions:

```
| block | block |  ...  | block | index: (begin, bytes) of each block, crc32c |
```

The index may also be at the start of the shard. For a block that is not stored, both numbers in the
index are 2^64 - 1. See
https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from chunkflow_py.core.decoding import packed_most
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume.engine.block_layout import BlockLayout
from chunkflow_py.volume.zarr.zarr_codecs import v2_chain, v3_chain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    import zarr
    from numpy.typing import NDArray

    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.engine.block_layout import Index

_ABSENT = 2**64 - 1
_NUMBER = re.compile("[0-9]+")
_GAP_BYTES = 1 << 18  # in clouds, reading a smaller gap is cheaper than a second request


class ZarrLayout(BlockLayout):
    """Computes the keys of the blocks of an array without shards; encodes and decodes the blocks.

    Args:
        array: array of zarr-python, of which only the metadata are used.
        document: content of the ``.zarray`` or ``zarr.json`` of the array.
        axes: names of the axes of the array.
        prefix: key of the array in the store, empty or with a final ``/``.
        url: address of the volume, for messages.
    """

    def __init__(
        self,
        array: zarr.Array[Any],
        document: Mapping[str, Any],
        axes: Sequence[str],
        prefix: str,
        url: str,
    ) -> None:
        """Read shape and codecs from the metadata.

        Raises:
            VolumeError: the voxels are not numbers, or a codec is not supported.
        """
        stored = np.dtype(array.dtype)
        if stored.kind not in "biuf":
            msg = (
                f"{url} contains {stored} values, but the voxels of a volume must be numbers; "
                "choose another array"
            )
            raise VolumeError(msg)
        self.axes, self.shape, self.block = tuple(axes), tuple(array.shape), tuple(array.chunks)
        self.unit = tuple(array.shards or array.chunks)
        if not all(length > 0 for length in (*self.block, *self.unit)):
            msg = (
                f"{url} has blocks of extent {self.block} in shards of {self.unit}, but extents "
                "must be positive; correct the metadata of the volume"
            )
            raise VolumeError(msg)
        self.dtype = stored.newbyteorder("=")
        self.fill = 0 if array.fill_value is None else self.dtype.type(array.fill_value)
        self._prefix, self._encode_key = prefix, array.metadata.encode_chunk_key
        self.root = prefix.rstrip("/")
        self._chain = (
            v2_chain(document, self.dtype, url)
            if document["zarr_format"] == 2
            else v3_chain(self._codecs(document), self.block, self.dtype, url)
        )

    def _codecs(self, document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        return cast("Sequence[Mapping[str, Any]]", document["codecs"])

    def key(self, unit: Index) -> str:
        """Return the key of the object that stores the write unit with index *unit*."""
        return f"{self._prefix}{self._encode_key(unit)}"

    def unit_of(self, key: str) -> Index | None:
        """Return the index of the write unit at *key*; ``None`` if this array has no such key."""
        unit = tuple(map(int, _NUMBER.findall(key.removeprefix(self._prefix))))
        return unit if len(unit) == len(self.shape) and self.key(unit) == key else None

    def decode(self, data: bytes, block: Index) -> NDArray[Any]:  # noqa: ARG002  (all have one extent)
        """Return all voxels of a block, with the padding that zarr stores beyond the array."""
        return self._chain.decode(data)

    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:  # noqa: ARG002
        """Return the bytes of a block, padded with the fill value beyond the edge of the array."""
        if voxels.shape != self.block:
            whole = np.full(self.block, self.fill, self.dtype)
            whole[tuple(slice(length) for length in voxels.shape)] = voxels
            voxels = whole
        return self._chain.encode(voxels)


class ShardedZarrLayout(ZarrLayout):
    """Reads and writes the shards of an array; the arguments are those of `ZarrLayout`."""

    def _codecs(self, document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
        """Read the format of the index from the sharding codec; return the codecs of the blocks.

        Raises:
            VolumeError: the array has nested shards, other codecs beside the sharding codec, or
                index codecs other than bytes and crc32c.
        """
        (sharding, *others) = document["codecs"]
        config = sharding["configuration"]
        inner: list[Mapping[str, Any]] = config["codecs"]
        index = [codec["name"] for codec in config["index_codecs"]]
        problem = ""
        if any(codec["name"] == "sharding_indexed" for codec in (*others, *inner)):
            problem = "nested shards"
        elif others:
            problem = f"codecs beside the sharding codec ({', '.join(c['name'] for c in others)})"
        elif index not in (["bytes"], ["bytes", "crc32c"]):
            problem = f"index codecs other than bytes and crc32c ({', '.join(index)})"
        if problem:
            msg = (
                f"the array has {problem}, which are not supported; store the array again with "
                "one sharding codec, no codec beside it, and the index codecs bytes and crc32c"
            )
            raise VolumeError(msg)
        self._counts = tuple(u // b for u, b in zip(self.unit, self.block, strict=True))
        self._index_chain = v3_chain(
            config["index_codecs"], (math.prod(self._counts), 2), np.dtype(np.uint64), "the index"
        )
        self._index_bytes = 16 * math.prod(self._counts) + (4 if "crc32c" in index else 0)
        self._index_first = config.get("index_location") == "start"
        return inner

    def _number(self, block: Index) -> int:
        """Return the number of a block in its shard, in C order."""
        number = 0
        for position, count in zip(block, self._counts, strict=True):
            number = number * count + position % count
        return number

    # --- reading ---------------------------------------------------------------------------------

    def fetch(
        self, store: Store, unit: Index, blocks: Sequence[Index]
    ) -> dict[Index, bytes | None]:
        """Return the encoded *blocks* of the shard *unit*; ``None`` for a block that is not stored.

        If at least half of the blocks of the shard are requested, the whole shard is read. If fewer
        blocks are requested, the index is read first, then the requested blocks. Blocks that are
        close together in the shard are read in one request.

        Raises:
            ValueError: the index is damaged, or refers to bytes beyond the end of the shard.
        """
        key = self.key(unit)
        inside = [
            min(count, -(-(length - u * extent) // block))
            for count, length, u, extent, block in zip(
                self._counts, self.shape, unit, self.unit, self.block, strict=True
            )
        ]
        if 2 * len(blocks) >= math.prod(inside):
            most = math.prod(self._counts) * packed_most(self.block_bytes) + self._index_bytes
            return self._cut(store.get(key, most), blocks)
        size = self._index_bytes
        head = store.get_range(key, *((0, size) if self._index_first else (-size, 0)))
        if head is None:
            return dict.fromkeys(blocks)
        spans = self._spans(head, blocks)
        gap = 0 if store.is_local else _GAP_BYTES
        runs = _runs(spans.values(), gap)

        def read(run: tuple[int, int]) -> memoryview:
            return memoryview(store.get_range(key, *run) or b"")

        if len(runs) > 1 and not store.is_local:
            with ThreadPoolExecutor(min(len(runs), store.connections)) as pool:
                data = list(pool.map(read, runs))
        else:
            data = [read(run) for run in runs]
        fetched: dict[Index, bytes | None] = dict.fromkeys(blocks)
        for block, (begin, end) in spans.items():
            run = bisect_right(runs, (begin, math.inf)) - 1
            start = runs[run][0]
            fetched[block] = _slice(data[run], begin - start, end - start)
        return fetched

    def _cut(self, shard: bytes | None, blocks: Sequence[Index]) -> dict[Index, bytes | None]:
        if shard is None:
            return dict.fromkeys(blocks)
        size = self._index_bytes
        spans = self._spans(shard[:size] if self._index_first else shard[-size:], blocks)
        view = memoryview(shard)
        return {block: _slice(view, *spans[block]) if block in spans else None for block in blocks}

    def _spans(self, index: bytes, blocks: Sequence[Index]) -> dict[Index, tuple[int, int]]:
        if len(index) != self._index_bytes:
            msg = f"the shard is shorter than its index of {self._index_bytes} bytes"
            raise ValueError(msg)
        entries = self._index_chain.decode(index)
        spans = {}
        for block in blocks:
            begin, length = entries[self._number(block)].tolist()
            if begin != _ABSENT or length != _ABSENT:
                if length > packed_most(self.block_bytes):
                    msg = (
                        f"the index of the shard says that block {block} has {length} bytes, which "
                        "is more than a block can have"
                    )
                    raise ValueError(msg)
                spans[block] = (begin, begin + length)
        return spans

    # --- writing ---------------------------------------------------------------------------------

    def put(self, store: Store, unit: Index, blocks: Mapping[Index, bytes]) -> None:
        """Write a whole shard, with its blocks in C order."""
        entries = np.full((math.prod(self._counts), 2), _ABSENT, np.uint64)
        ordered = sorted(blocks.items(), key=lambda item: self._number(item[0]))
        begin = self._index_bytes if self._index_first else 0
        for block, data in ordered:
            entries[self._number(block)] = begin, len(data)
            begin += len(data)
        parts = [data for _, data in ordered]
        parts.insert(0 if self._index_first else len(parts), self._index_chain.encode(entries))
        store.put(self.key(unit), b"".join(parts))


def layout_of(
    array: zarr.Array[Any],
    document: Mapping[str, Any],
    axes: Sequence[str],
    prefix: str,
    url: str,
) -> ZarrLayout:
    """Return the layout of an array with or without shards; see `ZarrLayout`."""
    kind = ZarrLayout if array.shards is None else ShardedZarrLayout
    return kind(array, document, axes, prefix, url)


def _runs(spans: Iterable[tuple[int, int]], gap: int) -> list[tuple[int, int]]:
    """Merge spans that are up to *gap* bytes apart."""
    runs: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if runs and begin <= runs[-1][1] + gap:
            runs[-1] = (runs[-1][0], max(runs[-1][1], end))
        else:
            runs.append((begin, end))
    return runs


def _slice(data: memoryview, begin: int, end: int) -> bytes:
    """Return a part of *data* without a copy.

    Raises:
        ValueError: the part extends beyond the end of *data*.
    """
    if end > len(data):
        msg = f"the shard ends {end - len(data)} bytes before the end of a block"
        raise ValueError(msg)
    return cast("bytes", data[begin:end])

"""Merge the annotations of all tasks into one collection, in a limited amount of memory.

```
parts of tasks -> 256 buckets by hash of the id -> each bucket sorted, repetitions removed
               -> level of each annotation, in the order of the hashes
               -> for each index: buckets by shard -> shards
```

All rows are sorted by ids or by hashes of ids, so the bytes of the collection do not depend on how
the volume was divided into tasks. The levels of the spatial index are filled one after the other,
with annotations in the order of hashes. A level is full if the next annotation would exceed the
limit of a cell. As hashes are random, each level is a random sample of the annotations.

If two tasks that overlap store the same annotation with the same id, the collection contains this
annotation once. Different annotations with the same id are an error.
"""

from __future__ import annotations

import logging
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.annotations import take_lists
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.store.recording_store import RecordingStore
from chunkflow_py.store.store_protocol import together
from chunkflow_py.volume.engine.reproducible_gzip import gzip_compress
from chunkflow_py.volume.precomputed.annotation_buckets import Buckets, runs_of
from chunkflow_py.volume.precomputed.annotation_format import (
    BY_ID,
    Index,
    Info,
    Schema,
    content_ids,
    encoded_entries,
    encoded_lists,
    sharding_for,
)
from chunkflow_py.volume.precomputed.annotation_grid import Grid, levels_of
from chunkflow_py.volume.precomputed.annotation_parts import check_inside, parts_in
from chunkflow_py.volume.precomputed.sharding import (
    Sharding,
    murmurhash3_x86_128,
    shard_content,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.annotations import Annotations
    from chunkflow_py.store.store_protocol import Store, Stored
    from chunkflow_py.volume.precomputed.annotation_format import Packed
    from chunkflow_py.volume.precomputed.annotation_parts import AnnotationPart

    Lists = list[NDArray[np.uint64]]  # the segments of all annotations, for each relation

logger = logging.getLogger(__name__)

LIMIT = 1000
SMALLEST_CELL = Zyx(32, 32, 32)
_BUCKET_BITS = 8
_NEAR_BITS = 3  # eight neighbouring cells have a common minishard
_OURS = ("by_", "spatial")  # beginnings of the names of folders


@dataclass(frozen=True)
class MergeSettings:
    """Settings of a merge.

    Attributes:
        limit: largest number of annotations in a cell of the spatial index. The finest level has no
            limit, because it contains all remaining annotations.
        smallest_cell: lower limit of the size of a cell, voxels, zyx.
        sharded: whether to write shards instead of one object for each annotation, segment and
            cell.
        allow_missing: whether to merge even if some tasks have stored no file of annotations.
        scratch: folder for temporary files (default: the system's folder for temporary files).
    """

    limit: int = LIMIT
    smallest_cell: Zyx = SMALLEST_CELL
    sharded: bool = True
    allow_missing: bool = False
    scratch: str | None = None


def merge_annotations(
    parts: Store, target: Store, settings: MergeSettings | None = None
) -> list[Stored]:
    """Write the annotations of all tasks as one collection; return records of the written objects.

    Args:
        parts: store with one file of annotations (a part) for each task.
        target: store of the collection.
        settings: settings of the merge.

    Raises:
        VolumeError: parts are missing, are damaged or do not match each other, or two different
            annotations have the same id.
        ChunkError: an annotation lies outside the bounds.
    """
    settings = settings or MergeSettings()
    with tempfile.TemporaryDirectory(prefix="annotations-", dir=settings.scratch) as folder:
        collected = _Collected(Path(folder), parts.url)
        for part in parts_in(parts, allow_missing=settings.allow_missing):
            collected.add(part)
        with together(target) as gathering:
            store = RecordingStore(gathering)
            info = _Writer(collected, store, settings, Path(folder)).write()
        written = {stored.url for stored in store.written}
        last = RecordingStore(target)
        for key in list(target.list()):
            address = f"{target.url.rstrip('/')}/{key}"
            if "/" in key and key.startswith(_OURS) and address not in written:
                target.delete(key)  # of an earlier merge
        last.put("info", info.encoded(), content_type="application/json", cache_control="no-cache")
    return sorted([*store.written, *last.written], key=lambda stored: stored.url)


class _Collected:
    """The annotations of all tasks, in buckets by the hash of the id.

    Args:
        folder: folder for temporary files.
        url: address of the parts, for messages.
    """

    def __init__(self, folder: Path, url: str) -> None:
        self._folder, self._url = folder, url
        self._schema: Schema | None = None
        self._given_ids = False
        self._bounds: BoundingBox | None = None
        self._parts = self.repeated = 0
        self._low, self._high = np.full(3, np.inf), np.full(3, -np.inf)
        self._rows: Buckets
        self._segments: list[Buckets]

    def add(self, part: AnnotationPart) -> None:
        """Add the annotations of a task."""
        if self._parts and part.bounds != self._bounds:
            self._differ("bounds", self._bounds, part.bounds)
        self._parts, self._bounds = self._parts + 1, part.bounds
        found = part.annotations
        if found is None:
            return
        check_inside(found, part.bounds)
        schema = Schema.of(found)
        if self._schema is None:
            self._schema, self._given_ids = schema, found.ids is not None
            self._rows = Buckets(self._folder / "rows", row_dtype(schema))
            self._segments = [
                Buckets(self._folder / f"segments{number}", "<u8")
                for number in range(len(schema.relations))
            ]
        if schema != self._schema:
            self._differ("descriptions", self._schema, schema)
        if (found.ids is not None) != self._given_ids:
            given = ("given", "not given")
            self._differ("ids", *(given if self._given_ids else reversed(given)))
        self._add(found, schema)

    def _differ(self, what: str, first: object, second: object) -> None:
        msg = (
            f"the annotations of tasks in {self._url} have different {what}, {first} and "
            f"{second}; remove the files that another pipeline has stored there, or save the "
            "annotations of all tasks again"
        )
        raise VolumeError(msg)

    def _add(self, found: Annotations, schema: Schema) -> None:
        if not len(found):
            return
        low, high = found.hull()
        self._low = np.minimum(self._low, low.min(axis=0))
        self._high = np.maximum(self._high, high.max(axis=0))
        rows = np.zeros(len(found), row_dtype(schema))
        rows["packed"] = schema.encode(found)
        ids = content_ids(rows["packed"], found.relations) if found.ids is None else found.ids
        rows["id"] = ids
        for number, relation in enumerate(found.relations):
            rows["counts"][:, number] = relation.counts
        buckets = murmurhash3_x86_128(rows["id"]) >> np.uint64(64 - _BUCKET_BITS)
        scatter(buckets, rows, [each.segments for each in found.relations], self._rows,
                self._segments)  # fmt: skip

    @property
    def schema(self) -> Schema:
        """The description that the annotations of all tasks share.

        Raises:
            VolumeError: no task has a result.
        """
        if self._schema is None:
            msg = (
                f"all {self._parts} tasks in {self._url} have the result None, so the kind of the "
                "annotations is unknown; at least one task must save annotations, points or "
                "synapses (an empty collection is enough)"
            )
            raise VolumeError(msg)
        return self._schema

    @property
    def bounds(self) -> BoundingBox:
        """Bounds that tasks have stored; if there are none, the box around all annotations."""
        if self._bounds is not None:
            return self._bounds
        if not np.isfinite(self._low).all():
            return BoundingBox(Zyx(0, 0, 0), Zyx(1, 1, 1))
        low = np.floor(self._low)
        high = np.maximum(np.ceil(self._high), low + 1)
        return BoundingBox(Zyx.of(low.astype(int).tolist()), Zyx.of(high.astype(int).tolist()))

    def in_order(self) -> Iterator[tuple[NDArray[Any], Lists]]:
        """Yield rows and the ids of their segments, in the order of the hashes of the rows' ids.

        Each row id occurs once.

        Raises:
            VolumeError: two different annotations have the same id.
        """
        self.repeated = 0
        for number in sorted(self._rows.counts):
            rows = self._rows.read(number)
            lists = [buckets.read(number) for buckets in self._segments]
            hashes = murmurhash3_x86_128(rows["id"])
            rows, lists = taken(rows, lists, np.lexsort((rows["id"], hashes)))
            repeated = np.zeros(len(rows), bool)
            repeated[1:] = rows["id"][1:] == rows["id"][:-1]
            if repeated.any():
                self._check_equal(rows, lists, np.flatnonzero(repeated))
                self.repeated += int(repeated.sum())
                rows, lists = taken(rows, lists, np.flatnonzero(~repeated))
            yield rows, lists

    def _check_equal(self, rows: NDArray[Any], lists: Lists, second: NDArray[Any]) -> None:
        one, ones = taken(rows, lists, second - 1)
        two, twos = taken(rows, lists, second)
        differ = (one["packed"] != two["packed"]).any(axis=1)
        differ |= (one["counts"] != two["counts"]).any(axis=1)
        if not differ.any():
            for number, (a, b) in enumerate(zip(ones, twos, strict=True)):
                owners = np.repeat(np.arange(len(one)), one["counts"][:, number])
                differ[owners[a != b]] = True
        if differ.any():
            at = int(np.argmax(differ))
            places = [
                self.schema.geometry(x["packed"][at : at + 1])[0].tolist() for x in (one, two)
            ]
            msg = (
                f"two different annotations in {self._url}, at {places[0]} and {places[1]} (zyx, "
                f"voxels), have the id {one['id'][at]}; give each annotation a different id"
            )
            raise VolumeError(msg)


def row_dtype(schema: Schema) -> np.dtype[Any]:
    """Return the dtype of a row that stores one annotation.

    The fields are the id, the packed annotation, and the number of segments of each relation.
    """
    relations = len(schema.relations)
    return np.dtype(
        [("id", "<u8"), ("packed", "<u4", (schema.width,)), ("counts", "<u4", (relations,))]
    )


def taken(rows: NDArray[Any], lists: Lists, order: NDArray[Any]) -> tuple[NDArray[Any], Lists]:
    """Return the rows at the indices *order*, and the ids of the segments related to these rows.

    *lists* has one array for each relation of the collection: the ids of the segments that are
    related to the first row, then those of the second row, and so on.
    """
    numbered = enumerate(lists)
    return rows[order], [take_lists(rows["counts"][:, k], each, order)[1] for k, each in numbered]


def scatter(
    numbers: NDArray[Any], rows: NDArray[Any], lists: Lists, into: Buckets, segments: list[Buckets]
) -> None:
    """Add row i, and the ids of its segments, to the buckets with the number ``numbers[i]``.

    Args:
        numbers: number of the bucket of each row.
        rows: rows of the type `row_dtype`.
        lists: for each relation, the ids of the related segments, row by row.
        into: buckets to which the rows are added.
        segments: for each relation, the buckets to which the ids of segments are added.
    """
    into.add(numbers, rows)
    for number, (each, buckets) in enumerate(zip(lists, segments, strict=True)):
        buckets.add(np.repeat(numbers, rows["counts"][:, number]), each)


class _Levels:
    """Assigns annotations, which arrive in the order of hashes, to the levels of the spatial index.

    Args:
        grids: grids of all levels.
        limit: largest number of annotations in a cell; the last level has no limit.
        schema: description that all annotations share.
        folder: folder for temporary files; bucket i contains the annotations of level i.
    """

    def __init__(self, grids: Sequence[Grid], limit: int, schema: Schema, folder: Path) -> None:
        self.grids, self.limits = grids, [limit] * len(grids)
        self._schema, self._limit, self._level = schema, limit, 0
        self._cells, self._counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)
        self.rows = Buckets(folder, pair_dtype(schema))
        self.occupied: list[int] = []

    def add(self, rows: NDArray[Any]) -> None:
        """Add annotations."""
        geometry = self._schema.geometry(rows["packed"])
        start = 0
        while start < len(rows):
            start += self._add(rows[start:], geometry[start:])

    def _add(self, rows: NDArray[Any], geometry: NDArray[np.float32]) -> int:
        """Add annotations to the current level until a cell is full; return how many were added."""
        grid, is_last = self.grids[self._level], self._level == len(self.grids) - 1
        for found, cells in grid.pairs(self._schema.kind, geometry):
            stop = len(rows)
            if not is_last:
                stop = self._first_too_many(found, cells, stop)
            here = found < stop
            pairs = np.zeros(int(here.sum()), self.rows_dtype)
            pairs["key"] = cells[here]
            pairs["id"], pairs["packed"] = (rows[name][found[here]] for name in ("id", "packed"))
            self.rows.append(self._level, pairs)
            self._count(cells[here])
            if stop < len(rows):
                self.close()
                self._level += 1
                return stop
        return len(rows)

    @property
    def rows_dtype(self) -> np.dtype[Any]:
        """Dtype of the rows in the buckets of the levels; see `pair_dtype`."""
        return pair_dtype(self._schema)

    def _first_too_many(
        self, found: NDArray[np.int64], cells: NDArray[np.uint64], stop: int
    ) -> int:
        """Return the index of the first annotation that does not fit into its cell; else *stop*."""
        order = np.argsort(cells, kind="stable")
        ordered = cells[order]
        starts, counts = runs_of(ordered)
        rank = np.arange(len(ordered)) - np.repeat(starts, counts)
        at = np.searchsorted(self._cells, ordered)
        if len(self._cells):
            at = np.minimum(at, len(self._cells) - 1)
            rank += np.where(self._cells[at] == ordered, self._counts[at], 0)
        too_many = found[order[rank >= self._limit]]
        return int(too_many.min()) if len(too_many) else stop

    def _count(self, cells: NDArray[np.uint64]) -> None:
        new, counts = np.unique(cells, return_counts=True)
        both = np.concatenate([self._cells, new])
        self._cells, where = np.unique(both, return_inverse=True)
        weights = np.concatenate([self._counts, counts])
        self._counts = np.bincount(where, weights, len(self._cells)).astype(np.int64)

    def close(self) -> None:
        """Finish the current level."""
        self.occupied.append(len(self._cells))
        if len(self._counts):
            largest = int(self._counts.max())
            self.limits[self._level] = max(self._limit, largest)
        self._cells, self._counts = np.zeros(0, np.uint64), np.zeros(0, np.int64)


def pair_dtype(schema: Schema) -> np.dtype[Any]:
    """Return the dtype of a row that assigns an annotation to a cell or to a segment.

    The fields are the number of the cell or segment, the id, and the packed annotation.
    """
    return np.dtype([("key", "<u8"), ("id", "<u8"), ("packed", "<u4", (schema.width,))])


class _Writer:
    """Writes the indices of a collection."""

    def __init__(
        self, collected: _Collected, store: RecordingStore, settings: MergeSettings, folder: Path
    ) -> None:
        self._collected, self._store, self._settings = collected, store, settings
        self._schema, self._folder = collected.schema, folder

    def write(self) -> Info:
        """Write all indices; return the content of the info file."""
        schema, bounds = self._schema, self._collected.bounds
        grids = levels_of(bounds, schema.voxel_size_nm, self._settings.smallest_cell)
        levels = _Levels(grids, self._settings.limit, schema, self._folder / "levels")
        related = [
            Buckets(self._folder / f"related{number}", pair_dtype(schema))
            for number in range(len(schema.relations))
        ]
        total = segments = 0
        for rows, lists in self._collected.in_order():
            total += len(rows)
            levels.add(rows)
            for number, each in enumerate(lists):
                segments += len(each)
                owners = np.repeat(np.arange(len(rows)), rows["counts"][:, number])
                pairs = np.zeros(len(each), pair_dtype(schema))
                pairs["key"] = each
                pairs["id"], pairs["packed"] = rows["id"][owners], rows["packed"][owners]
                related[number].append(0, pairs)
        levels.close()
        size = total * 4 * (schema.width + len(schema.relations)) + 8 * segments
        by_id = self._entries(total, size)
        indices = [
            self._lists(Index(f"by_{name}"), rows, 0, len(rows))
            for name, rows in zip(schema.relations, related, strict=True)
        ]
        spatial = [
            self._lists(
                Index(f"spatial{level}", None, grids[level].count, grids[level].cell,
                      levels.limits[level]), levels.rows, level, occupied
            )
            for level, occupied in enumerate(levels.occupied)
        ]  # fmt: skip
        logger.info(
            "merged %d annotations, %d of them stored by several tasks, into %d levels",
            total, self._collected.repeated, len(spatial)
        )  # fmt: skip
        top = grids[0].start + grids[0].cell
        lower, upper = (tuple(map(float, corner)) for corner in (grids[0].start, top))
        return Info(schema, lower, upper, by_id, tuple(indices), tuple(spatial))  # type: ignore[arg-type]

    def _entries(self, count: int, size: int) -> Index:
        """Write the index in which annotations are found by id."""
        sharding = sharding_for(count, size)
        index = self._final(Index(BY_ID), sharding)
        shards = Buckets(self._folder / "entries", row_dtype(self._schema))
        segments = [
            Buckets(self._folder / f"entries{number}", "<u8")
            for number in range(len(self._schema.relations))
        ]
        for rows, lists in self._collected.in_order():
            scatter(sharding.place(rows["id"])[0], rows, lists, shards, segments)
        for shard in sorted(shards.counts):
            rows, lists = shards.read(shard), [each.read(shard) for each in segments]
            order = np.lexsort((rows["id"], sharding.place(rows["id"])[1]))
            rows, lists = taken(rows, lists, order)
            columns = zip(rows["counts"].T, lists, strict=True)
            lengths, packed = encoded_entries(rows["packed"], list(columns))
            self._put(index, sharding, shard, rows["id"], lengths, packed)
            for each in (shards, *segments):
                each.remove(shard)
        return index

    def _lists(self, index: Index, rows: Buckets, bucket: int, count: int) -> Index:
        """Write an index in which each number has a list of annotations.

        Args:
            index: the index, without a sharding.
            rows: buckets of rows of type `pair_dtype`, each in the order of hashes.
            bucket: number of the bucket whose rows belong to this index.
            count: number of lists, or an upper limit.
        """
        is_spatial = index.grid is not None
        size = rows.counts.get(bucket, 0) * pair_dtype(self._schema).itemsize
        near = _NEAR_BITS if is_spatial else 0
        sharding = sharding_for(count, size, near=near, compress=is_spatial)
        index = self._final(index, sharding)
        shards = Buckets(self._folder / index.key, pair_dtype(self._schema))
        for batch in rows.batches(bucket):
            shards.add(sharding.place(batch["key"])[0], batch)
        rows.remove(bucket)
        for shard in sorted(shards.counts):
            pairs = shards.read(shard)
            shards.remove(shard)
            pairs = pairs[np.lexsort((pairs["key"], sharding.place(pairs["key"])[1]))]
            starts, counts = runs_of(pairs["key"])
            lengths, packed = encoded_lists(counts, pairs["packed"], pairs["id"])
            self._put(index, sharding, shard, pairs["key"][starts], lengths, packed)
        return index

    def _final(self, index: Index, sharding: Sharding) -> Index:
        return replace(index, sharding=sharding if self._settings.sharded else None)

    def _put(
        self,
        index: Index,
        sharding: Sharding,
        shard: int,
        numbers: NDArray[np.uint64],
        lengths: NDArray[np.int64],
        packed: Packed,
    ) -> None:
        """Write a shard, or one object for each of its entries."""
        ends = np.cumsum(lengths)
        entries: Sequence[Any] = [packed]
        if sharding.gzip_data or not self._settings.sharded:
            entries = [packed[end - n : end] for end, n in zip(ends, lengths, strict=True)]
        if not self._settings.sharded:
            for number, entry in zip(numbers, entries, strict=True):
                self._save(f"{index.key}/{index.name(int(number))}", entry.tobytes())
            return
        sizes, contents = 4 * lengths, [entry.tobytes() for entry in entries]
        if sharding.gzip_data:
            contents = [gzip_compress(content) for content in contents]
            sizes = np.array([len(content) for content in contents])
        content = shard_content(sharding, numbers, sizes.astype(np.uint64), contents)
        self._save(f"{index.key}/{sharding.file_name(shard)}", content)

    def _save(self, key: str, data: bytes) -> None:
        kind = "application/octet-stream"
        self._store.put(key, data, content_type=kind, cache_control="no-cache")

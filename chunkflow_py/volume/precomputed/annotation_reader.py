"""Read annotations in the precomputed format of Neuroglancer."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from chunkflow_py.core.annotations import Relation, uint64_ids
from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import ChunkError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import Access
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.precomputed.annotation_format import Info, decoded_entry, decoded_list
from chunkflow_py.volume.precomputed.annotation_grid import cell_numbers
from chunkflow_py.volume.precomputed.sharding import (
    exactly,
    number_of_block,
    read_minishard,
    read_shard_index,
    unpacked,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.annotations import Annotations
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.precomputed.annotation_format import Index, Schema
    from chunkflow_py.volume.precomputed.sharding import Read, Sharding

_MOST_BYTES = 1 << 30  # of one list of annotations
_MOST_CELLS = 1 << 22  # that one box may touch


def open_annotations(url: str, access: Access | None = None) -> AnnotationCollection:
    """Open a collection of annotations.

    Args:
        url: URL of the folder that contains the info file.
        access: access options of the store.

    Raises:
        VolumeNotFoundError: there is no collection at *url*.
        VolumeError: the info file is damaged, or describes annotations that are not supported.
    """
    store = open_store(Location.parse(url).store_url, access or Access())
    data = store.get("info")
    if data is None:
        msg = (
            f"{store.url} has no info file of annotations; check the URL, or run merge-annotations"
        )
        raise VolumeNotFoundError(msg)
    try:
        info = Info.parse(parse_json(data))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, ChunkError) as error:
        msg = (
            f"cannot read {store.url}/info, which is damaged or describes annotations that are not "
            f"supported: {error}; check the URL, or run merge-annotations again"
        )
        raise VolumeError(msg) from error
    return AnnotationCollection(store, info)


class AnnotationCollection:
    """Annotations in a store, which can be read by id, by segment or by box.

    Args:
        store: store of the collection.
        info: content of the info file.
    """

    def __init__(self, store: Store, info: Info) -> None:
        """Store the arguments; annotations are read only when a method is called."""
        self._store, self.info = store, info

    @property
    def schema(self) -> Schema:
        """Kind, voxel size, properties and relations."""
        return self.info.schema

    def ids(self) -> NDArray[np.uint64]:
        """Return the ids of all annotations, sorted."""
        return np.sort(np.array(list(self._numbers(self.info.by_id)), np.uint64))

    def get(self, ids: Iterable[int] | NDArray[np.uint64]) -> Annotations:
        """Return the annotations with these *ids*, in this order, and the ids of their segments.

        Raises:
            ChunkError: a number in *ids* is not an unsigned integer of 64 bits.
            VolumeNotFoundError: the collection has no annotation for at least one of the *ids*.
            VolumeError: an annotation is damaged.
        """
        schema = self.schema
        wanted = uint64_ids(ids, "id of an annotation")
        found = self._entries(self.info.by_id, wanted.tolist())
        packed = np.zeros((len(wanted), schema.width), np.uint32)
        segments: list[list[NDArray[np.uint64]]] = [[] for _ in schema.relations]
        for row, number in enumerate(wanted.tolist()):
            if number not in found:
                msg = f"{self._store.url} has no annotation with the id {number}; check the id"
                raise VolumeNotFoundError(msg)
            try:
                packed[row], lists = decoded_entry(found[number], schema.width, len(segments))
            except ValueError as error:
                raise VolumeError(self._damaged(f"annotation {number}", error)) from error
            for known, new in zip(segments, lists, strict=True):
                known.append(new)
        relations = [
            Relation(name, np.array([len(each) for each in lists]), np.concatenate(lists))
            for name, lists in zip(schema.relations, segments, strict=True)
            if lists
        ]
        return schema.decode(packed, wanted, relations)

    def related(self, relation: str, segment: int) -> Annotations:
        """Return the annotations that a relation links to a segment; the result may be empty.

        Args:
            relation: name of the relation.
            segment: id of the segment.

        Raises:
            OptionError: the collection has no relation of this name.
            VolumeError: the annotations are damaged.
        """
        if relation not in self.schema.relations:
            known = ", ".join(self.schema.relations) or "none"
            msg = f"{self._store.url} has no relation {relation!r}; its relations are: {known}"
            raise OptionError(msg)
        index = self.info.related[self.schema.relations.index(relation)]
        (segment,) = uint64_ids([segment], "id of a segment").tolist()
        return self._joined([(index, [segment])])

    def inside(self, box: BoundingBox) -> Annotations:
        """Return the annotations that touch *box* (in voxels; its stop is exclusive).

        The ids of segments are not included in the result; `get` returns them.

        Raises:
            VolumeError: annotations are damaged.
        """
        annotations = self._joined((each, self._cells(each, box)) for each in self.info.spatial)
        low, high = annotations.hull()
        touches = (high >= box.start) & (low < box.stop)
        return annotations.take(np.flatnonzero(touches.all(axis=1)))

    def level(self, level: int) -> Annotations:
        """Return the annotations of one level of the spatial index; 0 is the coarsest.

        Raises:
            OptionError: the collection has no level of this number.
            VolumeError: annotations are damaged.
        """
        if not 0 <= level < len(self.info.spatial):
            msg = (
                f"the spatial index of {self._store.url} has {len(self.info.spatial)} levels, "
                f"numbered from 0, but no level {level}; choose another level"
            )
            raise OptionError(msg)
        index = self.info.spatial[level]
        return self._joined([(index, list(self._numbers(index)))])

    def _cells(self, index: Index, box: BoundingBox) -> list[int]:
        """Return the numbers of the cells of a level that touch *box*."""
        if index.grid is None or index.cell is None:
            return []
        low = (np.array(box.start) - self.info.lower) / index.cell
        high = (np.array(box.stop) - self.info.lower) / index.cell
        first = np.clip(np.floor(low), 0, np.array(index.grid) - 1).astype(int)
        last = np.clip(np.ceil(high), first + 1, index.grid).astype(int)
        count = int(np.prod((last - first).astype(object)))
        if count > _MOST_CELLS:
            msg = (
                f"box {box} touches {count:,} cells of {index.key} (a level of the spatial index "
                f"of {self._store.url}), but at most {_MOST_CELLS:,} cells can be read at once; "
                "give a smaller box"
            )
            raise VolumeError(msg)
        axes = [np.arange(a, b) for a, b in zip(first, last, strict=True)]
        cells = np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, 3)
        return [int(number) for number in cell_numbers(cells, index.grid)]

    def _joined(self, lists: Iterable[tuple[Index, list[int]]]) -> Annotations:
        packed, ids = [np.zeros((0, self.schema.width), np.uint32)], [np.zeros(0, np.uint64)]
        for index, numbers in lists:
            for number, data in self._entries(index, numbers).items():
                try:
                    new = decoded_list(data, self.schema.width)
                except ValueError as error:
                    what = f"{index.key}/{index.name(number)}"
                    raise VolumeError(self._damaged(what, error)) from error
                packed.append(new[0])
                ids.append(new[1])
        unique, first = np.unique(np.concatenate(ids), return_index=True)
        return self.schema.decode(np.concatenate(packed)[first], unique)

    # --- entries of indices -----------------------------------------------------------------------

    def _entries(self, index: Index, numbers: list[int]) -> dict[int, bytes]:
        """Return the stored entries of an index: number -> content."""
        sharding = index.sharding
        if sharding is None:
            keys = {number: f"{index.key}/{index.name(number)}" for number in numbers}
            with ThreadPoolExecutor(self._store.connections, "annotations") as threads:
                contents = threads.map(lambda key: self._store.get(key, _MOST_BYTES), keys.values())
                pairs = zip(keys, contents, strict=True)
                return {number: data for number, data in pairs if data is not None}
        found = {}
        placed = sorted((*sharding.place(number), number) for number in numbers)
        for (shard, minishard), group in groupby(placed, key=lambda each: each[:2]):
            key = f"{index.key}/{sharding.file_name(shard)}"
            read = self._reader(key)
            entries = self._minishard(key, sharding, minishard)
            try:
                wanted = np.array([number for *_, number in group], np.uint64)
                for at in np.flatnonzero(np.isin(entries[0], wanted)):
                    data = exactly(read, int(entries[1, at]), int(entries[2, at]))
                    if sharding.gzip_data:
                        data = unpacked(data, _MOST_BYTES)
                    found[int(entries[0, at])] = data
            except ValueError as error:
                raise VolumeError(self._damaged(key, error)) from error
        return found

    def _reader(self, key: str) -> Read:
        return lambda start, stop: self._store.get_range(key, start, stop)

    def _minishard(self, key: str, sharding: Sharding, minishard: int) -> NDArray[np.uint64]:
        """Return an array of shape (3, n): number, start byte and stop byte of n entries.

        Raises:
            VolumeError: the shard is damaged.
        """
        try:
            index = read_shard_index(self._reader(key), sharding)
            if index is None:
                return np.zeros((3, 0), np.uint64)
            return read_minishard(self._reader(key), sharding, index[minishard])
        except ValueError as error:
            raise VolumeError(self._damaged(key, error)) from error

    def _numbers(self, index: Index) -> Iterator[int]:
        """Yield the numbers of all entries of an index."""
        for key in sorted(self._store.list(f"{index.key}/")):
            name = key.rpartition("/")[2]
            if index.sharding is not None:
                if not name.endswith(".shard"):
                    continue
                for minishard in range(1 << index.sharding.minishard_bits):
                    yield from self._minishard(key, index.sharding, minishard)[0].tolist()
            elif index.grid is None:
                yield from [int(name)] if is_digits(name) else []
            elif all(map(is_digits, parts := name.split("_"))) and len(parts) == 3:
                yield number_of_block(Zyx.of(int(part) for part in parts[::-1]), index.grid)

    def _damaged(self, what: str, error: Exception) -> str:
        return f"{what} of {self._store.url} is damaged: {error}; run merge-annotations again"

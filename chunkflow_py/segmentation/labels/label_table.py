"""Label tables: they map each id that a task has made to the id of the whole object.

```
URL/table.json          the first id of each piece, checksums, and the number of entries
URL/000000.npy          the first piece, (n, 2) uint64, sorted by old id: old id, new id
URL/000001.npy          the next piece, and so on
```

The table lists only ids that change. The table is divided into pieces, one .npy file each. A task
reads only the pieces that can contain ids of the task. Ids are numbered in raster order, one z
slice after the other, so these pieces contain few ids from other z slices. ``table.json`` is
written last, so a table is either complete or absent. In a time series, each time point has a
separate table; the table of time index 3 is in the folder ``t3``.
"""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import npy, parse_json
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError, needs_extra
from chunkflow_py.segmentation.labels.union_find import Forest
from chunkflow_py.store.store_protocol import checksum_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import Region
    from chunkflow_py.store.store_protocol import Store

FORMAT = "chunkflow labels 1"
INDEX = "table.json"
_INDEX_BYTES = 1 << 26  # a million pieces
PIECE = 2**16  # entries of a piece: 1 MiB
_KEPT = 256  # number of pieces in the cache of a process


def solve(
    links: Iterable[tuple[Region, NDArray[np.uint64]]],
) -> dict[int | None, NDArray[np.uint64]]:
    """Return the labels to replace, so that each object gets the smallest of its labels.

    Args:
        links: for each task, its region and (n, 2) pairs of labels; the labels of a pair belong to
            one object.

    Returns:
        Dictionary from time index (``None`` without a time axis) to an array of shape (n, 2),
        uint64, with a column of old labels, ascending, and a column of new labels.
    """
    forests: dict[int | None, Forest] = {}
    for region, pairs in links:
        forests.setdefault(region.time, Forest()).add(pairs)
    return {time: forest.changes() for time, forest in forests.items()}


def write_table(
    store: Store, changes: NDArray[np.uint64], time: int | None = None, *, piece: int = PIECE
) -> str:
    """Write a label table, and return the checksum of ``table.json``.

    ``table.json`` contains the checksums of all pieces, so its checksum identifies the whole table.

    Args:
        store: store of the table.
        changes: array of shape (n, 2): a column of old ids, ascending, and a column of new ids.
        time: time index of the table (``None`` without a time axis).
        piece: limit of the number of entries in a piece.
    """
    parts = [changes[at : at + piece] for at in range(0, len(changes), piece)]
    contents = [_npy(part) for part in parts]
    index = {
        "format": FORMAT,
        "entries": len(changes),
        "first": [int(part[0, 0]) for part in parts],
        "checksums": [checksum_of(content) for content in contents],
    }
    folder = _folder(time)
    with ThreadPoolExecutor(store.connections, "table") as threads:
        keys = [f"{folder}{number:06d}.npy" for number in range(len(parts))]
        list(threads.map(store.put, keys, contents))
    content = json.dumps(index).encode()
    store.put(f"{folder}{INDEX}", content, content_type="application/json")
    return checksum_of(content)


class LabelTable:
    """A stored label table that reads and caches its pieces on demand.

    Args:
        store: store of the table.
        time: time index of the table (``None`` without a time axis).
    """

    def __init__(self, store: Store, time: int | None = None) -> None:
        self._store, self._folder = store, _folder(time)
        self._piece = lru_cache(_KEPT)(self._read)

    @cached_property
    def index(self) -> dict[str, Any]:
        """Content of ``table.json``.

        Raises:
            VolumeNotFoundError: the table does not exist.
            VolumeError: the file is damaged, or is not a table.
        """
        key = f"{self._folder}{INDEX}"
        data = self._store.get(key, _INDEX_BYTES)
        if data is None:
            msg = (
                f"{self._store.url} has no label table ({key}); run solve-labels in an earlier step"
            )
            raise VolumeNotFoundError(msg)
        try:
            index: dict[str, Any] = parse_json(data, _INDEX_BYTES)
            if index["format"] == FORMAT and len(index["first"]) == len(index["checksums"]):
                return index
        except (ValueError, KeyError, TypeError):
            pass
        msg = f"{key} of {self._store.url} is not a label table; run solve-labels again"
        raise VolumeError(msg)

    def new_ids(self, ids: NDArray[np.uint64]) -> NDArray[np.uint64]:
        """Return the new id of each of *ids*, which must be in ascending order.

        An id that is not in the table does not change.
        """
        first = np.array(self.index["first"], np.uint64)
        pieces = np.searchsorted(first, ids, side="right") - 1
        new = ids.copy()
        for number in np.unique(pieces[pieces >= 0]):
            table = self._piece(int(number))
            mine = np.flatnonzero(pieces == number)
            places = np.searchsorted(table[:, 0], ids[mine])
            places = np.minimum(places, len(table) - 1)
            listed = table[places, 0] == ids[mine]
            new[mine[listed]] = table[places[listed], 1]
        return new

    def entries(self) -> NDArray[np.uint64]:
        """Return the whole table, (n, 2): old id (ascending), new id."""
        pieces = [self._read(number) for number in range(len(self.index["first"]))]
        return np.concatenate([np.empty((0, 2), np.uint64), *pieces])

    def _read(self, number: int) -> NDArray[np.uint64]:
        key = f"{self._folder}{number:06d}.npy"
        data = self._store.get(key)
        if data is None or checksum_of(data) != self.index["checksums"][number]:
            why = "is missing" if data is None else "disagrees with the checksum in table.json"
            msg = f"{key} of {self._store.url} {why}; run solve-labels again"
            raise VolumeError(msg)
        try:
            table: NDArray[np.uint64] = npy(data, len(data))
        except ValueError as error:
            msg = f"{key} of {self._store.url} is not an array; run solve-labels again"
            raise VolumeError(msg) from error
        return table


class ObjectCount:
    """Counts the distinct ids in the results of all tasks.

    An `ObjectCount` needs 8 to 24 bytes of memory for each distinct id.
    """

    def __init__(self) -> None:
        self._known: dict[int | None, NDArray[np.uint64]] = {}
        self._new: dict[int | None, list[NDArray[np.uint64]]] = {}

    def add(self, time: int | None, ids: NDArray[np.uint64]) -> None:
        """Add the distinct ids of one task at time index *time*."""
        new = self._new.setdefault(time, [])
        new.append(ids[ids != 0])
        # Merging when the number of ids has doubled sorts each id only a few times.
        if sum(map(len, new)) > max(2**16, len(self._known.get(time, ()))):
            self._merge(time)

    def total(self) -> int:
        """Return the number of distinct ids; an id counts once for each time point."""
        for time in self._new:
            self._merge(time)
        return sum(map(len, self._known.values()))

    def _merge(self, time: int | None) -> None:
        known = self._known.get(time, np.zeros(0, np.uint64))
        self._known[time] = np.unique(np.concatenate((known, *self._new[time])))
        self._new[time] = []


def relabelled(
    labels: NDArray[Any],
    table: LabelTable,
    note: Callable[[NDArray[np.uint64]], None] | None = None,
) -> NDArray[np.uint64]:
    """Return an array in which each label is replaced by the id of the whole object.

    Args:
        labels: any shape, integers of at least 0.
        table: label table of the volume.
        note: function that is called with arrays of the ids in the result, to count objects. An id
            may be in several of the arrays.

    Returns:
        The ids, same shape, uint64.

    Raises:
        ChunkError: the labels are not integers, or are negative.
        VolumeError: the table is missing or damaged.
    """
    if labels.dtype.kind not in "bu" and not (labels.dtype.kind == "i" and not (labels < 0).any()):
        msg = (
            f"voxels of type {labels.dtype} are not labels, or some are negative; relabel needs "
            "integers of 0 or more"
        )
        raise ChunkError(msg)
    with needs_extra("segmentation", "relabel"):
        import fastremap
    result = np.array(labels, np.uint64, order="C")
    if not result.size:
        return result
    ids = fastremap.unique(result)
    new = table.new_ids(ids)
    if note is not None:
        note(new)
    changed = ids != new
    if changed.any():
        result = fastremap.remap_from_array_kv(result.ravel(), ids[changed], new[changed])
    return result.reshape(labels.shape)


def _npy(array: NDArray[Any]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.ascontiguousarray(array), allow_pickle=False)
    return buffer.getvalue()


def _folder(time: int | None) -> str:
    return "" if time is None else f"t{time}/"

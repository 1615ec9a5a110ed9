"""Storage of a hierarchy: the merges of all boxes, sorted from the best contact to the worst.

```
URL/hierarchy.json     the settings of the graph, checksums, and the number of merges
URL/000000.npz         the columns of the best merges, see `contacts.Contacts`
URL/000001.npz         the columns of the next merges, and so on
```

``hierarchy.json`` is written last, so a hierarchy is either complete or absent.

All merges together may not fit into memory. Therefore, the merges are first divided among temporary
files, one file for each interval of mean affinities. Then each file is sorted by itself.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.segmentation.agglomeration.contacts import Contacts, mean_keys
from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean, scale_of
from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings, contact_columns
from chunkflow_py.segmentation.agglomeration.hierarchy import reaches
from chunkflow_py.segmentation.agglomeration.region_merging import Merges
from chunkflow_py.segmentation.labels.links import decoded, encoded
from chunkflow_py.store.store_protocol import checksum_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chunkflow_py.store.store_protocol import Store

INDEX = "hierarchy.json"
PIECE = 2**20  # merges of a piece
_INDEX_BYTES = 1 << 26
_INTERVALS = 256  # of mean affinities, each sorted by itself
_ROW = np.dtype([(name, column.dtype) for name, column in Contacts.none().columns().items()])


def write_hierarchy(
    store: Store, parts: Iterable[Merges], settings: GraphSettings, *, piece: int = PIECE
) -> None:
    """Sort the merges of all boxes, and write them as a hierarchy.

    Args:
        store: store of the hierarchy.
        parts: merges of all boxes, in any order.
        settings: settings of the graph.
        piece: limit of the number of merges in one file.
    """
    checksums: list[str] = []
    merges = 0
    with tempfile.TemporaryDirectory(prefix="chunkflow-hierarchy-") as folder:
        for interval in _sorted_intervals(parts, settings, Path(folder)):
            for at in range(0, len(interval), piece):
                content = encoded(**interval.rows(slice(at, at + piece)).columns())
                store.put(_key(len(checksums)), content)
                checksums.append(checksum_of(content))
            merges += len(interval)
    index = {"settings": settings.to_json(), "merges": merges, "checksums": checksums}
    store.put(INDEX, json.dumps(index).encode(), content_type="application/json")


def _sorted_intervals(
    parts: Iterable[Merges], settings: GraphSettings, folder: Path
) -> Iterator[Contacts]:
    width = -(-(scale_of(settings.dtype) + 1) // _INTERVALS)
    paths: dict[int, Path] = {}
    for part in parts:
        table = part.contacts
        intervals = mean_keys(table.total, table.count)[0] // width
        for interval in np.unique(intervals).tolist():
            columns = table.rows(intervals == interval).columns()
            rows = np.empty(len(columns["tie"]), _ROW)
            for name, column in columns.items():
                rows[name] = column
            path = paths.setdefault(interval, folder / str(interval))
            with path.open("ab") as file:
                rows.tofile(file)
    for interval in sorted(paths, reverse=True):
        rows = np.fromfile(paths.pop(interval), _ROW)
        yield Merges(Contacts(*(rows[name] for name in _ROW.names or ()))).sorted().contacts


def read_settings(store: Store) -> GraphSettings:
    """Return the settings of the graph whose hierarchy is stored.

    Raises:
        VolumeNotFoundError: there is no hierarchy.
        VolumeError: ``hierarchy.json`` is damaged.
    """
    return _index(store)[0]


def _index(store: Store) -> tuple[GraphSettings, list[str]]:
    data = store.get(INDEX, _INDEX_BYTES)
    if data is None:
        msg = f"{store.url} has no hierarchy ({INDEX}); run segment-affinity first"
        raise VolumeNotFoundError(msg)
    try:
        index: dict[str, Any] = parse_json(data, _INDEX_BYTES)
        checksums, text = index["checksums"], index["settings"]
        is_index = isinstance(checksums, list) and isinstance(text, str)
    except (ValueError, KeyError, TypeError):
        is_index = False
    if not is_index:
        msg = f"{INDEX} of {store.url} is not the index of a hierarchy; run segment-affinity again"
        raise VolumeError(msg)
    settings = GraphSettings.from_json(text.encode(), f"{store.url}/{INDEX}")
    return settings, list(map(str, checksums))


def read_hierarchy(store: Store, threshold: float | None = None) -> tuple[Merges, GraphSettings]:
    """Return the merges up to a threshold, and the settings of the graph.

    Args:
        store: store of the hierarchy.
        threshold: return the merges with 1 - mean affinity of at most this (default: all merges).

    Raises:
        VolumeNotFoundError: there is no hierarchy.
        VolumeError: the hierarchy is damaged.
        OptionError: *threshold* is above the highest threshold of the hierarchy.
    """
    settings, checksums = _index(store)
    if threshold is not None:
        settings.check_threshold(threshold, store.url)
    tables: list[Contacts] = []
    for number, checksum in enumerate(checksums):
        content = store.get(_key(number))
        address = f"{store.url.rstrip('/')}/{_key(number)}"
        if content is None or checksum_of(content) != checksum:
            why = "is missing" if content is None else f"disagrees with its checksum in {INDEX}"
            msg = f"{address} {why}; run the last level of merge-regions again"
            raise VolumeError(msg)
        table = contact_columns(decoded(content, address, *Contacts.none().columns()), address)
        if threshold is not None:
            wanted = reaches(table, least_mean(threshold, settings.dtype))
            tables.append(table.rows(wanted))
            if not wanted.all():
                break
        else:
            tables.append(table)
    return Merges(Contacts.joined(tables)), settings


def _key(number: int) -> str:
    return f"{number:06d}.npz"

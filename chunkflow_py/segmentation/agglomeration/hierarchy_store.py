"""Storage of a hierarchy: the merges of all boxes in one order.

```
URL/hierarchy.json     the settings of the graph, checksums, and the number of merges
URL/000000.npz         the columns of the best merges, see `contacts.Contacts`
URL/000001.npz         the next ones
```

``hierarchy.json`` is written last, so a hierarchy is either complete or absent.
"""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.segmentation.agglomeration.contacts import Contacts
from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean
from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings, contact_columns
from chunkflow_py.segmentation.agglomeration.hierarchy import reaches
from chunkflow_py.segmentation.agglomeration.region_merging import Merges
from chunkflow_py.segmentation.labels.links import decoded, encoded
from chunkflow_py.store.store_protocol import checksum_of

if TYPE_CHECKING:
    from chunkflow_py.store.store_protocol import Store

INDEX = "hierarchy.json"
PIECE = 2**20  # merges of a piece
_INDEX_BYTES = 1 << 26


def write_hierarchy(
    store: Store, merges: Merges, settings: GraphSettings, *, piece: int = PIECE
) -> None:
    """Write a hierarchy.

    Args:
        store: store of the hierarchy.
        merges: all merges, in the order of `Merges.sorted`.
        settings: settings of the graph.
        piece: largest number of merges in a piece.
    """
    table = merges.contacts
    starts = range(0, len(table), piece)
    contents = [encoded(**table.rows(slice(at, at + piece)).columns()) for at in starts]
    with ThreadPoolExecutor(store.connections, "hierarchy") as threads:
        list(threads.map(store.put, map(_key, range(len(contents))), contents))
    index = {
        "settings": settings.to_json(),
        "merges": len(table),
        "checksums": [checksum_of(content) for content in contents],
    }
    store.put(INDEX, json.dumps(index).encode(), content_type="application/json")


def read_settings(store: Store) -> GraphSettings:
    """Return the settings of the graph whose hierarchy is stored.

    Raises:
        VolumeNotFoundError: there is no hierarchy.
        VolumeError: its index is damaged.
    """
    return _index(store)[0]


def _index(store: Store) -> tuple[GraphSettings, list[str]]:
    """Return the settings of the graph, and the checksums of the pieces."""
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
        threshold: 1 - mean affinity of the last merge, at most; ``None`` for all merges.

    Raises:
        VolumeNotFoundError: there is no hierarchy.
        VolumeError: it is damaged.
        OptionError: merges above its own threshold are wanted, which it does not contain.
    """
    settings, checksums = _index(store)
    if threshold is not None:
        settings.check_threshold(threshold, store.url)
    tables: list[Contacts] = []
    for number, checksum in enumerate(checksums):
        content = store.get(_key(number))
        address = f"{store.url.rstrip('/')}/{_key(number)}"
        if content is None or checksum_of(content) != checksum:
            why = "is missing" if content is None else "disagrees with the checksum in the index"
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

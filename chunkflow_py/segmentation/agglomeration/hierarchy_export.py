"""Export of a hierarchy: tables for other programs, such as tools for proofreading.

```
URL/export.json            what is exported, and the checksums of all other files
URL/fragments-000000.npz   the columns of the first fragments (supervoxels)
URL/fragments-000001.npz   the columns of the next fragments, and so on
URL/edges-000000.npz       the columns of the pairs of fragments that touch
URL/merges-000000.npz      the columns of all merges of the hierarchy
```

Each file is an npz file without pickles. It contains one array for each column, with at most
`PIECE` rows. ``export.json`` is written last, so an export is either complete or absent.

Columns of fragments, in ascending order of the ids:

| column        | type    | content                                                            |
|---------------|---------|--------------------------------------------------------------------|
| fragment      | uint64  | id of the fragment                                                 |
| voxels        | int64   | number of its voxels                                               |
| segment       | uint64  | id of its segment, the smallest id of the segment's fragments      |

Columns of edges, in ascending order of the two ids:

| column        | type    | content                                                            |
|---------------|---------|--------------------------------------------------------------------|
| first, second | uint64  | ids of the two fragments, the smaller one first                    |
| sum           | int64   | sum of the affinities between them, in units of 1 / scale          |
| count         | int64   | number of these affinities, one for each voxel face between both   |
| mean          | float64 | mean affinity, in [0, 1]: sum / (count * scale), rounded once      |
| tie           | int64   | lowest index of these affinities, see `edge_affinities`            |
| same_segment  | bool    | whether the two fragments belong to one segment                    |

Columns of merges, in the order of the greedy algorithm: the greatest mean first, and of equal means
the smallest tie first:

| column        | type    | content                                                            |
|---------------|---------|--------------------------------------------------------------------|
| kept          | uint64  | id of the region that keeps its id, the smaller one                |
| lost          | uint64  | id of the region that is merged into the kept one                  |
| sum, count, mean, tie   | of the contact before the merge; see the columns of edges          |

The id of a region is the smallest id of its fragments. All merges of the hierarchy are exported.
The merges up to a threshold are the first rows: those with
1 - sum / (count * scale) <= threshold. The columns ``segment`` and ``same_segment`` refer to the
segments at the threshold of the export. If ``min_size`` is above 1, these are the segments after
small ones have been united with their neighbours.

Background, whose id is 0, is in no table. The bytes depend only on the affinities and the settings,
not on the division into tasks.
"""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.segmentation.agglomeration.edge_affinities import least_mean, scale_of
from chunkflow_py.segmentation.agglomeration.graph_levels import fragment_graph
from chunkflow_py.segmentation.agglomeration.hierarchy import Segments, absorbed, cut
from chunkflow_py.segmentation.agglomeration.hierarchy_store import (
    PIECE,
    read_hierarchy,
    read_settings,
)
from chunkflow_py.segmentation.labels.links import encoded
from chunkflow_py.store.store_protocol import checksum_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.segmentation.agglomeration.contacts import Contacts
    from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings
    from chunkflow_py.store.store_protocol import Store

    Columns = dict[str, NDArray[Any]]

FORMAT = "chunkflow hierarchy export 1"
INDEX = "export.json"
_INDEX_BYTES = 1 << 26
_FILE = re.compile(r"(fragments|edges|merges)-[0-9]{6}\.npz")


@dataclass(frozen=True)
class HierarchyExport:
    """Writes the tables of a hierarchy.

    Attributes:
        hierarchy: store of the hierarchy.
        graph: store of the graph, which has the contacts of the fragments.
        target: store of the tables.
        voxel_size_nm: edge lengths of a voxel, nm, zyx.
        threshold: regions are merged while 1 - mean affinity is at most this.
        min_size: each segment with fewer voxels than this is united with the neighbour to which its
            mean affinity is greatest; 0 unites no segments.
        min_affinity: smallest mean affinity at which a small segment is united, in [0, 1].
        piece: limit of the number of rows in a file.
    """

    hierarchy: Store
    graph: Store
    target: Store
    voxel_size_nm: Sequence[float]
    threshold: float
    min_size: int = 0
    min_affinity: float = 0.0
    piece: int = PIECE

    def check(self) -> None:
        """Check that the export is possible, before the tables are read.

        Raises:
            VolumeNotFoundError: there is no hierarchy.
            OptionError: `threshold` is above the highest threshold of the hierarchy, or the target
                contains an export with other settings.
        """
        self._checked(read_settings(self.hierarchy))

    def write(self) -> dict[str, Any]:
        """Write the tables, and return the content of ``export.json``.

        Raises:
            VolumeError: the hierarchy or the contacts are missing or damaged.
            OptionError: `threshold` is above the highest threshold of the hierarchy, or the target
                contains an export with other settings or other content.
        """
        settings = read_settings(self.hierarchy)
        about, earlier = self._checked(settings)
        merges, _ = read_hierarchy(self.hierarchy)
        edges, (ids, sizes) = fragment_graph(self.graph, settings)
        pairs = cut(merges, least_mean(self.threshold, settings.dtype))
        merged = len(pairs)
        if self.min_size > 1:
            floor = Fraction(str(self.min_affinity)) * about["scale"]
            pairs = absorbed(pairs, edges, (ids, sizes), self.min_size, floor)
        segments = Segments(pairs)
        fragments = _fragment_table(ids, sizes, segments)
        tables = {
            "fragments": fragments,
            "edges": _edge_table(edges, segments, about["scale"]),
            "merges": {
                "kept": merges.contacts.first,
                "lost": merges.contacts.second,
                **_affinities(merges.contacts, about["scale"]),
            },
        }
        contents: dict[str, bytes] = {}
        index = about | {
            "segments": len(np.unique(fragments["segment"])),
            "merges_at_threshold": merged,
            "tables": {name: self._table(name, tables[name], contents) for name in tables},
        }
        self._store(index, contents, earlier)
        return index

    def _checked(self, settings: GraphSettings) -> tuple[dict[str, Any], dict[str, Any] | None]:
        settings.check_threshold(self.threshold, self.hierarchy.url)
        least_mean(self.threshold, settings.dtype)
        unites = self.min_size > 1
        about = {
            "format": FORMAT,
            "bounds": {"start": list(settings.box.start), "stop": list(settings.box.stop)},
            "voxel_size_nm": [float(each) for each in self.voxel_size_nm],
            "scale": scale_of(settings.dtype),
            "max_threshold": settings.max_threshold,
            "threshold": self.threshold,
            "min_size": self.min_size if unites else 0,
            "min_affinity": self.min_affinity if unites else 0.0,
        }
        earlier = _read_index(self.target)
        if earlier is not None:
            _check_same(earlier, about, self.target.url)
        return about, earlier

    def _table(self, name: str, columns: Columns, contents: dict[str, bytes]) -> dict[str, Any]:
        rows = len(next(iter(columns.values())))
        files = {}
        # A table without rows has one file, so that readers find its columns.
        for number, at in enumerate(range(0, max(1, rows), self.piece)):
            key = f"{name}-{number:06d}.npz"
            part = {each: column[at : at + self.piece] for each, column in columns.items()}
            contents[key] = encoded(**part)
            files[key] = checksum_of(contents[key])
        types = {each: str(column.dtype) for each, column in columns.items()}
        return {"rows": rows, "columns": types, "files": files}

    def _store(
        self, index: Mapping[str, Any], contents: dict[str, bytes], earlier: dict[str, Any] | None
    ) -> None:
        if earlier is not None:
            _check_same(earlier, index, self.target.url)
        for key in [key for name in index["tables"] for key in self.target.list(f"{name}-")]:
            if _FILE.fullmatch(key) and key not in contents:  # from an interrupted export
                self.target.delete(key)
        with ThreadPoolExecutor(self.target.connections, "export") as threads:
            list(threads.map(self.target.put, contents, contents.values()))
        content = (json.dumps(index, indent=1) + "\n").encode()
        self.target.put(INDEX, content, content_type="application/json")


def _fragment_table(
    ids: NDArray[np.uint64], sizes: NDArray[np.int64], segments: Segments
) -> Columns:
    # A fragment that lies in several tasks has several entries in *ids* and *sizes*.
    fragments, place = np.unique(ids, return_inverse=True)
    voxels = np.zeros(len(fragments), np.int64)
    np.add.at(voxels, place, sizes)
    return {"fragment": fragments, "voxels": voxels, "segment": segments(fragments)}


def _edge_table(edges: Contacts, segments: Segments, scale: int) -> Columns:
    same = segments(edges.first) == segments(edges.second)
    return {
        "first": edges.first,
        "second": edges.second,
        **_affinities(edges, scale),
        "same_segment": same,
    }


def _affinities(contacts: Contacts, scale: int) -> Columns:
    # Sums of one contact, and count * scale, are below 2**53, so only the division rounds.
    mean = contacts.total / (contacts.count * scale)
    return {
        "sum": contacts.total,
        "count": contacts.count,
        "mean": mean,
        "tie": contacts.tie,
    }


def _read_index(target: Store) -> dict[str, Any] | None:
    """Return the content of ``export.json``; ``None`` if the file does not exist.

    Raises:
        VolumeError: export-hierarchy of this version did not write the file.
    """
    data = target.get(INDEX, _INDEX_BYTES)
    if data is None:
        return None
    try:
        index = parse_json(data, _INDEX_BYTES)
        is_index = index["format"] == FORMAT
    except (ValueError, KeyError, TypeError):
        is_index = False
    if not is_index:
        msg = (
            f"{INDEX} of {target.url} was not written by export-hierarchy of this version; give "
            "another folder"
        )
        raise VolumeError(msg)
    return dict(index)


def _check_same(earlier: Mapping[str, Any], new: Mapping[str, Any], url: str) -> None:
    problems = [
        f"different {name}"
        if isinstance(value, dict)
        else f"{name} {earlier.get(name)} instead of {value}"
        for name, value in new.items()
        if earlier.get(name) != value
    ]
    if problems:
        msg = (
            f"{url} already contains an export with {', '.join(problems)}; give another folder, or "
            "remove the old export"
        )
        raise OptionError(msg)

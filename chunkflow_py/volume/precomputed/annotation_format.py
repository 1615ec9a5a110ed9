"""Encode and decode annotations in the precomputed format of Neuroglancer.

```
info                          kind, bounds, properties, relations and indices, JSON
by_id/                        for each id, the annotation and the ids of its segments
by_pre_segment/               for each segment of the relation pre_segment, its annotations;
                              every relation has such a folder
spatial0/ spatial1/ ...       for each cell of a grid, its annotations; the grids are numbered from
                              coarse to fine
```

A relation, such as ``pre_segment``, links each annotation to segments of a segmentation.

An annotation is packed in a row of 32 bit integers: first the geometry (xyz, float32), then the
properties in descending order of the size of their type, then padding with zeros. Each folder is an
index. An index is stored as shards, or as one object for each id, segment or cell.

Format: github.com/google/neuroglancer, ``datasource/precomputed/annotations.md``.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.annotations import POSITIONS, TYPES, Annotations, Property, Relation
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.volume.precomputed.sharding import Sharding, block_of_number

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    Packed = NDArray[np.uint32]

TYPE = "neuroglancer_annotations_v1"
BY_ID = "by_id"
_METRES = {"m": 1e9, "mm": 1e6, "um": 1e3, "µm": 1e3, "nm": 1.0}  # in nanometres
_FURTHEST = float(1 << 53)  # whole numbers up to this are exact in JSON
_MOST_CELLS = float(1 << 21)  # along an axis; three times 21 bits number all cells
_STEP = np.uint64(0x9E3779B97F4A7C15)  # of splitmix64; an odd number without a pattern
_PER_MINISHARD = 512  # entries; their index is read in one request
_MOST_MINISHARD_BITS = 12
_SHARD_BYTES = 1 << 23


@dataclass(frozen=True)
class Schema:
    """The description that all annotations of a collection share.

    Attributes:
        kind: kind of the annotations: a key of `POSITIONS`, such as ``point`` or ``line``.
        voxel_size_nm: edge lengths of a voxel, nanometres, zyx.
        properties: descriptions of the properties, as in the info file. Properties whose values
            take more bytes come first, as in a packed row.
        relations: names of the relations of an annotation to segments, such as ``pre_segment``.
    """

    kind: str
    voxel_size_nm: tuple[float, float, float]
    properties: tuple[dict[str, Any], ...]
    relations: tuple[str, ...]

    @classmethod
    def of(cls, annotations: Annotations) -> Schema:
        """Return the schema of *annotations*."""
        return cls(
            annotations.kind,
            annotations.voxel_size_nm,
            _in_order(each.description_json for each in annotations.properties),
            tuple(each.name for each in annotations.relations),
        )

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of one encoded annotation without its segments."""
        fields: list[Any] = [("geometry", "<f4", (POSITIONS[self.kind], 3))]
        fields += [(p["id"], *TYPES[p["type"]]) for p in self.properties]
        padding = -np.dtype(fields).itemsize % 4
        return np.dtype([*fields, *([("", "u1", (padding,))] if padding else [])])

    @property
    def width(self) -> int:
        """Length of a packed row, in 32 bit integers; segments are not in the row."""
        return self.dtype.itemsize // 4

    def encode(self, annotations: Annotations) -> Packed:
        """Return annotations as packed rows, (n, width) integers of 32 bits."""
        rows = np.zeros(len(annotations), self.dtype)
        rows["geometry"] = annotations.geometry[..., ::-1]
        for each in annotations.properties:
            rows[each.name] = each.values
        return rows.view("<u4").reshape(len(rows), self.width)

    def geometry(self, packed: Packed) -> NDArray[np.float32]:
        """Return p positions for each of n packed rows, voxels, zyx; shape (n, p, 3)."""
        count = POSITIONS[self.kind]
        floats = np.ascontiguousarray(packed[:, : 3 * count]).view("<f4")
        return floats.reshape(-1, count, 3)[..., ::-1]

    def decode(
        self, packed: Packed, ids: NDArray[Any], relations: Sequence[Relation] = ()
    ) -> Annotations:
        """Return the annotations of packed rows."""
        rows = np.ascontiguousarray(packed).view(self.dtype).reshape(len(packed))
        properties = [Property.from_json(each, rows[each["id"]]) for each in self.properties]
        return Annotations(
            self.kind,
            self.geometry(packed),
            self.voxel_size_nm,
            ids,
            tuple(properties),
            tuple(relations),
        )


def _in_order(properties: Iterable[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    return tuple(sorted(properties, key=lambda each: -np.dtype(TYPES[each["type"]][0]).itemsize))


def content_ids(packed: Packed, relations: Sequence[Relation]) -> NDArray[np.uint64]:
    """Return an id for each annotation, computed from geometry, properties and segments.

    Equal annotations from different tasks get the same id. If two different annotations get the
    same id, `merge_annotations` raises an error. With ten million annotations, the probability of
    this error is 3 in a million.

    Args:
        packed: packed rows of the annotations.
        relations: for each relation, the number of segments of each annotation, and the ids of the
            segments of all annotations, one after the other.
    """
    ids = np.full(len(packed), packed.shape[1], np.uint64)
    for column in packed.T:
        ids = _mixed(ids + _STEP ^ column.astype(np.uint64))
    for relation in relations:
        counts = relation.counts.astype(np.int64)
        rank = np.arange(len(relation.segments)) - np.repeat(np.cumsum(counts) - counts, counts)
        sums = counts.astype(np.uint64)
        owners = np.repeat(np.arange(len(packed)), counts)
        np.add.at(sums, owners, _mixed(relation.segments + _STEP * rank.astype(np.uint64)))
        ids = _mixed(ids + _STEP ^ sums)
    return ids


def _mixed(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    # The mixing function of splitmix64 (Vigna).
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


# --- lists ----------------------------------------------------------------------------------------


def encoded_lists(
    counts: NDArray[np.int64], packed: Packed, ids: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], Packed]:
    """Encode lists of annotations: for each list, the count, the annotations, then the ids.

    Args:
        counts: number of annotations of each list.
        packed: packed rows of the first list, then of the second list, and so on.
        ids: ids of the annotations, in the order of *packed*.

    Returns:
        The length of each encoded list in 32 bit integers, and the encoded lists as one array of
        32 bit integers.
    """
    width = packed.shape[1]
    lengths = 2 + counts * (width + 2)
    starts = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), "<u4")
    out[starts], out[starts + 1] = counts & 0xFFFFFFFF, counts >> 32
    rank = np.arange(len(ids)) - np.repeat(np.cumsum(counts) - counts, counts)
    at = np.repeat(starts + 2, counts)
    _scatter(out, at + rank * width, packed)
    _scatter(out, at + np.repeat(counts * width, counts) + rank * 2, _halves_of(ids))
    return lengths, out


def decoded_list(data: bytes, width: int) -> tuple[Packed, NDArray[np.uint64]]:
    """Return the packed rows and the ids in an encoded list of annotations.

    Args:
        data: the encoded list.
        width: length of a packed row, in 32 bit integers.

    Raises:
        ValueError: the list is damaged.
    """
    count = int.from_bytes(data[:8], "little")
    if len(data) != 8 + count * (4 * width + 8):
        msg = (
            f"the list declares {count} annotations, which need {8 + count * (4 * width + 8)} "
            f"bytes, but has {len(data)} bytes"
        )
        raise ValueError(msg)
    packed = np.frombuffer(data, "<u4", count * width, 8).reshape(count, width)
    return packed, np.frombuffer(data, "<u8", count, 8 + count * 4 * width)


def encoded_entries(
    packed: Packed, relations: Sequence[tuple[NDArray[Any], NDArray[Any]]]
) -> tuple[NDArray[np.int64], Packed]:
    """Encode annotations one by one: the packed row, then the segments for each relation.

    The segments for a relation are encoded as their number and their ids.

    Args:
        packed: packed rows of the annotations.
        relations: for each relation, two arrays: the number of segments of each annotation, and the
            ids of the segments of all annotations, one after the other.

    Returns:
        The length of each encoded annotation in 32 bit integers, and the encoded annotations as one
        array of 32 bit integers.
    """
    width = packed.shape[1]
    lengths = np.full(len(packed), width, np.int64)
    for counts, _ in relations:
        lengths += 1 + 2 * counts.astype(np.int64)
    at = np.cumsum(lengths) - lengths
    out = np.zeros(int(lengths.sum()), "<u4")
    _scatter(out, at, packed)
    at += width
    for narrow, segments in relations:
        counts = narrow.astype(np.int64)
        out[at] = counts
        rank = np.arange(len(segments)) - np.repeat(np.cumsum(counts) - counts, counts)
        _scatter(out, np.repeat(at + 1, counts) + 2 * rank, _halves_of(segments))
        at += 1 + 2 * counts
    return lengths, out


def decoded_entry(
    data: bytes, width: int, relations: int
) -> tuple[Packed, list[NDArray[np.uint64]]]:
    """Return the packed row of an encoded annotation, and the ids of its segments by relation.

    Args:
        data: the encoded annotation.
        width: length of a packed row, in 32 bit integers.
        relations: number of relations.

    Raises:
        ValueError: the annotation is damaged.
    """
    packed = np.frombuffer(data, "<u4")
    at, segments = width, []
    for _ in range(relations):
        count = int(packed[at]) if at < len(packed) else 0
        segments.append(np.frombuffer(packed[at + 1 : at + 1 + 2 * count].tobytes(), "<u8"))
        at += 1 + 2 * count
    if at != len(packed):
        msg = (
            f"the annotation has {4 * len(packed)} bytes, but its counts of segments require "
            f"{4 * at} bytes"
        )
        raise ValueError(msg)
    return packed[:width], segments


def _halves_of(numbers: NDArray[Any]) -> Packed:
    return np.ascontiguousarray(numbers.astype("<u8", copy=False)).view("<u4").reshape(-1, 2)


def _scatter(out: Packed, at: NDArray[np.int64], rows: Packed) -> None:
    """Copy row i to *out*, beginning at position ``at[i]``."""
    for column in range(rows.shape[1]):
        out[at + column] = rows[:, column]


# --- info -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Index:
    """A folder in which annotations are looked up by a number: an id, a segment or a cell.

    Attributes:
        key: name of the folder.
        sharding: how numbers are assigned to shards, or ``None`` if each number has its own object.
        grid: for a spatial index, the number of cells along each axis, zyx; else ``None``.
        cell: for a spatial index, the size of a cell, voxels, zyx; else ``None``.
        limit: for a spatial index, the largest number of annotations in a cell.
    """

    key: str
    sharding: Sharding | None = None
    grid: Zyx | None = None
    cell: tuple[float, float, float] | None = None
    limit: int = 0

    def name(self, number: int) -> str:
        """Return the file name of an entry of this index, if the index is stored without shards.

        Args:
            number: id of an annotation, id of a segment, or number of a cell of the spatial grid,
                depending on the index.
        """
        if self.grid is None:
            return str(number)
        cell = block_of_number(number, self.grid)
        return "_".join(map(str, (cell or ())[::-1]))

    def to_json(self) -> dict[str, Any]:
        """Return the entry of this index in the info file."""
        entry: dict[str, Any] = {"key": self.key}
        if self.grid is not None and self.cell is not None:
            entry |= {"grid_shape": list(self.grid[::-1]), "chunk_size": list(self.cell[::-1])}
            entry["limit"] = self.limit
        if self.sharding is not None:
            entry["sharding"] = self.sharding.to_json()
        return entry

    @classmethod
    def parse(cls, entry: Mapping[str, Any]) -> Index:
        """Return the index that an entry of an info file describes.

        Raises:
            ValueError, KeyError, TypeError: the entry is not valid.
        """
        sharding = Sharding.parse(entry["sharding"]) if entry.get("sharding") else None
        if "grid_shape" not in entry:
            return cls(str(entry["key"]), sharding)
        x, y, z = (int(number) for number in _numbers(entry["grid_shape"], 1, _MOST_CELLS))
        cell = _zyx(entry["chunk_size"], above=0)
        (limit,) = _numbers([entry["limit"]], 0)
        return cls(str(entry["key"]), sharding, Zyx(z, y, x), cell, int(limit))


@dataclass(frozen=True)
class Info:
    """The info file of a collection.

    Attributes:
        schema: description that all annotations share.
        lower: lower corner of the box that contains all annotations, voxels, zyx.
        upper: upper corner of this box, voxels, zyx.
        by_id: index by id.
        related: for each relation, the index in which annotations are found by the id of a segment.
        spatial: one index for each level of the spatial index, from coarse to fine.
    """

    schema: Schema
    lower: tuple[float, float, float]
    upper: tuple[float, float, float]
    by_id: Index
    related: tuple[Index, ...]
    spatial: tuple[Index, ...]

    def encoded(self) -> bytes:
        """Return the content of the info file, JSON."""
        schema = self.schema
        sizes = zip("xyz", schema.voxel_size_nm[::-1], strict=True)
        relations = zip(schema.relations, self.related, strict=True)
        document = {
            "@type": TYPE,
            "dimensions": {axis: [nm / 1e9, "m"] for axis, nm in sizes},
            "lower_bound": list(self.lower[::-1]),
            "upper_bound": list(self.upper[::-1]),
            "annotation_type": schema.kind.upper(),
            "properties": list(schema.properties),
            "relationships": [{"id": name, **index.to_json()} for name, index in relations],
            "by_id": self.by_id.to_json(),
            "spatial": [index.to_json() for index in self.spatial],
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def parse(cls, document: Mapping[str, Any]) -> Info:
        """Return the collection that an info file describes.

        Raises:
            ValueError, KeyError, TypeError: the file is damaged or not supported.
        """
        if document.get("@type") != TYPE:
            msg = f"@type is {document.get('@type')!r}, but must be {TYPE!r}"
            raise ValueError(msg)
        if list(document["dimensions"]) != ["x", "y", "z"]:
            msg = f"the dimensions are {list(document['dimensions'])}, but must be x, y and z"
            raise ValueError(msg)
        scales = [
            _numbers([scale])[0] * _METRES[unit] for scale, unit in document["dimensions"].values()
        ]
        size_nm = tuple(round(nm, 9) for nm in _zyx(scales, above=0))
        kind = str(document["annotation_type"]).lower()
        if kind not in POSITIONS:
            msg = f"annotation_type is {kind!r}, but must be one of {', '.join(POSITIONS)}"
            raise ValueError(msg)
        relations = document["relationships"]
        schema = Schema(
            kind,
            (size_nm[0], size_nm[1], size_nm[2]),
            _in_order(_property(each) for each in document["properties"]),
            tuple(str(each["id"]) for each in relations),
        )
        schema.dtype  # noqa: B018 raises if two properties have one name
        return cls(
            schema,
            _zyx(document["lower_bound"]),
            _zyx(document["upper_bound"]),
            Index.parse(document["by_id"]),
            tuple(Index.parse(each) for each in relations),
            tuple(Index.parse(each) for each in document["spatial"]),
        )


def _property(entry: Any) -> dict[str, Any]:
    dtype, extra = TYPES[entry["type"]]
    Property.from_json(entry, np.zeros((0, *extra), dtype))
    return dict(entry)


def _numbers(found: Any, low: float = -_FURTHEST, high: float = _FURTHEST) -> list[float]:
    numbers = [float(number) for number in found]
    if not all(low <= number <= high for number in numbers):
        msg = f"{numbers} must be numbers from {low:g} to {high:g}"
        raise ValueError(msg)
    return numbers


def _zyx(found: Any, above: float | None = None) -> tuple[float, float, float]:
    """Convert three numbers of an info file from xyz to zyx; all must be greater than *above*."""
    x, y, z = _numbers(found)
    if above is not None and min(x, y, z) <= above:
        msg = f"{[x, y, z]} must be numbers above {above:g}"
        raise ValueError(msg)
    return z, y, x


def sharding_for(count: int, size: int, *, near: int = 0, compress: bool = False) -> Sharding:
    """Choose how many shards and minishards an index has, given the number and size of its entries.

    Args:
        count: number of entries, or an upper limit.
        size: total length of the entries, in bytes.
        near: number of low bits of an entry's number. Entries whose numbers differ only in these
            bits are stored in the same minishard.
        compress: whether to gzip the entries.
    """
    shard_bits = max(0, (size // _SHARD_BYTES).bit_length())
    groups = (count >> shard_bits) // _PER_MINISHARD
    minishard_bits = min(groups.bit_length(), _MOST_MINISHARD_BITS)
    return Sharding(near, minishard_bits, shard_bits, "murmurhash3_x86_128", gzip_data=compress)

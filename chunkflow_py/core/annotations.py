"""Annotations: points, lines, boxes or ellipsoids, with ids, properties and related segments.

| kind                        | geometry of one annotation, in voxels, zyx        |
|-----------------------------|---------------------------------------------------|
| `point`                     | array of shape (1, 3): the position               |
| `line`                      | array of shape (2, 3): both ends                  |
| `axis_aligned_bounding_box` | array of shape (2, 3): two opposite corners       |
| `ellipsoid`                 | array of shape (2, 3): the centre, then the radii |

Positions are continuous: voxel i reaches from i to i + 1, as in Neuroglancer.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import chain
from numbers import Integral
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.points import Points
    from chunkflow_py.core.synapses import Synapses

POSITIONS = {"point": 1, "line": 2, "axis_aligned_bounding_box": 2, "ellipsoid": 2}
TYPES: dict[str, tuple[str, tuple[int, ...]]] = {
    "float32": ("<f4", ()),
    "uint32": ("<u4", ()),
    "int32": ("<i4", ()),
    "uint16": ("<u2", ()),
    "int16": ("<i2", ()),
    "uint8": ("u1", ()),
    "int8": ("i1", ()),
    "rgb": ("u1", (3,)),
    "rgba": ("u1", (4,)),
}
_NAME = re.compile("[a-z][a-zA-Z0-9_]*")
_MOST_ID = (1 << 64) - 1


@dataclass(frozen=True, eq=False)
class Property:
    """One value per annotation, such as a score; viewers show the value as text or as a colour.

    Attributes:
        name: letters, digits and underscores; the first character is a lower-case letter.
        type: type of the values, a key of `TYPES`, such as ``uint8`` or ``rgb``.
        values: one value per annotation. The shape is (n,) for n annotations, but (n, 3) for the
            type rgb and (n, 4) for rgba.
        description: text that viewers show.
        labels: names that viewers show instead of numbers: a dict from a value to its name.
    """

    name: str
    type: str
    values: NDArray[Any]
    description: str = ""
    labels: dict[float, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Check the name, the type and the values; convert the values to the type.

        Raises:
            ChunkError: the name, the type, the labels or a value is not valid.
        """
        check_name("property", self.name)
        if self.type not in TYPES:
            msg = (
                f"property {self.name} has the unknown type {self.type!r}; choose one of "
                f"{', '.join(TYPES)}"
            )
            raise ChunkError(msg)
        if self.labels and self.type in ("rgb", "rgba"):
            msg = (
                f"property {self.name} has labels, but its type is {self.type}; leave out the "
                "labels, or choose a numeric type"
            )
            raise ChunkError(msg)
        dtype, extra = TYPES[self.type]
        given = np.asarray(self.values)
        if given.ndim != 1 + len(extra) or given.shape[1:] != extra:
            wanted = ", ".join(["n", *map(str, extra)])
            msg = (
                f"property {self.name} of type {self.type} has shape {given.shape}, not ({wanted})"
            )
            raise ChunkError(msg)
        with np.errstate(all="ignore"):  # what does not fit is found below
            values = given.astype(dtype)
            wrong = np.zeros(len(given), bool)
            if self.type != "float32":
                wrong = (values != given).any(axis=tuple(range(1, given.ndim)))
        if wrong.any():
            at = int(np.argmax(wrong))
            msg = (
                f"property {self.name} of annotation {at} is {given[at].tolist()}, which is not of "
                f"type {self.type}; choose another type, or round the values"
            )
            raise ChunkError(msg)
        object.__setattr__(self, "values", values)

    @property
    def description_json(self) -> dict[str, Any]:
        """Name, type, description and labels, as a JSON object for Neuroglancer's info file."""
        parts: dict[str, Any] = {"id": self.name, "type": self.type}
        if self.description:
            parts["description"] = self.description
        if self.labels:
            parts |= {"enum_values": list(self.labels), "enum_labels": list(self.labels.values())}
        return parts

    @classmethod
    def from_json(cls, document: dict[str, Any], values: NDArray[Any]) -> Property:
        """Return a property with *values*; the other attributes are read from *document*."""
        labels = zip(document.get("enum_values", ()), document.get("enum_labels", ()), strict=True)
        text = str(document.get("description", ""))
        return cls(document["id"], document["type"], values, text, dict(labels))


@dataclass(frozen=True, eq=False)
class Relation:
    """The ids of segments to which each annotation is related.

    Attributes:
        name: letters, digits and underscores; the first character is a lower-case letter.
        counts: array of shape (n,): the number of segments of each annotation.
        segments: ids of the segments of the first annotation, then of the second, and so on.
    """

    name: str
    counts: NDArray[Any]
    segments: NDArray[Any]

    def __post_init__(self) -> None:
        """Check the name and the arrays, and convert the arrays to uint32 and uint64.

        Raises:
            ChunkError: the name or an id is not valid, or *counts* do not add up to the number of
                ids in *segments*.
        """
        check_name("relation", self.name)
        object.__setattr__(self, "counts", np.asarray(self.counts, np.uint32))
        segments = uint64_ids(self.segments, f"segment of relation {self.name}")
        object.__setattr__(self, "segments", segments)
        total = int(self.counts.sum(dtype=np.int64))
        if len(segments) != total:
            msg = (
                f"relation {self.name} has {len(segments)} segments, but its counts add up to "
                f"{total}"
            )
            raise ChunkError(msg)

    @classmethod
    def to_one(cls, name: str, segments: Any) -> Relation:
        """Return a relation of each annotation to at most one segment.

        Args:
            name: name of the relation.
            segments: one segment id per annotation; 0 if the annotation has no segment.
        """
        ids = uint64_ids(segments, f"segment of relation {name}")
        return cls(name, (ids != 0).astype(np.uint32), ids[ids != 0])

    @classmethod
    def to_several(cls, name: str, segments: Iterable[Sequence[int]]) -> Relation:
        """Return a relation of each annotation i to the segments with the ids ``segments[i]``."""
        lists = [list(each) for each in segments]
        counts = np.array([len(each) for each in lists], np.uint32)
        ids = uint64_ids(chain.from_iterable(lists), f"segment of relation {name}")
        return cls(name, counts, ids)

    def lists(self) -> list[NDArray[np.uint64]]:
        """Return the ids of the segments of each annotation."""
        return np.split(self.segments, np.cumsum(self.counts)[:-1]) if len(self.counts) else []

    def take(self, rows: NDArray[Any]) -> Relation:
        """Return the relation of the annotations *rows* (indices), in the order of *rows*."""
        counts, segments = take_lists(self.counts, self.segments, rows)
        return Relation(self.name, counts, segments)


@dataclass(frozen=True, eq=False)
class Annotations:
    """Annotations of one kind.

    Attributes:
        kind: kind of all annotations, a key of `POSITIONS`, such as ``line``.
        geometry: positions in voxels, zyx: an array of shape (n, p, 3), float32. Each annotation
            has p = 1 or 2 triples, whose meaning depends on the kind; see the table at the top of
            this module.
        voxel_size_nm: edge lengths of a voxel, nanometres, zyx.
        ids: array of shape (n,), uint64. If several tasks save annotations to the same place, ids
            must be unique across all these tasks. With ``None``, ids are computed from the content
            of each annotation when the annotations are saved.
        properties: further values of each annotation, such as a score.
        relations: ids of the segments to which each annotation is related.
    """

    kind: str
    geometry: NDArray[Any]
    voxel_size_nm: tuple[float, float, float] = (1.0, 1.0, 1.0)
    ids: NDArray[Any] | None = None
    properties: tuple[Property, ...] = ()
    relations: tuple[Relation, ...] = ()

    def __post_init__(self) -> None:
        """Check and convert the arrays.

        Raises:
            ChunkError: a shape, an id or a coordinate is not valid.
        """
        if self.kind not in POSITIONS:
            msg = (
                f"annotations have the unknown kind {self.kind!r}; choose one of "
                f"{', '.join(POSITIONS)}"
            )
            raise ChunkError(msg)
        shape = np.shape(self.geometry)
        if len(shape) != 3 or shape[1:] != (POSITIONS[self.kind], 3):
            msg = (
                f"the geometry of {self.kind} annotations has shape {shape}, but must have shape "
                f"(n, {POSITIONS[self.kind]}, 3), zyx"
            )
            raise ChunkError(msg)
        with np.errstate(over="ignore"):  # reported as not finite
            geometry = np.asarray(self.geometry).astype(np.float32) + np.float32(0)  # no -0
        finite = np.isfinite(geometry).all(axis=(1, 2))
        if not finite.all():
            at = int(np.argmin(finite))
            msg = (
                f"annotation {at} has the coordinates {np.asarray(self.geometry)[at].tolist()} "
                "(zyx, voxels), which are not finite float32 numbers; correct or remove this "
                "annotation"
            )
            raise ChunkError(msg)
        if self.kind == "ellipsoid" and (geometry[:, 1] < 0).any():
            at = int(np.argmax((geometry[:, 1] < 0).any(axis=1)))
            msg = (
                f"ellipsoid {at} has the negative radius {geometry[at, 1].min()}; "
                "radii must be 0 or more"
            )
            raise ChunkError(msg)
        object.__setattr__(self, "geometry", geometry)
        if self.ids is not None:
            object.__setattr__(self, "ids", uint64_ids(self.ids, "id of an annotation"))
        names = [each.name for each in self.properties]
        names += [each.name for each in self.relations]
        if len(set(names)) < len(names):
            msg = f"properties and relations of annotations need different names, got {names}"
            raise ChunkError(msg)
        counts = {each.name: len(each.values) for each in self.properties}
        counts |= {each.name: len(each.counts) for each in self.relations}
        counts |= {} if self.ids is None else {"ids": len(self.ids)}
        for name, count in counts.items():
            if count != len(self):
                msg = (
                    f"got {count} values of {name} for {len(self)} annotations; give one value for "
                    "each annotation"
                )
                raise ChunkError(msg)

    def __len__(self) -> int:
        """Return the number of annotations."""
        return len(self.geometry)

    def hull(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return the corners of the smallest box around each annotation: start and stop.

        Start and stop are arrays of shape (n, 3), zyx.
        """
        if self.kind == "ellipsoid":
            middle, radii = self.geometry[:, 0], self.geometry[:, 1]
            return middle - radii, middle + radii
        return self.geometry.min(axis=1), self.geometry.max(axis=1)

    def take(self, rows: NDArray[Any]) -> Annotations:
        """Return the annotations with the indices *rows*, in the order of *rows*."""
        return replace(
            self,
            geometry=self.geometry[rows],
            ids=None if self.ids is None else self.ids[rows],
            properties=tuple(replace(p, values=p.values[rows]) for p in self.properties),
            relations=tuple(relation.take(rows) for relation in self.relations),
        )

    @classmethod
    def of_points(cls, points: Points) -> Annotations:
        """Return points as annotations at the centres of their voxels.

        Confidences become the property ``confidence``.
        """
        properties = []
        if points.confidences is not None:
            properties.append(Property("confidence", "float32", points.confidences))
        at = (points.positions + 0.5)[:, None]
        return cls("point", at, points.voxel_size_nm, properties=tuple(properties))

    @classmethod
    def of_synapses(cls, synapses: Synapses) -> Annotations:
        """Return synapses as lines from each T-bar to each of its postsynaptic points.

        Confidences become the properties ``pre_confidence`` and ``post_confidence``, and
        ``object_ids`` becomes the relation ``pre_segment``. A T-bar without postsynaptic points
        makes no line.
        """
        rows = synapses.post_to_pre
        lines = np.stack([synapses.pre[rows], synapses.post], axis=1) + 0.5
        properties, relations = [], []
        if synapses.pre_confidence is not None:
            values = synapses.pre_confidence[rows]
            properties.append(Property("pre_confidence", "float32", values))
        if synapses.post_confidence is not None:
            properties.append(Property("post_confidence", "float32", synapses.post_confidence))
        if synapses.object_ids is not None:
            relations.append(Relation.to_one("pre_segment", synapses.object_ids[rows]))
        size = synapses.voxel_size_nm or (1.0, 1.0, 1.0)
        return cls("line", lines, size, properties=tuple(properties), relations=tuple(relations))


def check_name(what: str, name: str) -> None:
    """Raise a `ChunkError` if *name* cannot be the name of a property or relation."""
    if not _NAME.fullmatch(name):
        msg = (
            f"{what} name {name!r} is not valid; use only letters, digits and underscores, and "
            "begin with a lower-case letter"
        )
        raise ChunkError(msg)


def uint64_ids(ids: Any, what: str) -> NDArray[np.uint64]:
    """Convert *ids* to an array of uint64.

    Args:
        ids: n integers.
        what: name of an id in messages, such as ``id of an annotation``.

    Raises:
        ChunkError: a number is not an integer from 0 to 2^64 - 1.
    """
    array = ids if isinstance(ids, np.ndarray) else np.array([*ids], object)
    if array.ndim != 1 or (array.dtype.kind not in "iuO" and len(array)):
        msg = (
            f"{what} must be an integer: got an array of type {array.dtype} and shape "
            f"{array.shape} instead of a 1D array of integers"
        )
        raise ChunkError(msg)
    strange = (
        [each for each in array if not isinstance(each, Integral)] if array.dtype == object else []
    )
    if strange:
        msg = f"{what} must be an integer, got {strange[0]!r}"
        raise ChunkError(msg)
    low, high = (int(array.min()), int(array.max())) if len(array) else (0, 0)
    if low < 0 or high > _MOST_ID:
        msg = (
            f"{what} is {low if low < 0 else high}, but ids have 64 bits: give numbers from 0 to "
            f"{_MOST_ID}"
        )
        raise ChunkError(msg)
    return array.astype(np.uint64)


def take_lists(
    counts: NDArray[Any], values: NDArray[Any], rows: NDArray[Any]
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the lengths of selected lists, and the elements of these lists in one array.

    All lists are stored one after the other in *values*.

    Args:
        counts: array of shape (n,): length of each list.
        values: elements of the first list, then of the second, and so on.
        rows: indices of the lists to return, in the order of the result.
    """
    starts = np.cumsum(counts, dtype=np.int64) - counts
    taken = counts[rows]
    ends = np.cumsum(taken, dtype=np.int64)
    offsets = np.repeat(starts[rows] - (ends - taken), taken)
    return taken, values[offsets + np.arange(len(offsets))]

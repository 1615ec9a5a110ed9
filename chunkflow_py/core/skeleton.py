"""Skeleton: the centre line of an object, as vertices and the edges between them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

# Attributes that `Skeleton.to_precomputed` writes for each vertex, as cloud-volume and igneous do.
ATTRIBUTES = (
    {"id": "radius", "data_type": "float32", "num_components": 1},
    {"id": "vertex_types", "data_type": "uint8", "num_components": 1},
)
# The same as float32: Neuroglancer shows no skeletons with attributes of integers.
FLOAT_ATTRIBUTES = tuple({**attribute, "data_type": "float32"} for attribute in ATTRIBUTES)
_NO_RADIUS = -1.0


@dataclass(frozen=True, eq=False)
class Skeleton:
    """The centre line of one object; tasks store skeletons in a dict by object id.

    Attributes:
        vertices_nm: array of shape (n, 3), float32: positions of n vertices, zyx, nanometres. Voxel
            k begins at k times the voxel size.
        edges: array of shape (m, 2), uint32: indices of the two vertices that each edge joins.
        radii_nm: array of shape (n,), float32: distance of each vertex to the nearest surface; -1
            if the distance is not known.
        types: array of shape (n,), uint8: the SWC type of each vertex: 0 undefined, 1 soma, 2 axon,
            3 dendrite, ...
    """

    vertices_nm: NDArray[Any]
    edges: NDArray[Any]
    radii_nm: NDArray[Any]
    types: NDArray[Any]

    @classmethod
    def of(
        cls,
        vertices_nm: NDArray[Any] | Sequence[Sequence[float]],
        edges: NDArray[Any] | Sequence[Sequence[int]],
        radii_nm: NDArray[Any] | Sequence[float] | None = None,
        types: NDArray[Any] | Sequence[int] | None = None,
    ) -> Skeleton:
        """Return a skeleton, with the arrays converted to the right dtypes.

        Raises:
            ChunkError: *radii_nm* or *types* does not have one number for each vertex, or an edge
                refers to a vertex that does not exist.
        """
        vertices = np.asarray(vertices_nm, np.float32).reshape(-1, 3)
        ends = np.asarray(edges, np.uint32).reshape(-1, 2)
        count = len(vertices)
        radii = np.full(count, _NO_RADIUS) if radii_nm is None else radii_nm
        kinds = np.zeros(count) if types is None else types
        made = cls(vertices, ends, np.asarray(radii, np.float32), np.asarray(kinds, np.uint8))
        if len(made.radii_nm) != count or len(made.types) != count:
            msg = (
                f"{count} vertices have {len(made.radii_nm)} radii and {len(made.types)} types; "
                "give one radius and one type for each vertex"
            )
            raise ChunkError(msg)
        if ends.size and ends.max() >= count:
            msg = (
                f"an edge refers to vertex {ends.max()}, but there are only {count} vertices, "
                "numbered from 0"
            )
            raise ChunkError(msg)
        return made

    def __len__(self) -> int:
        """Return the number of vertices."""
        return len(self.vertices_nm)

    @property
    def cable_length_nm(self) -> float:
        """Total length of all edges, nanometres."""
        a, b = self.vertices_nm[self.edges.T].astype(np.float64)
        return float(np.linalg.norm(a - b, axis=1).sum())

    def moved(self, shift_nm: Iterable[float]) -> Skeleton:
        """Return the skeleton moved by *shift_nm* (zyx, nanometres)."""
        shift = np.array([*shift_nm], np.float64)
        return Skeleton.of(self.vertices_nm + shift, self.edges, self.radii_nm, self.types)

    def consolidated(self) -> Skeleton:
        """Return the skeleton with sorted vertices and edges, and one vertex at each position.

        A merged vertex gets the largest radius and the largest type of the vertices that it
        replaces. Vertices are sorted by position. Each edge has its lower index first; edges are
        sorted, without duplicates. Therefore, the encoded skeleton does not depend on the order in
        which its parts were joined.
        """
        vertices, places = np.unique(self.vertices_nm, axis=0, return_inverse=True)
        places = places.ravel()
        radii = np.full(len(vertices), _NO_RADIUS, np.float32)
        np.maximum.at(radii, places, self.radii_nm)
        types = np.zeros(len(vertices), np.uint8)
        np.maximum.at(types, places, self.types)
        ends = np.sort(places[self.edges.astype(np.int64)].reshape(-1, 2), axis=1)
        ends = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
        return Skeleton.of(vertices, ends, radii, types)

    # --- formats ----------------------------------------------------------------------------------

    def to_precomputed(self, *, as_floats: bool = False) -> bytes:
        """Encode the skeleton in Neuroglancer's format, with radius and type of each vertex.

        Neuroglancer describes the format in ``datasource/precomputed/skeletons.md``. In this
        format, the coordinates of a vertex are x, y, z.

        Args:
            as_floats: store the types as float32 (`FLOAT_ATTRIBUTES`) instead of uint8
                (`ATTRIBUTES`), because Neuroglancer shows no skeletons with integer attributes.
        """
        counts = np.array([len(self), len(self.edges)], "<u4")
        arrays = (
            counts,
            self.vertices_nm[:, ::-1].astype("<f4"),
            self.edges.astype("<u4"),
            self.radii_nm.astype("<f4"),
            self.types.astype("<f4") if as_floats else self.types,
        )
        return b"".join(np.ascontiguousarray(array).tobytes() for array in arrays)

    @classmethod
    def from_precomputed(
        cls,
        data: bytes,
        what: str = "skeleton",
        attributes: Sequence[Mapping[str, Any]] = ATTRIBUTES,
    ) -> Skeleton:
        """Decode a skeleton in Neuroglancer's format.

        Args:
            data: the content of a file.
            what: name of the file, for messages.
            attributes: attributes of each vertex, as the info file lists them; all except radius
                and vertex_types are ignored.

        Raises:
            VolumeError: the file is damaged.
        """
        try:
            count, edges = (int(n) for n in np.frombuffer(data, "<u4", 2))
            vertices = np.frombuffer(data, "<f4", 3 * count, 8).reshape(-1, 3)
            place = 8 + 12 * count
            ends = np.frombuffer(data, "<u4", 2 * edges, place)
            place += 8 * edges
            found: dict[str, NDArray[Any]] = {}
            for attribute in attributes if place < len(data) else ():
                dtype = np.dtype(str(attribute["data_type"])).newbyteorder("<")
                number = count * int(attribute["num_components"])
                found[str(attribute["id"])] = np.frombuffer(data, dtype, number, place)
                place += number * dtype.itemsize
            made = cls.of(vertices[:, ::-1], ends, found.get("radius"), found.get("vertex_types"))
        except (ValueError, LookupError, TypeError, OverflowError) as error:
            msg = (
                f"{what} is not a valid skeleton: {error} (in a file of {len(data)} bytes); create "
                "the skeleton again"
            )
            raise VolumeError(msg) from error
        if place != len(data):
            msg = (
                f"{what} is not a valid skeleton: the file should have {place} bytes, but has "
                f"{len(data)}; create the skeleton again"
            )
            raise VolumeError(msg)
        return made

    def to_swc(self) -> str:
        """Return the text of an SWC file: id, type, x, y, z, radius, parent; nanometres.

        Each connected component is written as a tree. The root of a tree is the first vertex with
        exactly one edge; if there is no such vertex, the root is the first vertex. SWC cannot
        represent loops, so the edge that closes a loop is left out.
        """
        neighbours: list[list[int]] = [[] for _ in range(len(self))]
        for a, b in self.edges.tolist():
            neighbours[a].append(b)
            neighbours[b].append(a)
        roots = sorted(range(len(self)), key=lambda k: (len(neighbours[k]) != 1, k))
        rows = ["# id type x y z radius parent (nanometres)"]
        places = self.vertices_nm[:, ::-1].tolist()
        numbers: dict[int, int] = {}
        for root in roots:
            waiting = deque([(root, -1)])
            while waiting:
                vertex, parent = waiting.popleft()
                if vertex in numbers:
                    continue
                numbers[vertex] = len(rows)
                x, y, z = places[vertex]
                rows.append(
                    f"{len(rows)} {self.types[vertex]} {x:.9g} {y:.9g} {z:.9g} "
                    f"{self.radii_nm[vertex]:.9g} {parent}"
                )
                own = numbers[vertex]
                waiting.extend((near, own) for near in sorted(neighbours[vertex]))
        return "\n".join(rows) + "\n"

    @classmethod
    def from_swc(cls, text: str, what: str = "skeleton") -> Skeleton:
        """Return the skeleton in the text of an SWC file.

        Args:
            text: the whole file; coordinates and radii are in nanometres.
            what: name of the file, for messages.

        Raises:
            VolumeError: a line is not valid SWC, an id occurs twice, or a parent does not exist.
        """
        rows: list[tuple[int, int]] = []
        vertices: list[list[float]] = []
        radii: list[float] = []
        types: list[int] = []
        for number, line in enumerate(text.splitlines(), 1):
            columns = line.partition("#")[0].split()
            if not columns:
                continue
            try:
                own, kind, x, y, z, radius, parent = columns
                rows.append((int(own), int(parent)))
                vertices.append([float(z), float(y), float(x)])
                radii.append(_NO_RADIUS if radius.upper().startswith("N") else float(radius))
                types.append(int(kind) if 0 <= int(kind) <= 255 else 0)
            except ValueError as error:
                msg = (
                    f"line {number} of {what} is {line[:80]!r} ({error}); a line of SWC has id, "
                    "type, x, y, z, radius and parent"
                )
                raise VolumeError(msg) from error
        places = {name: index for index, (name, _) in enumerate(rows)}
        missing = [parent for _, parent in rows if parent >= 0 and parent not in places]
        if missing or len(places) < len(rows):
            why = "an id occurs twice"
            if missing:
                why = f"a line has the parent {missing[0]}, but no line has the id {missing[0]}"
            msg = f"{what} is damaged: {why}; export the skeleton again"
            raise VolumeError(msg)
        edges = [
            sorted((index, places[parent])) for index, (_, parent) in enumerate(rows) if parent >= 0
        ]
        return cls.of(vertices, edges, radii, types)


def merged(skeletons: Iterable[Skeleton]) -> Skeleton:
    """Join several skeletons into one; vertices at the same position are merged."""
    several = list(skeletons)
    starts = np.cumsum([0, *(len(each) for each in several)])
    if not several:
        return Skeleton.of([], [])
    return Skeleton.of(
        np.concatenate([each.vertices_nm for each in several]),
        np.concatenate([s.edges + start for s, start in zip(several, starts, strict=False)]),
        np.concatenate([each.radii_nm for each in several]),
        np.concatenate([each.types for each in several]),
    ).consolidated()

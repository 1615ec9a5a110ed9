r"""Triangle meshes: their file formats, and cutting them with planes.

| format           | source                                                                        |
|------------------|-------------------------------------------------------------------------------|
| precomputed      | Neuroglancer, ``datasource/precomputed/meshes.md`` (legacy single-resolution) |
| multi-resolution | Neuroglancer, ``meshes.md``: several levels of detail, unsharded              |
| ply              | Stanford polygon file, binary, little endian                                  |
| obj              | Wavefront, text                                                               |

A multi-resolution mesh has several levels of detail. Each level is cut into cells that a viewer
loads separately. Each triangle lies within one cell of its own level, and within one cell of the
next finer level. Vertices have 16-bit integer coordinates within their cell, and are encoded with
Draco.

```
level 0     | | | | |     cells of the size chunk_shape (see the format), with all triangles
level 1     |   |   |     cells twice as long, with a quarter of the triangles
level 2     |       |     one cell around the object
```

A plane between two cells cuts a triangle into three triangles, or into two if a vertex lies on the
plane. For example, the triangle L, P, Q is cut at the new vertices a and b into L, a, b; a, P, Q;
and a, Q, b:

```
     L                 L
    / \              a---b    plane
   /   \     ->     / `.  \
  P-----Q          P----`.-Q
```
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.errors import VolumeError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

BITS = 16
MULTIRES_INFO: dict[str, Any] = {
    "@type": "neuroglancer_multilod_draco",
    "vertex_quantization_bits": BITS,
    "transform": [1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0],
    "lod_scale_multiplier": 1.0,
}
_MOST = (1 << BITS) - 1
_CELL_FACES = 16384  # approximate number of triangles in a cell
_LEVELS = 8
_COMPRESSION = 7  # Draco's level, 0 to 10
_Cell = tuple[int, int, int]

MeshFormat = Literal["ply", "obj", "precomputed"]


@dataclass(frozen=True)
class Mesh:
    """A surface made of triangles; its axes are in the order x, y, z, as in all mesh formats.

    Attributes:
        vertices: (n, 3) float32, nanometres, xyz, in volume coordinates. Along each axis, voxel k
            extends from k · size to (k + 1) · size, where size is the voxel size.
        faces: (m, 3) uint32, indices of the vertices of each triangle, counterclockwise seen from
            outside.
    """

    vertices: NDArray[Any]
    faces: NDArray[Any]

    @property
    def is_empty(self) -> bool:
        """Whether the mesh has no triangles."""
        return len(self.faces) == 0

    def encoded(self, format: MeshFormat) -> bytes:
        """Return the mesh as the content of a file in the given format."""
        vertices = np.ascontiguousarray(self.vertices, "<f4")
        faces = np.ascontiguousarray(self.faces, "<u4")
        if format == "precomputed":
            return np.uint32(len(vertices)).tobytes() + vertices.tobytes() + faces.tobytes()
        if format == "obj":
            # Nine digits distinguish neighbouring float32 values.
            lines = "v %.9g %.9g %.9g\n" * len(vertices) % tuple(vertices.ravel().tolist())
            return (lines + "f %d %d %d\n" * len(faces) % tuple((faces + 1).ravel())).encode()
        header = (
            "ply\nformat binary_little_endian 1.0\ncomment nanometres, xyz\n"
            f"element vertex {len(vertices)}\n"
            "property float x\nproperty float y\nproperty float z\n"
            f"element face {len(faces)}\nproperty list uchar int vertex_indices\nend_header\n"
        )
        rows = np.empty(len(faces), np.dtype([("count", "u1"), ("indices", "<i4", 3)]))
        rows["count"], rows["indices"] = 3, faces
        return header.encode() + vertices.tobytes() + rows.tobytes()

    @classmethod
    def decoded(cls, data: bytes, address: str) -> Mesh:
        """Return the mesh of a precomputed fragment.

        Args:
            data: content of the file.
            address: address of the file, for messages.

        Raises:
            VolumeError: the fragment is damaged.
        """
        count = int.from_bytes(data[:4], "little")
        rest = len(data) - 4 - 12 * count
        if len(data) < 4 or rest < 0 or rest % 12:
            msg = (
                f"{address} is damaged: its length is {len(data)} bytes, which does not fit a "
                f"header of 4 bytes, {count} vertices of 12 bytes and triangles of 12 bytes; "
                "create the file again"
            )
            raise VolumeError(msg)
        vertices = np.frombuffer(data, "<f4", 3 * count, 4).reshape(-1, 3)
        faces = np.frombuffer(data, "<u4", -1, 4 + 12 * count).reshape(-1, 3)
        if faces.size and faces.max() >= count:
            msg = (
                f"{address} is damaged: a triangle refers to vertex {faces.max()}, but there are "
                f"only {count} vertices; create the file again"
            )
            raise VolumeError(msg)
        return cls(vertices, faces)


def welded(meshes: Sequence[Mesh]) -> Mesh:
    """Join meshes into one; vertices with equal coordinates become one vertex.

    Vertices are sorted by coordinates, and triangles by vertices. Therefore, the result does not
    depend on the order of *meshes*. Triangles without area are removed.
    """
    if not meshes:
        return Mesh(np.zeros((0, 3), np.float32), np.zeros((0, 3), np.uint32))
    ends = np.cumsum([len(mesh.vertices) for mesh in meshes])
    starts = [0, *ends[:-1]]
    faces = np.concatenate(
        [m.faces.astype(np.int64) + start for m, start in zip(meshes, starts, strict=True)]
    )
    vertices, places = np.unique(
        np.concatenate([mesh.vertices for mesh in meshes]), axis=0, return_inverse=True
    )
    faces = places.ravel()[faces]
    a, b, c = faces.T
    faces = faces[(a != b) & (b != c) & (c != a)]
    # Each triangle starts with its lowest vertex and keeps its orientation.
    turn = (faces.argmin(axis=1)[:, None] + np.arange(3)) % 3
    faces = np.take_along_axis(faces, turn, axis=1)
    faces = faces[np.lexsort(faces.T[::-1])]
    used, indices = np.unique(faces, return_inverse=True)
    return Mesh(vertices[used], indices.reshape(-1, 3).astype(np.uint32))


def cut(mesh: Mesh, axis: int, planes: Sequence[float]) -> list[Mesh]:
    """Cut a mesh with n planes, and return the n + 1 parts in ascending order along *axis*.

    Args:
        mesh: mesh to cut. The vertices of *mesh* may have any floating type; the vertices of the
            parts are float64.
        axis: 0 for x, 1 for y, 2 for z.
        planes: coordinates of the planes along the axis, ascending.
    """
    if not planes:
        return [mesh]
    middle = len(planes) // 2
    below, above = _halves(mesh, axis, planes[middle])
    return [*cut(below, axis, planes[:middle]), *cut(above, axis, planes[middle + 1 :])]


def _halves(mesh: Mesh, axis: int, plane: float) -> tuple[Mesh, Mesh]:
    vertices = mesh.vertices.astype(np.float64)
    faces = mesh.faces.astype(np.int64)
    side = np.sign(vertices[:, axis] - plane).astype(np.int8)[faces]
    low, high = side.min(axis=1), side.max(axis=1)
    crossing = (low < 0) & (high > 0)
    below, above = [faces[(high <= 0)]], [faces[(low >= 0) & (high > 0)]]
    if crossing.any():
        faces, side = faces[crossing], side[crossing]
        # Turn each triangle so that it starts with the vertex on the plane, or otherwise with the
        # vertex that is alone on its side of the plane.
        alone = np.where(side == 0, 2, 0) + (side == -np.sign(side.sum(axis=1, keepdims=True)))
        turn = (alone.argmax(axis=1)[:, None] + np.arange(3)) % 3
        faces, side = np.take_along_axis(faces, turn, 1), np.take_along_axis(side, turn, 1)
        touches = side[:, 0] == 0
        first, second, third = faces.T
        begins = np.concatenate([second[touches], first[~touches], first[~touches]])
        ends = np.concatenate([third[touches], second[~touches], third[~touches]])
        points, made = _crossings(vertices, begins, ends, axis, plane)
        made += len(vertices)
        vertices = np.concatenate([vertices, points])
        one, two = int(touches.sum()), int((~touches).sum())
        # A vertex on the plane: one new vertex c on the opposite edge.
        z, p, q = faces[touches].T
        c = made[:one]
        parts = [(z, p, c, side[touches, 1]), (z, c, q, side[touches, 2])]
        # Otherwise two new vertices a and b on the edges of the single vertex.
        lone, p, q = faces[~touches].T
        a, b = made[one : one + two], made[one + two :]
        own, other = side[~touches, 0], -side[~touches, 0]
        parts += [(lone, a, b, own), (a, p, q, other), (a, q, b, other)]
        for *corners, where in parts:
            rows = np.stack(corners, axis=1)
            below.append(rows[where < 0])
            above.append(rows[where > 0])
    return _used(vertices, np.concatenate(below)), _used(vertices, np.concatenate(above))


def _crossings(
    vertices: NDArray[Any], begins: NDArray[Any], ends: NDArray[Any], axis: int, plane: float
) -> tuple[NDArray[Any], NDArray[Any]]:
    # The points where edges cross the plane, and for each edge the index of its point. An edge that
    # two triangles share has one point.
    edges = np.sort(np.stack([begins, ends], axis=1), axis=1)
    edges, numbers = np.unique(edges, axis=0, return_inverse=True)
    a, b = vertices[edges[:, 0]], vertices[edges[:, 1]]
    part = (plane - a[:, axis]) / (b[:, axis] - a[:, axis])
    points = a + part[:, None] * (b - a)
    points[:, axis] = plane
    return points, numbers.ravel()


def _used(vertices: NDArray[Any], faces: NDArray[Any]) -> Mesh:
    used, indices = np.unique(faces, return_inverse=True)
    return Mesh(vertices[used], indices.reshape(-1, 3).astype(np.uint32))


def multires(mesh: Mesh) -> tuple[bytes, bytes]:
    """Return the contents of the two files of a multi-resolution mesh: manifest and data.

    Args:
        mesh: mesh of one object, made by `welded`, with at least one triangle.

    Raises:
        MissingExtraError: DracoPy or zmesh is not installed.
    """
    with needs_extra("precomputed", "mesh-manifest --multires"):
        import DracoPy  # noqa: F401
    with needs_extra("mesh", "mesh-manifest --multires"):
        import zmesh  # noqa: F401
    levels = level_count(len(mesh.faces))
    origin = mesh.vertices.min(axis=0)
    extent = np.maximum(mesh.vertices.max(axis=0) - origin, 1e-3)  # flat objects get a thickness
    # Slightly larger, so that rounding leaves no vertex outside.
    shape = (extent * (1 + 1e-5) / (1 << (levels - 1))).astype(np.float32)
    # Resolution of each level, which the viewer compares with the pixels of the screen.
    scale = _edge_length(mesh)
    counts: list[int] = []
    tables: list[bytes] = []
    data: list[bytes] = []
    for level in range(levels):
        coarse = mesh if level == 0 else _simplified(mesh, 4**level)
        cells = _encoded_cells(coarse, shape, origin, level, levels)
        counts.append(len(cells))
        positions = np.array(list(cells), "<u4").reshape(-1, 3)
        tables.append(np.ascontiguousarray(positions.T).tobytes())
        tables.append(np.array([len(part) for part in cells.values()], "<u4").tobytes())
        data += cells.values()
    header = [
        shape.astype("<f4"),
        origin.astype("<f4"),
        np.array([levels], "<u4"),
        np.array([scale * 2**level for level in range(levels)], "<f4"),
        np.zeros((levels, 3), "<f4"),
        np.array(counts, "<u4"),
    ]
    return b"".join([*(part.tobytes() for part in header), *tables]), b"".join(data)


def level_count(faces: int) -> int:
    """Return the number of levels of detail of a mesh with *faces* triangles, at least 1.

    The number is chosen so that a cell of the finest level has about `_CELL_FACES` triangles. At
    each finer level, a surface passes through four times as many cells.
    """
    return min(_LEVELS, 1 + max(0, math.ceil(math.log(max(1, faces) / _CELL_FACES, 4))))


def _edge_length(mesh: Mesh) -> float:
    ends = mesh.vertices[mesh.faces[:, :2]].astype(np.float64)
    return float(np.linalg.norm(ends[:, 0] - ends[:, 1], axis=1).mean())


def _simplified(mesh: Mesh, factor: int) -> Mesh:
    import zmesh

    raw = zmesh.Mesh(mesh.vertices.astype(np.float32), mesh.faces.astype(np.uint32), None)
    simple = zmesh.simplify_fqmr(raw, max(4, len(mesh.faces) // factor))
    # Simplification must not move vertices out of the cells, which enclose the original mesh.
    vertices = np.clip(simple.vertices, mesh.vertices.min(axis=0), mesh.vertices.max(axis=0))
    return Mesh(vertices, simple.faces)


def _encoded_cells(
    mesh: Mesh, shape: NDArray[Any], origin: NDArray[Any], level: int, levels: int
) -> dict[_Cell, bytes]:
    half = max(0, level - 1)  # also cut at the faces of the finer level's cells
    count, by = 1 << (levels - 1 - half), 1 << (level - half)
    low, size = origin.astype(np.float64), shape.astype(np.float64)
    planes = [[low[axis] + size[axis] * (k << half) for k in range(1, count)] for axis in range(3)]
    children: dict[_Cell, list[Mesh]] = {}
    for x, slab in enumerate(cut(mesh, 0, planes[0])):
        for y, row in enumerate(cut(slab, 1, planes[1])):
            for z, part in enumerate(cut(row, 2, planes[2])):
                if not part.is_empty:
                    children.setdefault((x // by, y // by, z // by), []).append(part)
    size = size * (1 << level)
    encoded = {
        cell: _encoded(children[cell], low + size * cell, size)
        for cell in sorted(children, key=_along_curve)
    }
    return {cell: data for cell, data in encoded.items() if data}


def _encoded(parts: list[Mesh], low: NDArray[Any], size: NDArray[Any]) -> bytes:
    import DracoPy

    whole = []
    for part in parts:
        # A vertex in the middle of a cell, at 32767.5, is always rounded up, whatever the rounding
        # errors of earlier steps.
        places = np.floor((part.vertices - low) / size * _MOST + 0.5 + 1e-6)
        whole.append(Mesh(np.clip(places, 0, _MOST), part.faces))
    mesh = welded(whole)
    if mesh.is_empty:
        return b""
    data: bytes = DracoPy.encode(
        mesh.vertices.astype(np.uint32), mesh.faces, compression_level=_COMPRESSION
    )
    return data


def _along_curve(cell: _Cell) -> int:
    return sum(
        (value >> bit & 1) << (3 * bit + axis)
        for axis, value in enumerate(cell)
        for bit in range(_LEVELS)
    )

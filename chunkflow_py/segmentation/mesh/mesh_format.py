"""A surface of triangles, and the formats of files that hold one.

| format        | written by                                                                     |
|---------------|--------------------------------------------------------------------------------|
| precomputed   | Neuroglancer, ``datasource/precomputed/meshes.md`` (legacy single-resolution)   |
| ply           | Stanford polygon file, binary, little endian                                   |
| obj           | Wavefront, text                                                                |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

MeshFormat = Literal["ply", "obj", "precomputed"]


@dataclass(frozen=True)
class Mesh:
    """A surface of triangles, in the order of axes of all formats of meshes: x, y, z.

    Attributes:
        vertices: (n, 3) float32, nanometres, xyz, in the frame of the volume: voxel k covers k to
            k + 1 times its size.
        faces: (m, 3) uint32, indices of vertices; seen from outside they turn to the left.
    """

    vertices: NDArray[Any]
    faces: NDArray[Any]

    @property
    def is_empty(self) -> bool:
        """Whether there is no triangle."""
        return len(self.faces) == 0

    def encoded(self, format: MeshFormat) -> bytes:
        """Return the content of a file."""
        vertices = np.ascontiguousarray(self.vertices, "<f4")
        faces = np.ascontiguousarray(self.faces, "<u4")
        if format == "precomputed":
            return np.uint32(len(vertices)).tobytes() + vertices.tobytes() + faces.tobytes()
        if format == "obj":
            # Nine digits tell each float32 from the next.
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
    def decoded(cls, data: bytes, what: str) -> Mesh:
        """Return the mesh of a precomputed fragment.

        Raises:
            VolumeError: it is damaged; *what* says which file it is.
        """
        count = int.from_bytes(data[:4], "little")
        rest = len(data) - 4 - 12 * count
        if len(data) < 4 or rest < 0 or rest % 12:
            msg = (
                f"{what} says {count} vertices of 12 bytes, then triangles of 12 bytes, but has "
                f"{len(data)} bytes; it is damaged: make it again"
            )
            raise VolumeError(msg)
        vertices = np.frombuffer(data, "<f4", 3 * count, 4).reshape(-1, 3)
        faces = np.frombuffer(data, "<u4", -1, 4 + 12 * count).reshape(-1, 3)
        if faces.size and faces.max() >= count:
            msg = f"{what} has triangles of vertex {faces.max()} of {count}; it is damaged"
            raise VolumeError(msg)
        return cls(vertices, faces)


def welded(meshes: Sequence[Mesh]) -> Mesh:
    """Return one mesh of several, in which vertices at the same place are one.

    Vertices are ordered by place and triangles by their vertices, so that the result does not
    depend on the order of *meshes*. Triangles that lose their area are left out.
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
    # each triangle begins with its first vertex, and goes round as before
    turn = (faces.argmin(axis=1)[:, None] + np.arange(3)) % 3
    faces = np.take_along_axis(faces, turn, axis=1)
    faces = faces[np.lexsort(faces.T[::-1])]
    used, indices = np.unique(faces, return_inverse=True)
    return Mesh(vertices[used], indices.reshape(-1, 3).astype(np.uint32))

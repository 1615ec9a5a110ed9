r"""A mesh cut by planes, so that no triangle crosses one.

```
     L                 L
    / \              a---b    plane
   /   \     ->     / `.  \
  P-----Q          P----`.-Q          a triangle becomes three, or two where a vertex lies on it
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.segmentation.mesh.mesh_format import Mesh

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray


def cut(mesh: Mesh, axis: int, planes: Sequence[float]) -> list[Mesh]:
    """Return the parts of a mesh between planes, one more than there are of these.

    Args:
        mesh: to cut; its vertices may be of any type of floats, and are float64 afterwards.
        axis: 0 for x, 1 for y, 2 for z.
        planes: coordinates along the axis, ascending.
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
        # First the vertex on the plane; or the one that is alone on its side of it.
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
        # a vertex on the plane: one new vertex c, opposite to it
        z, p, q = faces[touches].T
        c = made[:one]
        parts = [(z, p, c, side[touches, 1]), (z, c, q, side[touches, 2])]
        # else two of them, a and b, beside the vertex that is alone
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
    """Return the points at which edges cross a plane, and the number of each edge's point.

    An edge has one point, whichever of its triangles asks and in which direction.
    """
    edges = np.sort(np.stack([begins, ends], axis=1), axis=1)
    edges, numbers = np.unique(edges, axis=0, return_inverse=True)
    a, b = vertices[edges[:, 0]], vertices[edges[:, 1]]
    part = (plane - a[:, axis]) / (b[:, axis] - a[:, axis])
    points = a + part[:, None] * (b - a)
    points[:, axis] = plane
    return points, numbers.ravel()


def _used(vertices: NDArray[Any], faces: NDArray[Any]) -> Mesh:
    """Return a mesh without the vertices that no triangle has."""
    used, indices = np.unique(faces, return_inverse=True)
    return Mesh(vertices[used], indices.reshape(-1, 3).astype(np.uint32))

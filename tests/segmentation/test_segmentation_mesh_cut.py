"""Cutting meshes by planes."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.segmentation.mesh_files import Mesh, cut, welded


def area_and_edges(mesh):
    """Return the area vector and area of all triangles, and the edges without an opposite edge."""
    a, b, c = mesh.vertices[mesh.faces.T].astype(float)
    across = np.cross(b - a, c - a) / 2
    ends = {tuple(face[[k, (k + 1) % 3]].tolist()) for face in mesh.faces for k in range(3)}
    return across.sum(axis=0), np.linalg.norm(across, axis=1).sum(), ends


@given(st.integers(0, 2**32 - 1), st.integers(0, 2), st.sets(st.integers(-4, 4), max_size=4))
def test_parts_are_the_mesh(seed, axis, planes):
    """No triangle crosses a plane, the area vector stays, and a closed surface stays closed."""
    rng = np.random.default_rng(seed)
    # a closed surface: a tetrahedron, whose corners often lie on the planes
    vertices = rng.integers(-4, 5, (4, 3)).astype(np.float32)
    mesh = Mesh(vertices, np.array([[0, 1, 2], [0, 2, 3], [0, 3, 1], [1, 3, 2]], np.uint32))
    parts = cut(mesh, axis, sorted(planes))
    assert len(parts) == len(planes) + 1
    ends = [-np.inf, *sorted(planes), np.inf]
    for part, low, high in zip(parts, ends, ends[1:]):
        if not part.is_empty:
            assert low <= part.vertices[:, axis].min()
            assert part.vertices[:, axis].max() <= high
    whole, area, _ = area_and_edges(mesh)
    found = [area_and_edges(part) for part in parts if not part.is_empty]
    assert np.isclose(sum(each[1] for each in found), area)
    assert np.allclose(sum(each[0] for each in found), whole, atol=1e-9)
    joined = welded(parts)
    if area > 0 and np.linalg.matrix_rank(vertices[1:] - vertices[0]) == 3:
        _, _, edges = area_and_edges(joined)
        assert all((b, a) in edges for a, b in edges)


def test_a_triangle_across_a_plane():
    """A triangle cut at half its height gives the vertices that were computed by hand."""
    mesh = Mesh(np.array([[0, 0, 0], [4, 0, 0], [0, 4, 0]]), np.array([[0, 1, 2]]))
    below, above = cut(mesh, 1, [2.0])
    assert sorted(map(tuple, above.vertices)) == [(0, 2, 0), (0, 4, 0), (2, 2, 0)]
    assert len(above.faces) == 1
    assert sorted(map(tuple, below.vertices)) == [(0, 0, 0), (0, 2, 0), (2, 2, 0), (4, 0, 0)]
    assert len(below.faces) == 2

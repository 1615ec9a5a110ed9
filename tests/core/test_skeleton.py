"""Skeleton: geometry and formats."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.skeleton import Skeleton, merged
from chunkflow_py.errors import ChunkError, VolumeError

Y_SHAPE = Skeleton.of(
    [(40, 8, 4), (80, 8, 4), (120, 8, 4), (120, 16, 4), (120, 0, 4)],
    [(0, 1), (1, 2), (2, 3), (2, 4)],
    [5, 6, 7, -1, 2.5],
    [1, 0, 0, 3, 3],
)


def same(one: Skeleton, other: Skeleton) -> bool:
    """Return whether two skeletons are equal, whatever the order of their vertices."""
    a, b = one.consolidated(), other.consolidated()
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("vertices_nm", "edges", "radii_nm", "types")
    )


def test_swc_by_hand():
    """Parents stand before children; x, y, z; the root is an end."""
    assert Y_SHAPE.to_swc().splitlines()[1:] == [
        "1 1 4 8 40 5 -1",
        "2 0 4 8 80 6 1",
        "3 0 4 8 120 7 2",
        "4 3 4 16 120 -1 3",
        "5 3 4 0 120 2.5 3",
    ]
    assert Y_SHAPE.cable_length_nm == 96


def test_formats_of_cloud_volume():
    """cloud-volume reads the written skeletons, and the other way round."""
    from cloudvolume import Skeleton as Theirs

    read = Theirs.from_precomputed(Y_SHAPE.to_precomputed())
    assert np.array_equal(read.vertices, Y_SHAPE.vertices_nm[:, ::-1])
    assert np.array_equal(read.edges, Y_SHAPE.edges)
    assert np.array_equal(read.radius, Y_SHAPE.radii_nm)
    assert np.array_equal(read.vertex_types, Y_SHAPE.types)
    assert same(Skeleton.from_precomputed(read.to_precomputed()), Y_SHAPE)
    assert same(Skeleton.from_swc(read.to_swc()), Y_SHAPE)
    assert Theirs.equivalent(Theirs.from_swc(Y_SHAPE.to_swc().split("\n", 1)[1]), read)


trees = st.integers(0, 2**32 - 1).map(np.random.default_rng)


@given(trees, st.integers(0, 30), st.integers(1, 4))
def test_formats_keep_forests(rng, count, pieces):
    """Any forest survives both formats; several skeletons become one with what they share."""
    vertices = rng.integers(-500, 500, (count, 3)) / 4
    vertices[:, 0] += 1000 * np.arange(count)
    edges = [(int(rng.integers(k)), k) for k in range(pieces, count)]
    skeleton = Skeleton.of(vertices, edges, rng.random(count), rng.integers(0, 8, count))
    assert same(Skeleton.from_precomputed(skeleton.to_precomputed()), skeleton)
    assert same(Skeleton.from_swc(skeleton.to_swc()), skeleton)
    order = rng.permutation(len(edges))
    halves = [
        Skeleton.of(vertices, np.array(edges).reshape(-1, 2)[part], skeleton.radii_nm,
                    skeleton.types)
        for part in (order[::2], order[1::2])
    ]  # fmt: skip
    assert same(merged(halves), skeleton)
    assert merged(halves).to_precomputed() == merged(halves[::-1]).to_precomputed()


def test_loops_are_opened_in_swc():
    """A triangle loses one edge, not a vertex."""
    ring = Skeleton.of([(0, 0, 0), (0, 0, 1), (0, 1, 0)], [(0, 1), (1, 2), (2, 0)])
    found = Skeleton.from_swc(ring.to_swc())
    assert len(found) == 3
    assert len(found.edges) == 2


def test_an_empty_skeleton():
    """An empty skeleton survives both formats."""
    empty = merged([])
    assert len(Skeleton.from_precomputed(empty.to_precomputed())) == 0
    assert len(Skeleton.from_swc(empty.to_swc())) == 0
    assert empty.cable_length_nm == 0


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1 0 0 0 0 1", "line 1 of a.swc is '1 0 0 0 0 1' .*got 6"),
        ("1 0 0 0 zero 1 -1", "line 1 of a.swc"),
        ("# x\n1 0 0 0 0 NA -1\n2 0 0 0 0 1 7", "parent 7, but no line has the id 7"),
        ("1 0 0 0 0 1 -1\n1 0 0 0 0 1 -1", "an id occurs twice"),
    ],
)
def test_damaged_swc_is_told(text, words):
    """The message names the file, the line and the problem."""
    with pytest.raises(VolumeError, match=words):
        Skeleton.from_swc(text, "a.swc")


@pytest.mark.parametrize("data", [b"", b"\1\0\0\0\1\0\0\0", Y_SHAPE.to_precomputed()[:-1]])
def test_damaged_precomputed_is_told(data):
    """Lengths and indices are checked."""
    with pytest.raises(VolumeError, match="x is not a valid skeleton"):
        Skeleton.from_precomputed(data, "x")


def test_arrays_that_do_not_fit():
    """Edges to missing vertices, and a wrong number of radii, are refused."""
    with pytest.raises(ChunkError, match="refers to vertex 2, but there are only 2"):
        Skeleton.of([(0, 0, 0), (0, 0, 1)], [(0, 2)])
    with pytest.raises(ChunkError, match="2 vertices have 1 radii"):
        Skeleton.of([(0, 0, 0), (0, 0, 1)], [(0, 1)], [1])

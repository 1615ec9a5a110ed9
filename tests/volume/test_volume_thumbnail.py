"""Tests of chunkflow_py.volume.thumbnail."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import ChunkError
from chunkflow_py.volume.thumbnail import halvings, thumbnail


def test_mean():
    """A voxel is the mean over its part of the chunk, rounded, at the shrunken position."""
    array = np.array([[[0, 2, 10, 20, 7], [4, 6, 30, 40, 9]]], "u1")
    small = thumbnail(Chunk(array, (5, 2, 4), (40, 4, 4)), 2)
    np.testing.assert_array_equal(small.array, [[[3, 25, 8]]])
    assert small.bbox == BoundingBox(Zyx(5, 1, 2), Zyx(6, 2, 5))
    assert small.voxel_size_nm == (40, 8, 8)


def test_last_channel_of_a_map():
    """The last channel of a float map is shown, 0 to 1 as 0 to 255."""
    array = np.zeros((3, 1, 4, 4), "f4")
    array[2] = 0.5
    array[2, :, :, 2:] = 2
    np.testing.assert_array_equal(
        thumbnail(Chunk(array, kind="affinity"), 2).array, [[[128, 255], [128, 255]]]
    )


def test_sixteen_bits():
    """Deeper integers are scaled by the range of their type."""
    array = np.full((1, 2, 2), 65535, "u2")
    assert thumbnail(Chunk(array), 2).array.tolist() == [[[255]]]


def test_labels():
    """The mean of labels means nothing."""
    with pytest.raises(ChunkError, match="is a segmentation, which has no thumbnail"):
        thumbnail(Chunk(np.ones((1, 2, 2), "u4"), kind="segmentation"), 2)


def test_parts_make_up_the_whole():
    """Thumbnails of tasks, put together, are the thumbnail of the whole."""
    rng = np.random.default_rng(0)
    bounds = BoundingBox.from_size((3, 8, 16), (4, 45, 70))
    whole = Chunk(rng.integers(0, 255, bounds.size, "u1", endpoint=True), bounds.start)
    factor = 2 ** halvings(Zyx(4, 24, 24), bounds, 0)
    assert factor == 8
    wanted = thumbnail(whole, factor)
    result = np.zeros_like(wanted.array)
    for box in BoxGrid.covering(bounds, Zyx(4, 24, 24), respect_stop=True):
        part = thumbnail(whole.cut(box), factor)
        result[part.bbox.slices(wanted.voxel_offset)] = part.array
    np.testing.assert_array_equal(result, wanted.array)


def test_halvings():
    """Halving stops at level 6, and where tasks or bounds would no longer fall on whole voxels."""
    at_zero = BoundingBox(Zyx(0, 0, 0), Zyx(10, 1000, 1000))
    assert halvings(Zyx(7, 512, 512), at_zero, 0) == 6
    assert halvings(Zyx(7, 512, 512), at_zero, 4) == 2
    assert halvings(Zyx(7, 512, 24), at_zero, 0) == 3
    assert halvings(Zyx(0, 0, 0), at_zero, 0) == 6
    assert halvings(Zyx(7, 512, 512), at_zero.translate((0, 0, 2)), 0) == 1
    assert halvings(Zyx(7, 512, 512), at_zero, 9) == 0

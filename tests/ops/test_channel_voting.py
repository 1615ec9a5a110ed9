"""channel-voting."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk, Voxels
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.channel_voting import channel_voting


def test_the_strongest_channel_wins():
    """Channels count from 1, so that 0 stays free for the background; of equals the first wins."""
    array = np.array([[1, 5, 2, -1], [3, 5, 1, -2], [2, 0, 4, -1]], np.float32)
    chunk = Chunk(array.reshape(3, 1, 2, 2), (1, 2, 3), (40, 4, 4), "probability")
    found = channel_voting(chunk)
    assert found.array.tolist() == [[[2, 1], [3, 1]]]
    assert (found.dtype, found.kind) == (np.uint8, "segmentation")
    assert (found.voxel_offset, found.voxel_size_nm) == ((1, 2, 3), (40, 4, 4))


def test_it_is_the_largest_of_each_voxel():
    """Also of many channels, whose numbers need two bytes."""
    array = np.random.default_rng(0).integers(0, 200, (300, 2, 4, 4)).astype(np.uint8)
    found = channel_voting(Chunk(array))
    assert np.array_equal(found.array, np.argmax(array, axis=0) + 1)
    assert found.dtype == np.uint16
    made = channel_voting.voxels_from(Voxels("float32", 300, "probability", True))
    assert made == Voxels("uint16", 1, "segmentation", False)


def test_a_chunk_without_channels_is_refused():
    """There is nothing to compare."""
    with pytest.raises(ChunkError, match=r"has no channel axis \(shape"):
        channel_voting(Chunk(np.zeros((1, 2, 2))))

"""Ids that are unique in a volume."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.outline import Outline
from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.segmentation.labels.numbering import Numbering, global_ids


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_an_id_is_the_place_of_the_first_voxel(data: st.DataObject) -> None:
    """The id of a piece is 1 + the raster index in the volume of its first voxel in the box."""
    labels = data.draw(arrays(np.uint32, (3, 4, 5), elements=st.integers(0, 4)))
    low = [data.draw(st.integers(0, 2)) for _ in range(3)]
    offset = Zyx(*(data.draw(st.integers(-9, 9)) for _ in range(3)))
    box = BoundingBox.from_size(offset, labels.shape)
    core = BoundingBox(offset + low, box.stop)
    domain = box.grow((2, 0, 3), (1, 2, 0))
    grid = np.arange(domain.voxels).reshape(domain.size)[box.slices(domain.start)]
    inside = np.zeros(labels.shape, bool)
    inside[core.slices(offset)] = True
    expected = np.zeros(labels.shape, np.uint64)
    for label in set(labels.ravel().tolist()) - {0}:
        if (places := grid[(labels == label) & inside]).size:
            expected[labels == label] = 1 + places.min()
    before = labels.copy()
    assert np.array_equal(global_ids(labels, box, core, domain), expected)
    assert np.array_equal(labels, before)


def test_the_last_voxels_of_a_huge_volume() -> None:
    """Ids may use all of uint64; a volume of one voxel more is refused."""
    labels = np.ones((1, 1, 2), np.uint8)
    side = 2**32 - 1
    domain = BoundingBox(Zyx(0, 0, 0), Zyx(1, side, side + 2))  # 2**64 - 1 voxels
    box = BoundingBox(Zyx(0, side - 1, side), Zyx(1, side, side + 2))
    assert global_ids(labels, box, box, domain).ravel().tolist() == [2**64 - 2] * 2
    box, larger = BoundingBox.from_size((0, 0, 0), (1, 1, 2)), (1, 2**32, 2**32)
    with pytest.raises(GeometryError, match=r"18446744073709551616 voxels"):
        global_ids(labels, box, box, BoundingBox.from_size((0, 0, 0), larger))


def test_a_chunk_of_another_volume_is_refused() -> None:
    """A chunk from another volume than the pipeline's is refused: its ids would not be unique."""
    numbering = Numbering(is_global=True)
    numbering.prepare(Outline(domain=BoundingBox((0, 0, 0), (8, 8, 8)), has_tasks=True))
    labels = np.ones((4, 4, 4), np.uint32)
    with pytest.raises(ChunkError, match="--domain 0-8_0-8_0-8"):
        numbering(labels, Chunk(labels))
    assert Numbering()(labels, Chunk(labels)) is labels

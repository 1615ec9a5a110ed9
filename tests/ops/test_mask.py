"""mask."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.chunk import Chunk
from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.ops.mask import mask
from chunkflow_py.volume.mask import mask_of


def volume_of(array, offset=(0, 0, 0), voxel_size=(40, 8, 8)):
    """Return what mask_of needs of a volume, over an array in memory."""
    chunk = Chunk(array, offset, voxel_size)
    return SimpleNamespace(
        url="memory", bounds=chunk.bbox, voxel_size_nm=voxel_size, read=chunk.cut
    )


@settings(max_examples=40)
@given(
    seed=st.integers(0, 9999),
    start=st.tuples(*[st.integers(-9, 9)] * 3),
    size=st.tuples(*[st.integers(1, 7)] * 3),
    ratio=st.tuples(*[st.integers(1, 4)] * 3),
)
def test_each_voxel_asks_the_mask_voxel_that_covers_it(seed, start, size, ratio):
    """Voxel p is kept where mask voxel floor(p / ratio) is not zero; outside it is zero."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 2, (5, 6, 7)).astype(np.uint8) * 9
    offset = (-2, -3, -1)
    chunk = Chunk(np.ones(size, np.uint8), start, (10, 4, 4))
    volume = volume_of(coarse, offset, tuple(a * b for a, b in zip(ratio, (10, 4, 4), strict=True)))
    found = mask_of(chunk, volume)
    for index in np.ndindex(*size):
        place = [(s + i) // r - o for s, i, r, o in zip(start, index, ratio, offset, strict=True)]
        inside = all(0 <= p < n for p, n in zip(place, coarse.shape, strict=True))
        assert found[index] == (bool(coarse[tuple(place)]) if inside else False)


def test_masking_keeps_everything_else():
    """Kept voxels stay; the others become zero, NaN too; every channel is masked."""
    array = np.full((2, 1, 1, 3), np.nan, np.float32)
    array[..., 0] = 3
    chunk = Chunk(array, (1, 2, 3), (40, 4, 4), "affinity")
    result = mask(chunk, np.array([[[True, False, False]]]))
    assert result.array.ravel().tolist() == [3, 0, 0, 3, 0, 0]
    assert result.dtype == np.float32
    assert repr(result) == repr(chunk)
    assert np.isnan(array[..., 1:]).all()


def test_a_mask_of_several_channels_keeps_where_any_is_set():
    """Of a mask with channels any non-zero one keeps the voxel."""
    coarse = np.zeros((2, 1, 1, 2), bool)
    coarse[1, 0, 0, 1] = True
    chunk = Chunk(np.ones((1, 1, 2), np.uint8), voxel_size_nm=(40, 8, 8))
    assert mask_of(chunk, volume_of(coarse)).ravel().tolist() == [False, True]


def test_missing_masks_can_be_refused():
    """With fill_missing off a chunk beyond the mask is an error that names both boxes."""
    chunk = Chunk(np.ones((1, 1, 5), np.uint8), voxel_size_nm=(40, 4, 4))
    volume = volume_of(np.ones((1, 1, 2), np.uint8))
    assert mask_of(chunk, volume).ravel().tolist() == [True] * 4 + [False]
    with pytest.raises(GeometryError, match="needs 0-1_0-1_0-3 of mask memory.*0-1_0-1_0-2"):
        mask_of(chunk, volume, fill_missing=False)


@pytest.mark.parametrize("size", [(40, 3, 8), (20, 8, 8)])
def test_voxel_sizes_that_do_not_divide_are_refused(size):
    """The mask's voxels must be whole multiples of the chunk's."""
    chunk = Chunk(np.ones((1, 1, 1), np.uint8), voxel_size_nm=(40, 8, 8))
    volume = volume_of(np.ones((1, 1, 1)), voxel_size=size)
    with pytest.raises(ChunkError, match="must be a multiple"):
        mask_of(chunk, volume)

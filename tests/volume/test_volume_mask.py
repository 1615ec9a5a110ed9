"""Which boxes touch a mask that is coarser than the voxels they are counted in."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.chunk import Chunk
from chunkflow_py.errors import ChunkError
from chunkflow_py.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.mask import touches_mask
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox.from_size((-2, 1, -3), (5, 6, 7))  # voxels of the mask
VOXEL_SIZE = (40, 12, 16)


@pytest.fixture(scope="module")
def mask(tmp_path_factory):
    """Return a real volume of a mask and its values."""
    values = (np.random.default_rng(0).random(BOUNDS.size) < 0.05).astype(np.uint8) * 7
    spec = VolumeSpec(BOUNDS, VOXEL_SIZE, np.dtype("u1"), None, None, Zyx(5, 6, 7))
    volume = create_volume(spec, f"zarr://{tmp_path_factory.mktemp('mask')}/mask")
    volume.write(Chunk(values, BOUNDS.start, VOXEL_SIZE))
    return volume, values


def boxes(low, high, largest):
    """Draw a box that is not empty."""
    start = st.tuples(*[st.integers(low, high)] * 3)
    size = st.tuples(*[st.integers(1, largest)] * 3)
    return st.builds(BoundingBox.from_size, start, size)


RATIOS = st.sampled_from([(1, 1, 1), (2, 3, 4), (4, 1, 2), (1, 6, 8)])


def touched(values, ratio, box):
    """Tell voxel by voxel whether a box touches the mask."""
    for voxel in np.ndindex(*box.size):
        cell = [(s + v) // r for s, v, r in zip(box.start, voxel, ratio)]
        place = [c - b for c, b in zip(cell, BOUNDS.start)]
        if all(0 <= p < n for p, n in zip(place, values.shape)) and values[tuple(place)]:
            return True
    return False


@given(RATIOS, boxes(-12, 30, 20), boxes(-12, 30, 6))
@settings(max_examples=120)
def test_a_box_touches_the_mask_if_one_of_its_voxels_does(mask, ratio, around, part):
    """At any ratio, inside of the mask or not, and whatever box was read at first."""
    volume, values = mask
    size = tuple(m / r for m, r in zip(VOXEL_SIZE, ratio))
    touches = touches_mask(volume, around, size)
    assert touches(part) == touched(values, ratio, part)


@given(RATIOS, boxes(-12, 30, 9), boxes(-12, 30, 9), boxes(-12, 30, 6))
@settings(max_examples=60)
def test_two_tasks_agree_on_a_patch(mask, ratio, one, other, patch):
    """The answer for a patch is the same in every task, or cutting a volume would change it."""
    volume, _ = mask
    size = tuple(m / r for m, r in zip(VOXEL_SIZE, ratio))
    assert touches_mask(volume, one, size)(patch) == touches_mask(volume, other, size)(patch)


def test_of_several_channels_any_may_be_set(tmp_path):
    """A mask with channels is set where one of them is."""
    bounds = BoundingBox.from_size((0, 0, 0), (1, 1, 4))
    spec = VolumeSpec(bounds, (4, 4, 4), np.dtype("f4"), 2, None, Zyx(1, 1, 4))
    volume = create_volume(spec, f"zarr://{tmp_path}/mask")
    values = np.zeros((2, 1, 1, 4), np.float32)
    values[0, 0, 0, 1] = values[1, 0, 0, 2] = 0.5
    volume.write(Chunk(values, (0, 0, 0), (4, 4, 4)))
    touches = touches_mask(volume, bounds, (4, 4, 4))
    found = [touches(BoundingBox.from_size((0, 0, x), (1, 1, 1))) for x in range(-1, 6)]
    assert found == [False, False, True, True, False, False, False]


@pytest.mark.parametrize("size", [(80, 12, 16), (40, 5, 16), (39, 12, 16)])
def test_a_mask_that_is_finer_or_no_multiple_is_refused(mask, size):
    """The error names both voxel sizes and the ways out."""
    with pytest.raises(ChunkError, match=r"\(40.*, 12.*, 16.*\) nm, .*choose another --mip"):
        touches_mask(mask[0], BOUNDS, size)

"""Which boxes touch a mask that is coarser than the voxels they are counted in."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import ChunkError
from chunkflow_py.volume import create_volume
from chunkflow_py.volume import mask as module
from chunkflow_py.volume.mask import boxes_in_mask, touches_mask
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


RATIOS = st.sampled_from([(1, 1, 1), (2, 3, 4), (4, 1, 2), (1, 6, 8), (2.5, 1.5, 1.25)])


def touched(values, ratio, box):
    """Tell voxel by voxel whether a box touches the mask."""
    for voxel in np.ndindex(*box.size):
        place = [s + v for s, v in zip(box.start, voxel)]
        low = [int(p // r) - b for p, r, b in zip(place, ratio, BOUNDS.start)]
        high = [-int(-(p + 1) // r) - b for p, r, b in zip(place, ratio, BOUNDS.start)]
        if values[tuple(slice(max(a, 0), max(b, 0)) for a, b in zip(low, high))].any():
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


@pytest.mark.parametrize("size", [(80, 12, 16), (40, 12, 16.5)])
def test_a_mask_that_is_finer_is_refused(mask, size):
    """The error names both voxel sizes and the ways out."""
    with pytest.raises(ChunkError, match=r"\(40.*, 12.*, 16.*\) nm, .*choose another --mip"):
        touches_mask(mask[0], BOUNDS, size)


GRIDS = st.builds(
    lambda start, size, stride, count, cut: BoxGrid(
        start, size, stride or size, count,
        cut and start + (stride or size) * (count - 1) + cut.low(size),
    ),
    st.builds(Zyx, *[st.integers(-12, 20)] * 3), st.builds(Zyx, *[st.integers(1, 9)] * 3),
    st.none() | st.builds(Zyx, *[st.integers(1, 12)] * 3),
    st.builds(Zyx, *[st.integers(1, 5)] * 3), st.none() | st.builds(Zyx, *[st.integers(1, 9)] * 3),
)  # fmt: skip


@given(RATIOS, GRIDS, st.sampled_from([1, 20, 10_000]))
@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_boxes_of_tasks_touch_the_mask_as_patches_do(mask, monkeypatch, ratio, grid, at_once):
    """Of a grid or a list, apart or overlapping, cut off or not, read in pieces of any size."""
    volume, _ = mask
    monkeypatch.setattr(module, "READ_BYTES", at_once)
    size = tuple(m / r for m, r in zip(VOXEL_SIZE, ratio))
    touches = touches_mask(volume, grid.bounds, size)
    expected = [touches(box) for box in grid]
    assert boxes_in_mask(volume, grid, size).ravel().tolist() == expected
    assert boxes_in_mask(volume, list(grid), size).tolist() == expected


class Counting:
    """A volume that counts how often each of its voxels is read."""

    def __init__(self, volume):
        self._volume = volume
        self.counts = np.zeros(volume.bounds.size, int)
        self.calls = 0

    def __getattr__(self, name):
        return getattr(self._volume, name)

    def read(self, bbox, channels=None, *, time=None):
        self.counts[bbox.slices(self.bounds.start)] += 1
        self.calls += 1
        return self._volume.read(bbox, channels, time=time)


def test_a_mask_is_read_once_in_pieces_of_whole_blocks(tmp_path, monkeypatch):
    """Not once a box, and never more at once than is allowed."""
    bounds = BoundingBox.from_size((0, 0, 0), (16, 16, 16))
    spec = VolumeSpec(bounds, (4, 4, 4), np.dtype("u1"), None, None, Zyx(4, 4, 4))
    volume = create_volume(spec, f"zarr://{tmp_path}/mask")
    volume.write(Chunk(np.ones(bounds.size, np.uint8), (0, 0, 0), (4, 4, 4)))
    monkeypatch.setattr(module, "READ_BYTES", 4 * 8 * 16)
    counting = Counting(volume)
    grid = BoxGrid.covering(BoundingBox.parse("0-60_0-64_0-64"), Zyx(4, 4, 4))
    assert boxes_in_mask(counting, grid, (1, 1, 1)).all()
    assert counting.calls == 8
    assert counting.counts[:15].tolist() == np.ones((15, 16, 16)).tolist()
    assert not counting.counts[15:].any()


def test_tasks_where_there_is_no_mask_are_told(mask, caplog):
    """A mask of another extent counts as empty outside of it, and that is a warning."""
    volume, _ = mask
    inside = BoxGrid(BOUNDS.start, Zyx(1, 1, 1), Zyx(1, 1, 1), BOUNDS.size)
    boxes_in_mask(volume, inside, VOXEL_SIZE)
    assert "outside" not in caplog.text
    more = BoxGrid(BOUNDS.start, Zyx(1, 1, 1), Zyx(1, 1, 1), BOUNDS.size + (1, 0, 0))
    assert not boxes_in_mask(volume, more, VOXEL_SIZE)[-1].any()
    assert "42 of 252 tasks are completely outside mask" in caplog.text
    caplog.clear()
    boxes_in_mask(volume, [BoundingBox.parse("0-1_0-1_0-1"), BOUNDS], VOXEL_SIZE)
    assert "1 of 2 tasks are completely outside mask" in caplog.text


def test_a_mask_that_does_not_fit_the_tasks_names_their_options(mask):
    """The remedy is one that a person who plans tasks can use."""
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(1, 1, 1))
    with pytest.raises(ChunkError, match="choose another --mask-mip, or give the --voxel-size"):
        boxes_in_mask(mask[0], grid, (80, 12, 16))

"""Grids of task boxes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.tasks.task_grid import region_of, task_grid

sizes = st.builds(Zyx, *[st.integers(1, 9)] * 3)
points = st.builds(Zyx, *[st.integers(-20, 20)] * 3)


@settings(max_examples=60)
@given(start=points, extent=sizes, chunk=sizes, respect_stop=st.booleans())
def test_every_voxel_is_in_one_task(start, extent, chunk, respect_stop):
    """The boxes of a grid cover each voxel of the region exactly once."""
    region = BoundingBox.from_size(start, extent)
    grid = task_grid(chunk, start, region.stop, respect_stop=respect_stop)
    inside = [box.intersection(region).voxels for box in grid]
    assert sum(inside) == region.voxels
    assert all(inside)
    assert grid.bounds.contains(region)
    if respect_stop:
        assert grid.bounds == region
    else:
        assert {box.size for box in grid} == {chunk}


@settings(max_examples=60)
@given(start=points, extent=sizes, block=sizes, factor=sizes)
def test_aligned_boxes_begin_on_blocks(start, extent, block, factor):
    """With a block size, boxes start at multiples of it, counted from (0, 0, 0)."""
    grid = task_grid(block * factor, start, start + extent, block_size=block)
    for box in grid:
        assert box.start % block == (0, 0, 0)
        assert box.stop % block == (0, 0, 0)
    assert grid.bounds.contains(BoundingBox.from_size(start, extent))


def test_a_chunk_size_off_the_blocks_is_refused_with_the_nearest():
    """A box size that is not a multiple of the block size is refused; a larger one is named."""
    with pytest.raises(OptionError, match=r"\(20, 60, 64\).*along z.*next larger.*\(24, 64, 64\)"):
        task_grid(Zyx(20, 60, 64), Zyx(0, 0, 0), block_size=Zyx(8, 16, 64))


def test_grid_size_counts_boxes():
    """A grid size alone determines the number of boxes from the start."""
    grid = task_grid(Zyx(2, 3, 4), Zyx(1, 1, 1), grid_size=Zyx(1, 2, 3))
    assert len(grid) == 6
    assert str(grid[5]) == "1-3_4-7_9-13"


def test_without_a_stop_there_is_one_box():
    """Without a stop and a grid size there is one box."""
    assert [str(box) for box in task_grid(Zyx(2, 3, 4), Zyx(0, 0, 0))] == ["0-2_0-3_0-4"]


def test_a_grid_behind_a_respected_stop_is_refused():
    """Boxes entirely beyond the stop are refused; the largest grid that fits is named."""
    with pytest.raises(OptionError, match=r"largest grid that works is \(1, 2, 2\)"):
        task_grid(
            Zyx(4, 4, 4), Zyx(0, 0, 0), Zyx(4, 8, 7), grid_size=Zyx(2, 2, 3), respect_stop=True
        )


def test_region_is_filled_in_from_the_volume():
    """Missing parts of the region are taken from the bounds of the volume."""
    bounds = BoundingBox(Zyx(1, 2, 3), Zyx(11, 12, 13))
    assert region_of(None, None, None, bounds) == (bounds.start, bounds.stop)
    assert region_of(Zyx(4, 4, 4), None, None, bounds) == (Zyx(4, 4, 4), bounds.stop)
    assert region_of(None, None, Zyx(2, 2, 2), bounds) == (bounds.start, Zyx(3, 4, 5))
    assert region_of(None, Zyx(9, 9, 9), Zyx(2, 2, 2), bounds) == (Zyx(7, 7, 7), Zyx(9, 9, 9))


def test_contradicting_regions_are_refused():
    """Start, stop and size that disagree, and empty regions, are refused with the values."""
    with pytest.raises(OptionError, match=r"is \(2, 2, 2\), but --roi-stop is \(3, 3, 3\)"):
        region_of(Zyx(0, 0, 0), Zyx(3, 3, 3), Zyx(2, 2, 2))
    with pytest.raises(OptionError, match="is empty"):
        region_of(Zyx(5, 0, 0), Zyx(3, 3, 3), None)

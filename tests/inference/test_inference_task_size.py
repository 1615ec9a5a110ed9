"""Sizes of tasks for a network and a memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid
from chunkflow_py.inference.task_size import TaskSizes


def sizes(patch, overlap, margin=(0, 0, 0), unit=(1, 1, 1), extent=(512, 512, 512), crop=None):
    """Return the sizes for such patches, a channel of float32."""
    patch = Zyx(*patch)
    geometry = PatchGeometry(patch + Zyx(*margin) * 2, patch, Zyx(*overlap))
    return TaskSizes(geometry, 1, 4, Zyx(*unit), Zyx(*extent), crop and Zyx(*crop))


@settings(max_examples=60)
@given(
    patch=st.tuples(*[st.integers(4, 20)] * 3),
    shared=st.tuples(*[st.floats(0, 0.9)] * 3),
    margin=st.tuples(*[st.integers(0, 3)] * 3),
    steps=st.tuples(*[st.integers(1, 4)] * 3),
)
def test_tasks_on_the_stride_are_touched_by_as_many_patches_as_are_told(
    patch, shared, margin, steps
):
    """Patches, margin and computed voxels are those of the grid over a large volume."""
    overlap = tuple(int(p * s) for p, s in zip(patch, shared, strict=True))
    found = sizes(patch, overlap, margin)
    size = found.geometry.stride * Zyx(*steps)
    told = found.of(size)
    domain = BoundingBox.from_size((0, 0, 0), size * 3 + Zyx(*patch) * 9)
    grid = PatchGrid(found.geometry, domain)
    around = -(-Zyx(*patch) * 3 // found.geometry.stride) * found.geometry.stride
    box = BoundingBox.from_size(around, size)  # far from the faces of the volume
    assert grid.count(box) == told.patches
    assert grid.amplification(box) == pytest.approx(told.amplification)
    assert box.grow(told.margin).contains(grid.required_input(box))


def test_more_memory_means_fewer_voxels_computed_twice():
    """The size grows with the memory, stays a multiple of the unit, and fits."""
    found = sizes((16, 64, 64), (4, 16, 16), unit=(12, 64, 64), extent=(300, 2048, 2048))
    best = [found.best(bytes_) for bytes_ in (10**7, 10**8, 10**9)]
    assert [b.memory_bytes <= limit for b, limit in zip(best, (10**7, 10**8, 10**9))] == [True] * 3
    assert best[0].amplification > best[1].amplification > best[2].amplification
    for each in best:
        assert not any(each.size % Zyx(12, 64, 64))


def test_a_small_volume_is_one_task():
    """No task is larger than what holds the whole volume."""
    found = sizes((16, 64, 64), (4, 16, 16), unit=(12, 64, 64), extent=(20, 100, 100))
    assert found.best(10**9).size == (24, 128, 128)


def test_a_cropped_chunk_is_whole_patches():
    """With a crop, sizes are those of n patches less the crop on both sides."""
    found = sizes((16, 64, 64), (4, 16, 16), unit=(1, 64, 64), crop=(4, 16, 16))
    best = found.best(10**8)
    assert (best.size + Zyx(4, 16, 16) * 2 - Zyx(4, 16, 16)) % Zyx(12, 48, 48) == (0, 0, 0)
    assert best.margin == (4, 16, 16)


def test_what_does_not_fit_names_what_would():
    """Too little memory, and sizes that no number of patches gives, are one sentence."""
    found = sizes((16, 64, 64), (4, 16, 16), unit=(12, 64, 64))
    with pytest.raises(OptionError, match=r"smallest task, \(12, 64, 64\).*raise --max-ram-size"):
        found.best(10**5)
    odd = sizes((16, 64, 64), (4, 16, 16), unit=(1, 64, 64), crop=(4, 15, 15))
    with pytest.raises(OptionError, match=r"crop \(4, 15, 15\) allow no task size that is"):
        odd.best(10**9)

"""Sizes of tasks for a network and a memory."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid
from chunkflow_py.inference.shared_patches import SharedPatches
from chunkflow_py.inference.task_size import TaskSizes


def sizes(
    patch, overlap, margin=(0, 0, 0), unit=(1, 1, 1), extent=(512, 512, 512), crop=None, **more
):
    """Return the sizes for such patches, a channel of float32."""
    patch = Zyx(*patch)
    geometry = PatchGeometry(patch + Zyx(*margin) * 2, patch, Zyx(*overlap))
    return TaskSizes(geometry, 1, 4, Zyx(*unit), Zyx(*extent), crop and Zyx(*crop), **more)


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


def test_tasks_that_exchange_patches_stay_small():
    """With an exchange, memory that larger tasks could use does not make tasks larger."""
    case = {"unit": (12, 48, 48), "extent": (300, 2048, 2048)}
    alone = sizes((16, 64, 64), (4, 16, 16), **case)
    exchanging = sizes((16, 64, 64), (4, 16, 16), **case, exchange=True)
    best = exchanging.best(10**10)
    assert best.size.product() < alone.best(10**10).size.product() / 10
    assert best.amplification == pytest.approx((16 * 64 * 64) / (12 * 48 * 48))
    assert best.alone == pytest.approx(alone.of(best.size).amplification)
    assert best.kept >= 0.5
    for smaller in (best.size - Zyx(12, 0, 0), best.size - Zyx(0, 48, 48)):
        there = exchanging.of(smaller)
        assert there.kept < 0.5 or there.memory_bytes > best.memory_bytes
    assert best.memory_bytes > alone.of(best.size).memory_bytes  # parts are in memory, too


def test_tasks_that_exchange_patches_keep_half_of_what_they_compute():
    """The share that is kept is what the grid gives; smaller tasks are taken if memory is short."""
    found = sizes((16, 64, 64), (4, 16, 16), unit=(12, 48, 48), exchange=True)
    for steps in ((2, 2, 2), (4, 3, 3), (8, 5, 5)):
        size = Zyx(12, 48, 48) * Zyx(*steps)
        domain = BoundingBox.from_size((0, 0, 0), size * 40 + Zyx(4, 16, 16))
        grid = PatchGrid(found.geometry, domain)
        spans = [[(k * size[axis], (k + 1) * size[axis]) for k in range(40)] for axis in range(3)]
        shared = SharedPatches.of(grid, spans)
        computed = shared.distinct * 16 * 64 * 64
        kept = 1 - shared.written_voxels([0] * 40) / computed
        assert found.of(size).kept == pytest.approx(kept, abs=0.04)
    assert found.best(10**10).kept >= 0.5
    least = min(found.of(Zyx(24, 96, 96)).memory_bytes, found.of(Zyx(24, 144, 144)).memory_bytes)
    assert 0 < found.best(least).kept < 0.5
    short = found.best(least // 20)  # smaller than a patch: without an exchange
    assert (short.kept, short.amplification) == (0, short.alone)


def test_one_task_exchanges_nothing():
    """A volume that is one task needs no memory for parts."""
    case = {"unit": (12, 64, 64), "extent": (20, 100, 100)}
    alone, exchanging = (
        sizes((16, 64, 64), (4, 16, 16), **case, exchange=exchange) for exchange in (False, True)
    )
    size = Zyx(24, 128, 128)
    assert exchanging.of(size).memory_bytes == alone.of(size).memory_bytes
    assert exchanging.best(10**9).size == size

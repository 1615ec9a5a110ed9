"""The loader: batches in grid order, a few ahead, in buffers that come back whatever happens."""

import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.inference.device_streams import Device
from chunkflow_py.inference.normalization import Normalizer
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid
from chunkflow_py.inference.patch_loader import PatchLoader, PatchSource

CPU = Device(torch.device("cpu"))
SIZE = Zyx(2, 3, 4)


def wait_until(condition):
    """Wait for another thread; give up after ten seconds."""
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "the other thread never came so far"
        time.sleep(0.001)


@pytest.fixture(params=[False, True], ids=["when asked", "ahead"])
def loader(request):
    """Return a loader of batches of two patches, which is closed afterwards."""
    made = PatchLoader((2, 1, *SIZE), CPU, ahead=request.param)
    yield made
    made.close()


@pytest.fixture
def ahead():
    """Return a loader that fills batches in a thread."""
    made = PatchLoader((2, 1, *SIZE), CPU, ahead=True)
    yield made
    made.close()


def cut_of(shape, *, overlap=Zyx(0, 0, 0), pad="reflect", seed=0, **more):
    """Return what to read of random voxels of this shape."""
    image = np.random.default_rng(seed).integers(1, 256, (1, *shape), dtype=np.uint8)
    return cut_of_image(more.pop("image", image), overlap=overlap, pad=pad, **more)


def cut_of_image(image, *, overlap=Zyx(0, 0, 0), pad="reflect", **more):
    """Return what to read of (c, z, y, x) voxels."""
    box = BoundingBox.from_size((0, 0, 0), image.shape[1:])
    grid = PatchGrid(PatchGeometry(SIZE, SIZE, overlap), box, pad)
    return PatchSource(image, box, grid, box, more.pop("scale", Normalizer()), **more)


def taken(loader, cut):
    """Return the steps of all batches, and copies of what was in them."""
    steps, inputs = [], []
    batches = loader.open(cut)
    for batch in batches:
        assert batch.used == sum(step.place is not None for step in batch.steps)
        for patch, place, *_ in batch.steps:
            steps.append(patch)
            inputs.append(None if place is None else batch.tensor[place].clone().numpy())
        if batch.tensor is not None:
            assert not batch.tensor[batch.used :].any()
    batches.close()
    return steps, inputs


@pytest.mark.parametrize("patches", range(1, 6))
def test_patches_come_in_grid_order_and_the_last_batch_is_filled_with_zeros(loader, patches):
    """Every patch once, in order, each with its scaled voxels, however full the last batch is."""
    cut = cut_of((2, 3, 4 * patches))
    steps, inputs = taken(loader, cut)
    assert steps == list(cut.grid.patches(cut.target))
    for patch, values in zip(steps, inputs, strict=True):
        np.testing.assert_array_equal(
            values, cut.data[(slice(None), *patch.slices())] / np.float32(255)
        )


def test_cuts_are_fed_one_after_the_other(loader):
    """Two that are opened at once are filled in the order in which they were opened."""
    first, second = cut_of((2, 3, 40), seed=1), cut_of((2, 3, 40), seed=2)
    one, two = loader.open(first), loader.open(second)
    for batches, cut in ((one, first), (two, second)):
        found = torch.cat([batch.tensor[: batch.used].clone() for batch in batches])
        expected = torch.stack([cut.patch(patch) for patch in cut.grid.patches(cut.target)])
        assert torch.equal(found, expected)
        batches.close()


def test_a_few_buffers_serve_all_batches(loader):
    """However many batches and cuts, they lie in the same three places, or one."""
    places, count = set(), loader._free.qsize()
    for seed in range(2):
        batches = loader.open(cut_of((2, 3, 80), seed=seed))
        places |= {batch.tensor.data_ptr() for batch in batches}
        batches.close()
    assert len(places) == count
    assert count in (1, 3)


def test_no_more_than_three_batches_are_filled_ahead(ahead):
    """Filling waits for a buffer, so that memory is bounded however slow the network is."""
    filled = []

    def scale(source, place):
        filled.append(1)
        Normalizer()(source, place)

    batches = ahead.open(cut_of((2, 3, 80), scale=scale))
    wait_until(lambda: len(filled) == 6)
    time.sleep(0.15)
    assert len(filled) == 6
    next(iter(batches))
    batches.close()


def test_batches_do_not_wait_for_patches_that_are_left_out(loader):
    """Skipped patches ride along with the next batch; after the last one they come alone."""
    wanted = [False, True, False, False, True, True, False, False]
    cut = cut_of((2, 3, 32))
    patches = list(cut.grid.patches(cut.target))
    cut = cut_of((2, 3, 32), wanted=lambda patch: wanted[patches.index(patch)])
    batches = loader.open(cut)
    shape = [(batch.used, [step.place for step in batch.steps]) for batch in batches]
    batches.close()
    assert shape == [(2, [None, 0, None, None, 1]), (1, [0, None, None])]


@pytest.mark.parametrize("skip_empty", [False, True])
def test_empty_means_that_every_input_voxel_is_zero(loader, skip_empty):
    """One voxel in a corner of the patch is enough; without the option every patch is run."""
    image = np.zeros((1, 2, 3, 16), np.uint8)
    image[0, 1, 2, 7] = 1
    steps, inputs = taken(loader, cut_of_image(image, skip_empty=skip_empty))
    assert [values is not None for values in inputs] == [
        not skip_empty, True, not skip_empty, not skip_empty,
    ]  # fmt: skip


@given(st.integers(0, 2**32 - 1), st.sampled_from(["zero", "edge", "reflect"]))
@settings(max_examples=50)
def test_whether_a_patch_is_empty_does_not_depend_on_what_was_loaded(seed, pad):
    """A patch is skipped if the network would see only zeros, on any cut of the volume."""
    rng = np.random.default_rng(seed)
    image = (rng.random((1, 3, 5, 9)) < 0.05).astype(np.uint8)
    domain = BoundingBox.from_size((0, 0, 0), image.shape[1:])
    geometry = PatchGeometry(Zyx(4, 5, 6), Zyx(2, 3, 4), Zyx(1, 1, 1))
    grid = PatchGrid(geometry, domain, pad, keep_stride=True)
    patches = list(grid.patches(domain))
    for patch in patches:
        target = patch.intersection(domain)
        need = grid.required_input(target)
        for box in (domain, need):
            data = image[(slice(None), *box.slices())]
            cut = PatchSource(data, box, grid, target, Normalizer(), skip_empty=True)
            source, outside = cut.source(patch)
            seen = np.full(source.shape, np.nan, np.float32)
            cut.fill(seen, source, outside)
            assert cut.wants(patch, source) == seen.any()


def test_zero_padding_stays_zero_under_any_scale(loader):
    """What lies outside is 0 for the network, not what a statistics file makes of 0."""
    scale = Normalizer("zscore", (100.0,), (10.0,))
    cut = cut_of((2, 3, 6), pad="zero", overlap=Zyx(0, 0, 2), scale=scale)
    grid = PatchGrid(PatchGeometry(SIZE, SIZE, Zyx(0, 0, 0)), cut.box, "zero", keep_stride=True)
    cut = PatchSource(cut.data, cut.box, grid, cut.box, scale)
    _, inputs = taken(loader, cut)
    assert not inputs[-1][..., 2:].any()
    np.testing.assert_allclose(inputs[-1][..., :2], (cut.data[..., 4:] - 100.0) / 10, rtol=1e-6)


def test_a_long_empty_stretch_is_told_as_it_goes(loader):
    """Thousands of empty patches arrive in pieces, so that output and progress keep up."""
    image = np.zeros((1, 2, 3, 4 * 1000), np.uint8)
    batches = loader.open(cut_of_image(image, skip_empty=True))
    counts = [(batch.used, batch.tensor, len(batch.steps)) for batch in batches]
    batches.close()
    assert sum(count for _, _, count in counts) == 1000
    assert max(count for _, _, count in counts) <= 256
    assert {used for used, _, _ in counts} == {0}
    assert {tensor for _, tensor, _ in counts} == {None}


def test_closing_early_ends_a_long_empty_stretch(ahead):
    """Who closes does not wait until all of an empty volume has been looked at."""
    looked = []
    go_on = threading.Event()

    def wanted(patch):
        looked.append(patch)
        if len(looked) == 10:
            go_on.wait(10)
        return False

    batches = ahead.open(cut_of((2, 3, 4 * 2000), wanted=wanted))
    wait_until(lambda: len(looked) == 10)
    batches._stop.set()
    go_on.set()
    batches.close()
    assert len(looked) <= 256


@pytest.mark.parametrize("after", [0, 1, 2, 5, 6])
def test_what_goes_wrong_while_filling_comes_in_its_place(loader, after):
    """Full batches before it arrive, then the error; every buffer comes back."""
    count = 0

    def wanted(patch):
        nonlocal count
        count += 1
        if count > after:
            msg = "the mask is gone"
            raise OSError(msg)
        return True

    buffers = loader._free.qsize()
    for _ in range(5):  # with three buffers, one lost a time would block
        count, found = 0, 0
        batches = loader.open(cut_of((2, 3, 40), wanted=wanted))
        with pytest.raises(OSError, match="the mask is gone"):  # noqa: PT012
            for batch in batches:
                found += batch.used
        assert found == after // 2 * 2
        batches.close()
        assert loader._free.qsize() == buffers
    assert len(taken(loader, cut_of((2, 3, 40)))[0]) == 10


@pytest.mark.parametrize("after", [0, 1, 3])
def test_leaving_early_gives_all_buffers_back(loader, after):
    """Who closes after some batches leaves nothing behind, ten times in a row."""
    buffers = loader._free.qsize()
    for _ in range(10):
        batches = loader.open(cut_of((2, 3, 80)))
        for number, _ in enumerate(batches):
            if number == after:
                break
        batches.close()
        batches.close()  # a second time does nothing
        assert loader._free.qsize() == buffers
        assert next(iter(batches), None) is None


def test_one_cut_closed_early_does_not_disturb_the_next(loader):
    """Batches that were filled for a run that was given up do not reach the next one."""
    one, second = loader.open(cut_of((2, 3, 80), seed=1)), cut_of((2, 3, 24), seed=2)
    two = loader.open(second)
    one.close()
    found = torch.cat([batch.tensor[: batch.used].clone() for batch in two])
    expected = torch.stack([second.patch(patch) for patch in second.grid.patches(second.target)])
    assert torch.equal(found, expected)
    two.close()


def test_closing_ends_the_thread():
    """No thread of a loader outlives it."""
    before = set(threading.enumerate())
    loader = PatchLoader((2, 1, *SIZE), CPU, ahead=True)
    taken(loader, cut_of((2, 3, 8)))
    assert any(t.name.startswith("gather") for t in set(threading.enumerate()) - before)
    loader.close()
    assert not {t for t in set(threading.enumerate()) - before if t.name.startswith("gather")}

"""Blending: sums and weights against float64, whatever the box, in buffers that do not grow."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from rounding import rounding

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.blend import BUMPS, Blender, create_window
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid


def triples(low, high):
    """Draw three integers."""
    return st.tuples(*[st.integers(low, high)] * 3).map(Zyx.of)


@st.composite
def grids(draw):
    """Draw a grid, a box in it, and a seed; overlap up to three quarters and beyond."""
    size = draw(triples(1, 8))
    overlap = Zyx(*(draw(st.integers(0, max(0, n - 1))) for n in size))
    extent = Zyx(*(draw(st.integers(1, 3 * n + 5)) for n in size))
    domain = BoundingBox.from_size(draw(triples(-20, 20)), extent)
    kind = draw(st.sampled_from(["anchored", "padded", "spread"]))
    grid = PatchGrid(
        PatchGeometry(size, size, overlap),
        domain,
        keep_stride=kind == "padded",
        spread=kind == "spread",
    )
    start = Zyx(*(draw(st.integers(a, b - 1)) for a, b in zip(domain.start, domain.stop)))
    stop = Zyx(*(draw(st.integers(a + 1, b)) for a, b in zip(start, domain.stop)))
    return grid, BoundingBox(start, stop), draw(st.integers(0, 2**32 - 1))


def patch_values(patch, channels, seed):
    """Return the values of one patch, the same whenever it is asked for."""
    rng = np.random.default_rng([seed, *(v + 1000 for v in patch.start)])
    return (rng.random((channels, *patch.size), dtype=np.float32) - 0.25) * 7


def blended(blender, grid, box, values_of):
    """Return sums / weights on *box*, and how often each voxel was given out."""
    blender.begin(grid, box)
    result, given_out = None, np.zeros(box.size, int)

    def take(region):
        nonlocal result
        if result is None:
            result = np.full((len(region.sums), *box.size), np.nan, np.float32)
        inside = region.box.slices(box.start)
        result[(slice(None), *inside)] = (region.sums / region.weights).numpy()
        given_out[inside] += 1
        region.sums.fill_(np.nan)  # may be overwritten

    for patch in grid.patches(box):
        for region in blender.advance(patch):
            take(region)
        values = values_of(patch)
        given = None if values is None else torch.from_numpy(values)
        blender.add(patch, given, weighted=False)
    for region in blender.finish():
        take(region)
    return result, given_out


def reference(grid, box, window, values_of, channels):
    """Return Σ w·p / Σ w in float64, with the whole output in memory, patch by patch."""
    reach = box
    for patch in grid.patches(box):
        reach = reach.hull(patch)
    sums, weights = np.zeros((channels, *reach.size)), np.zeros(reach.size)
    for patch in grid.patches(box):
        inside = patch.slices(reach.start)
        values = values_of(patch)
        if values is not None:
            sums[(slice(None), *inside)] += window.astype(np.float64) * values
        weights[inside] += window.astype(np.float64)
    inside = box.slices(reach.start)
    return sums[(slice(None), *inside)] / weights[inside]


@given(grids(), st.sampled_from(BUMPS), st.integers(1, 3))
@settings(max_examples=150)
def test_sums_over_weights_equal_a_float64_reference(case, bump, channels):
    """Any overlap, last patch moved back or not, any box: 1e-6 for up to 16 patches on a voxel."""
    grid, box, seed = case
    window = create_window(grid.geometry.output_patch_size, bump)
    blender = Blender(torch.from_numpy(window), channels)

    def values_of(patch):
        return patch_values(patch, channels, seed)

    found, given_out = blended(blender, grid, box, values_of)
    assert given_out.min() == given_out.max() == 1
    np.testing.assert_allclose(
        found,
        reference(grid, box, window, values_of, channels),
        rtol=rounding(grid),
        atol=7 * rounding(grid),
    )

    def positive(patch):  # without cancellation the relative error itself is small
        return np.abs(values_of(patch)) + np.float32(0.5)

    found, _ = blended(blender, grid, box, positive)
    np.testing.assert_allclose(
        found, reference(grid, box, window, positive, channels), rtol=rounding(grid), atol=0
    )


@given(grids(), st.sampled_from(BUMPS))
@settings(max_examples=100)
def test_windows_sum_to_one(case, bump):
    """Patches of ones blend to one, faces and corners included, with every window."""
    grid, box, _ = case
    window = create_window(grid.geometry.output_patch_size, bump)
    found, _ = blended(
        Blender(torch.from_numpy(window), 1),
        grid,
        box,
        lambda patch: np.ones((1, *patch.size), np.float32),
    )
    np.testing.assert_allclose(found, 1, rtol=0, atol=1e-6)


@given(grids(), st.lists(grids(), max_size=2), st.data())
@settings(max_examples=80)
def test_a_blender_remembers_nothing_of_boxes_before(case, others, data):
    """After any other box, left half way or finished, a box has the bytes of a fresh blender."""
    grid, box, seed = case
    size = grid.geometry.output_patch_size
    window = torch.from_numpy(create_window(size))
    used = Blender(window, 2)
    geometry = grid.geometry

    def values_of(patch):
        return patch_values(patch, 2, seed)

    for other, _, other_seed in others:
        first = PatchGrid(geometry, other.domain, "reflect", other.keep_stride)
        leave = data.draw(st.integers(0, first.count(other.domain).product()))
        used.begin(first, other.domain)
        for number, patch in enumerate(first.patches(other.domain)):
            if number == leave:
                break
            list(used.advance(patch))
            values = torch.from_numpy(patch_values(patch, 2, other_seed))
            used.add(patch, values * 1e9, weighted=False)
    found, _ = blended(used, grid, box, values_of)
    fresh, _ = blended(Blender(window, 2), grid, box, values_of)
    assert found.tobytes() == fresh.tobytes()


@given(grids())
@settings(max_examples=100)
def test_bytes_do_not_depend_on_the_box(case):
    """A part of the domain has the bytes that the whole domain has there."""
    grid, box, seed = case
    window = torch.from_numpy(create_window(grid.geometry.output_patch_size))
    blender = Blender(window, 2)
    found, _ = blended(blender, grid, box, lambda patch: patch_values(patch, 2, seed))
    whole, _ = blended(blender, grid, grid.domain, lambda patch: patch_values(patch, 2, seed))
    part = whole[(slice(None), *box.slices(grid.domain.start))]
    assert found.tobytes() == np.ascontiguousarray(part).tobytes()


@given(grids(), st.integers(0, 2**32 - 1), st.floats(0, 1))
@settings(max_examples=80)
def test_patches_left_out_count_as_zeros(case, seed, share):
    """A patch without values lowers the blend as zeros would; where no other lies there is 0."""
    grid, box, noise = case
    window = create_window(grid.geometry.output_patch_size)

    def values_of(patch):
        rng = np.random.default_rng([seed, *(v + 1000 for v in patch.start)])
        return patch_values(patch, 1, noise) if rng.random() < share else None

    found, _ = blended(Blender(torch.from_numpy(window), 1), grid, box, values_of)
    expected = reference(grid, box, window, values_of, 1)
    np.testing.assert_allclose(found, expected, rtol=rounding(grid), atol=7 * rounding(grid))
    assert not found[expected == 0].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_values_of_any_floating_type_and_strides_are_multiplied_in_float32(dtype):
    """Half precision is widened before the window, and the values are not changed."""
    size = Zyx(2, 3, 4)
    window = create_window(size)
    grid = PatchGrid(PatchGeometry(size, size, Zyx(0, 0, 0)), BoundingBox.from_size((0,) * 3, size))
    values = torch.rand(4, 3, 2, 2).to(dtype).permute(3, 2, 1, 0)
    before = values.clone()
    blender = Blender(torch.from_numpy(window), 2)
    blender.begin(grid, grid.domain)
    list(blender.advance(grid.domain))
    blender.add(grid.domain, values, weighted=False)
    (region,) = blender.finish()
    expected = values.double().numpy() * window
    np.testing.assert_allclose(region.sums.numpy(), expected, rtol=1e-6)
    assert region.sums.dtype == torch.float32
    assert torch.equal(values, before)


def buffers(blender):
    """Return the buffers of the sums, by what they are."""
    return {"strip": blender._strip, "carry": blender._carry, "scratch": blender._scratch}


def total_bytes(blender):
    """Return the memory of all that a blender keeps."""
    weights = sum(weight.nbytes for weight in blender._weights.values())
    return sum(buffer.nbytes for buffer in buffers(blender).values()) + weights


def test_the_workspace_does_not_depend_on_the_depth():
    """A box of 256 or 1024 sections takes the memory of one with 64, to the byte."""
    size = Zyx(4, 6, 6)
    taken = []
    for depth in (64, 256, 1024):
        domain = BoundingBox.from_size((0, 0, 0), (depth, 14, 18))
        grid = PatchGrid(PatchGeometry(size, size, Zyx(1, 2, 2)), domain)
        blender = Blender(torch.from_numpy(create_window(size)), 3)
        blended(blender, grid, domain, lambda patch: np.ones((3, *patch.size), np.float32))
        taken.append(total_bytes(blender))
    assert taken[0] == taken[1] == taken[2]
    assert taken[0] < 3 * 4 * (2 * 4 * 14 * 18 + 4 * 6 * 6) + 4 * 4 * 4 * 6 * 18


def test_the_second_box_of_a_kind_allocates_no_sums():
    """Strip, carry and scratch of the next box are the same memory, wherever it lies."""
    size = Zyx(3, 4, 5)
    blender = Blender(torch.from_numpy(create_window(size)), 2)
    places = []
    for offset in ((0, 0, 0), (50, -7, 3)):
        domain = BoundingBox.from_size(offset, (8, 9, 11))
        grid = PatchGrid(PatchGeometry(size, size, Zyx(1, 2, 2)), domain)
        blended(blender, grid, domain, lambda patch: np.ones((2, *patch.size), np.float32))
        places.append([buffer.data_ptr() for buffer in buffers(blender).values()])
    assert places[0] == places[1]


@given(st.tuples(*[st.integers(1, 12)] * 3).map(Zyx.of), st.sampled_from(BUMPS))
def test_windows_are_positive_symmetric_and_peak_in_the_middle(size, bump):
    """Every window is float32, positive, equal under mirroring, and largest at the centre."""
    window = create_window(size, bump)
    assert window.shape == size
    assert window.dtype == np.float32
    assert (window > 0).all()
    assert np.isfinite(window).all()
    for axis in range(3):
        if bump != "nnunet" or size[axis] % 2:
            assert np.array_equal(window, np.flip(window, axis))
    assert window.max() == window[tuple(n // 2 for n in size)]


def test_wu_follows_its_formula():
    """exp(−Σ 1/(1−u²)), u = 2(i+1)/(n+1) − 1, rescaled to [1, 1e6], voxel by voxel."""
    size = (3, 4, 5)
    reference = np.empty(size)
    for index in np.ndindex(size):
        u = [2 * (i + 1) / (n + 1) - 1 for i, n in zip(index, size, strict=True)]
        reference[index] = np.exp(-sum(1 / (1 - v * v) for v in u))
    low, high = reference.min(), reference.max()
    reference = (reference - low) / (high - low) * (1e6 - 1) + 1
    np.testing.assert_allclose(create_window(Zyx(*size), "wu"), reference, rtol=1e-6)


def test_zung_follows_its_formula():
    """exp(−Σ (u(1−u))^(−3/2)) over its maximum, floored at 1e-6."""
    size = (3, 4, 5)
    reference = np.empty(size)
    for index in np.ndindex(size):
        u = [(i + 1) / (n + 1) for i, n in zip(index, size, strict=True)]
        reference[index] = np.exp(-sum((v * (1 - v)) ** -1.5 for v in u))
    reference = np.maximum(reference / reference.max(), 1e-6)
    np.testing.assert_allclose(create_window(Zyx(*size), "zung"), reference, rtol=1e-6)


def test_zung_does_not_underflow_at_the_faces_of_a_large_patch():
    """The floor holds where the plain formula would be zero."""
    window = create_window(Zyx(20, 256, 256), "zung")
    assert window.min() == np.float32(1e-6)
    assert window.max() == 1


def test_nnunet_is_the_importance_map_of_nnunet():
    """compute_gaussian of nnU-Net 2.8.1 in float32: a filtered delta at n // 2, maximum 10."""
    from scipy.ndimage import gaussian_filter

    for size in ((4, 8, 16), (5, 7, 1), (20, 12, 9)):
        delta = np.zeros(size)
        delta[tuple(n // 2 for n in size)] = 1
        reference = gaussian_filter(delta, [n / 8 for n in size], 0, mode="constant", cval=0)
        reference /= reference.max() / 10
        np.testing.assert_allclose(create_window(Zyx(*size), "nnunet"), reference, rtol=1e-6)


def test_an_unknown_window_lists_those_there_are():
    """A wrong name is an option error."""
    with pytest.raises(OptionError, match="'hann' does not exist; --bump must be one of wu, zung"):
        create_window(Zyx(2, 2, 2), "hann")

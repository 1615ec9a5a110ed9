"""Patches cover every domain, in positions that depend on the domain alone."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import GeometryError, OptionError
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid


def triples(low, high):
    """Draw three integers."""
    return st.tuples(*[st.integers(low, high)] * 3).map(Zyx.of)


@st.composite
def geometries(draw, largest=9, most=0.99):
    """Draw patch sizes that fit together, with overlap up to *most* of the patch."""
    output = draw(triples(1, largest))
    margin = draw(triples(0, 3))
    overlap = Zyx(*(draw(st.integers(0, int((n - 1) * most))) for n in output))
    return PatchGeometry(output + margin * 2, output, overlap)


@st.composite
def grids(draw, pads=("reflect", "edge", "zero", "none")):
    """Draw a grid over a small domain anywhere in space."""
    geometry = draw(geometries())
    pad = draw(st.sampled_from(pads))
    keep = draw(st.booleans()) and pad != "none"
    spread = not keep and draw(st.booleans())
    least = geometry.input_patch_size if pad == "none" else Zyx(1, 1, 1)
    size = Zyx(*(draw(st.integers(low, low + 17)) for low in least))
    return PatchGrid(
        geometry, BoundingBox.from_size(draw(triples(-40, 40)), size), pad, keep, spread
    )


@st.composite
def boxes_in(draw, outer):
    """Draw a box with at least one voxel inside *outer*."""
    start = Zyx(*(draw(st.integers(a, b - 1)) for a, b in zip(outer.start, outer.stop)))
    stop = Zyx(*(draw(st.integers(a + 1, b)) for a, b in zip(start, outer.stop)))
    return BoundingBox(start, stop)


@given(grids())
def test_patches_cover_all_that_has_an_output(grid):
    """Every voxel of the cover lies in a patch; the first patch begins where the cover begins."""
    for axis, starts in enumerate(grid.starts):
        size, first = grid.geometry.output_patch_size[axis], grid.cover.start[axis]
        reached = {v for start in starts for v in range(start, start + size)}
        assert reached >= set(range(first, grid.cover.stop[axis]))
        short = max(0, size - (grid.cover.stop[axis] - first)) if grid.spread else 0
        assert starts[0] == first - short // 2
        assert list(starts) == sorted(set(starts))


@given(grids())
def test_only_the_last_patch_leaves_the_stride(grid):
    """All patches but the last stand on start + k·stride; with keep_stride the last one too."""
    if grid.spread:
        return
    for axis, starts in enumerate(grid.starts):
        stride = grid.geometry.stride[axis]
        body = starts if grid.keep_stride else starts[:-1]
        assert list(body) == [starts[0] + k * stride for k in range(len(body))]
        if not grid.keep_stride and len(starts) > 1:
            assert starts[-1] + grid.geometry.output_patch_size[axis] == grid.cover.stop[axis]


@given(grids(), st.data())
def test_touching_finds_exactly_the_patches_with_a_common_voxel(grid, data):
    """`patches` yields, in raster order, those whose box meets the asked one."""
    box = data.draw(boxes_in(grid.cover))
    everything = list(grid.patches(grid.cover))
    assert list(grid.patches(box)) == [
        patch for patch in everything if not patch.intersection(box).is_empty
    ]
    assert everything == sorted(everything)
    assert grid.count(box).product() == len(list(grid.patches(box)))


@given(grids(), st.data())
def test_required_input_is_the_hull_of_what_patches_read(grid, data):
    """It equals the hull of the sources of all input patches, and lies inside the domain."""
    box = data.draw(boxes_in(grid.cover))
    low, high = [set(), set(), set()], []
    for patch in grid.patches(box):
        wanted = grid.input_box(patch)
        for axis in range(3):
            source = grid.source_indices(wanted.start[axis], wanted.stop[axis], axis)
            low[axis].update(int(v) for v in source if v >= grid.domain.start[axis])
    high = [max(values) + 1 for values in low]
    need = grid.required_input(box)
    assert need == BoundingBox(Zyx.of(min(v) for v in low), Zyx.of(high))
    assert grid.domain.contains(need)


@given(grids(pads=("none",)))
def test_without_padding_no_patch_reads_outside(grid):
    """With pad none every input patch lies inside the domain."""
    for patch in grid.patches(grid.cover):
        assert grid.domain.contains(grid.input_box(patch))


@given(st.integers(1, 6), st.integers(-20, 20))
def test_reflection_repeats_as_numpy_pads(length, start):
    """The index map equals numpy.pad with mode reflect, many times over."""
    geometry = PatchGeometry(Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(0, 0, 0))
    domain = BoundingBox.from_size((start, 0, 0), (length, 1, 1))
    index = PatchGrid(geometry, domain).source_indices(start - 15, start + length + 15, 0)
    padded = np.pad(np.arange(length), 15, mode="reflect") + start
    assert index.tolist() == padded.tolist()


def test_the_last_patch_moves_back_to_the_end():
    """A domain of 10 with patches of 4 and overlap 1 begins them at 0, 3 and 6."""
    geometry = PatchGeometry(Zyx(4, 4, 4), Zyx(4, 4, 4), Zyx(1, 1, 1))
    grid = PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), (10, 11, 4)))
    assert grid.starts == ((0, 3, 6), (0, 3, 6, 7), (0,))
    assert grid.breaks_congruence(Zyx(1, 2, 1))
    assert not grid.breaks_congruence(Zyx(3, 1, 8))


def test_the_padded_grid_keeps_origins_congruent():
    """With keep_stride the patches go on into the padding, congruent modulo the stride."""
    geometry = PatchGeometry(Zyx(4, 4, 4), Zyx(4, 4, 4), Zyx(1, 1, 1))
    grid = PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), (10, 11, 4)), keep_stride=True)
    assert grid.starts == ((0, 3, 6), (0, 3, 6, 9), (0,))
    assert not grid.breaks_congruence(Zyx(3, 3, 3))


def steps_of_nnunet(image_size, tile_size, tile_step_size):
    """Return what compute_steps_for_sliding_window of nnU-Net 2.8.1 computes, for one axis."""
    target = tile_size * tile_step_size
    number = int(np.ceil((image_size - tile_size) / target)) + 1
    actual = (image_size - tile_size) / (number - 1) if number > 1 else 99999999999
    return [int(np.round(actual * i)) for i in range(number)]


@given(st.integers(2, 300), st.integers(0, 2000), st.sampled_from([0.5, 0.25, 0.75, 1.0]))
def test_the_spread_grid_has_the_starts_of_nnunet(patch, more, step):
    """For any size, patch and step: the same starts as nnU-Net, at half the patch even if odd."""
    overlap = patch // 2 if step == 0.5 else patch - int(patch * step)
    if (step != 0.5 and patch * step != patch - overlap) or overlap >= patch:
        return  # a step that is no whole number of voxels has no overlap
    geometry = PatchGeometry(*(Zyx(1, 1, n) for n in (patch, patch)), Zyx(0, 0, overlap))
    grid = PatchGrid(geometry, BoundingBox.from_size((0, 0, 7), (1, 1, patch + more)), spread=True)
    assert [start - 7 for start in grid.starts[2]] == steps_of_nnunet(patch + more, patch, step)


@given(grids())
def test_spread_patches_overlap_by_at_least_the_overlap(grid):
    """Neighbours share at least --output-patch-overlap, the last patch ends with the domain."""
    if not grid.spread:
        return
    for axis, starts in enumerate(grid.starts):
        size, least = (
            grid.geometry.output_patch_size[axis],
            grid.geometry.output_patch_overlap[axis],
        )
        assert all(a + size - b >= least for a, b in pairwise(starts))
        if len(starts) > 1:
            assert starts[-1] + size == grid.cover.stop[axis]


def test_a_spread_patch_larger_than_the_domain_is_centred():
    """As nnU-Net pads: half of the lacking voxels before the domain, rounded down."""
    geometry = PatchGeometry(Zyx(8, 8, 8), Zyx(8, 8, 8), Zyx(4, 4, 4))
    grid = PatchGrid(geometry, BoundingBox.from_size((0, 10, 0), (3, 4, 9)), spread=True)
    assert grid.starts == ((-2,), (8,), (0, 1))


def test_a_grid_cannot_both_spread_and_keep_the_stride():
    """The two contradict each other."""
    geometry = PatchGeometry(Zyx(4, 4, 4), Zyx(4, 4, 4), Zyx(0, 0, 0))
    with pytest.raises(OptionError, match=r"--grid padded.*--grid spread"):
        PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), (9, 9, 9)), "zero", True, True)


def test_amplification_counts_the_network_voxels():
    """The example of the design: 67 patches for a task of 64 x 512 x 512, 2.6 times the task."""
    geometry = PatchGeometry(Zyx(20, 256, 256), Zyx(20, 256, 256), Zyx(4, 64, 64))
    domain = BoundingBox.from_size((0, 0, 0), (6400, 51200, 51200))
    grid = PatchGrid(geometry, domain)
    tasks = [
        BoundingBox.from_size((640, y * 512, x * 512), (64, 512, 512))
        for y in (3, 4, 5)
        for x in (3, 4, 5)
    ]
    assert sum(grid.count(box).product() for box in tasks) == 5 * 11 * 11
    mean = sum(grid.amplification(box) for box in tasks) / 9
    assert mean == pytest.approx(5 * (11 / 3) ** 2 * 20 * 256**2 / (64 * 512**2))


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        (((4, 4, 4), (6, 4, 4), (0, 0, 0)), r"must not be larger than input patch .* along z"),
        (((5, 4, 4), (4, 4, 4), (0, 0, 0)), "an odd number, along z.*--output-patch-size 3 4 4"),
        (((4, 4, 4), (4, 4, 4), (0, 4, 0)), r"along y .*--output-patch-overlap to at most 0 3 0"),
        (((0, 4, 4), (0, 4, 4), (0, 0, 0)), "must be positive"),
        (((4, 4, 4), (4, 4, 4), (0, 0, -1)), "must be smaller than output patch"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_what_would(sizes, words):
    """Each misfit names both sizes, the axis and the nearest value that works."""
    with pytest.raises(OptionError, match=words):
        PatchGeometry(*(Zyx.of(size) for size in sizes))


def test_a_domain_too_small_for_no_padding_is_refused():
    """Pad none names the size that is needed."""
    geometry = PatchGeometry(Zyx(8, 8, 8), Zyx(4, 4, 4), Zyx(0, 0, 0))
    domain = BoundingBox.from_size((0, 0, 0), (7, 8, 8))
    with pytest.raises(GeometryError, match=r"needs at least \(8, 8, 8\); use --pad reflect"):
        PatchGrid(geometry, domain, "none")
    with pytest.raises(GeometryError, match="beyond the domain"):
        PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), (9, 9, 9)), "none", keep_stride=True)
    with pytest.raises(GeometryError, match="contains no voxels"):
        PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), (0, 8, 8)))


def test_a_box_outside_of_the_grid_is_refused():
    """Asking what a far box needs is an error that names both boxes."""
    geometry = PatchGeometry(Zyx(4, 4, 4), Zyx(4, 4, 4), Zyx(0, 0, 0))
    grid = PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), (8, 8, 8)))
    with pytest.raises(GeometryError, match=r"20-21_0-1_0-1 does not intersect"):
        grid.required_input(BoundingBox.from_size((20, 0, 0), (1, 1, 1)))


@pytest.mark.parametrize(
    ("patch", "overlap"),
    [
        ((20, 256, 256), (4, 64, 64)),
        ((5, 65, 65), (4, 64, 64)),
        ((16, 64, 64), (4, 16, 16)),
        ((1, 128, 32), (0, 64, 8)),
        ((4, 3, 1), (1, 0, 0)),
    ],
)
def test_the_default_overlap_fits_every_patch(patch, overlap):
    """Without an overlap it is 4, 64, 64; along axes where that does not fit, a quarter."""
    geometry = PatchGeometry.of(Zyx.of(patch), None, None)
    assert geometry.output_patch_size == patch
    assert geometry.output_patch_overlap == overlap
    cropped = PatchGeometry.of(Zyx.of(patch) + 4, Zyx.of(patch), None)
    assert cropped.output_patch_overlap == overlap

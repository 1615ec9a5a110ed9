"""Points, boxes and grids of boxes."""

from __future__ import annotations

from fractions import Fraction
from itertools import islice, pairwise

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from chunkflow_py.core.geometry import (
    UNIT_SCALE,
    BoundingBox,
    BoxGrid,
    Region,
    Scale,
    Zyx,
    hull_of,
)
from chunkflow_py.errors import GeometryError
from chunkflow_py.testing.peak_memory import peak_of

whole = st.integers(-1000, 1000)
positive = st.integers(1, 50)
points = st.builds(Zyx, whole, whole, whole)
sizes = st.builds(Zyx, positive, positive, positive)
extents = st.builds(Zyx, *[st.integers(0, 50)] * 3)
boxes = st.builds(BoundingBox.from_size, points, extents)
solid_boxes = st.builds(BoundingBox.from_size, points, sizes)
near = st.builds(Zyx, *[st.integers(-20, 20)] * 3)
near_boxes = st.builds(BoundingBox.from_size, near, st.builds(Zyx, *[st.integers(1, 6)] * 3))


def voxels(box: BoundingBox) -> set[tuple[int, int, int]]:
    """Return every voxel of *box*, to check the formulas against."""
    ranges = [range(a, b) for a, b in zip(box.start, box.stop, strict=True)]
    return {(z, y, x) for z in ranges[0] for y in ranges[1] for x in ranges[2]}


# --- Zyx -----------------------------------------------------------------------------------------


def test_arithmetic_is_elementwise() -> None:
    """Operators work axis by axis, with a triple or one number for all."""
    a = Zyx(7, -8, 9)
    assert a + Zyx(1, 2, 3) == (8, -6, 12)
    assert a - 1 == (6, -9, 8)
    assert a * (2, 0, -1) == (14, 0, -9)
    assert a // 2 == (3, -4, 4)
    assert a % (4, 3, 10) == (3, 1, 9)
    assert -a == (-7, 8, -9)
    assert a.low((0, 0, 0)) == (0, -8, 0)
    assert a.high((0, 0, 0)) == (7, 0, 9)
    assert Zyx(2, 3, 4).product() == 24
    assert str(a) == "(7, -8, 9)"


def test_numpy_integers_count_as_integers() -> None:
    """Numbers and triples that come from NumPy give a plain Zyx."""
    total = Zyx(1, 2, 3) + np.int64(1) + np.array([1, 1, 1])
    assert total == (3, 4, 5)
    assert [type(v) for v in total] == [int, int, int]


@pytest.mark.parametrize(
    "values",
    [(1, 2), (1, 2, 3, 4), (1, 2, 2.5), (1, 2, float("nan")), (1, 2, float("inf")), (1, 2, None)],
)
def test_what_is_not_three_whole_numbers_is_refused(values: tuple[float, ...]) -> None:
    """A triple holds three whole numbers, and the message shows what was given."""
    with pytest.raises(GeometryError, match="three whole numbers"):
        Zyx.of(values)
    with pytest.raises(GeometryError, match="three whole numbers"):
        _ = Zyx(0, 0, 0) + values


def test_whole_floats_are_whole_numbers() -> None:
    """64.0 from a JSON file is 64."""
    assert Zyx.of([64.0, 0.0, -8.0]) == (64, 0, -8)


# --- boxes ---------------------------------------------------------------------------------------


@given(boxes)
def test_box_string_round_trip(box: BoundingBox) -> None:
    """Printing and parsing a box gives the box, negative faces included."""
    assert BoundingBox.parse(str(box)) == box
    assert BoundingBox.parse(f" {box}\n") == box


def test_box_string_form() -> None:
    """The form is z0-z1_y0-y1_x0-x1, and a minus sign stays with its number."""
    box = BoundingBox(Zyx(-8, 0, -64), Zyx(8, 64, -1))
    assert str(box) == "-8-8_0-64_-64--1"
    assert BoundingBox.parse("-8-8_0-64_-64--1") == box


@pytest.mark.parametrize(
    "text",
    [
        "",
        "0-1_0-1",
        "0-1_0-1_0-1_0-1",
        "0-1_0-1_0-x",
        "0:1_0:1_0:1",
        "0-1_0-1_0-1.5",
        "0-1,0-1,0-1",
    ],
)
def test_wrong_box_string_says_how_to_write_one(text: str) -> None:
    """The message shows the text, and an example of a box string."""
    with pytest.raises(GeometryError, match=r"is not a box; write .*0-64_0-512_0-512") as caught:
        BoundingBox.parse(text)
    assert repr(text) in str(caught.value)


def test_stop_before_start_is_refused() -> None:
    """A box cannot end before it begins; the message holds both corners."""
    with pytest.raises(GeometryError, match=r"\(0, 0, 5\) lies before its start \(0, 0, 6\)"):
        BoundingBox.parse("0-0_0-0_6-5")


def test_box_measures() -> None:
    """Size, voxels, emptiness and slices of one box, by hand."""
    box = BoundingBox.from_size((10, 20, 30), (1, 2, 3))
    assert box.stop == (11, 22, 33)
    assert box.size == (1, 2, 3)
    assert box.voxels == 6
    assert not box.is_empty
    assert BoundingBox.from_size((0, 0, 0), (5, 0, 5)).is_empty
    assert box.slices((10, 10, 10)) == (slice(0, 1), slice(10, 12), slice(20, 23))
    assert box.translate((-10, -20, -30)) == BoundingBox.parse("0-1_0-2_0-3")
    assert box.grow((1, 1, 1)) == BoundingBox.parse("9-12_19-23_29-34")
    assert box.grow((0, 0, 0), (1, 2, 3)) == BoundingBox.parse("10-12_20-24_30-36")


def test_plain_tuples_become_points() -> None:
    """A box made from tuples has points all the same."""
    box = BoundingBox((0, 0, 0), (1, 1, 1))  # type: ignore[arg-type]
    assert isinstance(box.start, Zyx)
    assert isinstance(box.stop, Zyx)


@given(near_boxes, near_boxes)
def test_intersection_holds_the_common_voxels(a: BoundingBox, b: BoundingBox) -> None:
    """The intersection holds exactly the voxels that are in both."""
    assert voxels(a.intersection(b)) == voxels(a) & voxels(b)
    assert voxels(b.intersection(a)) == voxels(a.intersection(b))
    assert a.intersection(a) == a


@given(near_boxes, near_boxes)
def test_contains_is_subset(a: BoundingBox, b: BoundingBox) -> None:
    """One box contains another exactly when its voxels are a superset."""
    assert a.contains(b) == (voxels(b) <= voxels(a))


def test_empty_box_is_inside_of_all() -> None:
    """No voxel of an empty box lies outside, wherever it is."""
    box = BoundingBox.parse("0-1_0-1_0-1")
    empty = BoundingBox.parse("50-50_0-9_0-9")
    assert box.contains(empty)
    assert not empty.contains(box)


@given(boxes, boxes, boxes)
def test_hull_is_the_smallest_box_around_both(
    a: BoundingBox, b: BoundingBox, c: BoundingBox
) -> None:
    """The hull contains both, is contained in every box that does, and order does not matter."""
    hull = a.hull(b)
    assert hull.contains(a)
    assert hull.contains(b)
    assert hull == b.hull(a)
    assert hull.hull(a) == hull
    assert a.hull(b).hull(c) == a.hull(b.hull(c))
    for axis in range(3):
        assert hull.start[axis] in (a.start[axis], b.start[axis])
        assert hull.stop[axis] in (a.stop[axis], b.stop[axis])


@given(solid_boxes, sizes, points)
def test_aligned_outward_is_the_smallest_aligned_box(
    box: BoundingBox, unit: Zyx, origin: Zyx
) -> None:
    """The faces are aligned, the box is inside, and one unit less on any side would cut it."""
    aligned = box.aligned_outward(unit, origin)
    assert aligned.contains(box)
    assert (aligned.start - origin) % unit == (0, 0, 0)
    assert (aligned.stop - origin) % unit == (0, 0, 0)
    assert all(a - b < u for a, b, u in zip(box.start, aligned.start, unit, strict=True))
    assert all(b - a < u for a, b, u in zip(box.stop, aligned.stop, unit, strict=True))
    assert aligned.aligned_outward(unit, origin) == aligned


def test_aligning_to_nothing_is_refused() -> None:
    """A unit of 0 voxels is a GeometryError, not a division by zero."""
    with pytest.raises(GeometryError, match=r"unit \(0, 1, 1\) must be at least 1"):
        BoundingBox.parse("0-1_0-1_0-1").aligned_outward((0, 1, 1))


@given(solid_boxes, points)
def test_translation_keeps_the_size(box: BoundingBox, shift: Zyx) -> None:
    """Moving there and back is the identity, and keeps the size."""
    assert box.translate(shift).size == box.size
    assert box.translate(shift).translate(-shift) == box


# --- regions -------------------------------------------------------------------------------------


@given(boxes, st.none() | st.integers(0, 10**6))
def test_region_string_round_trip(box: BoundingBox, time: int | None) -> None:
    """A region prints its time index before the box, and parses back."""
    region = Region(box, time)
    assert Region.parse(str(region)) == region
    assert str(region) == ("" if time is None else f"t{time}_") + str(box)


def test_region_with_another_box_keeps_its_time() -> None:
    """Cropping a task does not move it in time."""
    box = BoundingBox.parse("0-1_0-1_0-1")
    assert str(Region.parse("t3_0-9_0-9_0-9").with_box(box)) == "t3_0-1_0-1_0-1"


@pytest.mark.parametrize("text", ["t_0-1_0-1_0-1", "t-1_0-1_0-1_0-1", "t3_", "3_0-1_0-1_0-1"])
def test_wrong_region_is_refused(text: str) -> None:
    """A time index is a whole number that is not negative."""
    with pytest.raises(GeometryError, match="is not a box"):
        Region.parse(text)


# --- grids ---------------------------------------------------------------------------------------

grid_regions = st.builds(BoundingBox.from_size, near, st.builds(Zyx, *[st.integers(1, 12)] * 3))
grid_sizes = st.builds(Zyx, *[st.integers(1, 6)] * 3)


@given(grid_regions, grid_sizes)
def test_grid_with_stop_tiles_the_region(region: BoundingBox, size: Zyx) -> None:
    """Cut off at the stop, the boxes hold every voxel of the region once and no other."""
    grid = BoxGrid.covering(region, size, respect_stop=True)
    assert sum(box.voxels for box in grid) == region.voxels
    assert set().union(*map(voxels, grid)) == voxels(region)
    assert grid.bounds == region


@given(grid_regions, grid_sizes)
def test_grid_with_size_covers_the_region(region: BoundingBox, size: Zyx) -> None:
    """Boxes of one size cover the region, and none lies wholly outside."""
    grid = BoxGrid.covering(region, size)
    assert all(box.size == size for box in grid)
    assert voxels(region) <= set().union(*map(voxels, grid))
    assert all(not box.intersection(region).is_empty for box in grid)


@given(grid_regions, grid_sizes, grid_sizes)
def test_grid_with_stride_reaches_the_end(region: BoundingBox, size: Zyx, stride: Zyx) -> None:
    """Overlapping boxes reach the region's end, and none begins after it is reached."""
    assume(all(a <= b for a, b in zip(stride, size, strict=True)))
    grid = BoxGrid.covering(region, size, stride)
    assert grid.bounds.contains(region)
    for axis in range(3):
        intervals = grid.intervals(axis)
        assert all(b - a == stride[axis] for (a, _), (b, _) in pairwise(intervals))
        assert all(stop < region.stop[axis] for _, stop in intervals[:-1])


@given(grid_regions, grid_sizes, st.booleans())
def test_grid_indexing_is_iteration(region: BoundingBox, size: Zyx, respect_stop: bool) -> None:
    """Box number k is the k-th box in raster order, made of the intervals of the axes."""
    grid = BoxGrid.covering(region, size, respect_stop=respect_stop)
    listed = list(grid)
    assert listed == [grid[k] for k in range(len(grid))]
    assert listed == sorted(listed)
    product = [
        BoundingBox(Zyx(z[0], y[0], x[0]), Zyx(z[1], y[1], x[1]))
        for z in grid.intervals(0)
        for y in grid.intervals(1)
        for x in grid.intervals(2)
    ]
    assert listed == product


@pytest.mark.parametrize("index", [-1, 8])
def test_index_outside_of_the_grid_is_refused(index: int) -> None:
    """There is no box before the first or after the last."""
    grid = BoxGrid.covering(BoundingBox.parse("0-4_0-4_0-4"), Zyx(2, 2, 2))
    with pytest.raises(IndexError, match=f"box {index} is not one of the 8 boxes"):
        grid[index]


def test_more_boxes_than_can_be_counted_are_refused() -> None:
    """A grid whose length exceeds sys.maxsize is refused with a message."""
    region = BoundingBox.from_size((0, 0, 0), (10**12,) * 3)
    with pytest.raises(GeometryError, match="more boxes than the limit .* make the boxes larger"):
        BoxGrid.covering(region, Zyx(64, 64, 64))


def test_ten_million_boxes_take_no_memory() -> None:
    """A grid stores its description only, however many boxes it has."""
    region = BoundingBox(Zyx(0, 0, 0), Zyx(100 * 64, 400 * 64, 250 * 64))

    def pass_many() -> None:
        grid = BoxGrid.covering(region, Zyx(64, 64, 64))
        assert len(grid) == 10**7
        assert grid[10**7 - 1].stop == region.stop
        assert sum(1 for _ in islice(grid, 20_000)) == 20_000

    assert peak_of(pass_many).traced < 500_000  # boxes that were kept would take megabytes


@pytest.mark.parametrize(
    ("region", "size", "stride", "message"),
    [
        ("0-0_0-4_0-4", (2, 2, 2), None, "contains no voxel"),
        ("0-4_0-4_0-4", (0, 2, 2), None, "at least 1"),
        ("0-4_0-4_0-4", (2, 2, 2), (1, 0, 1), "at least 1"),
    ],
)
def test_impossible_grids_are_refused(
    region: str, size: tuple[int, int, int], stride: tuple[int, int, int] | None, message: str
) -> None:
    """An empty region, or a size of 0, is an error with both values."""
    with pytest.raises(GeometryError, match=message):
        BoxGrid.covering(BoundingBox.parse(region), Zyx(*size), stride and Zyx(*stride))


@pytest.mark.parametrize("name", ["size", "stride", "count"])
def test_grid_refuses_what_is_not_positive(name: str) -> None:
    """A grid made by hand is checked like any other."""
    ones = dict.fromkeys(("start", "size", "stride", "count"), Zyx(1, 1, 1))
    with pytest.raises(GeometryError, match=f"grid {name} must be at least 1"):
        BoxGrid(**ones | {name: Zyx(1, 0, 1)})


def test_the_hull_of_many_boxes():
    """A grid, a list and nothing give the box around all, the box around all, and None."""
    grid = BoxGrid.covering(BoundingBox(Zyx(0, 0, 0), Zyx(7, 8, 9)), Zyx(4, 4, 4))
    assert hull_of(grid) == hull_of(list(grid)) == BoundingBox(Zyx(0, 0, 0), Zyx(8, 8, 12))
    assert hull_of(None) is None
    assert hull_of([]) is None


ratios = st.tuples(*[st.fractions(min_value=Fraction(1, 8), max_value=8, max_denominator=8)] * 3)


@given(ratios, st.lists(st.integers(-60, 60), min_size=4))
def test_boxes_that_tile_a_volume_tile_it_in_other_voxels(factors, cuts):
    """Along axes whose factor is not whole, each voxel is in exactly one box."""
    scale, edges = Scale.of(factors), sorted(set(cuts))
    for axis, factor in enumerate(scale):
        if factor.denominator == 1:
            continue
        spans = []
        for low, high in pairwise(edges):
            box = scale.coarser(BoundingBox((low,) * 3, (high,) * 3))
            spans.append((box.start[axis], box.stop[axis]))
        assert all(first[1] == second[0] for first, second in pairwise(spans))


@given(ratios, near_boxes)
def test_an_owner_of_a_voxel_lies_in_the_box_that_becomes_its_box(factors, box):
    """The owners of the first and of the last voxel of a box in other voxels are in the box."""
    scale = Scale.of(factors)
    coarse = scale.coarser(box)
    # A smaller box may lie within one voxel, and contain neither its first nor its last part.
    wide = zip(box.size, scale, strict=True)
    assume(not coarse.is_empty and all(n >= f or f.denominator > 1 for n, f in wide))
    for voxel in (coarse.start, coarse.stop - 1):
        owners = list(scale.owners(voxel))
        for axis in range(3):
            places = [owner[axis] for owner in owners]
            assert any(box.start[axis] <= place < box.stop[axis] for place in places)


def test_scales():
    """Sizes are decimal numbers, products and inverses exact, and text says what is wrong."""
    scale = Scale.between((0.3, 40, 8), (0.1, 16, 8))
    assert scale == Scale.of((3, "5/2", 1))
    assert scale * scale.inverse == UNIT_SCALE
    assert scale.as_numbers == (3, "5/2", 1)
    assert Scale.of(scale.as_numbers) == scale
    assert str(scale) == "(3, 5/2, 1)"
    assert scale.turned((2, 0, 1)) == Scale.of((1, 3, "5/2"))
    assert scale.whole_offset(Zyx(1, 2, 3)) == (3, 5, 3)
    with pytest.raises(GeometryError, match="use an offset of multiples of"):
        scale.whole_offset(Zyx(0, 1, 0))
    for wrong in ((1, 1), (0, 1, 1), ("a", 1, 1), ("1/0", 1, 1)):
        with pytest.raises(GeometryError, match="three positive fractions"):
            Scale.of(wrong)


def test_a_scale_covers_boxes():
    """Boxes are covered in both directions; fully covered voxels are fewer."""
    scale = Scale.of((1, 2, "3/2"))
    fine = BoundingBox((0, 1, 1), (2, 5, 7))
    assert scale.coarser(fine) == BoundingBox((0, 0, 1), (2, 3, 5))
    assert scale.finer(BoundingBox((0, 0, 1), (2, 3, 5))) == BoundingBox((0, 0, 1), (2, 6, 8))
    assert scale.inside(fine) == BoundingBox((0, 1, 1), (2, 2, 4))
    assert scale.inside(BoundingBox((0, 1, 0), (1, 2, 1))).is_empty

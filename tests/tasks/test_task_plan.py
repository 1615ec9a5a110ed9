"""Plans: task numbers, and lookup of tasks by number and by box."""

from __future__ import annotations

import json
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.errors import GeometryError
from chunkflow_py.tasks.task_order import ORDERS, cells
from chunkflow_py.tasks.task_plan import GridPlan, ListPlan, plan_from_json
from chunkflow_py.testing.peak_memory import peak_of

SMALL = st.builds(Zyx, *[st.integers(1, 4)] * 3)
POINTS = st.builds(Zyx, *[st.integers(-20, 20)] * 3)
BOXES = st.builds(BoundingBox.from_size, POINTS, SMALL)


@st.composite
def grids(draw):
    """Draw a grid, whose last boxes may be clipped."""
    count, size, start = draw(SMALL), draw(SMALL), draw(POINTS)
    stride = draw(st.one_of(st.just(size), SMALL))
    last = start + stride * (count - 1)
    clip = draw(st.none() | st.builds(Zyx, *[st.integers(1, n) for n in size]))
    return BoxGrid(start, size, stride, count, clip and last + clip)


@st.composite
def plans(draw):
    """Draw a plan over a grid, and the regions of its tasks, computed by brute force."""
    grid, order = draw(grids()), draw(st.sampled_from(ORDERS))
    times = draw(st.none() | st.integers(1, 3))
    chosen = draw(st.none() | st.lists(st.booleans(), min_size=len(grid), max_size=len(grid)))
    kept = None
    if chosen is not None:
        value = sum(1 << n for n, keep in enumerate(chosen) if keep)
        kept = value.to_bytes(-(-len(grid) // 8), "little")
    along = [(z * grid.count.y + y) * grid.count.x + x for z, y, x in cells(grid.count, order)]
    points = [None] if times is None else range(times)
    expected = [
        ((time or 0) * len(grid) + n, Region(grid[n], time))
        for time in points
        for n in along
        if chosen is None or chosen[n]
    ]
    part = None
    if draw(st.booleans()):
        first = draw(st.integers(0, len(expected)))
        part = range(first, draw(st.integers(first, len(expected))))
        expected = expected[part.start : part.stop]
    return GridPlan(grid, order=order, indexes=part, times=times, kept=kept), expected


@settings(max_examples=200)
@given(plans())
def test_numbers_and_regions_belong_to_each_other(drawn):
    """Numbers and regions match for every order, clipping, range and time axis."""
    plan, expected = drawn
    assert len(plan) == len(expected)
    assert list(plan) == [number for number, _ in expected]
    for number, region in expected:
        assert plan.region(number) == region
        assert plan.number(region) == number
        assert plan.text(number) == str(region)
    tasks = {number for number, _ in expected}
    assert [n for n in range(-1, plan.span + 1) if n in plan] == sorted(tasks)
    assert plan.boxes is plan.grid


@settings(max_examples=200)
@given(plans(), st.builds(Region, BOXES, st.none() | st.integers(0, 4)), st.data())
def test_what_is_no_task_is_refused_with_one_that_is(drawn, stray, data):
    """A region is that of a task, or raises an error that names a task if there is one."""
    plan, expected = drawn
    others = [plan.region(n) for n in range(plan.span) if n not in plan]
    region = data.draw(st.sampled_from([stray, *others]))
    regions = {each for _, each in expected}
    if region in regions:
        assert plan.region(plan.number(region)) == region
        return
    with pytest.raises(GeometryError) as caught:
        plan.number(region)
    said = str(caught.value)
    assert said.startswith(str(region))
    if not regions:
        assert said.endswith("the plan has no tasks")
    else:
        assert Region.parse(said.rpartition("the nearest task is ")[2]) in regions


def written(plan):
    """Return a plan after a round trip through JSON."""
    description, content = plan.to_json()
    return plan_from_json(json.loads(json.dumps(description)), content)


@given(plans())
def test_a_plan_that_was_written_is_the_same(drawn):
    """A description and its content yield an equal plan, which yields them again."""
    plan, expected = drawn
    again = written(plan)
    assert again == plan
    assert again.to_json() == plan.to_json()
    assert list(again) == [number for number, _ in expected]


@given(st.lists(st.builds(Region, BOXES, st.none() | st.integers(0, 3)), unique=True), st.data())
def test_a_list_numbers_its_regions_as_they_come(regions, data):
    """A list plan numbers regions in their order and survives a round trip through JSON."""
    first = data.draw(st.integers(0, len(regions)))
    part = data.draw(st.none() | st.just(range(first, len(regions))))
    plan = ListPlan(regions, indexes=part)
    assert list(plan) == list(part or range(0 if part is None else first, len(regions)))
    assert len(plan) == len(list(plan))
    for number in plan:
        assert number in plan
        assert plan.number(plan.region(number)) == number
        assert plan.text(number) == str(regions[number])
    assert plan.boxes == [region.bbox for region in regions]
    assert plan.span == len(regions)
    assert written(plan) == plan
    assert written(plan).to_json() == plan.to_json()


def test_plans_that_say_the_same_are_the_same():
    """A mask that keeps all boxes and a range of all tasks are normalised to None."""
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(1, 3, 3))
    plain = GridPlan(grid)
    assert GridPlan(grid, kept=b"\xff\x01", indexes=range(9)) == plain
    assert plain.to_json()[1] == b""
    assert GridPlan(grid, kept=b"\xff\x00") != plain


NINE = BoxGrid(Zyx(0, 0, 0), Zyx(1, 4, 4), Zyx(1, 4, 4), Zyx(1, 3, 3))
ENDS = GridPlan(NINE, kept=b"\x04\x01")  # boxes 2 and 8
PAIR = [Region(NINE[0]), Region(NINE[8])]


@pytest.mark.parametrize(
    ("plan", "region", "why", "nearest"),
    [
        (GridPlan(NINE), "0-1_0-4_1-5", "is not one of the plan's boxes", "0-1_0-4_0-4"),
        (GridPlan(NINE), "0-1_0-4_0-3", "is not one of the plan's boxes", "0-1_0-4_0-4"),
        (GridPlan(NINE), "0-1_0-4_90-94", "is not one of the plan's boxes", "0-1_0-4_8-12"),
        (GridPlan(NINE), "t0_0-1_0-4_0-4", "but the plan has no time axis", "0-1_0-4_0-4"),
        (GridPlan(NINE, times=3), "0-1_0-4_0-4", "from 0 to 2", "t0_0-1_0-4_0-4"),
        (GridPlan(NINE, times=3), "t3_0-1_0-4_0-4", "from 0 to 2", "t2_0-1_0-4_0-4"),
        (ENDS, "0-1_0-4_4-8", "is excluded from the plan", "0-1_0-4_8-12"),
        (ENDS, "0-1_8-12_4-8", "is excluded from the plan", "0-1_8-12_8-12"),
        (GridPlan(NINE, indexes=range(4, 5)), "0-1_0-4_0-4", "is excluded", "0-1_4-8_4-8"),
        (ListPlan(PAIR), "0-1_4-8_8-12", "is not one of the plan's boxes", "0-1_8-12_8-12"),
        (ListPlan(PAIR, indexes=range(1)), "0-1_8-12_8-12", "is excluded", "0-1_0-4_0-4"),
    ],
)
def test_an_error_says_why_a_region_is_no_task(plan, region, why, nearest):
    """The error gives the reason (position, exclusion or time) and the nearest task."""
    with pytest.raises(GeometryError) as caught:
        plan.number(Region.parse(region))
    assert why in str(caught.value)
    assert str(caught.value).endswith(f"; the nearest task is {nearest}")


def test_a_number_that_does_not_exist_has_no_region():
    """Numbers outside the grid or list are refused."""
    for plan in (GridPlan(NINE, times=2), ListPlan([Region(NINE[0])])):
        for number in (-1, plan.span):
            assert number not in plan
            with pytest.raises(IndexError, match=f"task {number} is not one of the numbers"):
                plan.region(number)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GridPlan(NINE, kept=b"\xff"), "9 boxes .* This mask has 1 bytes"),
        (lambda: GridPlan(NINE, kept=b"\xff\x02"), "of which the last is 02"),
        (lambda: GridPlan(NINE, indexes=range(10)), "the plan has 9 tasks, 0 to 8"),
        (lambda: GridPlan(NINE, indexes=range(0, 9, 2)), "the plan has 9 tasks, 0 to 8"),
        (lambda: GridPlan(NINE, times=0), "at least 1 time point, not 0"),
        (lambda: ListPlan([Region(NINE[0])] * 2), "0-1_0-4_0-4 occurs twice in a list of 2"),
        (lambda: ListPlan([Region(NINE[0])], indexes=range(2)), "the plan has 1 tasks, 0 to 0"),
        (lambda: ListPlan([Region(BoundingBox((0, 0, 0), (1, 1, 2**63)))]).to_json(), "beyond"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(make, words):
    """Masks, ranges and lists that do not fit raise an error at once."""
    with pytest.raises(GeometryError, match=words):
        make()


def damaged():
    """Return descriptions and contents that are not those of a plan."""
    grid, _ = GridPlan(NINE).to_json()
    bits, content = GridPlan(NINE, kept=b"\x04\x01").to_json()
    rows, list_content = ListPlan([Region(NINE[0])]).to_json()
    yield {}, b""
    yield {"kind": "heap"}, b""
    yield {**grid, "order": "spiral"}, b""
    yield {**grid, "count": [1, 3]}, b""
    yield {**grid, "size": [0, 4, 4]}, b""
    yield {**grid, "more": 1}, b""
    yield {**grid, "indexes": [0, 99]}, b""
    yield bits, content[:1]
    yield bits, content + b"\x00"
    yield rows, list_content[:-1]
    yield rows, b""


@pytest.mark.parametrize(("description", "content"), list(damaged()))
def test_a_damaged_plan_is_one_sentence(description, content):
    """A truncated or changed plan is refused, not read as another plan."""
    with pytest.raises(GeometryError, match="does not describe a plan, or is damaged"):
        plan_from_json(description, content)


@pytest.mark.parametrize("order", ORDERS)
def test_ten_million_tasks_take_little_memory(order):
    """A plan needs one bit per box in any order; iterating over it stores nothing."""
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(100, 400, 250))

    def pass_many():
        plan = GridPlan(grid, order=order, kept=b"\x55" * 1_250_000)
        assert len(plan) == 5_000_000
        assert sum(1 for _ in islice(plan, 20_000)) == 20_000
        assert plan.number(plan.region(9_999_998)) == 9_999_998

    assert peak_of(pass_many).traced < 10_000_000

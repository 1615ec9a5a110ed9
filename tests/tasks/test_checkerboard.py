"""Checkerboard order: every task once, no neighbours of one colour, slab after slab."""

from __future__ import annotations

from itertools import groupby, islice, pairwise, product
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.tasks.checkerboard import TASKS_PER_WORKER, checkerboard, obstacle, slabs
from chunkflow_py.tasks.task_plan import GridPlan, ListPlan
from chunkflow_py.testing.peak_memory import peak_of

COUNTS = st.builds(Zyx, *[st.integers(1, 9)] * 3)
SIZE = Zyx(2, 3, 4)


def grid_of(count):
    """Return a grid that does not begin at 0, with clipped last boxes."""
    start = Zyx(-1, 5, 7)
    return BoxGrid(start, SIZE, SIZE, count, start + SIZE * count - 1)


def cell_of(grid, number):
    """Return the grid cell (z, y, x) of a task, whatever its time point."""
    rest, x = divmod(number % len(grid), grid.count.x)
    return Zyx(*divmod(rest, grid.count.y), x)


def are_neighbours(first, second):
    """Return whether two cells touch, also at an edge or a corner."""
    return max(abs(a - b) for a, b in zip(first, second, strict=True)) == 1


def colours(cells):
    """Return the cells, one list for each run of cells of one colour."""
    return [list(group) for _, group in groupby(cells, key=lambda cell: cell % (2, 2, 2))]


@given(count=COUNTS, workers=st.integers(1, 4), data=st.data())
def test_every_task_comes_once_and_never_beside_its_colour(count, workers, data):
    """This holds with masks, time points and a part of the tasks; numbers are those of the plan."""
    grid, times = grid_of(count), data.draw(st.sampled_from([None, 1, 3]))
    bits = data.draw(st.lists(st.booleans(), min_size=len(grid), max_size=len(grid)))
    kept = int("1" + "".join("01"[bit] for bit in bits), 2) - (1 << len(grid))
    mask = data.draw(st.sampled_from([None, kept.to_bytes(-(-len(grid) // 8), "little")]))
    whole = GridPlan(grid, times=times, kept=mask)
    stop = data.draw(st.integers(0, len(whole)))
    part = data.draw(st.sampled_from([None, range(stop // 2, stop)]))
    plan = GridPlan(grid, times=times, kept=mask, indexes=part)
    found = list(checkerboard(plan, workers))
    assert sorted(found) == list(plan)
    assert [n // len(grid) for n in found] == sorted(n // len(grid) for n in found)
    for same in colours([cell_of(grid, number) for number in found]):
        if len(same) < 200:  # quadratic
            assert not any(are_neighbours(a, b) for a, b in product(same, same))


@given(count=COUNTS)
def test_colours_follow_each_other_in_a_slab(count):
    """Eight colours along three axes: a slab has at most eight runs of one colour."""
    grid = grid_of(count)
    cells = [cell_of(grid, number) for number in checkerboard(GridPlan(grid), 100)]
    assert len(colours(cells)) == min(2, count.z) * min(2, count.y) * min(2, count.x)


@given(tasks=st.lists(st.integers(0, 20), min_size=1, max_size=30), least=st.integers(1, 40))
def test_slabs_hold_enough_tasks_and_not_many_more(tasks, least):
    """Each has at least as many as asked for, and less than twice as many plus one layer."""
    found = slabs(dict(enumerate(tasks)), least)
    assert [layer for slab in found for layer in slab] == list(range(len(tasks)))
    sums = [sum(tasks[layer] for layer in slab) for slab in found]
    if len(found) > 1:
        assert min(sums) >= least
    assert max(sums) < 2 * least + max(tasks)


def test_a_slab_is_sent_before_the_next_begins():
    """32 tasks for each worker: the tasks of the layers of a slab follow each other."""
    grid = grid_of(Zyx(7, 8, 8))
    layers = [cell_of(grid, n).z for n in checkerboard(GridPlan(grid), workers=3)]
    per_slab = [{0, 1}, {2, 3}, {4, 5, 6}]
    assert TASKS_PER_WORKER * 3 == 96  # more than one layer of 64
    assert [set(layers[:128]), set(layers[128:256]), set(layers[256:])] == per_slab


def test_a_list_of_boxes_of_a_grid_is_coloured_like_the_grid():
    """Boxes of a list may be in any order, lack some cells, and be cut at the end."""
    grid = grid_of(Zyx(4, 5, 6))
    regions = [Region(grid[k]) for k in range(len(grid)) if k % 7][::-1]
    plan = ListPlan(regions)
    assert obstacle(plan) == ""
    kept = sum(1 << k for k in range(len(grid)) if k % 7).to_bytes(15, "little")
    expected = [Region(grid[k]) for k in checkerboard(GridPlan(grid, kept=kept), 1)]
    assert [plan.region(number) for number in checkerboard(plan, 1)] == expected
    timed = ListPlan([Region(r.bbox, time) for r in regions[:20] for time in (1, 0)])
    times = [timed.region(number).time for number in checkerboard(timed, 1)]
    assert times == [0] * 20 + [1] * 20
    part = ListPlan(regions, indexes=range(3, 9))
    assert sorted(checkerboard(part, 1)) == list(range(3, 9))


def test_a_list_of_other_boxes_keeps_its_order_and_says_why():
    """The message names the first box that is not a cell of the grid."""
    boxes = ["0-2_0-2_0-2", "3-5_0-2_0-2", "2-4_0-2_0-2"]
    plan = ListPlan([Region(BoundingBox.parse(text)) for text in boxes])
    assert list(checkerboard(plan, 1)) == [0, 1, 2]
    assert "box 3-5_0-2_0-2 begins inside a cell of the grid that starts at" in obstacle(plan)
    assert "has cells of size (2, 2, 2)" in obstacle(plan)
    assert list(checkerboard(ListPlan([]), 1)) == []


@pytest.mark.parametrize("kept", [None, b"\xfe" + b"\xff" * 1_249_999])
def test_ten_million_tasks_take_a_bit_each(kept):
    """The order is computed: at most the bits of the plan are kept, and the first task is near."""
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(100, 400, 250))
    plan = GridPlan(grid, kept=kept)

    def pass_some():
        start = perf_counter()
        found = list(islice(checkerboard(plan, 3600), 20_000))
        assert perf_counter() - start < 30
        assert len(set(found)) == 20_000
        assert all(a < b for a, b in pairwise(found))  # one colour

    assert peak_of(pass_some).traced < 4_000_000

"""Where tasks lie in the map: plans of all kinds."""

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.monitor.dashboard.task_map import TaskMap
from chunkflow_py.tasks.task_list import ListPlan
from chunkflow_py.tasks.task_plan import GridPlan

GRID = BoxGrid(Zyx(10, 20, 30), Zyx(4, 8, 8), Zyx(4, 8, 8), Zyx(2, 3, 4))


def regions(*starts, size=(4, 8, 8), time=None):
    """Return regions of one size at *starts*."""
    return [Region(BoundingBox.from_size(Zyx.of(each), Zyx.of(size)), time) for each in starts]


def test_a_grid_is_its_own_map():
    """Numbers are cells; what a mask or a part of the plan leaves out is no task."""
    whole = TaskMap.of(GridPlan(GRID))
    assert (whole.count, whole.extent, whole.cells) == ((1, 2, 3, 4), (8, 24, 32), None)
    assert whole.starts == ([10, 14], [20, 28, 36], [30, 38, 46, 54])
    assert whole.is_task.all()
    kept = bytes([0b00000101, 0, 0b10000000])
    plan = GridPlan(GRID, kept=kept, times=2, indexes=range(1, 6))
    some = TaskMap.of(plan)
    assert some.count == (2, 2, 3, 4)
    assert some.has_times
    assert np.flatnonzero(some.is_task).tolist() == list(plan) == [2, 23, 24, 26, 47]


def test_a_list_of_boxes_on_a_grid_is_drawn_on_it():
    """In any order, and with gaps."""
    plan = ListPlan(regions((0, 0, 16), (0, 0, 0), (8, 40, 16)))
    layout = TaskMap.of(plan)
    assert layout.starts == ([0, 8], [0, 40], [0, 16])
    assert layout.count == (1, 2, 2, 2)
    assert layout.cells.tolist() == [1, 0, 7]
    assert layout.extent == (12, 48, 24)
    timed = TaskMap.of(ListPlan(regions((0, 0, 0), time=3) + regions((0, 0, 0), time=5)))
    assert (timed.count, timed.cells.tolist(), timed.has_times) == ((2, 1, 1, 1), [0, 1], True)


def test_boxes_on_no_grid_are_drawn_in_their_order():
    """Those that begin at one place, and those that are scattered."""
    twice = ListPlan(regions((0, 0, 0)) + regions((0, 0, 0), size=(4, 8, 9)))
    generator = np.random.default_rng(0)
    scattered = ListPlan(regions(*generator.integers(0, 10**6, (100, 3)).tolist()))
    for plan in (twice, scattered):
        layout = TaskMap.of(plan)
        assert layout.starts == ([], [], [])
        assert layout.cells.tolist() == list(range(len(plan)))
        assert np.prod(layout.count) >= len(plan)
    assert layout.count == (1, 1, 10, 10)

"""Tests of chunkflow_py.run.task_boxes: which task writes a voxel of an output."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.errors import GeometryError
from chunkflow_py.pipeline.operator import Source, TaskSource
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.run.task_boxes import TaskBoxes
from chunkflow_py.tasks.task_plan import GridPlan, ListPlan

sizes = st.builds(Zyx, *[st.integers(1, 6)] * 3)
corners = st.builds(Zyx, *[st.integers(-9, 9)] * 3)
LINES = {
    "": lambda box: box,
    "adjust-bbox -c 2 0 0 2 0 -4": lambda box: BoundingBox(
        box.start + (2, 0, 0), box.stop + (2, 0, -4)
    ),
    "transpose --axes xzy": lambda box: box.turned((2, 0, 1)),
    "transpose --axes yxz adjust-bbox -c 0 1 0 0 1 0": lambda box: box.turned((1, 2, 0)).translate(
        (0, 1, 0)
    ),
    "downsample --factor 2 1 2": lambda box: box.coarser((2, 1, 2)),
    "transpose --axes xzy downsample --factor 1 2 1": lambda box: box.turned((2, 0, 1)).coarser(
        (1, 2, 1)
    ),
}


def task_boxes(plan, words):
    """Return the boxes of a plan as they reach the last operator."""
    (start, *operators) = read_line(f"create-chunk {words} print-max-id".split())
    pipeline = Pipeline([start, *operators], Source("tasks", TaskSource(plan.boxes)))
    pipeline.check([])
    return list(TaskBoxes.along(plan, pipeline.operators, pipeline.outlines))[-1][1]


@settings(max_examples=60)
@given(
    corners, sizes, sizes, st.sampled_from(sorted(LINES)), st.booleans(), st.booleans(), st.data()
)
def test_every_voxel_leads_to_its_task(start, size, count, words, as_list, has_times, data) -> None:
    """A voxel belongs to the task whose box, at the operator, contains it."""
    size = size * 2 + (4, 0, 6)  # so that moved corners leave voxels
    grid = BoxGrid(start * 2, size, size, count)
    times = 3 if has_times else None
    plan = GridPlan(grid, times=times, indexes=range(len(grid) * (times or 1) // 2 + 1))
    if as_list:
        plan = ListPlan([Region(box, 1 if has_times else None) for box in grid])
    boxes, moved = task_boxes(plan, words), LINES[words]
    number = data.draw(st.sampled_from(list(plan)))
    region = plan.region(number)
    box = moved(region.bbox)
    inside = data.draw(st.builds(Zyx, *map(st.integers, box.start, box.stop - 1)))
    assert boxes.number(inside, region.time) == number
    voxel = box.start + data.draw(st.builds(Zyx, *[st.integers(-30, 60)] * 3))
    found = boxes.number(voxel, region.time)
    owners = {
        n
        for n in plan
        if plan.region(n).time == region.time
        and moved(plan.region(n).bbox).intersection(BoundingBox(voxel, voxel + 1)).voxels
    }
    assert {found} == (owners or {None})


@given(corners, sizes, sizes)
def test_regions_are_known_by_their_boxes(start, size, count) -> None:
    """Only the exact boxes of tasks at the operator are regions of tasks."""
    grid = BoxGrid(start, size, size, count)
    plan = GridPlan(grid)
    boxes = task_boxes(plan, "adjust-bbox -c 0 0 -1 0 0 1")
    for number in plan:
        box = plan.region(number).bbox
        moved = BoundingBox(box.start - (0, 0, 1), box.stop + (0, 0, 1))
        assert boxes.has(Region(moved))
        assert not boxes.has(Region(box))
        assert not boxes.has(Region(moved, 2))
        try:
            plan.number(Region(moved))
        except GeometryError:
            continue

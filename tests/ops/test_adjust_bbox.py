"""adjust-bbox."""

import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.core.task import Task
from chunkflow_py.errors import GeometryError
from chunkflow_py.ops.adjust_bbox import BoxAdjuster, adjust_bbox, command
from chunkflow_py.pipeline.operator import Operator, Source, TaskSource
from chunkflow_py.pipeline.pipeline import Pipeline

BOX = BoundingBox.parse("0-10_0-20_0-30")


def test_faces_move_by_the_offsets():
    """The first three numbers are added to the start, the last three to the stop."""
    body = command.main(["-c", "-1", "2", "3", "4", "-5", "6"], standalone_mode=False).body
    task = body(Task(Region(BOX, time=3)))
    assert str(task.region) == "t3_-1-14_2-15_3-36"


def test_no_offsets_change_nothing():
    """Without offsets the box stays."""
    body = command.main([], standalone_mode=False).body
    assert body(Task(Region(BOX))).bbox == BOX


def test_a_box_that_vanishes_is_refused():
    """Faces that meet are refused with both numbers."""
    adjust = BoxAdjuster((Zyx(6, 0, 0), Zyx(-4, 0, 0)))
    with pytest.raises(GeometryError, match=r"begin at \(6, 0, 0\) and end at \(6, 20, 30\)"):
        adjust(Task(Region(BOX)))
    with pytest.raises(GeometryError, match="leaves no voxel"):
        adjust_bbox(BOX, Zyx(6, 0, 0), Zyx(-4, 0, 0))


def test_a_task_without_box_is_refused():
    """There must be a box to adjust."""
    result = CliRunner().invoke(cli, ["adjust-bbox", "-c", "0", "0", "0", "1", "1", "1"])
    assert result.exit_code == 1
    assert "needs a task with a box" in result.output


def test_margins_are_negotiated_on_the_adjusted_box():
    """A loader before the adjustment is asked for what the later operators need of the new box."""
    offsets = (Zyx(-2, 0, 0), Zyx(2, 0, 0))
    line = [
        Operator("load", "read", lambda task: task, None, (), ("chunk",)),
        Operator("adjust", "compute", lambda task: task, BoxAdjuster(offsets)),
        Operator("copy", "compute", lambda task: task, None, ("chunk",), ("chunk",)),
    ]
    domain = BoundingBox.parse("-50-50_-50-50_-50-50")
    assert str(Pipeline(line).required_input(0, BOX, domain)) == "-2-12_0-20_0-30"


def test_later_operators_are_checked_on_the_adjusted_boxes():
    """What comes after is told of the moved boxes before the first task."""
    seen = []

    class Checker(OperatorBase):
        @hook
        def prepare(self, outline):
            seen.append(outline.region)

    body = BoxAdjuster((Zyx(1, 0, 0), Zyx(-1, 0, 0)))
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(4, 4, 4), Zyx(4, 4, 4), Zyx(2, 1, 1))
    stages = [
        Operator("adjust", "compute", body, body),
        Operator("check", "compute", lambda task: task, Checker()),
    ]
    Pipeline(stages, Source("tasks", TaskSource(grid))).check()
    assert str(seen[0]) == "1-7_0-4_0-4"


def test_a_box_that_vanishes_is_refused_before_the_first_task():
    """Of a grid whose last box is cut off by the region's end, that one is looked at as well."""
    grid = "generate-tasks --roi-start 0 0 0 --roi-stop 10 8 8 -c 8 8 8 --respect-stop"
    result = CliRunner().invoke(cli, f"{grid} adjust-bbox -c 0 0 0 -2 0 0 create-chunk".split())
    assert result.exit_code == 1
    assert "adjust-bbox: adding (0, 0, 0) to the start" in result.output
    assert "elapsed" not in result.output
    result = CliRunner().invoke(cli, f"{grid} adjust-bbox -c 20 0 0 0 0 0 create-chunk".split())
    assert "adding (20, 0, 0) to the start and (0, 0, 0) to the stop of box" in result.output


def test_a_crop_that_leaves_nothing_of_a_task_is_refused_before_the_first_task():
    """The margin is in voxels of the chunk, which downsampling made larger than the tasks."""
    grid = "generate-tasks --roi-start 0 0 0 --roi-stop 18 8 8 -c 9 8 8 create-chunk --size 18 8 8"
    line = f"{grid} downsample -f 9 1 1 crop-margin --crop-bbox -m 1 0 0 0 0 0"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 1
    assert "crop-margin: adding (9, 0, 0) to the start" in result.output
    assert "elapsed" not in result.output

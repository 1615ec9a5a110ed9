"""Compute the boxes of tasks at an operator, and find the task that writes a voxel.

```
plan      |----|----|----|        boxes of the tasks, in voxels of the pipeline's input
moved     |---|  |---|  |---|     boxes at an operator, as changed by earlier operators
scaled    |-| |-| |-|             the moved boxes in voxels of the operator's input
```
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import UNIT_SCALE, BoundingBox, BoxGrid, Region, Scale, Zyx
from chunkflow_py.core.outline import boxes_between, turned_boxes
from chunkflow_py.errors import GeometryError
from chunkflow_py.pipeline.effects import moved_boxes, turned

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chunkflow_py.core.outline import Boxes, Outline
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.run.run_spec import StepOutput
    from chunkflow_py.tasks.task_plan import Plan


@dataclass(frozen=True)
class TaskBoxes:
    """The boxes of all tasks at one operator, or at one output of an operator.

    Attributes:
        plan: plan of the tasks.
        boxes: boxes of the tasks at the operator, in the order of the plan. Earlier operators may
            have moved the corners of a box or reordered its axes.
        axes: for each axis of the boxes at the operator, the index of this axis in the plan.
        scale: size of a voxel of the operator's input (or of the output), in voxels of *boxes*,
            zyx.
    """

    plan: Plan
    boxes: Boxes
    axes: Zyx = Zyx(0, 1, 2)
    scale: Scale = UNIT_SCALE

    @classmethod
    def along(
        cls, plan: Plan, operators: Sequence[Operator], outlines: dict[str, Outline]
    ) -> Iterator[tuple[Operator, TaskBoxes]]:
        """Yield each operator of a pipeline, with the boxes of the tasks at this operator.

        Args:
            plan: plan of the tasks.
            operators: operators of the pipeline.
            outlines: what is known about the input of each operator
                (`chunkflow_py.core.outline.Outline`), with the name of the operator as key.
        """
        boxes, axes = plan.boxes, Zyx(0, 1, 2)
        for operator in operators:
            scale = outlines[operator.name].scale
            yield operator, cls(plan, boxes, axes, scale)
            boxes, axes = moved_boxes(boxes, operator.hooks, scale), turned(axes, operator.hooks)

    @classmethod
    def of_output(cls, plan: Plan, output: StepOutput) -> TaskBoxes:
        """Return the boxes of the tasks at an output of the step."""
        boxes, axes = plan.boxes, Zyx(0, 1, 2)
        for kind, *numbers in output.moves:
            if kind == "turn":
                boxes, axes = turned_boxes(boxes, numbers[0]), axes.turned(numbers[0])
            else:
                boxes = boxes_between(boxes, Zyx.of(numbers[0]), Zyx.of(numbers[1]))
        return cls(plan, boxes, axes, Scale.of(output.scale) * output.output.shrink)

    def number(self, voxel: Zyx, time: int | None) -> int | None:
        """Return the number of the task that writes a voxel; ``None`` if no task writes it.

        Args:
            voxel: position of the voxel, in voxels of the operator's input (or of the output), zyx.
            time: time index of the voxel; tasks of a plan without times match every index.
        """
        for point in self.scale.owners(voxel):
            for box in self._planned(point):
                for when in {time, None} if self.plan.times is None else {time}:
                    try:
                        return self.plan.number(Region(box, when))
                    except GeometryError:
                        continue
        return None

    def has(self, region: Region) -> bool:
        """Return whether the box and time of a task at the operator are exactly *region*."""
        number = self.number(self.scale.coarser(region.bbox).start, region.time)
        if number is None:
            return False
        task = self.plan.region(number)
        return self.moved(task.bbox) == region.bbox and task.time == region.time

    def moved(self, box: BoundingBox) -> BoundingBox:
        """Return the box of a task at the operator; *box* is the task's box in the plan."""
        if isinstance(self.boxes, BoxGrid) and isinstance(self.plan.boxes, BoxGrid):
            grid = self.plan.boxes
            return self.boxes.box(((box.start - grid.start) // grid.stride).turned(self.axes))
        return self._by_plan[box]

    @cached_property
    def _by_plan(self) -> dict[BoundingBox, BoundingBox]:
        return dict(zip(self.plan.boxes, self.boxes, strict=True))

    def _planned(self, point: Zyx) -> Iterator[BoundingBox]:
        if isinstance(self.boxes, BoxGrid) and isinstance(self.plan.boxes, BoxGrid):
            cell = self.boxes.cell_of(point)
            if cell is not None:
                back = [tuple(self.axes).index(axis) for axis in range(3)]
                yield self.plan.boxes.box(cell.turned(back))
            return
        cell_size, cells = self._cells
        for planned, box in cells.get(tuple(point // cell_size), ()):
            if all(a <= p < b for a, p, b in zip(box.start, point, box.stop, strict=True)):
                yield planned

    @cached_property
    def _cells(self) -> tuple[Zyx, dict[tuple[int, ...], list[tuple[BoundingBox, BoundingBox]]]]:
        pairs = dict.fromkeys(zip(self.plan.boxes, self.boxes, strict=True))
        pairs = {pair: None for pair in pairs if not pair[1].is_empty}
        sizes = [box.size for _, box in pairs] or [Zyx(1, 1, 1)]
        size = Zyx(*(min(each[axis] for each in sizes) for axis in range(3)))
        cells: dict[tuple[int, ...], list[tuple[BoundingBox, BoundingBox]]] = {}
        for pair in pairs:
            low, high = pair[1].start // size, -(-pair[1].stop // size)
            for place in product(*(range(a, b) for a, b in zip(low, high, strict=True))):
                cells.setdefault(place, []).append(pair)
        return size, cells

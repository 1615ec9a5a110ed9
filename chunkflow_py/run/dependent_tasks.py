"""Dependent tasks: tasks of later steps that have read the output of repeated tasks.

```
step one    |----|xxxx|----|----|      a task is repeated
step two    |----|rrrr|rrrr|----|      tasks that have read output of the repeated task
step three  |----|rrrr|rrrr|rrrr|      tasks that have read output of tasks marked r in step two
```

If it is not known exactly which boxes the tasks of a step read, all tasks of the step count as
dependent.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.pipeline.operator import TaskSource
from chunkflow_py.run.coverage import saved_box
from chunkflow_py.run.earlier_steps import place_of
from chunkflow_py.run.task_boxes import TaskBoxes
from chunkflow_py.run.worker.worker import pipeline_source
from chunkflow_py.volume.array_identity import ArrayAddress
from chunkflow_py.volume.loader import VolumeLoader
from chunkflow_py.volume.volume_source import StoredVolume

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from chunkflow_py.pipeline.pipeline import Pipeline
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep, StepOutput
    from chunkflow_py.tasks.task_plan import Plan

    Tasks = Plan | set[int]
    MakeSourcedPipeline = Callable[[Any, Any], Pipeline]

logger = logging.getLogger(__name__)


def dependents(
    run: RunDirectory,
    step: RunStep,
    repeated: Mapping[str, Tasks],
    make_pipeline: MakeSourcedPipeline,
) -> Tasks:
    """Return the tasks of a step that have read output of repeated tasks.

    Args:
        run: run directory.
        step: step whose tasks are returned.
        repeated: repeated tasks of earlier steps, with the name of the step as key.
        make_pipeline: function that takes a `PipelineSource` and a source of tasks, and returns the
            pipeline of the step.

    Returns:
        The numbers of the tasks, or the plan of the step if all its tasks are dependent.
    """
    places = [ArrayAddress.parse(place) for place in _addresses_read(step)]
    outputs = [
        (earlier, output, ArrayAddress.parse(place_of(output.output)))
        for earlier in run.spec.steps[: run.spec.steps.index(step)]
        if repeated.get(earlier.name)
        for output in earlier.outputs
    ]
    read = [
        (earlier, output, address)
        for earlier, output, address in outputs
        if any(_is_read(output, address, place) for place in places)
    ]
    if not read:
        return set()
    plan = run.plan(step.name)
    if any(output.output.kind != "volume" or not output.is_known for _, output, _ in read):
        return plan
    readers = _readers(run, step, make_pipeline, [address for _, _, address in read])
    if readers is None:
        return plan
    numbers: set[int] = set()
    for body, tasks, place in readers:
        boxes = _Boxes(
            saved_box(output, run.plan(earlier.name).region(number))
            for earlier, output, address in read
            if address.is_same(place)
            for number in repeated[earlier.name]
        )
        bounds = body.volume.bounds
        for number in plan:
            if number in numbers:
                continue
            task = tasks.moved(plan.region(number).bbox)
            inside = task.intersection(bounds)
            if inside.is_empty:
                continue
            if boxes.touch(body.cutout.box(bounds, task, body.volume.url)[0]):
                numbers.add(number)
    return numbers


def _addresses_read(step: RunStep) -> Iterable[str]:
    """Yield the addresses that a step reads, as stored in the spec."""
    for _, options in step.options:
        yield from options.get("reads", ())


def _is_read(output: StepOutput, place: ArrayAddress, read: ArrayAddress) -> bool:
    if output.output.kind == "objects":
        one, other = place.text.rstrip("/"), read.text.rstrip("/")
        if one.startswith(other) or other.startswith(one):
            return True
    return place.is_same(read)


def _readers(
    run: RunDirectory, step: RunStep, make_pipeline: MakeSourcedPipeline, places: list[ArrayAddress]
) -> list[tuple[VolumeLoader, TaskBoxes, ArrayAddress]] | None:
    """Return each loader that reads at one of *places*, with the tasks' boxes and the address.

    Return ``None`` if an operator that is not a loader may read at one of the addresses, because
    the boxes that such an operator reads are unknown. Any plugin counts as such an operator:
    plugins are not loaded here, because loading a plugin runs its code.
    """
    if "plugin" in step.arguments:
        return None
    try:
        source = replace(pipeline_source(run, step), earlier=())
        pipeline = make_pipeline(source, TaskSource(()))
    except ChunkflowError as error:
        logger.info(
            "cannot determine which boxes the tasks of step %s read, so all tasks of the step are "
            "repeated: %s",
            step.name,
            error,
        )
        return None
    plan: Plan = run.plan(step.name)
    readers = []
    for operator, tasks in TaskBoxes.along(plan, pipeline.operators, pipeline.outlines):
        body = operator.body
        for place in map(ArrayAddress.parse, operator.hooks.origins):
            if not any(place.is_same(other) for other in places):
                continue
            if not isinstance(body, VolumeLoader) or place.text != body.origin:
                return None
            if not isinstance(body.source, StoredVolume):
                return None
            readers.append((body, tasks, place))
    return readers


class _Boxes:
    """A set of boxes with a fast test of whether another box overlaps any of them."""

    def __init__(self, boxes: Iterable[BoundingBox]) -> None:
        filled = [box for box in boxes if not box.is_empty]
        sizes = [box.size for box in filled] or [Zyx(1, 1, 1)]
        self._cell = Zyx(*(max(size[axis] for size in sizes) for axis in range(3)))
        self._cells: dict[tuple[int, ...], list[BoundingBox]] = {}
        for box in filled:
            for place in self._places(box):
                self._cells.setdefault(place, []).append(box)

    def _places(self, box: BoundingBox) -> Iterable[tuple[int, ...]]:
        low, high = box.start // self._cell, -(-box.stop // self._cell)
        return product(*(range(a, b) for a, b in zip(low, high, strict=True)))

    def touch(self, box: BoundingBox) -> bool:
        """Return whether any of the boxes shares a voxel with *box*."""
        near = (other for place in self._places(box) for other in self._cells.get(place, ()))
        return any(not other.intersection(box).is_empty for other in near)

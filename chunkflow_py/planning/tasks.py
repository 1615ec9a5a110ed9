"""Which tasks of a plan stand for all of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoxGrid, Region
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import TaskSource
from chunkflow_py.tasks.plan import GridPlan, ListPlan

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.tasks.plan import Plan

_LOOKED_AT = 512  # tasks, at least, that stand for a part of a grid


def plan_of(source: Source) -> Plan:
    """Return the plan of the tasks that a source makes.

    Raises:
        OptionError: it does not know them all.
    """
    body: Any = source.body
    if isinstance(body, TaskSource) and body.regions is None:  # such as that of create-bbox
        boxes = body.boxes
        return GridPlan(boxes) if isinstance(boxes, BoxGrid) else ListPlan([*map(Region, boxes)])
    plan: Plan | None = getattr(body, "plan", None)
    if plan is None:
        msg = (
            f"{source.name} does not know all tasks beforehand; plan the line with "
            "generate-tasks in its place"
        )
        raise OptionError(msg)
    return plan


def middle_tasks(plan: Plan, most: int) -> list[int]:
    """Return the numbers of at most *most* tasks that follow each other, those of the middle first.

    Those in the middle have neighbours.
    """
    first = 0 if len(plan) <= most else len(plan) // 2
    if isinstance(plan, GridPlan):  # which need not be walked through up to there
        part = range(len(plan)) if plan.indexes is None else plan.indexes
        found = list(replace(plan, indexes=part[first : first + most]))
    else:
        found = list(islice(plan, first, first + most))
    half = len(found) // 2 if len(plan) <= most else 0
    return found[half:] + found[:half]


def spread_boxes(plan: Plan) -> list[BoundingBox]:
    """Return the boxes of tasks at equal distances in the order of a plan; of all, if few."""
    step = max(1, len(plan) // _LOOKED_AT)
    return [plan.region(number).bbox for number in islice(plan, 0, None, step)]

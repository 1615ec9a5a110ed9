"""Arrange the tasks of a plan as a map: a raster of cells with the axes (time, z, y, x)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.tasks.task_plan import GridPlan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.tasks.task_plan import Plan

_SPARSE = 16  # most cells per task for which a list of boxes is drawn as a grid with gaps


@dataclass(frozen=True, eq=False)
class TaskMap:
    """A raster in which each task of a plan has a cell.

    Attributes:
        count: number of cells along time, z, y and x.
        starts: for each of z, y and x, the positions at which the cells start along this axis. If
            the boxes do not form a grid, the lists are empty, and the cells follow one another in
            the order of the task numbers.
        extent: extent of the box around all tasks, in voxels, zyx.
        has_times: whether tasks have a time index.
        is_task: for each number, whether the plan has a task with this number.
        cells: for each task number, the index of the task's cell in the flattened raster; ``None``
            if this index is equal to the task number.
    """

    count: tuple[int, int, int, int]
    starts: tuple[list[int], list[int], list[int]]
    extent: tuple[int, int, int]
    has_times: bool
    is_task: NDArray[np.bool_]
    cells: NDArray[np.uint32] | None = None

    @classmethod
    def of(cls, plan: Plan) -> TaskMap:
        """Create the map of a plan."""
        is_task = np.ones(plan.span, bool)
        if len(plan) != plan.span:
            is_task[:] = False
            is_task[np.fromiter(plan, np.int64, len(plan))] = True
        if not isinstance(plan, GridPlan):
            return _of_list(plan, is_task)
        grid = plan.grid
        starts = [
            [grid.start[axis] + k * grid.stride[axis] for k in range(grid.count[axis])]
            for axis in range(3)
        ]
        z, y, x = grid.bounds.size
        nz, ny, nx = grid.count
        count = (plan.times or 1, nz, ny, nx)
        return cls(count, (starts[0], starts[1], starts[2]), (z, y, x), bool(plan.times), is_task)

    def to_json(self) -> dict[str, Any]:
        """Return the attributes that the web page needs, as a dictionary for JSON."""
        return {
            "count": self.count,
            "starts": self.starts,
            "extent": self.extent,
            "times": self.has_times,
            "cells": self.cells is not None,
        }


def _of_list(plan: Plan, is_task: NDArray[np.bool_]) -> TaskMap:
    """Arrange boxes by their starts on a grid, or in list order if the grid would be too sparse."""
    regions = [plan.region(number) for number in range(plan.span)]
    rows = np.array([(r.time or 0, *r.bbox.start, *r.bbox.stop) for r in regions], np.int64)
    rows = rows.reshape(-1, 7)
    has_times = any(region.time is not None for region in regions)
    axes = [np.unique(rows[:, axis], return_inverse=True) for axis in range(4)]
    sizes = [max(1, len(values)) for values, _ in axes]
    total = math.prod(sizes)
    if 0 < total <= _SPARSE * max(256, len(rows)):
        cells = np.ravel_multi_index([places for _, places in axes], sizes).astype(np.uint32)
        if len(np.unique(cells)) == len(rows):
            z, y, x = (values.tolist() for values, _ in axes[1:])
            extent = (rows[:, 4:].max(axis=0) - rows[:, 1:4].min(axis=0)).tolist()
            t, nz, ny, nx = sizes
            return TaskMap((t, nz, ny, nx), (z, y, x), tuple(extent), has_times, is_task, cells)
    wide = max(1, math.isqrt(len(rows)))
    count = (1, 1, -(-len(rows) // wide), wide)
    cells = np.arange(len(rows), dtype=np.uint32)
    return TaskMap(count, ([], [], []), count[1:], has_times, is_task, cells)

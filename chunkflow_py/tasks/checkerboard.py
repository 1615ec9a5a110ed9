"""Checkerboard order: of two neighbouring tasks, one is sent to the queue long before the other.

```
even layer     odd layer      Each task has one of 8 colours, by the parity of its z, y, x index.
0  2  0  2     5  7  5  7     Within a slab (see below), all tasks of colour 0 are sent first, then
6  4  6  4     3  1  3  1     all tasks of colour 1, and so on. Two tasks of one colour are never
0  2  0  2     5  7  5  7     neighbours. Tasks of colours 0 and 1 are neighbours only at a corner.
                              The same is true of colours 2 and 3, 4 and 5, 6 and 7.
```

So tasks that run at the same time share few or no patches. When a task begins, its neighbours have
already computed most of the patches that it shares with them. The task reads these patches instead
of computing them again (`chunkflow_py.inference.patch_exchange`).

A slab consists of whole layers of tasks along z, with enough tasks to keep all workers busy in each
colour. Without slabs, all tasks of colour 0 in the whole volume would have to store their patches
before the first patch is used.

The order depends only on the boxes. It changes neither the plan nor the numbers of the tasks.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.tasks.task_plan import GridPlan, ListPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from chunkflow_py.tasks.task_plan import Plan

CHECKERBOARD = "checkerboard"  # the value of --order
TASKS_PER_WORKER = 32  # in a slab: four per worker and colour
USUAL_WORKERS = 64
# Parity of z, y, x. Every second colour is opposite to the one before, because the first tasks of a
# colour run at the same time as the last ones of the colour before, and should share few patches.
_COLOURS = (
    (0, 0, 0), (1, 1, 1), (0, 0, 1), (1, 1, 0), (0, 1, 1), (1, 0, 0), (0, 1, 0), (1, 0, 1),
)  # fmt: skip


def checkerboard(plan: Plan, workers: int = USUAL_WORKERS) -> Iterator[int]:
    """Yield the numbers of all tasks of a plan in checkerboard order.

    If a plan has no checkerboard order (see `obstacle`), its tasks are yielded in the order of the
    plan. For a grid, memory use does not grow with the number of tasks. For a list of boxes, the
    order needs less memory than the list itself.

    Args:
        plan: plan of the tasks.
        workers: number of worker processes that are expected to work at the same time.
    """
    least = TASKS_PER_WORKER * workers
    if isinstance(plan, GridPlan):
        return _of_grid(plan, least)
    if isinstance(plan, ListPlan) and not obstacle(plan):
        return _of_list(plan, least)
    return iter(plan)


def obstacle(plan: Plan) -> str:
    """Return the reason why a plan has no checkerboard order; an empty text if the plan has one."""
    if isinstance(plan, GridPlan):
        return ""
    if not isinstance(plan, ListPlan):
        return "the tasks are not boxes of a grid"
    size, start = _cell_of(plan)
    for box in plan.boxes:
        if any((box.start - start) % size):
            return (
                f"the boxes are not cells of a grid: box {box} begins inside a cell of the grid "
                f"that starts at {start} and has cells of size {size} (zyx, voxels)"
            )
    return ""


def slabs(tasks: Mapping[int, int], least: int) -> list[list[int]]:
    """Divide the layers of tasks into slabs, and return the layers of each slab.

    A slab ends when it has at least *least* tasks. If fewer than *least* tasks remain, their layers
    are added to the last slab.

    Args:
        tasks: dictionary from layer (index along z, ascending) to the number of tasks in the layer.
        least: smallest number of tasks of a slab.
    """
    result: list[list[int]] = [[]]
    remaining = sum(tasks.values())
    count = 0
    for layer, number in tasks.items():
        if count >= least and remaining >= least:
            result.append([])
            count = 0
        result[-1].append(layer)
        count += number
        remaining -= number
    return result


def _of_grid(plan: GridPlan, least: int) -> Iterator[int]:
    count, is_whole = plan.grid.count, len(plan) == plan.span
    for time in range(plan.times or 1):
        tasks = {z: plan.tasks_in_layer(time, z) for z in range(count.z)}
        for layers in slabs(tasks, least):
            for dz, dy, dx in _COLOURS:
                for z in layers:
                    if z % 2 != dz or not tasks[z]:
                        continue
                    for y in range(dy, count.y, 2):
                        low = ((time * count.z + z) * count.y + y) * count.x
                        row = range(low + dx, low + count.x, 2)
                        yield from row if is_whole else filter(plan.__contains__, row)


def _of_list(plan: ListPlan, least: int) -> Iterator[int]:
    size, start = _cell_of(plan)
    cells = {number: (plan.boxes[number].start - start) // size for number in plan}
    times = {number: plan.regions[number].time or 0 for number in plan}
    counts: dict[int, Counter[int]] = {}
    for number in plan:
        counts.setdefault(times[number], Counter())[cells[number].z] += 1
    slab_of = {
        (time, layer): slab
        for time, layers in counts.items()
        for slab, group in enumerate(slabs(dict(sorted(layers.items())), least))
        for layer in group
    }

    def place(number: int) -> tuple[object, ...]:
        time, cell = times[number], cells[number]
        return time, slab_of[time, cell.z], _COLOURS.index(cell % (2, 2, 2)), cell

    yield from sorted(plan, key=place)


def _cell_of(plan: ListPlan) -> tuple[Zyx, Zyx]:
    # If the boxes are cells of a grid, this is the size of a cell and the start of the grid.
    if not plan.boxes:
        return Zyx(1, 1, 1), Zyx(0, 0, 0)
    size, start = plan.boxes[0].size, plan.boxes[0].start
    for box in plan.boxes:
        size, start = size.high(box.size), start.low(box.start)
    return size, start

"""Count the parts of patches that the tasks of a grid exchange, before the tasks run.

```
tasks        |----------0----------|----------1----------|
patches      |oooooooo|
                   |oooooooo|
                         |ooooooooo|bbb                     touches 0 and 1: task 0 computes it, and
                               |...                         task 1 uses the part b
```

A part is the piece of a patch that lies in a task. The number of voxels of a part is the product of
the overlaps of patch and task along z, y and x. Therefore, a sum over all parts is a product of
three sums, one along each axis, and even millions of tasks are counted exactly.

A patch may touch several tasks. The first of these tasks to run computes the patch, and stores a
part for each of the other tasks. The order of the tasks does not change the number of stored parts.
It changes the number of stored bytes, because the parts of a patch differ in size, and the part in
the first task is not stored.

The numbers of parts and bytes are exact if tasks run one after the other, in the given order. More
is written if two workers compute the same patch, because they work on neighbouring tasks at the
same time. Less is written if some tasks are already recorded as done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property, partial, reduce
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import AXES, BoxGrid, Zyx, hull_of
from chunkflow_py.tasks.checkerboard import TASKS_PER_WORKER, checkerboard, slabs
from chunkflow_py.tasks.task_plan import GridPlan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.inference.patch_grid import PatchGrid

    Touched = list[list[tuple[int, int]]]  # for each patch: tasks and lengths of the overlaps

_Kind = Callable[[int, int], Any]
_Rank = Callable[..., Any]

# In a run, the parts of a process that wait to be written have at most this number of bytes.
MOST_WAITING_BYTES = 512 * 1024**2
_NEAR = 3  # layers and rows on each side of the middle whose peak is computed


def part_voxel_bytes(channels: int, itemsize: int = 4) -> int:
    """Return the largest number of bytes of one voxel of a part, with all channels.

    Args:
        channels: number of channels of the network's output.
        itemsize: largest number of bytes of a value; see `EngineSettings.patch_itemsize`.
    """
    return channels * itemsize


def part_memory(task_bytes: int, tasks: int, most_bytes: int, *, writes_later: bool = True) -> int:
    """Return an upper limit of the memory (bytes) that a process needs for parts of patches.

    The limit includes the parts that the store keeps in memory.

    Args:
        task_bytes: largest total size, in bytes, of all parts that one task stores (see
            `PatchGrid.voxels_outside`).
        tasks: number of tasks whose parts may be in the store at the same time.
        most_bytes: limit of the memory for parts in the store, in bytes.
        writes_later: whether the store writes in a thread, as the store of a run does.
    """
    # The parts that a task reads, those that it collects until its end, those of the last task.
    sets = 3 if writes_later else 2
    return sets * task_bytes + min(task_bytes * tasks, most_bytes)


def too_small(boxes: Boxes, patch: Zyx) -> str:
    """Return a phrase that names the axes along which tasks are smaller than a patch, or "".

    Tasks that are smaller than a patch do not exchange parts. The reason: a patch can touch three
    or more small tasks along an axis, but a task exchanges parts only with its 26 direct
    neighbours. An axis along which the volume is not divided into tasks is not checked.

    Args:
        boxes: boxes of the tasks.
        patch: size of an output patch, voxels, zyx.
    """
    region = hull_of(boxes)
    if region is None:
        return ""
    if isinstance(boxes, BoxGrid):
        size = boxes.stride.low(region.size)
    else:
        size = reduce(Zyx.high, (box.size for box in boxes))
    small = [
        name
        for name, length, need, extent in zip(AXES, size, patch, region.size, strict=True)
        if length < need and length < extent
    ]
    if not small:
        return ""
    return (
        f"tasks of {size} are smaller than an output patch of {patch} along {' and '.join(small)} "
        "(zyx, voxels)"
    )


def slabs_of_layers(count: Zyx, workers: int) -> list[int]:
    """Return a list with the number of the slab of each layer of tasks.

    A layer is all tasks with equal z. A slab is one or several layers. In checkerboard order
    (`chunkflow_py.tasks.checkerboard`), all tasks of a slab are sent before those of the next slab.

    Args:
        count: number of tasks along each axis, zyx.
        workers: number of worker processes of the run.
    """
    tasks = dict.fromkeys(range(count.z), count.y * count.x)
    groups = slabs(tasks, TASKS_PER_WORKER * workers)
    return [slab for slab, layers in enumerate(groups) for _ in layers]


@dataclass(frozen=True)
class SharedPatches:
    """The patches of a grid and the tasks that they touch, along each axis.

    Attributes:
        touched: one list for each of z, y and x. The list has an entry for each position of patches
            along the axis at which a patch touches a task. The entry is a list of pairs, one pair
            for each touched task: index of the task along the axis, and overlap of patch and task
            along the axis, in voxels.
    """

    touched: tuple[Touched, Touched, Touched]

    @classmethod
    def of(
        cls, grid: PatchGrid, targets: Sequence[Sequence[tuple[int, int] | None]]
    ) -> SharedPatches:
        """Return the shared patches of tasks on a grid.

        Args:
            grid: grid of the patches.
            targets: for each of z, y and x, a list with one entry for each position of tasks along
                the axis. The entry is the range of voxels (start, stop) that the task computes
                along the axis, or ``None`` if the task computes nothing.
        """
        sizes = grid.geometry.output_patch_size
        z, y, x = (
            _touched(starts, size, spans)
            for starts, size, spans in zip(grid.starts, sizes, targets, strict=True)
        )
        return cls((z, y, x))

    @property
    def computed(self) -> int:
        """Number of patches that all tasks together compute if they exchange no patches."""
        return prod(sum(len(tasks) for tasks in axis) for axis in self.touched)

    @property
    def distinct(self) -> int:
        """Number of patches that the tasks compute if each patch is computed once."""
        return prod(len(axis) for axis in self.touched)

    def written_voxels(self, slab_of: Sequence[int] | None) -> int:
        """Return the number of voxels of all parts that tasks write.

        Tasks read the same number of voxels.

        Args:
            slab_of: ``None`` if tasks run in the order of their numbers. If tasks run in
                checkerboard order (`chunkflow_py.tasks.checkerboard`), the result of
                `slabs_of_layers`.
        """
        if slab_of is None:
            return sum(voxels for *_, voxels in self._parts([_same, _same, _same], _raster))

        def layer(task: int, first: int) -> tuple[int, int]:
            return slab_of[task] - slab_of[first], task % 2

        return sum(voxels for *_, voxels in self._parts([layer, _parity, _parity], _colour))

    @cached_property
    def objects(self) -> int:
        """Number of objects that tasks store: one for each pair of tasks (producer, consumer).

        The producer computes patches, and the consumer uses parts of these patches. The number is
        exact if the tasks run in the order of their numbers. The number is also exact for any other
        order if every task has, along each axis, a patch that touches no other task.
        """
        # Two tasks are such a pair if, along each axis, their positions are a pair or are equal.
        pairs = [{(tasks[0][0], task) for tasks in axis for task, _ in tasks}
                 for axis in self.touched]  # fmt: skip
        return prod(map(len, pairs)) - prod(sum(a == b for a, b in axis) for axis in pairs)

    @cached_property
    def layers(self) -> int:
        """Number of times that all tasks together look for objects from other tasks.

        A task looks once for each layer of its patches. A layer is all patches with equal z.
        """
        z, y, x = self.touched
        rows = [len({task for tasks in axis for task, _ in tasks}) for axis in (y, x)]
        return sum(len(tasks) for tasks in z) * prod(rows)

    def peak_voxels(self, slab_of: Sequence[int] | None) -> int:
        """Return the largest number of voxels of parts that are stored at the same time.

        A part is stored when the task that computed the patch is done. It is assumed that tasks run
        strictly in the given order, and that the part is removed when the task that uses the part
        is done. The voxels of the stored parts are summed at a few points in time, and the result
        is the largest sum:

        * If tasks run in the order of their numbers, the sum is computed after each of a few tasks
          in the middle of the grid, because the parts at different boundaries differ in size.
        * In checkerboard order, the sum is computed after each colour, in the first, the middle and
          the last slab. A slab is one or several layers of tasks. Each task of a slab has one of
          eight colours, and tasks of one colour are never neighbours. All tasks of a colour run
          before those of the next colour.

        Args:
            slab_of: ``None`` if tasks run in the order of their numbers. If tasks run in
                checkerboard order (`chunkflow_py.tasks.checkerboard`), the result of
                `slabs_of_layers`.
        """
        ends = [max((tasks[-1][0] for tasks in axis), default=0) for axis in self.touched]
        if slab_of is None:
            near = [range(max(0, end // 2 - _NEAR), min(end, end // 2 + _NEAR) + 1) for end in ends]
            return max(
                self._stored([partial(_side, k) for k in task], _raster, [(0, 0, 0)])
                for task in product(near[0], near[1], [ends[2] // 2])
            )
        last = slab_of[ends[0]]
        done = [(-1, 7), *((0, colour) for colour in range(8))]
        return max(
            self._stored([partial(_layer, slab_of, slab), _parity, _parity], _colour, done)
            for slab in {0, last // 2, last}
        )

    def _stored(self, kinds: Sequence[_Kind], rank: _Rank, done: Sequence[tuple[int, ...]]) -> int:
        # The maximum over *done*: the ranks up to which tasks have ended.
        parts = list(self._parts(kinds, rank))
        return max(sum(n for p, c, n in parts if p <= end < c) for end in done)

    def _parts(self, kinds: Sequence[_Kind], rank: _Rank) -> Iterator[tuple[Any, Any, int]]:
        # Yields the rank of the producers, the rank of the consumers and the number of voxels of
        # their parts. Tasks with a lower rank run first. Of several tasks with equal rank, the task
        # with the lowest number runs first. Each function in *kinds* receives two positions of
        # tasks along its axis: a task, and the first task that the same patch touches. It returns
        # the group of the task. *rank* receives the groups along z, y and x.
        groups: list[dict[tuple[Any, ...], list[int]]] = []
        for axis, kind in zip(self.touched, kinds, strict=True):
            groups.append({})
            for tasks in axis:
                touched = tuple(kind(task, tasks[0][0]) for task, _ in tasks)
                sums = groups[-1].setdefault(touched, [0] * len(tasks))
                for position, (_, voxels) in enumerate(tasks):
                    sums[position] += voxels
        for choice in product(*(group.items() for group in groups)):
            ranks = [rank(*task) for task in product(*(touched for touched, _ in choice))]
            amounts = [prod(task) for task in product(*(sums for _, sums in choice))]
            first = ranks.index(min(ranks))
            for number, amount in enumerate(amounts):
                if number != first:
                    yield ranks[first], ranks[number], amount


def _same(task: int, first: int) -> int:  # noqa: ARG001
    return 0


def _parity(task: int, first: int) -> int:  # noqa: ARG001
    return task % 2


def _side(middle: int, task: int, first: int) -> int:  # noqa: ARG001
    return (task > middle) - (task < middle)


def _layer(slab_of: Sequence[int], slab: int, task: int, first: int) -> tuple[int, int]:  # noqa: ARG001
    # -1, 0 or 1: the layer is before, in or after *slab*.
    return (slab_of[task] > slab) - (slab_of[task] < slab), task % 2


def _raster(z: int, y: int, x: int) -> tuple[int, int, int]:
    return z, y, x


def _colour(z: tuple[int, int], y: int, x: int) -> tuple[int, int]:
    slab, parity = z
    return slab, _colours()[parity, y, x]


@cache
def _colours() -> dict[tuple[int, int, int], int]:
    # The colours of the checkerboard order by parity of z, y and x.
    two = BoxGrid(Zyx(0, 0, 0), Zyx(1, 1, 1), Zyx(1, 1, 1), Zyx(2, 2, 2))
    order = checkerboard(GridPlan(two))
    return {(n // 4, n // 2 % 2, n % 2): colour for colour, n in enumerate(order)}


def _touched(starts: Sequence[int], size: int, spans: Sequence[tuple[int, int] | None]) -> Touched:
    # One axis of `SharedPatches.touched`.
    tasks = [(number, *span) for number, span in enumerate(spans) if span is not None]
    first, result = 0, []
    for start in starts:
        stop = start + size
        while first < len(tasks) and tasks[first][2] <= start:
            first += 1
        found = []
        for position in range(first, len(tasks)):
            number, low, high = tasks[position]
            if low >= stop:
                break
            found.append((number, min(high, stop) - max(low, start)))
        if found:
            result.append(found)
    return result

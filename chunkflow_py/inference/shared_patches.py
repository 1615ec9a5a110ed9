"""Count the parts of patches that the tasks of a grid exchange, before the tasks run.

```
tasks        |----------0----------|----------1----------|
patches      |oooooooo|
                   |oooooooo|
                         |ooooooooo|bbb                     touches 0 and 1: task 0 computes it, and
                               |...                         task 1 uses the part b
```

A patch touches the tasks that its intervals along z, y and x touch, and its part in a task is the
product of the three overlaps. Therefore sums over all patches are products of sums over one axis,
and millions of tasks are counted exactly, axis by axis.

The first of the tasks that a patch touches computes it and stores one part for each other one. The
number of parts does not depend on the order of the tasks, but their bytes do: the first task keeps
its own part, which may be the largest or the smallest. The amounts are exact for tasks that run
strictly in the given order. More is written if workers compute a patch twice, because they work on
neighbouring tasks at the same time, and less for tasks that are already recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.inference.patch_grid import PatchGrid

    Touched = list[list[tuple[int, int]]]  # for each patch: tasks and lengths of the overlaps

_Kind = Callable[[int], int]  # task along an axis -> its class
_Rank = Callable[[int], Any]  # task along an axis -> what orders the tasks in time


def part_voxel_bytes(channels: int, itemsize: int = 4) -> int:
    """Return the bytes of one voxel of a part, at most.

    Args:
        channels: number of channels of the network's output.
        itemsize: bytes of a value, see `EngineSettings.patch_itemsize`.
    """
    return channels * itemsize


def part_memory(task_bytes: int, tasks: int, most_bytes: int, *, writes_later: bool = True) -> int:
    """Return the most memory that a process needs for parts, in tasks and in the store.

    Args:
        task_bytes: limit of the bytes that a task stores, see `PatchGrid.voxels_outside`.
        tasks: number of tasks.
        most_bytes: limit of the bytes that the part store keeps in memory.
        writes_later: whether the store writes in a thread, as the store of a run does.
    """
    # The parts that a task reads, those that it collects until its end, those of the last task.
    sets = 3 if writes_later else 2
    return sets * task_bytes + min(task_bytes * tasks, most_bytes)


@dataclass(frozen=True)
class SharedPatches:
    """The patches of a grid and the tasks that they touch, along each axis.

    Attributes:
        touched: for z, y and x, for each patch interval that touches a task: positions of the
            touched tasks along the axis, and lengths of the overlaps in voxels.
    """

    touched: tuple[Touched, Touched, Touched]

    @classmethod
    def of(
        cls, grid: PatchGrid, targets: Sequence[Sequence[tuple[int, int] | None]]
    ) -> SharedPatches:
        """Return the shared patches of tasks on a grid.

        Args:
            grid: grid of the patches.
            targets: for z, y and x, first and last voxel + 1 of what each task computes, in
                ascending order; ``None`` for tasks that compute nothing.
        """
        sizes = grid.geometry.output_patch_size
        z, y, x = (
            _touched(starts, size, spans)
            for starts, size, spans in zip(grid.starts, sizes, targets, strict=True)
        )
        return cls((z, y, x))

    @property
    def computed(self) -> int:
        """Number of patches that all tasks compute without an exchange."""
        return prod(sum(len(tasks) for tasks in axis) for axis in self.touched)

    @property
    def distinct(self) -> int:
        """Number of patches that the tasks compute if each patch is computed once."""
        return prod(len(axis) for axis in self.touched)

    def written_voxels(self, layers: int | None) -> int:
        """Return the number of voxels of all parts that tasks write; tasks read as many.

        Args:
            layers: order of the tasks: ``None`` for the order of their numbers, else the layers of
                a slab of the checkerboard order, see `chunkflow_py.tasks.checkerboard.slab_layers`.
        """
        every = prod(sum(n for tasks in axis for _, n in tasks) for axis in self.touched)
        own = 1  # voxels that a task keeps of the patches that it computes
        for axis, rank in zip(self.touched, _ranks(layers), strict=True):
            own *= sum(dict(tasks)[_first(tasks, rank)] for tasks in axis)
        return every - own

    @cached_property
    def objects(self) -> int:
        """Number of objects, one for each pair of a producer and a consumer of parts.

        Two tasks are such a pair if their positions are a pair along each axis, or are equal there.
        """
        pairs = [{(tasks[0][0], task) for tasks in axis for task, _ in tasks}
                 for axis in self.touched]  # fmt: skip
        return prod(map(len, pairs)) - prod(sum(a == b for a, b in axis) for axis in pairs)

    @cached_property
    def layers(self) -> int:
        """Number of layers of patches of all tasks; a task looks for objects at each of them."""
        z, y, x = self.touched
        rows = [len({task for tasks in axis for task, _ in tasks}) for axis in (y, x)]
        return sum(len(tasks) for tasks in z) * prod(rows)

    def peak_voxels(self, layers: int | None) -> int:
        """Return the voxels of the parts that are stored at the same time, at their maximum.

        Assumption: tasks run strictly in their order, and the parts for a task are removed when it
        is recorded. The amount that is stored at a time is

            sum of W(p, c) over producers p that are done and consumers c that are not,

        where p and c are classes of tasks, and W(p, c) is the number of voxels of all parts of
        tasks of class p for tasks of class c: a product of sums over the axes. Along an axis, the
        classes are

        * in the order of task numbers: before, at and after the task in the middle of the plan,
          which has just ended;
        * in the checkerboard order: the two colours of a slab and, along z, tasks in earlier and
          in later slabs. The colours follow each other here by parity of z, then y, then x; in the
          real order, another task may store a part. The result is the maximum over the times
          after each colour, in the first slab and in the middle one.

        Args:
            layers: order of the tasks, as for `written_voxels`.
        """
        ends = [max((tasks[-1][0] for tasks in axis), default=0) for axis in self.touched]
        ranks = _ranks(layers)
        if layers is None:
            sides = [partial(_side, end // 2) for end in ends]
            return max(self._stored(sides, ranks, [(0, 0, 0)]))
        # Classes compare as they follow each other; at first, only earlier slabs are done.
        done = [(-1, 1, 1), *product((0, 1), repeat=3)]
        result = 0
        for slab in {0, ends[0] // layers // 2}:
            kinds: list[_Kind] = [partial(_colour, layers, slab), _parity, _parity]
            result = max(result, *self._stored(kinds, ranks, done))
        return result

    def _stored(
        self, kinds: Sequence[_Kind], ranks: Sequence[_Rank], done: Sequence[tuple[int, ...]]
    ) -> list[int]:
        """Return the stored voxels at the times when all classes up to *done* have ended."""
        sums: list[dict[tuple[int, int], int]] = []
        for axis, kind, rank in zip(self.touched, kinds, ranks, strict=True):
            sums.append({})
            for tasks in axis:
                producer = kind(_first(tasks, rank))
                for task, voxels in tasks:
                    pair = producer, kind(task)
                    sums[-1][pair] = sums[-1].get(pair, 0) + voxels
        parts: list[tuple[tuple[int, ...], tuple[int, ...], int]] = []
        for choice in product(*(each.items() for each in sums)):
            producers = tuple(pair[0] for pair, _ in choice)
            consumers = tuple(pair[1] for pair, _ in choice)
            parts.append((producers, consumers, prod(voxels for _, voxels in choice)))
        return [sum(n for p, c, n in parts if p <= end < c) for end in done]


def _ranks(layers: int | None) -> tuple[_Rank, _Rank, _Rank]:
    """Return what orders tasks along z, y and x; a patch's first task is first along each."""
    if layers is None:
        return int, int, int
    return lambda layer: (layer // layers, layer % layers % 2), _parity, _parity


def _first(tasks: list[tuple[int, int]], rank: _Rank) -> int:
    return min((task for task, _ in tasks), key=lambda task: (rank(task), task))


def _parity(task: int) -> int:
    return task % 2


def _side(middle: int, task: int) -> int:
    return (task > middle) - (task < middle)


def _colour(layers: int, slab: int, layer: int) -> int:
    """Return the colour of a layer in *slab*; -1 and 2 for layers of earlier and later slabs."""
    here = layer // layers
    return layer % layers % 2 if here == slab else -1 if here < slab else 2


def _touched(starts: Sequence[int], size: int, spans: Sequence[tuple[int, int] | None]) -> Touched:
    """Return the tasks that each patch touches along one axis, without patches that touch none."""
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

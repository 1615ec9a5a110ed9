"""Tasks of a fleet that exchange patches, simulated: patches computed, bytes stored, for an order.

    python benchmarks/simulate_exchange.py [--tasks 16 16 16] [--workers 1 8 64 512]

The geometry is real: the grid of the tasks, the grid of the patches (`PatchGrid`), and the order in
which tasks are sent (`checkerboard`). Counts are exact, although patches are not simulated one by
one. Patches of one layer that the same tasks share are a group: they are computed by the same task
and become visible at the same time.

A task finds a group when it begins the layer, if another task that shares the group has stored its
parts by then: this task has computed the group, or has found what a third task has stored, which
then has also stored the parts for this one. What a task stores becomes visible at its end, and is
removed when the task for which it is stored is recorded.
"""

from __future__ import annotations

import argparse
import heapq
import random
from dataclasses import dataclass, field
from functools import cache
from itertools import count, product
from typing import TYPE_CHECKING, NamedTuple

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid
from chunkflow_py.tasks.checkerboard import checkerboard
from chunkflow_py.tasks.task_plan import GridPlan

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TASK, PATCH, OVERLAP = Zyx(64, 512, 512), Zyx(20, 256, 256), Zyx(4, 64, 64)
VOXEL_BYTES = 12  # three channels in float32


class _Span(NamedTuple):
    """Patches of a task along one axis that reach into the same neighbour.

    Attributes:
        side: -1 for the previous task, 1 for the next, 0 if they reach into none.
        number: number of patches.
        own: voxels in the task, the sum over the patches.
        other: voxels in the neighbour, the sum over the patches.
    """

    side: int
    number: int
    own: int
    other: int


class _Group(NamedTuple):
    """Patches of a layer that the same tasks share.

    Attributes:
        bit: one bit that stands for the group in its task.
        number: number of patches.
        sharing: bits of the neighbours that share them.
        parts: for each of these neighbours, its index and the bytes of its parts.
    """

    bit: int
    number: int
    sharing: int
    parts: tuple[tuple[int, int], ...]


class Shape:
    """The groups of a task; all tasks with the same groups share this object.

    Args:
        spans: patches along z (one span for each layer), y and x.
        steps: difference of the numbers of two tasks that are neighbours along z, y and x.
        voxel_bytes: bytes of the network's output for one voxel.
    """

    def __init__(
        self, spans: Sequence[tuple[_Span, ...]], steps: tuple[int, int, int], voxel_bytes: int
    ) -> None:
        """Multiply the spans of the three axes."""
        self.layers: list[list[_Group]] = []
        self.neighbours: list[list[tuple[int, int]]] = []  # of each layer: bit and number, relative
        self.steps: dict[int, int] = {}  # of each neighbour, by its index: relative number
        bits = count()
        for span_z in spans[0]:
            layer = []
            for group in ((span_z, y, x) for y in spans[1] for x in spans[2]):
                number = group[0].number * group[1].number * group[2].number
                parts, sharing = [], 0
                for offset in product(*(sorted({0, span.side}) for span in group)):
                    if any(offset):
                        voxels = 1
                        for step, span in zip(offset, group, strict=True):
                            voxels *= span.other if step else span.own
                        index = (offset[0] + 1) * 9 + (offset[1] + 1) * 3 + offset[2] + 1
                        self.steps[index] = sum(a * b for a, b in zip(offset, steps, strict=True))
                        sharing |= 1 << index
                        parts.append((index, voxels * voxel_bytes))
                layer.append(_Group(1 << next(bits), number, sharing, tuple(parts)))
            self.layers.append(layer)
            masks = {index for group in layer for index, _ in group.parts}
            self.neighbours.append([(1 << index, self.steps[index]) for index in sorted(masks)])
        self.patches = sum(group.number for layer in self.layers for group in layer)
        # A method in an attribute, so that results are cached for each shape.
        self.to_compute = cache(self._to_compute)
        self.parts = cache(self._parts)

    def _to_compute(self, layer: int, ended: int) -> tuple[int, int]:
        """Return the number of patches of a layer that are not found, and the bits of their groups.

        Args:
            layer: index of the layer.
            ended: bits of the neighbours that have ended.
        """
        groups = [group for group in self.layers[layer] if not group.sharing & ended]
        return sum(group.number for group in groups), sum(group.bit for group in groups)

    def _parts(self, computed: int) -> tuple[tuple[int, int], ...]:
        """Return the relative number of each neighbour, and the bytes of its parts.

        Args:
            computed: bits of the groups that the task has computed.
        """
        totals: dict[int, int] = {}
        for group in (group for layer in self.layers for group in layer):
            if group.bit & computed:
                for index, size in group.parts:
                    totals[index] = totals.get(index, 0) + size
        return tuple((self.steps[index], size) for index, size in totals.items())


class SharedPatches:
    """The patches that the tasks of a grid share.

    Args:
        grid: boxes of the tasks; they must tile the region.
        patches: patches that cover the region.
        voxel_bytes: bytes of the network's output for one voxel.

    Attributes:
        distinct: number of patches of the region.
        without_exchange: sum over all tasks of the number of patches that the task needs.

    Raises:
        ValueError: a patch reaches into more than two tasks along an axis.
    """

    def __init__(self, grid: BoxGrid, patches: PatchGrid, voxel_bytes: int = VOXEL_BYTES) -> None:
        """Divide the patches along each axis among the tasks."""
        self.count = grid.count
        steps = (grid.count.y * grid.count.x, grid.count.x, 1)
        self.distinct = len(patches.starts[0]) * len(patches.starts[1]) * len(patches.starts[2])
        self._spans = [_spans(grid, patches, axis) for axis in range(3)]
        self.without_exchange = 1
        for spans in self._spans:
            self.without_exchange *= sum(span.number for task in spans for span in task)
        self._shape = cache(lambda z, y, x: Shape((z, y, x), steps, voxel_bytes))

    @classmethod
    def of(
        cls, count: Zyx, task: Zyx = TASK, patch: Zyx = PATCH, overlap: Zyx = OVERLAP
    ) -> SharedPatches:
        """Return the patches of *count* tasks that fill a volume."""
        grid = BoxGrid(Zyx(0, 0, 0), task, task, count)
        return cls(grid, PatchGrid(PatchGeometry(patch, patch, overlap), grid.bounds))

    def shape(self, number: int) -> Shape:
        """Return the groups of a task."""
        rest, x = divmod(number, self.count.x)
        z, y = divmod(rest, self.count.y)
        return self._shape(self._spans[0][z], self._spans[1][y], self._spans[2][x])


def _spans(grid: BoxGrid, patches: PatchGrid, axis: int) -> list[tuple[_Span, ...]]:
    """Return the spans of each task along an axis; along z, one span for each layer of patches."""
    size, starts, edges = (
        patches.geometry.output_patch_size[axis],
        patches.starts[axis],
        grid.bounds,
    )
    first = 0
    result = []
    for low, high in grid.intervals(axis):
        while starts[first] + size <= low:
            first += 1
        spans = []
        for start in starts[first:]:
            if start >= high:
                break
            own = min(start + size, high) - max(start, low)
            is_lower, is_upper = start < low, start + size > high
            if (is_lower and is_upper) or size - own > grid.size[axis]:
                msg = f"a patch of {size} voxels reaches into three tasks along axis {axis}"
                raise ValueError(msg)
            side = is_upper - is_lower
            if (low if is_lower else high) == (edges.start if is_lower else edges.stop)[axis]:
                side = 0  # the patch reaches beyond the region
            spans.append(_Span(side, 1, own, size - own if side else 0))
        if axis:
            spans = [
                _Span(side, *map(sum, zip(*(s[1:] for s in spans if s.side == side), strict=True)))
                for side in sorted({span.side for span in spans})
            ]
        result.append(tuple(spans))
    return result


@dataclass(eq=False)
class Attempt:
    """An attempt on a task.

    Attributes:
        number: number of the task.
        shape: groups of the task.
        layer: number of layers that it has begun.
        computed: bits of the groups that it has computed.
        patches: number of patches that it has computed.
    """

    number: int
    shape: Shape = field(repr=False)
    layer: int = 0
    computed: int = 0
    patches: int = 0

    def parts(self) -> tuple[tuple[int, int], ...]:
        """Return the relative number of each neighbour, and the bytes of its parts."""
        return self.shape.parts(self.computed)


@dataclass
class SimulatedExchange:
    """What the tasks of a step have stored for each other.

    Attributes:
        shared: patches that the tasks share.
        computed: number of patches that attempts have computed that ended.
        bytes_written, objects_written: what tasks have stored.
        bytes_read, objects_read: what tasks have read.
        bytes_stored: bytes of the objects that are stored now.
        peak_bytes: the largest value of *bytes_stored*.
    """

    shared: SharedPatches
    computed: int = 0
    bytes_written: int = 0
    objects_written: int = 0
    bytes_read: int = 0
    objects_read: int = 0
    bytes_stored: int = 0
    peak_bytes: int = 0
    _has_ended: bytearray = field(init=False, repr=False)
    _objects: dict[int, dict[int, int]] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        """No task has ended."""
        self._has_ended = bytearray(self.shared.count.product())

    @property
    def ratio(self) -> float:
        """Patches computed per distinct patch of the region; complete when all tasks have ended."""
        return self.computed / self.shared.distinct

    def begin(self, number: int) -> Attempt:
        """Return a new attempt on a task."""
        return Attempt(number, self.shared.shape(number))

    def next_layer(self, attempt: Attempt) -> int | None:
        """Look up the parts for the next layer; return the number of patches to compute in it.

        Return ``None`` if the attempt has computed all layers.
        """
        shape, layer = attempt.shape, attempt.layer
        if layer == len(shape.layers):
            return None
        has_ended, number, ended = self._has_ended, attempt.number, 0
        for bit, step in shape.neighbours[layer]:
            if has_ended[number + step]:
                ended |= bit
        patches, groups = shape.to_compute(layer, ended)
        attempt.computed |= groups
        attempt.patches += patches
        attempt.layer += 1
        return patches

    def consumers(self, attempt: Attempt) -> list[int]:
        """Return the tasks for which an attempt has parts."""
        return [attempt.number + step for step, _ in attempt.parts()]

    def read(self, attempt: Attempt) -> int:
        """Count the objects that an attempt has read in all layers; return their number."""
        objects = self._objects.get(attempt.number, {})
        self.bytes_read += sum(objects.values())
        self.objects_read += len(objects)
        return len(objects)

    def end(self, attempt: Attempt, unfinished: Iterable[int] | None = None) -> int:
        """Store the parts of an attempt; return the number of objects.

        Args:
            attempt: attempt that has computed all layers.
            unfinished: tasks that have no record; ``None``: all.
        """
        number = attempt.number
        self.computed += attempt.patches
        wanted = None if unfinished is None else set(unfinished)
        written = 0
        for step, size in attempt.parts():
            if wanted is not None and number + step not in wanted:
                continue
            objects = self._objects.setdefault(number + step, {})
            self.bytes_stored += size - objects.get(number, 0)
            objects[number] = size
            self.bytes_written += size
            written += 1
        self.objects_written += written
        self.peak_bytes = max(self.peak_bytes, self.bytes_stored)
        self._has_ended[number] = 1
        return written

    def recorded(self, number: int) -> int:
        """Remove the objects for a task that was recorded; return their number."""
        removed = self._objects.pop(number, {})
        self.bytes_stored -= sum(removed.values())
        return len(removed)


def simulate(
    shared: SharedPatches, order: Iterable[int], workers: int, *, sigma: float = 0.0, seed: int = 0
) -> SimulatedExchange:
    """Let workers take tasks in an order until all have ended; return what they have stored.

    Args:
        shared: patches that the tasks share.
        order: numbers of the tasks in the order in which they are sent.
        workers: number of workers; each takes the next task as soon as its previous one has ended.
        sigma: variation of the speed from task to task: standard deviation of the logarithm.
        seed: seed of this variation.
    """
    exchange, rng, numbers = SimulatedExchange(shared), random.Random(seed), iter(order)
    is_recorded: set[int] = set()
    ties = count()
    events: list[tuple[float, int, float, Attempt]] = []

    def take(now: float) -> None:
        if (number := next(numbers, None)) is not None:
            speed = rng.lognormvariate(0, sigma)
            heapq.heappush(events, (now, next(ties), speed, exchange.begin(number)))

    for _ in range(workers):
        take(0.0)
    while events:
        now, _, speed, attempt = heapq.heappop(events)
        patches = exchange.next_layer(attempt)
        if patches is not None:
            heapq.heappush(events, (now + patches * speed, next(ties), speed, attempt))
            continue
        exchange.read(attempt)
        exchange.end(attempt, set(exchange.consumers(attempt)) - is_recorded)
        exchange.recorded(attempt.number)
        is_recorded.add(attempt.number)
        take(now)
    return exchange


def main() -> None:
    """Print the counts for raster and checkerboard order."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--tasks", type=int, nargs=3, default=[16, 16, 16], help="along z, y, x")
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 8, 64, 512])
    parser.add_argument("--expected", type=int, help="workers for which the order is made")
    parser.add_argument("--sigma", type=float, default=0.3)
    arguments = parser.parse_args()
    shared = SharedPatches.of(Zyx(*arguments.tasks))
    plan = GridPlan(BoxGrid(Zyx(0, 0, 0), TASK, TASK, shared.count))
    without = shared.without_exchange / shared.distinct
    print(f"{len(plan):,} tasks, {without:.3f} computed / distinct without exchange")
    for workers in arguments.workers:
        orders = {"raster": plan, "checkerboard": checkerboard(plan, arguments.expected or workers)}
        for name, order in orders.items():
            found = simulate(shared, order, workers, sigma=arguments.sigma)
            print(
                f"{workers:5} workers, {name:12} {found.ratio:.3f} computed / distinct, "
                f"{found.bytes_written / len(plan) / 1e6:6.1f} MB and "
                f"{found.objects_written / len(plan):.1f} objects written per task, "
                f"{found.peak_bytes / 1e9:7.1f} GB at the peak",
                flush=True,
            )


if __name__ == "__main__":
    main()

"""Counts of the simulated exchange are exact, and small in checkerboard order."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulate_exchange import TASK, SharedPatches, SimulatedExchange, simulate

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid
from chunkflow_py.tasks.checkerboard import checkerboard
from chunkflow_py.tasks.task_plan import GridPlan

CUBE = Zyx(16, 16, 16)  # 4,096 tasks


@st.composite
def geometries(draw):
    """Draw tasks that are at least as large as a patch and tile a volume, and its patches."""
    patch = Zyx(*(draw(st.integers(1, 6)) for _ in range(3)))
    overlap = Zyx(*(draw(st.integers(0, size - 1)) for size in patch))
    task = Zyx(*(size + draw(st.integers(0, 5)) for size in patch))
    count = Zyx(*(draw(st.integers(1, 4)) for _ in range(3)))
    last = Zyx(*(draw(st.integers(0, a - b)) for a, b in zip(task, patch, strict=True)))
    stop = task * count - last  # the last tasks are cut, but not below a patch
    grid = BoxGrid(Zyx(0, 0, 0), task, task, count, stop)
    return grid, PatchGrid(PatchGeometry(patch, patch, overlap), BoundingBox(Zyx(0, 0, 0), stop))


class OneByOne:
    """The exchange with each patch and part on its own, as the package does it."""

    def __init__(self, grid: BoxGrid, patches: PatchGrid) -> None:
        self.grid, self.patches = grid, patches
        self.parts: dict[int, dict[tuple[int, Zyx], int]] = {n: {} for n in range(len(grid))}
        self.recorded: set[int] = set()
        self.computed = self.peak = self.written = 0

    def layers(self, number: int) -> list[list[BoundingBox]]:
        """Return the patches of a task, one list for each layer."""
        boxes = list(self.patches.patches(self.grid[number]))
        return [[b for b in boxes if b.start.z == z] for z in sorted({b.start.z for b in boxes})]

    def to_compute(self, number: int, layer: list[BoundingBox]) -> list[BoundingBox]:
        """Return the patches of a layer for which the task has no part."""
        known = {patch for _, patch in self.parts[number]}
        return [patch for patch in layer if patch.start not in known]

    def end(self, number: int, computed: list[BoundingBox]) -> None:
        """Store the parts of a task for others, and remove those for itself."""
        self.computed += len(computed)
        others = [n for n in range(len(self.grid)) if n != number and n not in self.recorded]
        for patch, other in product(computed, others):
            if voxels := patch.intersection(self.grid[other]).voxels:
                self.parts[other][number, patch.start] = 12 * voxels
                self.written += 12 * voxels
        self.peak = max(self.peak, sum(sum(parts.values()) for parts in self.parts.values()))
        self.recorded.add(number)
        self.parts[number] = {}


@settings(max_examples=8)
@given(geometry=geometries(), data=st.data())
def test_groups_count_the_same_as_patches_one_by_one(geometry, data):
    """Layers of several tasks are computed in a random order, and tasks end in a random order."""
    assert_same_counts(geometry, data)


@pytest.mark.long
@settings(max_examples=60)
@given(geometry=geometries(), data=st.data())
def test_many_groups_count_the_same_as_patches_one_by_one(geometry, data):
    """The same, for more grids and orders."""
    assert_same_counts(geometry, data)


def assert_same_counts(geometry, data):
    """Assert that groups count what single patches count, in a random order."""
    grid, patches = geometry
    groups = SimulatedExchange(SharedPatches(grid, patches))
    single = OneByOne(grid, patches)
    waiting = data.draw(st.permutations(range(len(grid))))
    running: dict[int, tuple] = {}
    while waiting or running:
        if waiting and (not running or data.draw(st.booleans())):
            number = waiting.pop()
            running[number] = (groups.begin(number), single.layers(number), [])
        number = data.draw(st.sampled_from(sorted(running)))
        attempt, layers, computed = running[number]
        patches_left = groups.next_layer(attempt)
        if layers:
            found = single.to_compute(number, layers.pop(0))
            assert patches_left == len(found)
            computed += found
            continue
        assert patches_left is None
        groups.read(attempt)
        unfinished = set(groups.consumers(attempt)) - single.recorded
        groups.end(attempt, unfinished)
        groups.recorded(number)
        single.end(number, computed)
        del running[number]
    assert (groups.computed, groups.peak_bytes) == (single.computed, single.peak)
    assert (groups.bytes_written, groups.bytes_stored) == (single.written, 0)
    assert groups.ratio >= 1


def test_a_task_that_is_smaller_than_a_patch_is_refused():
    """The patches of such tasks are shared by more than two tasks along an axis."""
    with pytest.raises(ValueError, match="reaches into three tasks along axis 0"):
        SharedPatches.of(Zyx(4, 1, 1), Zyx(4, 8, 8), Zyx(6, 8, 8), Zyx(3, 2, 2))


@pytest.mark.parametrize(
    ("workers", "most", "most_gb"), [(1, 1.0, 40), (8, 1.0, 40), (64, 1.002, 280), (512, 1.06, 520)]
)
def test_in_checkerboard_order_nearly_every_patch_is_computed_once(workers, most, most_gb):
    """The order is that of runs; tasks differ in speed, and the bytes are those of a slab."""
    shared = SharedPatches.of(CUBE)
    plan = GridPlan(BoxGrid(Zyx(0, 0, 0), TASK, TASK, CUBE))
    found = simulate(shared, checkerboard(plan, workers), workers, sigma=0.3)
    assert 1 <= round(found.ratio, 3) <= most
    assert found.peak_bytes < most_gb * 1e9
    assert found.bytes_stored == 0
    assert found.bytes_read == found.bytes_written  # each object is read once
    without = sum(shared.shape(number).patches for number in plan)
    assert without == shared.without_exchange
    assert without / shared.distinct == pytest.approx(2.246, abs=0.001)


@pytest.mark.parametrize(("workers", "least"), [(8, 1.2), (512, 1.9)])
def test_raster_order_computes_more(workers, least):
    """Neighbours run at the same time, so neither finds the parts of the other."""
    plan = GridPlan(BoxGrid(Zyx(0, 0, 0), TASK, TASK, CUBE))
    assert simulate(SharedPatches.of(CUBE), plan, workers, sigma=0.3).ratio > least

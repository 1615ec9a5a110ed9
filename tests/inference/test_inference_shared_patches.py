"""What is counted of the exchange before a run is what tasks then exchange."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid
from chunkflow_py.inference.shared_patches import SharedPatches, part_memory, slabs_of_layers
from chunkflow_py.tasks.checkerboard import checkerboard
from chunkflow_py.tasks.task_plan import GridPlan


def shared_of(grid, tasks, margin=(0, 0, 0)):
    """Return the shared patches, and the box that each task computes."""
    targets = {}
    for cell in product(*map(range, tasks.count)):
        targets[cell] = tasks.box(cell).grow(Zyx(*margin)).intersection(grid.cover)
    spans = []
    for axis in range(3):
        cells = [[k if a == axis else 0 for a in range(3)] for k in range(tasks.count[axis])]
        boxes = [targets[tuple(cell)] for cell in cells]
        spans.append([(box.start[axis], box.stop[axis]) for box in boxes])
    return SharedPatches.of(grid, spans), targets


def exchanged(grid, targets, order):
    """Run tasks in an order; return patches, voxels of all parts, objects and the peak stored."""
    computed, stored, objects, names = set(), {}, set(), list(targets)
    written = peak = 0
    low, high = (np.array([getattr(targets[name], end) for name in names])
                 for end in ("start", "stop"))  # fmt: skip
    for task in sorted(targets, key=order):
        for patch in grid.patches(targets[task]):
            if patch.start in computed:
                continue
            computed.add(patch.start)
            size = np.minimum(high, patch.stop) - np.maximum(low, patch.start)
            voxels = size.clip(0).prod(axis=1)
            for number in np.flatnonzero(voxels):
                if (other := names[number]) != task:
                    objects.add((task, other))
                    stored[other] = stored.get(other, 0) + int(voxels[number])
                    written += int(voxels[number])
        stored.pop(task, None)
        peak = max(peak, sum(stored.values()))
    return len(computed), written, len(objects), peak


GRIDS = {
    "patch": st.tuples(*[st.integers(2, 7)] * 3),
    "shared": st.tuples(*[st.floats(0, 0.8)] * 3),
    "extent": st.tuples(st.integers(7, 14), st.integers(7, 20), st.integers(7, 12)),
    "more": st.tuples(*[st.integers(0, 6)] * 3),
    "margin": st.tuples(*[st.integers(0, 2)] * 3),
    "spread": st.booleans(),
}


@settings(max_examples=6, deadline=None)
@given(**GRIDS)
def test_a_grid_is_counted_as_its_tasks_exchange(**grid):
    """Patches, voxels and objects are those of tasks in raster order, also with margins."""
    assert_same_counts(**grid)


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(**GRIDS)
def test_many_grids_are_counted_as_their_tasks_exchange(**grid):
    """The same, for more grids."""
    assert_same_counts(**grid)


def assert_same_counts(patch, shared, extent, more, margin, spread):
    """Assert that a grid is counted as tasks that exchange patches one by one."""
    overlap = tuple(int(p * s) for p, s in zip(patch, shared, strict=True))
    geometry = PatchGeometry(Zyx(*patch), Zyx(*patch), Zyx(*overlap))
    domain = BoundingBox.from_size((3, -2, 0), extent)
    grid = PatchGrid(geometry, domain, spread=spread)
    tasks = BoxGrid.covering(domain, Zyx(*patch) + Zyx(*more))
    counted, targets = shared_of(grid, tasks, margin)
    distinct, written, objects, peak = exchanged(grid, targets, order=lambda task: task)
    assert counted.distinct == distinct
    assert counted.computed == sum(grid.count(box).product() for box in targets.values())
    assert counted.layers == sum(grid.count(box).z for box in targets.values())
    assert counted.written_voxels(None) == written
    assert counted.objects == objects
    assert counted.peak_voxels(None) <= peak
    for box in targets.values():
        outside = sum(p.voxels - p.intersection(box).voxels for p in grid.patches(box))
        assert grid.voxels_outside(box) == outside
        for other in targets.values():
            both = [p for p in grid.patches(box) if not p.intersection(other).is_empty]
            voxels = sum(p.intersection(box).voxels for p in both)
            assert grid.shared(box, other) == (len(both), voxels)


@pytest.mark.parametrize("workers", [1, 2, 100])
@pytest.mark.parametrize("overlap", [(2, 4, 4), (1, 9, 5)])
def test_the_checkerboard_order_is_counted_exactly(workers, overlap):
    """Bytes and objects are those of the order in which runs send tasks; so is the peak, nearly."""
    geometry = PatchGeometry(Zyx(6, 16, 16), Zyx(6, 16, 16), Zyx(*overlap))
    domain = BoundingBox.from_size((0, 0, 0), (64, 96, 144))
    grid, tasks = PatchGrid(geometry, domain), BoxGrid.covering(domain, Zyx(8, 24, 24))
    counted, targets = shared_of(grid, tasks)
    slabs = slabs_of_layers(tasks.count, workers)
    assert tasks.count == (8, 4, 6)
    assert slabs[-1] == {1: 3, 2: 1, 100: 0}[workers]
    names = list(targets)
    place = {names[n]: k for k, n in enumerate(checkerboard(GridPlan(tasks), workers))}
    distinct, written, objects, peak = exchanged(grid, targets, place.get)
    assert counted.distinct == distinct
    assert counted.written_voxels(slabs) == written
    assert counted.peak_voxels(slabs) == pytest.approx(peak, rel=0.1)
    assert counted.peak_voxels([*range(8)]) < counted.peak_voxels([0] * 8) < written
    if overlap[1] < 8:  # otherwise some tasks have no patch for themselves
        assert counted.objects == objects
    *_, peak = exchanged(grid, targets, order=lambda task: task)
    assert counted.peak_voxels(None) == pytest.approx(peak, rel=0.1)


def test_millions_of_tasks_are_counted_at_once():
    """The volume of the issue: 9.5 bytes per voxel, and 2.26 times the patches without exchange."""
    geometry = PatchGeometry(Zyx(20, 256, 256), Zyx(20, 256, 256), Zyx(4, 64, 64))

    def counted(size):
        domain = BoundingBox.from_size((0, 0, 0), size)
        tasks = BoxGrid.covering(domain, Zyx(64, 512, 512))
        spans = []
        for axis in range(3):
            boxes = (
                tasks.box([k if a == axis else 0 for a in range(3)])
                for k in range(tasks.count[axis])
            )
            spans.append([(box.start[axis], box.stop[axis]) for box in boxes])
        return len(tasks), SharedPatches.of(PatchGrid(geometry, domain), spans)

    tasks, found = counted((2048, 8192, 8192))
    assert found.written_voxels(None) * 12 / (2048 * 8192 * 8192) == pytest.approx(9.5, abs=0.05)
    assert found.computed / found.distinct == pytest.approx(2.26, abs=0.005)
    assert found.objects / tasks == pytest.approx(6, abs=0.5)
    tasks, found = counted((16384, 128000, 128000))
    assert tasks == 16_000_000
    assert found.written_voxels(None) * 12 / (16384 * 128000**2) == pytest.approx(9.9, abs=0.1)
    slabs = slabs_of_layers(Zyx(256, 250, 250), 3600)
    assert slabs[-1] == 127
    assert found.peak_voxels(slabs) < 0.02 * found.written_voxels(slabs)


def test_the_memory_of_parts_is_limited():
    """A process holds the parts of two tasks, and as many more as the store keeps in memory."""
    assert part_memory(100, 3, 1000, writes_later=False) == 500
    assert part_memory(100, 3000, 1000) == 1300

"""The seam measure: 1 without a seam, more with one, at the faces between tasks alone."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Scale, Zyx
from chunkflow_py.monitor.report.seam_measure import (
    REACH,
    WINDOW,
    sampled,
    seam_along,
    seams_of,
    steps_of,
)
from chunkflow_py.monitor.run_volumes import RunVolume
from chunkflow_py.run.ledger.ledger import Ledger
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.store import open_store
from chunkflow_py.tasks.task_plan import GridPlan, ListPlan
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec

TASK, COUNT = Zyx(16, 16, 16), Zyx(3, 3, 3)
BOX = BoundingBox.from_size((0, 0, 0), TASK * COUNT)
PLAN = GridPlan(BoxGrid(Zyx(0, 0, 0), TASK, TASK, COUNT))


def ledger_of(folder, plan, done=None):
    """Return a ledger in which some tasks of a plan are done: all of them unless said."""
    ledger = Ledger(open_store(str(folder / "run")), "infer", plan.span)
    numbers = plan if done is None else done
    ledger.record([Record(n, plan.text(n), "done", "5bec", f"a{n}", "w") for n in numbers])
    return ledger


def place_of(folder, array, kind, offset=(0, 0, 0), shrink=Zyx(1, 1, 1)):
    """Return the place of a volume that holds an array."""
    url = f"zarr://{folder}/out.zarr"
    size = Zyx.of(array.shape[-3:])
    channels = len(array) if array.ndim == 4 else None
    box = BoundingBox.from_size(offset, size)
    spec = VolumeSpec(box, (8.0, 8.0, 8.0), array.dtype, channels, kind, size)
    create_volume(spec, url).write(Chunk(array, offset))
    return RunVolume("output", "save-zarr", url, 0, Scale.of(shrink))


def number_of_task(shape=BOX.size):
    """Return in each voxel of the volume the number of its task along each axis: (3, z, y, x)."""
    return np.indices(shape) // np.reshape(TASK, (3, 1, 1, 1))


def image(rng):
    """Return noise without a seam."""
    return rng.random(BOX.size, np.float32)


@pytest.mark.parametrize("channels", [None, 2])
def test_without_a_seam_the_measure_is_1(tmp_path, channels):
    """Noise has a measure near 1 along each axis, and the spread is narrow around it."""
    rng = np.random.default_rng(1)
    array = image(rng) if channels is None else np.stack([image(rng) for _ in range(channels)])
    place = place_of(tmp_path, array, "probability")
    seams = seams_of(place, sampled(PLAN, ledger_of(tmp_path, PLAN), 16))
    assert [seam.axis for seam in seams.axes] == ["z", "y", "x"]
    for seam in seams.axes:
        assert seam.faces == 16
        assert seam.ratio == pytest.approx(1, abs=0.05)
        assert 0.95 < seam.low < seam.ratio < seam.high < 1.05
    assert not seams.labels


def test_the_spread_is_that_of_the_sample_of_faces():
    """Of many samples of faces with a measure of 1.5, most have a spread that holds 1.5."""
    rng = np.random.default_rng(5)
    held = 0
    for seed in range(200):
        inside = rng.uniform(0.5, 1.5, 32)
        steps = np.stack((1.5 * inside * rng.uniform(0.6, 1.4, 32), inside), axis=1)
        seam = seam_along(0, steps.tolist(), seed)
        held += seam.low < 1.5 < seam.high
    assert 0.88 * 200 < held < 200
    assert seam_along(0, [(2.0, 1.0)]).low is None, "one face has no spread"


def test_a_planted_seam_is_found_along_its_axis_alone(tmp_path):
    """An offset from task to task along y shows along y, with a spread far from 1."""
    rng = np.random.default_rng(2)
    array = image(rng) + np.float32(0.5) * (number_of_task()[1] % 2).astype(np.float32)
    seams = seams_of(
        place_of(tmp_path, array, "image"), sampled(PLAN, ledger_of(tmp_path, PLAN), 18)
    )
    z, y, x = seams.axes
    # |a - b + 0.5| of uniform a, b is 0.5417 on average, |a - b| a third
    assert y.ratio == pytest.approx(0.5417 * 3, rel=0.05)
    assert y.low > 1.4
    assert z.high < 1.1
    assert x.high < 1.1


def test_labels_that_do_not_match_across_tasks_are_a_seam(tmp_path):
    """Objects numbered task by task: all pairs across faces change label, few inside."""
    objects = np.indices(BOX.size)[2] // 4 + 1  # slabs of 4 voxels along x, also across faces
    tasks = number_of_task()
    own = (objects + 100 * (9 * tasks[0] + 3 * tasks[1] + tasks[2])).astype(np.uint32)
    ledger = ledger_of(tmp_path, PLAN)
    whole = tmp_path / "whole"
    same = seams_of(
        place_of(whole, objects.astype(np.uint32), "segmentation"), sampled(PLAN, ledger, 18)
    )
    assert same.labels
    assert [seam.ratio for seam in same.axes] == [None, None, pytest.approx(4)]
    assert same.axes[2].across == 1, "where an object ends on each face"
    split = seams_of(place_of(tmp_path, own, "segmentation"), sampled(PLAN, ledger, 18))
    assert [seam.across for seam in split.axes] == [1, 1, 1]
    assert [seam.ratio for seam in split.axes[:2]] == [float("inf")] * 2


@pytest.mark.parametrize("dtype", ["u1", "i2", "u4", "f2", "f4"])
def test_steps_are_differences_whatever_the_type(dtype):
    """Unsigned differences do not wrap around, and voxels that are no number do not count."""
    array = np.zeros((10, 2, 2), dtype)
    array[5:] = 7
    array[8:] = 3
    assert steps_of(array, 0, labels=False) == (7, 4 / 8)
    assert steps_of(array[::-1], 0, labels=False) == (7, 4 / 8)
    if np.dtype(dtype).kind == "f":
        array[:, 0, 0] = np.nan
        assert steps_of(array, 0, labels=False) == (7, 4 / 8)
        assert steps_of(array * np.nan, 0, labels=False) is None


def test_only_faces_between_tasks_that_are_done_are_looked_at(tmp_path):
    """A face counts if both tasks are done; at most so many are taken, always the same."""
    ledger = ledger_of(tmp_path, PLAN, done=[0, 1, 3, 26])
    faces = sampled(PLAN, ledger, 100)
    assert [(face.axis, face.place, face.numbers) for face in faces] == [
        (1, 16, (0, 3)),
        (2, 16, (0, 1)),
    ]
    full = ledger_of(tmp_path / "full", PLAN)
    some = sampled(PLAN, full, 5, seed=3)
    assert len(some) == 15
    assert sampled(PLAN, full, 5, seed=3) == some
    assert sampled(PLAN, full, 5, seed=4) != some
    assert len(set(some)) == 15
    assert len(sampled(PLAN, full, 100)) == 3 * 18


def test_tasks_that_overlap_meet_in_the_middle(tmp_path):
    """Tasks at a stride smaller than their size, as with cropped margins, share a middle."""
    plan = GridPlan(BoxGrid(Zyx(0, 0, 0), Zyx(20, 20, 20), TASK, Zyx(1, 1, 3)))
    faces = sampled(plan, ledger_of(tmp_path, plan), 9)
    assert sorted(face.place for face in faces) == [18, 34]


@pytest.mark.parametrize("times", [None, 2])
def test_lists_of_boxes_and_time_points_have_faces_too(tmp_path, times):
    """Neighbours of a list are found by their places, and those of a time point in it."""
    grid = BoxGrid(Zyx(0, 0, 0), TASK, TASK, Zyx(1, 2, 2))
    boxes = [Region(box, time) for time in range(times or 1) for box in grid]
    if times is None:
        boxes = [region.with_box(region.bbox) for region in boxes]
        boxes = [Region(region.bbox) for region in boxes]
    listed = ListPlan(boxes)
    gridded = GridPlan(grid, times=times)

    def found(folder, plan):
        faces = sampled(plan, ledger_of(tmp_path / folder, plan), 50)
        return sorted((f.axis, f.place, f.time or 0, f.box) for f in faces)

    assert len(found("list", listed)) == 4 * (times or 1)
    assert found("list", listed) == found("grid", gridded)


def test_faces_lie_where_the_output_has_them(tmp_path):
    """An output whose voxels are twice as large has its faces at half the place."""
    rng = np.random.default_rng(3)
    array = rng.random(BOX.size // 2, np.float32)
    array[:, :, 8:] += 10
    place = place_of(tmp_path, array, "image", shrink=Zyx(2, 2, 2))
    _, _, x = seams_of(place, sampled(PLAN, ledger_of(tmp_path, PLAN), 18)).axes
    assert x.across > 4


def test_reads_are_bounded(tmp_path, monkeypatch):
    """Of a face, however large, a thin window is read; none crosses a task or the volume."""
    size = Zyx(4 * WINDOW, 300, 24)
    plan = GridPlan(BoxGrid(Zyx(0, 0, 0), size, size, Zyx(1, 1, 2)))
    array = np.zeros((size.z, size.y, 40), np.uint8)
    place = place_of(tmp_path, array, "image")
    volume = place.open()
    read, seen = type(volume).read, []

    def noting(self, bbox, *args, **options):
        seen.append(bbox)
        return read(self, bbox, *args, **options)

    monkeypatch.setattr(type(volume), "read", noting)
    seams = seams_of(place, sampled(plan, ledger_of(tmp_path, plan), 4))
    assert seams.axes[0].ratio is None, "all of one value"
    assert len(seen) == 1
    assert seen[0].size.x == 2 * REACH + 2
    assert seen[0].start.x == 24 - REACH - 1
    assert max(seen[0].size.z, seen[0].size.y) <= WINDOW


def test_a_volume_without_faces_says_so(tmp_path):
    """One task has no neighbour: there is a sentence instead of a measure."""
    plan = GridPlan(BoxGrid(Zyx(0, 0, 0), TASK, TASK, Zyx(1, 1, 1)))
    place = place_of(tmp_path, np.zeros(TASK, np.uint8), "image")
    found = seams_of(place, sampled(plan, ledger_of(tmp_path, plan), 4))
    assert found.axes == ()
    assert "no sampled task boundary has a done task" in found.problem
    gone = RunVolume("output", "save-zarr", f"zarr://{tmp_path}/nothing", 0)
    assert "is not a zarr volume" in seams_of(gone, []).problem


def test_all_pairs_of_neighbours_have_one_face(tmp_path):
    """Every pair along an axis is a candidate exactly once."""
    faces = sampled(PLAN, ledger_of(tmp_path, PLAN), 1000)
    pairs = {face.numbers for face in faces if face.axis == 2}
    rows = np.arange(27).reshape(9, 3)
    assert pairs == {pair for row in rows.tolist() for pair in pairwise(row)}

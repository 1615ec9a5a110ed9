"""Counts of tasks: stored by box, added up once, whatever happens to the tasks."""

import json
from itertools import islice

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.errors import GeometryError, VolumeError, VolumeNotFoundError
from chunkflow_py.store.task_counts import (
    CountStore,
    TaskCounts,
    check_disjoint,
    check_tasks,
    counted_region,
    coverage,
    describe_counts,
)

LEFT, RIGHT = Region.parse("0-4_0-4_0-4"), Region.parse("0-4_0-4_4-8")


def counts(region, value=1, **settings):
    """Return counts with a single value."""
    return TaskCounts(region, {"a": np.array([value])}, settings, BoundingBox.parse("0-4_0-4_0-8"))


def test_counts_come_back_and_duplicates_replace(tmp_path):
    """A task that runs twice leaves one object, of the same bytes; the record says what it is."""
    store = CountStore(str(tmp_path), "test")
    first = store.put(counts(RIGHT, 5))
    assert store.put(counts(RIGHT, 5)) == first
    store.put(counts(LEFT, 3))
    assert first.url == f"file://{tmp_path}/{RIGHT}.npz"
    assert first.size == (tmp_path / f"{RIGHT}.npz").stat().st_size
    found = list(CountStore(f"file://{tmp_path}", "test").read())
    assert [(c.region, int(c.arrays["a"][0])) for c in found] == [(LEFT, 3), (RIGHT, 5)]
    assert found[0].domain == BoundingBox.parse("0-4_0-4_0-8")


def test_what_cannot_be_added_up_is_refused(tmp_path):
    """Nothing at all, other settings, another kind, damage and pickles are errors."""
    store = CountStore(str(tmp_path), "test")
    with pytest.raises(VolumeNotFoundError, match="no counts below"):
        store.regions()
    store.put(counts(LEFT, bins=1))
    store.put(counts(RIGHT, bins=2))
    with pytest.raises(VolumeError, match=r"the settings \{'bins': 2\}.* settings \{'bins': 1\}"):
        list(store.read())
    with pytest.raises(VolumeError, match="kind 'test', version 1, instead of kind 'other'"):
        list(CountStore(str(tmp_path), "other").read())
    path = tmp_path / f"{LEFT}.npz"
    whole = path.read_bytes()
    pickled = np.array([{"a": 1}], object)
    np.savez(path, about=json.dumps({}), a=pickled)
    with pytest.raises(VolumeError, match="is damaged .*run task .* again"):
        list(store.read([LEFT]))
    for end in (0, 10, len(whole) // 2, len(whole) - 3):
        path.write_bytes(whole[:end])
        with pytest.raises(VolumeError, match="is damaged"):
            list(store.read([LEFT]))


def test_overlaps_are_refused(tmp_path):
    """Boxes that share a voxel would count it twice; other time points do not overlap."""
    store = CountStore(str(tmp_path), "test")
    store.put(counts(LEFT))
    store.put(counts(Region.parse("t1_0-4_0-4_0-4")))
    store.put(counts(RIGHT))
    assert len(store.regions()) == 3
    store.put(counts(Region.parse("3-5_3-5_3-5")))
    with pytest.raises(GeometryError, match="boxes .*3-5_3-5_3-5 below .* overlap"):
        store.regions()
    grid = BoxGrid(Zyx(0, 0, 0), Zyx(4, 4, 4), Zyx(4, 4, 4), Zyx(50, 50, 50))
    check_tasks(grid)
    check_disjoint(islice(grid, 2000), "here")
    with pytest.raises(GeometryError, match="overlap"):
        check_tasks(BoxGrid(Zyx(0, 0, 0), Zyx(4, 4, 4), Zyx(4, 4, 3), Zyx(50, 50, 50)))


def test_margins_are_not_counted():
    """A task counts its box inside the volume; a downsampled chunk is counted whole."""
    domain = BoundingBox.parse("0-10_0-10_0-10")
    chunk = Chunk(np.zeros((8, 8, 8)), (2, 2, 2), domain=domain)
    at_the_end = Task(Region.parse("t2_4-16_4-16_4-16"))
    assert str(counted_region(at_the_end, chunk)) == "t2_4-10_4-10_4-10"
    assert counted_region(Task(), chunk).bbox == chunk.bbox
    shrunk = Task(Region.parse("4-20_4-20_4-20"))
    small = Chunk(np.zeros((3, 3, 3)), (2, 2, 2), domain=domain)
    assert counted_region(shrunk, small).bbox == small.bbox
    with pytest.raises(GeometryError, match="no voxel in common"):
        counted_region(Task(), chunk, Chunk(np.zeros((1, 1, 1)), (20, 0, 0)))


def test_coverage():
    """The share of the domain that boxes cover, on average over time points."""
    domain = BoundingBox.parse("0-4_0-4_0-8")
    assert coverage([LEFT], domain) == 0.5
    assert coverage([LEFT, RIGHT], domain) == 1
    assert coverage([LEFT, RIGHT, Region.parse("t1_0-4_0-4_0-4")], domain) == 0.75
    assert describe_counts({"tasks": 1, "coverage": 0.5}) == "1 task, 0.5 of the volume"
    assert describe_counts({"tasks": 2, "coverage": None}) == "2 tasks"

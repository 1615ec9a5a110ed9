"""What each task needs of a volume is read once, by as many threads as like."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from chunkflow_py import Pipeline
from chunkflow_py.core.chunk import Chunk, Voxels
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.pipeline.operator import Operator, Outline, Source, TaskSource
from chunkflow_py.volume import create_volume
from chunkflow_py.volume import loader as loader_module
from chunkflow_py.volume.cutout import Cutout
from chunkflow_py.volume.loader import MOST_CACHED, MOST_CACHED_LOCAL, VolumeLoader
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec
from chunkflow_py.volume.volume_source import StoredVolume

BOUNDS = BoundingBox(Zyx(4, 0, 10), Zyx(12, 64, 74))
BLOCK = Zyx(8, 16, 16)
TASKS = BoxGrid(BOUNDS.start, Zyx(8, 16, 32), Zyx(8, 16, 32), Zyx(1, 4, 2))


@pytest.fixture
def em(tmp_path):
    """Write a volume of 16 blocks, and return its address and its voxels."""
    url = f"precomputed://{tmp_path}/em"
    array = np.random.default_rng(0).integers(1, 255, BOUNDS.size, "u1")
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", BLOCK)
    create_volume(spec, url).write(Chunk(array, BOUNDS.start))
    return url, array


def run(loader, boxes=TASKS, ahead=0):
    """Run a line of this loader only; return the tasks."""
    line = [Operator("load", "read", loader, loader, (), ("chunk",))]
    pipeline = Pipeline(line, Source("boxes", TaskSource(boxes)), ahead=ahead)
    pipeline.check()
    return list(pipeline.run())


@pytest.mark.parametrize("ahead", [0, 1, 3])
@pytest.mark.parametrize("margin", [0, 4])
def test_blocks_that_tasks_share_are_decoded_once(em, margin, ahead):
    """Whatever the margin and however many tasks are read at once, each block is decoded once."""
    url, array = em
    loader = VolumeLoader(StoredVolume(url), cutout=Cutout(margin=Zyx(0, margin, margin)))
    for task in run(loader, ahead=ahead):
        chunk = task["chunk"]
        np.testing.assert_array_equal(chunk.array, array[chunk.bbox.slices(BOUNDS.start)])
    assert loader.traffic.decoded_bytes == array.nbytes
    assert (loader.traffic.needed_bytes > array.nbytes) == (margin > 0)
    assert (loader.traffic.cache_hits > 0) == (margin > 0)


def test_nothing_is_kept_where_tasks_share_no_block(em):
    """Tasks that lie on the blocks, without a margin, need no cache; others keep what fits."""
    url, _ = em

    def kept(boxes, margin=0, **settings):
        loader = VolumeLoader(
            StoredVolume(url, **settings), cutout=Cutout(margin=Zyx(0, margin, margin))
        )
        run(loader, boxes)
        return loader.memory(None).held["blocks kept for later tasks"]

    row = BLOCK.z * BOUNDS.size.x
    assert kept(TASKS) == 0
    assert kept(TASKS, 4) == row * 48 + 8 * 48 * 48
    odd = BoxGrid(BOUNDS.start, Zyx(8, 12, 24), Zyx(8, 12, 24), Zyx(1, 4, 2))
    assert kept(odd) > 0
    along_x = BoxGrid(BOUNDS.start, Zyx(8, 16, 20), Zyx(8, 16, 20), Zyx(1, 1, 3))
    assert kept(along_x) == 2 * BLOCK.product() * 2
    flat = BoxGrid(BOUNDS.start, Zyx(4, 16, 32), Zyx(4, 16, 32), Zyx(2, 4, 2))
    assert kept(flat) == BOUNDS.voxels + 8 * 16 * 32
    assert kept(BoxGrid(BOUNDS.start, BOUNDS.size, BOUNDS.size, Zyx(1, 1, 1)), 4) == 0
    assert kept(TASKS, 4, options=VolumeOptions(cache_bytes=77)) == 77
    assert (MOST_CACHED, MOST_CACHED_LOCAL) == (512 * 2**20, 32 * 2**20)


def test_a_local_volume_keeps_fewer_blocks(em, monkeypatch):
    """The file system caches them; in a bucket, each block that is read again is a request."""
    there = f"zarr://mem://cached-{id(em)}/em"
    copy = create_volume(
        VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", BLOCK), there
    )
    copy.write(Chunk(np.ones(BOUNDS.size, "u1"), BOUNDS.start))
    monkeypatch.setattr(loader_module, "MOST_CACHED_LOCAL", 2 * BLOCK.product() * 2)
    along = BoxGrid(BOUNDS.start, Zyx(8, 16, 20), Zyx(8, 16, 20), Zyx(1, 1, 3))
    flat = BoxGrid(BOUNDS.start, Zyx(4, 16, 32), Zyx(4, 16, 32), Zyx(2, 4, 2))
    for url, planes in ((em[0], 0), (there, BOUNDS.voxels + 8 * 16 * 32)):
        for boxes, wanted in ((along, 2 * BLOCK.product() * 2), (flat, planes)):
            loader = VolumeLoader(StoredVolume(url))
            run(loader, boxes)
            assert loader.memory(None).held["blocks kept for later tasks"] == wanted


def test_the_memory_of_reading_is_told(em):
    """The largest box that is read, with its margin, and blocks on their way."""
    loader = VolumeLoader(
        StoredVolume(em[0], options=VolumeOptions(parallel=2)), Cutout(margin=Zyx(0, 4, 4))
    )
    assert loader.voxels() == Voxels("uint8", 1, "image")
    run(loader)
    need = loader.memory(None)
    assert need.size == Zyx(8, 24, 36)
    assert need.work == 2 * 2 * BLOCK.product()
    loader.prepare(Outline(has_tasks=True))
    assert loader.memory(None) is None  # tasks of a queue may be anything


def test_a_volume_is_opened_once_by_many_threads(em):
    """Threads that ask for the volume at the same time get the same one."""
    loader = VolumeLoader(StoredVolume(em[0]))
    with ThreadPoolExecutor(8) as pool:
        found = set(pool.map(lambda _: id(loader.volume), range(32)))
    assert len(found) == 1


def test_a_time_may_be_said_once_for_all_tasks(tmp_path):
    """An index given to the loader goes before that of the task."""
    url = f"zarr://{tmp_path}/movie.zarr"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("u1"), None, "image", BLOCK, times=3)
    volume = create_volume(spec, url)
    for time in range(3):
        volume.write(Chunk(np.full(BOUNDS.size, time + 1, "u1"), BOUNDS.start), time=time)
    task = Region(BOUNDS, 2)
    assert VolumeLoader(StoredVolume(url))(Task(task))["chunk"].array.max() == 3
    assert VolumeLoader(StoredVolume(url), time=1)(Task(task))["chunk"].array.max() == 2

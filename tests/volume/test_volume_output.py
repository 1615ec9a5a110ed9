"""Tests of chunkflow_py.volume.output."""

import json
import os
from contextlib import contextmanager

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk, Voxels
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.errors import AlignmentError, ChunkError, OptionError, VolumeError
from chunkflow_py.pipeline.operator import Outline
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.output import VolumeOutput
from chunkflow_py.volume.protocol import VolumeSpec
from chunkflow_py.volume.saver import VolumeSaver
from chunkflow_py.volume.thumbnail import thumbnail

BOUNDS = BoundingBox(Zyx(0, 0, 64), Zyx(8, 64, 192))
GRID = BoxGrid.covering(BOUNDS, Zyx(8, 32, 64))


def output(url, **more):
    """Return what writes the volume at *url*."""
    kept = {"upload_log", "create_thumbnail", "name"} & more.keys()
    own = {key: more.pop(key) for key in kept}
    return VolumeOutput(VolumeSaver(url, **more), **own)


def whole(kind="image"):
    """Return a chunk of random voxels over `BOUNDS`."""
    rng = np.random.default_rng(0)
    return Chunk(rng.integers(0, 255, BOUNDS.size, "u1"), BOUNDS.start, (40, 4, 4), kind)


def task(chunk, time=None):
    """Return a task that carries the chunk."""
    return Task(Region(chunk.bbox, time), {"chunk": chunk})


@contextmanager
def nobody():
    """Let go of the right of the super-user to write anywhere."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.parametrize("scheme", ["precomputed", "zarr"])
def test_thumbnails_of_tasks_make_up_the_whole(tmp_path, scheme):
    """Whatever the format, the thumbnail is a precomputed volume that CloudVolume levels suit."""
    url = f"{scheme}://{tmp_path}/out"
    body = output(url, create_thumbnail=True)
    body.prepare(Outline(GRID, BOUNDS))
    chunk = whole()
    for box in GRID:
        body(task(chunk.cut(box)))
    small = open_volume(f"precomputed://{tmp_path}/out/thumbnail", mip=5)
    wanted = thumbnail(chunk, 32)
    assert small.bounds == wanted.bbox
    np.testing.assert_array_equal(small.read(small.bounds), wanted)
    np.testing.assert_array_equal(open_volume(url).read(BOUNDS), chunk)


def test_a_thumbnail_of_another_cut(tmp_path):
    """Tasks that would share blocks of a thumbnail that is there are refused before the first."""
    url = f"precomputed://{tmp_path}/out"
    body = output(url, create_thumbnail=True, block_size=Zyx(8, 32, 32))
    body.prepare(Outline(GRID, BOUNDS))
    body(task(whole().cut(GRID[0])))
    other = output(url, create_thumbnail=True)
    finer = BoxGrid.covering(BOUNDS, Zyx(8, 32, 32))
    text = r"tasks of size \(8, 32, 32\) .* cut .* of size \(8, 32, 64\) of .*/thumbnail"
    with pytest.raises(AlignmentError, match=text):
        other.prepare(Outline(finer, BOUNDS))


def test_a_sharded_thumbnail(tmp_path):
    """A thumbnail in shards is refused with what to do."""
    url = f"precomputed://{tmp_path}/out"
    spec = VolumeSpec(
        BoundingBox(Zyx(0, 0, 2), Zyx(8, 2, 6)), (40, 128, 128), np.dtype("u1"), None, "image",
        Zyx(2, 1, 1), shard_size=Zyx(4, 2, 2), factor=Zyx(1, 2, 2),
    )  # fmt: skip
    create_volume(spec, f"{url}/thumbnail", 5)
    with pytest.raises(VolumeError, match=r"is stored in shards of .* delete the thumbnail"):
        output(url, create_thumbnail=True).prepare(Outline(GRID, BOUNDS))


def test_labels_have_no_thumbnail(tmp_path):
    """That a line makes labels is told before the first task."""
    body = output(f"precomputed://{tmp_path}/out", create_thumbnail=True)
    with pytest.raises(ChunkError, match="segmentation, which has no thumbnail"):
        body.prepare(Outline(GRID, BOUNDS, voxels=Voxels("uint32", 1, "segmentation")))


def test_the_thumbnail_is_of_the_first_time_point(tmp_path):
    """Later time points leave the thumbnail alone."""
    body = output(f"zarr://{tmp_path}/out", create_thumbnail=True, times=2)
    body.prepare(Outline(GRID, BOUNDS))
    chunk = whole()
    for time, voxels in ((0, chunk), (1, chunk.with_array(chunk.array * 0 + 9))):
        for box in GRID:
            body(task(voxels.cut(box), time))
    small = open_volume(f"precomputed://{tmp_path}/out/thumbnail", mip=5)
    np.testing.assert_array_equal(small.read(small.bounds), thumbnail(chunk, 32))


def test_every_place_that_is_written_is_named():
    """The level, the thumbnail and the log are places in which nothing else may write."""
    body = output("precomputed://s3://bucket/out", upload_log=True, create_thumbnail=True, mip=2)
    place = "s3://bucket/out"
    assert body.destinations == (f"{place} at mip 2", f"{place}/thumbnail", f"{place}/log")
    assert output("/data/out").destinations == ("file:///data/out at mip 0",)


def test_the_log_goes_to_any_store():
    """The log of a task is JSON under log/, named by its region, wherever the volume is."""
    url = "mem://output/em"
    body = output(f"zarr://{url}", upload_log=True, times=4, name="save-zarr")
    done = task(whole(), 3)
    done.seconds["inference"] = 1.5
    body(done)
    log = json.loads(open_store(url).get("log/t3_0-8_0-64_64-192.json"))
    assert log["bbox"] == "t3_0-8_0-64_64-192"
    assert log["timer"]["inference"] == 1.5
    assert log["timer"]["save-zarr"] > 0
    assert log["compute_device"]


@pytest.mark.parametrize(
    ("option", "said"),
    [("upload_log", "--upload-log"), ("create_thumbnail", "--create-thumbnail")],
)
def test_a_file_has_no_place_for_more(tmp_path, option, said):
    """An HDF5 file takes neither logs nor thumbnails."""
    body = output(f"h5://{tmp_path}/out.h5", **{option: True})
    with pytest.raises(OptionError, match=f"which does not support {said}"):
        body.prepare(Outline(GRID, BOUNDS))


@pytest.mark.parametrize("scheme", ["precomputed", "zarr", "h5"])
def test_a_folder_that_is_read_only(tmp_path, scheme):
    """A folder in which nothing can be made is named before the first task."""
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o005 != 0o005:
            folder.chmod(0o755)
    locked = tmp_path / "locked"
    locked.mkdir()
    locked.chmod(0o555)
    body = output(f"{scheme}://{locked}/a/out{'.h5' if scheme == 'h5' else ''}")
    with nobody(), pytest.raises(VolumeError, match=f"folder {locked} is read-only for this user"):
        body.prepare(Outline(GRID, BOUNDS))


def test_a_file_in_the_path(tmp_path):
    """A path that goes through a file is refused before the first task."""
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(VolumeError, match="file is a file, not a folder"):
        output(f"zarr://{tmp_path}/file/out").prepare(Outline(GRID, BOUNDS))

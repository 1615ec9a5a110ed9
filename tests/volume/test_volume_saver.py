"""Tests of chunkflow_py.volume.saver."""

import threading

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk, Voxels
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import (
    AlignmentError,
    ChunkError,
    GeometryError,
    OptionError,
    VolumeError,
    VolumeNotFoundError,
)
from chunkflow_py.pipeline.operator import TaskSource
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec
from chunkflow_py.volume.saver import VolumeSaver

DOMAIN = BoundingBox(Zyx(2, 0, 0), Zyx(42, 100, 90))


def chunk(box, dtype="uint8", value=1, domain=DOMAIN, kind="image"):
    """Return a chunk of one value."""
    return Chunk(np.full(box.size, value, dtype), box.start, (40, 4.5, 4), kind, domain)


@pytest.fixture
def url(tmp_path):
    """Return where the volume of this test goes."""
    return str(tmp_path / "out")


def made(url, dtype="uint8", channels=None):
    """Create a zarr volume with blocks of 16, 32, 32."""
    spec = VolumeSpec(DOMAIN, (40, 4.5, 4), np.dtype(dtype), channels, None, Zyx(16, 32, 32))
    return create_volume(spec, url, format="zarr")


@pytest.mark.parametrize("format", ["zarr", "precomputed"])
def test_creates_what_is_missing(url, format):
    """A new volume has the bounds of the domain, the chunk's properties, and fitting blocks."""
    boxes = BoxGrid.covering(DOMAIN, Zyx(20, 48, 48), respect_stop=True)
    saver = VolumeSaver(url, format=format)
    saver.prepare(boxes, DOMAIN)
    for index, box in enumerate(boxes):
        saver(chunk(box, "uint16", index + 1))
    volume = open_volume(url)
    assert (volume.bounds, volume.voxel_size_nm) == (DOMAIN, (40, 4.5, 4))
    assert (volume.dtype, volume.kind, volume.block_size) == (np.uint16, "image", (20, 48, 48))
    for index, box in enumerate(boxes):
        assert (volume.read(box).array == index + 1).all()


def test_overhanging_tasks(url):
    """Tasks that reach over the end of the volume are cut off there."""
    boxes = BoxGrid.covering(DOMAIN, Zyx(32, 64, 64))
    saver = VolumeSaver(url, format="zarr")
    saver.prepare(boxes, DOMAIN)
    for box in boxes:
        saver(chunk(box, domain=boxes.bounds))
    volume = open_volume(url)
    assert volume.bounds == DOMAIN
    assert (volume.read(DOMAIN).array == 1).all()


def test_bounds_without_a_domain(url, tmp_path):
    """Without a known domain the tasks say the bounds, and without tasks the chunk does."""
    boxes = [BoundingBox(Zyx(0, 0, 0), Zyx(8, 8, 8)), BoundingBox(Zyx(8, 0, 0), Zyx(16, 8, 8))]
    saver = VolumeSaver(url, format="zarr")
    saver.prepare(boxes, None)
    saver(chunk(boxes[1], domain=None))
    assert open_volume(url).bounds == BoundingBox(Zyx(0, 0, 0), Zyx(16, 8, 8))
    saver = VolumeSaver(f"{tmp_path}/other", format="zarr")
    saver.prepare(None, None)
    saver(chunk(DOMAIN))
    assert open_volume(f"{tmp_path}/other").bounds == DOMAIN


def test_tasks_on_no_grid_of_the_domain(url, caplog):
    """Tasks that begin anywhere get a volume of their part, not one of blocks of a voxel."""
    boxes = BoxGrid.covering(BoundingBox(Zyx(7, 9, 11), Zyx(42, 73, 90)), Zyx(16, 32, 32))
    saver = VolumeSaver(url, format="zarr")
    saver.prepare(boxes, DOMAIN)
    for box in boxes:
        saver(chunk(box, domain=boxes.bounds))
    volume = open_volume(url)
    assert volume.bounds == BoundingBox(Zyx(7, 9, 11), Zyx(42, 73, 90))
    assert volume.block_size == (16, 32, 32)
    assert volume.read(volume.bounds).array.all()
    assert "will cover only 7-42_9-73_11-90, the region of the tasks" in caplog.text


def test_a_chunk_on_no_grid_of_the_domain(url, tmp_path):
    """Where the tasks are not known, a chunk that begins anywhere is refused with what works."""
    with pytest.raises(AlignmentError, match=r"aligned to the write units of size \(16, 32, 32\)"):
        VolumeSaver(url, format="zarr")(chunk(BoundingBox.from_size((7, 9, 11), (16, 32, 32))))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("exists", [True, False])
def test_misaligned_plan(url, exists):
    """Tasks that would share a block are refused before the first one, with sizes that work."""
    if exists:
        made(url)
    grid = BoxGrid.covering(DOMAIN, Zyx(16, 40, 32))
    source = TaskSource(grid)
    saver = VolumeSaver(url, format="zarr", block_size=Zyx(16, 32, 32))
    text = r"cut the write units of size \(16, 32, 32\) .*\(16, 32, 32\) or \(16, 64, 32\)"
    with pytest.raises(AlignmentError, match=text):
        saver.prepare(source.boxes, DOMAIN)
    with pytest.raises(AlignmentError, match=r"nearest aligned box is 2-18_0-64_0-32"):
        saver.prepare(list(grid), DOMAIN)


def test_shards_are_the_write_unit(url):
    """With shards it is these that no two tasks may share."""
    saver = VolumeSaver(url, format="zarr", block_size=Zyx(8, 16, 16), shard_size=Zyx(16, 32, 32))
    with pytest.raises(AlignmentError, match=r"write units of size \(16, 32, 32\)"):
        saver.prepare(BoxGrid.covering(DOMAIN, Zyx(8, 32, 32)), DOMAIN)
    saver.prepare(BoxGrid.covering(DOMAIN, Zyx(16, 32, 32)), DOMAIN)
    with pytest.raises(AlignmentError, match="not aligned"):
        saver(chunk(BoundingBox.from_size(DOMAIN.start, (8, 16, 16))))
    saver(chunk(DOMAIN))
    volume = open_volume(url)
    assert (volume.block_size, volume.write_unit) == ((8, 16, 16), (16, 32, 32))


def test_no_create(url):
    """Without leave to create, a missing volume is refused before the first task."""
    saver = VolumeSaver(url, format="zarr", create=False)
    with pytest.raises(VolumeNotFoundError, match=rf"{url}.*leave out --no-create"):
        saver.prepare(None, None)
    made(url)
    saver.prepare(None, None)
    saver(chunk(DOMAIN))
    assert open_volume(url).read(DOMAIN).array.all()


def test_outside(url):
    """Tasks or chunks that do not touch the volume at all are refused."""
    made(url)
    far = BoundingBox.from_size((2, 500, 0), (16, 32, 32))
    saver = VolumeSaver(url, format="zarr")
    with pytest.raises(GeometryError, match=r"lies outside of .*whose bounds are"):
        saver.prepare([far], None)
    with pytest.raises(GeometryError, match="lies outside of"):
        saver(chunk(far, domain=None))


def test_nothing_is_made_for_a_chunk_that_cannot_be_written(url, tmp_path):
    """A first chunk that does not fit the plan leaves no empty volume behind."""
    saver = VolumeSaver(url, format="zarr", block_size=Zyx(16, 32, 32))
    saver.prepare(None, DOMAIN)
    with pytest.raises(AlignmentError):
        saver(chunk(BoundingBox.from_size(DOMAIN.start, (8, 32, 32))))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("here", "there", "value", "stored"),
    [
        ("uint8", "uint16", 200, 200),
        ("uint32", "uint64", 2**32 - 1, 2**32 - 1),
        ("bool", "uint8", 1, 1),
        ("float32", "uint8", 0.5, 128),  # 127.5 is rounded to the even number
        ("float64", "float32", 0.1, np.float32(0.1)),
    ],
)
def test_conversions(url, here, there, value, stored):
    """An existing volume takes wider integers, maps as 255·p, and other floats."""
    made(url, there)
    saver = VolumeSaver(url, format="zarr")
    saver(chunk(DOMAIN, here, value, kind="probability" if here[0] == "f" else None))
    assert (open_volume(url).read(DOMAIN).array == stored).all()


@pytest.mark.parametrize(
    ("here", "there"), [("uint16", "uint8"), ("int8", "uint8"), ("uint8", "float32")]
)
def test_refused_conversions(url, here, there):
    """What would change the numbers is refused with both types."""
    made(url, there)
    with pytest.raises(ChunkError, match=f"dtype {here}, but {url} has the dtype {there}"):
        VolumeSaver(url, format="zarr")(chunk(DOMAIN, here))


def test_wrong_channels(url):
    """An existing volume with other channels is named with both numbers."""
    made(url, channels=3)
    with pytest.raises(ChunkError, match=f"has 1 channels, but {url} has 3"):
        VolumeSaver(url, format="zarr")(chunk(DOMAIN))


def test_asked_for_dtype(url):
    """A type asked for is that of the new volume, and every chunk is converted to it."""
    saver = VolumeSaver(url, format="zarr", dtype=np.dtype("uint8"))
    saver(chunk(DOMAIN, "float32", 1, kind="probability"))
    assert (open_volume(url).read(DOMAIN).array == 255).all()


def test_threads(url):
    """Threads that write the first chunks at the same time create one volume, and lose nothing."""
    boxes = BoxGrid.covering(DOMAIN, Zyx(20, 50, 45))
    saver = VolumeSaver(url, format="precomputed")
    saver.prepare(boxes, DOMAIN)
    gate = threading.Barrier(len(boxes))

    def work(box):
        gate.wait()
        saver(chunk(box))

    threads = [threading.Thread(target=work, args=(box,)) for box in boxes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert open_volume(url).read(DOMAIN).array.all()


@pytest.mark.parametrize("formats", [("zarr", "precomputed"), ("precomputed", "zarr")])
def test_a_folder_holds_one_volume(url, formats):
    """A volume is not created in the folder of one of another format, where nobody could tell."""
    VolumeSaver(url, format=formats[0])(chunk(DOMAIN))
    with pytest.raises(VolumeError, match=f"already holds a {formats[0]} volume"):
        VolumeSaver(url, format=formats[1])(chunk(DOMAIN))


def test_what_is_not_written_is_said_once(url, caplog):
    """Voxels of a chunk that lie outside of the volume are dropped, but not silently."""
    made(url)
    saver = VolumeSaver(url)
    for _ in range(2):
        saver(chunk(BoundingBox(Zyx(2, 0, 0), Zyx(50, 100, 90)), domain=None))
    said = [record.message for record in caplog.records if record.levelname == "WARNING"]
    assert len(said) == 1
    assert "2-50_0-100_0-90 extends beyond" in said[0]
    assert "bounds are 2-42_0-100_0-90" in said[0]


def test_time_points(url):
    """A new volume has the time points asked for; each chunk goes to the one its task names."""
    saver = VolumeSaver(url, format="zarr", times=3)
    saver(chunk(DOMAIN, value=5), 2)
    saver(chunk(DOMAIN, value=6), 0)
    volume = open_volume(url)
    assert volume.times == 3
    assert [int(volume.read(DOMAIN, time=t).array.max()) for t in range(3)] == [6, 0, 5]


def test_time_points_of_the_input(url):
    """The length of the time axis is that of the volume that the line reads, if tasks name one."""
    saver = VolumeSaver(url, format="zarr")
    saver.prepare(None, None, None, 4)
    saver(chunk(DOMAIN), 3)
    assert open_volume(url).times == 4
    plain = VolumeSaver(f"{url}2", format="zarr")
    plain.prepare(None, None, None, 4)
    plain(chunk(DOMAIN))
    assert open_volume(f"{url}2").times is None


@pytest.mark.parametrize(("times", "said"), [(None, "is not known"), (2, "is 2")])
def test_how_many_time_points_must_be_known(url, tmp_path, times, said):
    """Without a length of the time axis, or with too short a one, the option is named."""
    with pytest.raises(OptionError, match=rf"time index 2.* {said}; give --times 3"):
        VolumeSaver(url, format="zarr", times=times)(chunk(DOMAIN), 2)
    with pytest.raises(OptionError, match="give --times 3"):
        VolumeSaver(url, format="zarr", times=times, time=2).prepare(None, DOMAIN)
    assert not (tmp_path / "out").exists()


def test_an_own_time_stands_above_the_tasks(url):
    """The saver's time index is written, whatever the task names, and is checked beforehand."""
    VolumeSaver(url, format="zarr", times=2, time=1)(chunk(DOMAIN, value=9), 0)
    volume = open_volume(url)
    assert [int(volume.read(DOMAIN, time=t).array.max()) for t in range(2)] == [0, 9]
    with pytest.raises(VolumeError, match=r"time indices 0 to 1, but --time is 2"):
        VolumeSaver(url, time=2).prepare(None, DOMAIN)
    made(f"{url}2")
    with pytest.raises(VolumeError, match=r"has no time axis, but --time is 0"):
        VolumeSaver(f"{url}2", time=0).prepare(None, DOMAIN)


def described(**more):
    """Return the description of a volume, as a command before the saver announces it."""
    return VolumeSpec(DOMAIN, (40, 4.5, 4), np.dtype("u1"), None, None, Zyx(16, 32, 32), **more)


@pytest.mark.parametrize("shard", [None, Zyx(32, 32, 32)])
def test_a_plan_is_checked_against_what_is_announced(url, shard):
    """Tasks must fit the blocks or shards of a volume that an earlier command will create."""
    announced = {f"file://{url}": lambda: described(shard_size=shard)}
    saver = VolumeSaver(url, format="zarr", create=False, announced=announced)
    good = BoxGrid.covering(DOMAIN, shard or Zyx(16, 32, 32))
    saver.prepare(good, DOMAIN, Voxels("uint8", 1, "image"))
    with pytest.raises(AlignmentError, match="cut the write units"):
        saver.prepare(BoxGrid.covering(DOMAIN, Zyx(24, 32, 32)), DOMAIN)
    with pytest.raises(ChunkError, match="makes 3 channels of uint8"):
        saver.prepare(good, DOMAIN, Voxels("uint8", 3, "image"))
    coarse = VolumeSaver(url, 1, "zarr", create=False, announced=announced)
    coarse.prepare(BoxGrid.covering(BoundingBox(Zyx(1, 0, 0), Zyx(21, 50, 45)), good.size), DOMAIN)


def test_what_is_announced_without_details_is_checked_when_it_is_there(url):
    """Where only the first chunk tells what will be created, the plan is checked with it."""
    saver = VolumeSaver(url, create=False, announced={f"file://{url}": lambda: None})
    saver.prepare(BoxGrid.covering(DOMAIN, Zyx(24, 32, 32)), DOMAIN)
    with pytest.raises(VolumeNotFoundError, match="an earlier operator should have"):
        saver(chunk(DOMAIN))
    made(url)
    with pytest.raises(AlignmentError, match="cut the write units"):
        saver(chunk(DOMAIN))


def test_a_disk_that_is_too_small(url, caplog):
    """A block that is larger than what is left is refused; a volume that may be is warned of."""
    domain = BoundingBox(Zyx(0, 0, 0), Zyx(10**6, 10**6, 10**6))
    grid = BoxGrid.covering(domain, Zyx(10**5, 10**5, 10**5))
    voxels = Voxels("uint8", 1, "image")
    huge = VolumeSaver(url, format="zarr", block_size=Zyx(10**5, 10**5, 10**5))
    with pytest.raises(VolumeError, match=r"left, but one block takes 1000000000000000 bytes;"):
        huge.prepare(grid, domain, voxels)
    VolumeSaver(url, format="zarr").prepare(grid, domain, voxels)
    assert "may not fit on its disk: the tasks write 1,000.00 PB before compression" in caplog.text


@pytest.mark.parametrize(("line", "asked", "made"), [(3, None, 3), (1, None, None), (None, 4, 4)])
def test_the_time_axis_of_an_output_that_is_created_before(url, line, asked, made):
    """All time points of the input find their place; a single one needs none."""
    saver = VolumeSaver(url, format="zarr", times=asked)
    voxels = Voxels("uint8", 1, "image")
    saver.prepare(BoxGrid.covering(DOMAIN, Zyx(20, 50, 45)), DOMAIN, voxels, line, (40, 4.5, 4))
    assert saver.create_output() == url
    assert open_volume(url).times == made
    assert saver.create_output() is None

"""HDF5 datasets as volumes."""

import pickle
import subprocess
import sys
import threading

import h5py
import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.testing.volume_contract import (
    BLOCK,
    BOUNDS,
    WRITE_UNDER_A_LIMIT,
    LocalContract,
    noise,
)
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.files.hdf5_volume import ENCODINGS
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

HOLD = """
import sys
from chunkflow_py.volume import open_volume
volume = open_volume(sys.argv[1], mode="r+")
print("open", flush=True)
sys.stdin.read()
"""

WRITE_ONCE = """
import sys
import numpy as np
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.volume import open_volume
try:
    volume = open_volume(sys.argv[1], mode="r+")
    volume.write(Chunk(np.full(volume.bounds.size, 7, np.uint8), volume.bounds.start))
    print("written")
except Exception as error:
    print(type(error).__name__, error)
"""

WRITE_FOR_EVER = """
import sys
import numpy as np
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.volume import open_volume
volume = open_volume(sys.argv[1], mode="r+")
for value in range(1, 10**6):
    volume.write(Chunk(np.full(volume.bounds.size, value % 250 + 1, np.uint8), volume.bounds.start))
    print(value, flush=True)
"""


def program(code, *args):
    """Start a program of its own, with pipes."""
    return subprocess.Popen(
        [sys.executable, "-c", code, *args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def spec(**changes):
    """Return the description of a small volume."""
    settings = {
        "bounds": BOUNDS,
        "voxel_size_nm": (40.0, 4.5, 4.0),
        "dtype": np.dtype("uint8"),
        "channels": None,
        "kind": "image",
        "block_size": BLOCK,
    }
    return VolumeSpec(**settings | changes)


class TestContract(LocalContract):
    """What every volume promises, as far as one file that is changed in place can."""

    scheme = "h5"
    test_missing_blocks = test_truncated_block = test_corrupt_block = None  # are below
    test_cache = None  # HDF5 has its own
    test_left_out_blocks_are_reported = None  # nothing is said

    def test_stored_units(self, url):
        """The blocks of a file are not separate objects: listing them is refused."""
        with pytest.raises(VolumeError, match="cannot list the stored blocks of .* one file"):
            self.create(url).stored_units()

    def objects(self, url):
        """Return the file."""
        path = Location.parse(url).folder
        return {path.name: path.read_bytes()} if path.exists() else {}

    def stored_blocks(self, url):
        """Return where the blocks lie in the file."""
        with h5py.File(Location.parse(url).folder) as file:
            dataset = file["main"].id
            return [dataset.get_chunk_info(k).byte_offset for k in range(dataset.get_num_chunks())]

    def test_higher_mip(self, url):
        """A dataset is level 0 alone, which is told before anything is made."""
        with pytest.raises(VolumeError, match="with mip 2: a dataset of an HDF5 file has mip 0"):
            self.create(url, mip=2)

    def test_stored_objects_are_reported(self, url):
        """The one file of all writes is never finished, so nothing is said, but that it is one."""
        volume = self.create(url)
        assert volume.single_writer
        assert volume.write(noise()) == ()

    def test_failing_write(self, url, tmp_path):
        """A write that finds no room leaves the old blocks, an open file, and one sentence."""
        self.create(url).write(noise())
        run = [sys.executable, "-c", WRITE_UNDER_A_LIMIT, url]
        done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith(f"VolumeError cannot write {tmp_path}/em: file too large")
        np.testing.assert_array_equal(open_volume(url).read(BOUNDS), noise())


@pytest.fixture
def url(tmp_path):
    """Return where the volume of this test goes."""
    return f"h5://{tmp_path}/em.h5"


@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding(url, encoding):
    """Each encoding that this build of HDF5 can write brings the voxels back."""
    if encoding not in (*h5py.filters.encode, "raw"):
        with pytest.raises(VolumeError, match="no encoding 'szip'"):
            create_volume(spec(encoding=encoding), url)
        return
    create_volume(spec(encoding=encoding), url).write(noise())
    np.testing.assert_array_equal(open_volume(url).read(BOUNDS), noise())


def test_datasets_of_one_file(url):
    """Several datasets live in one file, each with its own place, voxel size and kind."""
    create_volume(spec(), url).write(noise())
    other = BoundingBox((1, 2, 3), (5, 7, 9))
    labels = spec(bounds=other, voxel_size_nm=(80, 9, 8), kind="segmentation", channels=2)
    create_volume(labels, f"{url}:/volumes/labels").write(noise(other, channels=2))
    first, second = open_volume(url), open_volume(f"{url}:volumes/labels")
    assert (first.bounds, first.voxel_size_nm, first.kind) == (BOUNDS, (40, 4.5, 4), "image")
    assert (second.bounds, second.voxel_size_nm, second.kind) == (other, (80, 9, 8), "segmentation")
    np.testing.assert_array_equal(first.read(BOUNDS), noise())
    np.testing.assert_array_equal(second.read(other), noise(other, channels=2))
    with pytest.raises(VolumeNotFoundError, match=r"no dataset 'raw', only /main .*, /volumes/l"):
        open_volume(f"{url}:raw")


def test_one_of_several_datasets_has_to_be_named(url):
    """A file of several datasets, none of them main, is refused with their names."""
    create_volume(spec(), f"{url}:/a/labels").write(noise())
    np.testing.assert_array_equal(open_volume(url).read(BOUNDS), noise())
    other = BoundingBox((1, 2, 3), (5, 7, 9))
    create_volume(spec(bounds=other), f"{url}:/b/raw").write(noise(other))
    with pytest.raises(
        VolumeError, match=r"contains 2 datasets \(/a/labels .*, /b/raw \(4, 5, 6\)\)"
    ):
        open_volume(url)
    np.testing.assert_array_equal(open_volume(f"{url}:/b/raw").read(other), noise(other))


def test_creating_again(url):
    """The same volume is found as it is; another one in its place is refused with what differs."""
    create_volume(spec(), url).write(noise())
    np.testing.assert_array_equal(create_volume(spec(), url).read(BOUNDS), noise())
    with pytest.raises(VolumeError, match="exists with type uint8, but uint16 is requested"):
        create_volume(spec(dtype=np.dtype("uint16")), url)
    with pytest.raises(VolumeError, match="exists with bounds"):
        create_volume(spec(bounds=BoundingBox((0, 0, 0), (9, 9, 9))), url)


def test_what_hdf5_has_not_is_refused(url, tmp_path):
    """Levels, time points, shards and remote files are told before anything is made."""
    for changes, words in [
        ({"max_mip": 1}, "has mip 0 only"),
        ({"times": 3}, "3 time points"),
        ({"shard_size": BLOCK * 2}, "with shards"),
    ]:
        with pytest.raises(VolumeError, match=words):
            create_volume(spec(**changes), url)
    for act in (open_volume, lambda where: create_volume(spec(), where)):
        with pytest.raises(VolumeError, match="on local disks only; copy the file, or convert it"):
            act("h5://s3://bucket/em.h5")
    assert list(tmp_path.iterdir()) == []


def test_blocks_that_are_stored(url):
    """Stored blocks are told apart from missing ones, whose voxels are zeros or an error."""
    volume = create_volume(spec(channels=2), url)
    assert not volume.has_blocks(BOUNDS)
    box = BoundingBox.from_size(BOUNDS.start, BLOCK * (1, 2, 1))
    volume.write(noise(box, channels=2))
    assert volume.has_blocks(box)
    assert volume.has_blocks(BoundingBox(box.start + 1, box.start + 2))
    assert not volume.has_blocks(BoundingBox(box.start, box.stop + (1, 0, 0)))
    strict = open_volume(url, opening=VolumeOptions(fill_missing=False))
    np.testing.assert_array_equal(strict.read(box), noise(box, channels=2))
    with pytest.raises(VolumeError, match=r"block -3-5_7-23_116-132 of .* is not stored"):
        strict.read(BOUNDS)


@pytest.mark.parametrize("store_zeros", [False, True])
def test_blocks_of_zeros(url, store_zeros):
    """Blocks of zeros are left out unless they are wanted, and overwrite what was there."""
    create_volume(spec(), url)
    volume = open_volume(url, mode="r+", opening=VolumeOptions(store_zeros=store_zeros))
    zeros = Chunk(np.zeros(BOUNDS.size, np.uint8), BOUNDS.start)
    volume.write(zeros)
    assert volume.has_blocks(BOUNDS) == store_zeros
    volume.write(noise())
    volume.write(zeros)
    assert not volume.read(BOUNDS).array.any()


def test_a_second_writer_is_refused(url, tmp_path):
    """While one process may write, another is told so; when it has ended, the next may."""
    create_volume(spec(), url)
    holder = program(HOLD, url)
    assert holder.stdout.readline() == "open\n"
    words = f"cannot write {tmp_path}/em.h5: another process writes to it, and an HDF5 file allows"
    with pytest.raises(VolumeError, match=words):
        open_volume(url, mode="r+")
    with pytest.raises(VolumeError, match=words):
        create_volume(spec(), url).write(noise())
    assert not open_volume(url).read(BOUNDS).array.any()  # readers are welcome
    holder.kill()
    holder.communicate(timeout=30)
    open_volume(url, mode="r+").write(noise())
    assert not (tmp_path / "em.h5.lock").exists()


def test_writers_of_one_process_share_the_right(url, tmp_path):
    """Two volumes over one file in one process write by turns; the lock goes with the last."""
    first = create_volume(spec(), url)
    second = open_volume(url, mode="r+")
    first.write(noise())
    del first
    assert (tmp_path / "em.h5.lock").exists()
    other = program(WRITE_ONCE, url)
    assert "another process writes to it" in other.communicate(timeout=30)[0]
    second.write(noise(seed=1))
    np.testing.assert_array_equal(second.read(BOUNDS), noise(seed=1))
    del second
    assert program(WRITE_ONCE, url).communicate(timeout=30)[0] == "written\n"


def test_threads_read_and_write_at_once(url):
    """Threads of one process may read and write one file; each sees a whole block."""
    volume = create_volume(spec(), url)
    boxes = [
        BoundingBox.from_size((-3, y, x), BLOCK).intersection(BOUNDS)
        for y in (7, 23) for x in (100, 116)
    ]  # fmt: skip
    failures = []

    def work(box, value):
        try:
            for _ in range(10):
                volume.write(Chunk(np.full(box.size, value, np.uint8), box.start))
                assert (open_volume(url).read(box).array == value).all()
        except Exception as error:  # noqa: BLE001
            failures.append(error)

    threads = [threading.Thread(target=work, args=(box, k + 1)) for k, box in enumerate(boxes)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


@pytest.mark.long
def test_readers_beside_a_writer(url):
    """A reader in another process sees what a write left, never a part of it."""
    create_volume(spec(), url).write(noise())
    writer = program(WRITE_FOR_EVER, url)
    try:
        assert writer.stdout.readline() == "1\n"
        values = [set(open_volume(url).read(BOUNDS).array.ravel()) for _ in range(15)]
    finally:
        writer.kill()
        writer.communicate(timeout=30)
    assert all(len(found) == 1 for found in values), values


def test_a_volume_travels(url):
    """A volume that is sent to another process opens the same file there."""
    create_volume(spec(), url).write(noise())
    again = pickle.loads(pickle.dumps(open_volume(url)))
    np.testing.assert_array_equal(again.read(BOUNDS), noise())


def test_a_file_of_other_programs(tmp_path):
    """A dataset that is not stored in blocks is one block; big-endian voxels come back native."""
    array = np.arange(60, dtype=">u2").reshape(3, 4, 5)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = array
        file["raw"].attrs["origin"] = [5, 6, 7]
    volume = open_volume(str(tmp_path / "a.h5"))
    assert volume.bounds == BoundingBox((5, 6, 7), (8, 10, 12))
    assert volume.write_unit == Zyx(3, 4, 5)
    assert volume.dtype == np.uint16
    assert volume.has_blocks(volume.bounds)
    chunk = volume.read(volume.bounds)
    assert chunk.dtype == np.dtype("uint16")
    np.testing.assert_array_equal(chunk, array)


def test_a_file_of_no_bytes(tmp_path):
    """A file of no bytes is neither a volume nor a place for one."""
    (tmp_path / "a.h5").touch()
    with pytest.raises(VolumeNotFoundError, match="empty file; create the volume first"):
        open_volume(f"h5://{tmp_path}/a.h5")
    with pytest.raises(VolumeError, match="empty file; delete the file"):
        create_volume(spec(), f"h5://{tmp_path}/a.h5")

"""Contract of volume drivers.

The tests of a driver for local folders inherit `LocalContract`. The tests of any other driver
inherit `VolumeContract` and define a fixture `url`. Each test class sets the attributes ``scheme``
and ``checked``.
"""

import json
import pickle
import subprocess
import sys

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import (
    AlignmentError,
    ChunkError,
    GeometryError,
    VolumeError,
    VolumeNotFoundError,
)
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import Stored, checksum_of
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

METADATA = ("info", "zarr.json", ".zarray", ".zattrs", ".zgroup", "attributes.json")
BOUNDS = BoundingBox(Zyx(-3, 7, 100), Zyx(17, 40, 133))  # 20 x 33 x 33, ends inside of blocks
BLOCK = Zyx(8, 16, 16)

WRITE_UNDER_A_LIMIT = """
import resource, sys
import numpy as np
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.volume import open_volume
volume = open_volume(sys.argv[1], mode="r+")
noise = np.random.default_rng(1).integers(1, 255, volume.bounds.size, dtype=np.uint8)
resource.setrlimit(resource.RLIMIT_FSIZE, (500, 500))
try:
    volume.write(Chunk(noise, volume.bounds.start))
except Exception as error:
    print(type(error).__name__, error)
"""

CREATE = """
import os, sys, time
import numpy as np
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec
create_volume  # import everything before the start
import chunkflow_py.store.object_store, chunkflow_py.volume.zarr.zarr_volume
import chunkflow_py.volume.precomputed.precomputed_volume
url, box = sys.argv[1], BoundingBox.parse(sys.argv[2])
spec = VolumeSpec(box, (40.0, 4.5, 4.0), np.dtype("uint8"), None, "image", (8, 16, 16))
children, start = [], time.time() + 0.2
for _ in range(3):  # so that there are eight of us, who import once
    child = os.fork()
    children = [*children, child] if child else []
time.sleep(max(0, start - time.time()))
found = [str(create_volume(spec, url).bounds) for _ in range(5)]
assert found == [str(box)] * 5
codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
assert not any(codes)
"""


def noise(bounds=BOUNDS, dtype="uint8", channels=None, seed=0):
    """Return a chunk of random voxels, none of them zero."""
    shape = (() if channels is None else (channels,)) + tuple(bounds.size)
    rng = np.random.default_rng(seed)
    array = rng.integers(1, 100, shape).astype(dtype)
    return Chunk(array, bounds.start, (40, 4.5, 4))


class VolumeContract:
    """Tests of everything that `chunkflow_py.volume.protocol.Volume` promises.

    Attributes:
        scheme: scheme of the format in addresses, such as ``precomputed``.
        shard_size: size of the shards of the volumes that are created, or ``None`` for no shards.
        settings: further arguments of `create_volume`.
        checked: encodings that detect any damage inside a block.
    """

    scheme: str
    shard_size: Zyx | None = None
    settings: dict = {}
    checked: tuple[str, ...]

    @pytest.fixture
    def url(self):
        """Return the address of a volume that does not exist yet, for this test."""
        pytest.fail("a class that inherits VolumeContract must define the fixture url")

    @property
    def unit(self):
        """Write unit: the size of a shard or block."""
        return self.shard_size or BLOCK

    def create(self, url, dtype="uint8", channels=None, kind="image", encoding=None, mip=0):
        """Create a volume with the bounds `BOUNDS`."""
        spec = VolumeSpec(
            BOUNDS, (40.0, 4.5, 4.0), np.dtype(dtype), channels, kind, BLOCK, encoding,
            shard_size=self.shard_size,
        )  # fmt: skip
        return create_volume(spec, url, mip, **self.settings)

    def store(self, url):
        """Open the store that contains the volume."""
        return open_store(Location.parse(url).store_url)

    def objects(self, url):
        """Return the content of all stored objects, by key."""
        store = self.store(url)
        return {key: store.get(key) for key in store.list()}

    def stored_blocks(self, url):
        """Return the keys of all objects except metadata."""
        keys = self.objects(url)
        return sorted(key for key in keys if key.rpartition("/")[2] not in METADATA)

    @pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "float32"])
    def test_round_trip(self, url, dtype):
        """Written voxels can be read, also through a volume that is opened later."""
        chunk = noise(dtype=dtype)
        self.create(url, dtype).write(chunk)
        again = open_volume(url).read(BOUNDS)
        np.testing.assert_array_equal(again.array, chunk.array)
        assert again.dtype == chunk.dtype
        assert again.voxel_offset == BOUNDS.start

    def test_what_the_volume_says(self, url):
        """Bounds, voxel size, dtype, channels, kind and block size are stored."""
        self.create(url, "float32", 3, "affinity")
        volume = open_volume(url)
        assert volume.bounds == BOUNDS
        assert volume.voxel_size_nm == (40.0, 4.5, 4.0)
        assert volume.dtype == np.float32
        assert volume.channels == 3
        assert volume.kind == "affinity"
        assert volume.block_size == BLOCK
        assert volume.write_unit == self.unit
        assert volume.times is None
        assert volume.mips == (0,)

    def test_domain(self, url):
        """A chunk gets its domain, voxel size and kind from the volume that it was read from."""
        volume = self.create(url)
        chunk = volume.read(BoundingBox(Zyx(0, 10, 110), Zyx(4, 12, 120)))
        assert chunk.domain == BOUNDS
        assert chunk.voxel_size_nm == (40.0, 4.5, 4.0)
        assert chunk.kind == "image"

    def test_detected(self, url):
        """The format is detected from the stored objects."""
        self.create(url).write(noise())
        address = Location.parse(url).store_url
        np.testing.assert_array_equal(open_volume(address).read(BOUNDS), noise())

    def test_offsets(self, url):
        """Boxes are in global voxels; they may start below 0 and extend over several blocks."""
        chunk = noise()
        self.create(url).write(chunk)
        box = BoundingBox(Zyx(-1, 20, 111), Zyx(9, 26, 130))
        np.testing.assert_array_equal(open_volume(url).read(box), chunk.cut(box))

    def test_channels(self, url):
        """All channels can be read, or a list of channels in the order of the list."""
        chunk = noise(channels=3)
        self.create(url, channels=3).write(chunk)
        volume = open_volume(url)
        np.testing.assert_array_equal(volume.read(BOUNDS), chunk)
        np.testing.assert_array_equal(volume.read(BOUNDS, [2, 0]), chunk.array[[2, 0]])
        with pytest.raises(ChunkError, match="has channels 0 to 2, but channel 3 was requested"):
            volume.read(BOUNDS, [0, 3])

    def test_one_channel(self, url):
        """A chunk with one channel fits into a volume without a channel axis."""
        volume = self.create(url)
        volume.write(noise(channels=1))
        np.testing.assert_array_equal(volume.read(BOUNDS, [0]), noise(channels=1).array[0])

    def test_block_by_block(self, url):
        """A volume can be written one write unit at a time, even if the bounds cut off units."""
        chunk = noise()
        volume = self.create(url)
        for box in BoxGrid.covering(BOUNDS, self.unit):
            volume.write(chunk.cut(box.intersection(BOUNDS)))
        np.testing.assert_array_equal(open_volume(url).read(BOUNDS), chunk)

    def test_other_blocks_stay(self, url):
        """A write changes only the blocks that it covers."""
        volume = self.create(url)
        volume.write(noise())
        box = BoundingBox.from_size(BOUNDS.start + self.unit, self.unit).intersection(BOUNDS)
        volume.write(noise(box, seed=1))
        wanted = noise().array
        wanted[box.slices(BOUNDS.start)] = noise(box, seed=1).array
        np.testing.assert_array_equal(volume.read(BOUNDS), wanted)

    def test_zeros(self, url):
        """Voxels that were never written, or were overwritten with zeros, are read as zeros."""
        volume = self.create(url)
        assert not volume.read(BOUNDS).array.any()
        volume.write(noise())
        volume.write(Chunk(np.zeros(BOUNDS.size, np.uint8), BOUNDS.start))
        assert not open_volume(url).read(BOUNDS).array.any()

    def test_misaligned(self, url):
        """Writing part of a write unit stores nothing; the error names the nearest valid box."""
        volume = self.create(url)
        box = BoundingBox.from_size(BOUNDS.start, self.unit - (0, 0, 4))
        nearest = BoundingBox.from_size(BOUNDS.start, self.unit)
        with pytest.raises(AlignmentError, match=rf"nearest aligned box is {nearest}"):
            volume.write(noise(box))
        assert self.stored_blocks(url) == []

    def test_outside(self, url):
        """The error for a box that extends beyond the bounds names the part within the bounds."""
        volume = self.create(url)
        box = BoundingBox(Zyx(-11, 7, 100), Zyx(5, 23, 116))
        with pytest.raises(GeometryError, match=r"outside of .*the part inside is -3-5_7-23_100"):
            volume.read(box)
        with pytest.raises(GeometryError, match=r"outside of .*the part inside is -3-5_7-23_100"):
            volume.write(noise(box))

    @pytest.mark.parametrize("wrong", [{"dtype": "uint16"}, {"channels": 2}])
    def test_wrong_chunk(self, url, wrong):
        """The error for a wrong dtype or number of channels names the wrong and the right value."""
        volume = self.create(url)
        with pytest.raises(ChunkError, match=r"uint16, but .* uint8|2 channels, but .* has 1"):
            volume.write(noise(**wrong))

    def test_reading_only(self, url):
        """A volume opened for reading refuses writes."""
        self.create(url)
        with pytest.raises(VolumeError, match="opened for reading"):
            open_volume(url).write(noise())

    def test_missing(self, url):
        """A volume or mip that does not exist is an error with a remedy."""
        with pytest.raises(VolumeNotFoundError, match=rf"{url} .*check the path"):
            open_volume(url)
        self.create(url)
        with pytest.raises(VolumeNotFoundError, match=r"has no mip 7; it has mip 0"):
            open_volume(url, mip=7)

    def test_higher_mip(self, url):
        """A volume created at mip 2 is opened, written and read at mip 2."""
        self.create(url, mip=2).write(noise())
        volume = open_volume(url, mip=2)
        assert volume.bounds == BOUNDS
        assert volume.voxel_size_nm == (40.0, 4.5, 4.0)
        np.testing.assert_array_equal(volume.read(BOUNDS), noise())

    def test_unknown_encoding(self, url):
        """An unknown encoding is an error that lists the known encodings; nothing is created."""
        with pytest.raises(VolumeError, match=r"no encoding 'nonsense'; choose .*raw"):
            self.create(url, encoding="nonsense")
        assert self.objects(url) == {}

    def test_same_bytes(self, url):
        """The bytes of a volume are the same, whether it is written at once or unit by unit."""
        volume, chunk = self.create(url), noise()
        volume.write(chunk)
        before = self.objects(url)
        for box in reversed(list(BoxGrid.covering(BOUNDS, self.unit))):
            volume.write(chunk.cut(box.intersection(BOUNDS)))
        assert self.objects(url) == before

    def test_stored_objects_are_reported(self, url):
        """A write returns the address, length and checksum of every object that it has stored."""
        written = self.create(url).write(noise())
        assert [each.url for each in written] == sorted(each.url for each in written)
        root = self.store(url).url
        assert [each.url for each in written] == [f"{root}/{k}" for k in self.stored_blocks(url)]
        for each in written:
            home, _, name = each.url.rpartition("/")
            data = open_store(home).get(name)
            assert (each.size, each.checksum) == (len(data), checksum_of(data))
        again = open_volume(url, mode="r+").write(noise())
        assert again == written

    def test_left_out_blocks_are_reported(self, url):
        """A write unit of zeros is not stored; its address is reported, without a length."""
        volume, zeros = self.create(url), noise()
        before = volume.write(noise())
        zeros.array[...] = 0
        assert volume.write(zeros) == tuple(Stored(each.url) for each in before)
        assert self.stored_blocks(url) == []

    def test_has_blocks(self, url):
        """`has_blocks` is true if every write unit that the box touches was written."""
        volume = self.create(url)
        first = BoundingBox.from_size(BOUNDS.start, self.unit)
        assert not volume.has_blocks(first)
        volume.write(noise(first))
        assert volume.has_blocks(first)
        assert volume.has_blocks(BoundingBox.from_size(BOUNDS.start, Zyx(1, 1, 1)))
        assert not volume.has_blocks(BoundingBox(first.start, first.stop + (0, 0, 1)))
        with pytest.raises(GeometryError, match="outside of"):
            volume.has_blocks(BOUNDS.grow(Zyx(0, 0, 1)))

    @pytest.mark.parametrize("channels", [None, 3])
    def test_stored_units(self, url, channels):
        """Exactly the stored write units are listed, with their boxes and addresses."""
        volume = self.create(url, channels=channels)
        assert list(volume.stored_units()) == []
        low = BoundingBox.from_size(BOUNDS.start, self.unit)
        high = BoundingBox(BOUNDS.start + self.unit, BOUNDS.stop)
        if high.start.low(BOUNDS.stop) != high.start:  # one unit holds all
            high = low
        low = low.intersection(BOUNDS)
        for box in (low, high):
            volume.write(noise(box.intersection(BOUNDS), channels=channels))
        self.store(url).put("0/stray.txt", b"?")
        found = list(open_volume(url).stored_units())
        root = self.store(url).url
        assert sorted({unit.url for unit in found}) == [
            f"{root}/{key}" for key in self.stored_blocks(url) if "stray" not in key
        ]
        grid = BoxGrid.covering(BOUNDS, self.unit, respect_stop=True)
        wanted = {box for box in grid if low.contains(box) or high.contains(box)}
        assert {unit.box for unit in found} == wanted
        assert {unit.time for unit in found} == {None}
        for unit in found:
            if unit.box == low:
                unit.remove()
        assert not volume.has_blocks(low)
        assert {unit.box for unit in volume.stored_units()} == wanted - {low}

    def test_missing_blocks(self, url):
        """A missing block is read as zeros; with ``fill_missing=False``, it is an error."""
        volume, chunk = self.create(url), noise()
        volume.write(chunk)
        key = self.stored_blocks(url)[0]
        self.store(url).delete(key)
        found = open_volume(url).read(BOUNDS).array
        assert 0 < (found == 0).sum() <= self.unit.z * self.unit.y * self.unit.x
        np.testing.assert_array_equal(found[found != 0], chunk.array[found != 0])
        with pytest.raises(VolumeError, match=r"is not stored .*--fill-missing") as caught:
            open_volume(url, opening=VolumeOptions(fill_missing=False)).read(BOUNDS)
        assert key.removesuffix(".gz") in str(caught.value)

    @pytest.mark.parametrize("left", [0, 1, 0.5, -1])
    def test_truncated_block(self, url, left):
        """A truncated block is an error that names the block, and is never read as zeros."""
        self.create(url).write(noise())
        store, key = self.store(url), self.stored_blocks(url)[0]
        data = store.get(key)
        store.put(key, data[: int(left * len(data)) if isinstance(left, float) else left])
        with pytest.raises(VolumeError, match=r"damaged") as caught:
            open_volume(url).read(BOUNDS)
        assert key.removesuffix(".gz") in str(caught.value)

    @pytest.mark.parametrize("damage", ["flipped bit", "zeros at the end", "garbage"])
    def test_corrupt_block(self, url, damage):
        """A damaged block is an error that names the block, and is never read as other voxels."""
        for encoding in self.checked:
            place = f"{url}-{encoding}"
            self.create(place, encoding=encoding).write(noise())
            store, key = self.store(place), self.stored_blocks(place)[0]
            data = bytearray(store.get(key))
            middle = len(data) // 2
            if damage == "flipped bit":
                data[middle] ^= 16
            elif damage == "zeros at the end":
                data[middle:] = bytes(len(data) - middle)
            else:
                data[middle : middle + 64] = bytes(b ^ 0xFF for b in data[middle : middle + 64])
            store.put(key, bytes(data))
            with pytest.raises(VolumeError, match=r"damaged") as caught:
                open_volume(place).read(BOUNDS)
            assert key.removesuffix(".gz") in str(caught.value)

    def test_cache(self, url):
        """Cached blocks are not fetched again, and later writes are visible."""
        self.create(url).write(noise())
        volume = open_volume(url, mode="r+", opening=VolumeOptions(cache_bytes=1 << 20))
        volume.read(BOUNDS)
        fetched = volume.traffic.stored_bytes
        np.testing.assert_array_equal(volume.read(BOUNDS), noise())
        assert volume.traffic.stored_bytes == fetched > 0
        assert volume.traffic.needed_bytes == 2 * noise().array.nbytes
        volume.write(noise(seed=1))
        np.testing.assert_array_equal(volume.read(BOUNDS), noise(seed=1))

    def test_other_process(self, url):
        """A volume can be pickled and is opened again when it is unpickled."""
        self.create(url).write(noise())
        again = pickle.loads(pickle.dumps(open_volume(url)))
        np.testing.assert_array_equal(again.read(BOUNDS), noise())

    def test_many_threads(self, url):
        """Reads and writes from several threads do not interfere."""
        from concurrent.futures import ThreadPoolExecutor

        volume, chunk = self.create(url), noise()
        boxes = [box.intersection(BOUNDS) for box in BoxGrid.covering(BOUNDS, self.unit)]

        def copy(box):
            volume.write(chunk.cut(box))
            np.testing.assert_array_equal(volume.read(box), chunk.cut(box))

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(copy, boxes))
        np.testing.assert_array_equal(volume.read(BOUNDS), chunk)

    def test_created_again(self, url):
        """Creating an equal volume again changes nothing; a different volume is refused."""
        self.create(url).write(noise())
        before = self.objects(url)
        self.create(url)
        assert self.objects(url) == before
        with pytest.raises(VolumeError, match=r"uint8.*uint16|uint16.*uint8"):
            self.create(url, "uint16")
        assert self.objects(url) == before

    def test_created_by_many(self, url):
        """If several processes create the same volume, all succeed and the metadata is complete."""
        import time

        store = self.store(url)
        creating = subprocess.Popen(
            [sys.executable, "-c", CREATE, url, str(BOUNDS)], stderr=subprocess.PIPE
        )
        while creating.poll() is None:
            for key in METADATA:  # a reader sees no metadata, or complete metadata
                json.loads(store.get(key) or "{}")
            time.sleep(0.002)
        _, errors = creating.communicate()
        assert creating.returncode == 0, errors.decode()
        assert open_volume(url).bounds == BOUNDS
        by_many = self.objects(url)
        for key in by_many:
            store.delete(key)
        spec = VolumeSpec(BOUNDS, (40.0, 4.5, 4.0), np.dtype("uint8"), None, "image", BLOCK)
        create_volume(spec, url)
        assert self.objects(url) == by_many


class LocalContract(VolumeContract):
    """Further tests, for volumes in local folders."""

    @pytest.fixture
    def url(self, tmp_path):
        """Return the address of a volume that does not exist yet, in a temporary folder."""
        return f"{self.scheme}://{tmp_path}/em"

    def test_bare_path(self, url, tmp_path):
        """The format is detected from the files, at an address with or without ``file://``."""
        self.create(url).write(noise())
        for address in (str(tmp_path / "em"), f"file://{tmp_path}/em"):
            np.testing.assert_array_equal(open_volume(address).read(BOUNDS), noise())

    def test_no_folder(self, url, tmp_path):
        """A volume that could not be created leaves no folder behind."""
        with pytest.raises(VolumeError):
            self.create(url, encoding="nonsense")
        assert not (tmp_path / "em").exists()

    def test_failing_write(self, url, tmp_path):
        """A failed write keeps the old blocks, leaves no partial file, and raises a clear error."""
        self.create(url).write(noise())
        before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        run = [sys.executable, "-c", WRITE_UNDER_A_LIMIT, url]
        done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60)
        assert done.stdout.startswith(f"VolumeError cannot write {tmp_path}/em/"), done.stderr
        assert "file too large" in done.stdout
        after = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
        small = {p for p, content in before.items() if len(content) <= 500}
        assert set(after) == set(before)
        assert all(after[p] == before[p] for p in set(before) - small)

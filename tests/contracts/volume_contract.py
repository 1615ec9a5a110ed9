"""What every volume driver must do: inherit `VolumeContract` and say how to create and open one."""

import subprocess
import sys

import numpy as np
import pytest

from chunkflow_py.chunk import Chunk
from chunkflow_py.errors import (
    AlignmentError,
    ChunkError,
    GeometryError,
    VolumeError,
    VolumeNotFoundError,
)
from chunkflow_py.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox(Zyx(-3, 7, 100), Zyx(17, 40, 133))  # 20 x 33 x 33, ends inside of blocks
BLOCK = Zyx(8, 16, 16)

WRITE_UNDER_A_LIMIT = """
import resource, sys
import numpy as np
from chunkflow_py.chunk import Chunk
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
import sys, time
import numpy as np
from chunkflow_py.geometry import BoundingBox
from chunkflow_py.volume import create_volume
from chunkflow_py.volume.protocol import VolumeSpec
create_volume  # import everything before the start
import chunkflow_py.volume.zarr, chunkflow_py.volume.precomputed
url, start, box = sys.argv[1], float(sys.argv[2]), BoundingBox.parse(sys.argv[3])
spec = VolumeSpec(box, (40.0, 4.5, 4.0), np.dtype("uint8"), None, "image", (8, 16, 16))
time.sleep(max(0, start - time.time()))
for _ in range(20):
    print(create_volume(spec, url).bounds)
"""


def noise(bounds=BOUNDS, dtype="uint8", channels=None, seed=0):
    """Return a chunk of random voxels, none of them zero."""
    shape = (() if channels is None else (channels,)) + tuple(bounds.size)
    rng = np.random.default_rng(seed)
    array = rng.integers(1, 100, shape).astype(dtype)
    return Chunk(array, bounds.start, (40, 4.5, 4))


class VolumeContract:
    """Tests of the promises of `chunkflow_py.volume.protocol.Volume`."""

    scheme: str

    @pytest.fixture
    def url(self, tmp_path):
        """Return where the volume of this test goes."""
        return f"{self.scheme}://{tmp_path}/em"

    def create(self, url, dtype="uint8", channels=None, kind="image", encoding=None, mip=0):
        """Create a volume over `BOUNDS`."""
        spec = VolumeSpec(
            BOUNDS, (40.0, 4.5, 4.0), np.dtype(dtype), channels, kind, BLOCK, encoding
        )
        return create_volume(spec, url, mip)

    @pytest.mark.parametrize("dtype", ["uint8", "uint16", "uint32", "uint64", "float32"])
    def test_round_trip(self, url, dtype):
        """What is written is read again, by whoever opens the volume later."""
        chunk = noise(dtype=dtype)
        self.create(url, dtype).write(chunk)
        again = open_volume(url).read(BOUNDS)
        np.testing.assert_array_equal(again.array, chunk.array)
        assert again.dtype == chunk.dtype
        assert again.voxel_offset == BOUNDS.start

    def test_what_the_volume_says(self, url):
        """Bounds, voxel size, dtype, channels, kind and block size survive."""
        self.create(url, "float32", 3, "affinity")
        volume = open_volume(url)
        assert volume.bounds == BOUNDS
        assert volume.voxel_size_nm == (40.0, 4.5, 4.0)
        assert volume.dtype == np.float32
        assert volume.channels == 3
        assert volume.kind == "affinity"
        assert volume.block_size == volume.write_unit == BLOCK
        assert volume.times is None

    def test_domain(self, url):
        """A chunk knows the volume it was cut from, its voxel size and its kind."""
        volume = self.create(url)
        chunk = volume.read(BoundingBox(Zyx(0, 10, 110), Zyx(4, 12, 120)))
        assert chunk.domain == BOUNDS
        assert chunk.voxel_size_nm == (40.0, 4.5, 4.0)
        assert chunk.kind == "image"

    def test_detected(self, url, tmp_path):
        """The format is found out from the files, with or without file://."""
        self.create(url).write(noise())
        for address in (str(tmp_path / "em"), f"file://{tmp_path}/em"):
            np.testing.assert_array_equal(open_volume(address).read(BOUNDS), noise())

    def test_offsets(self, url):
        """A box is counted in global voxels, negative ones included, across blocks."""
        chunk = noise()
        self.create(url).write(chunk)
        box = BoundingBox(Zyx(-1, 20, 111), Zyx(9, 26, 130))
        np.testing.assert_array_equal(open_volume(url).read(box), chunk.cut(box))

    def test_channels(self, url):
        """All channels, or those asked for in that order, with a channel axis."""
        chunk = noise(channels=3)
        self.create(url, channels=3).write(chunk)
        volume = open_volume(url)
        np.testing.assert_array_equal(volume.read(BOUNDS), chunk)
        np.testing.assert_array_equal(volume.read(BOUNDS, [2, 0]), chunk.array[[2, 0]])
        with pytest.raises(ChunkError, match="has channels 0 to 2, but channel 3 was asked for"):
            volume.read(BOUNDS, [0, 3])

    def test_one_channel(self, url):
        """A chunk with one channel fits into a volume without a channel axis."""
        volume = self.create(url)
        volume.write(noise(channels=1))
        np.testing.assert_array_equal(volume.read(BOUNDS, [0]), noise(channels=1).array[0])

    def test_block_by_block(self, url):
        """Blocks written one by one, the last ones cut off by the bounds, make up the whole."""
        chunk = noise()
        volume = self.create(url)
        for z in range(-3, 17, 8):
            for y in range(7, 40, 16):
                for x in range(100, 133, 16):
                    box = BoundingBox.from_size(Zyx(z, y, x), BLOCK).intersection(BOUNDS)
                    volume.write(chunk.cut(box))
        np.testing.assert_array_equal(open_volume(url).read(BOUNDS), chunk)

    def test_other_blocks_stay(self, url):
        """A write changes the blocks it covers and no others."""
        volume = self.create(url)
        volume.write(noise())
        box = BoundingBox.from_size(Zyx(5, 23, 116), BLOCK)
        volume.write(noise(box, seed=1))
        wanted = noise().array
        wanted[box.slices(BOUNDS.start)] = noise(box, seed=1).array
        np.testing.assert_array_equal(volume.read(BOUNDS), wanted)

    def test_zeros(self, url):
        """What was never written, and what was overwritten with zeros, is read as zeros."""
        volume = self.create(url)
        assert not volume.read(BOUNDS).array.any()
        volume.write(noise())
        volume.write(Chunk(np.zeros(BOUNDS.size, np.uint8), BOUNDS.start))
        assert not open_volume(url).read(BOUNDS).array.any()

    def test_misaligned(self, url):
        """A write that cuts a block is refused with the nearest that works; nothing is written."""
        volume = self.create(url)
        box = BoundingBox(Zyx(-3, 7, 100), Zyx(5, 23, 120))
        with pytest.raises(AlignmentError, match=r"nearest aligned is -3-5_7-23_100-132"):
            volume.write(noise(box))
        assert not volume.read(BOUNDS).array.any()

    def test_outside(self, url):
        """Reading or writing outside of the bounds is refused with the part that lies inside."""
        volume = self.create(url)
        box = BoundingBox(Zyx(-11, 7, 100), Zyx(5, 23, 116))
        with pytest.raises(GeometryError, match=r"outside of .*the part inside is -3-5_7-23_100"):
            volume.read(box)
        with pytest.raises(GeometryError, match=r"outside of .*the part inside is -3-5_7-23_100"):
            volume.write(noise(box))

    @pytest.mark.parametrize("wrong", [{"dtype": "uint16"}, {"channels": 2}])
    def test_wrong_chunk(self, url, wrong):
        """A chunk of another dtype, or with other channels, is refused with both values."""
        volume = self.create(url)
        with pytest.raises(ChunkError, match=r"uint16, but .* uint8|2 channels, but .* has 1"):
            volume.write(noise(**wrong))

    def test_reading_only(self, url):
        """A volume that was opened for reading is not written to."""
        self.create(url)
        with pytest.raises(VolumeError, match="opened for reading"):
            open_volume(url).write(noise())

    def test_missing(self, url, tmp_path):
        """A volume or level that does not exist is named, with what to do."""
        with pytest.raises(VolumeNotFoundError, match=rf"{tmp_path}/em .*check the path"):
            open_volume(url)
        self.create(url)
        with pytest.raises(VolumeNotFoundError, match=r"has no mip 7; it has 0"):
            open_volume(url, mip=7)

    def test_higher_mip(self, url):
        """A volume made for level 2 is opened, written and read at level 2."""
        self.create(url, mip=2).write(noise())
        volume = open_volume(url, mip=2)
        assert volume.bounds == BOUNDS
        assert volume.voxel_size_nm == (40.0, 4.5, 4.0)
        np.testing.assert_array_equal(volume.read(BOUNDS), noise())

    def test_unknown_encoding(self, url, tmp_path):
        """An encoding the format does not have is refused with those it has; nothing is made."""
        with pytest.raises(VolumeError, match=r"no encoding 'nonsense'; choose .*raw"):
            self.create(url, encoding="nonsense")
        assert not (tmp_path / "em").exists()

    def test_same_bytes(self, url, tmp_path):
        """Writing the same voxels twice leaves the same files, byte by byte."""

        def files():
            return {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}

        volume = self.create(url)
        volume.write(noise())
        before = files()
        volume.write(noise())
        assert files() == before

    def test_failing_write(self, url, tmp_path):
        """A write that fails leaves the old blocks, no torn file, and one sentence."""
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

    def test_created_by_many(self, url):
        """Processes that create the same volume at once all succeed, and it is whole."""
        import time

        run = [sys.executable, "-c", CREATE, url, str(time.time() + 3), str(BOUNDS)]
        many = [
            subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            for _ in range(8)
        ]
        for process in many:
            out, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
            assert out.split() == [str(BOUNDS)] * 20
        assert open_volume(url).bounds == BOUNDS

"""Tests of chunkflow_py.volume.precomputed."""

import json

import cloudvolume
import numpy as np
import pytest
from contracts.volume_contract import BLOCK, BOUNDS, VolumeContract, noise

from chunkflow_py.chunk import Chunk
from chunkflow_py.errors import VolumeError
from chunkflow_py.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.precomputed_info import create_info
from chunkflow_py.volume.protocol import VolumeSpec


def cloud(path, mip=0):
    """Open the volume with cloud-volume itself."""
    return cloudvolume.CloudVolume(f"file://{path}", mip=mip, progress=False)


def whole(volume):
    """Return all voxels of a CloudVolume as (c, z, y, x)."""
    return np.asarray(volume[volume.bounds]).T


def spec(dtype="uint8", channels=None, kind=None, encoding=None, bounds=BOUNDS):
    """Return the description of a volume."""
    return VolumeSpec(bounds, (40.0, 4.5, 4.0), np.dtype(dtype), channels, kind, BLOCK, encoding)


class TestPrecomputed(VolumeContract):
    scheme = "precomputed"

    @pytest.mark.parametrize(
        ("encoding", "dtype", "channels"),
        [
            ("raw", "uint8", None),
            ("raw", "int16", 2),
            ("raw", "float32", 3),
            ("compressed_segmentation", "uint64", None),
            ("compressed_segmentation", "uint32", None),
            ("npz", "uint16", None),
        ],
    )
    def test_cloud_volume_reads_it(self, url, tmp_path, encoding, dtype, channels):
        """CloudVolume reads what we have written, and we read the same."""
        chunk = noise(dtype=dtype, channels=channels)
        self.create(url, dtype, channels, encoding=encoding).write(chunk)
        theirs = cloud(tmp_path / "em")
        np.testing.assert_array_equal(whole(theirs), chunk.array.reshape(-1, *BOUNDS.size))
        assert tuple(theirs.resolution) == (4, 4.5, 40)
        np.testing.assert_array_equal(open_volume(url).read(BOUNDS), chunk)

    def test_no_time_stamps(self, url, tmp_path):
        """A block is the same bytes whenever it is written: its gzip header holds no time."""
        self.create(url).write(noise())
        blocks = list((tmp_path / "em").rglob("*.gz"))
        assert blocks
        assert all(block.read_bytes()[4:8] == bytes(4) for block in blocks)

    def test_jpeg(self, url, tmp_path):
        """A JPEG volume is close to the image, the same for CloudVolume, and not gzipped."""
        smooth = np.add.outer(np.arange(20), np.add.outer(np.arange(33), np.arange(33)))
        self.create(url, encoding="jpeg").write(Chunk(smooth.astype("u1"), BOUNDS.start))
        ours = open_volume(url).read(BOUNDS).array
        assert np.abs(ours.astype(int) - smooth).max() <= 4
        np.testing.assert_array_equal(whole(cloud(tmp_path / "em"))[0], ours)
        assert not list(tmp_path.rglob("*.gz"))

    def test_same_files_as_cloud_volume(self, url, tmp_path):
        """Names and decompressed contents of the blocks are those that CloudVolume writes."""
        import gzip

        self.create(url).write(noise())
        ours = {p.name: gzip.decompress(p.read_bytes()) for p in tmp_path.rglob("*.gz")}
        theirs = cloud(tmp_path / "em")
        theirs[theirs.bounds] = noise().array.T
        assert {p.name: gzip.decompress(p.read_bytes()) for p in tmp_path.rglob("*.gz")} == ours
        assert len(ours) == 3 * 3 * 3

    def test_info_is_that_of_cloud_volume(self):
        """All levels have the bounds, resolutions and blocks that CloudVolume gives them."""
        ours = create_info(spec("uint64", kind="segmentation"), factor=(1, 2, 2), max_mip=3)
        theirs = cloudvolume.CloudVolume.create_new_info(
            1, "segmentation", "uint64", "raw", (4, 4.5, 40), BOUNDS.start[::-1],
            volume_size=BOUNDS.size[::-1], chunk_size=BLOCK[::-1], max_mip=3, factor=(2, 2, 1),
        )  # fmt: skip
        for key in ("type", "data_type", "num_channels"):
            assert ours[key] == theirs[key]
        assert len(ours["scales"]) == 4
        for mine, other in zip(ours["scales"], theirs["scales"], strict=True):
            for key in ("encoding", "chunk_sizes", "resolution", "voxel_offset", "size"):
                assert mine[key] == other[key], key

    def test_created_at_a_coarse_level(self, url, tmp_path):
        """A volume made for level 1 has a level 0 of twice the size, for CloudVolume too."""
        volume = create_volume(spec(), url, 1, factor=(1, 2, 2))
        volume.write(noise())
        np.testing.assert_array_equal(whole(cloud(tmp_path / "em", mip=1))[0], noise())
        finest = open_volume(url)
        assert finest.voxel_size_nm == (40, 2.25, 2)
        assert finest.bounds == BoundingBox(Zyx(-3, 14, 200), Zyx(17, 80, 266))

    def test_voxels_it_cannot_hold(self, url, tmp_path):
        """Types and encodings that do not go together are refused before anything is made."""
        with pytest.raises(VolumeError, match=r"cannot hold float64 voxels, only uint8.*float32"):
            self.create(url, "float64")
        with pytest.raises(VolumeError, match="jpeg cannot hold uint16 voxels, only uint8"):
            self.create(url, "uint16", encoding="jpeg")
        with pytest.raises(VolumeError, match="jpeg cannot hold 2 channels, only 1 or 3"):
            self.create(url, channels=2, encoding="jpeg")
        assert not (tmp_path / "em").exists()

    def test_missing_blocks(self, url):
        """A block that is not stored is zeros, or an error if it must be there."""
        volume = self.create(url)
        box = BoundingBox.from_size(BOUNDS.start, BLOCK)
        volume.write(noise(box))
        assert open_volume(url).read(BOUNDS).array.astype(bool).sum() == box.voxels
        strict = open_volume(url, fill_missing=False)
        np.testing.assert_array_equal(strict.read(box), noise(box))
        with pytest.raises(VolumeError, match=r"is not stored; --fill-missing"):
            strict.read(BOUNDS)

    @pytest.mark.parametrize(("store_zeros", "files"), [(True, 27), (False, 0)])
    def test_store_zeros(self, url, tmp_path, store_zeros, files):
        """Blocks of zeros are stored only if asked for; if not, older ones go."""
        self.create(url).write(noise())
        zeros = Chunk(np.zeros(BOUNDS.size, "u1"), BOUNDS.start)
        open_volume(url, mode="r+", store_zeros=store_zeros).write(zeros)
        assert len(list(tmp_path.rglob("*.gz"))) == files

    def test_other_extensions_go(self, url, tmp_path):
        """A block that was stored without compression does not hide the new one."""
        volume = self.create(url)
        volume.write(noise())
        for path in tmp_path.rglob("*.gz"):
            path.with_suffix("").write_bytes(bytes(BLOCK.product()))
        volume.write(noise(seed=5))
        np.testing.assert_array_equal(whole(cloud(tmp_path / "em"))[0], noise(seed=5))

    def test_parallel(self, url):
        """Blocks written by several threads are the same."""
        self.create(url)
        open_volume(url, mode="r+", parallel=4).write(noise())
        np.testing.assert_array_equal(open_volume(url).read(BOUNDS), noise())

    def test_other_protocols(self):
        """Volumes that are not local are written through cloud-files."""
        url = "precomputed://mem://chunkflow-test/em"
        chunk = noise(dtype="uint64")
        create_volume(spec("uint64", encoding="compressed_segmentation"), url).write(chunk)
        volume = open_volume("mem://chunkflow-test/em", mode="r+")
        np.testing.assert_array_equal(volume.read(BOUNDS), chunk)
        volume.write(Chunk(np.zeros(BOUNDS.size, "u8"), BOUNDS.start))
        assert not open_volume(url).read(BOUNDS).array.any()

    def test_kind_of_others(self, url, tmp_path):
        """The layer type segmentation is a kind; image may be an image or a map."""
        create_volume(spec("uint64"), url)
        info = json.loads((tmp_path / "em" / "info").read_text())
        assert info["type"] == "segmentation"
        assert open_volume(url).kind == "segmentation"
        create_volume(spec(), url)
        assert open_volume(url).kind is None

    def test_sharded(self, url, tmp_path):
        """A sharded volume is not written to."""
        self.create(url)
        path = tmp_path / "em" / "info"
        info = json.loads(path.read_text())
        info["scales"][0]["sharding"] = {
            "@type": "neuroglancer_uint64_sharded_v1", "hash": "identity", "minishard_bits": 1,
            "minishard_index_encoding": "gzip", "data_encoding": "gzip", "preshift_bits": 1,
            "shard_bits": 1,
        }  # fmt: skip
        path.write_text(json.dumps(info))
        with pytest.raises(VolumeError, match="is sharded at mip 0"):
            open_volume(url, mode="r+").write(noise())

    @pytest.mark.parametrize("content", ["{", "[]", "{}", '{"scales": []}'])
    def test_damaged_info(self, url, tmp_path, content):
        """An info file that is not one is a sentence that names the volume."""
        self.create(url)
        (tmp_path / "em" / "info").write_text(content)
        with pytest.raises(VolumeError, match=rf"the info file of .*{tmp_path}/em is damaged"):
            open_volume(url)

    def test_damaged_block(self, url, tmp_path):
        """A torn block is a sentence that names volume and box."""
        self.create(url).write(noise())
        next(tmp_path.rglob("*.gz")).write_bytes(b"rubbish")
        with pytest.raises(VolumeError, match=r"cannot read .*em"):
            open_volume(url).read(BOUNDS)

    def test_empty_box(self, url):
        """A box without voxels is read without looking at a block."""
        empty = BoundingBox(BOUNDS.start, BOUNDS.start)
        assert self.create(url).read(empty).shape == (0, 0, 0)

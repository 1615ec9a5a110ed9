"""Tests of chunkflow_py.volume.precomputed.precomputed_volume, by the contract of volumes."""

import json
import subprocess
import sys

import numpy as np
import pytest
from contracts.cloud_contract import CloudContract

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.testing.volume_contract import (
    BLOCK,
    BOUNDS,
    LocalContract,
    VolumeContract,
    noise,
)
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

SHARD = Zyx(16, 32, 32)  # 2 x 2 x 2 of 3 x 3 x 3 blocks


def spec(dtype="uint8", channels=None, kind=None, encoding=None, bounds=BOUNDS, **more):
    """Return the description of a volume."""
    size_nm = (40.0, 4.5, 4.0)
    return VolumeSpec(bounds, size_nm, np.dtype(dtype), channels, kind, BLOCK, encoding, **more)


class TestGzip(LocalContract):
    scheme = "precomputed"
    checked = ("raw",)


class TestRaw(LocalContract):
    scheme = "precomputed"
    settings = {"compress": False}
    checked = ("npz",)

    def test_not_gzipped(self, url):
        """Blocks are stored as they are, and overwritten so by those who open the volume later."""
        self.create(url).write(noise())
        before = self.objects(url)
        assert sorted({len(data) for key, data in before.items() if key != "info"})[-1] == 8 * 256
        open_volume(url, mode="r+").write(noise(seed=1))
        assert self.objects(url).keys() == before.keys()


class Sharded:
    scheme = "precomputed"
    shard_size = SHARD
    checked = ("raw",)


class TestSharded(Sharded, LocalContract):
    pass


class TestGzipInBucket(CloudContract):
    scheme = "precomputed"
    checked = ("raw",)

    def test_headers(self, url):
        """Blocks have the type and the encoding that Neuroglancer and CloudVolume look for."""
        import boto3

        self.create(url).write(noise())
        bucket, _, prefix = url.removeprefix("precomputed://s3://").partition("/")
        client = boto3.client("s3")
        blocks = [key for key in self.stored_blocks(url) if key != "info"]
        assert len(blocks) == 27
        head = client.head_object(Bucket=bucket, Key=f"{prefix}/{blocks[0]}")
        assert head["ContentEncoding"] == "gzip"
        assert head["ContentType"] == "application/octet-stream"
        assert head["CacheControl"] == "no-cache"
        assert not blocks[0].endswith(".gz")


@pytest.mark.long
class TestShardedInBucket(Sharded, CloudContract):
    pass


class TestInMemory(VolumeContract):
    scheme = "precomputed"
    checked = ("raw",)

    @pytest.fixture
    def url(self, request):
        """Return a place in the memory of this process."""
        return f"precomputed://mem://{request.node.nodeid}/em"

    test_created_by_many = None  # memory is of one process


@pytest.fixture
def url(tmp_path):
    """Return where the volume of this test goes."""
    return f"precomputed://{tmp_path}/em"


def test_opens_without_cloud_volume(url):
    """A volume of raw blocks is made, written and read without importing cloud-volume."""
    create_volume(spec(), url).write(noise())
    code = (
        "import sys; from chunkflow_py.volume import open_volume; v = open_volume(sys.argv[1]);"
        "v.read(v.bounds); print([m for m in sys.modules if m.startswith('cloud')])"
    )
    run = [sys.executable, "-c", code, url]
    done = subprocess.run(run, check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_no_time_stamps(url, tmp_path):
    """A block is the same bytes whenever it is written: its gzip header holds no time."""
    create_volume(spec(), url).write(noise())
    blocks = list((tmp_path / "em").rglob("*.gz"))
    assert blocks
    assert all(block.read_bytes()[4:8] == bytes(4) for block in blocks)


@pytest.mark.parametrize(("store_zeros", "files"), [(True, 27), (False, 0)])
def test_store_zeros(url, tmp_path, store_zeros, files):
    """Blocks of zeros are stored only if asked for; if not, older ones go, by whatever name."""
    create_volume(spec(), url).write(noise())
    for path in list(tmp_path.rglob("*.gz"))[:5]:
        path.rename(path.with_suffix(".zstd"))
    zeros = Chunk(np.zeros(BOUNDS.size, "u1"), BOUNDS.start)
    open_volume(url, mode="r+", opening=VolumeOptions(store_zeros=store_zeros)).write(zeros)
    assert len(list((tmp_path / "em").rglob("*-*"))) == files


def test_all_levels(url):
    """All levels to the coarsest lie over each other, whatever their offsets; each is written."""
    create_volume(spec(factor=Zyx(1, 2, 2), max_mip=3), url)
    for mip, factor in enumerate([1, 2, 4, 8]):
        volume = open_volume(url, mip, "r+")
        assert volume.mips == (0, 1, 2, 3)
        assert volume.bounds.start == (-3, 7 // factor, 100 // factor)
        assert volume.bounds.stop == (17, -(-40 // factor), -(-133 // factor))
        volume.write(noise(volume.bounds, seed=mip))
    for mip in range(4):
        volume = open_volume(url, mip)
        np.testing.assert_array_equal(volume.read(volume.bounds), noise(volume.bounds, seed=mip))


def test_created_at_a_coarse_level(url):
    """A volume made for level 1 has a level 0 of twice the size."""
    create_volume(spec(factor=Zyx(1, 2, 2)), url, 1).write(noise())
    finest = open_volume(url)
    assert finest.voxel_size_nm == (40, 2.25, 2)
    assert finest.bounds == BoundingBox(Zyx(-3, 14, 200), Zyx(17, 80, 266))


def test_levels_are_added(url):
    """Creating with more levels adds them; with fewer, all stay, and what others have written."""
    create_volume(spec(), url)
    store = open_store(url.removeprefix("precomputed://"))
    info = json.loads(store.get("info"))
    store.put("info", json.dumps({**info, "mesh": "mesh"}).encode())
    create_volume(spec(max_mip=2), url)
    create_volume(spec(max_mip=1), url)
    assert open_volume(url).mips == (0, 1, 2)
    assert json.loads(store.get("info"))["mesh"] == "mesh"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"dtype": "uint16"}, "data_type is uint8, but the new volume has uint16"),
        ({"channels": 2}, "num_channels is 1, but the new volume has 2"),
        ({"kind": "probability"}, "kind is image, but the new volume has probability"),
        ({"encoding": "npz"}, "encoding at mip 0 is raw, but the new volume has npz"),
        ({"bounds": BoundingBox(BOUNDS.start, BOUNDS.stop + 1)}, "size at mip 0 is"),
        ({"factor": Zyx(1, 2, 2), "max_mip": 1}, "key at mip 1 is 8_9_80, but .* has 8_9_40"),
        ({"shard_size": SHARD}, "sharding at mip 0 is None, but the new volume has"),
    ],
)
def test_another_volume(url, change, words):
    """Creating another volume in the same place says what differs; overwriting is asked for."""
    create_volume(spec(kind="image", max_mip=1), url)
    other = spec(**{"kind": "image", "max_mip": 1, **change})
    with pytest.raises(VolumeError, match=f"info file of another volume, where {words}"):
        create_volume(other, url)
    volume = create_volume(other, url, overwrite=True)
    assert volume.dtype == other.dtype
    assert volume.bounds == other.bounds


def test_time_points(url):
    """The format has no time axis: a volume of several time points is refused."""
    with pytest.raises(VolumeError, match="3 time points: precomputed volumes have no time axis"):
        create_volume(spec(times=3), url)


def test_kind_of_others(url, tmp_path):
    """The layer type segmentation is a kind; image may be an image or a map."""
    assert create_volume(spec("uint64"), url).kind == "segmentation"
    info = json.loads((tmp_path / "em" / "info").read_text())
    assert info["type"] == "segmentation"
    assert create_volume(spec(), f"{url}2").kind is None
    assert create_volume(spec("uint64"), f"{url}3", layer_type="image").kind is None


def test_empty_box(url):
    """A box without voxels is read without looking at a block."""
    empty = BoundingBox(BOUNDS.start, BOUNDS.start)
    assert create_volume(spec(), url).read(empty).shape == (0, 0, 0)


@pytest.mark.parametrize("channels", [None, 2])
@pytest.mark.parametrize("shard_size", [None, SHARD])
def test_over_http(url, tmp_path, channels, shard_size):
    """A volume behind a web server is read without credentials."""
    from functools import partial
    from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
    from threading import Thread

    class Handler(SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

        def send_head(self):
            wanted = self.headers.get("Range")
            path = tmp_path / self.path.lstrip("/")
            if wanted is None or not path.is_file():
                return super().send_head()
            import io

            data = path.read_bytes()
            low, _, high = wanted.removeprefix("bytes=").partition("-")
            part = data[int(low) : int(high) + 1]
            self.send_response(206)
            last = int(low) + len(part) - 1
            self.send_header("Content-Range", f"bytes {low}-{last}/{len(data)}")
            self.send_header("Content-Length", str(len(part)))
            self.end_headers()
            return io.BytesIO(part)

    create_volume(spec(channels=channels, shard_size=shard_size), url, compress=False).write(
        noise(channels=channels)
    )
    handler = partial(Handler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        Thread(target=server.serve_forever).start()
        try:
            volume = open_volume(f"precomputed://http://127.0.0.1:{server.server_port}/em")
            np.testing.assert_array_equal(volume.read(BOUNDS), noise(channels=channels))
            box = BoundingBox.from_size(BOUNDS.start, BLOCK)
            np.testing.assert_array_equal(volume.read(box), noise(channels=channels).cut(box))
        finally:
            server.shutdown()

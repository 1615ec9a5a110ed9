"""Tests of chunkflow_py.volume.precomputed.precomputed_layout: blocks in shards."""

import json

import cloudvolume
import numpy as np
import pytest
from cloudvolume.datasource.precomputed.common import compressed_morton_code
from cloudvolume.datasource.precomputed.sharding import ShardingSpecification
from hypothesis import given
from hypothesis import strategies as st

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.testing.volume_contract import BLOCK, BOUNDS, noise
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.precomputed.sharding import (
    Sharding,
    axis_of_bits,
    block_of_number,
    box_of_bits,
    murmurhash3_x86_128,
    number_of_block,
)
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

SHARD = Zyx(16, 32, 32)  # 2 x 2 x 2 of 3 x 3 x 3 blocks

sizes = st.builds(Zyx, *[st.integers(1, 40)] * 3)


@pytest.fixture
def url(tmp_path):
    """Return where the volume of this test goes."""
    return f"precomputed://{tmp_path}/em"


def create(url, *, dtype="uint8", channels=None, encoding=None, shard=SHARD, **settings):
    """Create a sharded volume over `BOUNDS`."""
    spec = VolumeSpec(
        BOUNDS, (40.0, 4.5, 4.0), np.dtype(dtype), channels, None, BLOCK, encoding, shard
    )
    return create_volume(spec, url, **settings)


def shard_as(tmp_path, **sharding):
    """Change the sharding that the info file says."""
    path = tmp_path / "em" / "info"
    info = json.loads(path.read_text())
    info["scales"][0]["sharding"].update(sharding)
    path.write_text(json.dumps(info))


def tensorstore_volume(tmp_path):
    """Open the volume with tensorstore, as (c, z, y, x)."""
    tensorstore = pytest.importorskip("tensorstore")
    store = {"driver": "file", "path": f"{tmp_path}/em/"}
    spec = {"driver": "neuroglancer_precomputed", "kvstore": store}
    return tensorstore.open(spec, open=True).result().T


def cloud(tmp_path):
    """Open the volume with cloud-volume."""
    return cloudvolume.CloudVolume(f"precomputed://file://{tmp_path}/em", progress=False)


CASES = [
    ("raw", "uint8", None, {}),
    ("raw", "uint16", 2, {"compress": False}),
    ("compressed_segmentation", "uint64", None, {}),
    ("png", "uint8", None, {}),
]


@pytest.mark.parametrize(("encoding", "dtype", "channels", "settings"), CASES)
def test_others_read_it(url, tmp_path, encoding, dtype, channels, settings):
    """CloudVolume and TensorStore read the shards that we have written."""
    chunk = noise(dtype=dtype, channels=channels)
    create(url, encoding=encoding, dtype=dtype, channels=channels, **settings).write(chunk)
    assert len(list(tmp_path.rglob("*.shard"))) == 8
    wanted = chunk.array.reshape(-1, *BOUNDS.size)
    np.testing.assert_array_equal(tensorstore_volume(tmp_path).read().result(), wanted)
    theirs = cloud(tmp_path)
    np.testing.assert_array_equal(np.asarray(theirs[theirs.bounds]).T, wanted)


@pytest.mark.parametrize("hash", ["identity", "murmurhash3_x86_128"])
@pytest.mark.parametrize("bits", [(1, 2, 3), (0, 3, 3), (3, 0, 3), (2, 1, 0), (0, 0, 6), (9, 0, 0)])
@pytest.mark.parametrize("index", ["raw", "gzip"])
def test_we_read_tensorstore(url, tmp_path, hash, bits, index):
    """We read shards that TensorStore has written, whatever their bits, hash and encoding."""
    create(url)
    names = ("preshift_bits", "minishard_bits", "shard_bits")
    other = {"minishard_index_encoding": index, "data_encoding": index}
    shard_as(tmp_path, hash=hash, **other, **dict(zip(names, bits)))
    tensorstore_volume(tmp_path).write(noise().array[np.newaxis]).result()
    volume = open_volume(url, opening=VolumeOptions(fill_missing=False))
    np.testing.assert_array_equal(volume.read(BOUNDS), noise())
    for box in list(BoxGrid.covering(BOUNDS, BLOCK, respect_stop=True))[::5]:
        np.testing.assert_array_equal(open_volume(url).read(box), noise().cut(box))
    assert volume.has_blocks(BOUNDS)


def test_we_read_cloud_volume(url, tmp_path):
    """We read shards that CloudVolume has written, and missing ones as zeros or as an error."""
    create(url)
    theirs = cloud(tmp_path)
    box = BoundingBox.from_size(BOUNDS.start, SHARD)
    part = noise().cut(box)
    theirs[tuple(slice(*span) for span in reversed(list(zip(box.start, box.stop))))] = part.array.T
    np.testing.assert_array_equal(open_volume(url).read(box), part)
    assert open_volume(url).has_blocks(box)
    assert not open_volume(url).has_blocks(BOUNDS)
    assert np.count_nonzero(open_volume(url).read(BOUNDS).array) == box.voxels
    with pytest.raises(VolumeError, match=r"is not stored .*\.shard.*--fill-missing"):
        open_volume(url, opening=VolumeOptions(fill_missing=False)).read(BOUNDS)


def test_blocks_of_zeros(url):
    """Blocks that hold zeros alone are left out of a shard, and a shard of them is removed."""
    volume = create(url)
    volume.write(noise())
    chunk = noise()
    box = BoundingBox.from_size(BOUNDS.start, SHARD)
    block = BoundingBox.from_size(BOUNDS.start, BLOCK)
    chunk.cut(block).array[...] = 0
    volume.write(chunk.cut(box))
    np.testing.assert_array_equal(open_volume(url).read(BOUNDS), chunk)
    with pytest.raises(VolumeError, match="is not stored"):
        open_volume(url, opening=VolumeOptions(fill_missing=False)).read(block)
    volume.write(Chunk(np.zeros(box.size, "u1"), box.start))
    assert not open_volume(url).has_blocks(box)
    chunk.cut(box).array[...] = 0
    np.testing.assert_array_equal(open_volume(url).read(BOUNDS), chunk)


@pytest.mark.parametrize(
    "change", [{"hash": "murmurhash3_x86_128"}, {"shard_bits": 2}, {"preshift_bits": 0}]
)
def test_only_read(url, tmp_path, change):
    """Shards of blocks that do not lie together are refused for writing when the volume opens."""
    create(url)
    shard_as(tmp_path, **change)
    assert open_volume(url).write_unit == BLOCK
    with pytest.raises(VolumeError, match="can only be read"):
        open_volume(url, mode="r+")


@pytest.mark.parametrize(
    "damage", [{"hash": "md5"}, {"preshift_bits": -1}, {"data_encoding": "zstd"}, {"@type": "x"}]
)
def test_unknown_sharding(url, tmp_path, damage):
    """A sharding that the format does not know is named."""
    create(url)
    shard_as(tmp_path, **damage)
    with pytest.raises(
        VolumeError, match=r"info file of .* is damaged or incomplete \(.*(supported|raw|64)"
    ):
        open_volume(url)


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("part", [False, True])
@pytest.mark.parametrize("left", [0, 5, 100, 0.5, -1])
def test_truncated(url, tmp_path, left, compress, part):
    """A shard that ends too early is an error that names it, read whole or by ranges."""
    create(url, compress=compress).write(noise())
    path = tmp_path / "em" / "4_4.5_40" / "0.shard"
    data = path.read_bytes()
    path.write_bytes(data[: int(left * len(data)) if isinstance(left, float) else left])
    box = BoundingBox.from_size(BOUNDS.start, BLOCK if part else SHARD)
    with pytest.raises(VolumeError, match=r"4_4.5_40/0\.shard of .* is damaged"):
        open_volume(url).read(box)


def test_requests(url, tmp_path):
    """One block takes three requests, the next of the shard one, a whole shard one alone."""
    create(url, shard=Zyx(32, 64, 64)).write(noise())
    volume = open_volume(url)
    log = []

    class Counting:
        def __init__(self, store):
            self.store = store

        def __getattr__(self, name):
            log.append(name)
            return getattr(self.store, name)

    volume._store = Counting(volume._store)
    volume.read(BoundingBox.from_size(BOUNDS.start, BLOCK))
    assert log.count("get_range") == 3
    volume.read(BoundingBox.from_size(BOUNDS.start + BLOCK, BLOCK))
    assert log.count("get_range") == 4
    assert "get" not in log
    volume.read(BOUNDS)
    assert log.count("get") == 1
    assert log.count("get_range") == 4


def test_written_since(url):
    """A shard that another process has written anew is read anew when it is read whole."""
    writer = create(url)
    writer.write(noise())
    reader = open_volume(url)
    reader.read(BoundingBox.from_size(BOUNDS.start, BLOCK))
    writer.write(noise(seed=1) // 50 + 1)
    np.testing.assert_array_equal(reader.read(BOUNDS), noise(seed=1) // 50 + 1)


def test_levels(url):
    """Coarser levels get the largest shards that fit into the size that is wanted."""
    spec = VolumeSpec(
        BoundingBox(Zyx(0, 0, 0), Zyx(64, 256, 256)), (40.0, 4.0, 4.0), np.dtype("u1"), None,
        "image", BLOCK, None, Zyx(32, 64, 64), factor=Zyx(1, 2, 2), max_mip=3,
    )  # fmt: skip
    create_volume(spec, url)
    for mip in range(4):
        volume = open_volume(url, mip, "r+")
        assert volume.write_unit.low(volume.bounds.size) == Zyx(32, 64, 64).low(volume.bounds.size)
        volume.write(noise(volume.bounds))
        np.testing.assert_array_equal(volume.read(volume.bounds), noise(volume.bounds))


def test_impossible_size(url, tmp_path):
    """A shard that no bits make is refused with the nearest that some make."""
    with pytest.raises(VolumeError, match=r"shards of \(16, 16, 16\) .*nearest .* \(8, 16, 16\)"):
        create(url, shard=Zyx(16, 16, 16))
    with pytest.raises(VolumeError, match=r"nearest possible size, \(16, 32, 32\)"):
        create(url, shard=Zyx(12, 32, 32))
    assert not (tmp_path / "em").exists()
    assert create(url, shard=Zyx(512, 512, 512)).write_unit == Zyx(32, 64, 64)


@given(grid=sizes, data=st.data())
def test_number_of_block(grid, data):
    """Blocks are numbered as CloudVolume numbers them, each with a number of its own."""
    position = Zyx(*(data.draw(st.integers(0, n - 1)) for n in grid))
    theirs = compressed_morton_code(position[::-1], grid[::-1])
    assert number_of_block(position, grid) == int(theirs)


@given(grid=sizes, data=st.data())
def test_shard_is_a_box(grid, data):
    """The blocks of a shard are those of one box, for every number of bits."""
    bits = data.draw(st.integers(0, len(axis_of_bits(grid))))
    preshift = data.draw(st.integers(0, bits))
    sharding = Sharding(preshift, bits - preshift, len(axis_of_bits(grid)) - bits)
    box = sharding.shard_box(grid)
    assert box == box_of_bits(grid, bits)
    a, b = (Zyx(*(data.draw(st.integers(0, n - 1)) for n in grid)) for _ in range(2))
    shards = [sharding.place(number_of_block(block, grid))[0] for block in (a, b)]
    assert (shards[0] == shards[1]) == (a // box == b // box)


@given(grid=sizes, block=st.builds(Zyx, *[st.integers(1, 9)] * 3), data=st.data())
def test_fitting(grid, block, data):
    """Whatever shard some bits make can be asked for, by its size cut off at the volume too."""
    extent = Zyx(*(data.draw(st.integers((n - 1) * b + 1, n * b)) for n, b in zip(grid, block)))
    box = box_of_bits(grid, data.draw(st.integers(0, len(axis_of_bits(grid)))))
    for wanted in (box * block, (box * block).low(extent)):
        sharding = Sharding.fitting(wanted, block, extent)
        found = sharding.shard_box(grid)
        assert found is not None
        assert (found * block).low(extent) == (box * block).low(extent)
        assert Sharding.parse(sharding.to_json()) == sharding


@given(number=st.integers(0, 2**64 - 1), bits=st.tuples(*[st.integers(0, 20)] * 3))
def test_place(number, bits):
    """Shard, minishard and file name of a number are those of CloudVolume, with either hash."""
    for hash in ("identity", "murmurhash3_x86_128"):
        ours = Sharding(*bits, hash)
        theirs = ShardingSpecification.from_dict(ours.to_json())
        shard, minishard = ours.place(number)
        place = theirs.compute_shard_location(number)
        assert minishard == int(place.minishard_number)
        assert ours.file_name(shard) == f"{place.shard_number or '0'}.shard"


def test_murmurhash():
    """The hash of a number is that of the reference implementation."""
    from cloudvolume.datasource.precomputed import mmh3

    for value in (0, 1, 2**32, 2**64 - 1, 123456789123456789):
        theirs = mmh3.hash64(value.to_bytes(8, "little"), x64arch=False)[0] % 2**64
        assert murmurhash3_x86_128(value) == theirs


@given(st.builds(Zyx, *[st.integers(1, 20)] * 3), st.data())
def test_numbers_lead_back_to_blocks(grid, data) -> None:
    """The block of a number is the one that has it; numbers of no block have none."""
    places = {
        number_of_block(Zyx(z, y, x), grid): Zyx(z, y, x)
        for z in range(grid.z)
        for y in range(grid.y)
        for x in range(grid.x)
    }
    number = data.draw(st.integers(0, 2 << len(axis_of_bits(grid))))
    assert block_of_number(number, grid) == places.get(number)

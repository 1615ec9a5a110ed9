"""Tests of volume.zarr.zarr_layout and zarr_codecs against zarr-python and tensorstore."""

import itertools
import json

import numcodecs
import numpy as np
import pytest
import tensorstore
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr import codecs

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.protocol import VolumeOptions

# zarr-python has codecs beyond the specification, and says so each time
pytestmark = [
    pytest.mark.filterwarnings("ignore:Numcodecs codecs are not in the Zarr"),
    pytest.mark.filterwarnings("ignore:.*does not have a Zarr V3 specification"),
]

DTYPES = ["bool", "int8", "uint8", "<u2", ">u2", "<i4", ">u8", "<f2", "<f4", ">f8"]
V2_COMPRESSORS = [
    None,
    numcodecs.Zstd(3),
    numcodecs.GZip(1),
    numcodecs.GZip(6),
    numcodecs.Zlib(1),
    numcodecs.BZ2(1),
    numcodecs.LZMA(preset=1),
    numcodecs.LZ4(),
    numcodecs.Blosc("lz4", 5, numcodecs.Blosc.BITSHUFFLE),
    numcodecs.Blosc("zstd", 5, numcodecs.Blosc.SHUFFLE),
]
V2_FILTERS = [
    None,
    "delta",
    [numcodecs.CRC32()],
    [numcodecs.Fletcher32()],
    [numcodecs.Shuffle(1), numcodecs.Adler32()],
]
V3_COMPRESSORS = [
    None,
    [codecs.ZstdCodec(level=3, checksum=True)],
    [codecs.ZstdCodec()],
    [codecs.GzipCodec(level=1)],
    [codecs.GzipCodec(level=6)],
    [codecs.BloscCodec(typesize=4, cname="zstd", shuffle="bitshuffle")],
    [codecs.Crc32cCodec()],
    [codecs.ZstdCodec(), codecs.Crc32cCodec()],
]


def noise(shape, dtype, seed=0):
    """Return random voxels, some of them zero."""
    return np.random.default_rng(seed).integers(0, 9, shape).astype(dtype)


def box_of(shape):
    """Return the box of a whole array."""
    return BoundingBox.from_size((0, 0, 0), shape)


def check_both_ways(path, array, fill=0):
    """Read what zarr-python wrote, and have it read what we write over it."""
    volume = open_volume(str(path), mode="r+")
    voxels = volume.read(volume.bounds)
    np.testing.assert_array_equal(voxels.array, array)
    assert volume.dtype == array.dtype.newbyteorder("=")
    again = np.where(array == fill, array, np.flip(array)).astype(volume.dtype)
    volume.write(Chunk(again, volume.bounds.start))
    found = zarr.open_array(str(path), mode="r")[:]
    np.testing.assert_array_equal(found, again)
    assert found.dtype.newbyteorder("=") == volume.dtype


extents = st.tuples(*[st.integers(1, 11)] * 3)
blocks = st.tuples(*[st.integers(1, 6)] * 3)


@settings(max_examples=40)
@given(
    shape=extents,
    block=blocks,
    dtype=st.sampled_from(DTYPES),
    compressor=st.sampled_from(V2_COMPRESSORS),
    filters=st.sampled_from(V2_FILTERS),
    order=st.sampled_from("CF"),
    separator=st.sampled_from("./"),
    fill=st.sampled_from([None, 0, 1]),
)
def test_v2(tmp_path_factory, shape, block, dtype, compressor, filters, order, separator, fill):
    """Version 2 with any codecs, orders and fill values is read and written as zarr does."""
    path = tmp_path_factory.mktemp("v2") / "a"
    if filters == "delta":
        filters = [numcodecs.Delta(dtype=dtype)] if np.dtype(dtype).kind in "iu" else None
    array = zarr.create_array(
        str(path),
        shape=shape,
        chunks=block,
        dtype=dtype,
        zarr_format=2,
        compressors=compressor,
        filters=filters,
        order=order,
        fill_value=fill,
        chunk_key_encoding={"name": "v2", "separator": separator},
    )
    array[:] = noise(shape, dtype)
    check_both_ways(path, noise(shape, dtype), fill or 0)


@settings(max_examples=40)
@given(
    shape=extents,
    block=blocks,
    dtype=st.sampled_from(DTYPES),
    compressors=st.sampled_from(V3_COMPRESSORS),
    order=st.sampled_from([None, *itertools.permutations(range(3))]),
    endian=st.sampled_from(["little", "big"]),
    key=st.sampled_from([("default", "/"), ("default", "."), ("v2", "."), ("v2", "/")]),
    fill=st.sampled_from([0, 1]),
    shards=st.one_of(st.none(), st.tuples(*[st.integers(1, 3)] * 3)),
    index=st.sampled_from(["start", "end"]),
)
def test_v3(
    tmp_path_factory, shape, block, dtype, compressors, order, endian, key, fill, shards, index
):
    """Version 3 with any codecs, orders, keys and shards: both libraries read the same."""
    path = tmp_path_factory.mktemp("v3") / "a"
    shard = None if shards is None else tuple(a * b for a, b in zip(shards, block))
    array = zarr.create_array(
        str(path),
        shape=shape,
        chunks=block,
        shards=None if shard is None else {"shape": shard, "index_location": index},
        dtype=dtype,
        compressors=compressors,
        filters=None if order is None else [codecs.TransposeCodec(order=order)],
        serializer=codecs.BytesCodec(endian=None if np.dtype(dtype).itemsize == 1 else endian),
        chunk_key_encoding={"name": key[0], "separator": key[1]},
        fill_value=fill,
    )
    array[:] = noise(shape, dtype)
    check_both_ways(path, noise(shape, dtype), fill)


NUMCODECS = codecs.numcodecs
OF_NUMCODECS = {
    "delta": (lambda: [NUMCODECS.Delta(dtype="<u2")], lambda: [NUMCODECS.LZ4()], "<u2"),
    "astype": (
        lambda: [NUMCODECS.AsType(encode_dtype="<u4", decode_dtype="<u2")],
        lambda: None,
        "<u2",
    ),
    "offset": (
        lambda: [NUMCODECS.FixedScaleOffset(offset=1, scale=2, dtype="<f4", astype="<i2")],
        lambda: [NUMCODECS.Zlib(level=1), NUMCODECS.Fletcher32()],
        "<f4",
    ),
    "shuffle": (
        lambda: None,
        lambda: [NUMCODECS.Shuffle(elementsize=2), NUMCODECS.BZ2(level=1)],
        "<u2",
    ),
}


@pytest.mark.parametrize("name", OF_NUMCODECS)
def test_codecs_of_numcodecs(tmp_path, name):
    """Codecs that version 3 names after numcodecs work, those that change the type too."""
    filters, compressors, dtype = OF_NUMCODECS[name]
    array = zarr.create_array(
        str(tmp_path / "a"),
        shape=(5, 6, 7),
        chunks=(3, 3, 3),
        dtype=dtype,
        filters=filters(),
        compressors=compressors(),
        fill_value=0,
    )
    array[:] = noise((5, 6, 7), dtype)
    check_both_ways(tmp_path / "a", noise((5, 6, 7), dtype))


@settings(max_examples=40)
@given(
    shape=extents,
    block=blocks,
    shards=st.tuples(*[st.integers(1, 4)] * 3),
    index=st.sampled_from(["start", "end"]),
    data=st.data(),
)
def test_tensorstore_shards(tmp_path_factory, shape, block, shards, index, data):
    """Any box of what tensorstore writes is read right, and tensorstore reads what we write."""
    path = tmp_path_factory.mktemp("ts") / "a"
    config = {
        "chunk_shape": block,
        "codecs": [{"name": "bytes"}, {"name": "zstd"}],
        "index_codecs": [{"name": "bytes"}, {"name": "crc32c"}],
        "index_location": index,
    }
    spec = {
        "driver": "zarr3",
        "kvstore": {"driver": "file", "path": f"{path}/"},
        "metadata": {
            "shape": shape,
            "data_type": "uint16",
            "chunk_grid": {
                "name": "regular",
                "configuration": {"chunk_shape": [a * b for a, b in zip(shards, block)]},
            },
            "codecs": [{"name": "sharding_indexed", "configuration": config}],
        },
    }
    theirs = tensorstore.open(spec, create=True).result()
    array = noise(shape, "uint16")
    theirs.write(array).result()
    volume = open_volume(str(path), mode="r+")
    low = [data.draw(st.integers(0, n - 1)) for n in shape]
    high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, shape)]
    box = BoundingBox(Zyx(*low), Zyx(*high))
    np.testing.assert_array_equal(volume.read(box), array[box.slices()])
    again = noise(shape, "uint16", seed=1)
    volume.write(Chunk(again, Zyx(0, 0, 0)))
    theirs = tensorstore.open({"driver": "zarr3", "kvstore": spec["kvstore"]}).result()
    np.testing.assert_array_equal(theirs.read().result(), again)


def sharded(path, **more):
    """Write a sharded array by zarr-python; return it."""
    array = zarr.create_array(
        str(path),
        **{"shape": (8, 8, 8), "chunks": (2, 2, 2), "shards": (8, 8, 8), "dtype": "u1", **more},
    )
    array[:] = noise((8, 8, 8), "u1") + 1
    return array


def path_of(folder):
    """Return the only file with voxels."""
    (path,) = (p for p in folder.rglob("*") if p.is_file() and p.name != "zarr.json")
    return path


class TestShards:
    """What is particular to shards."""

    @pytest.mark.parametrize("index", ["start", "end"])
    def test_bytes(self, tmp_path, index):
        """Blocks lie in C order, empty ones are left out, and the index has its checksum."""
        sharded(
            tmp_path,
            shards={"shape": (8, 8, 8), "index_location": index},
            compressors=None,
            fill_value=7,
        )
        voxels = noise((8, 8, 8), "u1") + 1
        voxels[2:4] = 7
        open_volume(str(tmp_path), mode="r+").write(Chunk(voxels, Zyx(0, 0, 0)))
        stored = path_of(tmp_path).read_bytes()
        assert len(stored) == 48 * 8 + 64 * 16 + 4
        content = stored[64 * 16 + 4 :] if index == "start" else stored[: 48 * 8]
        blocks_ = voxels.reshape(4, 2, 4, 2, 4, 2).transpose(0, 2, 4, 1, 3, 5).reshape(64, -1)
        kept = [*range(16), *range(32, 64)]
        assert content == blocks_[kept].tobytes()
        np.testing.assert_array_equal(zarr.open_array(str(tmp_path))[:], voxels)

    @pytest.mark.parametrize("index", ["start", "end"])
    def test_few_blocks_are_read_by_ranges(self, tmp_path, index):
        """A small box costs the index and its blocks, a large one the shard, each once."""
        sharded(
            tmp_path,
            shards={"shape": (8, 8, 8), "index_location": index},
            compressors=None,
        )
        volume = open_volume(str(tmp_path))
        volume.read(BoundingBox(Zyx(2, 2, 2), Zyx(4, 4, 8)))
        assert volume.traffic.stored_bytes == 3 * 8
        volume.read(volume.bounds)
        assert volume.traffic.stored_bytes == 3 * 8 + 64 * 8

    @pytest.mark.parametrize("whole", [True, False])
    @pytest.mark.parametrize("left", [0, 10, 500, -1])
    def test_truncated(self, tmp_path, left, whole):
        """A shard that was cut off is named, whether it is read whole or by ranges."""
        sharded(tmp_path)
        path = path_of(tmp_path)
        path.write_bytes(path.read_bytes()[:left])
        volume = open_volume(str(tmp_path))
        box = volume.bounds if whole else BoundingBox.from_size((0, 0, 0), (2, 2, 2))
        with pytest.raises(VolumeError, match=r"c/0/0/0 of .* is damaged"):
            volume.read(box)

    @pytest.mark.parametrize("whole", [True, False])
    def test_corrupt_index(self, tmp_path, whole):
        """An index whose checksum is wrong is an error, also if it says that nothing is there."""
        sharded(tmp_path)
        path = path_of(tmp_path)
        content = bytearray(path.read_bytes())
        content[-64 * 16 - 4 : -4] = b"\xff" * (64 * 16)
        path.write_bytes(bytes(content))
        volume = open_volume(str(tmp_path))
        box = volume.bounds if whole else BoundingBox.from_size((0, 0, 0), (2, 2, 2))
        with pytest.raises(VolumeError, match=r"c/0/0/0 of .* is damaged: the checksum"):
            volume.read(box)

    def test_missing_blocks(self, tmp_path):
        """Blocks that a shard lacks are the fill value, or named, as the reader wants it."""
        sharded(tmp_path, fill_value=9)
        voxels = noise((8, 8, 8), "u1")
        voxels[:2] = 9
        open_volume(str(tmp_path), mode="r+").write(Chunk(voxels, Zyx(0, 0, 0)))
        np.testing.assert_array_equal(open_volume(str(tmp_path)).read(box_of((8, 8, 8))), voxels)
        strict = open_volume(str(tmp_path), opening=VolumeOptions(fill_missing=False))
        with pytest.raises(VolumeError, match=r"is not stored \(c/0/0/0\)"):
            strict.read(box_of((8, 8, 8)))

    def test_without_checksum(self, tmp_path):
        """An index without a checksum is understood."""
        spec = {
            "driver": "zarr3",
            "kvstore": f"file://{tmp_path}/a/",
            "metadata": {
                "shape": [4, 4, 4],
                "data_type": "uint8",
                "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [4, 4, 4]}},
                "codecs": [
                    {
                        "name": "sharding_indexed",
                        "configuration": {
                            "chunk_shape": [2, 2, 2],
                            "codecs": [{"name": "bytes"}],
                            "index_codecs": [{"name": "bytes", "configuration": {"endian": "big"}}],
                        },
                    }
                ],
            },
        }
        array = noise((4, 4, 4), "uint8")
        tensorstore.open(spec, create=True).result().write(array).result()
        np.testing.assert_array_equal(open_volume(f"{tmp_path}/a").read(box_of((4, 4, 4))), array)

    def test_nested(self, tmp_path):
        """Shards inside of shards are refused, not misread."""
        sharded(tmp_path)
        change(tmp_path / "zarr.json", nest)
        with pytest.raises(VolumeError, match="nested shards"):
            open_volume(str(tmp_path))

    @pytest.mark.aws
    def test_in_a_bucket(self, s3):
        """Blocks far apart in a shard in a bucket are fetched by ranges."""
        from chunkflow_py.volume import create_volume
        from chunkflow_py.volume.protocol import VolumeSpec

        block = Zyx(64, 64, 128)
        box = box_of((64, 64, 1024))
        spec = VolumeSpec(
            box, (1, 1, 1), np.dtype("u1"), None, None, block, "raw", shard_size=Zyx(64, 64, 1024)
        )
        voxels = np.random.default_rng(0).integers(1, 99, box.size).astype("u1")
        create_volume(spec, f"zarr://{s3.url}/em").write(Chunk(voxels, box.start))
        store = open_store(f"{s3.url}/em")
        layout = open_volume(f"{s3.url}/em")._layout
        wanted = [(0, 0, 1), (0, 0, 6)]
        found = layout.fetch(store, (0, 0, 0), wanted)
        for index in wanted:
            part = voxels[..., index[2] * 128 : (index[2] + 1) * 128]
            np.testing.assert_array_equal(layout.decode(found[index], index), part)


def nest(document):
    """Put shards into shards."""
    (outer,) = document["codecs"]
    inner = json.loads(json.dumps(outer))
    inner["configuration"]["chunk_shape"] = [1, 1, 1]
    outer["configuration"]["codecs"] = [inner]


def change(path, how):
    """Change a JSON file."""
    document = json.loads(path.read_text())
    how(document)
    path.write_text(json.dumps(document))


class TestBadMetadata:
    """What cannot be read is one sentence that names it."""

    @pytest.mark.parametrize("version", [2, 3])
    def test_unknown_codec(self, tmp_path, version):
        """A codec that nobody here knows is named."""
        zarr.create_array(str(tmp_path), shape=(3, 4, 5), dtype="u1", zarr_format=version)
        if version == 2:
            change(tmp_path / ".zarray", lambda d: d.update(compressor={"id": "snappier"}))
        else:
            change(tmp_path / "zarr.json", lambda d: d["codecs"].append({"name": "snappier"}))
        with pytest.raises(VolumeError, match=r"snappier") as caught:
            open_volume(str(tmp_path))
        assert str(tmp_path) in str(caught.value)

    @pytest.mark.parametrize("codec", ["pickle", "msgpack2", "json2", "vlen-bytes"])
    def test_code_in_blocks(self, tmp_path, codec):
        """A codec that would run what a block holds is refused, though numcodecs has it."""
        zarr.create_array(str(tmp_path), shape=(3, 4, 5), dtype="u1", zarr_format=2)
        change(tmp_path / ".zarray", lambda d: d.update(filters=[{"id": codec}]))
        with pytest.raises(VolumeError, match=codec):
            open_volume(str(tmp_path))

    @pytest.mark.parametrize("dtype", ["<c8", "<U4", "<M8[ns]"])
    def test_no_numbers(self, tmp_path, dtype):
        """Voxels that are no numbers are refused."""
        zarr.create_array(str(tmp_path), shape=(3, 4, 5), dtype=dtype, zarr_format=2)
        with pytest.raises(VolumeError, match="but the voxels of a volume must be numbers"):
            open_volume(str(tmp_path))

    def test_other_blocks(self, tmp_path):
        """A block of another array, with too few or too many voxels, is an error."""
        array = zarr.create_array(
            str(tmp_path), shape=(4, 4, 4), chunks=(4, 4, 4), dtype="u1", compressors=None
        )
        array[:] = 1
        for size in (63, 65, 128):
            path_of(tmp_path).write_bytes(b"1" * size)
            with pytest.raises(VolumeError, match=rf"{size} voxels, but a block has \(4, 4, 4\)"):
                open_volume(str(tmp_path)).read(box_of((4, 4, 4)))

    @pytest.mark.parametrize(
        "compressor", [c for c in V2_COMPRESSORS if c], ids=lambda c: f"{c.codec_id}"
    )
    @pytest.mark.parametrize("left", [0, 1, 0.5, -1])
    def test_truncated(self, tmp_path, compressor, left):
        """A block that was cut off is an error, whatever its codec."""
        array = zarr.create_array(
            str(tmp_path),
            shape=(4, 8, 8),
            chunks=(4, 8, 8),
            dtype="u2",
            zarr_format=2,
            compressors=compressor,
        )
        array[:] = np.random.default_rng(0).integers(0, 9999, (4, 8, 8))
        path = tmp_path / "0.0.0"
        content = path.read_bytes()
        path.write_bytes(content[: int(left * len(content)) if left == 0.5 else left])
        with pytest.raises(VolumeError, match=r"block 0\.0\.0 of .* is damaged"):
            open_volume(str(tmp_path)).read(box_of((4, 8, 8)))

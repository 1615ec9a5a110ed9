"""Tests of chunkflow_py.volume.n5.n5_volume."""

import bz2
import json
import lzma
import struct
import zlib

import numpy as np
import pytest
import tensorstore
from hypothesis import given, settings
from hypothesis import strategies as st
from numcodecs import lz4

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import GeometryError, VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

SHAPE = (20, 33, 17)  # zyx
BLOCK = (8, 16, 5)
COMPRESSIONS = [
    {"type": "raw"},
    {"type": "gzip", "level": 3},
    {"type": "gzip", "level": 3, "useZlib": True},
    {"type": "bzip2", "blockSize": 3},
    {"type": "xz", "preset": 1},
    {"type": "zstd", "level": 3},
    {"type": "blosc", "cname": "lz4", "clevel": 5, "shuffle": 1, "blocksize": 0},
]


def noise(shape=SHAPE, dtype="uint16"):
    """Return random voxels, C order."""
    return np.random.default_rng(0).integers(1, 100, shape).astype(dtype)


def write(path, array, block=BLOCK, compression=None, **attributes):
    """Write *array* (C order) as an N5 dataset by tensorstore."""
    spec = {
        "driver": "n5",
        "kvstore": {"driver": "file", "path": str(path)},
        "metadata": {
            "dimensions": array.shape[::-1],
            "blockSize": block[::-1],
            "dataType": array.dtype.name,
            "compression": compression or {"type": "raw"},
        },
    }
    tensorstore.open(spec, create=True).result().write(array.T).result()
    change(path, **attributes)
    return array


def change(path, **attributes):
    """Add attributes to a group or dataset."""
    path.mkdir(exist_ok=True, parents=True)
    file = path / "attributes.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(found | attributes))


@pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda c: "-".join(map(str, c.values())))
@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint64", "float32"])
def test_what_tensorstore_writes(tmp_path, compression, dtype):
    """Voxels of every compression and type come back in zyx order, cut blocks at the end too."""
    array = write(tmp_path / "em", noise(dtype=dtype), compression=compression)
    volume = open_volume(f"n5://{tmp_path}/em")
    assert (volume.bounds, volume.dtype) == (BoundingBox.from_size((0, 0, 0), SHAPE), array.dtype)
    assert (volume.block_size, volume.mips, volume.channels) == (Zyx(*BLOCK), (0,), None)
    found = volume.read(volume.bounds)
    assert found.dtype == array.dtype
    np.testing.assert_array_equal(found, array)
    box = BoundingBox(Zyx(7, 15, 4), Zyx(20, 33, 6))
    np.testing.assert_array_equal(volume.read(box), array[box.slices()])


@settings(max_examples=25)
@given(
    shape=st.tuples(*[st.integers(1, 12)] * 4),
    block=st.tuples(*[st.integers(1, 7)] * 4),
    data=st.data(),
)
def test_any_extent(tmp_path_factory, shape, block, data):
    """Whatever the extents of array and blocks, any box of it is read right."""
    path = tmp_path_factory.mktemp("n5") / "em"
    array = write(path, noise(shape, "uint8"), block)
    volume = open_volume(f"n5://{path}")
    assert volume.channels == shape[0]
    low = [data.draw(st.integers(0, n - 1)) for n in shape[1:]]
    high = [data.draw(st.integers(a + 1, n)) for a, n in zip(low, shape[1:])]
    box = BoundingBox(Zyx(*low), Zyx(*high))
    np.testing.assert_array_equal(volume.read(box), array[(slice(None), *box.slices())])


def put_block(path, voxels, compress, mode=0):
    """Write one block as N5's own library lays it out."""
    store = open_store(str(path))
    counts = struct.pack(f">{voxels.ndim}I", *voxels.shape[::-1])
    more = struct.pack(">I", voxels.size) if mode else b""
    header = struct.pack(">HH", mode, voxels.ndim) + counts + more
    store.put("/".join("0" * voxels.ndim), header + compress(voxels.astype(">u2").tobytes()))


def lz4_stream(data, size=100):
    """Compress as lz4-java's LZ4BlockOutputStream does."""
    parts = []
    for at in range(0, len(data), size):
        part = data[at : at + size]
        packed = lz4.compress(part)[4:]
        method, packed = (0x20, packed) if len(packed) < len(part) else (0x10, part)
        parts.append(struct.pack("<8sBiiI", b"LZ4Block", method, len(packed), len(part), 7))
        parts.append(packed)
    return b"".join([*parts, struct.pack("<8sBiiI", b"LZ4Block", 0x10, 0, 0, 0)])


@pytest.mark.parametrize("mode", [0, 1])
@pytest.mark.parametrize(
    ("kind", "compress"),
    [
        ("raw", bytes),
        ("gzip", lambda data: zlib.compress(data, 1, 31)),
        ("bzip2", bz2.compress),
        ("xz", lzma.compress),
        ("lz4", lz4_stream),
    ],
)
def test_what_others_write(tmp_path, kind, compress, mode):
    """Blocks as the specification lays them out are understood, in both modes, lz4 too."""
    array = noise((4, 5, 6), "uint16")
    array[0] = 3  # something to compress
    for name in ("compression", "compressionType"):
        path = tmp_path / name
        change(
            path,
            dimensions=[6, 5, 4],
            blockSize=[6, 5, 4],
            dataType="uint16",
            **{name: {"type": kind} if name == "compression" else kind},
        )
        put_block(path, array, compress, mode)
        np.testing.assert_array_equal(
            open_volume(str(path)).read(BoundingBox(Zyx(0, 0, 0), Zyx(4, 5, 6))), array
        )


class TestPlace:
    """Where voxels lie, as the programs of the field write it."""

    def test_nothing_said(self, tmp_path):
        """Without metadata voxels are of one nanometre, and begin at zero."""
        write(tmp_path / "em", noise())
        volume = open_volume(f"n5://{tmp_path}/em")
        assert (volume.voxel_size_nm, volume.bounds.start, volume.kind) == (
            (1, 1, 1),
            (0, 0, 0),
            None,
        )

    def test_funlib(self, tmp_path):
        """Resolution and offset in nanometres, in the order of N5."""
        write(tmp_path / "em", noise(), resolution=[4, 5, 40], offset=[8, -5, 80])
        volume = open_volume(f"n5://{tmp_path}/em")
        assert (volume.voxel_size_nm, volume.bounds.start) == ((40, 5, 4), (2, -1, 2))

    def test_n5_viewer(self, tmp_path):
        """Every level has the pixel size of the finest one, and its own factors."""
        pixels = {"unit": "um", "dimensions": [0.004, 0.005, 0.04]}
        fine = write(
            tmp_path / "em/s0", noise(), pixelResolution=pixels, downsamplingFactors=[1, 1, 1]
        )
        write(
            tmp_path / "em/s1",
            fine[:, ::2, ::2].copy(),
            pixelResolution=pixels,
            downsamplingFactors=[2, 2, 1],
        )
        change(tmp_path / "em", n5="2.5.1")
        volume = open_volume(str(tmp_path / "em"), mip=1)
        assert volume.mips == (0, 1)
        assert volume.voxel_size_nm == (40, 10, 8)
        np.testing.assert_array_equal(volume.read(volume.bounds), fine[:, ::2, ::2])
        assert open_volume(str(tmp_path / "em")).voxel_size_nm == (40, 5, 4)
        with pytest.raises(VolumeNotFoundError, match=r"has no mip 2; it has mip 0, 1"):
            open_volume(str(tmp_path / "em"), mip=2)

    def test_paintera(self, tmp_path):
        """The group has resolution and offset, the levels their factors, and labels are such."""
        write(tmp_path / "seg/s0", noise())
        write(tmp_path / "seg/s1", noise(), downsamplingFactors=[2, 2, 1])
        change(
            tmp_path / "seg",
            resolution=[4.0, 5.0, 40.0],
            offset=[80.0, 0.0, 400.0],
            painteraData={"type": "label"},
            maxId=99,
        )
        volume = open_volume(str(tmp_path / "seg"), mip=1)
        assert (volume.voxel_size_nm, volume.bounds.start) == ((40, 10, 8), (10, 0, 10))
        assert volume.kind == "segmentation"
        change(tmp_path / "seg/s0", isLabelMultiset=True)
        with pytest.raises(VolumeError, match="label multisets"):
            open_volume(str(tmp_path / "seg"))

    def test_neuroglancer(self, tmp_path):
        """The group has axes, units, and the factors of all levels."""
        write(tmp_path / "em/s0", noise())
        write(tmp_path / "em/s1", noise())
        change(
            tmp_path / "em",
            axes=["x", "y", "z"],
            units=["um", "um", "mm"],
            resolution=[1, 2, 3],
            scales=[[1, 1, 1], [2, 4, 1]],
        )
        assert open_volume(str(tmp_path / "em"), 1).voxel_size_nm == (3e6, 8e3, 2e3)

    def test_cosem(self, tmp_path):
        """A transform gives scale and translation in C order, or in the order that it names."""
        transform = {
            "axes": ["z", "y", "x"],
            "scale": [40.0, 5.0, 4.0],
            "translate": [20.0, 2.5, 402.0],
            "units": ["nm", "nm", "nm"],
        }
        write(tmp_path / "em", noise(), transform=transform)
        volume = open_volume(str(tmp_path / "em"))
        assert (volume.voxel_size_nm, volume.bounds.start) == ((40, 5, 4), (1, 1, 101))
        turned = {name: values[::-1] for name, values in transform.items()}
        change(tmp_path / "em", transform=turned | {"ordering": "F"})
        assert open_volume(str(tmp_path / "em")).bounds == volume.bounds
        np.testing.assert_array_equal(volume.read(volume.bounds), noise())

    def test_axes_by_name(self, tmp_path):
        """Axes in another order, and a time axis, are found by their names."""
        array = write(tmp_path / "em", noise((2, 3, 4, 5, 6)), (1, 2, 3, 4, 5))
        change(tmp_path / "em", axes=["z", "y", "x", "t", "c"], resolution=[40, 5, 4, 1, 1])
        volume = open_volume(str(tmp_path / "em"))
        assert (volume.channels, volume.times, volume.bounds.size) == (2, 3, (6, 5, 4))
        assert volume.voxel_size_nm == (40, 5, 4)
        np.testing.assert_array_equal(
            volume.read(volume.bounds, time=2), array[:, 2].transpose(0, 3, 2, 1)
        )


class TestBad:
    """What is wrong is one sentence that names it."""

    def test_missing_blocks(self, tmp_path):
        """A block that is not stored is zeros, or named, as the reader wants it."""
        array = write(tmp_path / "em", noise())
        (tmp_path / "em/0/0/0").unlink()
        array[:8, :16, :5] = 0
        volume = open_volume(str(tmp_path / "em"))
        np.testing.assert_array_equal(volume.read(volume.bounds), array)
        assert not volume.has_blocks(BoundingBox.from_size((0, 0, 0), BLOCK))
        with pytest.raises(VolumeError, match=r"is not stored \(0/0/0\)"):
            open_volume(str(tmp_path / "em"), opening=VolumeOptions(fill_missing=False)).read(
                volume.bounds
            )

    @pytest.mark.parametrize("compression", COMPRESSIONS, ids=lambda c: c["type"])
    @pytest.mark.parametrize("left", [0, 3, 20, -1])
    def test_truncated(self, tmp_path, compression, left):
        """A block that was cut off is named by its key, never zeros."""
        write(tmp_path / "em", noise(), compression=compression)
        path = tmp_path / "em/2/1/0"
        path.write_bytes(path.read_bytes()[:left])
        volume = open_volume(str(tmp_path / "em"))
        with pytest.raises(VolumeError, match=r"block 2/1/0 of .* is damaged"):
            volume.read(volume.bounds)

    def test_truncated_lz4(self, tmp_path):
        """A stream of lz4 that lacks its end is damaged, wherever it was cut."""
        change(tmp_path, dimensions=[9, 8, 7], blockSize=[9, 8, 7], dataType="uint16")
        change(tmp_path, compression={"type": "lz4"})
        put_block(tmp_path, np.ones((7, 8, 9), "uint16"), lz4_stream)
        path = tmp_path / "0/0/0"
        whole = path.read_bytes()
        volume = open_volume(str(tmp_path))
        for left in range(0, len(whole), 7):
            path.write_bytes(whole[:left])
            with pytest.raises(VolumeError, match=r"block 0/0/0 of .* is damaged"):
                volume.read(volume.bounds)

    @pytest.mark.parametrize(
        ("attributes", "text"),
        [
            ({"compression": {"type": "jpeg"}}, "compressed with 'jpeg', but only blosc"),
            ({"dataType": "object"}, "contains object values, but the voxels of a volume"),
            ({"dataType": "nonsense"}, "contains nonsense values, but"),
            ({"dimensions": ["a", 2, 3]}, "cannot open .*damaged"),
            ({"blockSize": [0, 2, 3]}, r"has the blockSize \(0, 2, 3\)"),
            ({"blockSize": [2, 3]}, r"has the blockSize \(2, 3\), .* dimensions \(17, 33, 20\)"),
            ({"axes": ["x", "z", "q"]}, "two dimensions must have the names x and y"),
            ({"resolution": [0, 1, 1]}, "not positive|division by zero"),
            ({"pixelResolution": {"unit": "parsec", "dimensions": [1, 1, 1]}}, "'parsec'"),
            ({"resolution": [1, 1]}, "cannot open .*damaged"),
        ],
    )
    def test_metadata(self, tmp_path, attributes, text):
        """Metadata that make no sense are one sentence that names the volume."""
        write(tmp_path / "em", noise())
        change(tmp_path / "em", **attributes)
        with pytest.raises(VolumeError, match=text) as caught:
            open_volume(str(tmp_path / "em"))
        assert str(tmp_path / "em") in str(caught.value)

    def test_torn_metadata(self, tmp_path):
        """A torn attributes.json, and one that is no object, are told."""
        for text in ('{"dimen', "[1, 2]"):
            (tmp_path / "attributes.json").write_text(text)
            with pytest.raises(VolumeError, match=r"cannot open .*damaged"):
                open_volume(str(tmp_path))

    def test_no_dataset(self, tmp_path):
        """A group without levels says what was looked for."""
        change(tmp_path, n5="2.0.0")
        with pytest.raises(VolumeNotFoundError, match=r"neither dimensions .* nor a level s0"):
            open_volume(str(tmp_path))

    def test_reading_only(self, tmp_path):
        """N5 is neither made nor written, and boxes are checked."""
        write(tmp_path / "em", noise())
        with pytest.raises(VolumeError, match="read only"):
            open_volume(str(tmp_path / "em"), mode="r+")
        box = BoundingBox.from_size((0, 0, 0), SHAPE)
        spec = VolumeSpec(box, (1, 1, 1), np.dtype("u1"), None, None, Zyx(*BLOCK))
        with pytest.raises(VolumeError, match="can only be read"):
            create_volume(spec, f"n5://{tmp_path}/new")
        with pytest.raises(GeometryError, match="outside of"):
            open_volume(str(tmp_path / "em")).read(box.grow((1, 0, 0)))


@pytest.mark.aws
def test_in_a_bucket(tmp_path, s3):
    """A group of levels in a bucket is found and read."""
    array = write(tmp_path / "em/s0", noise(), compression={"type": "gzip"})
    store = open_store(f"{s3.url}/em")
    store.put("attributes.json", b'{"resolution": [4, 5, 40]}')
    for path in (tmp_path / "em").rglob("*"):
        if path.is_file():
            store.put(path.relative_to(tmp_path / "em").as_posix(), path.read_bytes())
    volume = open_volume(f"{s3.url}/em")
    assert (volume.mips, volume.voxel_size_nm) == ((0,), (40, 5, 4))
    np.testing.assert_array_equal(volume.read(volume.bounds), array)


def test_stored_units(tmp_path) -> None:
    """Blocks that are stored are listed with their boxes, also those cut off at the end."""
    write(tmp_path / "em" / "s0", noise())
    volume = open_volume(f"n5://{tmp_path}/em")
    grid = BoxGrid.covering(volume.bounds, Zyx(*BLOCK), respect_stop=True)
    units = list(volume.stored_units())
    assert sorted(unit.box for unit in units) == sorted(grid)
    (tmp_path / "em" / "s0" / "3" / "2" / "1").unlink()
    left = {unit.box for unit in volume.stored_units()}
    (gone,) = {unit.box for unit in units} - left
    assert gone.start == Zyx(8, 32, 15)

"""HDF5 files: what is written, what is understood, what is refused."""

import errno
import os

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.chunk import KINDS, Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume.files.hdf5 import open_hdf5, write_hdf5

DTYPES = [
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int16",
    "int64",
    "float16",
    "float32",
    ">f4",
    "bool",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for all examples of a property."""
    return tmp_path_factory.mktemp("hdf5")


@settings(max_examples=40, deadline=None)
@given(
    dtype=st.sampled_from(DTYPES),
    shape=st.one_of(
        st.tuples(*[st.integers(1, 9)] * 3), st.tuples(st.integers(1, 3), *[st.integers(1, 9)] * 3)
    ),
    offset=st.tuples(*[st.integers(-(10**9), 10**9)] * 3),
    voxel_size_nm=st.tuples(*[st.floats(0.01, 1e4)] * 3),
    kind=st.sampled_from([None, *KINDS]),
    block_size=st.one_of(st.none(), st.tuples(*[st.integers(1, 12)] * 3)),
    compression=st.sampled_from(["gzip", "lzf"]),
    seed=st.integers(0, 2**32 - 1),
)
def test_what_is_written_is_read_back(
    folder, dtype, shape, offset, voxel_size_nm, kind, block_size, compression, seed
):
    """Voxels, dtype, offset, voxel size and kind come back as they were."""
    array = np.random.default_rng(seed).integers(0, 2, shape).astype(dtype)
    chunk = Chunk(array, offset, voxel_size_nm, kind)
    path = folder / "chunk.h5"
    write_hdf5(path, chunk, block_size=block_size and Zyx(*block_size), compression=compression)
    back = open_hdf5(path).read()
    np.testing.assert_array_equal(back.array, array)
    assert back.dtype == np.dtype(dtype).newbyteorder("=")
    assert (back.bbox, back.voxel_size_nm, back.kind) == (chunk.bbox, chunk.voxel_size_nm, kind)


@settings(max_examples=30, deadline=None)
@given(
    low=st.tuples(*[st.integers(0, 6)] * 3),
    size=st.tuples(*[st.integers(1, 4)] * 3),
    channels=st.one_of(st.none(), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
)
def test_any_part_can_be_read(folder, low, size, channels):
    """A box and a list of channels, in any order, give the voxels of the whole array."""
    array = np.arange(3 * 1000, dtype=np.int32).reshape(3, 10, 10, 10)
    path = folder / "parts.h5"
    if not path.exists():
        write_hdf5(path, Chunk(array, (5, -3, 7)), block_size=Zyx(4, 4, 4))
    box = BoundingBox.from_size(Zyx(5, -3, 7) + low, size)
    part = open_hdf5(path).read(box, channels)
    expected = array[(slice(None) if channels is None else channels, *box.slices((5, -3, 7)))]
    np.testing.assert_array_equal(part.array, expected)
    assert part.bbox == box
    assert part.domain == BoundingBox.from_size((5, -3, 7), (10, 10, 10))


def test_an_empty_extent_is_kept(tmp_path):
    """A chunk without voxels can be saved and loaded."""
    write_hdf5(tmp_path / "a.h5", Chunk(np.zeros((0, 2, 3), "uint8"), (4, 5, 6)))
    assert open_hdf5(tmp_path / "a.h5").read().bbox == BoundingBox((4, 5, 6), (4, 7, 9))


def test_the_layout_is_that_of_the_field(tmp_path):
    """Dataset main in blocks, voxel_offset and voxel_size as datasets, layer_type as attribute."""
    chunk = Chunk(np.zeros((3, 70, 10, 80), "float32"), (1, 2, 3), (40, 4, 4.5), "affinity")
    write_hdf5(tmp_path / "a.h5", chunk)
    with h5py.File(tmp_path / "a.h5") as file:
        assert sorted(file) == ["main", "voxel_offset", "voxel_size"]
        assert file["main"].chunks == (1, 64, 10, 64)
        assert file["main"].compression == "gzip"
        assert file["voxel_offset"][()].tolist() == [1, 2, 3]
        assert file["voxel_size"][()].tolist() == [40, 4, 4.5]
        assert file.attrs["layer_type"] == "affinity_map"


def test_attributes_are_understood(tmp_path):
    """Offset and voxel size are also found as attributes of the dataset or of the file."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["raw"] = np.zeros((2, 3, 4), "uint8")
        file["raw"].attrs["origin"] = [5, 6, 7]
        file.attrs["voxel_size_nm"] = [10, 20, 30]
        file.attrs["layer_type"] = b"image"
    found = open_hdf5(tmp_path / "a.h5")
    assert found.bounds == BoundingBox((5, 6, 7), (7, 9, 11))
    assert found.voxel_size_nm == (10, 20, 30)
    assert found.kind == "image"


def test_the_default_dataset_is_the_first_array(tmp_path):
    """``main`` is preferred; without it the first 3D or 4D dataset of numbers is taken."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["a_list"] = np.zeros(7)
        file["b_words"] = np.full((1, 1, 1), b"text")
        file["volumes/raw"] = np.zeros((2, 3, 4), "uint8")
        file["z_other"] = np.zeros((3, 3, 3), "uint8")
    assert open_hdf5(tmp_path / "a.h5").shape == (2, 3, 4)
    assert open_hdf5(tmp_path / "a.h5", "z_other").shape == (3, 3, 3)
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["main"] = np.zeros((1, 5, 5, 5), "uint8")
    assert open_hdf5(tmp_path / "a.h5").shape == (1, 5, 5, 5)


def test_an_empty_file_is_nothing(tmp_path):
    """A file of no bytes, which stands for a task without a result, is not an error."""
    (tmp_path / "a.h5").touch()
    assert open_hdf5(tmp_path / "a.h5") is None


def test_wrong_files_are_told_apart(tmp_path):
    """A missing file, a folder, another format and a damaged file have their own sentences."""
    with pytest.raises(VolumeNotFoundError, match="no such file"):
        open_hdf5(tmp_path / "missing.h5")
    with pytest.raises(VolumeError, match="is a folder"):
        open_hdf5(tmp_path)
    (tmp_path / "text.h5").write_text("not this")
    with pytest.raises(VolumeError, match="is not an HDF5 file"):
        open_hdf5(tmp_path / "text.h5")
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 40), "uint8")
    write_hdf5(tmp_path / "cut.h5", Chunk(noise))
    with h5py.File(tmp_path / "cut.h5") as file:
        first = file["main"].id.get_chunk_info(0).byte_offset
    content = (tmp_path / "cut.h5").read_bytes()
    (tmp_path / "cut.h5").write_bytes(content[: len(content) // 2])
    with pytest.raises(VolumeError, match=r"cut\.h5, which seems damaged"):
        open_hdf5(tmp_path / "cut.h5")
    damaged = bytearray(content)
    damaged[first : first + 30000] = bytes(30000)
    (tmp_path / "zeros.h5").write_bytes(damaged)
    with pytest.raises(VolumeError, match=r"zeros\.h5, which seems damaged"):
        open_hdf5(tmp_path / "zeros.h5").read()


def test_wrong_datasets_are_told_with_those_that_exist(tmp_path):
    """A missing, one-dimensional or wordy dataset is refused; the message lists the others."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["list"] = np.zeros(7)
        file["words"] = np.full((1, 1, 1), b"text")
    with pytest.raises(VolumeNotFoundError, match=r"no 3D or 4D dataset.*/list \(7,\)"):
        open_hdf5(tmp_path / "a.h5")
    with pytest.raises(VolumeNotFoundError, match=r"no dataset 'main'.*/list \(7,\), /words"):
        open_hdf5(tmp_path / "a.h5", "main")
    with pytest.raises(ChunkError, match=r"/list of .* has 1 dimensions, shape \(7,\)"):
        open_hdf5(tmp_path / "a.h5", "list")
    with pytest.raises(VolumeError, match="not numbers"):
        open_hdf5(tmp_path / "a.h5", "words")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("voxel_offset", [1, 2], "must be three numbers"),
        ("voxel_offset", [0.5, 0, 0], "whole voxels"),
        ("voxel_size", [0, 1, 1], "must be positive"),
        ("voxel_size", [np.nan, 1, 1], "must be three numbers"),
        ("voxel_size", b"ten", "must be three numbers"),
    ],
)
def test_nonsense_in_the_header_is_refused(tmp_path, name, value, message):
    """An offset or voxel size that cannot be is named instead of believed."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["main"] = np.zeros((2, 3, 4), "uint8")
        file[name] = value
    with pytest.raises(VolumeError, match=f"{name} of dataset /main.*{message}"):
        open_hdf5(tmp_path / "a.h5")
    instead = {"voxel_offset": Zyx(1, 2, 3), "voxel_size_nm": (4, 5, 6)}
    assert open_hdf5(tmp_path / "a.h5", **instead).voxel_size_nm == (4, 5, 6)


@pytest.mark.parametrize("channels", [(3,), (0, -1)])
def test_missing_channels_are_refused(tmp_path, channels):
    """A channel that the dataset does not have is named with those that exist."""
    write_hdf5(tmp_path / "a.h5", Chunk(np.zeros((3, 2, 2, 2), "uint8")))
    with pytest.raises(ChunkError, match=r"has channels 0 to 2, but channel (3|-1)"):
        open_hdf5(tmp_path / "a.h5").read(channels=channels)


def test_a_disk_that_fills_at_any_byte_is_one_error(tmp_path, monkeypatch):
    """Whichever write of HDF5 fails, the old file is kept and HDF5 closes in peace."""
    noise = np.random.default_rng(0).integers(0, 255, (20, 40, 40), "uint8")
    path = tmp_path / "a.h5"
    write_hdf5(path, Chunk(noise), block_size=Zyx(8, 16, 16))
    content = path.read_bytes()
    really = os.pwrite
    for room in range(0, len(content), len(content) // 12):

        def write(handle, data, offset, room=room):
            if offset + len(data) > room:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return really(handle, data, offset)

        monkeypatch.setattr(os, "pwrite", write)
        with pytest.raises(VolumeError, match=r"a\.h5: no space left on device; free some space"):
            write_hdf5(path, Chunk(noise + 1), block_size=Zyx(8, 16, 16))
        assert path.read_bytes() == content
        assert list(tmp_path.iterdir()) == [path]


def test_many_small_blocks_are_right(tmp_path):
    """A file whose index of blocks outgrows the memory that HDF5 keeps for it is right."""
    array = np.random.default_rng(0).integers(0, 9, (1, 130, 100, 100), "uint8")
    write_hdf5(tmp_path / "a.h5", Chunk(array), block_size=Zyx(3, 7, 11))
    np.testing.assert_array_equal(open_hdf5(tmp_path / "a.h5").read().array, array)

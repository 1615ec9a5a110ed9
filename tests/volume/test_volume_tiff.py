"""TIFF files and folders of sections: axes, parts, damage."""

import numpy as np
import pytest
import tifffile
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.chunk import KINDS, Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume.files.tiff import COMPRESSIONS, open_tiff, write_tiff
from chunkflow_py.volume.protocol import UNIT_NM


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder for all examples of a property."""
    return tmp_path_factory.mktemp("tiff")


def numbers(*shape: int, dtype: str = "uint8") -> np.ndarray:
    """An array whose voxels can be told apart."""
    return (np.arange(np.prod(shape)) % 251).astype(dtype).reshape(shape)


@settings(max_examples=60, deadline=None)
@given(
    dtype=st.sampled_from(["uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"]),
    shape=st.one_of(
        st.tuples(*[st.integers(1, 5)] * 3), st.tuples(st.integers(1, 4), *[st.integers(1, 5)] * 3)
    ),
    offset=st.tuples(*[st.integers(-(10**6), 10**6)] * 3),
    voxel_size_nm=st.tuples(*[st.floats(1e-6, 1e9)] * 3),
    kind=st.sampled_from([None, *KINDS]),
    compression=st.sampled_from([name for name in COMPRESSIONS if name != "jpeg"]),
)
def test_what_is_written_is_read_back(
    folder, dtype, shape, offset, voxel_size_nm, kind, compression
):
    """Voxels, shape, dtype, offset, voxel size and kind come back as they were."""
    chunk = Chunk(numbers(*shape, dtype=dtype), offset, voxel_size_nm, kind)
    write_tiff(folder / "a.tif", chunk, compression)
    back = open_tiff(folder / "a.tif").read()
    np.testing.assert_array_equal(back.array, chunk.array)
    assert back.dtype == chunk.dtype
    assert (back.bbox, back.voxel_size_nm, back.kind) == (chunk.bbox, voxel_size_nm, kind)


@settings(max_examples=30, deadline=None)
@given(
    layout=st.sampled_from(["CZYX", "ZCYX", "ZYXS", "planar", "volumetric"]),
    low=st.tuples(*[st.integers(0, 3)] * 3),
    size=st.tuples(*[st.integers(1, 3)] * 3),
    channels=st.one_of(st.none(), st.lists(st.integers(0, 2), min_size=1, max_size=4)),
)
def test_any_part_of_any_layout_can_be_read(folder, layout, low, size, channels):
    """Whatever the order of axes in the file, a part is that of the (c, z, y, x) array."""
    array = numbers(3, 6, 7, 8)
    path = folder / f"{layout}.tif"
    if layout == "volumetric":
        array, channels = array[0], None
        tifffile.imwrite(path, array, photometric="minisblack", volumetric=True, tile=(16, 16, 16))
    elif layout == "CZYX":
        write_tiff(path, Chunk(array))
    elif layout == "ZCYX":
        moved = np.moveaxis(array, 0, 1)
        tifffile.imwrite(path, moved, imagej=True, metadata={"axes": "ZCYX"})
    elif layout == "ZYXS":
        tifffile.imwrite(path, np.moveaxis(array, 0, -1), photometric="rgb")
    else:
        moved = np.moveaxis(array, 0, 1)
        tifffile.imwrite(path, moved, photometric="rgb", planarconfig="separate")
    box = BoundingBox.from_size(low, size)
    expected = array if channels is None else array[channels]
    part = open_tiff(path).read(box, channels)
    np.testing.assert_array_equal(part.array, expected[(..., *box.slices())])


def test_only_the_pages_of_a_cut_are_read(tmp_path):
    """A damaged page does not matter to a cut that leaves it out."""
    noise = np.random.default_rng(0).integers(0, 255, (3, 64, 64), "uint8")
    write_tiff(tmp_path / "a.tif", Chunk(noise))
    with tifffile.TiffFile(tmp_path / "a.tif") as file:
        first = file.pages[1].dataoffsets[0]
    content = bytearray((tmp_path / "a.tif").read_bytes())
    content[first : first + 1000] = b"\xff" * 1000
    (tmp_path / "a.tif").write_bytes(content)
    found = open_tiff(tmp_path / "a.tif")
    part = found.read(BoundingBox((2, 0, 0), (3, 64, 64)))
    np.testing.assert_array_equal(part.array, noise[2:])
    with pytest.raises(VolumeError, match=r"a\.tif, which seems damaged"):
        found.read()


def test_options_of_the_caller_win(tmp_path):
    """Offset, voxel size and kind that are given override the file's."""
    write_tiff(tmp_path / "a.tif", Chunk(numbers(2, 3, 4), (1, 2, 3), (4, 5, 6), "image"))
    found = open_tiff(tmp_path / "a.tif", Zyx(0, 0, 0), (7, 8, 9), "segmentation")
    assert found.bounds == BoundingBox((0, 0, 0), (2, 3, 4))
    assert (found.voxel_size_nm, found.kind) == ((7, 8, 9), "segmentation")


def test_a_folder_is_a_stack_in_natural_order(tmp_path):
    """Section s2 comes before s10; other files do not count."""
    for number in (10, 2, 1):
        tifffile.imwrite(tmp_path / f"s{number}.tif", np.full((4, 5), number, "uint16"))
    (tmp_path / "notes.txt").touch()
    chunk = open_tiff(tmp_path, Zyx(7, 0, 0)).read(BoundingBox((7, 1, 1), (10, 3, 4)))
    assert chunk.dtype == np.uint16
    assert chunk.array[:, 0, 0].tolist() == [1, 2, 10]
    assert chunk.shape == (3, 2, 3)


def test_sections_of_a_folder_must_agree(tmp_path):
    """A section of another size is named, with both shapes."""
    tifffile.imwrite(tmp_path / "1.tif", np.zeros((4, 5), "uint8"))
    tifffile.imwrite(tmp_path / "2.tif", np.zeros((4, 6), "uint8"))
    with pytest.raises(ChunkError, match=r"2\.tif is uint8 of shape \(4, 6\).*\(4, 5\)"):
        open_tiff(tmp_path).read()
    tifffile.imwrite(tmp_path / "1.tif", np.zeros((2, 4, 5), "uint8"), photometric="minisblack")
    with pytest.raises(ChunkError, match=r"1\.tif has 2 sections"):
        open_tiff(tmp_path)


def test_wrong_files_are_told_apart(tmp_path):
    """An empty folder, a missing file, another format and other axes have their own sentences."""
    with pytest.raises(VolumeNotFoundError, match=r"contains no \.tif files"):
        open_tiff(tmp_path)
    with pytest.raises(VolumeNotFoundError, match="no such file"):
        open_tiff(tmp_path / "a.tif")
    (tmp_path / "a.tif").write_text("not this")
    with pytest.raises(VolumeError, match="is not a TIFF file"):
        open_tiff(tmp_path / "a.tif")
    tifffile.imwrite(
        tmp_path / "a.tif", numbers(2, 3, 4, 5), imagej=True, metadata={"axes": "TZYX"}
    )
    with pytest.raises(ChunkError, match=r"has axes TZCYXS .*a chunk is ZYX or CZYX"):
        open_tiff(tmp_path / "a.tif")
    (tmp_path / "a.tif").write_bytes(b"")
    assert open_tiff(tmp_path / "a.tif") is None


@pytest.mark.parametrize(
    ("array", "kind", "compression", "message"),
    [
        (np.zeros((1, 16, 16), "uint16"), "image", "jpeg", "jpeg supports only uint8 images"),
        (np.zeros((1, 16, 16), "uint8"), "segmentation", "jpeg", "has labels; use"),
        (np.zeros((0, 16, 16), "uint8"), "image", "zlib", "has no voxels"),
    ],
)
def test_what_tiff_cannot_hold_is_refused(tmp_path, array, kind, compression, message):
    """Ids are not blurred by jpeg, and empty images are not invented."""
    with pytest.raises(ChunkError, match=message):
        write_tiff(tmp_path / "a.tif", Chunk(array, kind=kind), compression)
    assert not (tmp_path / "a.tif").exists()


def test_masks_are_saved_as_uint8(tmp_path):
    """A bool chunk becomes 0 and 1."""
    write_tiff(tmp_path / "a.tif", Chunk(np.array([[[True, False]]])))
    np.testing.assert_array_equal(open_tiff(tmp_path / "a.tif").read().array, [[[1, 0]]])


def ome_tiff(path, **said):
    """Write an OME-TIFF by another program's rules."""
    tifffile.imwrite(path, numbers(3, 4, 5), ome=True, metadata={"axes": "ZYX", **said})


OME_SIZES = [
    (("2", "0.5", "0.25"), ("µm", "µm", "µm"), (2000, 500, 250)),
    (("2", "0.5", "0.25"), (None, None, None), (2000, 500, 250)),  # the default is µm
    (("40", "4", "4e-3"), ("nm", "nm", "µm"), (40, 4, 4)),
    (("40", "4.5", "4.5"), ("Å", "nm", "nm"), (4, 4.5, 4.5)),
    (("1", "1", "1"), ("pixel", "pixel", "pixel"), None),
    ((None, "0.5", "0.25"), ("µm", "µm", "µm"), None),
    (("0.0", "0.5", "x"), ("µm", "µm", "µm"), None),
]


@pytest.mark.parametrize(("sizes", "units", "expected"), OME_SIZES)
def test_the_voxel_size_of_ome_is_read(tmp_path, sizes, units, expected):
    """PhysicalSizeX, Y and Z with their units; without one of them nothing is known."""
    said = {f"PhysicalSize{a}": v for a, v in zip("ZYX", sizes, strict=True) if v}
    said |= {f"PhysicalSize{a}Unit": u for a, u in zip("ZYX", units, strict=True) if u}
    ome_tiff(tmp_path / "a.ome.tif", **said)
    found = open_tiff(tmp_path / "a.ome.tif")
    assert found.voxel_size_nm == (expected or (1, 1, 1))
    assert (found.voxel_size_nm is UNIT_NM) == (expected is None)
    assert open_tiff(tmp_path / "a.ome.tif", voxel_size_nm=(3, 2, 1)).voxel_size_nm == (3, 2, 1)


IMAGEJ_SIZES = [
    ({"spacing": 2.0, "unit": "um"}, (2000, 500, 250)),
    ({"spacing": 2.0, "unit": "\\u00B5m"}, (2000, 500, 250)),
    ({"spacing": 2.0, "unit": "micron"}, (2000, 500, 250)),
    ({"unit": "nm"}, (1, 0.5, 0.25)),  # ImageJ leaves out a step of 1
    ({"spacing": 2.0, "unit": "pixel"}, None),
    ({"spacing": 2.0}, None),
]


@pytest.mark.parametrize(("said", "expected"), IMAGEJ_SIZES)
def test_the_voxel_size_of_imagej_is_read(tmp_path, said, expected):
    """Resolution counts pixels in a unit, spacing is the step along z; of folders too."""
    path = tmp_path / "sections" / "a.tif"
    path.parent.mkdir()
    metadata = {"axes": "ZYX", **said}
    tifffile.imwrite(path, numbers(1, 4, 5), imagej=True, resolution=(4, 2), metadata=metadata)
    for place in (path, path.parent):
        found = open_tiff(place)
        assert found.voxel_size_nm == (expected or (1, 1, 1))
        assert (found.voxel_size_nm is UNIT_NM) == (expected is None)


def test_other_units_of_resolution_say_nothing(tmp_path):
    """A plain TIFF has dots per inch, which are those of a printer."""
    tifffile.imwrite(tmp_path / "a.tif", numbers(2, 4, 5), resolution=(72, 72), resolutionunit=2)
    assert open_tiff(tmp_path / "a.tif").voxel_size_nm is UNIT_NM

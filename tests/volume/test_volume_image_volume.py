"""Image files of other programs as volumes."""

from __future__ import annotations

import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import tifffile
from click.testing import CliRunner
from contracts.image_contract import SIZE, ImageContract, Stored, noise

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ChunkError, ChunkflowError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.files import tiff_layout

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MICRONS = {
    "PhysicalSizeX": 0.5, "PhysicalSizeXUnit": "µm", "PhysicalSizeY": 0.5,
    "PhysicalSizeYUnit": "µm", "PhysicalSizeZ": 2.0, "PhysicalSizeZUnit": "µm",
}  # fmt: skip
NAMES = ("DAPI", "GFP", "red & blue")
SIZE_NM = (2000.0, 500.0, 500.0)


class TestOmeTiff(ImageContract):
    """Tiles, channels and time points, with names and sizes in OME-XML."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        """Return a file whose pages are ordered as T, Z, C."""
        voxels, path = noise(2, 3), tmp_path / "image.ome.tif"
        tifffile.imwrite(
            path, np.moveaxis(voxels, 1, 2), compression="zlib", tile=(16, 32),
            photometric="minisblack",
            metadata={"axes": "TZCYX", "Channel": {"Name": [*NAMES]}} | MICRONS,
        )  # fmt: skip
        return Stored(path, voxels, SIZE_NM, 2, names=NAMES)


class TestImageJ(ImageContract):
    """A hyperstack of ImageJ, stored without compression."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        """Return a file with time points and channels."""
        voxels, path = noise(3, 2), tmp_path / "image.tif"
        tifffile.imwrite(
            path, np.moveaxis(voxels, 1, 2), imagej=True, resolution=(2, 2),
            metadata={"axes": "TZCYX", "spacing": 2.0, "unit": "um"},
        )  # fmt: skip
        return Stored(path, voxels, SIZE_NM, 3)


LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "big endian": {"byteorder": ">"},
    "strips": {"compression": "zlib", "predictor": True, "rowsperstrip": 7, "byteorder": ">"},
    "tiles": {"compression": "lzw", "tile": (32, 16)},
    "zstd": {"compression": "zstd"},
}


class TestTiff(ImageContract):
    """Pages without a description, in all ways to store a page."""

    @pytest.fixture(params=LAYOUTS)
    def stored(self, tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
        """Return a file."""
        path = tmp_path / "image.tif"
        tifffile.imwrite(path, noise(), photometric="minisblack", **LAYOUTS[request.param])
        return Stored(path, noise())


COLOURS: dict[str, tuple[int, dict[str, Any]]] = {
    "interleaved": (3, {"compression": "zlib"}),
    "interleaved, tiles": (3, {"compression": "zlib", "tile": (16, 16)}),
    "planes": (1, {"compression": "zlib", "planarconfig": "separate"}),
    "planes, tiles": (1, {"compression": "zlib", "planarconfig": "separate", "tile": (16, 16)}),
    "planes, plain": (1, {"planarconfig": "separate"}),
}


class TestColours(ImageContract):
    """Red, green and blue are three channels."""

    @pytest.fixture(params=COLOURS)
    def stored(self, tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
        """Return a file of colour pages."""
        voxels, path = noise(3, dtype="uint8"), tmp_path / "image.tif"
        place, options = COLOURS[request.param]
        tifffile.imwrite(path, np.moveaxis(voxels, 0, place), photometric="rgb", **options)
        return Stored(path, voxels)


class TestTiffFolder(ImageContract):
    """One file per section."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        """Return a folder whose numbers begin at 3, and have no fixed width."""
        folder = tmp_path / "pages"
        folder.mkdir()
        for z, section in enumerate(noise()):
            tifffile.imwrite(folder / f"img_{z + 7}_raw.tif", section, compression="zlib")
        return Stored(folder, noise())


class TestPngFolder(ImageContract):
    """One file per section, whose name is the z position."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        """Return a folder as save-pngs writes it."""
        image = pytest.importorskip("PIL.Image")
        folder = tmp_path / "pages"
        folder.mkdir()
        for z, section in enumerate(noise()):
            image.fromarray(section).save(folder / f"{z + 7:05d}.png")
        return Stored(folder, noise(), start=Zyx(7, 0, 0))


class TestNpy(ImageContract):
    """An array of NumPy."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        """Return a file with channels."""
        np.save(tmp_path / "image.npy", noise(2, dtype="float32"))
        return Stored(tmp_path / "image.npy", noise(2, dtype="float32"))


class TestNifti(ImageContract):
    """A NIfTI file, compressed or not."""

    @pytest.fixture(params=["image.nii", "image.nii.gz"])
    def stored(self, tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
        """Return a file with time points, sizes in micrometres."""
        nibabel = pytest.importorskip("nibabel")
        voxels, path = noise(2), tmp_path / request.param
        image = nibabel.Nifti1Image(voxels.T, np.diag([0.5, 0.5, 2.0, 1]))
        image.header.set_xyzt_units("micron", "sec")
        nibabel.save(image, path)
        return Stored(path, voxels, SIZE_NM, 2)


class TestNrrd(ImageContract):
    """A NRRD file, compressed or not."""

    @pytest.fixture(params=["raw", "gzip"])
    def stored(self, tmp_path: Path, request: pytest.FixtureRequest) -> Stored:
        """Return a file of pynrrd."""
        nrrd = pytest.importorskip("nrrd")
        header = {
            "space dimension": 3, "space directions": np.diag([0.5, 0.5, 2.0]),
            "space units": ["um"] * 3, "encoding": request.param,
        }  # fmt: skip
        nrrd.write(str(tmp_path / "image.nrrd"), noise().T, header)
        return Stored(tmp_path / "image.nrrd", noise(), SIZE_NM)


class TestMrc(ImageContract):
    """An MRC file."""

    @pytest.fixture
    def stored(self, tmp_path: Path) -> Stored:
        """Return a file of mrcfile, with sizes in ångström."""
        mrcfile = pytest.importorskip("mrcfile")
        with mrcfile.new(str(tmp_path / "image.mrc")) as file:
            file.set_data(noise())
            file.voxel_size = (5000.0, 5000.0, 20000.0)
        return Stored(tmp_path / "image.mrc", noise(), SIZE_NM)


# --- levels --------------------------------------------------------------------------------------


def test_levels_of_an_ome_tiff(tmp_path: Path) -> None:
    """Reduced pages are levels, with their own voxel size."""
    path, voxels = tmp_path / "pyramid.ome.tif", noise()
    coarse = voxels[:, ::2, ::2]
    stored: dict[str, Any] = {"tile": (16, 16), "compression": "zlib", "photometric": "minisblack"}
    with tifffile.TiffWriter(path) as file:
        file.write(voxels, subifds=1, metadata={"axes": "ZYX"} | MICRONS, **stored)
        file.write(coarse, subfiletype=1, **stored)
    volume = open_volume(str(path), 1)
    assert volume.mips == (0, 1)
    assert volume.voxel_size_nm == (2000.0, 1000.0, 1000.0)
    np.testing.assert_array_equal(volume.read(volume.bounds).array, coarse)
    with pytest.raises(VolumeNotFoundError, match="levels 0 to 1, but no mip 2"):
        open_volume(str(path), 2)


def test_blocks_are_tiles_or_pages(tmp_path: Path) -> None:
    """So a task reads no more of the file than it needs."""
    tifffile.imwrite(tmp_path / "tiles.tif", noise(), tile=(16, 32), compression="zlib")
    tifffile.imwrite(tmp_path / "pages.tif", noise(), compression="zlib")
    tiles, pages = (open_volume(f"{tmp_path}/{name}.tif") for name in ("tiles", "pages"))
    assert tiles.block_size == (1, 16, 32)
    assert pages.block_size == (1, SIZE.y, SIZE.x)


def test_convert_without_a_target_describes_the_source(tmp_path: Path) -> None:
    """Axes, sizes, units, levels, names and values."""
    path = tmp_path / "image.ome.tif"
    tifffile.imwrite(
        path, np.moveaxis(noise(2, 3), 1, 2), tile=(16, 32), photometric="minisblack",
        metadata={"axes": "TZCYX", "Channel": {"Name": [*NAMES]}} | MICRONS,
    )  # fmt: skip
    done = CliRunner().invoke(cli, ["convert", str(path)])
    assert done.exit_code == 0
    for line in (
        "axes        t 2, c 3, z 6, y 40, x 50",
        "voxel size  2000 x 500 x 500 nm (zyx)",
        "channels    DAPI, GFP, red & blue",
        "level 0     (6, 40, 50) voxels of 2000 x 500 x 500 nm (zyx), blocks of (1, 16, 32)",
    ):
        assert line in done.output
    low, high = noise(2, 3)[0, 0].min(), noise(2, 3)[0, 0].max()
    assert f"values      {low} to {high}, " in done.output


# --- bad input -----------------------------------------------------------------------------------


def sections(folder: Path, names: list[str], **options: Any) -> Path:
    """Write sections of the given names."""
    folder.mkdir(exist_ok=True)
    for name in names:
        tifffile.imwrite(folder / name, np.ones((4, 5), np.uint8), **options)
    return folder


def test_fault_missing_page(tmp_path: Path) -> None:
    """The numbers that are missing are named."""
    folder = sections(tmp_path / "pages", ["a_01.tif", "a_02.tif", "a_05.tif"])
    with pytest.raises(VolumeError, match=r"a_01\.tif to a_05\.tif, but section 3, 4 is missing"):
        open_volume(str(folder))


def test_fault_two_pages_of_one_number(tmp_path: Path) -> None:
    """Both are named."""
    folder = sections(tmp_path / "pages", ["1.tif", "01.tif"])
    with pytest.raises(VolumeError, match=r"two files of section 1, (0?1)\.tif and 0?1\.tif"):
        open_volume(str(folder))


@pytest.mark.parametrize("other", [np.ones((4, 6), np.uint8), np.ones((4, 5), np.uint16)])
def test_fault_page_of_another_size_or_type(tmp_path: Path, other: Any) -> None:
    """The file and both shapes are named."""
    folder = sections(tmp_path / "pages", ["1.tif", "2.tif"])
    tifffile.imwrite(folder / "2.tif", other)
    volume = open_volume(str(folder))
    with pytest.raises(ChunkError, match=r"2\.tif is uint\d+ of shape .*first section 1\.tif"):
        volume.read(volume.bounds)


def test_fault_untiled_page_that_does_not_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is the smallest part that can be read."""
    tifffile.imwrite(tmp_path / "image.tif", noise(), compression="zlib")
    monkeypatch.setattr(tiff_layout, "available_host_bytes", lambda: 1000)
    with pytest.raises(VolumeError, match=r"a page of .*image\.tif is read as a whole"):
        open_volume(str(tmp_path / "image.tif"))


@pytest.mark.parametrize("name", ["scan.czi", "scan.lif", "scan.ND2"])
def test_fault_format_of_a_microscope(tmp_path: Path, name: str) -> None:
    """The error names programs that convert it."""
    (tmp_path / name).write_bytes(b"anything")
    with pytest.raises(VolumeError, match="convert it to OME-Zarr with bioformats2raw"):
        open_volume(str(tmp_path / name))


def test_fault_axes_that_a_volume_does_not_have(tmp_path: Path) -> None:
    """Two axes of channels cannot be one."""
    tifffile.imwrite(
        tmp_path / "image.ome.tif", noise(2, dtype="uint8")[..., None].repeat(3, -1)[0][None],
        photometric="rgb", metadata={"axes": "TZYXS"},
    )  # fmt: skip
    assert open_volume(str(tmp_path / "image.ome.tif")).channels == 3
    tifffile.imwrite(
        tmp_path / "more.ome.tif", np.ones((2, 3, 4, 5, 3), np.uint8),
        photometric="rgb", metadata={"axes": "ZCYXS"},
    )  # fmt: skip
    with pytest.raises(ChunkError, match="a volume has at most the axes t, c, z, y and x"):
        open_volume(str(tmp_path / "more.ome.tif"))


@pytest.mark.parametrize("name", ["image.tif", "image.nii", "image.npy", "image.mrc", "image.nrrd"])
@pytest.mark.parametrize("content", [b"", b"no image at all", b"II*\0" + bytes(40)])
def test_fault_damaged_file(tmp_path: Path, name: str, content: bytes) -> None:
    """A file of another content is an error that names it."""
    if name.endswith("nii"):
        pytest.importorskip("nibabel")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(VolumeError, match=name):
        open_volume(str(tmp_path / name))


def damaged(data: bytes, rng: random.Random) -> bytes:
    """Return *data* with a few other bytes, mostly in headers, or cut off."""
    changed = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 4])):
        ends = (rng.randrange(min(len(data), 600)), -1 - rng.randrange(min(len(data), 800)))
        changed[rng.choice([*ends, rng.randrange(len(data))])] = rng.choice([0, 1, 127, 255])
    return bytes(changed[: rng.randrange(len(data))] if rng.random() < 0.1 else changed)


def stored_files(folder: Path) -> Iterator[Path]:
    """Yield one small file of each kind."""
    voxels = noise(dtype="uint8")
    for name, options in (
        ("plain.tif", {}),
        ("tiles.tif", {"compression": "zlib", "tile": (16, 16)}),
        ("jpeg.tif", {"compression": "jpeg", "tile": (16, 16)}),
        ("ome.ome.tif", {"compression": "lzw", "metadata": {"axes": "ZYX"} | MICRONS}),
    ):
        tifffile.imwrite(folder / name, voxels, photometric="minisblack", **options)
        yield folder / name
    with suppress(ImportError):
        import nibabel

        for name in ("plain.nii", "packed.nii.gz"):
            nibabel.save(nibabel.Nifti1Image(voxels.T, np.eye(4)), folder / name)
            yield folder / name


@pytest.mark.parametrize("count", [30, pytest.param(1000, marks=pytest.mark.long)])
@pytest.mark.filterwarnings("ignore")
def test_fault_any_damage(tmp_path: Path, count: int) -> None:
    """Whatever bytes change, a file is read, or an error of ours names it."""
    rng = random.Random(count)
    for file in list(stored_files(tmp_path)):
        data, broken = file.read_bytes(), tmp_path / f"broken-{file.name}"
        said: list[str] = []
        for _ in range(count):
            broken.write_bytes(damaged(data, rng))
            try:
                volume = open_volume(str(broken))
                if volume.bounds.voxels * (volume.channels or 1) < 10**7:
                    volume.read(volume.bounds, time=None if volume.times is None else 0)
            except ChunkflowError as error:
                said.append(str(error))
        assert said
        assert [text for text in said if broken.name not in text] == []

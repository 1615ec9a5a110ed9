"""Open image files, and folders of section images, as volumes that can only be read.

| address                       | read as                                            |
|-------------------------------|----------------------------------------------------|
| ``.tif``, ``.tiff``           | one block per tile or page, with levels, times and |
|                               | channels                                           |
| folder of TIFF or PNG files   | one block per file; each file is one section       |
| ``.nii``, ``.nii.gz``         | one array (needs the extra ``nifti``)              |
| ``.npy``, ``.nrrd``, ``.mrc`` | one array                                          |

Only headers are read when a volume is opened. Files of microscopes, such as CZI, are refused; the
error names programs that convert such files.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.volume.engine.block_volume import BlockVolume
from chunkflow_py.volume.files.image_names import ARRAYS, FOREIGN, TIFF, suffix_of
from chunkflow_py.volume.files.section_layout import SectionLayout
from chunkflow_py.volume.protocol import UNIT_NM

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.files.file_volume import FileVolume
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import StoredUnit, Volume, VolumeOptions


class ImageVolume(BlockVolume):
    """A TIFF file or a folder of sections as a `Volume`.

    Attributes:
        is_sections: whether each block contains voxels of only one section (z). Always ``True``: a
            block is a page, a tile or a file, and is decoded as a whole.
    """

    is_sections = True
    single_writer = True

    def objects(self, *_: object, **__: object) -> list[str]:
        """Return an empty list, because tasks do not write to this volume."""
        return []

    def stored_units(self) -> Iterator[StoredUnit]:
        """Raise an error, because image files are not written in units."""
        msg = (
            f"cannot list the stored blocks of {self.url}: the volume consists of image files; "
            "convert it to zarr"
        )
        raise VolumeError(msg)


def open_volume(place: Location, mip: int, mode: Mode, opening: VolumeOptions) -> Volume:
    """Open an image file, or a folder of section images.

    Raises:
        VolumeNotFoundError: the file or the level does not exist.
        VolumeError: the file cannot be read, or *mode* is not ``r``.
    """
    if mode != "r":
        msg = f"{place} consists of image files, which are read only; write to zarr://"
        raise VolumeError(msg)
    path = place.folder
    if path.is_dir() or suffix_of(path, TIFF):
        return _blocks(place, mip, opening)
    if mip:
        msg = f"{place} has no mip {mip}; it has mip 0 only; use --mip 0"
        raise VolumeNotFoundError(msg)
    if foreign := suffix_of(path, FOREIGN):
        msg = (
            f"{place} is a {foreign[1:].upper()} file, which is not supported; convert it to "
            "OME-Zarr with bioformats2raw, or to OME-TIFF with Fiji or bfconvert"
        )
        raise VolumeError(msg)
    volume = _array(path)
    if volume is None:
        msg = f"{place} is an empty file; check the path"
        raise VolumeNotFoundError(msg)
    return volume


def _array(path: Path) -> FileVolume | None:
    kind = ARRAYS[suffix_of(path, tuple(ARRAYS)) or ""]
    module = import_module(f"chunkflow_py.volume.files.{kind}")
    volume: FileVolume | None = getattr(module, f"open_{kind}")(path)
    return volume


def _blocks(place: Location, mip: int, opening: VolumeOptions) -> ImageVolume:
    """Open a TIFF file or a folder of sections."""
    path, kind = place.folder, None
    names: tuple[str, ...] = ()
    colors: tuple[str, ...] = ()
    mips: tuple[int, ...] = (0,)
    offset, size_nm = Zyx(0, 0, 0), None
    if path.is_dir():
        if mip:
            msg = f"{place} has no mip {mip}; a folder of sections has mip 0 only; use --mip 0"
            raise VolumeNotFoundError(msg)
        layout: Any = SectionLayout(path)
        offset = Zyx(layout.first, 0, 0)
        if suffix_of(layout.first_file, TIFF):
            from chunkflow_py.volume.files.tiff import voxel_size_in

            size_nm = voxel_size_in(layout.first_file)
        store = open_store(f"file://{path}")
    else:
        from chunkflow_py.volume.files.tiff import description_of
        from chunkflow_py.volume.files.tiff_layout import TiffLayout

        if path.stat().st_size == 0:
            msg = f"{place} is an empty file; check the path"
            raise VolumeNotFoundError(msg)
        layout = TiffLayout(path, mip)
        described = description_of(layout.file, str(path))
        names, colors = layout.channel_names, layout.channel_colors
        mips = tuple(range(layout.levels))
        offset, kind = described.voxel_offset or offset, described.kind
        offset = offset // layout.scale
        if described.voxel_size_nm is not None:
            z, y, x = (n * f for n, f in zip(described.voxel_size_nm, layout.scale, strict=True))
            size_nm = (z, y, x)
        store = open_store(f"file://{path.parent}")
    return ImageVolume(
        place.address or place.url,
        store,
        layout,
        voxel_offset=offset,
        voxel_size_nm=size_nm or UNIT_NM,
        kind=kind,
        mode="r",
        mip=mip,
        mips=mips,
        opening=opening,
        channel_names=names,
        channel_colors=colors,
    )

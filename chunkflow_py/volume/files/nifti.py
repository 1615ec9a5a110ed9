"""NIfTI files (``.nii``, ``.nii.gz``) of medical imaging, read only, with nibabel.

The array of a file is (x, y, z), (x, y, z, t) or (x, y, z, t, c). A volume has the axes t, c, z, y,
x, in this order. Voxels are not turned into anatomical directions: z, y and x are the third, second
and first axis of the file. The voxel size is that of the header, in its unit (millimetres if it
names none). If the header has a scale, the voxels are scaled, in float32.

Uncompressed files are memory-mapped. A compressed file is decompressed up to the last requested
voxel, each time that a part is read.

Format: https://nifti.nimh.nih.gov/nifti-1
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.host_memory import check_fits
from chunkflow_py.errors import ChunkError, VolumeError, needs_extra
from chunkflow_py.store.local_files import os_errors
from chunkflow_py.volume.files.file_volume import FileVolume

with needs_extra("nifti", "reading NIfTI"):
    import nibabel
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

EXTENSIONS = (".nii", ".nii.gz")
_NANOMETRES = {"meter": 1e9, "mm": 1e6, "micron": 1e3, "unknown": 1e6}
_DIMENSIONS = 5  # x, y, z, t, c


def open_nifti(path: Path) -> FileVolume:
    """Open the array of a NIfTI file, reading only the header.

    Raises:
        VolumeError: the file is not a NIfTI file, or is damaged.
        ChunkError: the file has more axes than a volume.
    """
    image = _loaded(path)
    stored = tuple(int(n) for n in image.shape)
    if len(stored) > _DIMENSIONS or 0 in stored:
        msg = f"{path} has the shape {stored}, but a volume is x, y, z, t, c; split the file"
        raise ChunkError(msg)
    shape = (*stored, *(1,) * (_DIMENSIONS - len(stored)))
    x, y, z, times, channels = shape
    zooms = [abs(float(zoom)) for zoom in image.header.get_zooms()][:3]
    factor = _NANOMETRES.get(image.header.get_xyzt_units()[0], 1e6)
    size = [float(f"{zoom * factor:.6g}") for zoom in (*zooms, *(1.0,) * 3)[:3]]
    known = len(zooms) == 3 and all(np.isfinite(size)) and all(nm > 0 for nm in size)
    if path.name.lower().endswith(".gz"):
        item = image.header.get_data_dtype().itemsize
        check_fits(int(np.prod(stored, dtype=np.int64)) * item, f"{path}, which is compressed,")
    return FileVolume(
        str(path),
        (z, y, x) if channels == 1 else (channels, z, y, x),
        _dtype(image),
        partial(_read_part, path, shape),
        voxel_size_nm=(size[2], size[1], size[0]) if known else None,
        times=None if times == 1 else times,
    )


def _loaded(path: Path) -> Any:
    with os_errors("read", path):
        path.open("rb").close()
    try:
        return nibabel.load(path)
    except (ImageFileError, HeaderDataError, ValueError, OSError, EOFError) as error:
        reason = str(error).rstrip(".")
        msg = f"cannot read {path}, which is damaged or not a NIfTI file: {reason}; check the path"
        raise VolumeError(msg) from error


def _dtype(image: Any) -> np.dtype[Any]:
    dtype: np.dtype[Any] = image.get_data_dtype()
    scaled = (image.dataobj.slope, image.dataobj.inter) != (1.0, 0.0)
    return np.dtype(np.float32) if scaled else dtype


def _read_part(
    path: Path,
    shape: tuple[int, ...],
    slices: tuple[slice, slice, slice],
    channels: Sequence[int] | None,
    time: int = 0,
) -> NDArray[Any]:
    image = _loaded(path)
    z, y, x = slices
    dimensions = len(image.shape)
    wanted = range(shape[4]) if channels is None else channels
    parts = []
    try:
        for channel in wanted:
            index = (x, y, z, time, channel)[:dimensions]
            part = np.asarray(image.dataobj[index])
            parts.append(part.reshape([s.stop - s.start for s in (x, y, z)]).T)
    except (ValueError, OSError, EOFError) as error:
        msg = f"cannot read {path}, which seems damaged: {error}; save the file again"
        raise VolumeError(msg) from error
    array = parts[0] if shape[4] == 1 else np.stack(parts)
    return np.ascontiguousarray(array, _dtype(image).newbyteorder("="))

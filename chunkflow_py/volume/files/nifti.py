"""Read NIfTI files (``.nii``, ``.nii.gz``) of medical imaging, with nibabel.

The array of a file is (x, y, z), (x, y, z, t) or (x, y, z, t, c). A volume has the axes t, c, z, y,
x, in this order. Axes are not reordered or flipped to anatomical directions: z, y and x are the
third, second and first axis of the file. The voxel size and its unit are read from the header. If
the header names no unit, millimetres are assumed, with a warning. If the header has a scale factor,
the voxels are multiplied by this factor, in float32.

Uncompressed files are memory-mapped. Each read of a compressed file decompresses the file from its
start to the last requested voxel.

Format: https://nifti.nimh.nih.gov/nifti-1
"""

from __future__ import annotations

import logging
from contextlib import contextmanager
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.host_memory import check_fits
from chunkflow_py.errors import ChunkError, needs_extra
from chunkflow_py.store.local_files import os_errors
from chunkflow_py.volume.files.file_volume import FileVolume
from chunkflow_py.volume.foreign_errors import translated_errors

with needs_extra("nifti", "reading NIfTI"):
    import nibabel

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

EXTENSIONS = (".nii", ".nii.gz")
_NANOMETRES = {"meter": 1e9, "mm": 1e6, "micron": 1e3}
_DIMENSIONS = 5  # x, y, z, t, c


def open_nifti(path: Path) -> FileVolume:
    """Open the array of a NIfTI file, reading only the header.

    Raises:
        VolumeError: the file is not a NIfTI file, or is damaged.
        ChunkError: the file has more axes than a volume.
    """
    with _errors(path):
        return _opened(path)


@lru_cache(maxsize=64)  # one warning per file, although a command opens a file several times
def _warn_of_assumed_unit(path: Path) -> None:
    logger.warning("%s names no unit of length, so millimetres are assumed", path)


def _opened(path: Path) -> FileVolume:
    image: Any = nibabel.load(path)
    stored = tuple(int(n) for n in image.shape)
    if len(stored) > _DIMENSIONS or min(stored, default=0) < 1:
        msg = (
            f"{path} has the shape {stored}, but a volume has at most five axes (x, y, z, t, c), "
            "each at least 1 long; save an array of such a shape, for example a part of this array"
        )
        raise ChunkError(msg)
    shape = (*stored, *(1,) * (_DIMENSIONS - len(stored)))
    x, y, z, times, channels = shape
    zooms = [abs(float(zoom)) for zoom in image.header.get_zooms()][:3]
    unit = image.header.get_xyzt_units()[0]
    if unit not in _NANOMETRES:
        _warn_of_assumed_unit(path)
    factor = _NANOMETRES.get(unit, 1e6)
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


@contextmanager
def _errors(path: Path) -> Iterator[None]:
    """Turn errors of nibabel into errors that name the file."""
    with os_errors("read", path):
        path.open("rb").close()
    failure = f"cannot read {path}, which is damaged or not a NIfTI file"
    with translated_errors(failure, "; check the path"):
        yield


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
    z, y, x = slices
    wanted = range(shape[4]) if channels is None else channels
    with _errors(path):
        image: Any = nibabel.load(path)
        parts = []
        for channel in wanted:
            index = (x, y, z, time, channel)[: len(image.shape)]
            part = np.asarray(image.dataobj[index])
            parts.append(part.reshape([s.stop - s.start for s in (x, y, z)]).T)
        array = parts[0] if shape[4] == 1 else np.stack(parts)
        return np.ascontiguousarray(array, _dtype(image).newbyteorder("="))

"""Read NumPy files (``.npy``), which contain one array without a position or voxel size."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import mapped_npy
from chunkflow_py.errors import VolumeError
from chunkflow_py.store.local_files import os_errors
from chunkflow_py.volume.files.file_volume import FileVolume

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import Zyx

EXTENSIONS = (".npy",)


def open_npy(
    path: Path,
    voxel_offset: Zyx | None = None,
    voxel_size_nm: tuple[float, float, float] | None = None,
) -> FileVolume | None:
    """Open the array of a .npy file, reading only the header; return ``None`` for an empty file.

    Args:
        path: file to read.
        voxel_offset: global position of the first voxel, zyx (default: the origin).
        voxel_size_nm: size of a voxel, nanometres, zyx (default: 1 nm, with a warning).

    Raises:
        VolumeError: the file is not a .npy file, or is damaged.
        ChunkError: the array is neither 3D nor 4D, or its values are not numbers.
    """
    with os_errors("read", path):
        if path.stat().st_size == 0:
            return None
    array = _mapped(path)
    return FileVolume(
        str(path),
        array.shape,
        array.dtype,
        partial(_read_part, path),
        voxel_offset=voxel_offset,
        voxel_size_nm=voxel_size_nm,
    )


def _mapped(path: Path) -> NDArray[Any]:
    try:
        with os_errors("read", path):
            # Memory-mapped, so that only the requested part is read; pickles could run code.
            array: NDArray[Any] = mapped_npy(path)
    except (ValueError, EOFError, ArithmeticError, MemoryError) as error:
        if isinstance(error, VolumeError):
            raise
        with path.open("rb") as file:
            if not file.read(6).startswith((b"\x93NUMPY", b"PK")):
                msg = f"{path} is not a .npy file; check --file-name"
                raise VolumeError(msg) from error
        msg = f"{path} is not a .npy file of numbers, or is damaged: {error}; check --file-name"
        raise VolumeError(msg) from error
    if not isinstance(array, np.ndarray):
        array.close()
        msg = f"{path} is an archive of several arrays; save one array with numpy.save"
        raise VolumeError(msg)
    return array


def _read_part(
    path: Path, slices: tuple[slice, slice, slice], channels: Sequence[int] | None
) -> NDArray[Any]:
    array = _mapped(path)
    if channels is None:
        return np.array(array[(..., *slices)])
    return np.array(array[(list(channels), *slices)])

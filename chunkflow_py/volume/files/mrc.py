"""Read MRC files of electron microscopy; uncompressed files are memory-mapped.

| what         | read from                                                                      |
|--------------|--------------------------------------------------------------------------------|
| axes         | mapc, mapr, maps: the axis (x, y, z) of the columns, rows and sections         |
| voxel size   | cell dimensions divided by the sampling, ångström; 1 nm if the header has none |
| voxel offset | nxstart, nystart, nzstart, voxels; ORIGIN is ignored: tools disagree on it     |
| sign of bytes| IMOD's flag; if there is none, bytes are unsigned if the maximum is above 127  |

Formats: https://www.ccpem.ac.uk/mrc_format/mrc2014.php and, for the meaning of bytes,
https://bio3d.colorado.edu/imod/doc/mrc_format.txt
"""

from __future__ import annotations

import bz2
import gzip
import io
import warnings
import zlib
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.core.decoding import decode
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.host_memory import check_fits
from chunkflow_py.errors import ChunkError, VolumeError, needs_extra
from chunkflow_py.store.local_files import os_errors
from chunkflow_py.volume.files.file_volume import FileVolume
from chunkflow_py.volume.protocol import UNIT_NM

with needs_extra("image", "reading MRC"):
    import mrcfile
    from mrcfile.mrcinterpreter import MrcInterpreter

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

EXTENSIONS = (".mrc", ".rec", ".st", ".map", ".ali", ".mrcs", ".mrc.gz", ".mrc.bz2")
Bytes = Literal["auto", "signed", "unsigned"]

_PACKED = {".gz": "gzip members", ".bz2": "bz2"}
_IMOD_STAMP, _IMOD_AT, _SIGNED_BIT = 1146047817, 40, 1
_HEADER_BYTES, _EXTENDED_AT, _ORDER_AT, _BIG_ENDIAN = 1024, 92, 212, 0x11
_EXTENDED_BYTES = 1 << 26  # limit; series of thousands of images have the largest
_VOXEL_BYTES = {0: 1, 1: 2, 2: 4, 3: 4, 4: 8, 6: 2, 12: 2, 101: 1}  # by mode
_MORE_BYTES = 1 << 20  # limit for surplus bytes, which some programs write after the voxels
_ANGSTROM = 0.1  # nm


def open_mrc(
    path: Path,
    voxel_offset: Zyx | None = None,
    voxel_size_nm: tuple[float, float, float] | None = None,
    stored_bytes: Bytes = "auto",
) -> FileVolume | None:
    """Open the array of an MRC file, reading only the header.

    Args:
        path: file to read.
        voxel_offset: global position of the first voxel, zyx; replaces that of the file.
        voxel_size_nm: voxel size, nanometres, zyx; replaces that of the file.
        stored_bytes: whether bytes (mode 0) are signed, as in the standard, or unsigned, as many
            cameras write them. ``auto`` follows the flag of IMOD in the header; without this flag,
            bytes are unsigned if the maximum in the header is above 127.

    Returns:
        The array, or ``None`` for an empty file.

    Raises:
        VolumeError: the file is not an MRC file, or is damaged.
        ChunkError: the voxels are complex numbers.
    """
    with os_errors("read", path):
        if path.stat().st_size == 0:
            return None
    with _opened(path) as file:
        header, dtype = file.header, _dtype(file, stored_bytes)
        shape = _ordered(file, path).shape
        size_nm = voxel_size_nm or _voxel_size(file)
        start = Zyx(int(header.nzstart), int(header.nystart), int(header.nxstart))
    return FileVolume(
        str(path),
        shape,
        dtype,
        partial(_read_part, path, stored_bytes),
        voxel_offset=voxel_offset or start,
        voxel_size_nm=size_nm,
        kind="image",
    )


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    """Yield the open file; uncompressed data are memory-mapped."""
    try:
        with os_errors("read", path):
            codec, most = _checked(path)
            content = None if codec is None else decode(codec, path.read_bytes(), most)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about surplus bytes at the end
            if content is None:
                file = mrcfile.mmap(str(path), mode="r")
            else:  # mrcfile itself would decompress without a limit
                file = MrcInterpreter(iostream=io.BytesIO(content))
        with file:
            yield file
    except (ChunkError, VolumeError):
        raise
    except (ValueError, OSError, EOFError, ArithmeticError, MemoryError, zlib.error) as error:
        reason = str(error).rstrip(".")
        msg = (
            f"cannot read {path}, which is damaged or not an MRC file: {reason}; check --file-name"
        )
        raise VolumeError(msg) from error


def _checked(path: Path) -> tuple[str | None, int]:
    """Return the compression of a file, and the largest number of bytes after decompression.

    Raises:
        ValueError: the extended header is longer than the file, or than `_EXTENDED_BYTES`.
        VolumeError: the file is compressed and does not fit into memory.
    """
    codec = _PACKED.get(path.suffix.lower())
    with path.open("rb") as file:
        openers: dict[str | None, Any] = {"bz2": bz2.open, "gzip members": gzip.open}
        stream: Any = openers[codec](file) if codec else file
        head = stream.read(_HEADER_BYTES)
    if len(head) < _HEADER_BYTES:
        return codec, _HEADER_BYTES  # mrcfile reports the error
    order: Literal["big", "little"] = "big" if head[_ORDER_AT] == _BIG_ENDIAN else "little"
    columns, rows, sections, mode, *others = np.frombuffer(
        head, np.dtype(np.int32).newbyteorder(order)
    ).tolist()
    extended = others[_EXTENDED_AT // 4 - 4]
    most = _EXTENDED_BYTES if codec else min(path.stat().st_size, _EXTENDED_BYTES)
    if not 0 <= extended <= most:
        msg = f"the extended header has {extended} bytes, more than the limit of {most}"
        raise ValueError(msg)
    size = columns * rows * sections * _VOXEL_BYTES.get(mode, 1)
    if codec is not None:
        check_fits(2 * size, f"{path}, which is compressed and read whole,")
    return codec, _HEADER_BYTES + extended + max(0, size) + _MORE_BYTES


def _ordered(file: Any, path: Path) -> NDArray[Any]:
    """Return the data as (z, y, x) or, for a stack of volumes, (c, z, y, x)."""
    header = file.header
    data: NDArray[Any] = file.data
    if data.ndim == 2:
        data = data[None]
    stored = [int(header.maps), int(header.mapr), int(header.mapc)]
    if sorted(stored) != [1, 2, 3]:
        if any(stored):
            msg = (
                f"{path} is damaged: mapc, mapr and maps must be 1, 2 and 3 in any order, but are "
                f"{stored[::-1]}; save the file again"
            )
            raise VolumeError(msg)
        stored = [3, 2, 1]  # old tools do not set them
    lead = data.ndim - 3
    order = [lead + stored.index(axis) for axis in (3, 2, 1)]
    return data.transpose([*range(lead), *order])


def _voxel_size(file: Any) -> tuple[float, float, float]:
    size = file.voxel_size
    angstroms = (float(size.z), float(size.y), float(size.x))
    if not all(0 < a < float("inf") for a in angstroms):
        return UNIT_NM
    # the header has single precision: 0.4 nm is not 0.4000000059604645 nm
    z, y, x = (float(f"{a * _ANGSTROM:.6g}") for a in angstroms)
    return z, y, x


def _dtype(file: Any, stored_bytes: Bytes) -> np.dtype[Any]:
    dtype: np.dtype[Any] = file.data.dtype
    if dtype != np.int8:
        return dtype
    header = file.header
    if stored_bytes == "auto":
        order = header.mode.dtype.newbyteorder(header.mode.dtype.byteorder)
        fields = np.frombuffer(header.extra2.tobytes(), order)
        stamp, flags = fields[_IMOD_AT // 4 : _IMOD_AT // 4 + 2]
        if stamp == _IMOD_STAMP:
            unsigned = not flags & _SIGNED_BIT
        else:
            unsigned = header.dmax > np.iinfo(np.int8).max
    else:
        unsigned = stored_bytes == "unsigned"
    return np.dtype(np.uint8 if unsigned else np.int8)


def _read_part(
    path: Path,
    stored_bytes: Bytes,
    slices: tuple[slice, slice, slice],
    channels: Sequence[int] | None,
) -> NDArray[Any]:
    with _opened(path) as file:
        dtype = _dtype(file, stored_bytes)
        array = _ordered(file, path)
        part = array[(..., *slices)] if channels is None else array[(list(channels), *slices)]
        return np.array(part, order="C").view(dtype)

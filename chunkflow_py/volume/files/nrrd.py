"""Read and write NRRD files, which contain one array with its axes, voxel size and origin.

| what         | written as                             | read from (the first that exists)   |
|--------------|----------------------------------------|-------------------------------------|
| axes         | labels x, y, z and c; x is fastest     | labels, space directions, --order   |
| channels     | the slowest axis, of kind list         | an axis without a space direction   |
| voxel size   | space directions, space units nm       | space directions, spacings          |
| voxel offset | key voxel_offset, zyx; space origin    | the key, space origin (in voxels)   |
| kind         | key layer_type                         | the key                             |

A header lists the fastest axis first: the sizes of an image (z, y, x) are stored as x, y, z.
Lengths without a unit are read as nanometres. Format: http://teem.sourceforge.net/nrrd/format.html
"""

from __future__ import annotations

import io
import math
import os
import re
import zlib
from contextlib import contextmanager
from functools import partial
from typing import IO, TYPE_CHECKING, Any, cast

import numpy as np

from chunkflow_py.core.chunk import KINDS
from chunkflow_py.core.decoding import decode
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.host_memory import check_fits
from chunkflow_py.errors import ChunkError, VolumeError, needs_extra
from chunkflow_py.store.local_files import os_errors, replacing
from chunkflow_py.volume.files.file_volume import ORIGIN, FileVolume, three_numbers
from chunkflow_py.volume.protocol import UNIT_NM
from chunkflow_py.volume.zarr import ome_metadata as ome

with needs_extra("image", "reading and writing NRRD"):
    import nrrd

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk, Kind

EXTENSIONS = (".nrrd", ".nhdr")
ENCODINGS = ("gzip", "raw", "bzip2")

_SPATIAL = {"domain", "space", "???", "none", ""}  # kinds of axes that may lie in space
_NO_UNITS = {"", "pixel", "voxel"}
_HEADER_BYTES = 1 << 20
_LONGEST = 1 << 40  # voxels along an axis
_PACKED = {
    "raw": "raw", "gzip": "gzip members", "gz": "gzip members", "bzip2": "bz2", "bz2": "bz2",
}  # fmt: skip
_TEXT = ("ascii", "text", "txt")
_DATE = re.compile(rb"^# on [0-9-]+ [0-9:]+\(GMT\)\.$", re.MULTILINE)
_COMMENT_BYTES = 500  # the comments of pynrrd are within them
_LEVEL = 1  # of gzip; higher levels take several times as long and save a few per cent


# --- reading ------------------------------------------------------------------------------------


def open_nrrd(
    path: Path,
    voxel_offset: Zyx | None = None,
    voxel_size_nm: tuple[float, float, float] | None = None,
    kind: Kind | None = None,
    order: str = "xyz",
) -> FileVolume | None:
    """Open the array of an NRRD file, reading only the header.

    Args:
        path: path of the file, or of a header whose voxels are in another file of the same folder.
        voxel_offset: global position of the first voxel, zyx; replaces that of the file.
        voxel_size_nm: voxel size, nanometres, zyx; replaces that of the file.
        kind: kind of voxels; replaces that of the file.
        order: order of the spatial axes, fastest first, if the header does not name them.

    Returns:
        The array, or ``None`` for an empty file.

    Raises:
        VolumeError: the file is not an NRRD file, is damaged, or its voxels are in another folder.
        ChunkError: the array does not have two or three spatial axes and at most one channel axis,
            or the values are not numbers.
    """
    with os_errors("read", path):
        if path.stat().st_size == 0:
            return None
    with _opened(path) as (header, _):
        axes = _axes(header, order, path)
        sizes = [int(n) for n in header["sizes"]]
        dtype = _dtype(header, path)
        _data_file(header, path)
        size_nm = voxel_size_nm or _voxel_size(header, axes, path)
        offset = voxel_offset or _offset(header, axes, path)
    lengths = dict(zip(axes, sizes, strict=True))
    shape = tuple(lengths.get(axis, 1) for axis in ("czyx" if "c" in axes else "zyx"))
    if kind is None and header.get("layer_type") in KINDS:
        kind = cast("Kind", header["layer_type"])
    return FileVolume(
        str(path),
        shape,
        dtype,
        partial(_read_part, path, axes),
        voxel_offset=offset,
        voxel_size_nm=size_nm,
        kind=kind,
    )


@contextmanager
def _opened(path: Path) -> Iterator[tuple[dict[str, Any], IO[bytes]]]:
    try:
        with os_errors("read", path), path.open("rb") as file:
            yield _header(file), file
    except (ChunkError, VolumeError):
        raise
    except nrrd.NRRDError as error:
        with path.open("rb") as file:
            damaged = file.read(4) == b"NRRD"
        what = (
            f"damaged ({error}); save the file again"
            if damaged
            else "not an NRRD file; check --file-name"
        )
        msg = f"cannot read {path}, which is {what}"
        raise VolumeError(msg) from error
    except KeyError as error:
        msg = (
            f"cannot read {path}, which is damaged: the header lacks the field {error}; save the "
            "file again"
        )
        raise VolumeError(msg) from error
    except (
        ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, MemoryError,
        RuntimeError, zlib.error,
    ) as error:  # fmt: skip
        msg = (
            f"cannot read {path}, which is damaged or not an NRRD file: {error}; save the file "
            "again"
        )
        raise VolumeError(msg) from error


def _header(file: IO[bytes]) -> dict[str, Any]:
    """Return the header; afterwards the file is positioned at the end of the header.

    Raises:
        ValueError: the header does not end within `_HEADER_BYTES`, or the size along an axis is not
            between 1 and `_LONGEST`.
        Exception: any error of the library on a damaged header.
    """
    head = io.BytesIO(file.read(_HEADER_BYTES))
    header: dict[str, Any] = nrrd.read_header(head)
    if head.tell() == _HEADER_BYTES:
        msg = f"the header does not end within the first {_HEADER_BYTES} bytes"
        raise ValueError(msg)
    file.seek(head.tell())
    if not all(0 < int(n) <= _LONGEST for n in header["sizes"]):
        msg = (
            f"the header states the sizes {header['sizes']}, but each size must be between 1 and "
            f"{_LONGEST}"
        )
        raise ValueError(msg)
    return header


def _axes(header: Mapping[str, Any], order: str, path: Path) -> str:
    """Return the names of the axes, fastest first."""
    count = int(header["dimension"])
    kinds = [str(kind).lower() for kind in header.get("kinds", [])]
    spatial = [i for i in range(count) if not kinds or kinds[i] in _SPATIAL]
    vectors = _vectors(header)
    spatial = [i for i in spatial if vectors is None or not np.isnan(vectors[i]).any()]
    if len(spatial) == count == 4:
        spatial = spatial[:3]
    if not 2 <= len(spatial) <= 3 or count - len(spatial) > 1:
        msg = (
            f"{path} has {count} axes of sizes {[*map(int, header['sizes'])]}; according to the "
            f"header, {len(spatial)} of these axes are spatial, but there must be two or three "
            "spatial axes and at most one channel axis; correct the kinds in the header, or split "
            "the file"
        )
        raise ChunkError(msg)
    labels = [str(label).strip().lower() for label in header.get("labels", [])]
    named = "".join(labels[i] for i in spatial) if labels else ""
    if sorted(named) != sorted("xyz"[: len(spatial)]):
        named = _along(vectors, spatial) or "".join(a for a in order if a in "xyz"[: len(spatial)])
    names = dict(zip(spatial, named, strict=True))
    return "".join(names.get(i, "c") for i in range(count))


def _vectors(header: Mapping[str, Any]) -> NDArray[Any] | None:
    # One row per axis; NaN for axes that are not spatial.
    rows = header.get("space directions")
    if rows is None:
        return None
    width = max((len(row) for row in rows if row is not None), default=0)
    return np.array([[np.nan] * width if row is None else row for row in rows], float)


def _along(vectors: NDArray[Any] | None, spatial: Sequence[int]) -> str:
    """Return the direction (x, y or z) that is nearest to each spatial axis.

    If the same direction is nearest to two axes, the result is empty.
    """
    if vectors is None or vectors.shape[1] != len(spatial):
        return ""
    nearest = np.abs(vectors[list(spatial)]).argmax(axis=1)
    return "".join("xyz"[i] for i in nearest) if len({*nearest}) == len(spatial) else ""


def _voxel_size(header: Mapping[str, Any], axes: str, path: Path) -> tuple[float, float, float]:
    vectors = _vectors(header)
    if vectors is not None:
        steps = np.sqrt(np.square(vectors).sum(axis=1))
    elif "spacings" in header:
        steps = np.asarray(header["spacings"], float)
    else:
        return UNIT_NM
    sizes = {a: float(step) for a, step in zip(axes, steps, strict=True)}
    units = header.get("space units") or header.get("units") or [""]
    name = str(units[0]).strip().lower().removesuffix("s")  # as in microns
    unit = None if name in _NO_UNITS else name
    return ome.nanometres([sizes.get(a, 1.0) for a in "zyx"], [unit] * 3, str(path))


def _offset(header: Mapping[str, Any], axes: str, path: Path) -> Zyx:
    # The origin of a rotated image is ignored, because it is not given along z, y and x.
    if "voxel_offset" in header:
        numbers = three_numbers(str(header["voxel_offset"]).split(), f"voxel_offset of {path}")
        return Zyx.of(int(v) for v in numbers)
    vectors, origin = _vectors(header), header.get("space origin")
    if vectors is None or origin is None:
        return ORIGIN
    place = {}
    for axis, vector in zip(axes, vectors, strict=True):
        if axis == "c":
            continue
        step = int(np.abs(vector).argmax())
        if vector[step] <= 0 or np.count_nonzero(vector) != 1:
            return ORIGIN
        place[axis] = round(float(origin[step]) / float(vector[step]))
    return Zyx(place.get("z", 0), place.get("y", 0), place.get("x", 0))


def _dtype(header: Mapping[str, Any], path: Path) -> np.dtype[Any]:
    try:
        dtype = nrrd.reader._determine_datatype(header)  # as read_data does
    except KeyError as error:
        msg = (
            f"{path} holds values of type {header['type']}, but a chunk holds numbers; convert the "
            "array"
        )
        raise ChunkError(msg) from error
    if dtype.kind not in "uif":
        msg = f"{path} holds {dtype}, but a chunk holds real numbers; convert the array"
        raise ChunkError(msg)
    return cast("np.dtype[Any]", dtype)


def _data_file(header: Mapping[str, Any], path: Path) -> Path | None:
    """Return the file with the voxels, or ``None`` if the voxels follow the header.

    Raises:
        VolumeError: the header names several files, or a file in another folder. A header of
            unknown origin must not make this program read arbitrary files.
    """
    name = header.get("data file", header.get("datafile"))
    if name is None:
        return None
    file = path.parent / str(name)
    if file.resolve().parent != path.parent.resolve() or len(str(name).split()) > 1:
        msg = (
            f"{path} stores its voxels in {name}, but the voxels must be in one file in the folder "
            "of the header; store header and voxels in one file"
        )
        raise VolumeError(msg)
    return file


def _read_part(
    path: Path, axes: str, slices: tuple[slice, slice, slice], channels: Sequence[int] | None
) -> NDArray[Any]:
    with _opened(path) as (header, file):
        whole = _voxels(path, header, file)
    if "z" not in axes:
        whole, axes = whole[..., None], f"{axes}z"
    ordered = whole.transpose([axes.index(a) for a in ("czyx" if "c" in axes else "zyx")])
    part = ordered[(..., *slices)] if channels is None else ordered[(list(channels), *slices)]
    return np.ascontiguousarray(part)


def _voxels(path: Path, header: dict[str, Any], file: IO[bytes]) -> NDArray[Any]:
    data_file = _data_file(header, path)
    plain = header.get("encoding") == "raw" and not any(
        key in header for key in ("line skip", "lineskip", "byte skip", "byteskip")
    )
    if plain:
        sizes = tuple(int(n) for n in header["sizes"])
        start = 0 if data_file else file.tell()
        return np.memmap(data_file or path, _dtype(header, path), "r", start, sizes, "F")
    check_fits(_data_bytes(header, path), f"{path}, which is compressed and read whole,")
    if data_file is None:
        return _read_data(header, file, path)
    with data_file.open("rb") as other:
        return _read_data(header, other, path)


def _data_bytes(header: Mapping[str, Any], path: Path) -> int:
    return math.prod(int(n) for n in header["sizes"]) * _dtype(header, path).itemsize


def _read_data(header: Mapping[str, Any], file: IO[bytes], path: Path) -> NDArray[Any]:
    """Read the voxels at the current position of *file*; the axes are in the order of the header.

    Raises:
        ValueError: the number of voxels differs from the header, or the header skips more lines or
            bytes than the file has.
    """
    size, length = _data_bytes(header, path), os.fstat(file.fileno()).st_size
    lines = int(header.get("lineskip", header.get("line skip", 0)))
    skipped = int(header.get("byteskip", header.get("byte skip", 0)))
    encoding = str(header["encoding"]).lower()
    if not 0 <= lines <= length or not -1 <= skipped <= max(length, size):
        msg = (
            f"the header skips {lines} lines and {skipped} bytes, but the file with the voxels has "
            f"{length} bytes"
        )
        raise ValueError(msg)
    for _ in range(lines):
        if not file.readline():
            msg = f"the header skips {lines} lines, but the file with the voxels has fewer lines"
            raise ValueError(msg)
    if encoding in _TEXT:
        plain = {name: header[name] for name in ("type", "dimension", "sizes", "encoding")}
        voxels: NDArray[Any] = nrrd.read_data(plain, file, str(path))
        return voxels
    if encoding not in _PACKED:
        msg = f"the encoding {encoding!r} is not supported; use raw, gzip, bzip2 or text"
        raise ValueError(msg)
    most = size + (skipped if skipped > 0 else 0 if skipped == 0 else _HEADER_BYTES)
    content = memoryview(decode(_PACKED[encoding], file.read(), most))
    content = content[-size:] if skipped < 0 else content[skipped:]
    if len(content) != size:
        msg = (
            f"the file contains {len(content)} bytes of voxels, but the sizes in the header, "
            f"{header['sizes']}, need {size} bytes"
        )
        raise ValueError(msg)
    return np.frombuffer(content, _dtype(header, path)).reshape(header["sizes"][::-1]).T


# --- writing ------------------------------------------------------------------------------------


def write_nrrd(path: Path, chunk: Chunk, encoding: str = "gzip") -> None:
    """Write *chunk* to a temporary NRRD file, then rename the complete file to *path*.

    Args:
        path: file to write; an existing file is replaced.
        chunk: (z, y, x) or (c, z, y, x), numbers; bool is written as uint8.
        encoding: one of `ENCODINGS`. Readers can read a part of a ``raw`` array; they must read an
            array of any other encoding as a whole.

    Raises:
        ChunkError: NRRD does not support the dtype.
        VolumeError: the file cannot be written; an existing file is kept.
    """
    array = chunk.array.astype(np.uint8) if chunk.dtype == bool else chunk.array
    if array.dtype == np.float16:
        msg = (
            f"NRRD does not support {array.dtype} voxels; convert the voxels, for example with "
            "--dtype float32"
        )
        raise ChunkError(msg)
    if path.suffix.lower() == ".nhdr":
        msg = (
            f"cannot write {path}: the extension .nhdr is for headers without voxels; use "
            f"{path.with_suffix('.nrrd')}"
        )
        raise VolumeError(msg)
    channel = chunk.ndim == 4
    x_to_z = chunk.voxel_size_nm[::-1]
    directions = np.full((chunk.ndim, 3), np.nan)  # a channel axis has no direction
    directions[:3] = np.diag(x_to_z)
    header: dict[str, Any] = {
        "encoding": encoding,
        "space dimension": 3,
        "space directions": directions,
        "space units": ["nm"] * 3,
        "space origin": np.array(chunk.voxel_offset[::-1]) * x_to_z,
        "labels": [*"xyzc"[: chunk.ndim]],
        "kinds": ["domain"] * 3 + ["list"] * channel,
        "voxel_offset": " ".join(map(str, chunk.voxel_offset)),
    }
    if chunk.kind is not None:
        header["layer_type"] = chunk.kind
    with replacing(path) as temporary:
        nrrd.write(
            str(temporary), np.ascontiguousarray(array), header,
            index_order="C", compression_level=_LEVEL,
        )  # fmt: skip
        _remove_date(temporary)


def _remove_date(path: Path) -> None:
    """Overwrite the comment that contains the time, so that equal voxels give equal files."""
    with path.open("r+b") as file:
        if found := _DATE.search(file.read(_COMMENT_BYTES)):
            file.seek(found.start())
            file.write(b"# no date".ljust(len(found[0])))

"""Read TIFF files and folders of TIFF sections, and write TIFF files.

Chunks are written as a plain stack that any viewer opens, one page per section (and channel). The
description of the first page is JSON with ``axes`` (ZYX or CZYX), ``shape``, ``voxel_offset``,
``voxel_size_nm`` and ``layer_type``; the resolution tags also store the xy voxel size.

For files of other programs, the voxel size is read from OME-XML or from ImageJ's description.
OME-XML has PhysicalSizeX, Y, Z and their units (https://docs.openmicroscopy.org/ome-model/). In
files of ImageJ, the resolution tags give pixels per ``unit``, and the field ``spacing`` is the step
along z in this unit (1 by default).

The names of the axes are read from the file. In ``ZCYX`` (ImageJ) and ``ZYXS`` (samples), the
channel axis is moved to the front. Only the pages that a box needs are read.
"""

from __future__ import annotations

import html
import io
import re
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import KINDS
from chunkflow_py.core.decoding import packed_most
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.host_memory import check_fits
from chunkflow_py.errors import ChunkError, VolumeError, needs_extra
from chunkflow_py.store.local_files import os_errors, replacing
from chunkflow_py.volume.engine.image_headers import check_declared
from chunkflow_py.volume.files.file_volume import FileVolume, three_numbers
from chunkflow_py.volume.files.image_names import natural_order
from chunkflow_py.volume.files.sections import SectionStack
from chunkflow_py.volume.foreign_errors import translated_errors
from chunkflow_py.volume.zarr import ome_metadata as ome

with needs_extra("image", "reading and writing TIFF"):
    import imagecodecs  # noqa: F401  (tifffile finds its codecs there)
    import tifffile

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk, Kind

EXTENSIONS = (".tif", ".tiff")

# Names of the option; TIFF does not have packints and delta, so the nearest compression is used.
COMPRESSIONS: dict[str, dict[str, Any]] = {
    "": {},
    "zlib": {"compression": "zlib"},
    "lzw": {"compression": "lzw"},
    "lzma": {"compression": "lzma"},
    "delta": {"compression": "zlib", "predictor": True},
    "packints": {"compression": "packbits"},
    "jpeg": {"compression": "jpeg"},
}

# Codes of compressions: those that imagecodecs decodes into a buffer of fixed size, and images.
_BOUNDED = (5, 8, 32773, 32946, 34925, 34926, 50000)  # lzw, deflate, packbits, lzma, zstd
_IMAGES = {
    6: "jpeg", 7: "jpeg", 33003: "jpeg2000", 33004: "jpeg2000", 33005: "jpeg2000",
    34712: "jpeg2000", 34933: "png", 50002: "jxl", 52546: "jxl",
}  # fmt: skip
_PIXELS = re.compile(r"<(?:[A-Za-z0-9]+:)?Pixels\b[^>]*>")
_ATTRIBUTE = re.compile(r"\b([A-Za-z]+)\s*=\s*[\"']([^\"']*)[\"']")
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?")
_UNITS = {"Å": "angstrom", "pm": "picometer", "dm": "decimeter", "in": "inch", "microns": "micron"}
_OTHER_FILE = re.compile(r"FileName\s*=\s*[\"']([^\"']*)")  # of OME-XML
_CLASSIC_LIMIT = 2**32 - 2**25  # bytes; beyond, offsets need 64 bits
_MOST = 2.0**32 - 1  # pixels per cm that a resolution tag can store


# --- reading ------------------------------------------------------------------------------------


def open_tiff(
    path: Path,
    voxel_offset: Zyx | None = None,
    voxel_size_nm: tuple[float, float, float] | None = None,
    kind: Kind | None = None,
) -> FileVolume | None:
    """Open the array of a TIFF file, or of a folder of sections, reading only headers.

    Args:
        path: path of the file or folder; sections are sorted by name.
        voxel_offset: global position of the first voxel, zyx; replaces that of the file.
        voxel_size_nm: voxel size, nanometres, zyx; replaces that of the file.
        kind: kind of voxels; replaces that of the file.

    Returns:
        The array, or ``None`` for an empty file.

    Raises:
        VolumeError: the file is not a TIFF file, is damaged, or the folder has no TIFF files.
        ChunkError: the file has more axes than c, z, y and x.
    """
    if path.is_dir():
        return _open_folder(path, voxel_offset, voxel_size_nm, kind)
    with os_errors("read", path):
        if path.stat().st_size == 0:
            return None
    with _opened(path) as file:
        layout = _Layout(file, path)
        saved = description_of(file, f"{path}")
    voxel_size_nm = voxel_size_nm or saved.voxel_size_nm
    voxel_offset, kind = voxel_offset or saved.voxel_offset, kind or saved.kind
    return FileVolume(
        str(path),
        layout.shape,
        layout.series.dtype,
        partial(_read_part, path),
        voxel_offset=voxel_offset,
        voxel_size_nm=voxel_size_nm,
        kind=kind,
    )


def _open_folder(
    path: Path,
    voxel_offset: Zyx | None,
    voxel_size_nm: tuple[float, float, float] | None,
    kind: Kind | None,
) -> FileVolume:
    files = sorted(
        (p for p in path.iterdir() if p.suffix.lower() in EXTENSIONS and p.name[0] != "."),
        key=natural_order,
    )
    stack = SectionStack(dict(enumerate(files)), read_section, f"folder {path}", EXTENSIONS)
    if voxel_size_nm is None and files:
        voxel_size_nm = voxel_size_in(files[0])
    return stack.as_volume(voxel_offset, voxel_size_nm, kind)


@dataclass(frozen=True)
class Description:
    """Metadata of the voxels in a TIFF file; ``None`` for values that are not in the file.

    Attributes:
        voxel_offset: global position of the first voxel, zyx.
        voxel_size_nm: size of a voxel, nanometres, zyx.
        kind: meaning of the voxels.
    """

    voxel_offset: Zyx | None
    voxel_size_nm: tuple[float, float, float] | None
    kind: Kind | None


def description_of(file: tifffile.TiffFile, what: str) -> Description:
    """Return voxel offset, voxel size and kind of voxels from the metadata of an open file.

    Args:
        file: the open file.
        what: name of the file, for messages.

    Raises:
        VolumeError: the voxel offset or voxel size in the file is not three numbers.
    """
    saved = (file.shaped_metadata or [{}])[0] if file.is_shaped else {}
    offset = None
    if "voxel_offset" in saved:
        numbers = three_numbers(saved["voxel_offset"], f"voxel_offset of {what}")
        offset = Zyx.of(int(v) for v in numbers)
    kind = saved.get("layer_type")
    return Description(offset, _voxel_size(file, what), kind if kind in KINDS else None)


def voxel_size_in(path: Path) -> tuple[float, float, float] | None:
    """Return the voxel size in a file, nanometres, zyx.

    The result is ``None`` if the size along an axis is missing, or is not a length.
    """
    with _opened(path) as file:
        return _voxel_size(file, f"{path}")


def _voxel_size(file: tifffile.TiffFile, what: str) -> tuple[float, float, float] | None:
    saved = (file.shaped_metadata or [{}])[0] if file.is_shaped else {}
    if "voxel_size_nm" in saved:
        return three_numbers(saved["voxel_size_nm"], f"voxel_size_nm of {what}")
    if file.is_ome:
        pixels = _PIXELS.search(file.ome_metadata or "")
        attributes = dict(_ATTRIBUTE.findall(pixels[0])) if pixels else {}
        sizes = [attributes.get(f"PhysicalSize{axis}", "") for axis in "ZYX"]
        units = [html.unescape(attributes.get(f"PhysicalSize{axis}Unit", "µm")) for axis in "ZYX"]
    elif file.is_imagej and "unit" in (description := file.imagej_metadata or {}):
        tags = [file.pages.first.tags.get(f"{axis}Resolution") for axis in "YX"]
        steps = [tag.value[1] / tag.value[0] for tag in tags if tag is not None and tag.value[0]]
        sizes = [str(step) for step in (description.get("spacing", 1.0), *steps)]
        unit = str(description["unit"]).replace("\\u00B5", "µ")  # as Java writes it
        units = [unit] * 3
    else:
        return None
    units = [_UNITS.get(unit, unit) for unit in units]
    if len(sizes) != 3 or not all(map(_NUMBER.fullmatch, sizes)):
        return None
    if not all(map(ome.is_length, units)):  # such as pixel
        return None
    return ome.nanometres([float(size) for size in sizes], units, what)


def read_section(path: Path, data: bytes | None = None) -> NDArray[Any]:
    """Return the only section of a file, (y, x) or (c, y, x).

    Args:
        path: path of the file.
        data: content of the file, if it has been read already.

    Raises:
        VolumeError: the file is not a TIFF file, or is damaged.
        ChunkError: the file has several sections.
    """
    with _opened(path, data) as file:
        layout = _Layout(file, path)
        if layout.shape[-3] != 1:
            msg = (
                f"{path} has {layout.shape[-3]} sections, but each file of a folder must have one "
                "section; load this file alone"
            )
            raise ChunkError(msg)
        z, y, x = (slice(0, n) for n in layout.shape[-3:])
        part = _part_of(layout, path, (z, y, x), None)
    return part[..., 0, :, :]


@contextmanager
def _opened(path: Path, data: bytes | None = None) -> Iterator[tifffile.TiffFile]:
    source = path if data is None else io.BytesIO(data)
    with tiff_errors(path), tifffile.TiffFile(source) as file:
        check_names(file, path)
        yield file


@contextmanager
def tiff_errors(path: Path) -> Iterator[None]:
    """Turn errors of tifffile about a file into errors that name the file and the remedy.

    Raises:
        VolumeError: the file cannot be read, is not a TIFF file, or is damaged.
    """
    with os_errors("read", path):
        path.open("rb").close()
    remedy = "; save the file again"
    # tifffile raises errors of any kind for damaged headers
    with translated_errors(f"cannot read {path}, which seems damaged", remedy):
        try:
            yield
        except tifffile.TiffFileError as error:
            msg = f"{path} is not a TIFF file or is damaged: {error}; check --file-name"
            raise VolumeError(msg) from error


def check_names(file: tifffile.TiffFile, path: Path) -> None:
    """Refuse an OME-TIFF that names files outside its own folder.

    Raises:
        VolumeError: the metadata name a file in another folder. A header of unknown origin must not
            make this program read arbitrary files.
    """
    for name in _OTHER_FILE.findall(file.ome_metadata or "") if file.is_ome else ():
        if name != PurePath(name).name or "\\" in name or "&" in name:
            msg = (
                f"{path} stores voxels in {name}, which is not a file in the same folder; store "
                "all voxels in one file"
            )
            raise VolumeError(msg)


class _Layout:
    """Mapping of the axes of a file to (z, y, x) or (c, z, y, x).

    Attributes:
        shape: shape of the chunk.
        series: the first series of the file.
        stored: extents of the axes in the file, including those of length 1.
        order: indices of c (only if the file has channels), z, y and x among the stored axes. The
            index of z is -1 if the file has no z.
        leading: number of stored axes before y and x.
        by_page: whether each page is one whole section.
    """

    def __init__(self, file: tifffile.TiffFile, path: Path) -> None:
        """Read the axes of the first series."""
        if not file.series:
            msg = f"{path} contains no image; check --file-name"
            raise VolumeError(msg)
        self.series = file.series[0]
        axes = self.series.get_axes(squeeze=False)
        self.stored = tuple(int(n) for n in self.series.get_shape(squeeze=False))
        ours = file.is_shaped and "voxel_size_nm" in (file.shaped_metadata or [{}])[0]
        kept = [i for i, n in enumerate(self.stored) if n > 1 or axes[i] in "YX" or ours]
        places = {axis: i for i, axis in enumerate(axes) if i in kept and axis in "YX"}
        rest = [i for i in kept if i not in places.values()]
        channel = next((i for i in rest if axes[i] in "CS"), None)
        if channel is None and len(rest) == 2 and axes[rest[0]] in "QI":  # axes without a name
            channel = rest[0]
        deep = [i for i in rest if i != channel]
        if len(places) != 2 or len(deep) > 1:
            msg = (
                f"{path} has axes {axes} of extent {self.stored}, but a chunk is ZYX or CZYX; "
                "split the file into one file per time point or channel"
            )
            raise ChunkError(msg)
        # A single section has no z axis; any dropped axis of length 1 can stand in for it.
        self.order = ([] if channel is None else [channel]) + [
            deep[0] if deep else -1, places["Y"], places["X"],
        ]  # fmt: skip
        self.shape = tuple(1 if i < 0 else self.stored[i] for i in self.order)
        plane = [i for i in (places["Y"], places["X"]) if i >= 0]
        self.leading = min(plane)
        count = int(np.prod(self.stored[: self.leading], dtype=np.int64))
        self.by_page = len(self.series.pages) == count and sorted(plane) == plane


def check_page(page: Any, path: Path) -> None:
    """Check the strips or tiles of a page before decoding.

    Raises:
        VolumeError: a strip or tile has more bytes than `packed_most` allows for its pixels; or the
            decoder of the compression does not limit the size of its output.
        ValueError: a compressed image declares more pixels than a strip or tile has.
    """
    if page is None or page.compression == 1:
        return
    kind = int(page.compression)
    if kind not in (*_BOUNDED, *_IMAGES):
        known = ", ".join(str(code) for code in sorted((*_BOUNDED, *_IMAGES)))
        msg = (
            f"{path} has compression {kind}, which is not supported because its decoder does not "
            f"limit the size of the output; save the file again with a supported compression "
            f"({known}), such as zlib (8)"
        )
        raise VolumeError(msg)
    pixels = int(np.prod(page.chunks, dtype=np.int64))
    check_fits(pixels * page.dtype.itemsize, f"a part of a page of {path}")
    most = packed_most(pixels * page.dtype.itemsize)
    with path.open("rb") as file:
        for start, length in zip(page.dataoffsets, page.databytecounts, strict=False):
            if length > most:
                msg = (
                    f"{path} is damaged: a strip or tile has {length} bytes, more than the limit "
                    f"of {most}; save the file again"
                )
                raise VolumeError(msg)
            if kind in _IMAGES and length:
                file.seek(start)
                check_declared(_IMAGES[kind], file.read(length), pixels, or_fewer=True)


def _read_part(
    path: Path, slices: tuple[slice, slice, slice], channels: Sequence[int] | None
) -> NDArray[Any]:
    with _opened(path) as file:
        return _part_of(_Layout(file, path), path, slices, channels)


def _part_of(
    layout: _Layout, path: Path, slices: tuple[slice, slice, slice], channels: Sequence[int] | None
) -> NDArray[Any]:
    """Return the voxels of a box of an open file."""
    extents = zip(slices, layout.shape[-3:], strict=True)
    is_whole = channels is None and all(s == slice(0, extent) for s, extent in extents)
    if is_whole or not layout.by_page:
        # Read all pages in parallel: the whole array is requested, or pages are not sections
        # (planes of samples, volumes in one page) and the box is cut out afterwards.
        if layout.series.dataoffset is None:
            for page in layout.series.pages:
                check_page(page, path)
        whole = layout.series.asarray().reshape(layout.stored)
        others = [i for i in range(whole.ndim) if i not in layout.order]
        ordered = [i for i in layout.order if i >= 0]
        array = np.transpose(whole, [*others, *ordered]).reshape(layout.shape)
        part = array[(..., *slices)] if channels is None else array[(list(channels), *slices)]
        return np.ascontiguousarray(part)
    has_channels = len(layout.order) == 4
    count = layout.shape[0] if has_channels else 1
    wanted = range(count) if channels is None else channels
    size = [s.stop - s.start for s in slices]
    result = np.empty((len(wanted), *size), layout.series.dtype)
    for index, channel in enumerate(wanted):
        for row, section in enumerate(range(slices[0].start, slices[0].stop)):
            result[index, row] = _section(layout, channel, section, path)[slices[1:]]
    return result if has_channels else result[0]


def _section(layout: _Layout, channel: int, section: int, path: Path) -> NDArray[Any]:
    index = [0] * len(layout.stored)
    for place, value in zip(layout.order[-3::-1], (section, channel), strict=False):
        if place >= 0:
            index[place] = value
    leading = layout.stored[: layout.leading]
    number = int(np.ravel_multi_index(index[: layout.leading], leading)) if leading else 0
    page = layout.series.pages[number]
    if page is None:  # an omitted page stands for zeros
        return np.zeros([layout.stored[i] for i in layout.order[-2:]], layout.series.dtype)
    check_page(page, path)
    image: Any = page.asarray().reshape(layout.stored[layout.leading :])
    samples = tuple(index[layout.leading + 2 :])
    plane: NDArray[Any] = image[(..., *samples)]
    return plane


# --- writing ------------------------------------------------------------------------------------


def write_tiff(path: Path, chunk: Chunk, compression: str = "zlib") -> None:
    """Write *chunk* to a temporary TIFF file, then rename the complete file to *path*.

    Args:
        path: file to write; an existing file is replaced.
        chunk: (z, y, x) or (c, z, y, x), numbers; bool is written as uint8.
        compression: one of `COMPRESSIONS`; ``jpeg`` is lossy and accepts uint8 images only.

    Raises:
        ChunkError: the chunk is empty, or ``jpeg`` does not support its dtype or kind.
        VolumeError: the file cannot be written, for example on a full disk; an existing file is
            kept.
    """
    array = chunk.array.astype(np.uint8) if chunk.dtype == bool else chunk.array
    if array.size == 0:
        msg = f"chunk {chunk.bbox} has no voxels, and TIFF cannot store empty images; save as HDF5"
        raise ChunkError(msg)
    if compression == "jpeg" and (array.dtype != np.uint8 or chunk.kind == "segmentation"):
        what = "labels" if chunk.kind == "segmentation" else f"{array.dtype} voxels"
        msg = (
            f"jpeg supports only uint8 images, but chunk {chunk.bbox} has {what}; "
            "use --compression zlib, or --dtype uint8 for an image"
        )
        raise ChunkError(msg)
    _, y_nm, x_nm = chunk.voxel_size_nm
    metadata = {
        "axes": "ZYX" if chunk.ndim == 3 else "CZYX",
        "voxel_offset": list(chunk.voxel_offset),
        "voxel_size_nm": list(chunk.voxel_size_nm),
        "layer_type": chunk.kind,
    }
    options = dict(COMPRESSIONS[compression])
    if array.dtype.kind != "f" and array.dtype.itemsize == 8:
        options.pop("predictor", None)  # the predictor does not support 64-bit integers
    with replacing(path) as temporary:
        tifffile.imwrite(
            temporary,
            np.ascontiguousarray(array),
            bigtiff=array.nbytes > _CLASSIC_LIMIT,
            photometric="minisblack",
            resolution=(min(1e7 / x_nm, _MOST), min(1e7 / y_nm, _MOST)),
            resolutionunit="CENTIMETER",
            metadata=metadata,
            **options,
        )

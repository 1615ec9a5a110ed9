"""Map a TIFF file to an array of blocks: each tile, or each page without tiles, is one block.

```
series   T  C  Z  Y  X  S     axes of the file; a page is (y, x, s), and t, c and z number the pages
block    one page, or one tile of a page; samples (S) are channels
```

A page is stored as strips or tiles ("segments"). If all pages are uncompressed and stored one after
the other, the position of a page is computed, and the file's list of segments is not read.
"""

from __future__ import annotations

import html
import logging
import math
import re
import weakref
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np
import tifffile

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.host_memory import available_host_bytes, describe_bytes
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume.engine.block_layout import BlockLayout
from chunkflow_py.volume.files.tiff import check_names, check_page, tiff_errors

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.engine.block_layout import Index

logger = logging.getLogger(__name__)

_CANONICAL = "tczyx"
_NAMES = {"T": "t", "C": "c", "S": "c", "Z": "z", "Y": "y", "X": "x"}  # axes of tifffile
_UNNAMED = "QI"  # axes whose meaning the file does not state
_CHANNEL = re.compile(r"<(?:[A-Za-z0-9]+:)?Channel\b[^>]*>")
_NAME = re.compile(r"\bName\s*=\s*[\"']([^\"']*)[\"']")
_COLOR = re.compile(r"\bColor\s*=\s*[\"'](-?[0-9]{1,10})[\"']")
_WHITE = "FFFFFF"  # the default of OME-XML


class TiffLayout(BlockLayout):
    """The blocks of one level of the first image of a TIFF file; read only.

    Attributes:
        axes, shape, block, unit, dtype, fill, root: see `BlockLayout`.
        levels: number of resolution levels of the image.
        scale: size of a voxel of this level in voxels of level 0, zyx.
        channel_names: names of the channels in OME-XML; empty if a channel has no name.
        channel_colors: colours of the channels in OME-XML; empty if a channel has no colour.
    """

    def __init__(self, path: Path, mip: int = 0) -> None:
        """Open the file and read its headers.

        Raises:
            VolumeNotFoundError: the file has no level *mip*.
            VolumeError: the file is not a TIFF file, is damaged, or has metadata that name files in
                other folders.
            ChunkError: the image has axes that a volume does not have.
        """
        self._path, self._lock = path, Lock()
        self._checked: set[int] = set()  # numbers of pages
        with tiff_errors(path):
            self._file = tifffile.TiffFile(path)
            # The headers of pages are read when they are needed, so the file stays open.
            weakref.finalize(self, self._file.close)
            check_names(self._file, path)
            self._set_level(mip)
        self.root = path.name

    def _set_level(self, mip: int) -> None:
        file, path = self._file, self._path
        if not file.series:
            msg = f"{path} contains no image; check the path"
            raise VolumeError(msg)
        if len(file.series) > 1:
            logger.warning(
                "%s contains %d images; only the first image is read", path, len(file.series)
            )
        self.levels = len(file.series[0].levels)
        if not 0 <= mip < self.levels:
            msg = f"{path} has the levels 0 to {self.levels - 1}, but no mip {mip}; change --mip"
            raise VolumeNotFoundError(msg)
        series = self._series = file.series[0].levels[mip]
        self._stored = tuple(int(n) for n in series.get_shape(squeeze=False))
        self._places = self._axes_of(series.get_axes(squeeze=False))
        self._extents = {a: self._stored[i] if i >= 0 else 1 for a, i in self._places.items()}
        self.axes = tuple(self._places)
        self.shape = tuple(self._extents.values())
        self.dtype = np.dtype(series.dtype).newbyteorder("=")
        if self.dtype.kind not in "buif":
            msg = f"{path} holds {self.dtype}, but a volume holds real numbers; convert the file"
            raise ChunkError(msg)
        self._set_pages()
        whole = dict(zip(file.series[0].axes, file.series[0].shape, strict=True))
        here = dict(zip(series.axes, series.shape, strict=True))
        z, y, x = (max(1, round(whole.get(a, 1) / here.get(a, 1))) for a in "ZYX")
        self.scale = Zyx(z, y, x)

    def _axes_of(self, names: str) -> dict[str, int]:
        """Return a dict from each axis of the volume to its index among the axes of the file.

        The index of z is -1 if the file has no axis z.
        """
        file, path = self._file, self._path
        ours = file.is_shaped and "voxel_size_nm" in (file.shaped_metadata or [{}])[0]
        places: dict[str, int] = {}
        unnamed = []
        for place, (name, length) in enumerate(zip(names, self._stored, strict=True)):
            axis = _NAMES.get(name)
            if axis is None and name in _UNNAMED and length > 1:
                unnamed.append(place)
            elif axis is not None and (length > 1 or axis in "yx" or (ours and axis != "t")):
                if axis in places:
                    break
                places[axis] = place
            elif axis is None and length > 1:
                break
        else:
            free = [axis for axis in ("c", "z")[2 - len(unnamed) :] if axis not in places]
            if len(unnamed) <= 2 and len(free) == len(unnamed) and {"y", "x"} <= places.keys():
                places |= dict(zip(free, unnamed, strict=True))
                places.setdefault("z", -1)
                return {axis: places[axis] for axis in _CANONICAL if axis in places}
        msg = (
            f"{path} has axes {names} of extent {self._stored}, but a volume has at most the axes "
            "t, c, z, y and x, once each; split the file along its other axes"
        )
        raise ChunkError(msg)

    def _set_pages(self) -> None:
        """Determine along which axes the file is divided into pages, and choose the blocks."""
        series, stored = self._series, self._stored
        plane = min(self._places["y"], self._places["x"])
        self._contiguous = series.dataoffset is not None
        leading = plane
        if not self._contiguous:
            counts = [math.prod(stored[:k]) for k in range(plane + 1)]
            if len(series.pages) not in counts:
                msg = (
                    f"{self._path} has {len(series.pages)} pages, but its image of extent {stored} "
                    "cannot be divided into this number of pages; save the file again with one "
                    "page per section"
                )
                raise ChunkError(msg)
            leading = max(k for k, count in enumerate(counts) if count == len(series.pages))
        self._leading = leading
        page = series.keyframe
        self._tile: tuple[int, int] | None = None
        inside = [a for a, place in self._places.items() if place >= leading]
        plain = page.samplesperpixel == 1 or page.planarconfig == 1
        if page.is_tiled and not self._contiguous and plain and page.tiledepth in (0, 1):
            self._tile = (int(page.tilelength), int(page.tilewidth))
            if 0 in self._tile:
                msg = (
                    f"{self._path} is damaged: the tiles have the size {self._tile} (yx, pixels); "
                    "save the file again"
                )
                raise VolumeError(msg)
        extents = dict.fromkeys(self.axes, 1) | {a: self._extents[a] for a in inside}
        if self._tile is not None:
            extents |= {"y": self._tile[0], "x": self._tile[1]}
        self.block = self.unit = tuple(extents.values())
        need, available = 2 * self.block_bytes, available_host_bytes()
        if available is not None and need > available:
            what = "a page" if self._tile is None else "a tile"
            msg = (
                f"{what} of {self._path} is read as a whole and takes {describe_bytes(need)} of "
                f"memory, but this process may use {describe_bytes(available)}; store the file "
                "again in smaller tiles, for example with tifffile or Bio-Formats"
            )
            raise VolumeError(msg)

    @property
    def channel_names(self) -> tuple[str, ...]:
        """Name of each channel.

        If a channel has no name, or two channels have the same name, the result is empty.
        """
        names = tuple(html.unescape(name) for name in self._in_channels(_NAME))
        distinct = len(set(names)) == len(names) == self._extents.get("c", 1)
        return names if distinct and all(names) else ()

    @property
    def channel_colors(self) -> tuple[str, ...]:
        """Colour of each channel, RGB as six hexadecimal digits.

        The result is empty if a channel has no colour, or if there are several channels and all
        are white.
        """
        stored = [int(number) % 2**32 for number in self._in_channels(_COLOR)]  # RGBA
        colors = tuple(f"{number >> 8:06X}" for number in stored)
        count = self._extents.get("c", 1)
        meaningful = count == 1 or {*colors} != {_WHITE}
        return colors if len(colors) == count and meaningful else ()

    def _in_channels(self, attribute: re.Pattern[str]) -> list[str]:
        # Of the first image only, and only for channels with this attribute.
        text = (self._file.ome_metadata or "") if self._file.is_ome else ""
        image = text.partition("</Image>")[0].partition(":Image>")[0]
        found = (attribute.search(channel) for channel in _CHANNEL.findall(image))
        return [match[1] for match in found if match]

    @property
    def file(self) -> tifffile.TiffFile:
        """The open file, for its metadata."""
        return self._file

    def key(self, unit: Index) -> str:  # noqa: ARG002  (one file stores all blocks)
        """Return the name of the file."""
        return self.root

    def unit_of(self, key: str) -> Index | None:  # noqa: ARG002
        """Return ``None``, because one file stores all blocks."""
        return None

    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:  # noqa: ARG002
        """Raise an error, because TIFF volumes are read only."""
        msg = f"block {block} of {self._path} cannot be written: TIFF volumes are read only"
        raise VolumeError(msg)

    def exists(self, store: Store, unit: Index) -> bool:  # noqa: ARG002
        """Return whether a page is stored; an omitted page stands for zeros."""
        return self._contiguous or self._page(unit) is not None

    # --- reading -------------------------------------------------------------------------------

    def fetch(
        self,
        store: Store,  # noqa: ARG002
        unit: Index,
        blocks: Sequence[Index],
    ) -> dict[Index, bytes | None]:
        """Return a dict from each block to the bytes of its strips or its tile, joined in order."""
        with tiff_errors(self._path):
            if self._contiguous:
                size = self.block_bytes
                start = int(self._series.dataoffset or 0) + self._number(unit) * size
                return dict.fromkeys(blocks, _bytes_at(self._path, [start], [size]))
            page = self._page(unit)
            if page is None:
                return dict.fromkeys(blocks)
            self._check(page, unit)
            numbers = self._segments(page, unit)
            starts = [page.dataoffsets[i] for i in numbers]
            sizes = [page.databytecounts[i] for i in numbers]
            path = self._path.with_name(page.parent.filehandle.name)
            return dict.fromkeys(blocks, _bytes_at(path, starts, sizes))

    def decode(self, data: bytes, block: Index) -> NDArray[Any]:
        """Return the voxels of a block, with axes in the order of `axes`."""
        if self._contiguous:
            stored = self.dtype.newbyteorder("big" if self._file.byteorder == ">" else "little")
            voxels = np.frombuffer(data, stored)
            return self._ordered(voxels.reshape(self._stored[self._leading :]))
        page = self._page(block)
        numbers, key = self._segments(page, block), page.keyframe
        shape = key.shaped if self._tile is None else (1, 1, *self._tile, key.shaped[4])
        result = np.zeros(shape, key.dtype)
        tables = {}
        if page.jpegtables is not None:
            tables = {"jpegtables": page.jpegtables, "jpegheader": key.jpegheader}
        at = 0
        for number in numbers:
            size = page.databytecounts[number]
            segment, index, extent = key.decode(data[at : at + size], number, **tables)
            at += size
            if segment is None:  # no bytes: zeros
                continue
            s, d, h, w = (0, 0, 0, 0) if self._tile is not None else index[:4]
            depth, rows, columns = (
                min(n, most - first)
                for n, most, first in zip(extent[:3], shape[1:4], (d, h, w), strict=True)
            )
            part = segment[:depth, :rows, :columns]
            result[s, d : d + depth, h : h + rows, w : w + columns] = part
        if self._tile is not None:
            # z and samples are the only other axes of a tiled page.
            samples = result[0, 0]
            return self._ordered_tile(samples)
        return self._ordered(result.reshape(self._stored[self._leading :]))

    def _ordered(self, page: NDArray[Any]) -> NDArray[Any]:
        first = self._leading
        inside = [place - first for place in self._places.values() if place >= first]
        others = [axis for axis in range(page.ndim) if axis not in inside]
        moved = np.ascontiguousarray(np.transpose(page, [*others, *inside]))
        return moved.reshape(self.block)

    def _ordered_tile(self, samples: NDArray[Any]) -> NDArray[Any]:
        return np.ascontiguousarray(np.moveaxis(samples, -1, 0)).reshape(self.block)

    def _number(self, block: Index) -> int:
        """Return the number of the page of a block."""
        index = [0] * len(self._stored)
        for place, number in zip(self._places.values(), block, strict=True):
            if place >= 0:
                index[place] = number
        leading = self._stored[: self._leading]
        return int(np.ravel_multi_index(index[: self._leading], leading)) if leading else 0

    def _page(self, block: Index) -> Any:
        with self._lock:  # pages are read from the file on first use
            return self._series.pages[self._number(block)]

    def _check(self, page: Any, block: Index) -> None:
        """Check the strips or tiles of the page of *block*; each page is checked only once."""
        number = self._number(block)
        if number not in self._checked:
            check_page(page, self._path)
            self._checked.add(number)

    def _segments(self, page: Any, block: Index) -> Sequence[int]:
        """Return the numbers of the strips or of the tile of a block."""
        if self._tile is None:
            return range(len(page.dataoffsets))
        at = dict(zip(self.axes, block, strict=True))
        return [at["y"] * -(-page.keyframe.imagewidth // self._tile[1]) + at["x"]]


def _bytes_at(path: Path, starts: Sequence[int], sizes: Sequence[int]) -> bytes:
    """Return the bytes of several parts of a file, joined in the given order.

    Raises:
        OSError: the file cannot be read.
        ValueError: the file ends before a part ends.
    """
    parts = []
    with path.open("rb") as file:
        for start, size in zip(starts, sizes, strict=True):
            file.seek(start)
            parts.append(file.read(size))
            if len(parts[-1]) != size:
                msg = f"the file ends before byte {start + size}"
                raise ValueError(msg)
    return parts[0] if len(parts) == 1 else b"".join(parts)

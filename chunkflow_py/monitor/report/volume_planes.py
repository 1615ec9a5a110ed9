"""PNG images of three planes of a volume through a point (+).

```
+-----------+   +----+
| xy        |   | zy |
|     +     |   | +  |
+-----------+   +----+
| xz  +     |
+-----------+
```

The images show the box around all tasks, at the finest level at which the box has at most SIDE
voxels along each axis. If no level is coarse enough, the images show a window of SIDE voxels around
the point. Each plane is read separately, one voxel thick.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, ChunkflowError
from chunkflow_py.ops.viewing.colours import (
    check_labels,
    colours_of_channels,
    colours_of_labels,
    grey,
    kind_of,
    ranges_and_rule,
    shown_as,
    single_channel,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.monitor.run_volumes import RunVolume
    from chunkflow_py.volume.protocol import Volume

SIDE = 400  # voxels of the longest side of a plane


@dataclass(frozen=True)
class PlaneImage:
    """The image of one plane of a volume.

    Attributes:
        axes: ``xy``, ``xz`` or ``zy``: the axis that runs to the right, then the axis that runs
            down.
        where: position of the plane, such as ``z = 32``, in voxels of the level that is shown.
        png: image as a PNG file.
        extent_nm: height and width of the image, in nanometres.
    """

    axes: str
    where: str
    png: bytes
    extent_nm: tuple[float, float]


@dataclass(frozen=True)
class VolumePlanes:
    """The planes that a report shows of one volume.

    Attributes:
        place: the volume.
        description: text with the kind of the volume (such as segmentation), its data type and its
            level, and with the intensity range and the box of the images.
        planes: images of the three planes; empty if they cannot be drawn.
        problem: reason why the planes cannot be drawn; empty if they are drawn.
    """

    place: RunVolume
    description: str = ""
    planes: tuple[PlaneImage, ...] = ()
    problem: str = ""


def planes_of(place: RunVolume, region: BoundingBox, point: Zyx) -> VolumePlanes:
    """Return images of three planes through *point*.

    The images show the part of *region* that the volume covers. If *point* is outside this part,
    the planes go through the nearest voxel of the part.

    Args:
        place: the volume.
        region: box around all tasks, in voxels at the resolution of the tasks.
        point: point inside *region*, in the same voxels.
    """
    try:
        volume = place.open()
        whole = place.shrink.coarser(region).intersection(volume.bounds)
        if whole.is_empty:
            problem = (
                f"the tasks cover {region}, which has no voxel in common with the bounds of "
                f"{volume.url}, {volume.bounds}"
            )
            return VolumePlanes(place, problem=problem)
        shown, factor, mip = _level(place, volume, whole)
        box = whole.coarser(factor).intersection(shown.bounds)
        at = place.shrink.coarser(BoundingBox.from_size(point, (1, 1, 1))).start
        middle = (at // factor).high(box.start).low(box.stop - 1)
        window = BoundingBox(
            (middle - SIDE // 2).high(box.start), (middle + SIDE // 2).low(box.stop)
        )
        chunks = [_read(shown, window, middle, axis) for axis in range(3)]
        description, planes = _drawn(chunks, shown)
    except ChunkflowError as error:
        return VolumePlanes(place, problem=str(error))
    level = f"mip {mip}" + (
        ""
        if window == box
        else ", only a part of the tasks' box, because no level is coarse enough to show all of it"
    )
    return VolumePlanes(place, f"{description}, {level}, {window}", planes)


def _level(place: RunVolume, volume: Volume, box: BoundingBox) -> tuple[Volume, Zyx, int]:
    """Return the finest level at which *box* has at most `SIDE` voxels along each axis.

    If no level is coarse enough, return the coarsest.

    Returns:
        The level as a volume, the extent of its voxels in voxels of *volume* (zyx), and its mip.
    """
    found = volume, Zyx(1, 1, 1), place.mip
    for mip in sorted(mip for mip in volume.mips if mip > place.mip):
        if max(box.coarser(found[1]).size) <= SIDE:
            break
        coarse = place.open(mip)
        fine_nm, coarse_nm = volume.voxel_size_nm, coarse.voxel_size_nm
        factor = Zyx(*(max(1, round(b / a)) for a, b in zip(fine_nm, coarse_nm, strict=True)))
        found = coarse, factor, mip
    return found


def _read(volume: Volume, window: BoundingBox, middle: Zyx, axis: int) -> Chunk:
    start, stop = [*window.start], [*window.stop]
    start[axis], stop[axis] = middle[axis], middle[axis] + 1
    box = BoundingBox(Zyx.of(start), Zyx.of(stop))
    return volume.read(box, time=None if volume.times is None else 0)


def _drawn(chunks: Sequence[Chunk], volume: Volume) -> tuple[str, tuple[PlaneImage, ...]]:
    """Return a description of the images, then the images; all have the same intensity range."""
    kind = kind_of(chunks[0])
    arrays = [single_channel(chunk.array) for chunk in chunks]
    channels = "" if arrays[0].ndim == 3 else f" x {len(arrays[0])} channels"
    description = f"{kind}, {volume.dtype}{channels}"
    if kind == "segmentation" and channels:
        kind = "image"  # a mask of each channel; not labels
    if kind == "segmentation":
        for chunk in chunks:
            check_labels(chunk)
        description += ", one colour per label"
        limits = [(0.0, 1.0)]
    elif volume.dtype.kind not in "biuf":
        msg = f"voxels of type {volume.dtype} cannot be shown as an image"
        raise ChunkError(msg)
    else:
        flat = [array.reshape(*array.shape[:-3], 1, 1, -1) for array in arrays]
        limits, rule = ranges_and_rule(np.concatenate(flat, axis=-1), kind)
        description += f", {shown_as(limits)}" + (f" ({rule})" if rule else "")
    planes = []
    for axis, axes in enumerate(("xy", "xz", "zy")):
        cut = arrays[axis].take(0, axis=arrays[axis].ndim - 3 + axis)
        sizes = [size for k, size in enumerate(volume.voxel_size_nm) if k != axis]
        if axes == "zy":  # columns are z, so that the rows match those of xy beside it
            cut, sizes = cut.swapaxes(-1, -2), sizes[::-1]
        if kind == "segmentation":
            image = colours_of_labels(cut)
        else:
            image = colours_of_channels(cut, limits) if cut.ndim == 3 else grey(cut, limits[0])
        where = f"{'zyx'[axis]} = {chunks[axis].voxel_offset[axis]}"
        rows, columns = image.shape[:2]
        planes.append(PlaneImage(axes, where, png_of(image), (rows * sizes[0], columns * sizes[1])))
    return description, tuple(planes)


def png_of(image: NDArray[np.uint8]) -> bytes:
    """Return the bytes of a PNG file (ISO/IEC 15948) of an image, without an image library.

    Args:
        image: array of grey levels, of shape (rows, columns), or of red, green and blue, of shape
            (rows, columns, 3).
    """
    rows, columns = image.shape[:2]
    colour = 2 if image.ndim == 3 else 0
    # Each row begins with the number of its filter: 0, none.
    lines = np.zeros((rows, 1 + image[0].size), np.uint8)
    lines[:, 1:] = image.reshape(rows, -1)
    header = struct.pack(">IIBBBBB", columns, rows, 8, colour, 0, 0, 0)
    parts = ((b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in parts
    )


# --- volumes of a step ----------------------------------------------------------------------------

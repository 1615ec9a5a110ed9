"""The volumes that a step reads and writes, and three planes of each through one point, as PNG.

The spec of a run names the volumes; no operator of its pipeline is called.

```
region of the tasks, at the level of the volume that shows it in SIDE voxels or less
+-----------+   +----+
| xy        |   | zy |     Where no level is so small, a window of SIDE voxels around the point.
|     +     |   | +  |     Each plane is read by itself: one voxel thick.
+-----------+   +----+
| xz  +     |
+-----------+
```
"""

from __future__ import annotations

import re
import struct
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, ChunkflowError, VolumeError
from chunkflow_py.ops.viewing.colours import (
    check_labels,
    colours_of_channels,
    colours_of_labels,
    grey,
    kind_of,
    range_and_rule,
    single_channel,
)
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.run.run_spec import RunStep
    from chunkflow_py.volume.protocol import Volume

SIDE = 400  # voxels of the longest side of a plane
# What the spec says of a level: an address, and of a file also its dataset.
_LEVEL = re.compile(r"(?P<address>.+) at mip (?P<mip>[0-9]+)")
_FACTOR_OF = "downsample"  # the operator whose output has larger voxels than its input


@dataclass(frozen=True)
class RunVolume:
    """A volume of a step.

    Attributes:
        role: ``input`` or ``output``.
        operator: that reads or writes it.
        address: to open it with.
        mip: its level.
        shrink: how many voxels of tasks make one of it, zyx.
    """

    role: str
    operator: str
    address: str
    mip: int
    shrink: Zyx = Zyx(1, 1, 1)

    def open(self, mip: int | None = None) -> Volume:
        """Return the volume, or another level of it.

        Raises:
            ChunkflowError: it cannot be opened.
        """
        return open_volume(self.address, self.mip if mip is None else mip)


@dataclass(frozen=True)
class PlaneImage:
    """One plane.

    Attributes:
        axes: ``xy``, ``xz`` or ``zy``: columns, then rows.
        where: such as ``z = 32``, in voxels of the level that is shown.
        png: the image.
        extent_nm: rows and columns.
    """

    axes: str
    where: str
    png: bytes
    extent_nm: tuple[float, float]


@dataclass(frozen=True)
class VolumePlanes:
    """The planes that a report shows of one volume.

    Attributes:
        place: of the volume.
        description: kind, type, level, box, black and white.
        planes: through the point.
        problem: why there are none.
    """

    place: RunVolume
    description: str = ""
    planes: tuple[PlaneImage, ...] = ()
    problem: str = ""


def planes_of(place: RunVolume, region: BoundingBox, point: Zyx) -> VolumePlanes:
    """Return planes through *point*, of the part of *region* that the volume covers.

    Args:
        place: of the volume.
        region: of all tasks, in their voxels.
        point: inside of it, in the same voxels.
    """
    try:
        volume = place.open()
        whole = region.coarser(place.shrink).intersection(volume.bounds)
        if whole.is_empty:
            problem = f"the tasks lie in {region}, and {volume.url} holds {volume.bounds}"
            return VolumePlanes(place, problem=problem)
        shown, factor, mip = _level(place, volume, whole)
        box = whole.coarser(factor).intersection(shown.bounds)
        middle = (point // place.shrink // factor).high(box.start).low(box.stop - 1)
        window = BoundingBox(
            (middle - SIDE // 2).high(box.start), (middle + SIDE // 2).low(box.stop)
        )
        chunks = [_read(shown, window, middle, axis) for axis in range(3)]
        description, planes = _drawn(chunks, shown)
    except ChunkflowError as error:
        return VolumePlanes(place, problem=str(error))
    level = f"mip {mip}" + ("" if window == box else ", a window, as no level is small enough")
    return VolumePlanes(place, f"{description}, {level}, {window}", planes)


def _level(place: RunVolume, volume: Volume, box: BoundingBox) -> tuple[Volume, Zyx, int]:
    """Return the finest level on which *box* is small enough, else the coarsest one.

    Returns:
        The level, how many voxels of *volume* make one of it, and its number.
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
    """Return a description of the planes, and the planes; all share one range of intensities."""
    kind = kind_of(chunks[0])
    arrays = [single_channel(chunk.array) for chunk in chunks]
    channels = "" if arrays[0].ndim == 3 else f" x {len(arrays[0])} channels"
    description = f"{kind}, {volume.dtype}{channels}"
    if kind == "segmentation" and channels:
        kind = "image"  # a mask of each channel; not labels
    if kind == "segmentation":
        for chunk in chunks:
            check_labels(chunk)
        description += ", a colour a label"
        limits = (0.0, 1.0)
    elif volume.dtype.kind not in "biuf":
        msg = f"voxels of {volume.dtype} cannot be shown as intensities"
        raise ChunkError(msg)
    else:
        limits, rule = range_and_rule(np.concatenate([array.ravel() for array in arrays]), kind)
        description += f", black {limits[0]:g}, white {limits[1]:g}"
        description += f" ({rule})" if rule else ""
    planes = []
    for axis, axes in enumerate(("xy", "xz", "zy")):
        cut = arrays[axis].take(0, axis=arrays[axis].ndim - 3 + axis)
        sizes = [size for k, size in enumerate(volume.voxel_size_nm) if k != axis]
        if axes == "zy":  # columns are z, so that it stands beside xy
            cut, sizes = cut.swapaxes(-1, -2), sizes[::-1]
        if kind == "segmentation":
            image = colours_of_labels(cut)
        else:
            image = colours_of_channels(cut, limits) if cut.ndim == 3 else grey(cut, limits)
        where = f"{'zyx'[axis]} = {chunks[axis].voxel_offset[axis]}"
        rows, columns = image.shape[:2]
        planes.append(PlaneImage(axes, where, png_of(image), (rows * sizes[0], columns * sizes[1])))
    return description, tuple(planes)


def png_of(image: NDArray[np.uint8]) -> bytes:
    """Return an image as a PNG file (ISO/IEC 15948): no library is needed for so little.

    Args:
        image: (rows, columns) grey, or (rows, columns, 3) red, green, blue.
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


def volumes_of(stage: RunStep) -> tuple[list[RunVolume], list[str]]:
    """Return the volumes, and other addresses, that a step reads and writes.

    Of several levels that one operator writes, the finest is taken.
    """
    found, others = [], []
    shrink = Zyx(1, 1, 1)
    for operator, options in stage.options:
        if operator == _FACTOR_OF and not options.get("coarse_tasks"):
            shrink = shrink * Zyx.of(options.get("factor") or (1, 1, 1))
        for role, key in (("input", "reads"), ("output", "writes")):
            seen: set[str] = set()
            for declared in options.get(key) or ():
                place = _place(role, operator, declared, options, shrink)
                if place is None:
                    others.append(
                        f"{operator} {'reads' if key == 'reads' else 'writes'} {declared}"
                    )
                elif place.address not in seen:
                    seen.add(place.address)
                    found.append(place)
    return found, others


def _place(
    role: str, operator: str, declared: str, options: dict[str, Any], shrink: Zyx
) -> RunVolume | None:
    level = _LEVEL.fullmatch(declared)
    address, mip = (level["address"], int(level["mip"])) if level else (declared, 0)
    for typed in _strings(options):
        try:
            place = Location.parse(typed)
        except VolumeError:
            continue
        where = f"{place.store_url}:{(place.dataset or 'main').strip('/')}"
        if address in (place.store_url, where) and place.format is not None:
            return RunVolume(role, operator, typed, mip, shrink)
    return None if level is None else RunVolume(role, operator, address, mip, shrink)


def _strings(options: dict[str, Any]) -> Iterator[str]:
    for key, value in options.items():
        if key not in ("reads", "writes") and isinstance(value, str) and "://" in value:
            yield value

"""Describe a stored volume in a few lines: axes, sizes, levels, blocks and values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.protocol import UNIT_NM

if TYPE_CHECKING:
    from chunkflow_py.volume.protocol import Volume, VolumeOptions

_SAMPLE = Zyx(64, 256, 256)  # largest extent of the box whose values are shown


def described(url: str, mip: int = 0, opening: VolumeOptions | None = None) -> dict[str, str]:
    """Return the properties of a volume: name of the property -> text.

    The property ``values`` is the range of voxel values in a box in the middle of the volume, at
    the first time point.

    Args:
        url: address of the volume.
        mip: level to describe.
        opening: options for reading the volume.

    Raises:
        VolumeNotFoundError: the volume or the level does not exist.
        VolumeError: the volume cannot be read.
    """
    volume = open_volume(url, mip, opening=opening)
    lengths = {"t": volume.times, "c": volume.channels} | dict(
        zip("zyx", volume.bounds.size, strict=True)
    )
    found = {
        "axes": ", ".join(f"{axis} {n:,}" for axis, n in lengths.items() if n is not None),
        "bounds": f"{volume.bounds} (zyx, voxels)",
        "voxel size": _size(volume),
        "type": str(volume.dtype) + (f", {volume.kind}" if volume.kind else ""),
    }
    if names := tuple(getattr(volume, "channel_names", ())):
        found["channels"] = ", ".join(names)
    for level in volume.mips:
        each = volume if level == mip else open_volume(url, level, opening=opening)
        found[f"level {level}"] = (
            f"{each.bounds.size} voxels of {_size(each)}, blocks of {each.block_size}"
        )
    found["values"] = _values(volume)
    return found


def _size(volume: Volume) -> str:
    if volume.voxel_size_nm is UNIT_NM:
        return "unknown"
    return f"{' x '.join(f'{nm:g}' for nm in volume.voxel_size_nm)} nm (zyx)"


def _values(volume: Volume) -> str:
    size = volume.bounds.size.low(_SAMPLE)
    start = volume.bounds.start + (volume.bounds.size - size) // 2
    box = BoundingBox.from_size(start, size)
    if not box.voxels:
        return "none"
    array = volume.read(box, time=None if volume.times is None else 0).array
    array = array.reshape(-1, *size)
    spans = ", ".join(f"{each.min():g} to {each.max():g}" for each in array)
    return f"{spans} in {box}"

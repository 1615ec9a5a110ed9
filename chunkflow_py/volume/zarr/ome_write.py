"""The attributes of new OME-Zarr images and plain arrays: axes, levels, channels, labels.

```
mip 0   |·|·|·|·|·|·|·|·|      voxels and their centres; the first voxel is number k0
mip 1   | · | · | · | · |      f = 2: the centre of its voxel k0 is half a fine voxel further
```

Coordinates of OME-Zarr are those of voxel centres, with the centre of voxel 0 of mip 0 at 0. A
level that is f times coarser, with voxels of size f·s, begins at (k0·f + (f - 1)/2)·s.
"""

from __future__ import annotations

from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import AXES
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume.zarr.ome import OURS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.volume.protocol import VolumeSpec

_COLORS = ("FF0000", "00FF00", "0000FF", "FFFF00", "FF00FF", "00FFFF")
_TYPES = {"t": "time", "c": "channel"}


def image_attributes(
    levels: Mapping[int, VolumeSpec],
    axes: Sequence[str],
    *,
    name: str,
    version: str,
    channel_names: Sequence[str] = (),
    is_label: bool = False,
) -> dict[str, Any]:
    """Return the attributes of an OME-Zarr group.

    Args:
        levels: what is true of each level, by its number.
        axes: names of the axes of the arrays, in order.
        name: of the image.
        version: ``0.4`` or ``0.5``.
        channel_names: one a channel, or none.
        is_label: whether it lies among the labels of an image.
    """
    spec = next(iter(levels.values()))
    image = {
        "name": name,
        "axes": [_axis(axis) for axis in axes],
        "datasets": [
            {"path": str(mip), "coordinateTransformations": _transformations(level, axes, mip)}
            for mip, level in levels.items()
        ],
    }
    ome: dict[str, Any] = {"multiscales": [image]}
    if spec.kind == "segmentation":
        ome["image-label"] = {"source": {"image": "../../"}} if is_label else {}
    elif channel_names or (spec.channels is not None and _has_known_range(spec)):
        ome["omero"] = {"channels": _channels(spec, channel_names)}
    if version == "0.5":
        return {"ome": {"version": version, **ome}, OURS: _ours(spec)}
    image["version"] = version
    if "image-label" in ome:
        ome["image-label"]["version"] = version
    return {**ome, OURS: _ours(spec)}


def plain_attributes(
    spec: VolumeSpec, axes: Sequence[str], channel_names: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the attributes of an array that stands alone.

    ``dimension_units`` is what Neuroglancer and tensorstore read; ``voxel_size`` (nm) and
    ``voxel_offset``, both zyx, are those of the HDF5 files.
    """
    scale = dict(zip(AXES, spec.voxel_size_nm, strict=True))
    return {
        "dimension_units": [f"{scale[a]:g} nm" if a in AXES else "" for a in axes],
        "voxel_size": list(spec.voxel_size_nm),
        "voxel_offset": list(spec.bounds.start),
        **({"channel_names": list(channel_names)} if channel_names else {}),
        OURS: _ours(spec),
    }


def check_channel_names(names: Sequence[str], channels: int | None, url: str) -> None:
    """Refuse names that are not one a channel.

    Raises:
        VolumeError: says how many are needed.
    """
    if names and len(names) != (channels or 1):
        msg = (
            f"cannot create {url}: {len(names)} channel names ({', '.join(names)}) for "
            f"{channels or 1} channels; give one a channel"
        )
        raise VolumeError(msg)


def _axis(name: str) -> dict[str, str]:
    # how long a time point is is not known, so that time has no unit
    if name in AXES:
        return {"name": name, "type": "space", "unit": "nanometer"}
    return {"name": name, "type": _TYPES[name]}


def _transformations(level: VolumeSpec, axes: Sequence[str], mip: int) -> list[dict[str, Any]]:
    scale, shift = dict.fromkeys(axes, 1.0), dict.fromkeys(axes, 0.0)
    for i, axis in enumerate(AXES):
        size = level.voxel_size_nm[i]
        centre = level.bounds.start[i] + (1 - 1 / level.shrink(mip)[i]) / 2
        scale[axis], shift[axis] = size, float(f"{centre * size:.12g}")
    return [
        {"type": "scale", "scale": [scale[a] for a in axes]},
        {"type": "translation", "translation": [shift[a] for a in axes]},
    ]


def _has_known_range(spec: VolumeSpec) -> bool:
    """Tell whether all values of a type are shown well: viewers take a window for the contrast.

    The format wants one for each channel, so that without names none is described at all.
    """
    return spec.dtype.itemsize == 1 or spec.kind in ("probability", "affinity")


def _channels(spec: VolumeSpec, names: Sequence[str]) -> list[dict[str, Any]]:
    """Return how viewers are to show the channels: names, colours and range of values."""
    count = spec.channels or 1
    if not names:
        affinity = spec.kind == "affinity" and count == 3
        names = AXES[::-1] if affinity else [f"channel {number}" for number in range(count)]
    window = {"min": 0.0, "max": 1.0, "start": 0.0, "end": 1.0}
    if spec.dtype.kind in "iu":
        info = np.iinfo(spec.dtype)
        window = {"min": info.min, "max": info.max, "start": info.min, "end": info.max}
    colors = cycle(_COLORS if count > 1 else ("FFFFFF",))
    return [
        {"label": name, "color": color, "active": True, "window": window}
        for name, color in zip(names, colors, strict=False)
    ]


def _ours(spec: VolumeSpec) -> dict[str, Any]:
    return {} if spec.kind is None else {"kind": spec.kind}

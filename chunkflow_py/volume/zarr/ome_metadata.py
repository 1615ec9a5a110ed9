"""What the metadata of zarr and N5 say of axes, voxel size, place and levels: reading.

OME-Zarr 0.5 (https://ngff.openmicroscopy.org/0.5/) keeps ``multiscales`` under ``ome`` in the
attributes of a group, 0.4 and older directly. Plain arrays are taken as funlib, xarray and
chunkflow 1.x leave them. Positions are affine per axis:

    physical = scale · index + translation    ->    voxel_offset = translation / scale, rounded

A translation is that of the centre of the first voxel, or in volumes of other programs of its
corner: they are less than half a voxel apart, and rounded to the same.
"""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import KINDS
from chunkflow_py.core.geometry import AXES, Zyx
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import ChunkflowError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume.protocol import UNIT_NM

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.volume.protocol import VolumeSpec

logger = logging.getLogger(__name__)

OURS = "chunkflow_py"  # the key of our own attributes
_NANOMETRES = {
    "attometer": 1e-9, "femtometer": 1e-6, "picometer": 1e-3, "angstrom": 0.1, "nanometer": 1.0,
    "micrometer": 1e3, "millimeter": 1e6, "centimeter": 1e7, "decimeter": 1e8, "meter": 1e9,
    "decameter": 1e10, "hectometer": 1e11, "kilometer": 1e12, "inch": 2.54e7, "foot": 3.048e8,
    "yard": 9.144e8, "mile": 1.609344e12,
    # as other formats write them
    "nm": 1.0, "um": 1e3, "µm": 1e3, "μm": 1e3, "micron": 1e3, "mm": 1e6, "cm": 1e7, "m": 1e9,
}  # fmt: skip
_BY_DIMENSIONS = {2: "yx", 3: "zyx", 4: "czyx", 5: "tczyx"}
_BY_TYPE = {"channel": "c", "time": "t"}
_COLORS = ("FF0000", "00FF00", "0000FF", "FFFF00", "FF00FF", "00FFFF")
_TYPES = {"t": "time", "c": "channel"}


@dataclass(frozen=True)
class Frame:
    """How the voxels of an array lie in the world.

    Attributes:
        axes: names of the array's axes in order, of t, c, z, y, x.
        voxel_size_nm: nanometres, zyx; 1 along a missing z.
        voxel_offset: position of the first voxel, voxels, zyx.
        kind: what the voxels mean, if known.
        channel_names: if known.
    """

    axes: tuple[str, ...]
    voxel_size_nm: tuple[float, float, float]
    voxel_offset: Zyx
    kind: Kind | None
    channel_names: tuple[str, ...] = ()


@contextmanager
def translated(what: str) -> Iterator[None]:
    """Translate whatever damaged metadata make the block stumble on into one sentence.

    Args:
        what: is tried, with its volume.

    Raises:
        VolumeError: anything was raised.
    """
    try:
        yield
    except ChunkflowError:
        raise
    except Exception as error:
        reason = str(error).strip() or type(error).__name__
        msg = f"cannot {what}: {reason}; its metadata may be damaged"
        raise VolumeError(msg) from error


def ome_of(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what OME-Zarr says in the attributes of a group, wherever its version keeps it."""
    found: Mapping[str, Any] = attributes.get("ome", attributes)
    return found


def multiscale(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first multiscale image that a group's attributes describe, if any.

    Raises:
        ValueError: it is not described as it should be.
    """
    found = ome_of(attributes).get("multiscales")
    if not found:
        return None
    image = _object(found[0]) if isinstance(found, list) else {}
    datasets = image.get("datasets")
    if not isinstance(datasets, list):
        msg = "its multiscales have no list of datasets"
        raise ValueError(msg)  # noqa: TRY004  (one kind of damage)
    if not all(isinstance(dataset, dict) and "path" in dataset for dataset in datasets):
        msg = "a dataset of its multiscales has no path"
        raise ValueError(msg)
    return dict(image)


def _object(found: Any) -> Mapping[str, Any]:
    return found if isinstance(found, dict) else {}


def level_paths(image: Mapping[str, Any]) -> dict[int, str]:
    """Return the paths of the datasets of an image by the numbers of their levels.

    Datasets are numbered by their paths if those are numbers, as a volume that begins at mip 2 has
    its first dataset at path ``2``; else in the order in which they are listed.
    """
    paths = [str(dataset["path"]) for dataset in image["datasets"]]
    if all(is_digits(path) for path in paths):
        return {int(path): path for path in paths}
    return dict(enumerate(paths))


def dataset_path(levels: Mapping[int, str], mip: int, url: str) -> str:
    """Return the path of level *mip*.

    Raises:
        VolumeNotFoundError: there is no such level.
    """
    if mip not in levels:
        msg = f"{url} has no mip {mip}; it has {', '.join(str(number) for number in levels)}"
        raise VolumeNotFoundError(msg)
    return levels[mip]


def multiscale_frame(
    image: Mapping[str, Any],
    path: str,
    attributes: Mapping[str, Any],
    url: str,
    shrinkage: Sequence[int] | None = None,
) -> Frame:
    """Return how dataset *path* of a multiscale image lies in the world.

    Args:
        image: the multiscale image.
        path: of the dataset.
        attributes: of the group.
        url: for messages.
        shrinkage: of the dataset against the finest one, one an axis, which counts where the image
            has no transformations (before version 0.4).

    Raises:
        VolumeError: an axis is unknown, or the transformations are not scale and translation.
    """
    dataset = next(d for d in image["datasets"] if str(d["path"]) == path)
    if "coordinateSystems" in image:
        msg = (
            f"{url} is an OME-Zarr with coordinate systems, newer than 0.5, which is not "
            "supported yet; store it as 0.5 or 0.4"
        )
        raise VolumeError(msg)
    # before version 0.3 the axes were always these
    given = [_as_dict(axis) for axis in image.get("axes") or "tczyx"]
    axes = tuple(_BY_TYPE.get(axis.get("type", ""), str(axis["name"]).lower()) for axis in given)
    if len(set(axes)) < len(axes) or not {"y", "x"} <= set(axes):
        msg = f"{url} has the axes {', '.join(axes)}; a volume needs y and x, and may have t, c, z"
        raise VolumeError(msg)
    scale = [float(s) for s in shrinkage or [1] * len(axes)]
    shift = [0.0] * len(axes)
    # those of the dataset come first, those of the whole image after them
    for step in (
        *dataset.get("coordinateTransformations", ()),
        *image.get("coordinateTransformations", ()),
    ):
        if step.get("type") == "identity":
            continue
        values = _values(step, len(axes), url)
        if step["type"] == "scale":
            scale = [a * b for a, b in zip(scale, values, strict=True)]
            shift = [a * b for a, b in zip(shift, values, strict=True)]
        else:
            shift = [a + b for a, b in zip(shift, values, strict=True)]
    by_name = {
        name: (size, translation, axis.get("unit"))
        for name, size, translation, axis in zip(axes, scale, shift, given, strict=True)
    }
    sizes, shifts, units = zip(
        *(by_name.get(a, (1.0, 0.0, "nanometer")) for a in AXES), strict=True
    )
    size = nanometres(sizes, units, url)
    offset = Zyx(*(math.floor(t / s + 0.5) for t, s in zip(shifts, sizes, strict=True)))
    ome = ome_of(attributes)
    kind = kind_of(attributes) or ("segmentation" if "image-label" in ome else None)
    return Frame(axes, size, offset, kind, _channel_names(ome))


def _as_dict(axis: Any) -> Mapping[str, Any]:
    return {"name": axis} if isinstance(axis, str) else axis


def _values(step: Mapping[str, Any], count: int, url: str) -> list[float]:
    """Return the numbers of a coordinate transformation.

    Raises:
        VolumeError: it is not one that is supported.
    """
    kind = step.get("type")
    if kind in ("scale", "translation") and "path" in step:
        msg = (
            f"{url} keeps a {kind} in an array of its own ({step['path']}), which is not "
            "supported; write its numbers into the metadata"
        )
        raise VolumeError(msg)
    values = step.get(kind) if kind in ("scale", "translation") else None
    if not isinstance(values, list) or len(values) != count:
        msg = f"{url} has a coordinate transformation that is not supported: {dict(step)}"
        raise VolumeError(msg)
    return [float(value) for value in values]


def _channel_names(ome: Mapping[str, Any]) -> tuple[str, ...]:
    channels = ome.get("omero", {}).get("channels") or ()
    names = tuple(channel.get("label") for channel in channels)
    return names if all(isinstance(name, str) for name in names) else ()


def array_frame(
    attributes: Mapping[str, Any], names: Sequence[str | None] | None, dimensions: int, url: str
) -> Frame:
    """Return how a plain array lies in the world.

    Args:
        attributes: of the array.
        names: names of its dimensions, if the format keeps them.
        dimensions: their number.
        url: for messages.

    Raises:
        VolumeError: it is not clear which axes are z, y and x.
    """
    named = names or attributes.get("_ARRAY_DIMENSIONS") or attributes.get("axis_names")
    if named is None or any(name is None for name in named):
        named = _BY_DIMENSIONS.get(dimensions, ())
    axes = tuple(str(name).rstrip("^").lower() for name in named)
    if len(axes) != dimensions or len(set(axes)) < dimensions or not {"y", "x"} <= set(axes):
        msg = (
            f"{url} has {dimensions} dimensions ({', '.join(axes) or 'without names'}); "
            "a volume needs y and x, and may have z, c and t"
        )
        raise VolumeError(msg)

    def triple(values: Sequence[Any], missing: Any) -> list[Any]:
        # one value an axis of the array, or three in zyx order
        if len(values) != len(axes) and len(values) == 3:
            return list(values)
        found = dict(zip(axes, values, strict=True))
        return [found.get(name, missing) for name in AXES]

    size: Sequence[Any] | None = attributes.get("voxel_size")
    units: list[str | None] = ["nm"] * 3
    if size is None and "resolution" in attributes:
        size = triple(attributes["resolution"], 1.0)
    if size is None and (words := attributes.get("dimension_units")):
        parts = [str(word).split() for word in triple(words, "1 nm")]
        size, units = [float(part[0]) for part in parts], [part[-1] for part in parts]
    nm = UNIT_NM if size is None else nanometres([float(v) for v in size][-3:], units, url)
    offset = attributes.get("voxel_offset")
    if offset is None and (physical := attributes.get("offset")) is not None:
        offset = [p / s for p, s in zip(triple(physical, 0.0), nm, strict=True)]
    start = Zyx(*(math.floor(float(v) + 0.5) for v in list(offset or (0, 0, 0))[-3:]))
    return Frame(axes, nm, start, kind_of(attributes), tuple(attributes.get("channel_names", ())))


def kind_of(attributes: Mapping[str, Any]) -> Kind | None:
    """Return what our own attributes say of the voxels."""
    found = attributes.get(OURS, {}).get("kind")
    return next((kind for kind in KINDS if kind == found), None)


def is_length(unit: str) -> bool:
    """Tell whether a unit is one that `nanometres` knows."""
    return unit in _NANOMETRES


def nanometres(
    sizes: Sequence[float], units: Sequence[str | None], url: str
) -> tuple[float, float, float]:
    """Return a voxel size in nanometres.

    Args:
        sizes: in their *units*, zyx.
        units: by their names; ``None`` is taken as nanometres.
        url: for messages.

    Raises:
        VolumeError: a unit is no length, or a size is not positive.
    """
    factors = []
    for unit in units:
        if unit is not None and unit not in _NANOMETRES:
            msg = f"{url} has the unit {unit!r}, which is not a known length"
            raise VolumeError(msg)
        factors.append(1.0 if unit is None else _NANOMETRES[unit])
    if None in units:
        logger.info("%s does not say its units; nanometres are assumed", url)
    # 0.0033 µm is 3.3 nm, not 3.3000000000000003 nm
    z, y, x = (float(f"{a * b:.12g}") for a, b in zip(sizes, factors, strict=True))
    if not all(0 < v < math.inf for v in (z, y, x)):
        msg = f"{url} has the voxel size {(z, y, x)} nm (zyx), which is not positive"
        raise VolumeError(msg)
    return z, y, x


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

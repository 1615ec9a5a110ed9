"""What the metadata of zarr arrays says of axes, voxel size and place, read and written.

OME-Zarr 0.5 (https://ngff.openmicroscopy.org/0.5/) keeps ``multiscales`` under ``ome`` in the
attributes of a group, 0.4 and older directly. Plain arrays are taken as funlib, xarray and
chunkflow 1.x leave them. Positions are affine per axis:

    physical = scale · index + translation    ->    voxel_offset = translation / scale, rounded
"""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.chunk import KINDS
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.geometry import AXES, Zyx

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.chunk import Kind
    from chunkflow_py.volume.protocol import VolumeSpec

logger = logging.getLogger(__name__)

OURS = "chunkflow_py"  # the key of our own attributes
_NANOMETRES = {
    "angstrom": 0.1, "nanometer": 1.0, "nm": 1.0, "micrometer": 1e3, "um": 1e3, "µm": 1e3,
    "micron": 1e3, "millimeter": 1e6, "mm": 1e6, "centimeter": 1e7, "meter": 1e9, "m": 1e9,
    "picometer": 1e-3,
}  # fmt: skip
_BY_DIMENSIONS = {3: "zyx", 4: "czyx", 5: "tczyx"}


@dataclass(frozen=True)
class Layout:
    """How the voxels of an array lie in the world.

    Attributes:
        axes: names of the array's axes in order, of t, c, z, y, x.
        voxel_size_nm: nanometres, zyx.
        voxel_offset: position of the first voxel, voxels, zyx.
        kind: what the voxels mean, if known.
    """

    axes: tuple[str, ...]
    voxel_size_nm: tuple[float, float, float]
    voxel_offset: Zyx
    kind: Kind | None


def multiscale(attributes: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the first multiscale image that a group's attributes describe, if any."""
    found = attributes.get("ome", attributes).get("multiscales")
    return dict(found[0]) if found else None


def dataset_path(image: Mapping[str, Any], mip: int, url: str) -> str:
    """Return the path of level *mip*: the dataset of that name, else the one at that index.

    A volume that begins at mip 2 has its first dataset at path ``2``.

    Raises:
        VolumeNotFoundError: there is no such level.
    """
    paths = [str(dataset["path"]) for dataset in image["datasets"]]
    if str(mip) in paths:
        return str(mip)
    if not all(path.isdecimal() for path in paths) and mip < len(paths):
        return paths[mip]
    numbers = paths if all(p.isdecimal() for p in paths) else [str(i) for i in range(len(paths))]
    msg = f"{url} has no mip {mip}; it has {', '.join(numbers)}"
    raise VolumeNotFoundError(msg)


def multiscale_layout(
    image: Mapping[str, Any], path: str, attributes: Mapping[str, Any], url: str
) -> Layout:
    """Return the layout of dataset *path* of a multiscale image.

    Raises:
        VolumeError: an axis is unknown, or the transformations are not scale and translation.
    """
    dataset = next(d for d in image["datasets"] if str(d["path"]) == path)
    given = image.get("axes") or list("tczyx")  # before version 0.3 the axes were always these
    axes = [axis if isinstance(axis, str) else str(axis["name"]) for axis in given]
    units = {
        name: None if isinstance(axis, str) else axis.get("unit")
        for name, axis in zip(axes, given, strict=True)
    }
    scale, shift = [1.0] * len(axes), [0.0] * len(axes)
    # those of the dataset come first, those of the whole image after them
    for step in (
        *dataset.get("coordinateTransformations", ()),
        *image.get("coordinateTransformations", ()),
    ):
        if step.get("type") == "identity":
            continue
        values = step.get(step.get("type"))
        if step.get("type") not in ("scale", "translation") or len(values or ()) != len(axes):
            msg = f"{url} has a coordinate transformation that is not supported: {step}"
            raise VolumeError(msg)
        if step["type"] == "scale":
            scale = [a * b for a, b in zip(scale, values, strict=True)]
            shift = [a * b for a, b in zip(shift, values, strict=True)]
        else:
            shift = [a + b for a, b in zip(shift, values, strict=True)]
    places = [axes.index(name) for name in AXES if name in axes]
    if len(places) != 3:
        msg = f"{url} has the axes {', '.join(axes)}; a volume needs z, y and x"
        raise VolumeError(msg)
    size = _nanometres([scale[i] for i in places], [units[name] for name in AXES], url)
    offset = Zyx(*(math.floor(shift[i] / scale[i] + 0.5) for i in places))
    kind = _kind(attributes) or ("segmentation" if "image-label" in _ome(attributes) else None)
    return Layout(tuple(axes), size, offset, kind)


def array_layout(
    attributes: Mapping[str, Any], names: Sequence[str | None] | None, dimensions: int, url: str
) -> Layout:
    """Return the layout of a plain array.

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
    if len(axes) != dimensions or not set(AXES) <= set(axes):
        msg = (
            f"{url} has {dimensions} dimensions ({', '.join(axes) or 'without names'}); "
            "a volume needs z, y and x, and may have c and t"
        )
        raise VolumeError(msg)
    spatial = [axes.index(name) for name in AXES]

    def triple(values: Sequence[Any]) -> list[Any]:
        # one value an axis of the array, or three in zyx order
        return [values[i] for i in spatial] if len(values) == len(axes) else list(values)[-3:]

    size: Sequence[Any] | None = attributes.get("voxel_size")
    units: list[str | None] = ["nm"] * 3
    if size is None and "resolution" in attributes:
        size = triple(attributes["resolution"])
    if size is None and (words := attributes.get("dimension_units")):
        parts = [str(word).split() for word in triple(words)]
        size, units = [float(part[0]) for part in parts], [part[-1] for part in parts]
    nm = _nanometres([float(v) for v in size or (1.0, 1.0, 1.0)][-3:], units, url)
    offset = attributes.get("voxel_offset")
    if offset is None and (physical := attributes.get("offset")) is not None:
        offset = [p / s for p, s in zip(triple(physical), nm, strict=True)]
    start = Zyx(*(math.floor(float(v) + 0.5) for v in list(offset or (0, 0, 0))[-3:]))
    return Layout(axes, nm, start, _kind(attributes))


def image_attributes(spec: VolumeSpec, axes: Sequence[str], path: str, name: str) -> dict[str, Any]:
    """Return the attributes of an OME-Zarr 0.5 group with one level.

    Args:
        spec: of the level.
        axes: names of the array's axes in order.
        path: of the array in the group.
        name: of the image.
    """
    scale = dict(zip(AXES, spec.voxel_size_nm, strict=True))
    first = dict(zip(AXES, spec.bounds.start, strict=True))
    steps = [
        {"type": "scale", "scale": [scale.get(a, 1.0) for a in axes]},
        {"type": "translation", "translation": [scale.get(a, 1.0) * first.get(a, 0) for a in axes]},
    ]
    described = [
        {"name": a, "type": "space", "unit": "nanometer"}
        if a in AXES
        else {"name": a, "type": "channel"}
        for a in axes
    ]
    image = {
        "name": name,
        "axes": described,
        "datasets": [{"path": path, "coordinateTransformations": steps}],
    }
    return {"ome": {"version": "0.5", "multiscales": [image]}, OURS: _ours(spec)}


def plain_attributes(spec: VolumeSpec, axes: Sequence[str]) -> dict[str, Any]:
    """Return the attributes of an array that stands alone.

    ``dimension_units`` is what Neuroglancer and tensorstore read; ``voxel_size`` (nm) and
    ``voxel_offset``, both zyx, are those of the HDF5 files.
    """
    scale = dict(zip(AXES, spec.voxel_size_nm, strict=True))
    return {
        "dimension_units": [f"{scale[a]:g} nm" if a in AXES else "" for a in axes],
        "voxel_size": list(spec.voxel_size_nm),
        "voxel_offset": list(spec.bounds.start),
        OURS: _ours(spec),
    }


def _ours(spec: VolumeSpec) -> dict[str, Any]:
    return {} if spec.kind is None else {"kind": spec.kind}


def _ome(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = attributes.get("ome", attributes)
    return found


def _kind(attributes: Mapping[str, Any]) -> Kind | None:
    found = attributes.get(OURS, {}).get("kind")
    return next((kind for kind in KINDS if kind == found), None)


def _nanometres(
    scale: Sequence[float], units: Sequence[str | None], url: str
) -> tuple[float, float, float]:
    factors = []
    for unit in units:
        if unit is not None and unit not in _NANOMETRES:
            msg = f"{url} has the unit {unit!r}, which is not a known length"
            raise VolumeError(msg)
        factors.append(1.0 if unit is None else _NANOMETRES[unit])
    if None in units:
        logger.info("%s does not say its units; nanometres are assumed", url)
    # 0.0033 µm is 3.3 nm, not 3.3000000000000003 nm
    z, y, x = (float(f"{a * b:.12g}") for a, b in zip(scale, factors, strict=True))
    if not all(0 < v < math.inf for v in (z, y, x)):
        msg = f"{url} has the voxel size {(z, y, x)} nm (zyx), which is not positive"
        raise VolumeError(msg)
    return z, y, x

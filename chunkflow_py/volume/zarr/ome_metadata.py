"""Read and write the axes, voxel size, offset, levels and channels of zarr images and arrays.

OME-Zarr 0.5 and 0.6 (https://ngff.openmicroscopy.org/) store ``multiscales`` under ``ome`` in the
attributes of a group; older versions store ``multiscales`` directly in the attributes. An image of
version 0.6 may have several coordinate systems. Axes and positions of the volume are those of the
*intrinsic* system, which is the output of the transformations of the datasets. Plain arrays may
follow the conventions of funlib, xarray or chunkflow 1.x. Positions are affine along each axis:

    physical = scale · index + translation    ->    voxel_offset = translation / scale, rounded

The translation is the position of either the centre or the corner of the first voxel, depending on
the program that wrote it. The origin is then the centre or the corner of voxel 0, so both give the
same offset. This package writes positions of voxel centres, and the centre of voxel 0 of mip 0 is
at 0:

```
mip 0   |·|·|·|·|·|·|·|·|      voxels; each dot is the centre of a voxel
mip 1   | · | · | · | · |      factor f = 2: the first centre is half a voxel of mip 0 further
```

Let s be the voxel size of mip 0, f·s the voxel size of a coarser level, and k0 the number of the
first voxel of the coarser level. The centre of this voxel is at (k0·f + (f - 1)/2)·s.
"""

from __future__ import annotations

import logging
import math
import re
from dataclasses import dataclass
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import KINDS
from chunkflow_py.core.geometry import AXES, Zyx
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.volume.protocol import UNIT_NM, names_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.volume.protocol import Volume, VolumeSpec

logger = logging.getLogger(__name__)

MAYBE_DAMAGED = "; its metadata may be damaged"  # end of a message
OURS = "chunkflow_py"  # the key of our own attributes
_NANOMETRES = {
    "attometer": 1e-9, "femtometer": 1e-6, "picometer": 1e-3, "angstrom": 0.1, "nanometer": 1.0,
    "micrometer": 1e3, "millimeter": 1e6, "centimeter": 1e7, "decimeter": 1e8, "meter": 1e9,
    "decameter": 1e10, "hectometer": 1e11, "kilometer": 1e12, "inch": 2.54e7, "foot": 3.048e8,
    "yard": 9.144e8, "mile": 1.609344e12,
    # spellings of other formats
    "nm": 1.0, "um": 1e3, "µm": 1e3, "μm": 1e3, "micron": 1e3, "mm": 1e6, "cm": 1e7, "m": 1e9,
}  # fmt: skip
_BY_DIMENSIONS = {2: "yx", 3: "zyx", 4: "czyx", 5: "tczyx"}
_BY_TYPE = {"channel": "c", "time": "t"}
_COLOR = re.compile("[0-9A-Fa-f]{6}")
_COLORS = ("FF0000", "00FF00", "0000FF", "FFFF00", "FF00FF", "00FFFF")
_TYPES = {"t": "time", "c": "channel"}
_INTRINSIC = "intrinsic"  # name of the coordinate system of our images, as in the specification


@dataclass(frozen=True)
class ArrayGeometry:
    """Axes of an array, and the position of its voxels in space.

    Attributes:
        axes: names of the array's axes in order (t, c, z, y, x).
        voxel_size_nm: size of a voxel, nanometres, zyx; 1 along z if the array has no z.
        voxel_offset: position of the first voxel, voxels, zyx.
        kind: meaning of the voxels, if known.
        channel_names: names of the channels, if known.
        channel_colors: colours of the channels, six hexadecimal digits each, if known.
    """

    axes: tuple[str, ...]
    voxel_size_nm: tuple[float, float, float]
    voxel_offset: Zyx
    kind: Kind | None
    channel_names: tuple[str, ...] = ()
    channel_colors: tuple[str, ...] = ()


def ome_of(attributes: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the OME-Zarr part of a group's attributes, whatever the version of OME-Zarr."""
    ome: Mapping[str, Any] = attributes.get("ome", attributes)
    return ome


def multiscale(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the first multiscale image in a group's attributes; ``None`` if there is no image.

    Raises:
        ValueError: the description of the image is not valid.
    """
    images = ome_of(attributes).get("multiscales")
    if not images:
        return None
    image = images[0] if isinstance(images, list) and isinstance(images[0], dict) else {}
    datasets = image.get("datasets")
    if not isinstance(datasets, list):
        msg = "the field multiscales has no list of datasets"
        raise ValueError(msg)  # noqa: TRY004  (one kind of damage)
    if not all(isinstance(dataset, dict) and "path" in dataset for dataset in datasets):
        msg = "a dataset in the field multiscales has no path"
        raise ValueError(msg)
    return dict(image)


def level_paths(image: Mapping[str, Any]) -> dict[int, str]:
    """Return the path of each dataset of an image, as a dict: mip -> path.

    If all paths are numbers, the numbers are the mips: a volume that begins at mip 2 has its first
    dataset at path ``2``. Otherwise, datasets are numbered in the order of the list.
    """
    paths = [str(dataset["path"]) for dataset in image["datasets"]]
    if all(is_digits(path) for path in paths):
        return {int(path): path for path in paths}
    return dict(enumerate(paths))


def dataset_path(levels: Mapping[int, str], mip: int, url: str) -> str:
    """Return the path of level *mip*.

    Raises:
        VolumeNotFoundError: the level does not exist.
    """
    if mip not in levels:
        msg = f"{url} has no mip {mip}; it has mip {', '.join(map(str, levels))}"
        raise VolumeNotFoundError(msg)
    return levels[mip]


def multiscale_geometry(
    image: Mapping[str, Any],
    path: str,
    attributes: Mapping[str, Any],
    url: str,
    shrinkage: Sequence[int] | None = None,
) -> ArrayGeometry:
    """Return axes, voxel size and offset of dataset *path* of a multiscale image.

    Args:
        image: the multiscale image.
        path: path of the dataset.
        attributes: attributes of the group.
        url: address of the volume, for messages.
        shrinkage: downsampling factors relative to the finest dataset, one per axis; used if the
            image has no transformations (before version 0.4).

    Raises:
        VolumeError: axis y or x is missing, two axes have the same name, or a transformation is not
            supported.
    """
    dataset = next(d for d in image["datasets"] if str(d["path"]) == path)
    if "coordinateSystems" in image:
        given, transforms = _intrinsic_system(image, dataset, url)
    else:
        # before version 0.3 the axes were always these
        given = [_as_dict(axis) for axis in image.get("axes") or "tczyx"]
        # transformations of the dataset apply first, then those of the whole image
        transforms = [
            *dataset.get("coordinateTransformations", ()),
            *image.get("coordinateTransformations", ()),
        ]
    axes = tuple(_BY_TYPE.get(axis.get("type", ""), str(axis["name"]).lower()) for axis in given)
    if len(set(axes)) < len(axes) or not {"y", "x"} <= set(axes):
        msg = (
            f"{url} has the axes {', '.join(axes)}, but a volume needs y and x, and may have t, c "
            "and z, each once; correct the axes in the metadata"
        )
        raise VolumeError(msg)
    scale, shift = _composed(transforms, [float(s) for s in shrinkage or [1] * len(axes)], url)
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
    return ArrayGeometry(axes, size, offset, kind, _channel_names(ome), _channel_colors(ome))


def as_version_05(document: Mapping[str, Any], url: str) -> dict[str, Any]:
    """Return a group's zarr.json in which an image of OME-Zarr 0.6 is described as version 0.5.

    Programs that read only version 0.5 can read the result. Coordinate systems other than the
    intrinsic system are left out. A document without coordinate systems is returned unchanged.

    Args:
        document: content of the zarr.json.
        url: address of the volume, for messages.

    Raises:
        VolumeError: version 0.5 cannot describe the image.
        ValueError: the description of the image is not valid.
    """
    attributes = document.get("attributes", {})
    image = multiscale(attributes)
    if image is None or "coordinateSystems" not in image:
        return dict(document)
    datasets: list[dict[str, Any]] = []
    axes: list[Mapping[str, Any]] = []
    for dataset in image["datasets"]:
        axes, transforms = _intrinsic_system(image, dataset, url)
        scale, shift = _composed(transforms, [1.0] * len(axes), url)
        steps = [
            {"type": "scale", "scale": scale},
            {"type": "translation", "translation": shift},
        ]
        datasets.append({"path": dataset["path"], "coordinateTransformations": steps})
    known = ("coordinateSystems", "coordinateTransformations")
    rest = {key: value for key, value in image.items() if key not in known}
    described = {**rest, "axes": axes, "datasets": datasets}
    ome = {**ome_of(attributes), "version": "0.5", "multiscales": [described]}
    return {**document, "attributes": {**attributes, "ome": ome}}


def _intrinsic_system(
    image: Mapping[str, Any], dataset: Mapping[str, Any], url: str
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """Return the axes of the intrinsic coordinate system, and the transformations of a dataset.

    The output of a dataset's transformations is the intrinsic system, in which the specification
    recommends to process the image. Transformations of the whole image, from the intrinsic system
    to other systems, are not used.

    Raises:
        VolumeError: the transformations name a system that the image does not describe.
    """
    systems = {str(system["name"]): system for system in image["coordinateSystems"]}
    transforms = list(dataset["coordinateTransformations"])
    # versions before 0.6rc0 wrote the name alone
    output = transforms[-1].get("output") if transforms else None
    name = output.get("name") if isinstance(output, dict) else output
    if name not in systems:
        msg = (
            f"{url} has the coordinate systems {', '.join(systems) or 'none'}, but the "
            f"transformations of dataset {dataset['path']!r} lead to {name!r}; correct the "
            "metadata of the volume"
        )
        raise VolumeError(msg)
    if others := [other for other in systems if other != name]:
        logger.info(
            "%s has further coordinate systems (%s); positions are those of %r",
            url, ", ".join(others), name,
        )  # fmt: skip
    return [_as_dict(axis) for axis in systems[name]["axes"]], transforms


def _composed(
    transforms: Iterable[Mapping[str, Any]], scale: list[float], url: str
) -> tuple[list[float], list[float]]:
    """Apply *transforms* after *scale*; return the resulting scale and translation of each axis.

    Raises:
        VolumeError: a transformation is not supported.
    """
    shift = [0.0] * len(scale)
    for transform in _single(transforms):
        values = _values(transform, len(scale), url)
        if transform["type"] == "scale":
            scale = [a * b for a, b in zip(scale, values, strict=True)]
            shift = [a * b for a, b in zip(shift, values, strict=True)]
        else:
            shift = [a + b for a, b in zip(shift, values, strict=True)]
    return scale, shift


def _single(transforms: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield all transformations in order; replace sequences by their parts, skip identities."""
    waiting = list(transforms)[::-1]
    while waiting:
        transform = waiting.pop()
        if transform.get("type") == "sequence":
            waiting += transform["transformations"][::-1]
        elif transform.get("type") != "identity":
            yield transform


def _as_dict(axis: Any) -> Mapping[str, Any]:
    return {"name": axis} if isinstance(axis, str) else axis


def _values(transform: Mapping[str, Any], count: int, url: str) -> list[float]:
    """Return the numbers of a coordinate transformation.

    Raises:
        VolumeError: the transformation is not supported.
    """
    kind = transform.get("type")
    if kind in ("scale", "translation") and "path" in transform:
        msg = (
            f"{url} stores the numbers of its {kind} in a separate array ({transform['path']}), "
            "which is not supported; write the numbers into the metadata"
        )
        raise VolumeError(msg)
    if kind not in ("scale", "translation"):
        msg = (
            f"{url} has a coordinate transformation of type {kind!r}, but only identity, scale, "
            "translation and sequence are supported; resample the image to a grid along its axes"
        )
        raise VolumeError(msg)
    values = transform.get(kind)
    if not isinstance(values, list) or len(values) != count:
        msg = (
            f"{url} has {count} axes, but its {kind} is {values}; correct the metadata to one "
            "number per axis"
        )
        raise VolumeError(msg)
    return [float(value) for value in values]


def _channel_names(ome: Mapping[str, Any]) -> tuple[str, ...]:
    channels = ome.get("omero", {}).get("channels") or ()
    names = tuple(channel.get("label") for channel in channels)
    return names if all(isinstance(name, str) for name in names) else ()


def _channel_colors(ome: Mapping[str, Any]) -> tuple[str, ...]:
    channels = ome.get("omero", {}).get("channels") or ()
    colors = tuple(channel.get("color") for channel in channels)
    is_color = all(isinstance(each, str) and _COLOR.fullmatch(each) for each in colors)
    return colors if is_color else ()


def array_geometry(
    attributes: Mapping[str, Any], names: Sequence[str | None] | None, dimensions: int, url: str
) -> ArrayGeometry:
    """Return axes, voxel size and offset of a plain array.

    Args:
        attributes: attributes of the array.
        names: names of the dimensions of the array, if the format has them.
        dimensions: number of dimensions of the array.
        url: address of the volume, for messages.

    Raises:
        VolumeError: axis y or x is missing, two axes have the same name, or the number of names is
            not the number of dimensions.
    """
    named = names or attributes.get("_ARRAY_DIMENSIONS") or attributes.get("axis_names")
    if named is None or any(name is None for name in named):
        named = _BY_DIMENSIONS.get(dimensions, ())
    axes = tuple(str(name).rstrip("^").lower() for name in named)
    if len(axes) != dimensions or len(set(axes)) < dimensions or not {"y", "x"} <= set(axes):
        msg = (
            f"{url} has {dimensions} dimensions ({', '.join(axes) or 'without names'}), but a "
            "volume needs y and x, and may have z, c and t, each once; correct the names of the "
            "dimensions in the metadata"
        )
        raise VolumeError(msg)

    def triple(values: Sequence[Any], missing: Any) -> list[Any]:
        # one value per axis of the array, or three in zyx order
        if len(values) != len(axes) and len(values) == 3:
            return list(values)
        by_name = dict(zip(axes, values, strict=True))
        return [by_name.get(name, missing) for name in AXES]

    size: Sequence[Any] | None = attributes.get("voxel_size")
    units: list[str | None] = ["nm"] * 3
    if size is None and "resolution" in attributes:
        size = triple(attributes["resolution"], 1.0)
    if size is None and (texts := attributes.get("dimension_units")):
        parts = [str(text).split() for text in triple(texts, "1 nm")]
        size, units = [float(part[0]) for part in parts], [part[-1] for part in parts]
    nm = UNIT_NM if size is None else nanometres([float(v) for v in size][-3:], units, url)
    offset = attributes.get("voxel_offset")
    if offset is None and (physical := attributes.get("offset")) is not None:
        offset = [p / s for p, s in zip(triple(physical, 0.0), nm, strict=True)]
    start = Zyx(*(math.floor(float(v) + 0.5) for v in list(offset or (0, 0, 0))[-3:]))
    return ArrayGeometry(
        axes, nm, start, kind_of(attributes), tuple(attributes.get("channel_names", ()))
    )


def kind_of(attributes: Mapping[str, Any]) -> Kind | None:
    """Return the kind of the voxels (see `Chunk`); ``None`` if *attributes* names no kind."""
    stored = attributes.get(OURS, {}).get("kind")
    return next((kind for kind in KINDS if kind == stored), None)


def is_length(unit: str) -> bool:
    """Return whether *unit* is a unit of length that `nanometres` supports."""
    return unit in _NANOMETRES


def nanometres(
    sizes: Sequence[float], units: Sequence[str | None], url: str
) -> tuple[float, float, float]:
    """Return a voxel size in nanometres.

    Args:
        sizes: voxel size in *units*, zyx.
        units: names of the units along z, y and x; ``None`` means nanometres.
        url: address of the volume, for messages.

    Raises:
        VolumeError: a unit is not a length, or a size is not positive.
    """
    factors = []
    for unit in units:
        if unit is not None and unit not in _NANOMETRES:
            msg = (
                f"{url} has the unit {unit!r}, which is not a supported unit of length; correct "
                "the metadata of the volume"
            )
            raise VolumeError(msg)
        factors.append(1.0 if unit is None else _NANOMETRES[unit])
    if None in units:
        logger.info("%s has no units; nanometres are assumed", url)
    # 0.0033 µm is 3.3 nm, not 3.3000000000000003 nm
    z, y, x = (float(f"{a * b:.12g}") for a, b in zip(sizes, factors, strict=True))
    if not all(0 < v < math.inf for v in (z, y, x)):
        msg = (
            f"{url} has the voxel size {(z, y, x)} nm (zyx), which is not positive; correct the "
            "metadata of the volume"
        )
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
        levels: mip -> description of the level.
        axes: names of the axes of the arrays, in order.
        name: name of the image.
        version: ``0.4``, ``0.5`` or ``0.6``.
        channel_names: one name per channel, or empty.
        is_label: whether the group is a label image of another image.
    """
    spec = next(iter(levels.values()))
    own_axes = [_axis(axis) for axis in axes]
    image: dict[str, Any] = {"name": name}
    if version == "0.6":
        image["coordinateSystems"] = [{"name": _INTRINSIC, "axes": own_axes}]
    else:
        image["axes"] = own_axes
    image["datasets"] = [
        {"path": str(mip), "coordinateTransformations": _transformations(level, axes, mip, version)}
        for mip, level in levels.items()
    ]
    ome: dict[str, Any] = {"multiscales": [image]}
    if spec.kind == "segmentation":
        ome["image-label"] = {"source": {"image": "../../"}} if is_label else {}
    elif channel_names or (spec.channels is not None and _has_known_range(spec)):
        ome["omero"] = {"channels": _channels(spec, channel_names)}
    if version != "0.4":
        return {"ome": {"version": version, **ome}, OURS: _ours(spec)}
    image["version"] = version
    if "image-label" in ome:
        ome["image-label"]["version"] = version
    return {**ome, OURS: _ours(spec)}


def plain_attributes(
    spec: VolumeSpec, axes: Sequence[str], channel_names: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the attributes of a single array.

    ``dimension_units`` are for Neuroglancer and tensorstore. ``voxel_size`` (nm, zyx) and
    ``voxel_offset`` (voxels, zyx) have the names that this package also uses in HDF5 files.
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
    """Refuse channel names if their number is not the number of channels.

    Raises:
        VolumeError: the numbers differ; the message gives both.
    """
    if names and len(names) != (channels or 1):
        msg = (
            f"cannot create {url} with {len(names)} channel names ({', '.join(names)}) for "
            f"{channels or 1} channels; give one name per channel"
        )
        raise VolumeError(msg)


def _axis(name: str) -> dict[str, str]:
    # time has no unit: the duration of a time point is not known
    if name in AXES:
        return {"name": name, "type": "space", "unit": "nanometer"}
    return {"name": name, "type": _TYPES[name]}


def _transformations(
    level: VolumeSpec, axes: Sequence[str], mip: int, version: str
) -> list[dict[str, Any]]:
    scale, shift = dict.fromkeys(axes, 1.0), dict.fromkeys(axes, 0.0)
    for i, axis in enumerate(AXES):
        size = level.voxel_size_nm[i]
        centre = level.bounds.start[i] + (1 - 1 / level.shrink(mip)[i]) / 2
        scale[axis], shift[axis] = size, float(f"{centre * size:.12g}")
    steps = [
        {"type": "scale", "scale": [scale[a] for a in axes]},
        {"type": "translation", "translation": [shift[a] for a in axes]},
    ]
    if version != "0.6":
        return steps
    ends = {"input": {"path": str(mip)}, "output": {"name": _INTRINSIC}}
    return [{"type": "sequence", **ends, "transformations": steps}]


def _has_known_range(spec: VolumeSpec) -> bool:
    """Return whether the range of all possible values is a good contrast window for viewers.

    The format requires a contrast window in each description of a channel. Therefore, channels
    without names are described only if this function returns true.
    """
    return spec.dtype.itemsize == 1 or spec.kind in ("probability", "affinity")


def fitted_channels(
    ome: Mapping[str, Any],
    volume: Volume,
    windows: Sequence[Mapping[str, float]],
    colors: Sequence[str] = (),
) -> list[dict[str, Any]] | None:
    """Return the descriptions of all channels for viewers, with contrast windows and colours.

    Args:
        ome: OME-Zarr part of the attributes of the group. If the window of a channel differs from
            the window that `create_volume` writes, window and colour of this channel are kept.
        volume: the volume that the group contains.
        windows: min, max, start and end of the window of each channel.
        colors: colour of each channel, or empty for default colours.

    Returns:
        The new descriptions. ``None`` if the new descriptions equal those in *ome*, or if *ome* and
        *windows* have different numbers of channels.
    """
    usual = _channels(volume, names_of(volume))
    stored = ome.get("omero", {}).get("channels") or usual
    if len(stored) != len(windows):
        return None
    new = [dict(channel) for channel in stored]
    for number, channel in enumerate(new):
        if channel.get("window") == usual[number]["window"]:
            channel["window"] = dict(windows[number])
            channel["color"] = colors[number] if colors else channel["color"]
    return None if new == ome.get("omero", {}).get("channels") else new


def _channels(spec: VolumeSpec | Volume, names: Sequence[str]) -> list[dict[str, Any]]:
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

"""N5 volumes, for reading: datasets that stand alone, and groups of levels s0, s1, ...

```
em.n5/attributes.json        of the group: resolution, offset, factors (or those of the levels)
em.n5/s0/attributes.json     dimensions, blockSize, dataType, compression
em.n5/s0/0/0/0               one block
```

Metadata are taken as n5-viewer, Paintera, Neuroglancer, funlib and COSEM write them. N5 counts x
first; all is turned round here. Blocks go through the engine and numcodecs as those of zarr do:
tensorstore reads N5 too, but keeps neither our manners in a network nor the cache.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import DOCUMENT_BYTES, parse_json
from chunkflow_py.core.geometry import AXES, Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.volume.engine.blocks import BlockVolume
from chunkflow_py.volume.n5.n5_layout import N5Layout
from chunkflow_py.volume.protocol import UNIT_NM
from chunkflow_py.volume.zarr import ome

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.store.protocol import Store
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import Opening

_ATTRIBUTES = "attributes.json"
_NAMES = "xyzct"  # in the order of N5


def open_volume(place: Location, mip: int, mode: Mode, opening: Opening) -> BlockVolume:
    """Open level *mip* of a group of levels, or a dataset, whose only level is 0.

    Raises:
        VolumeNotFoundError: there is none, or it has no such level.
        VolumeError: the metadata cannot be understood, or it should be written to.
    """
    if mode != "r":
        msg = f"cannot write to {place}: N5 volumes are only read; write zarr:// or precomputed://"
        raise VolumeError(msg)
    store = open_store(place.store_url, opening.access)
    with ome.translated(f"open {place}"):
        top = _attributes(store, "")
        alone = "dimensions" in top
        levels, group = ({0: top}, {}) if alone else (_levels(store), top)
        if not levels:
            msg = (
                f"{place} holds no N5 dataset: neither dimensions in {_ATTRIBUTES} nor a level s0; "
                "check the path"
            )
            raise VolumeNotFoundError(msg)
        prefix = ome.dataset_path({n: "" if alone else f"s{n}/" for n in levels}, mip, place.url)
        frame = _frame(levels[mip], group, mip, place.url)
        return BlockVolume(
            place.address,
            store,
            N5Layout(levels[mip], frame.axes, prefix, place.url),
            voxel_offset=frame.voxel_offset,
            voxel_size_nm=frame.voxel_size_nm,
            kind=frame.kind,
            mode=mode,
            mip=mip,
            mips=tuple(levels),
            opening=opening,
        )


def _attributes(store: Store, prefix: str) -> dict[str, Any]:
    found = parse_json(store.get(f"{prefix}{_ATTRIBUTES}", DOCUMENT_BYTES) or b"{}")
    if not isinstance(found, dict):
        msg = f"{prefix}{_ATTRIBUTES} is no object"
        raise TypeError(msg)
    return found


def _levels(store: Store) -> dict[int, dict[str, Any]]:
    """Return the attributes of the levels, as many as there are without a gap."""
    levels: dict[int, dict[str, Any]] = {}
    while "dimensions" in (found := _attributes(store, f"s{len(levels)}/")):
        levels[len(levels)] = found
    return levels


def _frame(document: Mapping[str, Any], group: Mapping[str, Any], mip: int, url: str) -> ome.Frame:
    """Return how a dataset lies in the world.

    Raises:
        VolumeError: axes or units are not known, or its voxels are no numbers.
    """
    if document.get("isLabelMultiset") or group.get("isLabelMultiset"):
        msg = f"{url} holds label multisets of Paintera, which are not supported; export it"
        raise VolumeError(msg)
    count = len(document["dimensions"])
    transform = document.get("transform")
    known: Any = transform
    if isinstance(transform, dict) and "scale" in transform:  # COSEM: C order unless it says so
        backward = slice(None, None, 1 if transform.get("ordering") == "F" else -1)
        names = [str(axis).lower() for axis in transform.get("axes", _NAMES[:count][::-1])]
        axes = names[backward]
        sizes = _named(transform["scale"][backward], axes, 1.0)
        offset = _named(transform.get("translate", [0.0] * count)[backward], axes, 0.0)
        units = _named(transform.get("units", [None] * count)[backward], axes, None)
    else:
        names = list(document.get("axes") or group.get("axes") or _NAMES[:count])
        axes = [str(axis).lower() for axis in names]
        known = _resolution(document) or _resolution(group)
        base, unit = known or ([1.0] * 3, "nm")
        factors = _named(_factors(document, group, mip) or [1.0] * 3, axes, 1.0)
        sizes = [a * b for a, b in zip(_named(base, axes, 1.0), factors, strict=True)]
        start = document.get("offset", group.get("offset", document.get("translate")))
        offset = _named(start or [0.0] * 3, axes, 0.0)
        units = [unit] * 3
        if isinstance(named := document.get("units", group.get("units")), list):
            units = _named(named, axes, "nm")
    if len(axes) != count or len(set(axes)) < count or not {"y", "x"} <= set(axes):
        msg = f"{url} has {count} dimensions ({', '.join(axes)}); a volume needs x and y"
        raise VolumeError(msg)
    is_assumed = known is None and sizes == [1.0] * 3
    size = UNIT_NM if is_assumed else ome.nanometres(sizes, units, url)
    first = Zyx(*(math.floor(o / s + 0.5) for o, s in zip(offset, sizes, strict=True)))
    return ome.Frame(tuple(axes[::-1]), size, first, _kind(document, group))


def _named(values: Sequence[Any], axes: Sequence[str], missing: Any) -> list[Any]:
    """Return *values*, one an axis or three for x, y, z, in zyx order."""
    names = axes if len(values) == len(axes) else AXES[::-1]
    found = dict(zip(names, values, strict=True))
    return [found.get(name, missing) for name in AXES]


def _resolution(attributes: Mapping[str, Any]) -> tuple[list[float], str | None] | None:
    """Return voxel size and unit, in the order of N5, if they are there."""
    found = attributes.get("pixelResolution", attributes.get("resolution"))
    if isinstance(found, dict):
        return [float(v) for v in found["dimensions"]], found.get("unit")
    return None if found is None else ([float(v) for v in found], "nm")


def _factors(document: Mapping[str, Any], group: Mapping[str, Any], mip: int) -> list[float] | None:
    """Return how much coarser a level is than the finest, in the order of N5, if that is said."""
    own = document.get("downsamplingFactors")
    if own is None:
        of_all = group.get("downsamplingFactors", group.get("scales"))
        own = None if of_all is None else of_all[mip]
    return None if own is None else [float(factor) for factor in own]


def _kind(document: Mapping[str, Any], group: Mapping[str, Any]) -> Kind | None:
    for attributes in (document, group):
        if attributes.get("painteraData", {}).get("type") == "label" or "maxId" in attributes:
            return "segmentation"
    return None

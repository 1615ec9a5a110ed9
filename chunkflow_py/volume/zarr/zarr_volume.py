"""Zarr volumes: OME-Zarr images (0.6 and older) and plain arrays, v2 and v3, in any store.

```
em.zarr/zarr.json      group: axes, scale, translation, kind     written last
em.zarr/0/zarr.json    array: shape, blocks, codecs              written first
em.zarr/0/c/0/0/0      one block (or one shard of blocks)
```

zarr-python reads and creates the metadata, numcodecs encodes and decodes blocks, and `BlockVolume`
reads and writes the blocks. Voxels are not read or written through zarr-python, because zarr-python
is three to five times slower than `BlockVolume`, and its stores do not wait until data are on the
disk.
"""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import AXES, Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError, needs_extra
from chunkflow_py.store import open_store
from chunkflow_py.volume import ZARR_ENCODINGS
from chunkflow_py.volume.engine.block_volume import BlockVolume
from chunkflow_py.volume.foreign_errors import translated_errors
from chunkflow_py.volume.write_checks import check_levels
from chunkflow_py.volume.zarr import ome_metadata as ome
from chunkflow_py.volume.zarr.ome_metadata import (
    check_channel_names,
    image_attributes,
    plain_attributes,
)
from chunkflow_py.volume.zarr.zarr_layout import layout_of
from chunkflow_py.volume.zarr.zarr_metadata import (
    ArrayNode,
    GroupNode,
    damage,
    document_keys,
    documents_of,
    encoding_of,
    read_node,
    write_documents,
)

with needs_extra("zarr", "a zarr volume"):
    import numcodecs
    import zarr
    from zarr.codecs import BloscCodec, Crc32cCodec, GzipCodec, ZstdCodec
    from zarr.storage import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec

Order = Literal["zyx", "xyz"]
OmeVersion = Literal["0.4", "0.5", "0.6"]
_LABELS = "labels"


def open_volume(location: Location, mip: int, mode: Mode, opening: VolumeOptions) -> BlockVolume:
    """Open level *mip* of an image, or a plain array, which has level 0 only.

    Raises:
        VolumeNotFoundError: the volume or the level does not exist.
        VolumeError: the metadata are damaged or not supported.
    """
    store = open_store(location.store_url, opening.access)
    with translated_errors(f"cannot open {location}", ome.MAYBE_DAMAGED):
        node = read_node(store)
        if node is None:
            msg = f"{location} is not a zarr volume; check the path, or create the volume first"
            raise VolumeNotFoundError(msg)
        mips: tuple[int, ...] = (0,)
        if isinstance(node, ArrayNode):
            ome.dataset_path({0: ""}, mip, location.url)
            names = getattr(node.array.metadata, "dimension_names", None)
            geometry = ome.array_geometry(node.attributes, names, node.array.ndim, location.url)
            array, prefix = node, ""
        else:
            with damage(location.url, node.key):
                image = ome.multiscale(node.attributes)
                levels = {} if image is None else ome.level_paths(image)
            if image is None:
                raise VolumeNotFoundError(_no_image(location, node))
            mips = tuple(levels)
            path = ome.dataset_path(levels, mip, location.url)
            prefix, array = f"{path}/", _array_of(store, path, mip, location)
            finest = image["datasets"][0]
            shrinkage = None
            if path != finest["path"] and not finest.get("coordinateTransformations"):
                shrinkage = _shrinkage(_array_of(store, finest["path"], mips[0], location), array)
            with damage(location.url, node.key):
                geometry = ome.multiscale_geometry(
                    image, path, node.attributes, location.url, shrinkage
                )
            if geometry.kind is None and location.path.split("/")[-2:-1] == [_LABELS]:
                geometry = replace(geometry, kind="segmentation")
        if len(geometry.axes) != array.array.ndim:
            axes = ", ".join(geometry.axes)
            msg = (
                f"the metadata of {location} name the axes {axes}, but the array has "
                f"{array.array.ndim} dimensions; correct the axes in the metadata"
            )
            raise VolumeError(msg)
        return BlockVolume(
            location.address,
            store,
            layout_of(array.array, array.document, geometry.axes, prefix, location.url),
            voxel_offset=geometry.voxel_offset,
            voxel_size_nm=geometry.voxel_size_nm,
            kind=geometry.kind,
            mode=mode,
            mip=mip,
            mips=mips,
            opening=opening,
            channel_names=geometry.channel_names,
            channel_colors=geometry.channel_colors,
            encoding=encoding_of(array.document),
            documents=document_keys("", prefix),
        )


def _array_of(store: Store, path: str, mip: int, location: Location) -> ArrayNode:
    node = read_node(store, f"{path}/")
    if not isinstance(node, ArrayNode):
        msg = (
            f"the metadata of {location} name the array {path!r} as mip {mip}, but this array does "
            "not exist; restore the array, or correct the metadata"
        )
        raise VolumeNotFoundError(msg)
    return node


def _shrinkage(finest: ArrayNode, coarse: ArrayNode) -> list[int]:
    """Return the size of a voxel of *coarse* in voxels of the finest level, along each axis."""
    return [round(a / b) for a, b in zip(finest.array.shape, coarse.array.shape, strict=True)]


def _no_image(location: Location, group: GroupNode) -> str:
    inside = [str(name) for name in ome.ome_of(group.attributes).get(_LABELS, ())]
    if not inside and location.is_local:
        inside = sorted(path.name for path in location.folder.iterdir() if path.is_dir())
    holds = f" (the group contains {', '.join(inside)})" if inside else ""
    return f"{location} is a group without an image{holds}; name an array or image in the group"


def create_volume(
    spec: VolumeSpec,
    location: Location,
    mip: int,
    opening: VolumeOptions,
    *,
    plain: bool = False,
    order: Order = "zyx",
    ome_version: OmeVersion | None = None,
    channel_names: Sequence[str] = (),
    overwrite: bool = False,
) -> BlockVolume:
    """Create an OME-Zarr image with all its levels, or a plain array, and open level *mip*.

    An existing image with the same properties is kept, and missing levels are added to the image.
    An image in a folder ``labels`` is added to the list of labels of this folder.

    Args:
        spec: description of level *mip*; its encoding is in `ZARR_ENCODINGS` (default ``zstd``).
        location: address of the volume.
        mip: number of the level, and name of its array.
        opening: options for reading and writing the volume.
        plain: whether to create a single array instead of a group with an image.
        order: order of the arrays' spatial axes; time and channels come before them.
        ome_version: ``0.4``, ``0.5`` or ``0.6``. The default is ``0.4`` for an address with
            ``zarr2://``, ``0.6`` for labels of an image of version ``0.6``, else ``0.5``. Version
            ``0.4`` is stored as zarr v2, the others as zarr v3, also with *plain*.
        channel_names: one name per channel.
        overwrite: whether to replace the metadata of another volume.

    Raises:
        VolumeError: the volume cannot be written, the format cannot store voxels of this type, or
            another volume exists.
    """
    parent, _, name = location.path.rpartition("/")
    is_label = parent.rpartition("/")[2] == _LABELS and not plain
    version = ome_version or _version(location)
    if is_label and version != "0.4":
        version = _version_beside(location, ome_version, opening)
    check_new(spec, location, mip, plain=plain, ome_version=version, channel_names=channel_names)
    axes = (
        *(() if spec.times is None else ("t",)),
        *(() if spec.channels is None else ("c",)),
        *order,
    )
    levels = _levels(spec, mip)
    memory = MemoryStore()
    zarr_format: Literal[2, 3] = 2 if version == "0.4" else 3
    with translated_errors(f"cannot create {location}", ome.MAYBE_DAMAGED):
        make = partial(_create_array, memory, axes=axes, zarr_format=zarr_format, url=location.url)
        if plain:
            make("", spec, attributes=plain_attributes(spec, axes, channel_names))
        else:
            attributes = image_attributes(
                levels,
                axes,
                name=name,
                version=version,
                channel_names=channel_names,
                is_label=is_label,
            )
            zarr.create_group(memory, attributes=attributes, zarr_format=zarr_format)
            for number, level in levels.items():
                make(str(number), level)
        store = open_store(location.store_url, opening.access)
        write_documents(store, documents_of(memory), location.url, overwrite=overwrite)
        if is_label:
            labels = open_store(replace(location, path=parent).store_url, opening.access)
            _register_label(labels, name, version)
    return open_volume(location, 0 if plain else mip, "r+", opening)


def check_new(
    spec: VolumeSpec,
    location: Location,
    mip: int,
    *,
    dtype_known: bool = True,
    plain: bool = False,
    ome_version: OmeVersion | None = None,
    channel_names: Sequence[str] = (),
    **_: Any,
) -> None:
    """Raise the errors that `create_volume` would raise, but create nothing.

    See `write_checks.check_new`.
    """
    version = ome_version or _version(location)
    _check_spec(spec, mip, version, plain=plain, url=location.url)
    _compressors(spec.encoding or "zstd", spec.dtype, 2 if version == "0.4" else 3, location.url)
    if dtype_known:
        check_channel_names(channel_names, spec.channels, location.url)


def _version(location: Location) -> OmeVersion:
    return "0.4" if location.scheme == "zarr2" else "0.5"


def _version_beside(
    location: Location, asked: OmeVersion | None, opening: VolumeOptions
) -> OmeVersion:
    """Return the OME-Zarr version for new labels: the version of the image that contains them.

    Raises:
        VolumeError: the image has another version than the requested version, *asked*.
    """
    path = location.path.rpartition("/")[0].rpartition("/")[0]
    image = read_node(open_store(replace(location, path=path).store_url, opening.access))
    stored = None if image is None else ome.ome_of(image.attributes).get("version")
    if stored not in ("0.5", "0.6"):
        return asked or "0.5"
    version: OmeVersion = stored
    if asked not in (None, version):
        msg = (
            f"cannot create {location.url} as OME-Zarr {asked}, because the image that contains "
            f"these labels is OME-Zarr {version}; give --ome-version {version}"
        )
        raise VolumeError(msg)
    return version


def _levels(spec: VolumeSpec, mip: int) -> dict[int, VolumeSpec]:
    """Return the specs of *mip* and all coarser levels."""
    coarsest = max(mip, spec.max_mip)
    return {level: spec.level(level, mip) for level in range(mip, coarsest + 1)}


def _check_spec(spec: VolumeSpec, mip: int, version: str, *, plain: bool, url: str) -> None:
    shard, block = spec.shard_size, spec.block_size
    if version not in ("0.4", "0.5", "0.6"):
        msg = (
            f"cannot create {url}: writing OME-Zarr {version} is not supported; use 0.4, 0.5 or 0.6"
        )
        raise VolumeError(msg)
    if plain and spec.max_mip > mip:
        msg = (
            f"cannot create {url}: a plain array has only one level, not levels up to mip "
            f"{spec.max_mip}; create an OME-Zarr image instead"
        )
        raise VolumeError(msg)
    check_levels(spec, mip, url)
    if shard is None:
        return
    if version == "0.4":
        msg = (
            f"cannot create {url}: OME-Zarr 0.4, which is zarr v2, has no shards; choose "
            "--ome-version 0.5, or an address with zarr:// instead of zarr2://"
        )
        raise VolumeError(msg)
    if any(s % b for s, b in zip(shard, block, strict=True)):
        msg = (
            f"the shard size {shard} is not a multiple of the block size {block} (zyx, voxels); "
            f"use the shard size {-(-shard // block) * block}"
        )
        raise VolumeError(msg)


def _create_array(
    memory: MemoryStore,
    name: str,
    spec: VolumeSpec,
    *,
    axes: Sequence[str],
    zarr_format: Literal[2, 3],
    url: str,
    attributes: dict[str, Any] | None = None,
) -> None:
    def along(extent: Zyx, times: int, channels: int) -> tuple[int, ...]:
        named = {"t": times, "c": channels, **dict(zip(AXES, extent, strict=True))}
        return tuple(named[axis] for axis in axes)

    channels, shard = spec.channels or 1, spec.shard_size
    arguments: dict[str, Any] = {"dimension_names": list(axes)}
    if zarr_format == 2:
        # v2 has no dimension names; this is where xarray keeps them
        attributes = {**(attributes or {}), "_ARRAY_DIMENSIONS": list(axes)}
        arguments = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
    zarr.create_array(
        memory,
        name=name or None,
        shape=along(spec.bounds.size, spec.times or 1, channels),
        dtype=spec.dtype.newbyteorder("<"),
        chunks=along(spec.block_size, 1, 1),
        shards=None if shard is None else along(shard, 1, channels),
        compressors=_compressors(spec.encoding or "zstd", spec.dtype, zarr_format, url),
        filters=None,
        fill_value=0,
        attributes=attributes,
        zarr_format=zarr_format,
        **arguments,
    )


def _compressors(encoding: str, dtype: np.dtype[Any], zarr_format: int, url: str) -> Any:
    """Return the compressors of *encoding*; in v3, the stored bytes get a checksum."""
    if encoding == "raw":
        return [Crc32cCodec()] if zarr_format == 3 else None
    if encoding == "gzip":
        return GzipCodec(level=1) if zarr_format == 3 else numcodecs.GZip(1)
    if encoding == "zstd":
        # tensorstore refuses v2 arrays whose metadata mention a checksum
        return ZstdCodec(level=3, checksum=True) if zarr_format == 3 else numcodecs.Zstd(3)
    if encoding == "blosc":
        if zarr_format == 2:
            return numcodecs.Blosc("zstd", 5, numcodecs.Blosc.SHUFFLE)
        blosc = BloscCodec(typesize=dtype.itemsize, cname="zstd", clevel=5, shuffle="shuffle")
        return [blosc, Crc32cCodec()]
    known = ", ".join(ZARR_ENCODINGS)
    msg = f"cannot create {url}: zarr has no encoding {encoding!r}; choose {known}"
    raise VolumeError(msg)


def _register_label(store: Store, name: str, version: str) -> None:
    """Add *name* to the list of labels in the parent group."""

    def add(content: bytes | None) -> bytes:
        document = parse_json(content or b"{}")
        attributes = document
        if version != "0.4":
            document = {"zarr_format": 3, "node_type": "group", "attributes": {}, **document}
            attributes = document["attributes"].setdefault("ome", {"version": version})
        names = attributes.setdefault(_LABELS, [])
        if name in names and content is not None:
            return content
        names.append(name)
        return json.dumps(document, indent=2).encode()

    if version != "0.4":
        store.update("zarr.json", add)
        return
    store.put_if_absent(".zgroup", b'{"zarr_format": 2}')
    store.update(".zattrs", add)

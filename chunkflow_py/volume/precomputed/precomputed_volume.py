"""Neuroglancer precomputed volumes in local folders and in clouds.

```
em/info                               metadata of all levels
em/8_8_40/0-64_0-64_0-32.gz           one block, named after its ranges of x, y and z in voxels
em/8_8_40/0a.shard                    a shard of many blocks, if the level is stored in shards
```

Volumes are written as cloud-volume writes them, so cloud-volume and Neuroglancer can read them.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import DOCUMENT_BYTES, parse_json
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.volume.engine.block_volume import BlockVolume
from chunkflow_py.volume.engine.reproducible_gzip import check_gzip_available
from chunkflow_py.volume.precomputed.precomputed_codec import GZIPPED
from chunkflow_py.volume.precomputed.precomputed_info import (
    CREATE,
    any_dtype,
    check_key,
    create_info,
    merged_info,
    parse_info,
)
from chunkflow_py.volume.precomputed.precomputed_layout import (
    PrecomputedLayout,
    ShardedPrecomputedLayout,
)

if TYPE_CHECKING:
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.precomputed.precomputed_info import LayerType
    from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec


def open_volume(location: Location, mip: int, mode: Mode, opening: VolumeOptions) -> BlockVolume:
    """Open level *mip*. A volume of one channel has no channel axis.

    Raises:
        VolumeNotFoundError: the volume or the level does not exist.
        VolumeError: the info file is damaged or not supported. For *mode* ``r+`` also: a shard is
            not a box of blocks, or another level stores its blocks in the same folder.
        MissingExtraError: the library for the encoding is not installed.
    """
    store = open_store(location.store_url, opening.access)
    content = store.get("info", DOCUMENT_BYTES)
    if content is None:
        msg = f"{location} is not a precomputed volume, because it has no info file; {CREATE}"
        raise VolumeNotFoundError(msg)
    level = parse_info(content, mip, str(location))
    if mode == "r+":
        check_key(parse_json(content), mip, str(location))
    if level.sharding is None:
        layout = PrecomputedLayout(level, is_local=store.is_local)
    else:
        layout = ShardedPrecomputedLayout(level, level.sharding, is_local=store.is_local)
        if mode == "r+" and not layout.writable:
            msg = (
                f"mip {mip} of {location} can only be read, because the blocks of a shard are not "
                f"neighbours (the sharding in the info file has hash {level.sharding.hash} and "
                f"shard_bits {level.sharding.shard_bits}); write to another volume"
            )
            raise VolumeError(msg)
    if mode == "r+" and layout.gzipped:
        check_gzip_available()
    return BlockVolume(
        location.address,
        store,
        layout,
        voxel_offset=level.bounds.start,
        voxel_size_nm=level.voxel_size_nm,
        kind=level.kind,
        mode=mode,
        mip=mip,
        mips=level.mips,
        opening=opening,
        encoding=level.scale["encoding"],
        documents=("info",),
    )


def check_new(
    spec: VolumeSpec,
    location: Location,
    mip: int,
    *,
    dtype_known: bool = True,
    layer_type: LayerType | None = None,
    **_: Any,
) -> None:
    """Raise the errors that `create_volume` would raise, but create nothing.

    See `write_checks.check_new`.
    """
    if not dtype_known:
        spec = replace(spec, dtype=any_dtype(spec.encoding), channels=None)
    create_info(spec, mip, layer_type=layer_type, url=str(location))
    if spec.encoding in (None, *GZIPPED):
        check_gzip_available()


def create_volume(
    spec: VolumeSpec,
    location: Location,
    mip: int,
    opening: VolumeOptions,
    *,
    layer_type: LayerType | None = None,
    compress: bool = True,
    overwrite: bool = False,
) -> BlockVolume:
    """Write the info file with all levels, and open level *mip* for writing.

    An existing info file of the same volume is kept, and missing levels are added to the file.

    Args:
        spec: description of level *mip*.
        location: address of the volume.
        mip: level that *spec* describes.
        opening: options for reading and writing the volume.
        layer_type: ``image`` or ``segmentation`` (default: according to the kind of the voxels).
        compress: whether to gzip blocks if their encoding is one of `GZIPPED`.
        overwrite: whether to replace the info file of another volume.

    Raises:
        VolumeError: the volume cannot be written; the format cannot store voxels of this type; or
            another volume exists at this address, and *overwrite* is false.
    """
    info = create_info(spec, mip, layer_type=layer_type, compress=compress, url=str(location))

    def merge(existing: bytes | None) -> bytes:
        if existing is None:
            return _as_file(info)
        try:
            merged = merged_info(existing, info, str(location))
        except VolumeError:
            if not overwrite:
                raise
            return _as_file(info)
        return existing if merged == parse_json(existing) else _as_file(merged)

    store = open_store(location.store_url, opening.access)
    content = store.get("info", DOCUMENT_BYTES)
    if content is None or merge(content) != content:
        store.update("info", merge)
    return open_volume(location, mip, "r+", opening)


def _as_file(info: dict[str, Any]) -> bytes:
    return json.dumps(info, indent=2).encode() + b"\n"

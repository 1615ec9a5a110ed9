"""Neuroglancer precomputed volumes, on disks and in clouds.

```
em/info                               what there is, all levels
em/8_8_40/0-64_0-64_0-32.gz           one block, named by its x, y and z in voxels, or
em/8_8_40/0a.shard                    many blocks
```

What is written is what cloud-volume itself would write, so that it and Neuroglancer read it.
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


def open_volume(place: Location, mip: int, mode: Mode, opening: VolumeOptions) -> BlockVolume:
    """Open one level; always z, y, x outside. A volume of one channel has no channel axis.

    Raises:
        VolumeNotFoundError: there is none, or it has no such level.
        VolumeError: it cannot be understood; or *mode* is ``r+``, and its shards can only be read
            or two levels are one.
        MissingExtraError: the library of its encoding is not installed.
    """
    store = open_store(place.store_url, opening.access)
    content = store.get("info", DOCUMENT_BYTES)
    if content is None:
        msg = f"{place} holds no precomputed volume: it has no info file; {CREATE}"
        raise VolumeNotFoundError(msg)
    level = parse_info(content, mip, str(place))
    if mode == "r+":
        check_key(parse_json(content), mip, str(place))
    if level.sharding is None:
        layout = PrecomputedLayout(level, is_local=store.is_local)
    else:
        layout = ShardedPrecomputedLayout(level, level.sharding, is_local=store.is_local)
        if mode == "r+" and not layout.writable:
            msg = (
                f"the shards of {place} at mip {mip} hold blocks that do not lie together "
                f"(hash {level.sharding.hash}, {level.sharding.shard_bits} bits for shards), "
                "so that it can be read but not written; write to a volume of another sharding"
            )
            raise VolumeError(msg)
    if mode == "r+" and layout.gzipped:
        check_gzip_available()
    return BlockVolume(
        place.address,
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
    place: Location,
    mip: int,
    *,
    dtype_known: bool = True,
    layer_type: LayerType | None = None,
    **_: Any,
) -> None:
    """Refuse what `create_volume` would refuse, as `new_volume.check_new` says."""
    if not dtype_known:
        spec = replace(spec, dtype=any_dtype(spec.encoding), channels=None)
    create_info(spec, mip, layer_type=layer_type, url=str(place))
    if spec.encoding in (None, *GZIPPED):
        check_gzip_available()


def create_volume(
    spec: VolumeSpec,
    place: Location,
    mip: int,
    opening: VolumeOptions,
    *,
    layer_type: LayerType | None = None,
    compress: bool = True,
    overwrite: bool = False,
) -> BlockVolume:
    """Write the info file, all levels, and open level *mip* for writing.

    A file of the same volume is kept, and gets the levels that it does not have.

    Args:
        spec: of level *mip*.
        place: the volume.
        mip: level that *spec* describes.
        opening: how to use it.
        layer_type: ``image`` or ``segmentation`` (default: by the kind).
        compress: gzip blocks whose encoding does not compress by itself; ``raw`` ones too.
        overwrite: replace the file of another volume.

    Raises:
        VolumeError: it cannot be written, the format cannot hold such voxels, or there is
            another volume.
    """
    info = create_info(spec, mip, layer_type=layer_type, compress=compress, url=str(place))

    def merge(found: bytes | None) -> bytes:
        if found is None:
            return _as_file(info)
        try:
            merged = merged_info(found, info, str(place))
        except VolumeError:
            if not overwrite:
                raise
            return _as_file(info)
        return found if merged == parse_json(found) else _as_file(merged)

    store = open_store(place.store_url, opening.access)
    found = store.get("info", DOCUMENT_BYTES)
    if found is None or merge(found) != found:
        store.update("info", merge)
    return open_volume(place, mip, "r+", opening)


def _as_file(info: dict[str, Any]) -> bytes:
    return json.dumps(info, indent=2).encode() + b"\n"

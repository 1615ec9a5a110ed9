"""Parse, create and merge info files, which describe precomputed volumes.

Format: github.com/google/neuroglancer, ``datasource/precomputed/volume.md``. Arrays in the file are
x, y, z; this module converts them to z, y, x.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.core.chunk import KINDS
from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.volume.precomputed.precomputed_codec import GZIPPED
from chunkflow_py.volume.precomputed.sharding import Sharding
from chunkflow_py.volume.protocol import coarser
from chunkflow_py.volume.write_checks import check_levels

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.volume.protocol import VolumeSpec

LayerType = Literal["image", "segmentation"]

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "float32")
ENCODINGS = (
    "raw",
    "jpeg",
    "compressed_segmentation",
    "kempressed",
    "npz",
    "fpzip",
    "npz_uint8",
    "png",
    "compresso",
    "crackle",
    "jxl",
    "zfpc",
)
# dtypes and numbers of channels of the encodings that do not support all of them
_DTYPES_OF = {
    "jpeg": ("uint8",),
    "jxl": ("uint8",),
    "png": ("uint8", "uint16"),
    "compressed_segmentation": ("uint32", "uint64"),
    "compresso": ("uint8", "uint16", "uint32", "uint64"),
    "crackle": ("uint8", "uint16", "uint32", "uint64"),
    "fpzip": ("float32",),
    "kempressed": ("float32",),
    "zfpc": ("float32",),
    "npz_uint8": ("float32",),
}
_CHANNELS_OF = {
    "jpeg": (1, 3),
    "png": (1, 2, 3, 4),
    "jxl": (1,),
    "compressed_segmentation": (1,),
    "compresso": (1,),
    "crackle": (1,),
}
_LONGEST_CELL = 1 << 10  # voxels; limit for the cells of compressed segmentation
_VOLUME = "neuroglancer_multiscale_volume"
_OURS = "chunkflow_py"
CREATE = "check the path, or create the volume with create-info"

# fields of a level that must agree when an info file is merged into an existing one
_LEVEL_FIELDS = (
    "key",
    "size",
    "voxel_offset",
    "resolution",
    "chunk_sizes",
    "encoding",
    "sharding",
    "compressed_segmentation_block_size",
)


@dataclass(frozen=True)
class PrecomputedLevel:
    """One level of a volume, parsed from its info file.

    Attributes:
        key: folder of the blocks.
        bounds: box of all voxels of the level.
        voxel_size_nm: size of a voxel, nanometres, zyx.
        dtype: type of the voxels, little endian.
        channels: number of channels.
        kind: meaning of the voxels, if known.
        block_size: extent of a block, voxels, zyx. If the info file lists several block sizes for
            the level, this is the first in the list.
        sharding: assignment of blocks to shards, or ``None`` if there are no shards.
        compress: whether blocks are gzipped when written.
        mips: numbers of all levels.
        scale: the entry of this level in the info file.
    """

    key: str
    bounds: BoundingBox
    voxel_size_nm: tuple[float, float, float]
    dtype: np.dtype[Any]
    channels: int
    kind: Kind | None
    block_size: Zyx
    sharding: Sharding | None
    compress: bool
    mips: tuple[int, ...]
    scale: dict[str, Any]


def parse_info(content: bytes, mip: int, url: str) -> PrecomputedLevel:
    """Return the description of level *mip* in an info file.

    Raises:
        VolumeNotFoundError: the level does not exist.
        VolumeError: the file is damaged or not supported.
    """
    try:
        info = parse_json(content)
        count = len(_scales(info))
        level = _level(info, mip) if 0 <= mip < count else None
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as error:
        reason = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
        msg = f"the info file of {url} is damaged or incomplete ({reason}); {CREATE}"
        raise VolumeError(msg) from error
    if level is None:
        msg = f"{url} has no mip {mip}; it has mip {', '.join(map(str, range(count)))}"
        raise VolumeNotFoundError(msg)
    return level


def _scales(info: Any) -> list[dict[str, Any]]:
    if not isinstance(info, dict):
        msg = f"the file contains a {type(info).__name__}, not a JSON object"
        raise ValueError(msg)  # noqa: TRY004  (one kind of damage)
    if info.get("@type", _VOLUME) != _VOLUME:
        msg = f"the file describes {info['@type']}, not a volume"
        raise ValueError(msg)
    scales = info.get("scales")
    if not isinstance(scales, list) or not scales:
        msg = "the file has no scales"
        raise ValueError(msg)
    return scales


def _level(info: dict[str, Any], mip: int) -> PrecomputedLevel:
    scale = info["scales"][mip]
    dtype = np.dtype(str(info["data_type"]).lower()).newbyteorder("<")
    channels = info["num_channels"]
    bounds = scale_bounds(scale)
    block = Zyx.of(scale["chunk_sizes"][0][::-1])
    z, y, x = (float(nm) for nm in scale["resolution"][::-1])
    ours = info.get(_OURS, {})
    if dtype.kind not in "uif" or type(channels) is not int or channels < 1:
        msg = (
            f"the file declares num_channels {channels!r} and data_type {dtype}, but a volume has "
            "at least 1 channel of numbers"
        )
        raise ValueError(msg)
    if min(block) < 1 or bounds.is_empty or not all(0 < nm < math.inf for nm in (z, y, x)):
        msg = (
            f"the file declares blocks of {block} voxels, bounds {bounds} and voxel size "
            f"{(z, y, x)} nm (zyx), but all sizes must be positive"
        )
        raise ValueError(msg)
    if scale["encoding"] not in ENCODINGS:
        msg = (
            f"the file declares encoding {scale['encoding']!r}, but only {', '.join(ENCODINGS)} "
            "are supported"
        )
        raise ValueError(msg)
    cells = scale.get("compressed_segmentation_block_size", [8, 8, 8])
    if len(cells) != 3 or not all(type(n) is int and 0 < n <= _LONGEST_CELL for n in cells):
        msg = (
            f"the file declares compressed_segmentation cells of {cells} voxels (xyz), but a size "
            f"must be three integers from 1 to {_LONGEST_CELL}"
        )
        raise ValueError(msg)
    sharding = scale.get("sharding")
    return PrecomputedLevel(
        _key(scale),
        bounds,
        (z, y, x),
        dtype,
        channels,
        next((kind for kind in KINDS if kind == _kind(info)), None),
        block,
        None if sharding is None else Sharding.parse(sharding),
        bool(ours.get("compress", True)),
        tuple(range(len(info["scales"]))),
        scale,
    )


def _key(scale: dict[str, Any]) -> str:
    return str(scale.get("key") or "_".join(str(nm) for nm in scale["resolution"]))


def create_info(
    spec: VolumeSpec,
    mip: int = 0,
    *,
    layer_type: LayerType | None = None,
    compress: bool = True,
    url: str = "a precomputed volume",
) -> dict[str, Any]:
    """Return the content of an info file.

    Args:
        spec: description of level *mip*. The last level of the info file is the coarser of *mip*
            and ``spec.max_mip``.
        mip: level that *spec* describes; finer levels are derived from this description.
        layer_type: ``image`` or ``segmentation`` (default: according to the kind of the voxels; if
            the kind is unknown, uint32 and uint64 are a segmentation).
        compress: whether to gzip blocks if their encoding is one of `GZIPPED`.
        url: address of the volume, for messages.

    Raises:
        VolumeError: the volume has no voxels or several time points, two levels would be equal, the
            encoding is unknown or does not support the voxels, or the shard size is not possible.
    """
    if spec.bounds.is_empty:
        msg = f"cannot create {url}: its bounds {spec.bounds} are empty; choose another region"
        raise VolumeError(msg)
    encoding = spec.encoding or "raw"
    check_encoding(encoding, spec.dtype, spec.channels or 1)
    if encoding == "png" and spec.dtype == np.uint16:
        msg = (
            f"cannot create {url} with uint16 voxels in encoding png, because CloudVolume cannot "
            "read such voxels; choose encoding raw, or convert the voxels to uint8"
        )
        raise VolumeError(msg)
    if spec.times is not None and spec.times > 1:
        msg = (
            f"cannot create {url} with {spec.times} time points: precomputed volumes have no time "
            "axis; write to zarr://"
        )
        raise VolumeError(msg)
    check_levels(spec, mip, url, first=0)
    top = spec.shrink(mip)
    finest = BoundingBox(spec.bounds.start * top, spec.bounds.stop * top)
    size_nm = [nm / f for nm, f in zip(spec.voxel_size_nm, top, strict=True)]
    scales = []
    for level in range(max(mip, spec.max_mip) + 1):
        shrink = spec.shrink(level)
        resolution = [_plain(nm * f) for nm, f in zip(size_nm, shrink, strict=True)][::-1]
        bounds = coarser(finest, shrink)
        scale: dict[str, Any] = {
            "key": "_".join(str(value) for value in resolution),
            "encoding": encoding,
            "chunk_sizes": [list(spec.block_size[::-1])],
            "resolution": resolution,
            "voxel_offset": list(bounds.start[::-1]),
            "size": list(bounds.size[::-1]),
        }
        if encoding == "compressed_segmentation":
            scale["compressed_segmentation_block_size"] = [8, 8, 8]
        if spec.shard_size is not None:
            scale["sharding"] = Sharding.fitting(
                spec.shard_size,
                spec.block_size,
                bounds.size,
                gzip_data=compress and encoding in GZIPPED,
                exactly=level == mip,
            ).to_json()
        scales.append(scale)
    info: dict[str, Any] = {
        "@type": _VOLUME,
        "type": layer_type or _layer_type(spec),
        "data_type": spec.dtype.name,
        "num_channels": spec.channels or 1,
        "scales": scales,
    }
    # readers ignore keys that they do not know
    ours: dict[str, Any] = {} if spec.kind is None else {"kind": spec.kind}
    if not compress:
        ours["compress"] = False
    if ours:
        info[_OURS] = ours
    return info


def merged_info(content: bytes, info: dict[str, Any], url: str) -> dict[str, Any]:
    """Return the content of an existing info file, with missing levels added from *info*.

    Args:
        content: content of the existing file.
        info: result of `create_info`.
        url: address of the volume, for messages.

    Raises:
        VolumeError: the files describe different volumes; the message names the difference.
    """
    try:
        existing = parse_json(content)
        old_scales = _scales(existing)
    except ValueError as error:
        msg = (
            f"the info file of {url} is damaged or incomplete ({error}); replace the file with "
            "--overwrite"
        )
        raise VolumeError(msg) from error
    fields = ("data_type", "num_channels", "type")
    pairs = [(name, existing.get(name), info[name]) for name in fields]
    old_own, new_own = existing.get(_OURS, {}), info.get(_OURS, {})
    pairs.append(("compress", old_own.get("compress", True), new_own.get("compress", True)))
    if "kind" in old_own and "kind" in new_own:
        pairs.append(("kind", old_own["kind"], new_own["kind"]))
    for mip, (old, new) in enumerate(zip(old_scales, info["scales"], strict=False)):
        pairs += [(f"{name} at mip {mip}", old.get(name), new.get(name)) for name in _LEVEL_FIELDS]
    for name, old_value, new_value in pairs:
        if not _same(name, old_value, new_value):
            msg = (
                f"{url} has an info file of another volume, where {name} is {old_value}, but the "
                f"new volume has {new_value}; write to another address, or replace the file with "
                "--overwrite (then stored blocks of the other volume can no longer be read)"
            )
            raise VolumeError(msg)
    scales = [*old_scales, *info["scales"][len(old_scales) :]]
    for mip in range(len(old_scales), len(scales)):
        check_key({**existing, "scales": scales}, mip, url)
    return {**info, **existing, "scales": scales}


def check_key(info: dict[str, Any], mip: int, url: str) -> None:
    """Refuse to write a level whose blocks are in the folder of another level.

    Args:
        info: content of the info file.
        mip: level to write.
        url: address of the volume, for messages.

    Raises:
        VolumeError: another level uses the same folder; the message names both levels.
    """
    keys = [_key(scale) for scale in info["scales"]]
    for other, key in enumerate(keys):
        if key == keys[mip] and other != mip:
            msg = (
                f"mip {mip} and mip {other} of {url} store their blocks in the same folder ({key}) "
                "and would overwrite each other; create the volume again with different voxel sizes"
            )
            raise VolumeError(msg)


def _same(name: str, old: Any, new: Any) -> bool:
    if name.startswith("chunk_sizes") and isinstance(old, list):
        return bool(old[:1] == new)  # other programs may store blocks in further shapes
    if name.startswith("voxel_offset"):
        return bool((old or [0, 0, 0]) == new)
    if name.startswith("sharding") and old and new:
        return Sharding.parse(old) == Sharding.parse(new)
    return bool(old == new)


def any_dtype(encoding: str | None) -> np.dtype[Any]:
    """Return a dtype that the encoding supports, for checks before the real dtype is known."""
    return np.dtype(_DTYPES_OF.get(encoding or "raw", DTYPES)[0])


def check_encoding(encoding: str, dtype: np.dtype[Any], channels: int) -> None:
    """Refuse voxels that the format or the encoding does not support.

    Raises:
        VolumeError: the encoding, dtype or number of channels is not supported; the message lists
            the supported values.
    """
    if encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        msg = f"precomputed volumes have no encoding {encoding!r}; choose one of {known}"
        raise VolumeError(msg)
    dtypes = _DTYPES_OF.get(encoding, DTYPES)
    if dtype.name not in dtypes:
        holder = f"encoding {encoding}" if encoding in _DTYPES_OF else "a precomputed volume"
        msg = (
            f"{holder} cannot store {dtype.name} voxels, only {', '.join(dtypes)}; convert the "
            "voxels"
        )
        raise VolumeError(msg)
    supported = _CHANNELS_OF.get(encoding)
    if supported and channels not in supported:
        msg = (
            f"encoding {encoding} cannot store {channels} channels, only "
            f"{' or '.join(str(n) for n in supported)}; choose encoding raw"
        )
        raise VolumeError(msg)


def scale_bounds(scale: dict[str, Any]) -> BoundingBox:
    """Return the bounds of one level of an info file, voxels, zyx."""
    offset = scale.get("voxel_offset") or (0, 0, 0)
    return BoundingBox.from_size(Zyx.of(offset[::-1]), Zyx.of(scale["size"][::-1]))


def _kind(info: dict[str, Any]) -> Any:
    """Return the kind of the voxels, such as ``image``, that this package stores in info files.

    Other programs store only a layer type. If the info file states no kind, the result is
    ``segmentation`` for a segmentation layer, and ``None`` for an image layer, because an image
    layer may contain an image or a probability map.
    """
    stored = info.get(_OURS, {}).get("kind")
    return "segmentation" if stored is None and info.get("type") == "segmentation" else stored


def _layer_type(spec: VolumeSpec) -> LayerType:
    labels = spec.dtype.name in ("uint32", "uint64") if spec.kind is None else None
    return "segmentation" if labels or spec.kind == "segmentation" else "image"


def _plain(value: float) -> int | float:
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded.is_integer() else rounded

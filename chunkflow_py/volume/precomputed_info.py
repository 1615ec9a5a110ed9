"""The info file of a precomputed volume: what Neuroglancer and cloud-volume expect in it.

Format: https://github.com/google/neuroglancer/blob/master/src/datasource/precomputed/volume.md
Everything in the file is in xyz order; everything outside of this module is zyx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from chunkflow_py.errors import VolumeError
from chunkflow_py.geometry import BoundingBox, Zyx

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy as np

    from chunkflow_py.volume.protocol import VolumeSpec

LayerType = Literal["image", "segmentation"]

DTYPES = ("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "float32")
ENCODINGS = (
    "raw", "jpeg", "compressed_segmentation", "kempressed", "npz", "fpzip", "npz_uint8",
    "png", "compresso", "crackle", "jxl", "zfpc",
)  # fmt: skip
# What the less general encodings can hold; those that are not here hold everything.
_HOLDS = {
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
_OURS = "chunkflow_py"


def create_info(
    spec: VolumeSpec,
    mip: int = 0,
    *,
    factor: Iterable[int] = (2, 2, 2),
    max_mip: int = 0,
    layer_type: LayerType | None = None,
) -> dict[str, Any]:
    """Return the content of an info file.

    Args:
        spec: of level *mip*.
        mip: level that *spec* describes; the finer ones are worked out from it.
        factor: shrinkage from each level to the next, zyx.
        max_mip: the coarsest level (at least *mip*).
        layer_type: ``image`` or ``segmentation`` (default: by the kind of the voxels; if that is
            unknown, 32 and 64 bit integers are labels).

    Raises:
        VolumeError: the format, or the encoding, cannot hold such voxels.
    """
    encoding = spec.encoding or "raw"
    check_encoding(encoding, spec.dtype, spec.channels or 1)
    step = Zyx.of(factor)
    top = Zyx(*(f**mip for f in step))
    finest = BoundingBox(spec.bounds.start * top, spec.bounds.stop * top)
    size_nm = [nm / f for nm, f in zip(spec.voxel_size_nm, top, strict=True)]
    scales = []
    for level in range(max(mip, max_mip) + 1):
        shrink = Zyx(*(f**level for f in step))
        resolution = [_plain(nm * f) for nm, f in zip(size_nm, shrink, strict=True)][::-1]
        scale: dict[str, Any] = {
            "key": "_".join(str(value) for value in resolution),
            "encoding": encoding,
            "chunk_sizes": [list(spec.block_size[::-1])],
            "resolution": resolution,
            "voxel_offset": list((finest.start // shrink)[::-1]),
            "size": list((-(-finest.size // shrink))[::-1]),
        }
        if encoding == "compressed_segmentation":
            scale["compressed_segmentation_block_size"] = [8, 8, 8]
        scales.append(scale)
    info: dict[str, Any] = {
        "@type": "neuroglancer_multiscale_volume",
        "type": layer_type or _layer_type(spec),
        "data_type": spec.dtype.name,
        "num_channels": spec.channels or 1,
        "scales": scales,
    }
    if spec.kind is not None:
        info[_OURS] = {"kind": spec.kind}  # readers pass over keys that they do not know
    return info


def check_encoding(encoding: str, dtype: np.dtype[Any], channels: int) -> None:
    """Refuse voxels that the format or the encoding cannot hold.

    Raises:
        VolumeError: names what it can hold.
    """
    if encoding not in ENCODINGS:
        known = ", ".join(ENCODINGS)
        msg = f"precomputed volumes have no encoding {encoding!r}; choose one of {known}"
        raise VolumeError(msg)
    holds = _HOLDS.get(encoding, DTYPES)
    if dtype.name not in holds:
        what = f"encoding {encoding}" if encoding in _HOLDS else "a precomputed volume"
        msg = f"{what} cannot hold {dtype.name} voxels, only {', '.join(holds)}; convert them"
        raise VolumeError(msg)
    few = {"jpeg": (1, 3), "jxl": (1, 3), "compresso": (1,), "crackle": (1,)}.get(encoding)
    if few and channels not in few:
        msg = (
            f"encoding {encoding} cannot hold {channels} channels, only "
            f"{' or '.join(str(n) for n in few)}; choose raw"
        )
        raise VolumeError(msg)


def scale_bounds(scale: dict[str, Any]) -> BoundingBox:
    """Return the bounds of one level of an info file, zyx."""
    offset = scale.get("voxel_offset", (0, 0, 0))
    return BoundingBox.from_size(Zyx.of(offset[::-1]), Zyx.of(scale["size"][::-1]))


def stored_kind(info: dict[str, Any]) -> str | None:
    """Return what we said of the voxels when the volume was made, or ``segmentation``, or None.

    An image layer of another program may hold an image or a map: we do not know.
    """
    found = info.get(_OURS, {}).get("kind")
    if found is None and info.get("type") == "segmentation":
        return "segmentation"
    return found if isinstance(found, str) else None


def _layer_type(spec: VolumeSpec) -> LayerType:
    labels = spec.dtype.name in ("uint32", "uint64") if spec.kind is None else None
    return "segmentation" if labels or spec.kind == "segmentation" else "image"


def _plain(value: float) -> int | float:
    rounded = float(f"{value:.12g}")
    return int(rounded) if rounded.is_integer() else rounded

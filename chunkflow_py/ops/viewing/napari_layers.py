"""Conversion of items to layers for napari, without importing napari.

A layer is a tuple (data, settings, kind), which ``getattr(viewer, f"add_{kind}")(data,
**settings)`` adds to a viewer. World coordinates are in nanometres, zyx. napari puts the centre of
voxel 0 at *translate*, so the *translate* of a chunk is the corner of the chunk plus half a voxel.
Chunks are therefore aligned with points and skeletons.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.ops.viewing.colours import (
    CHANNEL_RGB,
    check_labels,
    colours_of_labels,
    kind_of,
    ranges_and_rule,
    single_channel,
)
from chunkflow_py.ops.viewing.items import lines_of, points_of, skeletons_of

if TYPE_CHECKING:
    from collections.abc import Mapping

Layer = tuple[Any, dict[str, Any], str]
Size = tuple[float, float, float]

COLORMAPS = ("red", "green", "blue", "cyan", "magenta", "yellow")  # as `CHANNEL_RGB`


def napari_layers(items: Mapping[str, Any], voxel_size_nm: Size | None = None) -> list[Layer]:
    """Return the napari layers of *items*, in the order of the items; ``None`` is skipped.

    Args:
        items: chunks (z, y, x) or (c, z, y, x), points, synapses or skeletons, by item name.
            Each channel of a chunk becomes a layer in its own colour, blended additively.
        voxel_size_nm: voxel size, nanometres, zyx (default: the voxel size of each chunk).

    Raises:
        ChunkError: an item cannot be shown.
    """
    sizes = [item.voxel_size_nm for item in items.values() if isinstance(item, Chunk)]
    known = voxel_size_nm or (sizes[0] if sizes else (1.0, 1.0, 1.0))
    layers: list[Layer] = []
    for name, item in items.items():
        if isinstance(item, Chunk):
            layers += _chunk_layers(name, item, voxel_size_nm or item.voxel_size_nm)
        elif item is not None:
            layers += _object_layers(name, item, known)
    return layers


def _chunk_layers(name: str, chunk: Chunk, size: Size) -> list[Layer]:
    place: dict[str, Any] = {
        "scale": size,
        "translate": tuple((o + 0.5) * s for o, s in zip(chunk.voxel_offset, size, strict=True)),
        "units": ("nm",) * 3,
    }
    kind, array = kind_of(chunk), single_channel(chunk.array)
    if kind == "segmentation":
        check_labels(chunk)
        array = array.astype(np.uint8) if array.dtype == bool else array
        return [(array, {"name": name, **place}, "labels")]
    ranges, _ = ranges_and_rule(array, kind)
    if array.ndim == 3:
        about = {"name": name, "colormap": "gray", "contrast_limits": ranges[0], **place}
        return [(array, about, "image")]
    named = "xyz" if kind in ("affinity", "vector") and len(array) == 3 else range(len(array))
    return [
        (
            channel,
            {
                "name": f"{name} {label}",
                "colormap": COLORMAPS[number % len(COLORMAPS)],
                "blending": "additive",
                "contrast_limits": ranges[number],
                "visible": number < len(CHANNEL_RGB),
                **place,
            },
            "image",
        )
        for number, (label, channel) in enumerate(zip(named, array, strict=True))
    ]


def _object_layers(name: str, item: Any, size: Size) -> list[Layer]:
    place: dict[str, Any] = {"name": name, "units": ("nm",) * 3}
    width = min(size)
    skeletons = skeletons_of(item)
    if skeletons is not None:
        ids = np.repeat(list(skeletons), [len(each.edges) for each in skeletons.values()])
        ends = np.concatenate([each.vertices_nm[each.edges] for each in skeletons.values()])
        colours = colours_of_labels(ids) / 255
        more = {"edge_color": colours, "edge_width": width, "features": {"id": ids}}
        return [(_vectors(ends[:, 0], ends[:, 1]), {**place, **more}, "vectors")]
    points = points_of(name, item, size)
    begins, ends = lines_of(item, size)
    dots = {"size": 8 * width, "face_color": "yellow"}
    layers: list[Layer] = [(points, {**place, **dots}, "points")]
    if len(begins):
        more = {"name": f"{name} pre to post", "edge_color": "cyan", "edge_width": width}
        layers.insert(0, (_vectors(begins, ends), {**place, **more}, "vectors"))
    return layers


def _vectors(begins: Any, ends: Any) -> Any:
    # napari wants the start and the displacement of each line, in an array of shape (n, 2, 3).
    return np.stack([begins, ends - begins], axis=1)

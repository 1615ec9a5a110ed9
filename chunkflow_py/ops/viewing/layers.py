"""Neuroglancer layers of chunks and meshes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.ops.viewing.colours import (
    CHANNEL_COLOURS,
    check_labels,
    kind_of,
    kind_of_voxels,
    ranges_and_rule,
    single_channel,
    value_range,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk, Kind
    from chunkflow_py.volume.protocol import Volume

GREY = (
    "#uicontrol invlerp normalized(range=[{low:g}, {high:g}])\nvoid main() {{\n"
    "  emitGrayscale(normalized());\n}}\n"
)
ONE_COLOUR = (
    "#uicontrol invlerp normalized(range=[{low:g}, {high:g}])\n"
    '#uicontrol vec3 colour color(default="{colour}")\n'
    "void main() {{\n  emitRGB(colour * normalized());\n}}\n"
)
ONE_OF_MANY = (
    "#uicontrol int channel slider(min=0, max={last})\n"
    "#uicontrol invlerp normalized(range=[{low:g}, {high:g}])\nvoid main() {{\n"
    "  emitGrayscale(normalized(getDataValue(channel)));\n}}\n"
)


def layer_of(
    chunk: Chunk,
    voxel_size_nm: tuple[float, float, float] | None = None,
    segments: Sequence[int] = (),
    meshes: str | None = None,
) -> Any:
    """Return the Neuroglancer layer of a chunk, at the position of the chunk.

    The layer of a segmentation shows a mesh for each selected segment. The server computes the mesh
    from the voxels, or reads it from *meshes*.

    Args:
        chunk: (z, y, x) or (c, z, y, x); affinities x, y, z are shown in red, green and blue. In
            chunks of other kinds, each channel has a colour, which the layer's panel can change.
        voxel_size_nm: voxel size, nanometres, zyx (default: the voxel size of the chunk).
        segments: ids to select initially in a segmentation.
        meshes: Neuroglancer source URL of a folder with meshes of the segmentation; with ``None``,
            the meshes are computed.

    Raises:
        ChunkError: the chunk is a segmentation, but its labels are not integers, a label is
            negative, or the chunk has several channels.
    """
    import neuroglancer

    kind = kind_of(chunk)
    if kind == "segmentation":
        check_labels(chunk)
    array = _shown(single_channel(chunk.array), kind)
    scales = [float(v) for v in voxel_size_nm or chunk.voxel_size_nm]
    names, units, offset = ["z", "y", "x"], ["nm"] * 3, [*chunk.voxel_offset]
    if array.ndim == 4:  # c^ is a channel dimension, which a shader reads as a whole
        names, units, scales, offset = ["c^", *names], ["", *units], [1.0, *scales], [0, *offset]
    made = _labels_class() if kind == "segmentation" else neuroglancer.LocalVolume
    volume = made(
        array,
        dimensions=neuroglancer.CoordinateSpace(names=names, units=units, scales=scales),
        voxel_offset=offset,
        volume_type="segmentation" if kind == "segmentation" else "image",
    )
    if kind != "segmentation":
        return neuroglancer.ImageLayer(source=volume, shader=_shader(array, kind))
    sources: list[Any] = [volume]
    if meshes is not None:
        own = neuroglancer.LayerDataSource(volume, subsources={"default": True})
        own.enable_default_subsources = False  # otherwise the server would compute meshes
        sources = [own, meshes]
    return neuroglancer.SegmentationLayer(source=sources, segments=segments)


def layers_of_volume(
    name: str, volume: Volume, address: str, segments: Sequence[int] = ()
) -> dict[str, Any]:
    """Return the Neuroglancer layers, by name, of a stored volume; the browser reads its voxels.

    A segmentation or a single channel is one layer. If there are several channels, each channel is
    a layer with its own colour. The values shown as black and as white are computed from a sample
    of the coarsest level; see `chunkflow_py.ops.viewing.colours`.

    Args:
        name: name of the layer. If there are several channels, each layer is called *name*, a
            space, and the name of its channel.
        volume: the stored volume, opened at any level.
        address: Neuroglancer source URL of the volume.
        segments: ids to select initially in a segmentation.

    Raises:
        VolumeError: the voxels cannot be read.
    """
    import neuroglancer

    from chunkflow_py.volume.protocol import names_of
    from chunkflow_py.volume.sample import sample_of

    voxels = sample_of(volume)
    kind = kind_of_voxels(volume.kind, voxels.dtype, None if len(voxels) == 1 else len(voxels))
    if kind == "segmentation":
        return {name: neuroglancer.SegmentationLayer(source=address, segments=segments)}
    if volume.channels is None or len(voxels) == 1:
        low, high = value_range(voxels, kind)
        local = [] if volume.channels is None else [0]
        shader = GREY.format(low=low, high=high)
        return {name: neuroglancer.ImageLayer(source=address, local_position=local, shader=shader)}
    names = names_of(volume) or [f"channel {channel}" for channel in range(len(voxels))]
    found = {}
    for channel, (title, values) in enumerate(zip(names, voxels, strict=True)):
        low, high = value_range(values, kind)
        found[f"{name} {title}"] = neuroglancer.ImageLayer(
            source=address,
            local_position=[channel],
            shader=ONE_COLOUR.format(
                low=low, high=high, colour=CHANNEL_COLOURS[channel % len(CHANNEL_COLOURS)]
            ),
            blend="additive",
            opacity=1,
        )
    return found


def mesh_layer(address: str, segments: Iterable[int]) -> Any:
    """Return a Neuroglancer layer that shows only meshes.

    Args:
        address: Neuroglancer source URL of the folder of meshes.
        segments: ids of segments to show.
    """
    import neuroglancer

    return neuroglancer.SegmentationLayer(source=address, segments=segments)


def _labels_class() -> Any:
    import neuroglancer

    class Labels(neuroglancer.LocalVolume):  # type: ignore[misc]
        def get_object_mesh(self, object_id: int) -> bytes:
            # The library places the centre of a voxel at its lower corner, so its surfaces are half
            # a voxel too low along every axis.
            mesh = bytearray(super().get_object_mesh(object_id))
            count = int.from_bytes(mesh[:4], "little")
            vertices = np.frombuffer(mesh, "<f4", 3 * count, offset=4).reshape(-1, 3)
            vertices += np.asarray(self.dimensions.scales, np.float32) / 2
            return bytes(mesh)

    return Labels


def _shown(array: NDArray[Any], kind: Kind) -> NDArray[Any]:
    if array.dtype == bool:
        return array.astype(np.uint8)
    if kind == "segmentation" and array.dtype.kind == "i":
        return array.astype(f"uint{8 * array.dtype.itemsize}")
    if array.dtype.kind == "f" or array.dtype == np.int64:
        return array.astype(np.float32, copy=False)
    return array


def _shader(array: NDArray[Any], kind: Kind) -> str:
    ranges, _ = ranges_and_rule(array, kind)
    low, high = ranges[0]
    if array.ndim == 3:
        return GREY.format(low=low, high=high)
    if len(array) > len(CHANNEL_COLOURS):
        return ONE_OF_MANY.format(last=len(array) - 1, low=low, high=high)
    names = ["x", "y", "z"] if kind in ("affinity", "vector") else []
    names = names if len(names) == len(array) else [f"channel{c}" for c in range(len(array))]
    return _coloured(dict(zip(names, CHANNEL_COLOURS, strict=False)), ranges)


def _coloured(colours: Mapping[str, str], ranges: Sequence[tuple[float, float]]) -> str:
    controls, terms = [], []
    for channel, ((name, colour), (low, high)) in enumerate(
        zip(colours.items(), ranges, strict=True)
    ):
        controls += [
            f"#uicontrol bool show_{name} checkbox(default=true)",
            f'#uicontrol vec3 colour_{name} color(default="{colour}")',
            f"#uicontrol invlerp range_{name}"
            f"(range=[{low:g}, {high:g}], channel={channel}, clamp=true)",
        ]
        terms.append(f"  if (show_{name}) sum += colour_{name} * range_{name}();")
    body = ["void main() {", "  vec3 sum = vec3(0.0);", *terms, "  emitRGB(sum);", "}", ""]
    return "\n".join([*controls, *body])

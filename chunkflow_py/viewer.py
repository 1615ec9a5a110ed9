"""Chunks as layers of the Neuroglancer viewer, served from this process."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkError, VolumeError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Mapping

    from chunkflow_py.chunk import Chunk, Kind

GREY = (
    "#uicontrol invlerp normalized(range=[{low:g}, {high:g}])\nvoid main() {{\n"
    "  emitGrayscale(normalized());\n}}\n"
)
RGB = "void main() {{\n  emitRGB(vec3({red}, {green}, {blue}));\n}}\n"


class ViewerServer:
    """Neuroglancer's own web server: one for the process, a viewer for each set of chunks.

    Args:
        bind_address: which machines may connect; 127.0.0.1 is this one alone.
        port: to listen on; 0 takes a free one.
    """

    def __init__(self, bind_address: str = "127.0.0.1", port: int = 0) -> None:
        """Start to listen.

        Raises:
            VolumeError: the address or port cannot be used.
            MissingExtraError: neuroglancer is not installed.
        """
        with needs_extra("view", "neuroglancer"):
            import neuroglancer
            from neuroglancer import server
        self._library: Any = neuroglancer
        neuroglancer.set_server_bind_address(bind_address, port)
        try:
            # Tried here first: where the library cannot listen, it leaves its socket open.
            family = socket.AF_INET6 if ":" in bind_address else socket.AF_INET
            socket.create_server((bind_address, port), family=family).close()
            server.start()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            msg = f"cannot serve on {bind_address}:{port}: {reason}; give another --port, or none"
            raise VolumeError(msg) from error
        self._viewers: list[Any] = []

    def show(
        self,
        chunks: Mapping[str, Chunk],
        voxel_size_nm: tuple[float, float, float] | None = None,
    ) -> str:
        """Make a viewer with one layer a chunk, and return its address.

        Args:
            chunks: by the layers' names.
            voxel_size_nm: instead of the chunks' own, zyx.
        """
        viewer = self._library.Viewer()
        with viewer.txn() as state:
            for name, chunk in chunks.items():
                state.layers[name] = layer_of(chunk, voxel_size_nm)
            first = next(iter(chunks.values()))
            state.dimensions = self._library.CoordinateSpace(
                names=["x", "y", "z"],
                units="nm",
                scales=(voxel_size_nm or first.voxel_size_nm)[::-1],
            )
            middle = [(a + b) / 2 for a, b in zip(first.bbox.start, first.bbox.stop, strict=True)]
            state.position = middle[::-1]
        self._viewers.append(viewer)  # the server itself holds it weakly
        return str(viewer.get_viewer_url())

    def clear(self) -> None:
        """Let go of all chunks."""
        self._viewers.clear()

    def stop(self) -> None:
        """Stop to listen."""
        self.clear()
        self._library.stop()


def kind_of(chunk: Chunk) -> Kind:
    """Return what *chunk* shows, guessed by dtype and channels where it does not say so."""
    if chunk.kind is not None:
        return chunk.kind
    if chunk.dtype.kind in "iu" and chunk.dtype.itemsize >= 4 and chunk.channels == 1:
        return "segmentation"
    if chunk.dtype.kind == "f" and chunk.ndim == 4:
        return "affinity" if chunk.channels == 3 else "probability"
    return "image"


def layer_of(chunk: Chunk, voxel_size_nm: tuple[float, float, float] | None = None) -> Any:
    """Return a layer that lies where the chunk lies.

    Args:
        chunk: (z, y, x) or (c, z, y, x); affinities are shown as red, green and blue.
        voxel_size_nm: instead of the chunk's own, zyx.

    Raises:
        ChunkError: labels are not integers from 0 on, or lie in several channels.
    """
    import neuroglancer
    import numpy as np

    kind = kind_of(chunk)
    array = chunk.array[0] if chunk.ndim == 4 and chunk.channels == 1 else chunk.array
    array = array.astype(np.uint8) if array.dtype == bool else array
    if kind == "segmentation":
        if array.ndim != 3 or array.dtype.kind not in "iu" or array.min(initial=0) < 0:
            msg = (
                "a segmentation to show must hold integers from 0 on, of one channel; "
                f"chunk {chunk.bbox} is {chunk.dtype} of shape {chunk.shape}"
            )
            raise ChunkError(msg)
        if array.dtype.kind == "i":
            array = array.astype(f"uint{8 * array.dtype.itemsize}")
    elif array.dtype.kind == "f":
        array = array.astype(np.float32, copy=False)
    scales = [float(v) for v in voxel_size_nm or chunk.voxel_size_nm]
    names, units, offset = ["z", "y", "x"], ["nm"] * 3, [*chunk.voxel_offset]
    if array.ndim == 4:  # c^ is a channel that a shader sees whole
        names, units, scales, offset = ["c^", *names], ["", *units], [1.0, *scales], [0, *offset]
    volume = neuroglancer.LocalVolume(
        array,
        dimensions=neuroglancer.CoordinateSpace(names=names, units=units, scales=scales),
        voxel_offset=offset,
        volume_type="segmentation" if kind == "segmentation" else "image",
    )
    if kind == "segmentation":
        return neuroglancer.SegmentationLayer(source=volume)
    return neuroglancer.ImageLayer(source=volume, shader=_shader(array, kind))


def _shader(array: Any, kind: Kind) -> str:
    if array.ndim == 4:
        values = [f"toNormalized(getDataValue({c}))" for c in range(min(3, len(array)))]
        values += ["0.0"] * (3 - len(values))
        return RGB.format(red=values[0], green=values[1], blue=values[2])
    low, high = 0.0, 255.0 if array.dtype.name == "uint8" else 1.0
    if kind not in ("probability", "affinity") and array.dtype.name != "uint8" and array.size:
        low, high = float(array.min()), float(array.max())
    return GREY.format(low=low, high=high if high > low else low + 1)

"""Server of cloud-volume's microviewer: an image, a segmentation, or both overlaid."""

from __future__ import annotations

import threading
from functools import partial
from http.server import ThreadingHTTPServer
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import equal_boxes_remedy
from chunkflow_py.errors import ChunkError, needs_extra
from chunkflow_py.ops.viewing.colours import (
    check_labels,
    colours_of_channels,
    grey,
    kind_of,
    ranges_and_rule,
    single_channel,
)
from chunkflow_py.ops.viewing.server import check_free

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk


class MicroServer:
    """Serves the page of microviewer, and the voxels of one task.

    Args:
        bind_address: address to listen on; with 127.0.0.1, only this machine can connect.
        port: port to listen on; 0 selects a free port.
    """

    def __init__(self, bind_address: str = "127.0.0.1", port: int = 0) -> None:
        """Start the server.

        Raises:
            VolumeError: the server cannot listen on the address and port.
            MissingExtraError: microviewer is not installed.
        """
        with needs_extra("precomputed", "view"):
            microviewer = import_module("microviewer")  # ships no types
        check_free(bind_address, port)
        self._cutouts: list[dict[str, Any]] = []
        handler = partial(microviewer.ViewerServerHandler, self._cutouts)
        self._server = ThreadingHTTPServer((bind_address, port), handler)
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="view", daemon=True
        )
        self._thread.start()
        self.url = f"http://{bind_address}:{self._server.server_port}/"

    def show(self, image: Chunk, segmentation: Chunk | None = None) -> str:
        """Set the chunks that the page shows, and return the address of the page.

        Raises:
            ChunkError: the two chunks have different boxes, or one of them cannot be shown.
        """
        if segmentation is not None and segmentation.bbox != image.bbox:
            msg = (
                f"view needs two chunks with equal boxes, but the image has {image.bbox} and the "
                f"segmentation has {segmentation.bbox}; "
                f"{equal_boxes_remedy(image.bbox, segmentation.bbox)}"
            )
            raise ChunkError(msg)
        both = segmentation is not None
        cutouts = [cutout(image, "image" if both else None)]
        if segmentation is not None:
            cutouts.append(cutout(segmentation, "segmentation"))
        self._cutouts[:] = cutouts
        return self.url

    def clear(self) -> None:
        """Release the chunks that the page shows."""
        self._cutouts.clear()

    def stop(self) -> None:
        """Stop the server."""
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
        self.clear()


def cutout(chunk: Chunk, layer: str | None = None) -> dict[str, Any]:
    """Return the microviewer layer of a chunk: voxels, position and settings.

    Microviewer supports grey levels of 8 and 16 bits, 24-bit colours, and labels. Voxels of other
    types are converted as described in `chunkflow_py.ops.viewing.colours`.

    Args:
        chunk: (z, y, x) or (c, z, y, x).
        layer: ``image`` or ``segmentation`` (default: the kind of the chunk).

    Raises:
        ChunkError: a segmentation has several channels or negative labels.
    """
    kind = kind_of(chunk) if layer is None else layer
    array = single_channel(chunk.array)
    if kind == "segmentation":
        check_labels(chunk)
        array = array.astype(f"uint{8 * array.dtype.itemsize}", copy=False)
    else:
        array = _image(array, chunk)
    xyz = array.transpose(2, 1, 0, *range(3, array.ndim))
    return {
        "img": import_module("microviewer").to3d(np.asfortranarray(xyz)),
        "cloudpath": "chunkflow",
        "resolution": [max(1, round(v)) for v in chunk.voxel_size_nm[::-1]],
        "layer_type": "segmentation" if kind == "segmentation" else "image",
        "offset": list(chunk.voxel_offset[::-1]),
    }


def _image(array: NDArray[Any], chunk: Chunk) -> NDArray[Any]:
    limits, _ = ranges_and_rule(array, kind_of(chunk))
    if array.ndim == 4:
        return colours_of_channels(array, limits)
    return array if array.dtype == np.uint16 else grey(array, limits[0])

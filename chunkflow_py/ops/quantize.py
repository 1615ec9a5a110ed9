r"""Turn an affinity or probability map into uint8.

Example: chunkflow load-h5 --file-name affinity.h5 quantize --mode z \
  save-h5 --file-name thumbnail.h5
"""

from __future__ import annotations

import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import click

from chunkflow_py.core.map_scale import full_scale
from chunkflow_py.errors import ChunkError
from chunkflow_py.pipeline.operator import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk

logger = logging.getLogger(__name__)


@makes(
    lambda read: read._replace(dtype="uint8", channels=1, kind="image", has_channel_axis=False),
    is_local=True,
)
def quantize(chunk: Chunk, mode: Literal["xy", "z"] = "xy") -> Chunk:
    """Return a map as uint8: each value p is clamped to [0, 1] and becomes 255·p.

    Args:
        chunk: an affinity map (3, z, y, x) with channels x, y, z, or a probability map (z, y, x)
            or (1, z, y, x). If the voxels are floats, p is the voxel. If the voxels are unsigned
            integers, p is the voxel divided by the largest integer of its type.
        mode: channels of an affinity map to use: the mean of x and y (``xy``), or z (``z``).

    Returns:
        A chunk (z, y, x), uint8, of the kind ``image``; 255·p is rounded half to even.

    Raises:
        ChunkError: the chunk has neither 1 nor 3 channels; its voxels are neither floats nor
            unsigned integers; or a voxel is NaN.
    """
    import numpy as np

    if chunk.channels not in (1, 3) or chunk.dtype.kind not in "fu":
        msg = (
            "quantize needs an affinity map (3, z, y, x) or a probability map (z, y, x) of floats "
            f"or unsigned integers, but the chunk is {chunk.dtype} of shape {chunk.shape}; load "
            "such a map, or keep one channel with select-channels"
        )
        raise ChunkError(msg)
    planes = chunk.array.reshape(chunk.channels, *chunk.size)
    if len(planes) == 3:
        planes = planes[:2] if mode == "xy" else planes[2:]
    top = full_scale(chunk.dtype)
    result = np.empty(chunk.size, np.uint8)
    # Section by section, so that no second map of floats is needed.
    clamped = sum(_quantize(planes[:, z], top, result[z]) for z in range(chunk.size.z))
    if clamped:
        logger.warning(
            "quantize: %d voxels of chunk %s were outside of [0, 1] and have been clamped",
            clamped,
            chunk.bbox,
        )
    return chunk.with_array(result, kind="image")


def _quantize(planes: NDArray[Any], top: float, out: NDArray[Any]) -> int:
    import numpy as np

    from chunkflow_py.volume.conversion import map_to_integer

    # Single precision, as the network's own output, unless the map itself is finer.
    precision = np.float64 if planes.dtype == np.float64 else np.float32
    values = planes[0] if len(planes) == 1 else planes.mean(axis=0, dtype=precision)
    if top != 1:
        values = np.divide(values, precision(top), dtype=precision)
    if np.isnan(values.min(initial=0)):  # the minimum is NaN if any value is
        msg = "quantize: the map has a voxel that is NaN; correct the operator that made the map"
        raise ChunkError(msg)
    return map_to_integer(values, out)


@transform
@click.option(
    "--mode",
    type=click.Choice(["xy", "z"]),
    default="xy",
    show_default=True,
    help="Channels of an affinity map to use: the mean of x and y (xy), or z alone (z).",
)
def command(**options: Any) -> Callable[[Chunk], Chunk]:
    """Return `quantize` with the mode that the option selects."""
    return partial(quantize, **options)

"""Label each voxel by its strongest channel.

Example: chunkflow load-h5 --file-name classes.h5 channel-voting save-h5 --file-name labels.h5

A voxel gets the number of the channel with the highest value: 1 for the first channel, because 0 is
the background. If several channels have the highest value, the voxel gets the lowest of their
numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkError
from chunkflow_py.pipeline.operator import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk, Voxels


def _labels(read: Voxels) -> Voxels:
    dtype = "uint8" if read.channels < 256 else "uint16"
    return read._replace(dtype=dtype, channels=1, kind="segmentation", has_channel_axis=False)


@makes(_labels, is_local=True)
def channel_voting(chunk: Chunk) -> Chunk:
    """Return, for each voxel, the number (from 1) of the channel with the highest value.

    Args:
        chunk: (c, z, y, x), any real dtype.

    Returns:
        A chunk (z, y, x) of kind segmentation; uint8, or uint16 for more than 255 channels.

    Raises:
        ChunkError: the chunk has no channel axis, or a voxel is NaN.
    """
    import numpy as np

    from chunkflow_py.core.chunk import check_no_nan

    if chunk.ndim != 4:
        msg = (
            f"channel-voting compares channels, but chunk {chunk.bbox} has no channel axis (shape "
            f"{chunk.shape}); give a chunk (c, z, y, x), such as the output of inference"
        )
        raise ChunkError(msg)
    winners = np.ones(chunk.size, "uint8" if chunk.channels < 256 else "uint16")
    for section, numbers in zip(np.moveaxis(chunk.array, 1, 0), winners, strict=True):
        # One channel after the other: argmax over the first axis is several times slower.
        strongest = section[0].copy()
        for number, channel in enumerate(section[1:], 2):
            np.copyto(numbers, number, where=channel > strongest, casting="unsafe")
            np.maximum(strongest, channel, out=strongest)
        check_no_nan(strongest)
    return chunk.with_array(winners, kind="segmentation")


@transform
def command() -> Callable[[Chunk], Chunk]:
    """Return `channel_voting`; the command has no options."""
    return channel_voting

"""Invert intensities: dtype maximum minus voxel.

Example: chunkflow load-h5 --file-name raw.h5 inverse save-h5 --file-name inverted.h5

A floating-point voxel v, as in a probability map, becomes 1 - v; values outside of [0, 1] are an
error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkError
from chunkflow_py.pipeline.operator import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk


@makes(lambda read: read, is_local=True)
def inverse(chunk: Chunk) -> Chunk:
    """Return *chunk* inverted: the largest value of its type (1 for floats) minus each voxel.

    Args:
        chunk: (z, y, x) or (c, z, y, x), unsigned integers (a uint8 voxel v becomes 255 - v), or
            floating point in [0, 1].

    Returns:
        A chunk of the same shape and dtype.

    Raises:
        ChunkError: the chunk is a segmentation, its voxels are signed integers, or a
            floating-point voxel is outside of [0, 1].
    """
    import numpy as np

    if chunk.kind == "segmentation" or chunk.dtype.kind not in "uf":
        kind = "a segmentation" if chunk.kind == "segmentation" else f"of {chunk.dtype}"
        msg = (
            f"inverse needs unsigned integers or floating point in [0, 1], but chunk {chunk.bbox} "
            f"is {kind}; use rescale-intensity for other images, or mask --inverse for masks"
        )
        raise ChunkError(msg)
    if chunk.dtype.kind == "u":
        return chunk.with_array(np.bitwise_not(chunk.array))  # without overflow: max - v
    low, high = (chunk.array.min(), chunk.array.max()) if chunk.array.size else (0, 0)
    if not (low >= 0 and high <= 1):  # NaN is neither
        msg = (
            f"inverse needs floating point in [0, 1], but chunk {chunk.bbox} has values from "
            f"{low:g} to {high:g}; put rescale-intensity --low {low:g} --high {high:g} --out-low 0 "
            "--out-high 1 in front of inverse"
        )
        raise ChunkError(msg)
    return chunk.with_array(np.subtract(1, chunk.array, dtype=chunk.dtype))


@transform
def command() -> Callable[[Chunk], Chunk]:
    """Return `inverse`; the command has no options."""
    return inverse

"""Map an integer image linearly to [-1, 1].

Example: chunkflow load-h5 --file-name raw.h5 normalize-intensity save-h5 --file-name normalized.h5
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkError
from chunkflow_py.pipeline.operator import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk


@makes(lambda read: read._replace(dtype="float32"), is_local=True)
def normalize_intensity(chunk: Chunk) -> Chunk:
    """Return *chunk* scaled linearly to [-1, 1].

    A voxel v becomes 2·v/max - 1, where max is the largest value of the chunk's dtype.

    Args:
        chunk: (z, y, x) or (c, z, y, x), uint8 or another unsigned integer type.

    Returns:
        A chunk of the same shape, float32 in [-1, 1]; a uint8 voxel v becomes v/127.5 - 1.

    Raises:
        ChunkError: the voxels are not unsigned integers.
    """
    import numpy as np

    if chunk.dtype.kind != "u":
        msg = (
            f"normalize-intensity needs unsigned integers, but chunk {chunk.bbox} is "
            f"{chunk.dtype}; load the image as uint8"
        )
        raise ChunkError(msg)
    array = chunk.array.astype(np.float32)
    array /= np.iinfo(chunk.dtype).max / 2
    array -= 1
    return chunk.with_array(array)


@transform
def command() -> Callable[[Chunk], Chunk]:
    """Return `normalize_intensity`; the command has no options."""
    return normalize_intensity

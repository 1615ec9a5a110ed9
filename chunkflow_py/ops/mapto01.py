r"""Map values from [-1, 1] to [0, 1].

Example: chunkflow load-h5 --file-name raw.h5 normalize-intensity mapto01 \
  save-h5 --file-name unit.h5

Values outside of [-1, 1] are an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkError
from chunkflow_py.pipeline.operator import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk


@makes(lambda read: read, is_local=True)
def mapto01(chunk: Chunk) -> Chunk:
    """Return *chunk* with each voxel v replaced by (v + 1) / 2.

    Args:
        chunk: (z, y, x) or (c, z, y, x), floating point in [-1, 1].

    Returns:
        A chunk of the same shape and dtype, in [0, 1].

    Raises:
        ChunkError: the voxels are not floating point, or lie outside of [-1, 1].
    """
    if chunk.dtype.kind != "f":
        msg = (
            f"mapto01 needs floating point in [-1, 1], but chunk {chunk.bbox} is {chunk.dtype}; "
            "put normalize-intensity before mapto01"
        )
        raise ChunkError(msg)
    low, high = (chunk.array.min(), chunk.array.max()) if chunk.array.size else (0, 0)
    if not (low >= -1 and high <= 1):  # NaN is neither
        msg = (
            f"mapto01 needs values in [-1, 1], but chunk {chunk.bbox} has values from {low:g} to "
            f"{high:g}; use rescale-intensity --low {low:g} --high {high:g} --out-low 0 "
            "--out-high 1"
        )
        raise ChunkError(msg)
    array = chunk.array + 1
    array /= 2
    return chunk.with_array(array)


@transform
def command() -> Callable[[Chunk], Chunk]:
    """Return `mapto01`; the command has no options."""
    return mapto01

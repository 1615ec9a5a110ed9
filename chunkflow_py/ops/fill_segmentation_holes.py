"""Fill background enclosed by an object.

Example: chunkflow load-h5 --file-name seg.h5 fill-segmentation-holes save-h5 --file-name filled.h5

Background that reaches the boundary of the chunk is not a hole. Objects inside a hole do not
change.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.core.operator_base import with_hooks
from chunkflow_py.errors import check_extra, needs_extra
from chunkflow_py.pipeline.operator import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk

SECTION = "segment"


@with_hooks(
    cut_remedy="holes at task boundaries are not filled; use chunks that contain whole objects"
)
@makes(lambda read: read)
def fill_segmentation_holes(chunk: Chunk) -> Chunk:
    """Return *chunk* with all holes filled; see `segmentation.labels.object_selection.fill_holes`.

    Args:
        chunk: (z, y, x) or (1, z, y, x) labels or a mask, of any integer type; 0 is background.

    Returns:
        A chunk of the same shape and type.

    Raises:
        ChunkError: the voxels are not labels, or the chunk has several channels.
        MissingExtraError: the library cc3d is not installed.
    """
    from chunkflow_py.segmentation.labels.components import single_channel
    from chunkflow_py.segmentation.labels.object_selection import fill_holes

    labels = single_channel(chunk.array)
    with needs_extra("segmentation", "fill-segmentation-holes"):
        filled = fill_holes(labels)
    return chunk.with_array(filled.reshape(chunk.shape))


@transform
def command() -> Callable[[Chunk], Chunk]:
    """Check that cc3d is installed, and return the function; the command has no options."""
    check_extra("segmentation", "fill-segmentation-holes", "cc3d")
    return fill_segmentation_holes

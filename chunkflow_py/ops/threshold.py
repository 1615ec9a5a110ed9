"""Turn a map into a mask by a threshold.

Example: chunkflow load-h5 -f map.h5 threshold --threshold 0.5 save-h5 -f mask.h5
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.params import NUMBER
from chunkflow_py.stages import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.chunk import Chunk


@makes(lambda read: read._replace(dtype="uint8", kind="segmentation"))
def threshold(chunk: Chunk, threshold: float = 0.5) -> Chunk:
    """Return where *chunk* is above *threshold*.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype.
        threshold: in the unit of the voxels; voxels equal to it are not above.

    Returns:
        A chunk of the same shape, uint8: 1 above the threshold, 0 elsewhere.

    Raises:
        ChunkError: a voxel is NaN.
    """
    from chunkflow_py.chunk import above

    return chunk.with_array(above(chunk.array, threshold).astype("uint8"), kind="segmentation")


@transform
@click.option(
    "--threshold",
    "-t",
    type=NUMBER,
    default=0.5,
    show_default=True,
    help="Voxels above this value become 1.",
)
def command(**options: Any) -> Callable[[Chunk], Chunk]:
    """Take the threshold."""
    return partial(threshold, **options)

"""Label the connected pieces of a mask or a map.

Example: chunkflow load-h5 -f map.h5 connected-components -t 0.5 save-h5 -f pieces.h5

An affinity map of three channels is averaged over its channels before the threshold. Without
--threshold, neighbours of equal value hang together, and 0 is background.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, cast

import click

from chunkflow_py.stages import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.segmentation.components import Connectivity

SECTION = "segment"


@makes(
    lambda read: read._replace(
        dtype="uint32", channels=1, kind="segmentation", has_channel_axis=False
    )
)
def connected_components(
    chunk: Chunk, threshold: float | None = None, connectivity: int | str = 6
) -> Chunk:
    """Return one label for each connected piece of *chunk*.

    Args:
        chunk: (z, y, x) or (1, z, y, x), any real dtype; with a threshold also the three channels
            of an affinity map, which are averaged.
        threshold: in the unit of the voxels; voxels above it are foreground. Without one, the
            chunk is a mask or a segmentation: voxels of equal value hang together.
        connectivity: 6 (neighbours share a face), 18 (or an edge) or 26 (or a corner).

    Returns:
        A chunk (z, y, x) of kind segmentation: labels 1 to N without gaps, 0 for background;
        uint32, or uint64 where there are more. Labels are unique within the chunk only.

    Raises:
        OptionError: the connectivity is none of the three.
        ChunkError: the channels are not 1 or 3, or a map comes without a threshold.
        MissingExtraError: the library cc3d is not installed.
    """
    from chunkflow_py.errors import needs_extra
    from chunkflow_py.segmentation import components

    with needs_extra("segmentation", "connected-components"):
        labels = components.connected_components(
            chunk.array, threshold, cast("Connectivity", int(connectivity))
        )
    return chunk.with_array(labels, kind="segmentation")


@transform
@click.option(
    "--threshold",
    "-t",
    type=float,
    default=None,
    help="Voxels above this value are foreground.  [default: label a mask or segmentation]",
)
@click.option(
    "--connectivity",
    "-c",
    type=click.Choice(["6", "18", "26"]),
    default="6",
    show_default=True,
    help="Neighbours share a face (6), also an edge (18), also a corner (26).",
)
def command(**options: Any) -> Callable[[Chunk], Chunk]:
    """Take threshold and connectivity."""
    return partial(connected_components, **options)

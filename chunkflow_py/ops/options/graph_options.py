"""Options of the commands that write a graph of supervoxels for proofreading."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.ops.options.volume_options import together
from chunkflow_py.pipeline.params import Decorator, zyx_option

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.segmentation.agglomeration.chunked_graph import ChunkGrid


def chunk_grid_options() -> Decorator:
    """Declare ``--graph-chunk-size`` and ``--spatial-bits``."""
    return together(
        zyx_option(
            "--graph-chunk-size",
            required=True,
            minimum=1,
            help="Size of a chunk of the graph, voxels, zyx.",
        ),
        click.option(
            "--spatial-bits",
            type=click.IntRange(1, 18),
            help="Number of bits per axis in which an id stores the position of its chunk.  "
            "[default: as few as the volume needs]",
        ),
    )


def grid_of(domain: BoundingBox, size: Zyx, bits: int | None) -> ChunkGrid:
    """Return the grid of the chunks of a PyChunkedGraph in a volume; see `ChunkGrid.of`."""
    from chunkflow_py.segmentation.agglomeration.chunked_graph import ChunkGrid

    return ChunkGrid.of(domain, size, bits)

r"""Label the connected components of a mask or map.

Example: chunkflow load-h5 --file-name map.h5 connected-components --threshold 0.5 \
  save-h5 --file-name pieces.h5

An affinity map of three channels is averaged over its channels before the threshold is applied.
Without --threshold, neighbours of equal value are connected, and 0 is background.

If tasks divide a volume, no two tasks use the same label. With --chunk-ids, the labels of each
chunk are numbered from 1 instead, so two tasks can use the same label. To join components across
task boundaries, run stitch-labels, or the sequence link-labels, solve-labels and relabel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import click

from chunkflow_py.core.map_scale import check_threshold
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import check_extra, needs_extra
from chunkflow_py.ops.options.label_options import (
    connectivity_option,
    numbering_from,
    numbering_options,
)
from chunkflow_py.pipeline.operator import transform
from chunkflow_py.pipeline.params import NUMBER

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.segmentation.labels.components import Connectivity
    from chunkflow_py.segmentation.labels.numbering import Numbering
    from chunkflow_py.volume.labelling import Labelling

SECTION = "segment"


def connected_components(
    chunk: Chunk,
    threshold: float | None = None,
    connectivity: int | str = 6,
    numbering: Numbering | None = None,
    bbox: BoundingBox | None = None,
) -> Chunk:
    """Return a label for each connected component of *chunk*.

    Args:
        chunk: (z, y, x) or (1, z, y, x), any real dtype. With a threshold, it may also be an
            affinity map (3, z, y, x), whose channels are averaged.
        threshold: a voxel above this value is foreground; in the unit of the voxels. With ``None``,
            the chunk is a mask or a segmentation, and neighbours of equal value are connected.
        connectivity: 6 (neighbours share a face), 18 (a face or an edge) or 26 (also a corner).
        numbering: rule that makes labels unique in the volume (default: labels are unique only in
            the chunk).
        bbox: box of the task, which *numbering* needs (default: the box of the chunk).

    Returns:
        A chunk (z, y, x) of kind segmentation: labels 1 to N without gaps, 0 for background;
        uint32, or uint64 if N does not fit into uint32. If *numbering* makes labels unique in the
        volume, the labels have gaps, and the dtype is that of *numbering*.

    Raises:
        OptionError: the connectivity is not 6, 18 or 26; or the threshold is a fraction between 0
            and 1, but the chunk is a probability or affinity map of integers.
        ChunkError: the chunk has neither 1 nor 3 channels; or the chunk is a probability or
            affinity map, but *threshold* is ``None``.
        MissingExtraError: the library cc3d is not installed.
    """
    from chunkflow_py.segmentation.labels import components

    if threshold is not None:
        check_threshold(threshold, chunk.dtype, chunk.kind)
    with needs_extra("segmentation", "connected-components"):
        labels = components.connected_components(
            chunk.array, threshold, cast("Connectivity", int(connectivity))
        )
    if numbering is not None:
        labels = numbering(labels, chunk, bbox)
    return chunk.with_array(labels, kind="segmentation")


@dataclass
class Labeller(OperatorBase):
    """Labels the chunk of every task."""

    threshold: float | None
    connectivity: str
    numbering: Numbering

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that the threshold fits the input, and that labels can be unique in the volume.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.
        """
        if self.threshold is not None and outline.voxels is not None:
            check_threshold(self.threshold, outline.voxels.dtype, outline.voxels.kind)
        self.numbering.prepare(outline)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the dtype, channels and kind of the labels; *read* describes the input."""
        dtype = self.numbering.dtype if self.numbering.makes_global else "uint32"
        return type(read)(dtype, 1, "segmentation")

    @property
    @hook
    def labelling(self) -> Labelling | None:
        """Method and connectivity of labelling; ``None`` if labels are unique only in a chunk."""
        from chunkflow_py.volume.labelling import Labelling

        if not self.numbering.makes_global:
            return None
        return Labelling("connected-components", int(self.connectivity))

    def __call__(self, chunk: Chunk, bbox: BoundingBox | None = None) -> Chunk:
        """Return the connected components of the chunk."""
        return connected_components(chunk, self.threshold, self.connectivity, self.numbering, bbox)


@transform
@click.option(
    "--threshold",
    "-t",
    type=NUMBER,
    default=None,
    help="Voxels above this value are foreground.  [default: connect equal values]",
)
@connectivity_option()
@numbering_options()
def command(threshold: float | None, connectivity: str, **options: Any) -> Labeller:
    """Check that cc3d is installed, and return the operator."""
    check_extra("segmentation", "connected-components", "cc3d")
    return Labeller(threshold, connectivity, numbering_from(options))

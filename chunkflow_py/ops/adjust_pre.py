r"""Centre each T-bar in its dark spot.

Example: chunkflow load-synapses --file-path tbars.h5 load-h5 --file-name em.h5 \
  adjust-pre --img-threshold 60 save-synapses --file-path adjusted.h5

A voxel is dark if its value is below --img-threshold. The depth of a dark voxel is its distance to
the nearest voxel that is not dark, but at most --radius. Each T-bar moves to the deepest voxel that
lies within --radius of the T-bar along each axis. If several voxels are equally deep, the T-bar
moves to the nearest of them. A T-bar stays where it is if it lies outside of the chunk, or if no
voxel around it is dark. Tasks need a margin of twice the radius: give the loader
--expand-margin-size auto.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.map_scale import check_threshold
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import ChunkError, check_extra, needs_extra
from chunkflow_py.ops.options.synapse_options import synapses_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.synapses import Synapses
    from chunkflow_py.core.task import Task

SECTION = "objects"

_AT_ONCE = 2**21  # voxels of windows
_FAR = 1e6


def adjust_pre(
    synapses: Synapses, image: Chunk, img_threshold: float = 60, radius: int = 4
) -> Synapses:
    """Return *synapses* with each T-bar moved to the middle of the dark spot around it.

    The middle of a dark spot is the voxel with the largest distance to the nearest voxel that is
    not dark. Distances are capped at *radius* times the shortest edge of a voxel.

    Args:
        synapses: synapses with positions in voxels of the image.
        image: (z, y, x) or (1, z, y, x), any real dtype.
        img_threshold: value below which a voxel is dark, in the unit of the voxels.
        radius: largest move of a T-bar along each axis, voxels.

    Raises:
        ChunkError: the image has several channels.
        OptionError: the image is a probability or affinity map of integers, but the threshold is a
            fraction between 0 and 1.
        MissingExtraError: SciPy is not installed.
    """
    import numpy as np

    with needs_extra("segmentation", "adjust-pre"):
        from scipy.ndimage import distance_transform_edt

    if image.channels != 1:
        msg = f"adjust-pre needs one channel, but chunk {image.bbox} has {image.channels} channels"
        raise ChunkError(msg)
    check_threshold(img_threshold, image.dtype, image.kind, "--img-threshold")
    voxels = image.array.reshape(image.size)
    edges = np.asarray(image.voxel_size_nm) / min(image.voxel_size_nm)
    window = (4 * radius + 1,) * 3  # possible moves, and the voxels that determine the depth there
    around = np.indices(window).reshape(3, -1).T - 2 * radius
    nearest = np.argsort(np.square(around * edges).sum(axis=1), kind="stable")
    nearest = nearest[np.abs(around[nearest]).max(axis=1) <= radius]
    local = synapses.pre - np.asarray(image.voxel_offset)
    rows = np.flatnonzero(np.all((local >= 0) & (local < voxels.shape), axis=1))
    pre = synapses.pre.copy()
    for batch in np.array_split(rows, 1 + rows.size * len(around) // _AT_ONCE):
        places = local[batch, None] + around
        outside = np.any((places < 0) | (places >= voxels.shape), axis=2)
        places[outside] = 0
        dark = (voxels[tuple(np.moveaxis(places, 2, 0))] < img_threshold) | outside
        # One transform for all windows, which are too far from each other to matter.
        depth = distance_transform_edt(dark.reshape(-1, *window), sampling=(_FAR, *edges))
        depth = np.where(outside, -1, np.minimum(depth, radius).reshape(dark.shape))[:, nearest]
        best = depth.argmax(axis=1)  # the first of equal depths, which is the nearest
        moves = depth[np.arange(len(batch)), best] > 0
        pre[batch[moves]] += around[nearest[best[moves]]]
    return replace(synapses, pre=pre)


@dataclass
class Adjuster(OperatorBase):
    """Moves the T-bars of every task."""

    input_name: str = "chunk"
    synapses_name: str = "syns"
    output_name: str = "syns"
    img_threshold: float = 60
    radius: int = 4

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box* grown by twice the radius on each side."""
        return box.grow((2 * self.radius,) * 3)

    def __call__(self, task: Task) -> Task:
        """Add the moved T-bars to *task*, or ``None`` if *task* has no synapses."""
        from chunkflow_py.core.synapses import Synapses

        if task[self.synapses_name] is None:
            task[self.output_name] = None
            return task
        synapses = task.item(self.synapses_name, Synapses)
        image = task.chunk(self.input_name)
        task[self.output_name] = adjust_pre(synapses, image, self.img_threshold, self.radius)
        return task


@operator("compute")
@input_option(help="Name of the image to search for dark spots.")
@synapses_option()
@output_option("--output-name", "-o", default="syns", help="Name of the moved T-bars.")
@click.option("--img-threshold", type=float, default=60, show_default=True,
              help="Voxels below this value are dark.")  # fmt: skip
@click.option("--radius", type=click.IntRange(min=1), default=4, show_default=True,
              help="Largest move of a T-bar along each axis, voxels.")  # fmt: skip
def command(
    input_name: str, synapses_name: str, output_name: str, img_threshold: float, radius: int
) -> Adjuster:
    """Check that SciPy is installed, and return the operator."""
    check_extra("segmentation", "adjust-pre", "scipy")
    return Adjuster(input_name, synapses_name, output_name, img_threshold, radius)

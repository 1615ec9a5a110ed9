"""Replace each voxel by the median around it.

Example: chunkflow load-h5 --file-name em.h5 median-filter --size 3 1 1 save-h5 --file-name clean.h5

The default, --size 3 1 1, removes artefacts that affect a single slice. On a mask, the median is
the majority value. If a volume is divided into tasks, each task needs a margin of half of --size:
give the loader --expand-margin-size auto.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ChunkError, OptionError, check_extra
from chunkflow_py.pipeline.operator import transform
from chunkflow_py.pipeline.params import zyx_option

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.pipeline.halo_filter import HaloFilter

Mode = Literal["reflect", "nearest", "mirror", "constant", "wrap"]
MODES = ("reflect", "nearest", "mirror", "constant", "wrap")


def median_filter(chunk: Chunk, size: Sequence[int] = (3, 1, 1), mode: Mode = "reflect") -> Chunk:
    """Return *chunk* with each voxel replaced by the median of the box around it.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype.
        size: extent of the box, voxels, zyx; if the box has an even number of voxels, the median is
            the upper of the two middle values.
        mode: values to assume beyond the borders of the chunk. ``reflect``: a mirror image;
            ``mirror``: a mirror image that does not repeat the outermost voxels; ``nearest``: the
            nearest voxel; ``constant``: zeros; ``wrap``: the voxels of the opposite side, for whole
            volumes only.

    Returns:
        A chunk of the same dtype.

    Raises:
        OptionError: *mode* is not one of the five modes, or *size* is not three positive numbers.
        ChunkError: *mode* is ``wrap``, but the chunk is only a part of a volume.
        MissingExtraError: SciPy is not installed.
    """
    import numpy as np

    from chunkflow_py.filters.smoothing import median

    if mode not in MODES:
        msg = f"mode {mode!r} of median-filter is not one of {', '.join(MODES)}"
        raise OptionError(msg)
    extent = Zyx.of(size)
    if min(extent) < 1:
        msg = f"size {extent} of median-filter must be at least 1 in every axis (zyx, voxels)"
        raise OptionError(msg)
    if mode == "wrap" and chunk.bbox != chunk.domain:
        msg = (
            f"median-filter --mode wrap needs the whole volume {chunk.domain}, but the chunk "
            f"covers only {chunk.bbox}; choose another mode, or load the whole volume"
        )
        raise ChunkError(msg)
    volumes = chunk.array.reshape(chunk.channels, *chunk.size)
    result = np.stack([median(volume, extent, mode) for volume in volumes])
    return chunk.with_array(result.reshape(chunk.shape))


@transform
@zyx_option(
    "--size",
    "-s",
    minimum=1,
    default=(3, 1, 1),
    show_default=True,
    help="Extent of the box around each voxel, voxels, zyx.",
)
@click.option(
    "--mode",
    "-m",
    type=click.Choice(MODES),
    default="reflect",
    show_default=True,
    help="Values to assume beyond the border of the volume.",
)
def command(size: Zyx, mode: Mode) -> HaloFilter:
    """Return the operator, which needs a margin of half of *size* around each task."""
    from chunkflow_py.pipeline.halo_filter import HaloFilter

    check_extra("segmentation", "median-filter", "scipy")
    return HaloFilter(partial(median_filter, size=size, mode=mode), size // 2, "median-filter")

r"""Blur an image or a map with a Gaussian, 2D or 3D.

Example: chunkflow load-h5 --file-name em.h5 gaussian-filter --sigma 1.5 \
  save-h5 --file-name smooth.h5

--sigma is the standard deviation within a section (y and x), in voxels. --sigma-z also blurs across
sections. If tasks divide a volume, they need a margin of four standard deviations: give the loader
--expand-margin-size auto.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.pipeline.operator import transform

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.pipeline.halo_filter import HaloFilter


def gaussian_filter(chunk: Chunk, sigma: float = 1.0, sigma_z: float = 0.0) -> Chunk:
    """Return *chunk* blurred with a Gaussian; beyond its boundaries, the chunk is mirrored.

    Args:
        chunk: (z, y, x) or (c, z, y, x), floats, or integers of at most 32 bits.
        sigma: standard deviation in y and x, voxels; the kernel extends to four times this value.
        sigma_z: standard deviation in z, voxels; 0 blurs each section separately.

    Returns:
        A chunk of the same dtype; integers are rounded half to even.

    Raises:
        OptionError: a standard deviation is negative.
        ChunkError: the chunk holds labels, which cannot be averaged.
    """
    import numpy as np

    from chunkflow_py.filters.smoothing import blurred

    if min(sigma, sigma_z) < 0:
        msg = f"standard deviations must not be negative, got sigma {sigma} and sigma_z {sigma_z}"
        raise OptionError(msg)
    _check_voxels(chunk)
    volumes = chunk.array.reshape(chunk.channels, *chunk.size)
    result = np.stack([blurred(volume, (sigma_z, sigma, sigma)) for volume in volumes])
    return chunk.with_array(result.reshape(chunk.shape))


def _check_voxels(held: Chunk | Voxels) -> None:
    import numpy as np

    dtype = np.dtype(held.dtype)
    wide = dtype.kind in "iu" and dtype.itemsize > 4
    if held.kind == "segmentation" or dtype.kind == "b" or wide:
        msg = (
            f"gaussian-filter averages values, but its input holds {dtype} labels; blur the map "
            "before applying a threshold, or use median-filter on a mask"
        )
        raise ChunkError(msg)


@transform
@click.option(
    "--sigma",
    "-s",
    type=click.FloatRange(min=0, max=1000),
    default=1,
    show_default=True,
    help="Standard deviation in y and x, voxels.",
)
@click.option(
    "--sigma-z",
    type=click.FloatRange(min=0, max=1000),
    default=0,
    show_default=True,
    help="Standard deviation in z, voxels; 0 blurs each section separately.",
)
def command(sigma: float, sigma_z: float) -> HaloFilter:
    """Compute the margin that the filter needs, and return the operator."""
    from chunkflow_py.filters.smoothing import gaussian_radius
    from chunkflow_py.pipeline.halo_filter import HaloFilter

    radius = gaussian_radius(sigma)
    reach = Zyx(gaussian_radius(sigma_z), radius, radius)
    filter_chunk = partial(gaussian_filter, sigma=sigma, sigma_z=sigma_z)
    return HaloFilter(filter_chunk, reach, "gaussian-filter", _check_voxels)

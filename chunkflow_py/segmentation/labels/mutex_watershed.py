"""Mutex watershed: segments from attractive and repulsive affinities.

Affinities above a limit attract: they join voxels. Affinities below the limit repel: they separate
voxels. The pairs of voxels are processed in the order of the absolute difference between affinity
and limit, the largest first. An attractive pair unites the clusters of its two voxels, unless an
earlier repulsive pair has separated these clusters (Wolf et al. 2020, arXiv:1904.12654). The
library mwatershed runs this algorithm.

The result depends on all voxels of the chunk, so it changes with the division into tasks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.map_scale import full_scale
from chunkflow_py.errors import ChunkError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.affinity_layout import Offset

_SLACK = 1e-3  # tolerance around [0, 1], for rounding errors of blending


def mutex_watershed(
    affinity: NDArray[Any], offsets: Sequence[Offset], threshold: float
) -> NDArray[np.uint64]:
    """Return the segments of one chunk.

    Args:
        affinity: (c, z, y, x), floating point in [0, 1], or unsigned integers. Integers are divided
            by the maximum of their type, such as 255 for uint8. The value of channel c at voxel v
            is the affinity between the voxels v and v + ``offsets[c]``. Pairs with voxels outside
            of the array are ignored.
        offsets: offset of each channel, z, y, x, in voxels.
        threshold: affinities above 1 - *threshold* attract, and affinities below this limit repel.

    Returns:
        (z, y, x) labels, in no particular order; 0 for voxels without an attractive affinity.

    Raises:
        ChunkError: the array does not have one channel for each offset, a value is outside [0, 1],
            or an offset is too long for the array.
        MissingExtraError: mwatershed is not installed.
    """
    if affinity.ndim != 4 or len(affinity) != len(offsets):
        msg = (
            f"there are {len(offsets)} --affinity-offsets, but the affinities have the shape "
            f"{tuple(affinity.shape)} (c, z, y, x); give one offset for each channel"
        )
        raise ChunkError(msg)
    shape = affinity.shape[1:]
    with needs_extra("mutex", "agglomerate --method mutex"):
        import mwatershed
    scale = full_scale(affinity.dtype) if affinity.dtype.kind == "u" else 1.0
    long = [
        offset for offset in offsets if any(abs(a) >= n for a, n in zip(offset, shape, strict=True))
    ]
    if long:
        msg = (
            f"the offset {long[0]} of --affinity-offsets is too long for a chunk of {shape} (zyx, "
            "voxels); make the chunks larger"
        )
        raise ChunkError(msg)
    attraction = np.zeros(affinity.shape)
    for channel, offset, values in zip(attraction, offsets, affinity, strict=True):
        inside = tuple(
            slice(max(0, -step), max(0, n - max(0, step)))
            for step, n in zip(offset, shape, strict=True)
        )
        used = values[inside]
        if used.size and not (used.min() >= -_SLACK * scale and used.max() <= (1 + _SLACK) * scale):
            msg = (
                f"affinities must be in [0, 1], but those of the offset {offset} range from "
                f"{used.min():g} to {used.max():g}; rescale the affinities first (logits of a "
                "network need a sigmoid)"
            )
            raise ChunkError(msg)
        channel[inside] = used / scale - (1 - threshold)
    labels: NDArray[np.uint64] = mwatershed.agglom(attraction, [list(each) for each in offsets])
    return labels

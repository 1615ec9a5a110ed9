"""Fragments from a seeded watershed: about one fragment for each thick part of a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

SEED_WINDOW = 7  # window of the search for maxima, in units of the shortest voxel edge
SEED_SIGMA = 1.0  # standard deviation of the smoothing before the search, in the same unit


def interior(affinity: NDArray[Any]) -> NDArray[Any]:
    """Return the mean affinity of each voxel to its six neighbours.

    This mean is high inside cells.

    At the faces of the array, the mean is taken over the neighbours inside the array.

    Args:
        affinity: (3, z, y, x) in [0, 1], channel k along axis k; the value at a voxel is the
            affinity to its lower neighbour, whose coordinate is smaller by 1.

    Returns:
        (z, y, x) float32 in [0, 1].
    """
    total = np.zeros(affinity.shape[1:], np.float32)
    count = np.zeros(affinity.shape[1:], np.uint8)
    for axis, channel in enumerate(affinity):
        upper = tuple(slice(1, None) if a == axis else slice(None) for a in range(3))
        lower = tuple(slice(None, -1) if a == axis else slice(None) for a in range(3))
        for side in (upper, lower):
            total[side] += channel[upper]
            count[side] += 1
    return total / np.maximum(count, 1)


def seeded_fragments(
    affinity: NDArray[Any],
    interior_threshold: float = 0.7,
    background_threshold: float = 0.0,
    voxel_size_nm: Iterable[float] = (1.0, 1.0, 1.0),
) -> NDArray[Any]:
    """Return the fragments of a watershed, with seeds in the middle of cells.

    The watershed runs on the mean affinity of each voxel (see `interior`). The *interior* is the
    set of voxels whose mean affinity is above *interior_threshold*.

    For the seeds, the distance of each voxel to the nearest voxel outside the interior is computed
    and smoothed. Each maximum of the result is a seed. Distances take the voxel size into account.
    The shortest voxel edge is the unit of length: the smoothing has a standard deviation of 1, and
    a maximum is the largest value in a cube with edges of length 7.

    Args:
        affinity: (3, z, y, x) in [0, 1], channel k along axis k; affinities to the lower neighbour,
            whose coordinate is smaller by 1.
        interior_threshold: voxels whose mean affinity is above this value belong to the interior.
        background_threshold: voxels whose mean affinity is at or below this value are background.
        voxel_size_nm: voxel size, zyx, in nm; only the ratios matter.

    Returns:
        (z, y, x) uint64: labels 1 to N without gaps, 0 for background.
    """
    import cc3d
    from scipy import ndimage
    from skimage.segmentation import watershed

    size = np.asarray(tuple(voxel_size_nm), float)
    edges = size / size.min()
    inside = interior(affinity)
    core = inside > interior_threshold
    # If all voxels are interior, there is no distance to measure; a constant gives one seed.
    distance = (
        np.ones(core.shape, np.float32)
        if core.all()
        else ndimage.distance_transform_edt(core, sampling=edges).astype(np.float32)
    )
    distance = ndimage.gaussian_filter(distance, SEED_SIGMA / edges)
    window = [2 * int(SEED_WINDOW / 2 / edge) + 1 for edge in edges]
    peaks = core & (distance == ndimage.maximum_filter(distance, window))
    seeds = cc3d.connected_components(peaks, connectivity=26).astype(np.int32)
    foreground = inside > background_threshold
    labels: NDArray[Any] = watershed(1 - inside, seeds, mask=foreground)  # type: ignore[no-untyped-call]
    return labels.astype(np.uint64)

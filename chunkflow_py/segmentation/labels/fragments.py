"""Fragments by a seeded watershed: one small piece for each thick part of a cell."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

SEED_WINDOW = 7  # of the search for maxima, in edges of the shortest voxel side
SEED_SIGMA = 1.0  # of the smoothing before it, in the same unit


def interior(affinity: NDArray[Any]) -> NDArray[Any]:
    """Return how far each voxel lies inside of a cell: the mean of its six affinities.

    On the faces of the array only the neighbours that exist count.

    Args:
        affinity: (3, z, y, x) in [0, 1], channel k along axis k; the value at a voxel is that
            between it and its lower neighbour.

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
    """Return the fragments of a watershed that floods `interior` from the middle of the cells.

    The seeds are the maxima of the smoothed distance to the nearest voxel that is not interior.
    Distances are physical: a window of 7 and a sigma of 1 edge of the shortest voxel side.

    Args:
        affinity: (3, z, y, x) in [0, 1], channel k along axis k, to the lower neighbour.
        interior_threshold: voxels above it are taken to lie inside of a cell.
        background_threshold: voxels at or below it belong to no fragment.
        voxel_size_nm: nanometres, zyx; only the ratios matter.

    Returns:
        (z, y, x) uint64: labels 1 to N without gaps, 0 where there is background.
    """
    import cc3d
    from scipy import ndimage
    from skimage.segmentation import watershed

    size = np.asarray(tuple(voxel_size_nm), float)
    edges = size / size.min()
    inside = interior(affinity)
    core = inside > interior_threshold
    # Without a voxel outside there is nothing to measure the distance to: one seed will do.
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

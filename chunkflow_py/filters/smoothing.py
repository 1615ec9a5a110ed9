"""Gaussian and median filters of arrays.

The result for a voxel depends only on the values around the voxel, not on the position of the voxel
in the array. So filtering chunks with a margin gives the same bytes as filtering the whole volume.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.processors import usable_cores
from chunkflow_py.errors import needs_extra

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

TRUNCATE = 4.0  # standard deviations at which the Gaussian is cut off
_STRIP_BYTES = 2**18  # size of a strip that is filtered at once: it fits in the cache of a core
_MOST_THREADS = 8


# --- Gaussian -----------------------------------------------------------------------------------


def gaussian_radius(sigma: float) -> int:
    """Return the number of voxels that a Gaussian filter reads on each side of a voxel.

    Args:
        sigma: standard deviation of the Gaussian, in voxels.
    """
    return int(TRUNCATE * sigma + 0.5)


def gaussian_weights(sigma: float) -> NDArray[np.float64]:
    """Return the weights of a Gaussian filter at the distances 0, 1, 2, … voxels from the centre.

    As in `scipy.ndimage.gaussian_filter`, the weight at distance k is proportional to exp(-k² /
    2σ²), where σ is *sigma* in voxels. The weight is 0 beyond 4σ. The weights of the centre and of
    all voxels on both sides add up to 1.
    """
    distance = np.arange(gaussian_radius(sigma) + 1)
    weights = np.exp(-0.5 * np.square(distance / sigma)) if sigma else np.ones(1)
    return np.asarray(weights / (weights[0] + 2 * weights[1:].sum()))


def blurred(array: NDArray[Any], sigma: Sequence[float]) -> NDArray[Any]:
    """Blur a volume with a Gaussian; beyond its edges, the volume is mirrored.

    Args:
        array: (z, y, x) integers of at most 32 bits, or floats.
        sigma: standard deviation along each axis, in voxels, zyx. With 0, the volume is not blurred
            along this axis.

    Returns:
        A new array of the same dtype. If it is an integer dtype, values are rounded half to even.
    """
    result = np.empty(array.shape, array.dtype)
    if not result.size:
        return result
    # Single precision, unless the voxels need more.
    work = np.result_type(array.dtype, np.float32)
    if sigma[0]:
        array = _blurred_across(array, gaussian_weights(sigma[0]).astype(work))
    weights = [gaussian_weights(value).astype(work) for value in sigma[1:]]
    for section, target in zip(array, result, strict=True):
        _blur_section(section, weights, target)
    return result


def _blurred_across(array: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    reach = len(weights) - 1
    result = np.empty(array.shape, weights.dtype)
    rows = _rows(array.shape[0] + 2 * reach, array.shape[2], weights)
    for y in range(0, array.shape[1], rows):
        strip = array[:, y : y + rows].astype(weights.dtype)
        padded = np.pad(strip, ((reach, reach), (0, 0), (0, 0)), mode="symmetric")
        result[:, y : y + rows] = _weighted(padded, weights)
    return result


def _blur_section(
    section: NDArray[Any], weights: Sequence[NDArray[Any]], target: NDArray[Any]
) -> None:
    tall, wide = (len(values) - 1 for values in weights)
    padded = np.pad(section, ((tall, tall), (wide, wide)), mode="symmetric")
    rows = max(_rows(1, padded.shape[1], weights[0]), 2 * tall)
    for y in range(0, len(section), rows):
        strip = padded[y : y + rows + 2 * tall].astype(weights[0].dtype)
        # The transposed view lets one function do both axes.
        means = _weighted(_weighted(strip, weights[0]).T, weights[1]).T
        if target.dtype.kind in "iu":
            means = np.rint(means, out=means)
        target[y : y + rows] = means


def _weighted(padded: NDArray[Any], weights: NDArray[Any]) -> NDArray[Any]:
    reach = len(weights) - 1
    stop = len(padded) - reach
    result: NDArray[Any] = padded[reach:stop] * weights[0]
    pair = np.empty_like(result)
    for k in range(1, reach + 1):
        np.add(padded[reach - k : stop - k], padded[reach + k : stop + k], out=pair)
        np.multiply(pair, weights[k], out=pair)
        np.add(result, pair, out=result)
    return result


def _rows(height: int, width: int, weights: NDArray[Any]) -> int:
    return max(1, _STRIP_BYTES // max(1, height * width * weights.dtype.itemsize))


# --- median -------------------------------------------------------------------------------------


def median(array: NDArray[Any], size: Sequence[int], mode: str) -> NDArray[Any]:
    """Return the median of a box around each voxel, as `scipy.ndimage.median_filter` does.

    Args:
        array: (z, y, x), real.
        size: size of the box, voxels, zyx. If the box has an even number of voxels, the result is
            the greater of the two middle values.
        mode: padding beyond the edges: ``reflect``, ``nearest``, ``mirror``, ``constant`` (0) or
            ``wrap``.

    Raises:
        MissingExtraError: SciPy is not installed.
    """
    with needs_extra("segmentation", "median-filter"):
        from scipy import ndimage

    if array.dtype == np.float16:  # not supported by SciPy; float32 represents it exactly
        return median(array.astype(np.float32), size, mode).astype(np.float16)
    if sorted(size) == [1, 1, 3] and mode != "wrap" and array.shape[list(size).index(3)] > 1:
        return _median_of_three(array, list(size).index(3), mode)
    threads = 1 if mode == "wrap" else min(_MOST_THREADS, usable_cores(), len(array))
    reach = size[0] // 2
    edges = np.linspace(0, len(array), max(1, threads) + 1).astype(int)
    result = np.empty_like(array)

    def fill(start: int, stop: int) -> None:
        low, high = max(0, start - reach), min(len(array), stop + reach)
        part = ndimage.median_filter(array[low:high], tuple(size), mode=mode)
        result[start:stop] = part[start - low : stop - low]

    with ThreadPoolExecutor(max(1, threads), thread_name_prefix="median") as pool:
        list(pool.map(fill, edges[:-1], edges[1:]))
    return result


def _median_of_three(array: NDArray[Any], axis: int, mode: str) -> NDArray[Any]:
    """Return the median of each voxel and its two neighbours along *axis*.

    The median of a, b and c is max(min(a, b), min(max(a, b), c)).
    """
    from scipy import ndimage

    result = np.empty_like(array)
    lines, medians = np.moveaxis(array, axis, 0), np.moveaxis(result, axis, 0)
    low = np.minimum(lines[:-2], lines[1:-1])
    high = np.maximum(lines[:-2], lines[1:-1])
    np.minimum(high, lines[2:], out=high)
    np.maximum(low, high, out=medians[1:-1])
    for end, inner in ((0, slice(None, 2)), (-1, slice(-2, None))):
        medians[end] = ndimage.median_filter(lines[inner], (3, 1, 1), mode=mode)[end]
    return result

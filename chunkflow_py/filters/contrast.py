"""Stretch the contrast of an image: find clipping limits in a histogram, apply a lookup table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray


def clip_limits(
    counts: NDArray[Any], lower_fraction: float, upper_fraction: float
) -> tuple[int, int]:
    """Return the lower and upper intensity at which to clip.

    At most *lower_fraction* of the voxels are at or below the lower limit. At least
    *upper_fraction* of the voxels are above the upper limit. Each limit is the largest intensity
    for which this is true, as in igneous and chunkflow 1.x. Voxels of value 0 are background and
    are not counted.

    Args:
        counts: number of voxels of each intensity 0, 1, 2, …
        lower_fraction: fraction of the counted voxels to clip at the dark end.
        upper_fraction: fraction of the counted voxels to clip at the bright end; with 0, the upper
            limit is the last intensity of *counts*.

    Returns:
        The lower and the upper limit. If the two fractions add up to less than 1, the lower limit
        is not above the upper limit. Both limits are 0 if there are no voxels to count.
    """
    counted = np.cumsum(np.concatenate([[0], counts[1:]]))
    if counted[-1] == 0:
        return 0, 0
    share = counted / counted[-1]
    lower, upper = np.searchsorted(share, [lower_fraction, 1 - upper_fraction], side="right") - 1
    return int(lower), int(upper)


def stretch_table(
    dtype: np.dtype[Any], lower: float, upper: float, minval: float, maxval: float
) -> NDArray[Any]:
    """Return a lookup table that maps *lower* to 0 and *upper* to *maxval*, linearly.

    As in igneous and chunkflow 1.x, the table is computed in single precision, and *minval* does
    not change the linear mapping: new values below *minval* are replaced by *minval*.

    Args:
        dtype: uint8 or uint16, dtype of the intensities and of the table.
        lower: intensity that becomes 0 before the result is clipped to *minval*.
        upper: intensity that becomes *maxval*. Higher intensities also become *maxval*. If *upper*
            equals *lower*, the table does not change any intensity.
        minval: smallest value of the result; smaller values are clipped to it.
        maxval: largest value of the result.

    Returns:
        The new value of each intensity of *dtype*.
    """
    values = np.arange(int(np.iinfo(dtype).max) + 1, dtype=np.float32)
    if lower != upper:
        values = (values - np.float32(lower)) * np.float32(maxval / (upper - lower))
        values = np.rint(np.clip(values, minval, maxval))
    return values.astype(dtype)


def apply_table(
    table: NDArray[Any], source: NDArray[Any], out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the entry of *table* for each voxel.

    Args:
        table: one entry for each value of the dtype of *source*.
        source: uint8 or uint16, any shape.
        out: contiguous array to write the result to (default: a new array).
    """
    result = np.empty(source.shape, table.dtype) if out is None else out
    source = np.ascontiguousarray(source)
    pairs = (
        source.dtype == np.uint8
        and table.dtype == np.uint8
        and source.size >= 2**18
        and source.size % 2 == 0
    )
    if not pairs:
        return np.take(table, source, out=result, mode="clip")
    # Two voxels at a time: half as many lookups, in a table that fits into the cache.
    both = (table[None, :].astype(np.uint16) | (table[:, None].astype(np.uint16) << 8)).ravel()
    np.take(both, source.ravel().view(np.uint16), out=result.ravel().view(np.uint16), mode="clip")
    return result


def stretched(
    channels: NDArray[Any],
    limits: Sequence[Sequence[tuple[int, int]]],
    minval: float,
    maxval: float,
) -> NDArray[Any]:
    """Stretch intensities linearly, so that the clipping limits become 0 and *maxval*.

    Args:
        channels: image, (c, z, y, x), uint8 or uint16.
        limits: for each channel, a list of pairs from `clip_limits`: one pair for each section, or
            a single pair for all sections.
        minval: smallest value of the result; smaller values are clipped to it.
        maxval: value of the result at the upper limit.

    Returns:
        A new image of the same shape and dtype.
    """
    result = np.empty(channels.shape, channels.dtype)
    for source, target, rows in zip(channels, result, limits, strict=True):
        parts = [(source, target)] if len(rows) == 1 else zip(source, target, strict=True)
        for (part, out), (lower, upper) in zip(parts, rows, strict=True):
            apply_table(stretch_table(channels.dtype, lower, upper, minval, maxval), part, out)
    return result


def rescaled(
    array: NDArray[Any],
    span: tuple[float, float],
    target: tuple[float, float],
    dtype: DTypeLike,
) -> NDArray[Any]:
    """Map an image linearly from the range *span* to the range *target*, and clip it to *target*.

    Args:
        array: image of any shape and real dtype.
        span: lower and upper value of the range to map.
        target: lower and upper value of the result.
        dtype: dtype of the result. If it is an integer dtype, values are rounded half to even.
    """
    kind = np.dtype(dtype)

    def mapped(values: NDArray[Any]) -> NDArray[Any]:
        number = np.result_type(values.dtype, np.float32)
        result: NDArray[Any] = np.clip(values, *span, dtype=number)
        result -= number.type(span[0])
        result *= number.type(target[1] - target[0])
        result /= number.type(span[1] - span[0])  # a separate step keeps halves exact
        result += number.type(target[0])
        if kind.kind in "iu":
            np.rint(result, out=result)
        rounded: NDArray[Any] = result.astype(kind, copy=False)
        return rounded

    if array.dtype in (np.dtype(np.uint8), np.dtype(np.uint16)):
        return apply_table(mapped(np.arange(2 ** (8 * array.itemsize), dtype=np.float64)), array)
    return mapped(array)


def stretched_inside(
    section: NDArray[Any], low: float, high: float, out: NDArray[np.float32]
) -> None:
    """Stretch an image linearly so that its inner extremes become *low* and *high*.

    The inner extremes are the second lowest and the second highest intensity in the image. If they
    are equal or do not exist, the result is a copy of the image.

    Args:
        section: image of any shape, integers or floating point; not changed.
        low: new value of the second lowest intensity.
        high: new value of the second highest intensity.
        out: array of the same shape, to which the result is written.
    """
    first, last = _inner_extremes(section) if section.size else (0, 0)
    if not first < last:
        np.copyto(out, section, casting="unsafe")
        return
    number = np.result_type(section.dtype, np.float32).type
    np.subtract(section, number(first), out=out, casting="unsafe")
    out *= np.float32((high - low) / (float(last) - float(first)))
    out += np.float32(low)


def _inner_extremes(section: NDArray[Any]) -> tuple[Any, Any]:
    least, largest = section.min(), section.max()
    if section.dtype.kind == "u" and least < largest:
        one = section.dtype.type(1)
        # Unsigned subtraction wraps around for the extreme itself, so it is not the minimum.
        first = least + one + (section - least - one).min()
        last = largest - one - (largest - one - section).min()
        return (first, last) if first < largest and last > least else (0, 0)
    inner = section[(section > least) & (section < largest)]
    return (inner.min(), inner.max()) if inner.size else (0, 0)

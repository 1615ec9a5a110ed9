"""Contrast from a histogram: which intensities to clip, and the table that stretches the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import DTypeLike, NDArray


def clip_limits(
    counts: NDArray[Any], lower_fraction: float, upper_fraction: float
) -> tuple[int, int]:
    """Return the intensities between which nothing is clipped.

    Each is the last intensity up to which at most a share of the voxels lies, as in igneous and
    chunkflow 1.x. Voxels of value 0 hold no image and are not counted.

    Args:
        counts: voxels of the intensities 0, 1, 2, …
        lower_fraction: the share for the first.
        upper_fraction: 1 minus the share for the second; at 0 this is the largest intensity that
            *counts* has room for.

    Returns:
        Two intensities, the second not below the first if the fractions add up to less than 1;
        0 and 0 where nothing is counted.
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
    """Return the new value of each intensity of *dtype* when *lower* to *upper* are stretched.

    The formula and its single precision are those of igneous and chunkflow 1.x: *minval* clips the
    result and has no part in the stretching.

    Args:
        dtype: uint8 or uint16, of the intensities and of the table.
        lower: would become 0.
        upper: becomes *maxval*, as all above it; where it equals *lower*, nothing changes.
        minval: what a smaller result becomes.
        maxval: of the result.
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
        table: as long as the type of the voxels has values.
        source: uint8 or uint16, any shape.
        out: where to put it, contiguous; new unless given.
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
    """Return an image with the intensities between limits stretched to [0, maxval].

    Args:
        channels: (c, z, y, x), uint8 or uint16.
        limits: for each channel those of each section, or one pair for all; see `clip_limits`.
        minval: what a smaller result becomes.
        maxval: what the upper limit becomes.
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
    """Return an image mapped linearly from one range to another, and clipped to that.

    Args:
        array: any shape and real dtype.
        span: two values of it, the lower one first.
        target: what they become.
        dtype: of the result; integers are rounded half to even.
    """
    kind = np.dtype(dtype)

    def mapped(values: NDArray[Any]) -> NDArray[Any]:
        number = np.result_type(values.dtype, np.float32)
        result: NDArray[Any] = np.clip(values, *span, dtype=number)
        result -= number.type(span[0])
        result *= number.type(target[1] - target[0])
        result /= number.type(span[1] - span[0])  # by itself: halves are rounded as halves
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
    """Stretch an image between its second lowest and its second highest intensity.

    Args:
        section: any shape, integers or floating point; not changed.
        low: what the least of those values becomes.
        high: what the largest becomes.
        out: of the same shape; where there are no two such values, the image as it is.
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
    """Return the second lowest and second highest value; 0, 0 if there are none."""
    least, largest = section.min(), section.max()
    if section.dtype.kind == "u" and least < largest:
        one = section.dtype.type(1)
        # Beyond 0 counting begins at the top again: there the extreme itself is not a minimum.
        first = least + one + (section - least - one).min()
        last = largest - one - (largest - one - section).min()
        return (first, last) if first < largest and last > least else (0, 0)
    inner = section[(section > least) & (section < largest)]
    return (inner.min(), inner.max()) if inner.size else (0, 0)

"""Histograms of intensities: exact for integers, binned for floating point.

The histograms of the parts of a volume add up to the histogram of the whole volume. For integers,
counts, mean, standard deviation and percentiles do not depend on how the volume is divided. With
bins, counts do not depend on the division either; mean and standard deviation agree up to rounding.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chunkflow_py.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

# As many as a 16-bit image can have; a table of this length for each section still fits in memory.
_MOST_VALUES = 2**16
PERCENTILES = (0, 0.1, 1, 2, 5, 50, 95, 98, 99, 99.8, 99.9, 100)


class Bins(NamedTuple):
    """Range of values from *low* to *high* (included), divided into *number* equal bins."""

    low: float
    high: float
    number: int


class _Moments(NamedTuple):
    """Columns of `Histogram.moments`: statistics of the voxels that are counted in bins."""

    number: Any
    mean: Any
    squares: Any  # sum of squared deviations from the mean
    least: Any
    largest: Any


@dataclass(frozen=True)
class Histogram:
    """Number of voxels of each value, for each channel and each section (plane of one z).

    Attributes:
        counts: int64 array of shape (c, s, n), for c channels, s sections and n values or bins. s
            is 1 if all sections are counted together. Without *bins*, entry i counts the voxels of
            value ``lowest + i``. With *bins*, the first entry counts the voxels below all bins, the
            last entry the voxels above all bins, and each other entry the voxels of one bin.
        lowest: without *bins*, the value that the first entry counts.
        bins: bins of floating-point voxels; ``None`` if each value is counted.
        moments: float64 array of shape (c, s, 5); ``None`` without *bins*. For each channel and
            section, the five numbers are the number of counted voxels, their mean, the sum of
            squared deviations from the mean, the least value and the largest value.
        not_finite: number of NaN and infinite voxels, which are not counted.
    """

    counts: NDArray[np.int64]
    lowest: int = 0
    bins: Bins | None = None
    moments: NDArray[np.float64] | None = None
    not_finite: int = 0

    @property
    def channels(self) -> int:
        """Number of channels."""
        return len(self.counts)

    def whole(self) -> Histogram:
        """Return the histogram of all sections (z planes) together, for each channel."""
        counts = self.counts.sum(axis=1, keepdims=True)
        moments = None if self.moments is None else _joined(self.moments)
        return replace(self, counts=counts, moments=moments)

    def section(self, index: int) -> Histogram:
        """Return the histogram of the section (z plane) number *index*, for each channel."""
        moments = None if self.moments is None else self.moments[:, index : index + 1]
        counts = self.counts[:, index : index + 1]
        return replace(self, counts=counts, moments=moments, not_finite=0)

    def __add__(self, other: Histogram) -> Histogram:
        """Return the sum of two histograms, which must have equal channels, sections and bins."""
        lowest = min(self.lowest, other.lowest)
        ends = [h.lowest + h.counts.shape[2] for h in (self, other)]
        counts = np.zeros((*self.counts.shape[:2], max(ends) - lowest), np.int64)
        for each, end in zip((self, other), ends, strict=True):
            counts[:, :, each.lowest - lowest : end - lowest] += each.counts
        moments = None
        if self.moments is not None and other.moments is not None:
            pairs = np.stack([self.moments, other.moments], axis=2)  # (c, s, 2, 5)
            moments = _joined(pairs.reshape(-1, 2, 5)).reshape(self.moments.shape)
        return Histogram(
            counts, lowest, self.bins, moments, self.not_finite + other.not_finite
        ).trimmed()

    def trimmed(self) -> Histogram:
        """Remove zero counts at both ends of `counts`; a histogram with *bins* is not changed."""
        if self.bins is not None:
            return self
        present = np.flatnonzero(self.counts.any(axis=(0, 1)))
        first, last = (int(present[0]), int(present[-1])) if present.size else (0, -1)
        return replace(self, counts=self.counts[:, :, first : last + 1], lowest=self.lowest + first)

    def without_zeros(self, number: int) -> Histogram:
        """Return a histogram with *number* fewer voxels of value 0 in each channel.

        The result counts all sections together. Histograms with *bins* are not supported.

        Raises:
            ChunkError: a channel has fewer than *number* zeros.
        """
        whole = self.whole()
        counts, at = whole.counts.copy(), -self.lowest
        zeros = counts[:, 0, at] if 0 <= at < counts.shape[2] else np.zeros(self.channels, int)
        if number and zeros.min() < number:
            msg = (
                f"cannot subtract {number} voxels of value 0 from the histogram, because one "
                f"channel has only {zeros.min()} of them"
            )
            raise ChunkError(msg)
        if number:
            counts[:, 0, at] -= number
        return replace(whole, counts=counts).trimmed()

    def statistics(self, percentiles: Iterable[float] = PERCENTILES) -> list[dict[str, Any]]:
        """Return count, mean, std, min, max and percentiles of each channel, over all sections.

        Percentiles are interpolated linearly, as in `numpy.percentile`. Without *bins*, percentiles
        are exact. With *bins*, the error of a percentile in the range of the bins is at most the
        width of a bin. For a channel without voxels, only ``count`` is returned.
        """
        whole, wanted = self.whole(), tuple(percentiles)
        if whole.bins is None or whole.moments is None:
            return [_of_values(counts[0], whole.lowest, wanted) for counts in whole.counts]
        return [
            _of_bins(counts[0], whole.bins, _Moments(*moments[0].tolist()), wanted)
            for counts, moments in zip(whole.counts, whole.moments, strict=True)
        ]


def histogram_of(
    array: NDArray[Any],
    *,
    bins: Bins | None = None,
    mask: NDArray[np.bool_] | None = None,
    per_section: bool = True,
) -> Histogram:
    """Count the voxels of an array by value.

    Args:
        array: voxels, of shape (z, y, x) or (c, z, y, x) and any real dtype.
        bins: required for floating point and for integers in a wide range (default: count each
            value).
        mask: array of shape (z, y, x); voxels where the mask is false are not counted (default:
            count all voxels).
        per_section: count each section (z) separately instead of all sections together.

    Raises:
        ChunkError: *bins* are not given, and voxels are floating point or range over more than
            65 536 values.
    """
    array = array.view(np.uint8) if array.dtype == bool else array
    channels = array[None] if array.ndim == 3 else array
    if bins is not None:
        return _in_bins(channels, bins, mask, per_section)
    if array.dtype.kind not in "iu":
        msg = (
            f"voxels of type {array.dtype} cannot be counted value by value; give the range of "
            "the bins with --range LOW HIGH"
        )
        raise ChunkError(msg)
    info = np.iinfo(array.dtype)
    lowest, number = int(info.min), int(info.max) - int(info.min) + 1
    if number > _MOST_VALUES:
        lowest, highest = (int(array.min()), int(array.max())) if array.size else (0, 0)
        number = highest - lowest + 1
        if number > _MOST_VALUES:
            msg = (
                f"voxels of type {array.dtype} have values from {lowest} to {highest}, but at most "
                f"{_MOST_VALUES} different values can be counted one by one; give the range of the "
                "bins with --range LOW HIGH"
            )
            raise ChunkError(msg)
    counts = value_counts(channels, lowest, number, mask, per_section=per_section)
    return Histogram(counts, lowest).trimmed()


def value_counts(
    channels: NDArray[Any],
    lowest: int = 0,
    number: int | None = None,
    mask: NDArray[np.bool_] | None = None,
    *,
    per_section: bool = True,
) -> NDArray[np.int64]:
    """Count the voxels of each value from *lowest* on, by channel and section.

    Args:
        channels: array of integers, of shape (c, z, y, x).
        lowest: the first value to count.
        number: number of values to count (default: as many as there are from 0 to the largest value
            of the dtype).
        mask: array of shape (z, y, x); voxels where the mask is false are not counted.
        per_section: count each section (z) separately instead of all sections together.

    Returns:
        Counts of shape (c, z, number), or (c, 1, number) if sections are counted together.
    """
    number = int(np.iinfo(channels.dtype).max) + 1 if number is None else number
    counts = np.zeros((len(channels), channels.shape[1] if per_section else 1, number), np.int64)
    for channel, rows in zip(channels, counts, strict=True):
        for z, section in enumerate(channel):
            values = section.ravel() if mask is None else section[mask[z]]
            rows[z if per_section else 0] += _count(values, lowest, number)
    return counts


def _count(values: NDArray[Any], lowest: int, number: int) -> NDArray[np.int64]:
    if values.dtype.kind == "u" and lowest:
        values = values - values.dtype.type(lowest)  # uint64 may reach beyond int64
    elif lowest:
        values = values.astype(np.int64) - lowest
    elif values.dtype == np.uint8 and values.size >= 2**18 and values.size % 2 == 0:
        # Two voxels at a time: half as many steps, and a table that still fits into the cache.
        pairs = np.bincount(values.view(np.uint16), minlength=2**16).reshape(256, 256)
        counts: NDArray[np.int64] = pairs.sum(axis=0) + pairs.sum(axis=1)
        return counts
    return np.bincount(values.astype(np.intp, copy=False), minlength=number)


def _in_bins(
    channels: NDArray[Any], bins: Bins, mask: NDArray[np.bool_] | None, per_section: bool
) -> Histogram:
    low, high, number = bins
    sections = channels.shape[1]
    counts = np.zeros((len(channels), sections, number + 2), np.int64)
    moments = np.zeros((len(channels), sections, 5))
    not_finite = 0
    for channel, rows, lines in zip(channels, counts, moments, strict=True):
        for z, section in enumerate(channel):
            values = section.ravel() if mask is None else section[mask[z]]
            values = values.astype(np.float64)
            finite = np.isfinite(values)
            if not finite.all():
                not_finite += int(values.size - np.count_nonzero(finite))
                values = values[finite]
            # 0 is below the bins, and number + 1 above.
            place = np.floor((values - low) * (number / (high - low)))
            place[values == high] = number - 1
            place = np.clip(place, -1, number).astype(np.intp) + 1
            rows[z] = np.bincount(place, minlength=number + 2)
            if values.size:
                mean = values.mean()
                square = np.square(values - mean).sum()
                lines[z] = _Moments(values.size, mean, square, values.min(), values.max())
    result = Histogram(counts, 0, bins, moments, not_finite)
    return result if per_section else result.whole()


def _joined(moments: NDArray[np.float64]) -> NDArray[np.float64]:
    # The formula for the moments of a union is that of Chan, Golub and LeVeque (1983).
    number, mean, squares, least, largest = np.moveaxis(moments, 2, 0)
    total = number.sum(axis=1)
    some = np.maximum(total, 1)
    joint = (number * mean).sum(axis=1) / some
    spread = squares.sum(axis=1) + (number * np.square(mean - joint[:, None])).sum(axis=1)
    empty = number == 0
    low = np.where(empty, np.inf, least).min(axis=1, initial=np.inf)
    high = np.where(empty, -np.inf, largest).max(axis=1, initial=-np.inf)
    rows = np.stack([total, joint, spread, low, high], axis=1)
    rows[total == 0] = 0
    return rows[:, None]


def _of_values(
    counts: NDArray[np.int64], lowest: int, percentiles: tuple[float, ...]
) -> dict[str, Any]:
    # Python integers do not overflow, so the sums are exact.
    present = [(lowest + int(i), int(counts[i])) for i in np.flatnonzero(counts)]
    number = sum(count for _, count in present)
    if not number:
        return {"count": 0}
    total = sum(value * count for value, count in present)
    squares = sum(value * value * count for value, count in present)
    below = np.cumsum(counts)

    def percentile(wanted: float) -> float:
        rank = wanted / 100 * (number - 1)
        low = int(rank)
        ranks = (low, min(low + 1, number - 1))
        a, b = (lowest + int(i) for i in np.searchsorted(below, ranks, side="right"))
        return a + (b - a) * (rank - low)

    return {
        "count": number,
        "mean": total / number,
        "std": math.sqrt((number * squares - total * total) / (number * number)),
        "min": present[0][0],
        "max": present[-1][0],
        "percentiles": {f"{wanted:g}": percentile(wanted) for wanted in percentiles},
    }


def _of_bins(
    counts: NDArray[np.int64], bins: Bins, moments: _Moments, percentiles: tuple[float, ...]
) -> dict[str, Any]:
    number = int(moments.number)
    if not number:
        return {"count": 0}
    edges = np.linspace(bins.low, bins.high, bins.number + 1)
    # Voxels outside the bins are between the bins and the extreme values.
    edges = np.concatenate([[moments.least], edges, [moments.largest]])
    edges = np.clip(edges, moments.least, moments.largest)
    reached = np.cumsum(counts)

    def ranked(rank: int) -> float:
        # The value at index *rank* of the sorted voxels, interpolated within a bin.
        if rank in (0, number - 1):
            return float(moments.least if rank == 0 else moments.largest)
        place = int(np.searchsorted(reached, rank, side="right"))
        before = int(reached[place]) - int(counts[place])
        share = (rank - before + 0.5) / int(counts[place])
        return float(edges[place] + share * (edges[place + 1] - edges[place]))

    def percentile(wanted: float) -> float:
        rank = wanted / 100 * (number - 1)
        low = int(rank)
        a, b = ranked(low), ranked(min(low + 1, number - 1))
        return float(a + (b - a) * (rank - low))

    return {
        "count": number,
        "mean": moments.mean,
        "std": math.sqrt(moments.squares / number),
        "min": moments.least,
        "max": moments.largest,
        "percentiles": {f"{wanted:g}": percentile(wanted) for wanted in percentiles},
    }

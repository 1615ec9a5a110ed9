"""Conversion of voxels to grey levels and colours, by the same rules in every viewer.

Each range in the table gives the value shown as black and the value shown as white. If each channel
has a colour, the second value is shown as the full colour.

| kind                  | one channel                          | several channels                  |
|-----------------------|--------------------------------------|-----------------------------------|
| affinity, probability | grey, 0 to 1 (integers: 0 to the     | sum of one colour per channel, 0  |
|                       | largest value of the type)           | to 1; x red, y green, z blue      |
| segmentation          | a fixed colour per label, 0 is black | not supported                     |
| image, uint8 or bool  | grey, 0 to 255 (bool: 0 to 1)        | sum of one colour per channel,    |
|                       |                                      | 0 to 255 (bool: 0 to 1)           |
| others                | grey, from the percentile 1 to 99.5  | sum of one colour per channel,    |
|                       |                                      | from percentiles of each channel  |
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk, Kind

# Colours of the channels, in order; the eye cannot distinguish more.
CHANNEL_COLOURS = ("red", "lime", "blue", "cyan", "magenta", "yellow")
CHANNEL_RGB = np.array(
    [(1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 1), (1, 1, 0)], np.float32
)

CONTRAST = (1.0, 99.5)  # percentiles shown black and white if the dtype implies no range
SAMPLE = 2**20  # voxels that percentiles are computed from


def kind_of(chunk: Chunk) -> Kind:
    """Return the kind of *chunk*, such as ``image``; if unknown, guess from dtype and channels."""
    return kind_of_voxels(chunk.kind, chunk.dtype, chunk.channels if chunk.ndim == 4 else None)


def kind_of_voxels(kind: Kind | None, dtype: np.dtype[Any], channels: int | None) -> Kind:
    """Return *kind*; if *kind* is ``None``, guess the kind from *dtype* and *channels*.

    Args:
        kind: kind of the voxels, such as ``image``; ``None`` if unknown.
        dtype: dtype of the voxels.
        channels: number of channels; ``None`` if there is no channel axis.
    """
    if kind is not None:
        return kind
    if dtype.kind in "iu" and dtype.itemsize >= 4 and channels in (None, 1):
        return "segmentation"
    if dtype.kind == "f" and channels is not None:
        return "affinity" if channels == 3 else "probability"
    return "image"


def value_range(
    array: NDArray[Any], kind: Kind, contrast: tuple[float, float] | None = None
) -> tuple[float, float]:
    """Return the values to show as black and as white; see `range_and_rule`."""
    return range_and_rule(array, kind, contrast)[0]


def range_and_rule(
    array: NDArray[Any], kind: Kind, contrast: tuple[float, float] | None = None
) -> tuple[tuple[float, float], str]:
    """Return the values to show as black and as white, and a text on how the values were chosen.

    Percentiles are computed from at most about a million evenly spaced, finite voxels. If the two
    percentiles are equal, as in a nearly empty image, the smallest and the largest voxel are used
    instead.

    Args:
        array: real numbers in an array of any shape.
        kind: meaning of the voxels.
        contrast: percentiles to show as black and as white. By default, probability maps,
            affinity maps, uint8 and bool chunks have a fixed range (see the table of this module),
            and other chunks have the percentiles 1 and 99.5.

    Returns:
        The two values (the second one is larger) and a description of the choice, such as
        ``percentiles 1 and 99.5``; the description is empty if the range does not
        depend on the voxels.
    """
    is_map = kind in ("probability", "affinity")
    if array.dtype == bool or not array.size:
        return (0.0, 1.0), ""
    if contrast is None and array.dtype.kind == "u" and (is_map or array.itemsize == 1):
        return (0.0, float(np.iinfo(array.dtype).max)), ""
    if contrast is None and is_map:
        return (0.0, 1.0), ""
    below, above = contrast or CONTRAST
    sample = _finite(array.ravel()[:: -(-array.size // SAMPLE)])
    if sample.size:
        low = float(np.percentile(sample, below, method="lower"))
        high = float(np.percentile(sample, above, method="higher"))
        if high > low:
            return (low, high), f"percentiles {below:g} and {above:g}"
    finite = _finite(array)
    if not finite.size:
        return (0.0, 1.0), ""
    low, high = float(finite.min()), float(finite.max())
    return (low, high if high > low else low + max(1.0, abs(low) * 1e-6)), "least and largest"


def ranges_and_rule(
    array: NDArray[Any], kind: Kind, contrast: tuple[float, float] | None = None
) -> tuple[list[tuple[float, float]], str]:
    """Return the range of each channel, and how the ranges were chosen; see `range_and_rule`.

    Args:
        array: (z, y, x) or (c, z, y, x), real.
        kind: meaning of the voxels.
        contrast: percentiles to show as black and as white.
    """
    channels = array if array.ndim == 4 else array[None]
    found = [range_and_rule(channel, kind, contrast) for channel in channels]
    rules = sorted({rule for _, rule in found if rule})
    return [limits for limits, _ in found], " or ".join(rules)


def shown_as(limits: Sequence[tuple[float, float]]) -> str:
    """Return the values shown as black and white as text, such as ``black 0, white 255``."""
    low, high = limits[0]
    if len(limits) == 1:
        return f"black {low:g}, white {high:g}"
    if len(set(limits)) == 1:
        return f"black {low:g}, full colour {high:g}"
    colours = zip(CHANNEL_COLOURS, limits, strict=False)
    return ", ".join(f"{colour} {low:g} to {high:g}" for colour, (low, high) in colours)


def _finite(array: NDArray[Any]) -> NDArray[Any]:
    return array[np.isfinite(array)] if array.dtype.kind == "f" else array


def grey(array: NDArray[Any], limits: tuple[float, float]) -> NDArray[np.uint8]:
    """Return *array* as grey levels: 0 up to the lower limit, 255 from the upper limit on.

    Args:
        array: real numbers in an array of any shape; NaN becomes black.
        limits: values to show as black and as white.
    """
    low, high = limits
    if array.dtype == np.uint8 and limits == (0, 255):
        return array
    finite = np.nan_to_num(array.astype(np.float64), nan=low, posinf=high, neginf=low)
    return np.rint(np.clip((finite - low) * (255 / (high - low)), 0, 255)).astype(np.uint8)


def colours_of_channels(
    array: NDArray[Any], limits: Sequence[tuple[float, float]]
) -> NDArray[np.uint8]:
    """Return a colour image: the sum of the channels, each in its own colour.

    Args:
        array: array of shape (c, ...); only the first six channels are shown.
        limits: for each channel, the value to show as black and the value to show as the full
            colour.

    Returns:
        A uint8 array of shape (..., 3) with red, green and blue.
    """
    shown = array[: len(CHANNEL_RGB)]
    channels = np.stack([grey(*each) for each in zip(shown, limits, strict=False)])
    added = np.tensordot(channels.astype(np.float32), CHANNEL_RGB[: len(shown)], axes=(0, 0))
    return np.clip(added, 0, 255).astype(np.uint8)


def colours_of_labels(labels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return a fixed colour for each label; 0 is black.

    The hue is computed from a hash of the label (the finalizer of SplitMix64, Steele et al. 2014),
    so consecutive labels have different hues. All colours are bright, unlike the background.

    Args:
        labels: integers in an array of any shape.

    Returns:
        A uint8 array of shape (..., 3) with red, green and blue.
    """
    mixed = labels.astype(np.uint64)
    with np.errstate(over="ignore"):
        mixed = mixed + np.uint64(0x9E3779B97F4A7C15)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        mixed ^= mixed >> np.uint64(31)
    hue = (mixed >> np.uint64(40)).astype(np.float32) / 2**24
    pale = (mixed & np.uint64(255)).astype(np.float32) / 255 * 0.5
    bright = 0.7 + (mixed >> np.uint64(8) & np.uint64(255)).astype(np.float32) / 255 * 0.3
    turn = (hue[..., None] * 6 + np.array([0, 4, 2], np.float32)) % 6  # the hexagon of hues
    pure = np.clip(np.abs(turn - 3) - 1, 0, 1)
    rgb = bright[..., None] * (1 - (1 - pale[..., None]) * (1 - pure))
    rgb[labels == 0] = 0
    colours: NDArray[np.uint8] = np.rint(rgb * 255).astype(np.uint8)
    return colours


def overlaid(image: NDArray[np.uint8], labels: NDArray[Any]) -> NDArray[np.uint8]:
    """Return *image* with the colours of *labels* drawn over it, half transparent.

    Label 0 is not drawn.

    Args:
        image: array of shape (..., 3) with red, green and blue.
        labels: integers, in an array with the shape of *image* without the last axis.
    """
    mixed = np.where(labels[..., None] == 0, image, image * 0.6 + colours_of_labels(labels) * 0.4)
    return np.rint(mixed).astype(np.uint8)


def check_labels(chunk: Chunk) -> None:
    """Check that viewers can show *chunk*, which is a segmentation.

    Raises:
        ChunkError: the labels are not integers, or are negative, or the chunk has several channels.
    """
    array = chunk.array
    negative = array.dtype.kind == "i" and array.min(initial=0) < 0
    if chunk.channels != 1 or array.dtype.kind not in "iub" or negative:
        msg = (
            "a viewer shows a segmentation only if it has one channel of integers that are not "
            f"negative; chunk {chunk.bbox} is {chunk.dtype} of shape {chunk.shape}"
        )
        raise ChunkError(msg)


def single_channel(array: NDArray[Any]) -> NDArray[Any]:
    """Return *array* without its channel axis, if this axis has length 1."""
    return array[0] if array.ndim == 4 and len(array) == 1 else array

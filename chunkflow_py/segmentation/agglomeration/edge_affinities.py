"""Affinities as integers on the edges between neighbouring voxels.

The value of channel k at voxel v belongs to the edge between v and its lower neighbour along axis
k, whose coordinate is smaller by 1. The values of channel k in plane 0 of axis k belong to edges to
voxels outside the array, and are ignored.

The voxels of the whole volume are numbered in raster order. The index of an edge is three times the
number of its upper voxel (the one with the greater coordinate), plus its axis. So an edge
has the same index in every task. Around a voxel, the indices of the six edges ascend in the order
of `DIRECTIONS`, and so do the numbers of the six neighbours.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.affinity_layout import DEFAULT_LAYOUT, AffinityLayout
from chunkflow_py.errors import ChunkError, OptionError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from chunkflow_py.core.geometry import BoundingBox

# (axis, whether the neighbour is the upper one), in ascending order of the edge's index.
DIRECTIONS = ((0, False), (1, False), (2, False), (2, True), (1, True), (0, True))
MOST_EDGES = 2**31 - 1  # edges of one contact; see `contacts.mean_keys`

_SLACK = 1e-3  # tolerance around [0, 1], for rounding errors of blending
_PLANES = 16  # planes that are converted together


def as_edges(affinity: NDArray[Any], layout: AffinityLayout = DEFAULT_LAYOUT) -> NDArray[Any]:
    """Return affinities as integers; channel k has the affinities of the edges along axis k.

    If no value has to be converted, the result is a view of the array.

    Floating-point affinities become uint16: 65535 times the affinity, rounded half to even.

    Args:
        affinity: (3, z, y, x), uint8, uint16 or floating point; the value for an affinity of 1 is
            255, 65535 or 1.0, respectively.
        layout: order of the channels, and which of the two voxels of an edge stores its affinity.

    Returns:
        (3, z, y, x) uint8 or uint16, channel 0 along z, each value at the upper voxel of its edge
        (the voxel with the greater coordinate).

    Raises:
        ChunkError: the array does not have three channels, its type is not one of those above, or
            an affinity is NaN or outside of [0, 1].
    """
    if affinity.ndim != 4 or affinity.shape[0] != 3:
        msg = (
            f"agglomeration needs affinities of shape (3, z, y, x), got {tuple(affinity.shape)}; "
            "select the three channels of nearest neighbours with --channels"
        )
        raise ChunkError(msg)
    ordered = layout.arranged(affinity)
    if affinity.dtype in (np.uint8, np.uint16):
        return ordered
    if affinity.dtype.kind != "f":
        msg = (
            f"affinities of type {affinity.dtype} have no known scale; store them as uint8 (255 "
            "is 1), uint16 (65535 is 1) or floating point (0 to 1)"
        )
        raise ChunkError(msg)
    edges = np.empty(ordered.shape, np.uint16)
    for axis, channel in enumerate(ordered):
        for start in range(0, channel.shape[0], _PLANES):
            part = channel[start : start + _PLANES].astype(np.float64)
            used = part[
                tuple(slice(1 if a == axis and (a or not start) else 0, None) for a in range(3))
            ]
            if np.isnan(used).any():
                msg = (
                    f"some affinities along {'zyx'[axis]} are NaN, which is not an affinity; find "
                    "out which network or loader made these values"
                )
                raise ChunkError(msg)
            if used.size and not (used.min() >= -_SLACK and used.max() <= 1 + _SLACK):
                msg = (
                    f"affinities must be in [0, 1], but those along {'zyx'[axis]} range from "
                    f"{used.min():g} to {used.max():g}; rescale the affinities first (logits of a "
                    "network need a sigmoid)"
                )
                raise ChunkError(msg)
            scaled = np.rint(np.clip(np.nan_to_num(part), 0, 1) * 65535)
            edges[axis, start : start + _PLANES] = scaled
    return edges


def integer_type(dtype: DTypeLike) -> str:
    """Return the type to which `as_edges` converts affinities of type *dtype*."""
    return "uint8" if np.dtype(dtype) == np.uint8 else "uint16"


def scale_of(dtype: DTypeLike) -> int:
    """Return the integer for an affinity of 1: 255 for uint8, 65535 for uint16."""
    return int(np.iinfo(np.dtype(dtype)).max)


def least_edge(threshold: float, dtype: DTypeLike) -> int:
    """Return the smallest integer that stands for an affinity of at least *threshold*."""
    exact = Fraction(str(threshold)) * scale_of(dtype)
    return -(-exact.numerator // exact.denominator)


def least_mean(threshold: float, dtype: DTypeLike) -> Fraction:
    """Return the smallest mean affinity at which two regions are merged, in integer units.

    In integer units, an affinity of 1 is 255 for uint8, and 65535 for uint16.

    Args:
        threshold: regions are merged while 1 - mean affinity is at most this value, in [0, 1]. The
            value is read as a decimal number: 0.7 is exactly 7/10.
        dtype: type of the affinities, uint8 or uint16.

    Raises:
        OptionError: the threshold is outside of [0, 1], or has more than nine decimal digits.
    """
    if not 0 <= threshold <= 1:
        msg = (
            f"--threshold {threshold} is compared with 1 - mean affinity, which is in [0, 1]; the "
            f"nearest value that works is {min(max(threshold, 0.0), 1.0):g}"
        )
        raise OptionError(msg)
    exact = (1 - Fraction(str(threshold))) * scale_of(dtype)
    if exact.denominator > 10**9:
        msg = f"--threshold {threshold} has more than nine decimal digits; round it"
        raise OptionError(msg)
    return exact


def check_sums(domain: BoundingBox, dtype: DTypeLike) -> None:
    """Check that no sum of affinities of the volume can exceed the range of int64.

    Raises:
        ChunkError: the volume has too many voxels for affinities of the type *dtype*.
    """
    most = (2**63 - 1) // (3 * scale_of(dtype))
    if domain.voxels > most:
        msg = (
            f"volume {domain} has {domain.voxels} voxels, but sums of {np.dtype(dtype)} affinities "
            f"are exact for at most {most} voxels; store the affinities as uint8"
        )
        raise ChunkError(msg)

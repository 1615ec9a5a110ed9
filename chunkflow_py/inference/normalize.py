"""Normalisation: what a voxel becomes before the network sees it.

| method       | voxel v of channel c becomes                 | statistics file       |
|--------------|----------------------------------------------|-----------------------|
| `dtype`      | v / largest of its type; floats stay         |                       |
| `none`       | v                                            |                       |
| `zscore`     | (v - mean[c]) / std[c]                       | `mean`, `std`         |
| `percentile` | (v - low[c]) / (high[c] - low[c]), unclipped | `percentiles`         |

Statistics belong to the whole dataset, never to a chunk: a voxel has one value, wherever the patch
lies that holds it. Their file is described in `statistics.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.statistics import PERCENTILES, read_statistics

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

Method = Literal["dtype", "none", "zscore", "percentile"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class Normalizer:
    """Fills a network's input from voxels: (v - shift) / divisor in each channel.

    Attributes:
        method: see the module.
        shift: of each channel; none with ``dtype`` and ``none``.
        divisor: of each channel; none with ``dtype`` and ``none``.
        limits: least and largest value to pass to the network, or ``None`` to clip nothing.
    """

    method: Method = "dtype"
    shift: tuple[float, ...] = ()
    divisor: tuple[float, ...] = ()
    limits: tuple[float, float] | None = None

    def __call__(self, source: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write the normalised voxels of *source* to *out*, one by one, with no array between.

        Args:
            source: (c, z, y, x), any real dtype; not changed.
            out: (c, z, y, x) float32.
        """
        if self.shift:
            # Integers of 32 and 64 bits, and doubles, are subtracted as doubles, then rounded.
            number = np.result_type(source.dtype, np.float32).type
            rows = zip(source, out, self.shift, self.divisor, strict=True)
            for values, target, shift, divisor in rows:
                np.subtract(values, number(shift), out=target, casting="unsafe")
                np.divide(target, np.float32(divisor), out=target)
        elif self.method == "dtype" and source.dtype.kind in "iu":
            largest = np.float32(np.iinfo(source.dtype).max)
            np.divide(source, largest, out=out, casting="unsafe")
        else:
            np.copyto(out, source, casting="unsafe")
        if self.limits is not None:
            np.clip(out, *self.limits, out=out)


def create_normalizer(
    method: Method,
    *,
    num_channels: int = 1,
    statistics: str | None = None,
    percentiles: tuple[float, float] = PERCENTILES,
    epsilon: float = 0.0,
    limits: tuple[float, float] | None = None,
    joint: bool = False,
) -> Normalizer:
    """Return the normaliser that the options ask for.

    Args:
        method: see the module.
        num_channels: of the image.
        statistics: path of the statistics file, for ``zscore`` and ``percentile``.
        percentiles: which percentiles become 0 and 1, for ``percentile``.
        epsilon: added to every divisor.
        limits: clip what the network sees to these two values (default: nothing is clipped).
        joint: the network wants all channels normalised alike, so their statistics must be equal.

    Raises:
        OptionError: the file is missing where it is needed or given where it is not; it is not a
            statistics file, has another number of channels than the image, or lacks a value; a
            divisor is not positive.
    """
    if method not in METHODS:
        msg = f"--normalize {method!r} is not one of {', '.join(METHODS)}"
        raise OptionError(msg)
    if method in {"dtype", "none"}:
        if statistics is not None:
            msg = (
                f"--normalize {method} uses no statistics, but --normalize-statistics is "
                f"{statistics}; say --normalize zscore or percentile, or leave the file out"
            )
            raise OptionError(msg)
        return Normalizer(method, limits=limits)
    if statistics is None:
        msg = (
            f"--normalize {method} needs statistics of the whole dataset; give their file with "
            "--normalize-statistics"
        )
        raise OptionError(msg)
    channels = read_statistics(statistics)
    if len(channels) != num_channels:
        msg = (
            f"{statistics} holds statistics of {len(channels)} channels, but the image has "
            f"{num_channels}; give a file for this image, or choose channels with --channels"
        )
        raise OptionError(msg)
    pairs = []
    for index, channel in enumerate(channels):
        where = f"channel {index} of {statistics}"
        pair = channel.zscore(where) if method == "zscore" else channel.range(where, percentiles)
        pairs.append((pair[0], pair[1] + epsilon))
    if joint and len(set(pairs)) > 1:
        msg = (
            f"the network takes its channels normalised together, but {statistics} holds different "
            "statistics for them; write those of all channels taken together to each of them"
        )
        raise OptionError(msg)
    shifts, divisors = zip(*pairs, strict=True)
    return Normalizer(method, shifts, divisors, limits)


def dtype_warning(dtype: DTypeLike, sample_max: int | None = None) -> str | None:
    """Return what to say where nobody chose how integers of more than 8 bits are normalised.

    Args:
        dtype: of the image.
        sample_max: the largest of some voxels, if known.

    Returns:
        A sentence; ``None`` if the default, ``dtype``, is what it has to be: with 8 bits, with
        floats, or where the voxels reach the upper half of their type.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "iu" or kind.itemsize == 1:
        return None
    largest = int(np.iinfo(kind).max)
    if sample_max is None:
        reached = f"12-bit data would reach {4095 / largest:.2g}"
    elif sample_max > largest // 2:
        return None
    else:
        reached = f"voxels up to {sample_max}, as here, reach {sample_max / largest:.2g}"
    return (
        f"{kind.name} voxels are divided by {largest}, the largest of their type, so {reached}; "
        "say what the network was trained with: --normalize none, --normalize zscore or percentile "
        "with --normalize-statistics, or --normalize dtype, which is the default"
    )

"""Normalisation of voxels before the network.

| method       | voxel v of channel c becomes                 | statistics file       |
|--------------|----------------------------------------------|-----------------------|
| `dtype`      | v / largest of its type; floats stay         |                       |
| `none`       | v                                            |                       |
| `zscore`     | (v - mean[c]) / std[c]                       | `mean`, `std`         |
| `percentile` | (v - low[c]) / (high[c] - low[c]), unclipped | `percentiles`         |

Statistics belong to the whole dataset, never to a chunk: a voxel has one value in every patch.
Their JSON file has one entry for each channel of the image, in voxel values as they are stored
(percentiles by linear interpolation, keys from "0" to "100"):

    {"version": 1,
     "channels": [{"mean": 131.2, "std": 24.9, "percentiles": {"1": 61, "99": 187.5}}]}

``chunkflow sum-statistics URL --output FILE`` writes it for a volume that compute-statistics has
counted, with count, min and max, which are ignored here. An entry may lack what is not used. Any
other key is an error, because it is likely a misspelt one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.histogram import PERCENTILES as ALL_PERCENTILES
from chunkflow_py.core.histogram import Histogram, histogram_of
from chunkflow_py.errors import ChunkError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import DTypeLike, NDArray

PERCENTILES = (1.0, 99.0)  # the default: they become 0 and 1
VERSION = 1  # of the statistics file
_CHANNEL_KEYS = ("count", "mean", "std", "min", "max", "percentiles")

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
                f"{statistics}; use --normalize zscore or percentile, or leave the file out"
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
    """Return a warning if integers of more than 8 bits are normalised by default.

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
        "choose what the network was trained with: --normalize none, --normalize zscore or "
        "percentile with --normalize-statistics, or --normalize dtype, which is the default"
    )


@dataclass(frozen=True)
class ChannelStatistics:
    """Statistics of one channel, from a statistics file.

    Attributes:
        mean: of all voxels, or ``None`` if the file lacks it.
        std: standard deviation of all voxels, or ``None``.
        percentiles: voxel values by percentile, 0 to 100.
    """

    mean: float | None = None
    std: float | None = None
    percentiles: dict[float, float] = field(default_factory=dict)

    def zscore(self, where: str) -> tuple[float, float]:
        """Return the numbers to subtract and to divide by.

        Raises:
            OptionError: mean or deviation are missing, or all voxels are alike.
        """
        if self.mean is None or self.std is None:
            lacking = "mean" if self.mean is None else "std"
            msg = f"{where} lacks {lacking}, which --normalize zscore needs; add it"
            raise OptionError(msg)
        if self.std <= 0:
            msg = (
                f"{where} has a standard deviation of {self.std:g}, which nothing can be divided "
                "by; compute it over voxels that differ"
            )
            raise OptionError(msg)
        return self.mean, self.std

    def range(self, where: str, percentiles: tuple[float, float]) -> tuple[float, float]:
        """Return the numbers to subtract and divide by, so that *percentiles* become 0 and 1.

        Raises:
            OptionError: a percentile is missing, or the values are not in order.
        """
        low, high = percentiles
        if not 0 <= low < high <= 100:
            msg = (
                f"--normalize-percentiles {low:g} {high:g} must be two of 0 to 100, the lower one "
                f"first, such as {PERCENTILES[0]:g} {PERCENTILES[1]:g}"
            )
            raise OptionError(msg)
        for wanted in percentiles:
            if wanted not in self.percentiles:
                have = ", ".join(f"{value:g}" for value in sorted(self.percentiles)) or "none"
                msg = (
                    f"{where} has no percentile {wanted:g}; it has {have}: choose two of them "
                    "with --normalize-percentiles, or make statistics that have it: chunkflow "
                    f"sum-statistics URL --percentiles {low:g},{high:g} --output FILE"
                )
                raise OptionError(msg)
        bottom, top = self.percentiles[low], self.percentiles[high]
        if bottom >= top:
            msg = (
                f"{where} has {bottom:g} as percentile {low:g} and {top:g} as percentile {high:g}, "
                "between which there is nothing to stretch; choose others with "
                "--normalize-percentiles"
            )
            raise OptionError(msg)
        return bottom, top - bottom


def read_statistics(path: str) -> tuple[ChannelStatistics, ...]:
    """Read a statistics file, the format of which is described above.

    Raises:
        OptionError: the file does not exist, or is not a statistics file; names the place.
    """
    try:
        found = parse_json(Path(path).read_bytes())
    except FileNotFoundError as error:
        msg = f"--normalize-statistics {path} does not exist (looked in {Path.cwd()})"
        if "://" in path:
            msg = (
                f"--normalize-statistics {path} is not a file of this machine; copy it, or add up "
                f"what is counted there by chunkflow sum-statistics {path} --output statistics.json"
            )
        raise OptionError(msg) from error
    except IsADirectoryError as error:
        msg = (
            f"--normalize-statistics {path} is a folder; add up what is counted there by "
            f"chunkflow sum-statistics {path} --output statistics.json, and give that file"
        )
        raise OptionError(msg) from error
    except (OSError, ValueError) as error:
        msg = f"--normalize-statistics {path} is not a JSON file: {error}"
        raise OptionError(msg) from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        msg = (
            f"--normalize-statistics {path} has version {version}; a statistics file has version "
            f'{VERSION}: {{"version": {VERSION}, "channels": [{{"mean": 131.2, "std": 24.9}}]}}'
        )
        raise OptionError(msg)
    _check_keys(found, ("version", "channels"), path)
    channels = found.get("channels")
    if not isinstance(channels, list) or not channels:
        msg = f"{path} must list an entry for each channel of the image under channels"
        raise OptionError(msg)
    return tuple(_channel(entry, f"channel {i} of {path}") for i, entry in enumerate(channels))


def _channel(entry: Any, where: str) -> ChannelStatistics:
    if not isinstance(entry, dict):
        msg = f"{where} is {entry!r}; it must be an object with {', '.join(_CHANNEL_KEYS)}"
        raise OptionError(msg)
    _check_keys(entry, _CHANNEL_KEYS, where)
    percentiles = entry.get("percentiles", {})
    if not isinstance(percentiles, dict):
        msg = f'percentiles of {where} must be an object such as {{"1": 61, "99": 187.5}}'
        raise OptionError(msg)
    values: dict[float, float] = {}
    for key, value in percentiles.items():
        try:
            percentile = float(key)
        except ValueError:
            percentile = math.nan
        if not 0 <= percentile <= 100 or percentile in values:
            msg = f"{where} has the percentile {key!r}; they are numbers from 0 to 100, each once"
            raise OptionError(msg)
        values[percentile] = _number(value, f"percentile {key} of {where}")
    mean, std = (
        _number(entry[key], f"{key} of {where}") if key in entry else None
        for key in ("mean", "std")
    )
    return ChannelStatistics(mean, std, values)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        msg = f"{what} is {value!r}; it must be a finite number"
        raise OptionError(msg)
    return float(value)


def _check_keys(found: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            msg = f"{where} holds {key!r}; only {', '.join(known)} may be there"
            raise OptionError(msg)


def statistics_of(
    chunks: Iterable[NDArray[Any]],
    percentiles: Iterable[float] = ALL_PERCENTILES,
) -> dict[str, Any]:
    """Return the statistics of a dataset, in the form of a statistics file.

    Exact, whatever the chunks are: voxels are counted by value.

    Args:
        chunks: (c, z, y, x) or (z, y, x), integers of 8 or 16 bits, all of one type and number of
            channels; together the dataset, each voxel once.
        percentiles: which to compute, by linear interpolation as `numpy.percentile` does.

    Raises:
        ChunkError: another type, chunks that differ, or no voxel.
    """
    total: Histogram | None = None
    first: tuple[np.dtype[Any], int] | None = None
    for chunk in chunks:
        array = chunk[None] if chunk.ndim == 3 else chunk
        if array.dtype.kind not in "iu" or array.dtype.itemsize > 2:
            msg = f"voxels of {array.dtype} cannot be counted by value; convert them to uint16"
            raise ChunkError(msg)
        first = first or (array.dtype, len(array))
        if (array.dtype, len(array)) != first:
            msg = (
                f"a chunk has {len(array)} channels of {array.dtype}, the one before it {first[1]} "
                f"of {first[0]}; the chunks must be of one dataset"
            )
            raise ChunkError(msg)
        counted = histogram_of(array, per_section=False)
        total = counted if total is None else total + counted
    if total is None or not total.counts.any():
        msg = "no voxel to take statistics of"
        raise ChunkError(msg)
    return {"version": VERSION, "channels": total.statistics(percentiles)}

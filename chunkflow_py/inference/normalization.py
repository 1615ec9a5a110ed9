"""Normalisation of voxels before the network.

| method       | voxel v of channel c becomes                 | needs statistics      |
|--------------|----------------------------------------------|-----------------------|
| `dtype`      | integer: v / maximum of the dtype; float: v  |                       |
| `none`       | v                                            |                       |
| `zscore`     | (v - mean[c]) / std[c]                       | `mean`, `std`         |
| `percentile` | (v - low[c]) / (high[c] - low[c]), unclipped | `percentiles`         |

Statistics are computed from the whole dataset, never from a chunk, so a voxel has the same
normalised value in every patch. Statistics are read from a file, but for `zscore`, the mean and the
standard deviation of each channel can also be given as numbers. All statistics are in units of the
stored voxels.

The statistics file is JSON, with one entry for each channel of the image. The keys of percentiles
are numbers from "0" to "100":

    {"version": 1,
     "channels": [{"mean": 131.2, "std": 24.9, "percentiles": {"1": 61, "99": 187.5}}],
     "foreground": "3-128_0-512_40-480"}

``foreground`` is the smallest box that contains all voxels other than 0, in voxels of the image.
Networks of nnU-Net process only this box; for other networks, the box has no effect.

``chunkflow sum-statistics URL --output FILE`` writes this file from the histograms that the
operator compute-statistics has stored; percentiles are interpolated linearly. The file may also
contain the keys count, min and max, which are ignored. Keys that the method does not use may be
missing. Any other key is an error, because such a key is probably misspelt.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.core.histogram import PERCENTILES as ALL_PERCENTILES
from chunkflow_py.core.histogram import Histogram, histogram_of
from chunkflow_py.errors import ChunkError, GeometryError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import DTypeLike, NDArray

PERCENTILES = (1.0, 99.0)  # by default these become 0 and 1
VERSION = 1  # of the statistics file
_NUMBERS = "--normalize-mean and --normalize-std"
_CHANNEL_KEYS = ("count", "mean", "std", "min", "max", "percentiles")

Method = Literal["dtype", "none", "zscore", "percentile"]
METHODS: tuple[Method, ...] = get_args(Method)


@dataclass(frozen=True)
class Normalizer:
    """Converts voxels to the network's input: (v - shift) / divisor in each channel.

    Attributes:
        method: ``dtype``, ``none``, ``zscore`` or ``percentile``; the docstring of the module
            `chunkflow_py.inference.normalization` lists the formulas.
        shift: for each channel, the number to subtract; empty with ``dtype`` and ``none``.
        divisor: for each channel, the number to divide by; empty with ``dtype`` and ``none``.
        limits: lower and upper limit to which normalised voxels are clipped, or ``None`` for no
            clipping.
        channel_limits: for each channel, lower and upper limit to which normalised voxels are
            clipped; empty for no clipping.
        extremes: for each channel, smallest and largest normalised voxel of the image; empty if
            unknown. `clip_interpolated` clips interpolated voxels to these values.
    """

    method: Method = "dtype"
    shift: tuple[float, ...] = ()
    divisor: tuple[float, ...] = ()
    limits: tuple[float, float] | None = None
    channel_limits: tuple[tuple[float, float], ...] = ()
    extremes: tuple[tuple[float, float], ...] = ()

    def __call__(self, source: NDArray[Any], out: NDArray[np.float32]) -> None:
        """Write the normalised voxels of *source* to *out*, without a temporary array.

        Args:
            source: (c, z, y, x), any real dtype; not changed.
            out: (c, z, y, x) float32.
        """
        if self.shift:
            # Integers of 32 and 64 bits, and float64, are subtracted in float64, then rounded.
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
        for target, limits in zip(out, self.channel_limits, strict=False):
            np.clip(target, *limits, out=target)
        if self.limits is not None:
            np.clip(out, *self.limits, out=out)

    def clip_interpolated(self, values: NDArray[np.float32]) -> None:
        """Clip interpolated voxels to the range of the normalised image, in place.

        This is necessary because interpolation by splines returns values outside this range.

        Args:
            values: (c, z, y, x) float32.
        """
        for channel, limits in zip(values, self.extremes, strict=False):
            np.clip(channel, *limits, out=channel)
        if self.limits is not None:
            np.clip(values, *self.limits, out=values)


def create_normalizer(
    method: Method,
    *,
    num_channels: int = 1,
    statistics: str | None = None,
    mean: tuple[float, ...] | None = None,
    std: tuple[float, ...] | None = None,
    percentiles: tuple[float, float] = PERCENTILES,
    epsilon: float = 0.0,
    limits: tuple[float, float] | None = None,
    joint: bool = False,
) -> Normalizer:
    """Return the normaliser for a method and its options.

    Args:
        method: ``dtype``, ``none``, ``zscore`` or ``percentile``; the docstring of the module
            `chunkflow_py.inference.normalization` lists the formulas.
        num_channels: number of channels of the image.
        statistics: path of the statistics file, for ``zscore`` and ``percentile``.
        mean: for ``zscore``, mean of each channel, in units of the stored voxels. *mean* and *std*
            replace the file.
        std: for ``zscore``, standard deviation of each channel, in units of the stored voxels.
        percentiles: for ``percentile``, the percentile that is mapped to 0 and the percentile that
            is mapped to 1.
        epsilon: number to add to every divisor.
        limits: lower and upper limit to which normalised voxels are clipped (default: no clipping).
        joint: whether the network needs all channels normalised with one shift and one divisor. If
            so, the statistics of all channels must be equal.

    Raises:
        OptionError: statistics are missing, or are given although the method needs none. Or both a
            file and numbers are given. Or the file is not a statistics file, or lacks a value. Or
            the number of channels is not that of the image, or a divisor is not positive.
    """
    if method not in METHODS:
        msg = f"--normalize {method!r} is not one of {', '.join(METHODS)}"
        raise OptionError(msg)
    source: str | None = statistics
    channels: tuple[ChannelStatistics, ...]
    if mean is not None or std is not None:
        source, channels = _NUMBERS, _given_statistics(method, statistics, mean, std)
    elif method in {"dtype", "none"}:
        if statistics is not None:
            msg = (
                f"--normalize {method} uses no statistics, but --normalize-statistics is "
                f"{statistics}; use --normalize zscore or percentile, or leave the file out"
            )
            raise OptionError(msg)
        return Normalizer(method, limits=limits)
    elif statistics is None:
        numbers = f", or the numbers with {_NUMBERS}" if method == "zscore" else ""
        msg = (
            f"--normalize {method} needs statistics of the whole dataset; give a statistics file "
            f"with --normalize-statistics{numbers}"
        )
        raise OptionError(msg)
    else:
        channels = read_statistics(statistics)
    if len(channels) != num_channels:
        count, remedy = f"has statistics of {len(channels)}", "give a file for this image"
        if source == _NUMBERS:
            count = f"have statistics of {len(channels)}"
            remedy = f"give {num_channels} of each, separated by commas"
        msg = (
            f"{source} {count} channels, but the image has "
            f"{num_channels}; {remedy}, or choose channels with --channels"
        )
        raise OptionError(msg)
    pairs = []
    for index, channel in enumerate(channels):
        where = f"channel {index} of {source}"
        pair = channel.zscore(where) if method == "zscore" else channel.range(where, percentiles)
        pairs.append((pair[0], pair[1] + epsilon))
    if joint and len(set(pairs)) > 1:
        msg = (
            f"the network needs all channels normalised together, but the statistics in "
            f"{source} differ between channels; give every channel the statistics over all channels"
        )
        raise OptionError(msg)
    shifts, divisors = zip(*pairs, strict=True)
    return Normalizer(method, shifts, divisors, limits)


def _given_statistics(
    method: Method,
    statistics: str | None,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
) -> tuple[ChannelStatistics, ...]:
    if method != "zscore":
        option = "--normalize-std" if mean is None else "--normalize-mean"
        msg = (
            f"{option} is only for --normalize zscore, but --normalize is {method}; use "
            f"--normalize zscore, or leave {option} out"
        )
        raise OptionError(msg)
    if mean is None or std is None:
        given, lacking = "--normalize-mean", "--normalize-std"
        if mean is None:
            given, lacking = lacking, given
        msg = f"{given} is given without {lacking}, but zscore needs both; add {lacking}"
        raise OptionError(msg)
    if statistics is not None:
        msg = (
            f"--normalize-statistics is {statistics}, but {_NUMBERS} replace this file; leave out "
            "either --normalize-statistics or the two other options"
        )
        raise OptionError(msg)
    if len(mean) != len(std):
        msg = (
            f"--normalize-mean has {len(mean)} numbers, but --normalize-std has {len(std)}; give "
            "a mean and a standard deviation for every channel of the image"
        )
        raise OptionError(msg)
    return tuple(starmap(ChannelStatistics, zip(mean, std, strict=True)))


def dtype_warning(dtype: DTypeLike, sample_max: int | None = None) -> str | None:
    """Return a warning if the default normalisation (``dtype``) may not suit the image.

    Args:
        dtype: dtype of the image.
        sample_max: largest voxel of a sample of the image, if known.

    Returns:
        The warning, or ``None``. There is no warning for integers of 8 bits, for floats, or if
        *sample_max* is in the upper half of the range of *dtype*.
    """
    kind = np.dtype(dtype)
    if kind.kind not in "iu" or kind.itemsize == 1:
        return None
    largest = int(np.iinfo(kind).max)
    if sample_max is None:
        reached = f"12-bit data would reach only {4095 / largest:.2g}"
    elif sample_max > largest // 2:
        return None
    else:
        reached = f"the largest voxel sampled, {sample_max}, becomes {sample_max / largest:.2g}"
    return (
        f"{kind.name} voxels are divided by {largest}, the maximum of their dtype, so {reached}; "
        "use the normalisation that the network was trained with: --normalize none, --normalize "
        "zscore or percentile with --normalize-statistics, or --normalize dtype, the default"
    )


@dataclass(frozen=True)
class ChannelStatistics:
    """Statistics of one channel, from a statistics file.

    Attributes:
        mean: mean of all voxels, or ``None`` if the file lacks it.
        std: standard deviation of all voxels, or ``None`` if the file lacks it.
        percentiles: dict from the percentile (0 to 100) to the voxel value.
    """

    mean: float | None = None
    std: float | None = None
    percentiles: dict[float, float] = field(default_factory=dict)

    def zscore(self, where: str) -> tuple[float, float]:
        """Return the numbers to subtract and to divide by, for ``zscore``.

        Args:
            where: text that names the channel and the file, for messages.

        Raises:
            OptionError: mean or standard deviation is missing, or the standard deviation is not
                positive.
        """
        if self.mean is None or self.std is None:
            lacking = "mean" if self.mean is None else "std"
            msg = f"{where} lacks {lacking}, which --normalize zscore needs; add {lacking}"
            raise OptionError(msg)
        if self.std <= 0:
            msg = (
                f"{where} has a standard deviation of {self.std:g}, which must be positive for "
                "--normalize zscore; compute statistics of voxels that are not all equal"
            )
            raise OptionError(msg)
        return self.mean, self.std

    def range(self, where: str, percentiles: tuple[float, float]) -> tuple[float, float]:
        """Return the numbers to subtract and to divide by, so that two percentiles become 0 and 1.

        Args:
            where: text that names the channel and the file, for messages.
            percentiles: the lower and the upper percentile, 0 to 100.

        Raises:
            OptionError: a percentile is missing, or the value of the lower percentile is not below
                that of the upper one.
        """
        low, high = percentiles
        if not 0 <= low < high <= 100:
            msg = (
                f"--normalize-percentiles {low:g} {high:g} must be two numbers from 0 to 100, the "
                f"lower one first, such as {PERCENTILES[0]:g} {PERCENTILES[1]:g}"
            )
            raise OptionError(msg)
        for wanted in percentiles:
            if wanted not in self.percentiles:
                have = ", ".join(f"{value:g}" for value in sorted(self.percentiles)) or "none"
                msg = (
                    f"{where} lacks percentile {wanted:g} (it has {have}); choose other "
                    "percentiles with --normalize-percentiles, or write a file with the command "
                    f"chunkflow sum-statistics URL --percentiles {low:g},{high:g} --output FILE"
                )
                raise OptionError(msg)
        bottom, top = self.percentiles[low], self.percentiles[high]
        if bottom >= top:
            msg = (
                f"{where} has {bottom:g} as percentile {low:g} and {top:g} as percentile {high:g}, "
                "but the second value must be larger than the first; choose other percentiles with "
                "--normalize-percentiles"
            )
            raise OptionError(msg)
        return bottom, top - bottom


def read_statistics(path: str) -> tuple[ChannelStatistics, ...]:
    """Read a statistics file; the docstring of this module describes the format.

    Raises:
        OptionError: the file does not exist or is not a statistics file; the message names the
            invalid part.
    """
    channels = _read_document(path).get("channels")
    if not isinstance(channels, list) or not channels:
        msg = f"{path} must have a list 'channels' with an entry for each channel of the image"
        raise OptionError(msg)
    return tuple(_channel(entry, f"channel {i} of {path}") for i, entry in enumerate(channels))


def read_foreground(path: str) -> BoundingBox | None:
    """Return the box ``foreground`` of a statistics file; ``None`` if the file has none.

    The box is the smallest that contains all voxels other than 0, in voxels of the image.

    Raises:
        OptionError: the file is not a statistics file, or ``foreground`` is not a box such as
            ``3-128_0-512_40-480``.
    """
    text = _read_document(path).get("foreground")
    if text is None:
        return None
    try:
        box = BoundingBox.parse(text) if isinstance(text, str) else None
    except GeometryError:
        box = None
    if box is None or box.is_empty:
        msg = (
            f"'foreground' of {path} is {text!r}, but must be a box such as 3-128_0-512_40-480 "
            "(z, y and x, voxels); correct 'foreground', or leave it out"
        )
        raise OptionError(msg)
    return box


def _read_document(path: str) -> dict[str, Any]:
    try:
        found = parse_json(Path(path).read_bytes())
    except FileNotFoundError as error:
        msg = f"--normalize-statistics {path} does not exist (looked in {Path.cwd()})"
        if "://" in path:
            msg = (
                f"--normalize-statistics {path} is not a local file; copy the file, or if {path} "
                f"contains histograms, run chunkflow sum-statistics {path} --output statistics.json"
            )
        raise OptionError(msg) from error
    except IsADirectoryError as error:
        msg = (
            f"--normalize-statistics {path} is a folder; if the folder contains histograms, run "
            f"chunkflow sum-statistics {path} --output statistics.json, and give statistics.json"
        )
        raise OptionError(msg) from error
    except (OSError, ValueError) as error:
        msg = f"--normalize-statistics {path} is not a JSON file: {error}"
        raise OptionError(msg) from error
    if not isinstance(found, dict) or found.get("version") != VERSION:
        version = found.get("version") if isinstance(found, dict) else None
        msg = (
            f"--normalize-statistics {path} has version {version}, but must have version "
            f"{VERSION}, "
            f'such as {{"version": {VERSION}, "channels": [{{"mean": 131.2, "std": 24.9}}]}}'
        )
        raise OptionError(msg)
    _check_keys(found, ("version", "channels", "foreground"), path)
    return found


def _channel(entry: Any, where: str) -> ChannelStatistics:
    if not isinstance(entry, dict):
        msg = f"{where} is {entry!r}; an entry must be an object with {', '.join(_CHANNEL_KEYS)}"
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
            msg = (
                f"{where} has the percentile {key!r}; percentiles must be numbers from 0 to 100, "
                "each given once"
            )
            raise OptionError(msg)
        values[percentile] = _number(value, f"percentile {key} of {where}")
    mean, std = (
        _number(entry[key], f"{key} of {where}") if key in entry else None
        for key in ("mean", "std")
    )
    return ChannelStatistics(mean, std, values)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        msg = f"{what} is {value!r}, but must be a finite number"
        raise OptionError(msg)
    return float(value)


def _check_keys(found: dict[str, Any], known: tuple[str, ...], where: str) -> None:
    for key in found:
        if key not in known:
            msg = f"{where} has an unknown key {key!r}; use only {', '.join(known)}"
            raise OptionError(msg)


def statistics_of(
    chunks: Iterable[NDArray[Any]],
    percentiles: Iterable[float] = ALL_PERCENTILES,
) -> dict[str, Any]:
    """Return the statistics of a dataset, in the form of a statistics file.

    Voxels are counted by value, so the result is exact. How the dataset is divided into *chunks*
    makes no difference.

    Args:
        chunks: arrays (c, z, y, x) or (z, y, x) that together contain each voxel of the dataset
            once; integers of 8 or 16 bits, all of one dtype and number of channels.
        percentiles: percentiles to compute, by linear interpolation as in `numpy.percentile`.

    Raises:
        ChunkError: the dtype is not an integer of 8 or 16 bits, chunks differ in dtype or channels,
            or there are no voxels.
    """
    total: Histogram | None = None
    first: tuple[np.dtype[Any], int] | None = None
    for chunk in chunks:
        array = chunk[None] if chunk.ndim == 3 else chunk
        if array.dtype.kind not in "iu" or array.dtype.itemsize > 2:
            msg = (
                f"voxels of {array.dtype} cannot be counted by value; convert the voxels to uint16"
            )
            raise ChunkError(msg)
        first = first or (array.dtype, len(array))
        if (array.dtype, len(array)) != first:
            msg = (
                f"a chunk has {len(array)} channels of {array.dtype}, but the first chunk has "
                f"{first[1]} channels of {first[0]}; give chunks of one dataset"
            )
            raise ChunkError(msg)
        counted = histogram_of(array, per_section=False)
        total = counted if total is None else total + counted
    if total is None or not total.counts.any():
        msg = "the chunks contain no voxels, so there are no statistics; give non-empty chunks"
        raise ChunkError(msg)
    return {"version": VERSION, "channels": total.statistics(percentiles)}

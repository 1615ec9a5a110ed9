r"""Map a range of intensities linearly to another.

Example: chunkflow load-h5 --file-name raw16.h5 \
  rescale-intensity --low 300 --high 9000 --dtype uint8

Intensities below --low or above --high are clipped. Without these options, the darkest and the
brightest voxel of each chunk are used, so the result differs from chunk to chunk. If a volume is
divided into chunks, give both options, such as two percentiles that compute-statistics reports.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.pipeline.operator import transform

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk, Voxels

DTYPES = ("uint8", "uint16", "float32")


def rescale_intensity(
    chunk: Chunk,
    low: float | None = None,
    high: float | None = None,
    out_low: float = 0,
    out_high: float = 255,
    dtype: str | None = None,
) -> Chunk:
    """Return *chunk* with [low, high] mapped linearly to [out_low, out_high], and clipped.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype.
        low: intensity to map to *out_low* (default: the darkest voxel of the chunk).
        high: intensity to map to *out_high* (default: the brightest voxel of the chunk).
        out_low: smallest intensity of the result.
        out_high: largest intensity of the result.
        dtype: type of the result (default: type of the chunk); integers are rounded half to even.

    Returns:
        A chunk of the same shape. If all voxels are equal, and neither *low* nor *high* is given,
        all voxels of the result are *out_low*.

    Raises:
        OptionError: *low* is not below *high*, or *out_low* is not below *out_high*.
        ChunkError: the range of the result does not fit into its type; a voxel is NaN; or a voxel
            is infinite, but *low* and *high* are not both given.
    """
    import numpy as np

    from chunkflow_py.filters.contrast import rescaled

    _check("--low", low, "--high", high)
    _check("--out-low", out_low, "--out-high", out_high)
    kind = np.dtype(dtype or chunk.dtype)
    if kind.kind == "b" or (
        kind.kind in "iu" and not np.iinfo(kind).min <= out_low < out_high <= np.iinfo(kind).max
    ):
        msg = (
            f"the result would have intensities from {out_low:g} to {out_high:g}, which do not fit "
            f"into {kind}, the type of the result for chunk {chunk.bbox}; give another --dtype, or "
            "another --out-low and --out-high"
        )
        raise ChunkError(msg)
    darkest, brightest = (chunk.array.min(), chunk.array.max()) if chunk.array.size else (0, 0)
    first = float(darkest) if low is None else low
    last = float(brightest) if high is None else high
    # The extremes are NaN if a voxel is.
    if np.isnan(darkest) or not np.isfinite([first, last]).all():
        msg = (
            f"chunk {chunk.bbox} has intensities from {darkest:g} to {brightest:g}, but the range "
            "must be finite; remove NaN from the input, and if voxels are infinite, give --low and "
            "--high"
        )
        raise ChunkError(msg)
    if not first < last:  # all voxels are equal, or beyond the one limit that is given
        step = max(1.0, abs(first if high is None else last) * 1e-6)  # large enough for float32
        first, last = (first, first + step) if high is None else (last - step, last)
    array = rescaled(chunk.array, (first, last), (out_low, out_high), kind)
    return chunk.with_array(array)


def _check(low_name: str, low: float | None, high_name: str, high: float | None) -> None:
    if low is not None and high is not None and not low < high:
        msg = f"{low_name} {low:g} must be below {high_name} {high:g}"
        raise OptionError(msg)


@dataclass
class Rescaler(OperatorBase):
    """Rescales the chunk of every task.

    Attributes:
        options: keyword arguments of `rescale_intensity`.
    """

    options: dict[str, Any]

    @property
    @hook
    def cut_remedy(self) -> str | None:
        """Advice to log if the range is taken from each chunk; ``None`` if the range is given."""
        return None if self.is_local else "give --low and --high"

    @property
    @hook
    def is_local(self) -> bool:
        """Whether both limits are given, so that the result is the same for all chunk sizes."""
        return None not in (self.options["low"], self.options["high"])

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the dtype, channels and kind of the result; *read* describes the input."""
        return read._replace(dtype=self.options["dtype"] or read.dtype)

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return the rescaled chunk."""
        return rescale_intensity(chunk, **self.options)


# fmt: off
@transform
@click.option("--low", type=float, help="Intensity to map to --out-low.  "
                                        "[default: the darkest voxel of each chunk]")
@click.option("--high", type=float, help="Intensity to map to --out-high.  "
                                         "[default: the brightest voxel of each chunk]")
@click.option("--out-low", type=float, default=0, show_default=True,
              help="Smallest intensity of the result.")
@click.option("--out-high", type=float, default=255, show_default=True,
              help="Largest intensity of the result.")
@click.option("--dtype", "-d", type=click.Choice(DTYPES),
              help="Type of the result.  [default: the type of the chunk]")
def command(**options: Any) -> Rescaler:
    """Check that each lower limit is below its upper limit, and return the operator."""
    # fmt: on
    _check("--low", options["low"], "--high", options["high"])
    _check("--out-low", options["out_low"], "--out-high", options["out_high"])
    return Rescaler(options)

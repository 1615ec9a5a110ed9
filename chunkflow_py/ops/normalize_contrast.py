"""Clip the tails of the histogram of each section and stretch the rest.

Example: chunkflow load-h5 -f raw.h5 normalize-contrast --lower-clip-fraction 0.01 save-h5 -f n.h5
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.stages import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from chunkflow_py.chunk import Chunk


@makes(lambda read: read)
def normalize_contrast(
    chunk: Chunk,
    lower_clip_fraction: float = 0.01,
    upper_clip_fraction: float = 0.01,
    minval: int = 1,
    maxval: int = 255,
    *,
    per_section: bool = True,
) -> Chunk:
    """Return *chunk* with the grey values between two quantiles stretched to [minval, maxval].

    ```
    count   .:|||||||:.          at most lower_clip_fraction of the voxels are darker than lower,
            lower   upper        at most upper_clip_fraction are brighter than upper
    ```

    Voxels of value 0 hold no image (they lie outside of the tissue) and are not counted, but like
    all others they are mapped to [minval, maxval]. A section of one grey value is only clipped.

    Args:
        chunk: (z, y, x) or (c, z, y, x), uint8 or uint16; each channel has its own histograms.
        lower_clip_fraction: of the counted voxels, in [0, 1).
        upper_clip_fraction: of the counted voxels, in [0, 1).
        minval: what the lower grey value becomes.
        maxval: what the upper grey value becomes.
        per_section: a histogram a section (z), or one for the whole chunk.

    Returns:
        A chunk of the same shape and dtype.

    Raises:
        ChunkError: the dtype is another one, or cannot hold *maxval*.
    """
    import numpy as np

    if chunk.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        msg = f"normalize-contrast takes uint8 or uint16, but chunk {chunk.bbox} is {chunk.dtype}"
        raise ChunkError(msg)
    levels = int(np.iinfo(chunk.dtype).max) + 1
    if maxval >= levels:
        msg = f"--maxval {maxval} does not fit into {chunk.dtype}; the largest is {levels - 1}"
        raise ChunkError(msg)
    result = np.empty(chunk.shape, chunk.dtype)
    sources = chunk.array.reshape(-1, *chunk.size)
    for source, target in zip(sources, result.reshape(-1, *chunk.size), strict=True):
        counts = np.stack([np.bincount(section.ravel(), minlength=levels) for section in source])
        if not per_section:
            counts[:] = counts.sum(axis=0)
        for z, section in enumerate(source):
            lower, upper = _limits(counts[z], lower_clip_fraction, upper_clip_fraction)
            grey = np.arange(levels, dtype=np.float64)
            if lower < upper:
                grey = minval + (grey - lower) * ((maxval - minval) / (upper - lower))
            table = np.rint(np.clip(grey, minval, maxval)).astype(chunk.dtype)
            np.take(table, section, out=target[z], mode="clip")
    return chunk.with_array(result)


def _limits(counts: NDArray[Any], lower_fraction: float, upper_fraction: float) -> tuple[int, int]:
    import numpy as np

    counted = np.cumsum(np.concatenate([[0], counts[1:]]))
    total = int(counted[-1])
    if total == 0:
        return 0, 0
    lower = int(np.searchsorted(counted, lower_fraction * total, side="right"))
    upper = int(np.searchsorted(counted, (1 - upper_fraction) * total, side="left"))
    return lower, min(max(lower, upper), len(counts) - 1)


_FRACTION = click.FloatRange(0, 1, max_open=True)


@transform
@click.option(
    "--lower-clip-fraction",
    "-l",
    type=_FRACTION,
    default=0.01,
    show_default=True,
    help="Fraction of the darkest voxels to clip.",
)
@click.option(
    "--upper-clip-fraction",
    "-u",
    type=_FRACTION,
    default=0.01,
    show_default=True,
    help="Fraction of the brightest voxels to clip.",
)
@click.option("--minval", type=click.IntRange(min=0), default=1, show_default=True,
              help="Smallest grey value of the result.")  # fmt: skip
@click.option("--maxval", type=click.IntRange(min=1), default=255, show_default=True,
              help="Largest grey value of the result.")  # fmt: skip
@click.option("--per-section/--whole", default=True, show_default=True,
              help="A histogram for each section, or one for the whole chunk.")  # fmt: skip
def command(**options: Any) -> Callable[[Chunk], Chunk]:
    """Check that the fractions leave something to stretch, and that the range is one."""
    lower, upper = options["lower_clip_fraction"], options["upper_clip_fraction"]
    if lower + upper >= 1:
        msg = (
            f"--lower-clip-fraction {lower} and --upper-clip-fraction {upper} clip everything; "
            "together they must be below 1"
        )
        raise OptionError(msg)
    if options["minval"] >= options["maxval"]:
        msg = f"--minval {options['minval']} must be below --maxval {options['maxval']}"
        raise OptionError(msg)
    return partial(normalize_contrast, **options)

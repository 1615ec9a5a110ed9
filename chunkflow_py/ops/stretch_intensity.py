r"""Stretch intensities between two thresholds.

Example: chunkflow load-h5 --file-name raw.h5 stretch-intensity --min-threshold 40 \
  save-h5 --file-name bright.h5

Intensities up to --min-threshold become 0, and intensities from --max-threshold on become the
largest value of the dtype. The thresholds are the same for all chunks, so the result does not
depend on how a volume is divided into chunks.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.pipeline.operator import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk


@makes(lambda read: read, is_local=True)
def stretch_intensity(chunk: Chunk, min_threshold: int = 0, max_threshold: int = 256) -> Chunk:
    """Return *chunk* with intensities between two thresholds stretched to the range of its type.

    Args:
        chunk: (z, y, x) or (c, z, y, x), uint8 or uint16.
        min_threshold: this intensity and all lower intensities become 0.
        max_threshold: this intensity and all higher intensities become 255 (uint16: 65 535).

    Returns:
        A chunk of the same shape and dtype, with voxels rounded half to even.

    Raises:
        ChunkError: the dtype is neither uint8 nor uint16.
        OptionError: *min_threshold* is not below *max_threshold*, or is negative.
    """
    import numpy as np

    from chunkflow_py.filters.contrast import rescaled

    _check(min_threshold, max_threshold)
    if chunk.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        msg = (
            f"stretch-intensity needs uint8 or uint16, but chunk {chunk.bbox} is {chunk.dtype}; "
            "use rescale-intensity, which takes any type"
        )
        raise ChunkError(msg)
    span, largest = (min_threshold, max_threshold), float(np.iinfo(chunk.dtype).max)
    return chunk.with_array(rescaled(chunk.array, span, (0.0, largest), chunk.dtype))


def _check(low: int, high: int) -> None:
    if not 0 <= low < high:
        msg = f"--min-threshold {low} must be at least 0 and below --max-threshold {high}"
        raise OptionError(msg)


@transform
@click.option("--min-threshold", type=click.IntRange(min=0), default=0, show_default=True,
              help="Intensity that becomes 0; lower intensities become 0 as well.")  # fmt: skip
@click.option("--max-threshold", type=click.IntRange(min=1), default=256, show_default=True,
              help="Intensity that becomes the largest value of the dtype; higher intensities "
                   "become this value as well.")  # fmt: skip
def command(**options: Any) -> Callable[[Chunk], Chunk]:
    """Check that the thresholds are in order, and return the operator."""
    _check(options["min_threshold"], options["max_threshold"])
    return partial(stretch_intensity, **options)

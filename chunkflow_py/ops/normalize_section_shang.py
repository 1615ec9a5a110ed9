r"""Stretch each slice between its own extremes.

Example: chunkflow load-h5 --file-name raw.h5 normalize-section-shang --nominalmax 255 \
  save-h5 --file-name n.h5

The smallest intensity of a slice is assumed to mean blank voxels, and the largest intensity
saturated voxels. The slice is therefore stretched between the second smallest and the second
largest intensity. These extremes are computed from each chunk, so two chunks that contain parts of
the same slice differ in contrast. If a volume is divided into chunks, use normalize-contrast
--levels. The result is float32.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import with_hooks
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.pipeline.operator import makes, transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk


@with_hooks(cut_remedy="run compute-statistics on the volume, and use normalize-contrast --levels")
@makes(lambda read: read._replace(dtype="float32"))
def normalize_section_shang(
    chunk: Chunk,
    nominalmin: float | None = None,
    nominalmax: float | None = None,
    clipvalues: bool = False,
) -> Chunk:
    """Return *chunk* with each slice stretched to the range *nominalmin* to *nominalmax*.

    Args:
        chunk: (z, y, x) or (c, z, y, x), integers of at most 32 bits or floating point; each
            channel is stretched separately.
        nominalmin: result for the second smallest intensity of a slice (default: 0).
        nominalmax: result for the second largest intensity (default: the largest value of the
            dtype; 1 for floating point).
        clipvalues: clip the smallest intensity of each slice to *nominalmin*, and the largest to
            *nominalmax*. Without clipping, the results for these two intensities lie outside of the
            range.

    Returns:
        A chunk of the same shape, float32. A slice whose second smallest and second largest
        intensities do not differ is not stretched.

    Raises:
        OptionError: *nominalmin* is not below *nominalmax*.
        ChunkError: the voxels are booleans, or labels.
    """
    import numpy as np

    from chunkflow_py.filters.contrast import stretched_inside

    labels = chunk.kind == "segmentation" or (chunk.dtype.kind in "iu" and chunk.dtype.itemsize > 4)
    if labels or chunk.dtype.kind not in "iuf":
        msg = (
            f"normalize-section-shang needs intensities, but chunk {chunk.bbox} holds "
            f"{chunk.dtype} {'labels' if labels else 'voxels'}; load the image instead"
        )
        raise ChunkError(msg)
    largest = 1.0 if chunk.dtype.kind == "f" else float(np.iinfo(chunk.dtype).max)
    low = 0.0 if nominalmin is None else nominalmin
    high = largest if nominalmax is None else nominalmax
    _check(low, high)
    result = np.empty(chunk.shape, np.float32)
    sections = chunk.array.reshape(-1, *chunk.size[1:])
    for source, target in zip(sections, result.reshape(sections.shape), strict=True):
        stretched_inside(source, low, high, target)
    if clipvalues:
        np.clip(result, low, high, out=result)
    return chunk.with_array(result)


def _check(low: float, high: float) -> None:
    if not low < high:
        msg = f"--nominalmin {low:g} must be below --nominalmax {high:g}"
        raise OptionError(msg)


@transform
@click.option("--nominalmin", type=float,
              help="Result for a slice's second smallest intensity.  [default: 0]")  # fmt: skip
@click.option("--nominalmax", type=float,
              help="Result for a slice's second largest intensity.  [default: the largest value "
                   "of the dtype; 1 for floats]")  # fmt: skip
@click.option("--clipvalues", type=bool, default=False, show_default=True,
              help="Clip the result to the range from --nominalmin to --nominalmax.")  # fmt: skip
def command(**options: Any) -> Callable[[Chunk], Chunk]:
    """Check that --nominalmin is below --nominalmax, and return the operator."""
    if None not in (options["nominalmin"], options["nominalmax"]):
        _check(options["nominalmin"], options["nominalmax"])
    return partial(normalize_section_shang, **options)

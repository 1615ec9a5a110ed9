r"""Clip histogram tails of slices; stretch the rest.

Example: chunkflow load-h5 --file-name raw.h5 normalize-contrast --lower-clip-fraction 0.01 \
  save-h5 --file-name n.h5

Without --levels, the histograms are computed from each chunk, so two chunks that contain parts of
the same slice differ in contrast. If a volume is divided into chunks, first run compute-statistics
--statistics-path URL, and then normalize-contrast --levels URL. The histograms of whole slices do
not depend on how the volume is divided. --levels also accepts the URL of the luminance levels that
igneous computes (LAYER/levels/MIP).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook, hook_value
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.pipeline.operator import transform

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.filters.section_levels import SectionLevels


def normalize_contrast(
    chunk: Chunk,
    lower_clip_fraction: float = 0.01,
    upper_clip_fraction: float = 0.01,
    minval: int = 1,
    maxval: int = 255,
    *,
    per_section: bool = True,
    levels: SectionLevels | str | None = None,
) -> Chunk:
    """Return *chunk* with the intensities between two quantiles stretched to [0, maxval].

    ```
    count   .:|||||||:.
            lower   upper

    result = clip((value - lower) * maxval / (upper - lower), minval, maxval)
    ```

    *lower* is the largest intensity L for which the fraction of voxels with intensities from 1 to L
    is at most *lower_clip_fraction*. *upper* is the largest intensity U for which the fraction of
    voxels with intensities from 1 to U is at most 1 - *upper_clip_fraction*. Voxels of value 0 are
    assumed to lie outside of the tissue and are not counted. These limits and the formula are as in
    igneous and chunkflow 1.x. A slice in which *lower* equals *upper*, such as a slice of zeros, is
    not changed.

    Args:
        chunk: (z, y, x) or (c, z, y, x), uint8 or uint16; each channel has its own histograms.
        lower_clip_fraction: fraction of the darkest counted voxels to clip, in [0, 1).
        upper_clip_fraction: fraction of the brightest counted voxels to clip, in [0, 1).
        minval: lower limit of the result.
        maxval: upper limit of the result; intensity *upper* is mapped to this value.
        per_section: use one histogram per slice (z), instead of one for the whole chunk or volume.
        levels: histograms of whole slices, or their URL (default: the histograms of the chunk). If
            *levels* is a `SectionLevels`, its clip fractions replace *lower_clip_fraction* and
            *upper_clip_fraction*.

    Returns:
        A chunk of the same shape and dtype.

    Raises:
        ChunkError: the dtype is neither uint8 nor uint16, or cannot hold *maxval*.
        VolumeError: a slice has no histogram among *levels*.
    """
    import numpy as np

    from chunkflow_py.core.histogram import value_counts
    from chunkflow_py.filters.contrast import clip_limits, stretched
    from chunkflow_py.filters.section_levels import SectionLevels

    if chunk.dtype not in (np.dtype(np.uint8), np.dtype(np.uint16)):
        msg = (
            f"normalize-contrast needs uint8 or uint16, but chunk {chunk.bbox} is {chunk.dtype}; "
            "put rescale-intensity --dtype uint8 in front of normalize-contrast"
        )
        raise ChunkError(msg)
    if maxval > (largest := np.iinfo(chunk.dtype).max):
        msg = (
            f"--maxval {maxval} does not fit into {chunk.dtype}, the type of chunk {chunk.bbox}; "
            f"give at most {largest}"
        )
        raise ChunkError(msg)
    fractions = (lower_clip_fraction, upper_clip_fraction)
    array = chunk.array.reshape(chunk.channels, *chunk.size)
    if levels is None:
        counts = value_counts(array, per_section=per_section)
        limits = [[clip_limits(row, *fractions) for row in rows] for rows in counts]
    else:
        if isinstance(levels, str):
            levels = SectionLevels(levels, *fractions, per_section)
        limits = levels.limits_of(chunk)
    return chunk.with_array(stretched(array, limits, minval, maxval).reshape(chunk.shape))


@dataclass
class ContrastNormalizer(OperatorBase):
    """Normalises the contrast of every task's chunk.

    Attributes:
        options: arguments of `normalize_contrast` except the levels.
        levels: histograms of whole slices, for all tasks. With ``None``, the histograms are
            computed from each chunk.
        cut_remedy: advice to log if the result depends on how the volume is divided, else ``None``.
    """

    options: dict[str, Any]
    levels: SectionLevels | None = None
    cut_remedy: str | None = field(
        default="run compute-statistics on the volume, and give the URL of its output as --levels",
        metadata=HOOK,
    )
    keeps_voxels: ClassVar[bool] = hook_value(True)

    @property
    @hook
    def is_local(self) -> bool:
        """Whether histograms of whole slices are used, so that the chunk size has no effect."""
        return self.levels is not None

    @property
    @hook
    def origin(self) -> str | None:
        """URL of the histograms of whole slices; ``None`` if histograms of the chunk are used."""
        return None if self.levels is None else self.levels.place

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return the chunk with normalised contrast."""
        return normalize_contrast(chunk, levels=self.levels, **self.options)


_FRACTION = click.FloatRange(0, 1, max_open=True)


# fmt: off
@transform
@click.option("--lower-clip-fraction", "-l", type=_FRACTION, default=0.01, show_default=True,
              help="Fraction of the voxels to clip at the dark end.")
@click.option("--upper-clip-fraction", "-u", type=_FRACTION, default=0.01, show_default=True,
              help="Fraction of the voxels to clip at the bright end.")
@click.option("--minval", type=click.IntRange(min=0), default=1, show_default=True,
              help="Smallest intensity of the result.")
@click.option("--maxval", type=click.IntRange(min=1), default=255, show_default=True,
              help="Largest intensity of the result.")
@click.option("--per-section/--whole", default=True, show_default=True,
              help="Use one histogram per slice, or one for the whole chunk (with --levels: the "
                   "whole volume).")
@click.option("--levels", "--levels-path", metavar="URL",
              help="Histograms of whole slices: those that compute-statistics stored, or luminance "
                   "levels of igneous.")
@click.option("--min-coverage", type=click.FloatRange(0, 1), default=1.0, show_default=True,
              help="With --levels: stop with an error if the histogram of a slice counts less than "
                   "this fraction of the voxels of the slice.")
def command(levels: str | None, min_coverage: float, **options: Any) -> ContrastNormalizer:
    """Check the fractions and the range of the result, and return the operator."""
    # fmt: on
    lower, upper = options["lower_clip_fraction"], options["upper_clip_fraction"]
    if lower + upper >= 1:
        msg = (
            f"--lower-clip-fraction {lower} and --upper-clip-fraction {upper} clip all voxels; "
            "choose fractions whose sum is below 1"
        )
        raise OptionError(msg)
    if options["minval"] >= options["maxval"]:
        msg = f"--minval {options['minval']} must be below --maxval {options['maxval']}"
        raise OptionError(msg)
    if levels is None:
        return ContrastNormalizer(options)
    from chunkflow_py.filters.section_levels import SectionLevels

    section_levels = SectionLevels(levels, lower, upper, options["per_section"], min_coverage)
    return ContrastNormalizer(options, section_levels, None)

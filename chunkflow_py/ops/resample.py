r"""Change the voxel size of images and labels.

Example: chunkflow load-h5 --file-name em.h5 --voxel-size 8 8 8 \
  resample --voxel-size 12 12 12 save-h5 --file-name coarse.h5

Voxels are counted from the origin of the volume: voxel k of the result covers k·s to (k+1)·s, where
s is the new voxel size. A task computes the new voxels whose centres lie in its box. Along an axis
on which a new voxel is a whole number of old voxels long, a task computes all new voxels that lie
at least partly in its box, so neighbouring tasks may compute the same voxel. With
--expand-margin-size auto, the result does not depend on the task grid. For integer factors,
downsample is faster, and gives all combined voxels equal weights.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.geometry import Scale
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import FractionType, floats_option, input_option, output_option
from chunkflow_py.pipeline.resampler import Resampler

if TYPE_CHECKING:
    from fractions import Fraction


@operator("compute")
@input_option()
@output_option()
@floats_option("--voxel-size", help="Voxel size of the result, zyx, in nm or as 0.5um.")
@click.option(
    "--factor",
    "-f",
    nargs=3,
    type=FractionType(),
    metavar="Z Y X",
    help="Voxel size of the result divided by that of the input, zyx, such as 3/2 or 0.5; instead "
    "of --voxel-size.",
)
@click.option(
    "--method",
    type=click.Choice(["auto", "linear", "cubic", "nearest", "mode"]),
    default="auto",
    show_default=True,
    help="linear, cubic: interpolate, and smooth along axes on which voxels become larger. "
    "nearest: take the input voxel at the centre of the new voxel. mode: take the label that "
    "covers most of the new voxel. auto: mode for labels, else linear.",
)
def command(
    input_name: str,
    output_name: str,
    voxel_size: tuple[float, float, float] | None,
    factor: tuple[Fraction, ...] | None,
    method: Any,
) -> Resampler:
    """Return the operator for these options."""
    scale = None if factor is None else Scale.of(factor)
    return Resampler(voxel_size, scale, method, input_name, output_name)

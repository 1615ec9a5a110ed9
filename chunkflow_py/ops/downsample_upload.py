r"""Write the coarser levels of a chunk into a volume.

Example: chunkflow generate-tasks --volume-path em --chunk-size 256 256 256 \
  load-volume --volume-path em downsample-upload --volume-path em

Each level is computed from the next finer level. If a level is stored in shards, or if two tasks
share one of its blocks, the pipeline ends with an error before the first task. Make such a level
with downsample-volume when all tasks are done.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.saving_options import announced
from chunkflow_py.ops.options.volume_options import (
    access_from,
    downsampling_mode_option,
    fill_missing_option,
    requester_pays_option,
)
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, mip_option, zyx_option

if TYPE_CHECKING:
    from chunkflow_py.volume.pyramid import PyramidOutput


@operator("write")
@input_option()
@click.option(
    "--volume-path", "-v", help="Volume to write the levels to, such as zarr://em.zarr.  [required]"
)
@zyx_option(
    "--factor",
    "-f",
    minimum=1,
    default=(2, 2, 2),
    show_default=True,
    help="Downsampling factor between levels, zyx.",
)
@mip_option(
    "--chunk-mip", "-c", help="Level of the chunk; 0 is the finest.  [default: the global --mip]"
)
@click.option(
    "--start-mip",
    "-s",
    type=click.IntRange(min=1),
    help="First level to write.  [default: the level after --chunk-mip]",
)
@click.option(
    "--stop-mip",
    "-p",
    type=click.IntRange(min=2),
    default=5,
    show_default=True,
    help="Level after the last level to write.",
)
@fill_missing_option()
@downsampling_mode_option()
@requester_pays_option()
def command(
    volume_path: str | None, chunk_mip: int, start_mip: int | None, **options: Any
) -> PyramidOutput:
    """Check that --volume-path is given; return the operator that writes the coarser levels."""
    from chunkflow_py.volume.protocol import VolumeOptions
    from chunkflow_py.volume.pyramid import PyramidOutput

    if volume_path is None:
        msg = "downsample-upload needs a volume to write the levels to; give --volume-path"
        raise OptionError(msg)
    return PyramidOutput(
        volume_path,
        options["input_name"],
        options["factor"],
        chunk_mip,
        chunk_mip + 1 if start_mip is None else start_mip,
        options["stop_mip"],
        options["mode"],
        VolumeOptions(fill_missing=options["fill_missing"], access=access_from(options)),
        announced(),
    )

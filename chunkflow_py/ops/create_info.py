r"""Create the info file of a precomputed volume.

Example: chunkflow create-info --volume-path file://em --volume-size 64 512 512 --data-type uint8 \
  --voxel-size 40 4 4 --block-size 64 64 64

If the pipeline has made a chunk, the domain, voxel size, data type and number of channels default
to those of the chunk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.saving_options import (
    PRECOMPUTED_DTYPES,
    PRECOMPUTED_ENCODINGS,
    block_size_option,
    creating_options,
    creator_from,
    encoding_option,
)
from chunkflow_py.ops.options.volume_options import layer_type_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.terminal import option_headings

if TYPE_CHECKING:
    from chunkflow_py.volume.new_volume import VolumeCreator


@operator("write")
@option_headings(
    {
        "Geometry": ("voxel_size", "voxel_offset", "volume_size", "factor", "max_mip"),
        "Voxels": ("channel_num", "layer_type", "data_type"),
        "Storage": ("encoding", "block_size"),
    }
)
@click.option(
    "--volume-path",
    "-v",
    default="file://.",
    show_default=True,
    help="Volume to create, such as file://em or gs://bucket/em.",
)
@click.option(
    "--channel-num",
    "-c",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of channels; if given, it overrides the number of the pipeline's chunk.",
)
@layer_type_option(short="-t", default=None)
@click.option("--data-type", "-d", type=click.Choice(PRECOMPUTED_DTYPES),
              help="Data type of the voxels.")  # fmt: skip
@encoding_option("the volume", "-e", choices=PRECOMPUTED_ENCODINGS, default="raw")
@block_size_option("the volume", "--block-size", "-b", default=None)
@creating_options()
@click.pass_context
def command(
    ctx: click.Context, /, channel_num: int, layer_type: str | None, **options: Any
) -> VolumeCreator:
    """Return the operator that creates the volume."""
    given = ctx.get_parameter_source("channel_num") is not click.core.ParameterSource.DEFAULT
    return creator_from(
        options,
        format="precomputed",
        channel_num=channel_num if given else None,
        creating={"layer_type": layer_type},
    )

r"""Create an empty volume: precomputed, zarr or HDF5.

Example: chunkflow create-volume --volume-path zarr://out.zarr --volume-size 64 512 512 \
  --data-type uint8 --voxel-size 40 4 4 --block-size 64 64 64

If an option such as --voxel-size is not given, its value is copied from the volume that --like
names. Without --like, the value is copied from the chunk of an earlier operator, if the pipeline
has made a chunk. --sharded --task-memory 8GB chooses the largest shards that a task can write
within 8 GB of memory. It also prints a generate-tasks command with one task per shard; see
docs/volumes.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.saving_options import (
    block_size_option,
    check_format,
    check_shard,
    creating_options,
    creator_from,
    encoding_option,
    shard_size_option,
)
from chunkflow_py.ops.options.volume_options import opening_from, volume_path_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import NAMES
from chunkflow_py.pipeline.terminal import echo, option_headings

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.volume.new_volume import VolumeCreator

KINDS = ("image", "segmentation", "probability", "affinity", "logit", "vector", "embedding")
_ZARR_ONLY = ("channel_names", "ome_version", "order")


@operator("write")
@option_headings(
    {
        "Properties to copy": ("like", "like_mip", "use_https", "input_name"),
        "Geometry": ("voxel_size", "voxel_offset", "volume_size", "factor", "max_mip", "times"),
        "Voxels": ("channel_num", "kind", "data_type"),
        "Storage": ("encoding", "block_size", "shard_size", "sharded", "task_memory"),
        "Zarr": ("channel_names", "ome_version", "order", "plain"),
    }
)
@volume_path_option("Volume to create, such as zarr://out.zarr or precomputed://s3://bucket/em.")
@click.option("--like", metavar="URL",
              help="Volume to copy properties from, such as the voxel size; options override "
                   "these properties.")  # fmt: skip
@click.option("--like-mip", type=click.IntRange(min=0), default=0, show_default=True,
              help="Resolution level of --like to copy from; 0 is the finest.")  # fmt: skip
@click.option("--use-https/--use-credential", default=False, show_default=True,
              help="Read --like over HTTPS without credentials, or use credentials.")  # fmt: skip
@click.option("--channel-num", "-c", type=click.IntRange(min=1), help="Number of channels.")
@click.option("--kind", "--layer-type", "-t", type=click.Choice(KINDS),
              help="Meaning of the voxels.")  # fmt: skip
@click.option("--data-type", "-d", help="Type of the voxels, such as uint8 or float32.")
@encoding_option("the volume", "-e")
@block_size_option("the volume", "--block-size", "-b", default="up to 64")
@shard_size_option("the volume")
@click.option("--sharded", is_flag=True,
              help="Choose the largest shards that a task can write within "
                   "--task-memory.")  # fmt: skip
@click.option("--task-memory", help="Memory limit of a task, such as 8GB; needs --sharded.")
@click.option("--times", type=click.IntRange(min=1), help="Number of time points.")
@click.option("--channel-names", type=NAMES, help="Names of the channels (OME-Zarr).")
@click.option("--ome-version", type=click.Choice(["0.4", "0.5", "0.6"]),
              help="OME-Zarr version; 0.4 is zarr v2, without shards.  [default: 0.5]")  # fmt: skip
@click.option("--order", type=click.Choice(["xyz", "zyx"]),
              help="Order of the axes of a zarr array.  [default: zyx]")  # fmt: skip
@click.option("--plain", is_flag=True, help="Make a bare zarr array instead of an OME-Zarr image.")
@creating_options(like=True)
def command(
    sharded: bool,
    task_memory: str | None,
    shard_size: Zyx | None,
    data_type: str | None,
    plain: bool,
    use_https: bool,
    **options: Any,
) -> VolumeCreator:
    """Check the sizes and the dtype, and return the operator that creates the volume."""
    from chunkflow_py.volume.engine.block_sizes import parsed_bytes
    from chunkflow_py.volume.new_volume import checked_dtype

    if sharded == (task_memory is None) or (sharded and shard_size is not None):
        msg = (
            "shards are chosen either by --shard-size alone, or by --sharded and --task-memory "
            "together; give, for example, --sharded --task-memory 8GB"
        )
        raise OptionError(msg)
    check_shard(shard_size, options["block_size"])
    checked_dtype(data_type, "--data-type")
    creating = {key: value for key in _ZARR_ONLY if (value := options.pop(key)) is not None}
    if plain:
        creating["plain"] = True
    check_format(options["volume_path"], "zarr", creating)
    return creator_from(
        options,
        shard_size=shard_size,
        task_memory=None if task_memory is None else parsed_bytes(task_memory),
        data_type=data_type,
        like_opening=opening_from({**options, "use_https": use_https}),
        creating=creating,
        tell=echo,
    )

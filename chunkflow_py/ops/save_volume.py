"""Write a chunk into a volume of any format.

Example: chunkflow create-chunk --size 64 128 128 save-volume --volume-path zarr://out.zarr

A volume that does not exist is created; its address must then begin with the format
(precomputed://, zarr://). By default, a new volume has the bounds of the volume that the pipeline
reads, and block boundaries that match task boundaries; see create-volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.saving_options import (
    output_from,
    parallel_option,
    saving_options,
)
from chunkflow_py.ops.options.volume_options import volume_path_option
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.volume.output import VolumeOutput


@operator("write")
@volume_path_option("Volume, such as zarr://out.zarr or precomputed://s3://bucket/em.")
@saving_options("--block-size", "-b")
@parallel_option()
@click.option("--dtype", help="Type to convert the voxels to.  [default: type of the chunk]")
def command(volume_path: str, dtype: str | None, **options: Any) -> VolumeOutput:
    """Return the operator that writes the chunks of tasks to the volume."""
    from chunkflow_py.volume.new_volume import checked_dtype

    return output_from(volume_path, options, dtype=checked_dtype(dtype, "--dtype"))

r"""Load a part of a precomputed, zarr, N5 or HDF5 volume.

Example: chunkflow load-volume --volume-path s3://bucket/em.zarr --chunk-start 0 0 0 \
  --chunk-size 64 512 512 save-h5 --file-name cut.h5

The part is given by --chunk-start, --chunk-stop and --chunk-size; otherwise it is the task's box
with its margin, or the whole volume if there are no tasks. The format is
detected, or given by precomputed://, zarr://, n5:// or h5://FILE:DATASET in front of a path or an
address (file://, s3://, gs://, https://).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkflow_py.ops.options.volume_options import loader_from, reading_options, volume_path_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import floats_option

if TYPE_CHECKING:
    from chunkflow_py.volume.loader import VolumeLoader


@operator("read")
@volume_path_option("Volume, such as em.zarr, s3://bucket/em or h5://em.h5:main.")
@reading_options()
@floats_option("--voxel-size", help="Edge lengths of a voxel, nm, zyx, overriding the volume's.")
def command(
    volume_path: str, voxel_size: tuple[float, float, float] | None, **options: Any
) -> VolumeLoader:
    """Return a loader of the volume."""
    return loader_from(volume_path, options, voxel_size_nm=voxel_size)

r"""Load a part of a precomputed, zarr, N5 or HDF5 volume.

Example: chunkflow load-volume --volume-path s3://bucket/em.zarr --chunk-start 0 0 0 \
  --chunk-size 64 512 512 save-h5 --file-name cut.h5

--chunk-start, --chunk-stop and --chunk-size select the part to load. The default is the task's box
with its margin, or the whole volume if there are no tasks. The format is detected, unless
--volume-path begins with precomputed://, zarr:// or n5://, or has the form h5://FILE:DATASET. After
such a prefix, give a path or an address (file://, s3://, gs://, https://).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkflow_py.ops.options.volume_options import (
    loader_from,
    reading_options,
    volume_path_option,
    voxel_size_option,
)
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.volume.loader import VolumeLoader


@operator("read")
@volume_path_option("Volume, such as em.zarr, s3://bucket/em or h5://em.h5:main.")
@reading_options()
@voxel_size_option(instead_of="the volume's")
def command(
    volume_path: str, voxel_size: tuple[float, float, float] | None, **options: Any
) -> VolumeLoader:
    """Return the operator that loads the volume."""
    return loader_from(volume_path, options, voxel_size_nm=voxel_size)

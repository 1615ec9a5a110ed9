"""Write a chunk into a precomputed volume.

Example: chunkflow create-chunk --size 64 128 128 save-precomputed --volume-path file://out

A volume that does not exist is created. By default, the new volume has the bounds of the volume
that the pipeline reads, and block boundaries that match task boundaries; see create-info.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkflow_py.ops.options.saving_options import (
    PRECOMPUTED_ENCODINGS,
    output_from,
    parallel_option,
    saving_options,
)
from chunkflow_py.ops.options.volume_options import volume_path_option
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.volume.output import VolumeOutput


@operator("write")
@volume_path_option("Volume, such as file://out or gs://bucket/em.")
@saving_options("--block-size", encodings=PRECOMPUTED_ENCODINGS, encoding="raw")
@parallel_option()
def command(volume_path: str, **options: Any) -> VolumeOutput:
    """Return the operator that writes the chunks of tasks to the volume."""
    return output_from(volume_path, options, format="precomputed")

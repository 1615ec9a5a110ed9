"""Load a part of a Neuroglancer precomputed volume.

Example: chunkflow load-precomputed -v file://em -s 0 0 0 -z 64 512 512 save-h5 -f cut.h5

The part is what --chunk-start, --chunk-stop and --chunk-size say, else the task's box with its
margin, else the whole volume.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkflow_py.ops.options.volume_options import loader_from, reading_options, volume_path_option
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.volume.loader import VolumeLoader


@operator("read")
@volume_path_option("Volume, such as file://em or gs://bucket/em.")
@reading_options()
def command(volume_path: str, **options: Any) -> VolumeLoader:
    """Take the volume and the part of it."""
    return loader_from(volume_path, options, format="precomputed")

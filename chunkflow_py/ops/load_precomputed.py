r"""Load a part of a Neuroglancer precomputed volume.

Example: chunkflow load-precomputed --volume-path file://em --chunk-start 0 0 0 \
  --chunk-size 64 512 512 save-h5 --file-name cut.h5

--chunk-start, --chunk-stop and --chunk-size select the part to load. The default is the task's box
with its margin, or the whole volume if there are no tasks.
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
    """Return the operator that loads the volume."""
    return loader_from(volume_path, options, format="precomputed")

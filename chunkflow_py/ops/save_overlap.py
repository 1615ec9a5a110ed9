r"""Store labels where neighbouring tasks overlap.

Example: chunkflow generate-tasks --volume-path aff.zarr --chunk-size 64 256 256 \
  load-volume --volume-path aff.zarr --expand-margin-size 8 32 32 agglomerate --global-ids \
  save-overlap --overlap-path overlaps crop-margin --crop-bbox \
  save-volume --volume-path zarr://parts.zarr

link-labels compares the stored overlaps of neighbouring tasks. Each task must have labelled its box
and a margin around the box, with ids that are unique in the volume (--global-ids). At each boundary
with another task, save-overlap stores the labels on both sides, up to one margin away from the
boundary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import GeometryError
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access

SECTION = "segment"


@dataclass
class OverlapSaver(OperatorBase):
    """Stores the labels of each task in the regions that neighbouring tasks have also labelled.

    Attributes:
        path: URL of a folder or prefix to write the overlaps to.
        input_name: name of the labels.
        access: credentials and billing of requests to cloud storage.
    """

    path: str
    input_name: str = "chunk"
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def destination(self) -> str:
        """URL of the folder or prefix to which the overlaps are written."""
        from chunkflow_py.ops.options.label_options import place_of

        return place_of(self.path)

    def __call__(self, task: Task) -> Task:
        """Store the labels on both sides of each boundary with another task.

        Raises:
            GeometryError: the task has no box, or the chunk has no margin around the box.
            ChunkError: the chunk has several channels.
        """
        from chunkflow_py.segmentation.labels.components import single_channel
        from chunkflow_py.segmentation.labels.overlaps import save_overlaps
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access

        chunk = task.chunk(self.input_name)
        region = task.own_region
        if region is None:
            msg = (
                "save-overlap stores labels at task boundaries, but this task has no box; put "
                "generate-tasks in front of save-overlap"
            )
            raise GeometryError(msg)
        store = RecordingStore(open_store(self.destination, self.access or Access()))
        save_overlaps(store, chunk.with_array(single_channel(chunk.array)), region)
        task.written += store.written
        return task


@operator("write")
@input_option(help="Name of the labels.")
@click.option("--overlap-path", "-p", required=True, metavar="URL",
              help="Folder or prefix to write the overlaps to.")  # fmt: skip
@access_options()
def command(input_name: str, overlap_path: str, **options: Any) -> OverlapSaver:
    """Return the operator."""
    return OverlapSaver(overlap_path, input_name, access_from(options))

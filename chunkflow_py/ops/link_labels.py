"""Find labels of neighbouring tasks to be joined.

Example: chunkflow generate-tasks -v parts.zarr -c 64 256 256 link-labels -v parts.zarr -l links

The second phase of labels over a whole volume; solve-labels comes next. The tasks must be those
that made the labels, whose ids are unique in the volume (connected-components --global-ids).

With --volume-path, labels that touch across a face of a task are linked; only planes of voxels at
the faces are read. With --overlap-path, of what save-overlap stored: segments that are each other's
best partner where the tasks overlap, by --minimum-overlap. Each task stores one small object.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.label_options import connectivity_option, overlap_options, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import mip_option

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.segmentation.labels.components import Connectivity
    from chunkflow_py.store.store_protocol import Access

SECTION = "segment"


@dataclass
class LabelLinker(OperatorBase):
    """Stores the links of every task, as a linker of `segmentation.labels.linking` finds them."""

    links_path: str
    linker: Any
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def origins(self) -> tuple[str, ...]:
        """What is read."""
        places: tuple[str, ...] = self.linker.places
        return places

    @property
    @hook
    def destination(self) -> str:
        """Where links are stored."""
        return place_of(self.links_path)

    @hook
    def prepare(self, outline: Any) -> None:
        """See whether what is to be linked is there (the line: an `Outline`).

        Raises:
            VolumeNotFoundError: there is no volume of labels.
            ChunkError: its voxels are no labels.
            OptionError: tasks have no boxes.
        """
        if not outline.has_tasks:
            msg = (
                "link-labels looks at the faces of a task's box, but no task has one; put "
                "generate-tasks in front of it, as it was when the labels were made"
            )
            raise OptionError(msg)
        self.linker.prepare()

    def __call__(self, task: Task) -> Task:
        """Find and store the links of a task."""
        from chunkflow_py.segmentation.labels.links import encoded_links, link_key
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access

        if task.region is None:
            msg = "a task without a box has no faces; let generate-tasks make it"
            raise OptionError(msg)
        pairs = self.linker(task.region)
        store = RecordingStore(open_store(self.destination, self.access or Access()))
        store.put(link_key(task.region), encoded_links(pairs, self.linker.about))
        task.written += store.written
        return task


# fmt: off
@operator("write")
@click.option("--links-path", "-l", required=True, metavar="URL",
              help="Folder or prefix for the links.")
@click.option("--volume-path", "-v", help="Volume of the labels: link those that touch.")
@mip_option()
@connectivity_option()
@click.option("--values-path", metavar="URL",
              help="Volume that was labelled, where it was a segmentation and no mask: labels are "
                   "linked where its values are the same.")
@click.option("--overlap-path", "-p", metavar="URL",
              help="What save-overlap stored: link segments by the voxels they share.")
@overlap_options()
@access_options()
def command(
    links_path: str, volume_path: str | None, mip: int, connectivity: str,
    values_path: str | None, overlap_path: str | None, minimum_overlap: float,
    minimum_overlap_voxels: int, **options: Any,
) -> LabelLinker:
    """See which of the two ways it is."""
    # fmt: on
    from chunkflow_py.segmentation.labels.linking import OverlapLinker, TouchLinker
    from chunkflow_py.volume.protocol import VolumeOptions

    access = access_from(options)
    if (volume_path is None) == (overlap_path is None):
        msg = (
            "link-labels takes the labels of --volume-path, or what save-overlap stored at "
            "--overlap-path; give one of the two"
        )
        raise OptionError(msg)
    linker: Any = None
    if volume_path is not None:
        linker = TouchLinker(
            volume_path, mip, cast("Connectivity", int(connectivity)), values_path,
            VolumeOptions(access=access),
        )  # fmt: skip
    else:
        linker = OverlapLinker(
            str(overlap_path), minimum_overlap, minimum_overlap_voxels, access
        )
    return LabelLinker(links_path, linker, access)

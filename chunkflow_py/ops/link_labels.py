r"""Find the labels to join across task boundaries.

Example: chunkflow generate-tasks --volume-path parts.zarr --chunk-size 64 256 256 \
  link-labels --volume-path parts.zarr --links-path links

This is the second phase of labelling a whole volume; solve-labels comes next. The tasks
must have the same boxes as the tasks that made the labels, and the ids of the labels must be unique
in the volume (connected-components --global-ids).

With --volume-path, labels that touch across a task boundary are linked; only the planes of voxels
at the boundary are read. With --overlap-path, the overlaps that save-overlap stored are compared.
Only the region that both tasks have labelled is compared. A segment A of one task and a segment B
of the other task are linked if two conditions are met. First, no segment overlaps A more than B
does, and no segment overlaps B more than A does. Second, the mean of two fractions is at least
--minimum-overlap: the fraction of A that B covers, and the fraction of B that A covers. Each task
stores its links in one small file.
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
    """Stores the links (pairs of labels to join) that *linker* finds at the boundaries of tasks.

    Attributes:
        links_path: URL of a folder or prefix for the links.
        linker: `TouchLinker` or `OverlapLinker` of `segmentation.labels.linking`, or `EdgeLinker`
            of `segmentation.agglomeration.fragment_links`.
        access: credentials and billing of requests to cloud storage.
    """

    links_path: str
    linker: Any
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def origins(self) -> tuple[str, ...]:
        """URLs of the volumes that the linker reads."""
        places: tuple[str, ...] = self.linker.places
        return places

    @property
    @hook
    def destination(self) -> str:
        """URL of the folder or prefix to which the links are written."""
        return place_of(self.links_path)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check, before the first task, that tasks have boxes and that the labels can be linked.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            VolumeNotFoundError: the volume of labels does not exist.
            ChunkError: the voxels of the volume are not labels.
            OptionError: the tasks have no boxes.
        """
        if not outline.has_tasks:
            msg = (
                "link-labels links labels across task boundaries, but no task has a box; put "
                "generate-tasks in front of link-labels, with the options of the pipeline that "
                "made the labels"
            )
            raise OptionError(msg)
        self.linker.prepare()

    def __call__(self, task: Task) -> Task:
        """Find and store the links between labels at the boundaries of a task."""
        from chunkflow_py.segmentation.labels.links import encoded_links, link_key
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access

        if task.region is None:
            msg = (
                "link-labels links labels across task boundaries, but this task has no box; put "
                "generate-tasks in front of link-labels"
            )
            raise OptionError(msg)
        pairs = self.linker(task.region)
        store = RecordingStore(open_store(self.destination, self.access or Access()))
        store.put(link_key(task.region), encoded_links(pairs, self.linker.about))
        task.written += store.written
        return task


# fmt: off
@operator("write")
@click.option("--links-path", "-l", required=True, metavar="URL",
              help="Folder or prefix to write the links to.")
@click.option("--volume-path", "-v",
              help="Volume of labels; labels that touch across a task boundary are linked.")
@mip_option()
@connectivity_option()
@click.option("--values-path", metavar="URL",
              help="Segmentation from which the labels were made: labels are linked only where the "
                   "segmentation has equal values. Not needed for labels of a mask.")
@click.option("--overlap-path", "-p", metavar="URL",
              help="Overlaps that save-overlap stored; segments that share enough voxels are "
                   "linked.")
@overlap_options()
@click.option("--edges-path", metavar="URL", default=None,
              help="Edges that fragment-affinity stored: the fragments of --volume-path on both "
                   "sides of such an edge are linked.")
@access_options()
def command(
    links_path: str, volume_path: str | None, mip: int, connectivity: str,
    values_path: str | None, overlap_path: str | None, minimum_overlap: float,
    minimum_overlap_voxels: int, edges_path: str | None, **options: Any,
) -> LabelLinker:
    """Return the operator, which links labels that touch, overlap or are joined by an edge."""
    # fmt: on
    from chunkflow_py.segmentation.agglomeration.fragment_links import EdgeLinker
    from chunkflow_py.segmentation.labels.linking import OverlapLinker, TouchLinker
    from chunkflow_py.volume.protocol import VolumeOptions

    access = access_from(options)
    if (volume_path is None) == (overlap_path is None):
        msg = (
            "link-labels needs either the labels (--volume-path) or the overlaps that "
            "save-overlap stored (--overlap-path); give one of these options"
        )
        raise OptionError(msg)
    linker: Any = None
    if edges_path is not None:
        if volume_path is None or values_path is not None:
            msg = (
                f"--edges-path {edges_path} links the fragments of --volume-path; give the volume "
                "that fragment-affinity has made as --volume-path, and leave --overlap-path and "
                "--values-path out"
            )
            raise OptionError(msg)
        linker = EdgeLinker(volume_path, edges_path, mip, VolumeOptions(access=access))
    elif volume_path is not None:
        linker = TouchLinker(
            volume_path, mip, cast("Connectivity", int(connectivity)), values_path,
            VolumeOptions(access=access),
        )  # fmt: skip
    else:
        linker = OverlapLinker(
            str(overlap_path), minimum_overlap, minimum_overlap_voxels, access
        )
    return LabelLinker(links_path, linker, access)

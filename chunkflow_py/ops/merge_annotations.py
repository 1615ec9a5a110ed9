"""Merge the annotations of all tasks.

Example: chunkflow merge-annotations --parts-path parts --annotations-path annotations

This is the step after save-annotations. It writes Neuroglancer's precomputed annotations: an index
by id, an index by segment for each relation, and several levels of a spatial index. The bytes do
not depend on how the volume was divided into tasks. The memory does not grow with the total number
of annotations, but the annotations of any one segment must fit into memory. Temporary files take
about three times the space of the annotations.

With submit, give merge-annotations a pipeline of its own, with a single task: `submit ... then
generate-tasks --roi-size 1 1 1 --chunk-size 1 1 1 merge-annotations ...`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.ops.options.label_options import check_single_task, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import zyx_option

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access, Stored
    from chunkflow_py.volume.precomputed.annotation_merge import MergeSettings

SECTION = "objects"


def merge_annotations(
    parts_path: str,
    annotations_path: str,
    settings: MergeSettings | None = None,
    access: Access | None = None,
) -> list[Stored]:
    """Write precomputed annotations from the annotations of tasks.

    Args:
        parts_path: URL of the annotations that save-annotations stored.
        annotations_path: URL of a folder or prefix for the precomputed annotations.
        settings: cells of the spatial index, sharding, and whether tasks may be missing.
        access: credentials and billing of requests to cloud storage.

    Returns:
        One record for each written file. The content of the files depends only on the annotations
        and *settings*.

    Raises:
        VolumeError: a task has stored no annotations; stored annotations are damaged; or the
            annotations of two tasks differ in kind (such as ``point`` or ``line``), properties or
            relations.
        ChunkError: an annotation lies outside the bounds of the annotated volume.
    """
    from chunkflow_py.store import open_store
    from chunkflow_py.store.store_protocol import Access
    from chunkflow_py.volume.precomputed import annotation_merge

    parts, target = (
        open_store(place_of(url), access or Access()) for url in (parts_path, annotations_path)
    )
    return annotation_merge.merge_annotations(parts, target, settings)


@dataclass
class AnnotationMerger(OperatorBase):
    """Writes precomputed annotations from the annotations of tasks.

    Attributes:
        parts_path: URL of the annotations that save-annotations stored.
        annotations_path: URL of a folder or prefix for the precomputed annotations.
        settings: cells of the spatial index, sharding, and whether tasks may be missing.
        access: credentials and billing of requests to cloud storage.
    """

    parts_path: str
    annotations_path: str
    settings: MergeSettings
    access: Access | None = None

    @property
    @hook
    def origin(self) -> str:
        """URL of the annotations of tasks."""
        return place_of(self.parts_path)

    @property
    @hook
    def destination(self) -> str:
        """URL of the precomputed annotations."""
        return place_of(self.annotations_path)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that the pipeline has only one task.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: the pipeline has several tasks.
        """
        check_single_task(outline, "merge-annotations")

    def __call__(self, task: Task) -> Task:
        """Write the precomputed annotations."""
        task.written += merge_annotations(
            self.parts_path, self.annotations_path, self.settings, self.access
        )
        return task


# fmt: off
@operator("write")
@click.option("--parts-path", "-p", required=True, metavar="URL",
              help="Annotations that save-annotations stored.")
@click.option("--annotations-path", "-a", required=True, metavar="URL",
              help="Folder or prefix to write the precomputed annotations to.")
@click.option("--limit", type=click.IntRange(min=1), default=1000, show_default=True,
              help="Largest number of annotations in a cell of the spatial index; cells of the "
                   "finest level have no limit.")
@zyx_option("--cell-size", minimum=1, default=(32, 32, 32), show_default=True,
            help="Smallest size of a cell of the spatial index, voxels, zyx.")
@click.option("--sharded/--unsharded", default=True, show_default=True,
              help="Write shards, or one file for each annotation, segment and cell.")
@click.option("--allow-missing/--complete", default=False, show_default=True,
              help="Merge even if some tasks, such as skipped tasks, have stored nothing.")
@click.option("--scratch-path", type=click.Path(file_okay=False, exists=True), default=None,
              help="Local folder for temporary files.  [default: that of the system]")
@access_options()
def command(
    parts_path: str, annotations_path: str, limit: int, cell_size: Zyx, sharded: bool,
    allow_missing: bool, scratch_path: str | None, **options: Any,
) -> AnnotationMerger:
    """Return the operator."""
    # fmt: on
    from chunkflow_py.volume.precomputed.annotation_merge import MergeSettings

    settings = MergeSettings(limit, cell_size, sharded, allow_missing, scratch_path)
    return AnnotationMerger(parts_path, annotations_path, settings, access_from(options))

r"""Load precomputed annotations.

Example: chunkflow create-bbox --start 0 0 0 --size 64 512 512 \
  load-annotations --annotations-path annotations save-annotations --input-name annotations \
  --parts-path copies

The operator reads the annotations that touch the task's box, with their ids, properties and
segments. The annotations must be in Neuroglancer's precomputed format, which merge-annotations
writes. Coordinates are in voxels; the info file of the annotations gives the voxel size. An
annotation that touches the boxes of several tasks is loaded by each of these tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.label_options import check_task_boxes, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import output_option

if TYPE_CHECKING:
    from chunkflow_py.core.annotations import Annotations
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access
    from chunkflow_py.volume.precomputed.annotation_reader import AnnotationCollection

SECTION = "objects"


def load_annotations(
    annotations_path: str, bbox: BoundingBox, access: Access | None = None
) -> Annotations:
    """Return the annotations that touch *bbox*, with their segments.

    Args:
        annotations_path: URL of precomputed annotations.
        bbox: box, voxels, zyx.
        access: credentials and billing of requests to cloud storage.

    Raises:
        VolumeNotFoundError: there are no annotations at *annotations_path*.
        VolumeError: the annotations are damaged or not supported.
    """
    from chunkflow_py.volume.precomputed.annotation_reader import open_annotations

    return _inside(open_annotations(annotations_path, access), bbox)


def _inside(collection: AnnotationCollection, bbox: BoundingBox) -> Annotations:
    found = collection.inside(bbox)
    has_segments = bool(collection.schema.relations) and found.ids is not None
    return collection.get(found.ids) if has_segments else found  # type: ignore[arg-type]


@dataclass
class AnnotationLoader(OperatorBase):
    """Adds the annotations that touch the box of each task.

    Attributes:
        annotations_path: URL of precomputed annotations.
        output_name: name of the annotations in the task.
        access: credentials and billing of requests to cloud storage.
    """

    annotations_path: str
    output_name: str = "annotations"
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @property
    @hook
    def origin(self) -> str:
        """URL of the annotations."""
        return place_of(self.annotations_path)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that the tasks have boxes.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: the tasks have no boxes.
        """
        check_task_boxes(outline, "load-annotations", "loads the annotations in a task's box")

    @cached_property
    def _collection(self) -> AnnotationCollection:
        from chunkflow_py.volume.precomputed.annotation_reader import open_annotations

        return open_annotations(self.annotations_path, self.access)

    def __call__(self, task: Task) -> Task:
        """Add the annotations that touch the task's box.

        Raises:
            OptionError: the task has no box.
            VolumeError: the annotations are damaged.
        """
        if task.bbox is None:
            msg = (
                "load-annotations needs tasks with boxes; put generate-tasks in front of "
                "load-annotations"
            )
            raise OptionError(msg)
        task[self.output_name] = _inside(self._collection, task.bbox)
        return task


# fmt: off
@operator("read")
@click.option("--annotations-path", "-a", required=True, metavar="URL",
              help="Folder or prefix of precomputed annotations.")
@access_options()
@output_option("--output-name", "-o", default="annotations", help="Name of the annotations.")
def command(annotations_path: str, output_name: str, **options: Any) -> AnnotationLoader:
    """Return the operator, which opens the annotations at its first task."""
    # fmt: on
    return AnnotationLoader(annotations_path, output_name, access_from(options))

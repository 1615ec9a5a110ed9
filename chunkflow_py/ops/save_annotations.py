r"""Save points, synapses and other annotations.

Example: chunkflow load-h5 --file-name map.h5 detect-points \
  save-annotations --parts-path parts

The operator saves points of detect-points, synapses of load-synapses (a line from each T-bar to
each of its postsynaptic points), and `Annotations` that a plugin returns. Each task stores one
file, named after its box; merge-annotations joins these files for Neuroglancer. If a task has no
result (its item is None), it stores a file without annotations.

With --segmentation-name, each annotation stores the ids of the segments in which its positions lie.
A point has the relation `segment`. A synapse has the relations `pre_segment` and `post_segment`.
The chunk of labels must contain all positions, so load the labels with a margin.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook, hook_value
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops.options.label_options import check_task_boxes, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import BBOX, floats_option, input_option

if TYPE_CHECKING:
    from chunkflow_py.core.annotations import Annotations
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access

SECTION = "objects"


@dataclass
class AnnotationSaver(OperatorBase):
    """Stores the annotations of each task.

    Attributes:
        parts_path: URL of a folder or prefix for the annotations of tasks.
        input_name: name of the points, synapses or annotations in the task.
        segmentation_name: name of the chunk of labels from which annotations get the ids of their
            segments, or ``None``.
        bounds_given: box that must contain all annotations (default: the bounds of the volume).
        voxel_size_nm: edge lengths of a voxel, nanometres, zyx (default: as in the item).
        access: credentials and billing of requests to cloud storage.
    """

    parts_path: str
    input_name: str = "point_cloud"
    segmentation_name: str | None = None
    bounds_given: BoundingBox | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    separates_times: ClassVar[bool] = hook_value(False)
    _bounds: BoundingBox | None = field(default=None, init=False, repr=False)
    _outline_nm: tuple[float, float, float] | None = field(default=None, init=False, repr=False)
    _tasks: int = field(default=0, init=False, repr=False)

    @property
    @hook
    def destination(self) -> str:
        """URL of the folder or prefix to which annotations are written."""
        return place_of(self.parts_path)

    @hook
    def prepare(self, outline: Any) -> None:
        """Store the bounds of the volume and the number of tasks.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: the tasks have no boxes.
        """
        check_task_boxes(outline, "save-annotations", "names files after the boxes of tasks")
        self._bounds = self.bounds_given or outline.domain
        self._outline_nm, self._tasks = outline.voxel_size_nm, outline.task_count

    def __call__(self, task: Task) -> Task:
        """Store the annotations of a task.

        Raises:
            OptionError: the task has no box.
            MissingChunkError: the item does not exist, or its type is not points, synapses or
                `Annotations`.
            ChunkError: an annotation lies outside the bounds, or outside the labels.
        """
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access
        from chunkflow_py.volume.precomputed.annotation_parts import AnnotationPart, part_key

        if task.region is None:
            msg = (
                "save-annotations needs tasks with boxes; put generate-tasks in front of "
                "save-annotations"
            )
            raise OptionError(msg)
        found = None if task[self.input_name] is None else self._annotations(task)
        data = AnnotationPart(found, self._bounds, self._tasks).encoded()
        store = RecordingStore(open_store(self.destination, self.access or Access()))
        store.put(part_key(task.region.bbox), data)
        task.written += store.written
        return task

    def _annotations(self, task: Task) -> Annotations:
        from chunkflow_py.core.annotations import Annotations
        from chunkflow_py.core.points import Points
        from chunkflow_py.core.synapses import Synapses

        item = task[self.input_name]
        if isinstance(item, Synapses):
            found = Annotations.of_synapses(item)
            if item.voxel_size_nm is None and self._outline_nm is not None:
                found = replace(found, voxel_size_nm=self._outline_nm)
        elif isinstance(item, Points):
            found = Annotations.of_points(item)
        else:
            found = task.item(self.input_name, Annotations)
        if self.voxel_size_nm is not None:
            found = replace(found, voxel_size_nm=self.voxel_size_nm)
        if self.segmentation_name is not None:
            found = related_to(found, task.chunk(self.segmentation_name))
        return found


def related_to(annotations: Annotations, labels: Chunk) -> Annotations:
    """Return points or lines with the ids of the segments in which their positions lie.

    Args:
        annotations: points get the relation ``segment``; lines get ``pre_segment`` and
            ``post_segment``, for their first and second end.
        labels: labels, (z, y, x) or (1, z, y, x); 0 is background.

    Raises:
        ChunkError: a position lies outside the chunk of labels, or the annotations are neither
            points nor lines.
    """
    import numpy as np

    from chunkflow_py.core.annotations import Relation
    from chunkflow_py.segmentation.labels.components import labels_of

    names = {"point": ["segment"], "line": ["pre_segment", "post_segment"]}.get(annotations.kind)
    if names is None:
        msg = (
            f"--segmentation-name looks up the segments of points and lines, but the annotations "
            f"are of kind {annotations.kind}; leave --segmentation-name out. To store ids of "
            "segments, set the relations of the annotations in the plugin that makes them"
        )
        raise ChunkError(msg)
    array, box = labels_of(labels), labels.bbox
    voxels = np.floor(annotations.geometry).astype(np.int64)
    outside = ((voxels < box.start) | (voxels >= box.stop)).any(axis=2)
    if outside.any():
        place = tuple(voxels[outside][0].tolist())
        msg = (
            f"an annotation at {place} lies outside the chunk of labels {box} (zyx, voxels); load "
            "the labels with a larger --expand-margin-size"
        )
        raise ChunkError(msg)
    at = voxels - np.array(box.start)
    segments = array[at[..., 0], at[..., 1], at[..., 2]]
    relations = {each.name: each for each in annotations.relations}
    relations |= {name: Relation.to_one(name, segments[:, k]) for k, name in enumerate(names)}
    return replace(annotations, relations=tuple(relations.values()))


# fmt: off
@operator("write")
@input_option("--input-name", "-i", default="point_cloud",
              help="Name of the points, synapses or annotations to save.")
@click.option("--parts-path", "-p", required=True, metavar="URL",
              help="Folder or prefix to write the annotations of tasks to.")
@click.option("--segmentation-name", default=None,
              help="Name of a chunk of labels; store the ids of the segments of annotations.")
@click.option("--bounds", type=BBOX,
              help="Box that must contain all annotations.  [default: box of the input volume]")
@floats_option("--voxel-size", "-v",
               help="Edge lengths of a voxel, nm, zyx.  [default: as in the item]")
@access_options()
def command(
    input_name: str, parts_path: str, segmentation_name: str | None, bounds: BoundingBox | None,
    voxel_size: tuple[float, float, float] | None, **options: Any,
) -> AnnotationSaver:
    """Return the operator that saves annotations."""
    # fmt: on
    access = access_from(options)
    return AnnotationSaver(parts_path, input_name, segmentation_name, bounds, voxel_size, access)

r"""Sum the affinities between fragments.

Example: chunkflow generate-tasks --volume-path affinity.zarr --chunk-size 64 256 256 \
  --respect-stop load-volume --volume-path affinity.zarr --expand-margin-size auto \
  --output-name affinity load-volume --volume-path fragments.zarr --expand-margin-size auto \
  relabel --table-path fragment-ids measure-contacts --affinity-name affinity \
  --task-size 64 256 256 --graph-path graph

This is a step of segment-affinity, between solve-labels and merge-regions. At first, each fragment
is a region. Two regions are merged if each of them is the neighbour to which the other has the
highest mean affinity. If voxels outside of the task could change which neighbour has the highest
mean affinity, the two regions are not merged.

A contact is the sum and the number of the affinities between two regions. The contacts between the
merged regions are stored for merge-regions. The contacts between the original fragments are stored
for cut-hierarchy.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.host_memory import OperatorMemory
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook, hook_value
from chunkflow_py.ops.options.agglomeration_options import (
    graph_option,
    layout_from,
    layout_options,
    max_threshold_option,
    task_size_option,
)
from chunkflow_py.ops.options.label_options import check_task_boxes, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemName, input_option
from chunkflow_py.segmentation.agglomeration import graph_memory

if TYPE_CHECKING:
    from chunkflow_py.core.affinity_layout import AffinityLayout
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access

SECTION = "segment"

_WORK_BYTES = 11  # measured peak of `contacts_in` without its input, bytes a voxel


@dataclass
class ContactMeasurer(OperatorBase):
    """Stores the contacts between fragments, and the graph of merged regions, for every task.

    Attributes:
        graph_path: URL of a folder or prefix for the graph.
        task_size: size of the tasks, voxels, zyx.
        max_threshold: regions are merged while 1 - mean affinity is at most this value.
        layout: order of the affinity channels, and whether the upper or the lower of two
            neighbouring voxels stores their affinity.
        input_name, affinity_name: names of the fragments and of the affinities.
        access: credentials and billing of requests to cloud storage.
    """

    graph_path: str
    task_size: Zyx
    max_threshold: float
    layout: AffinityLayout
    input_name: str = "chunk"
    affinity_name: str = "affinity"
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    separates_times: ClassVar[bool] = hook_value(False)

    @property
    @hook
    def destinations(self) -> tuple[str, ...]:
        """URLs of the folders or prefixes to which contacts and graphs are written."""
        return tuple(f"{place_of(self.graph_path)}/{name}" for name in ("contacts", "level-0"))

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that tasks have boxes.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: the tasks have no boxes.
        """
        check_task_boxes(outline, "measure-contacts", "measures contacts in the box of each task")

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return *box* grown by one voxel on each side, and clipped to *domain*."""
        return box.grow((1, 1, 1)).intersection(domain)

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the peak memory, in bytes, for an input of extent *size* (voxels, zyx)."""
        if size is None:
            return None
        voxels = size.product()
        return OperatorMemory(work=voxels * _WORK_BYTES + graph_memory.graph_bytes(voxels))

    def __call__(self, task: Task) -> Task:
        """Store the contacts and the graph of a task.

        Raises:
            GeometryError: the box of the task is not on the grid of *task_size*, or the chunks lack
                a margin of one voxel.
            ChunkError: the two chunks are not fragments and affinities of the same volume.
        """
        from chunkflow_py.segmentation.agglomeration.edge_affinities import integer_type
        from chunkflow_py.segmentation.agglomeration.graph_store import GraphSettings, GraphStore
        from chunkflow_py.segmentation.agglomeration.region_merging import merge_box
        from chunkflow_py.segmentation.agglomeration.task_fragments import contacts_in
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access

        fragments, affinity = task.chunk(self.input_name), task.chunk(self.affinity_name)
        box = fragments.domain if task.bbox is None else task.bbox.intersection(fragments.domain)
        z, y, x = self.task_size
        dtype = integer_type(affinity.dtype)
        settings = GraphSettings(str(fragments.domain), (z, y, x), dtype, self.max_threshold)
        settings.check(box, 0)
        contacts = contacts_in(fragments, affinity, box, self.layout)
        merges, graph = merge_box(contacts.graph, settings.least)
        store = RecordingStore(open_store(place_of(self.graph_path), self.access or Access()))
        written = GraphStore(store, settings)
        written.write_contacts(box, contacts.counted, contacts.ids, contacts.sizes)
        written.write_level(box, 0, merges, graph)
        task.written += store.written
        return task


@operator("write")
@graph_option()
@task_size_option()
@max_threshold_option()
@layout_options()
@input_option(help="Name of the fragments.")
@click.option("--affinity-name", type=ItemName("in"), default="affinity", show_default=True,
              help="Name of the affinities.")  # fmt: skip
@access_options()
def command(
    graph_path: str, task_size: Zyx, max_threshold: float, input_name: str, affinity_name: str,
    **options: Any,
) -> ContactMeasurer:  # fmt: skip
    """Return the operator."""
    return ContactMeasurer(
        graph_path, task_size, max_threshold, layout_from(options), input_name, affinity_name,
        access_from(options),
    )  # fmt: skip

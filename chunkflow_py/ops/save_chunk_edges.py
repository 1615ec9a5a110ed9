r"""Write edges of supervoxels for proofreading.

Example: chunkflow generate-tasks --volume-path chunked --chunk-size 64 256 256 --respect-stop \
  load-volume --volume-path chunked --expand-margin-size auto --output-name supervoxels \
  load-volume --volume-path supervoxels.zarr --expand-margin-size auto --output-name fragments \
  load-volume --volume-path segments.zarr --expand-margin-size auto --output-name segments \
  load-volume --volume-path affinity.zarr --expand-margin-size auto --output-name affinity \
  save-chunk-edges --graph-chunk-size 64 256 256 --graph-path graph

A PyChunkedGraph divides the volume into chunks. For each chunk, two files are written below
--graph-path. edges/edges_X_Y_Z.proto.zst has the mean affinity and the number of voxel faces of
each pair of touching supervoxels. components/components_X_Y_Z.proto has the supervoxels of each
segment. The supervoxels must be the output of split-supervoxels, with the same --graph-chunk-size
and --spatial-bits. The fragments must be the input of split-supervoxels. Every segment must consist
of whole fragments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.host_memory import OperatorMemory
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook, hook_value
from chunkflow_py.ops.options.agglomeration_options import (
    graph_option,
    layout_from,
    layout_options,
)
from chunkflow_py.ops.options.graph_options import chunk_grid_options, grid_of
from chunkflow_py.ops.options.label_options import check_task_boxes, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemName

if TYPE_CHECKING:
    from chunkflow_py.core.affinity_layout import AffinityLayout
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access

SECTION = "segment"

_WORK_BYTES = 40  # for each voxel of a chunk of the graph, beside the inputs


@dataclass
class ChunkEdgeSaver(OperatorBase):
    """Writes the edges and the components of each PyChunkedGraph chunk in every task.

    Attributes:
        graph_path: URL of a folder or prefix for the graph.
        graph_chunk_size: size of a chunk of the graph, voxels, zyx.
        spatial_bits: number of bits per axis in which an id stores the coordinates of its chunk
            (default: as few as the volume needs).
        layout: order of the affinity channels, and whether the upper or the lower of two
            neighbouring voxels stores their affinity.
        input_name: name of the supervoxels.
        fragments_name, segments_name, affinity_name: names of the fragments, of the segments and of
            the affinities.
        access: credentials and billing of requests to cloud storage.
    """

    graph_path: str
    graph_chunk_size: Zyx
    layout: AffinityLayout
    spatial_bits: int | None = None
    input_name: str = "supervoxels"
    fragments_name: str = "fragments"
    segments_name: str = "segments"
    affinity_name: str = "affinity"
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    separates_times: ClassVar[bool] = hook_value(False)

    @property
    @hook
    def destinations(self) -> tuple[str, ...]:
        """URLs of the folders or prefixes of the edges and of the components."""
        return tuple(f"{place_of(self.graph_path)}/{name}" for name in ("edges", "components"))

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that tasks have boxes.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: the tasks have no boxes.
        """
        check_task_boxes(outline, "save-chunk-edges", "writes the edges in the box of each task")

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return *box* grown by one voxel on each side, and clipped to *domain*.

        Raises:
            OptionError: the ids have too few bits for the chunks or for the supervoxels.
            GeometryError: the box divides a chunk.
        """
        list(grid_of(domain, self.graph_chunk_size, self.spatial_bits).chunks(box))
        return box.grow((1, 1, 1)).intersection(domain)

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the peak memory, in bytes, for inputs of extent *size*, in voxels, zyx."""
        around = self.graph_chunk_size + 2
        voxels = (around if size is None else around.low(size)).product()
        return OperatorMemory(work=voxels * _WORK_BYTES)

    def __call__(self, task: Task) -> Task:
        """Write the files of the chunks in the box of the task.

        Raises:
            GeometryError: the task divides a chunk of the graph, or a margin is missing.
            ChunkError: the four inputs have different bounds, or the supervoxels are not those that
                split-supervoxels made from these fragments.
        """
        from chunkflow_py.segmentation.agglomeration import chunked_graph as graph
        from chunkflow_py.segmentation.agglomeration.edge_affinities import as_edges
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access

        supervoxels = task.chunk(self.input_name)
        domain = supervoxels.domain
        box = supervoxels.bbox if task.bbox is None else task.bbox.intersection(domain)
        grid = grid_of(domain, self.graph_chunk_size, self.spatial_bits)
        store = RecordingStore(open_store(place_of(self.graph_path), self.access or Access()))
        for place, own in grid.chunks(box):
            around = own.grow(Zyx(1, 1, 1)).intersection(domain)
            names = (self.input_name, self.fragments_name, self.segments_name)
            labels = [self._labels(task, name, around, domain) for name in names]
            affinity = self._cut(task, self.affinity_name, around, domain)
            edges = as_edges(affinity.array, self.layout)
            found = graph.edges_of_chunk(
                labels[0], labels[1], labels[2], edges, around, grid, place
            )
            name = "_".join(str(int(n)) for n in place[::-1])
            store.put(f"edges/edges_{name}.proto.zst", graph.edges_file(found))
            content = graph.components_file(found.components)
            store.put(f"components/components_{name}.proto", content)
        task.written += store.written
        return task

    def _cut(self, task: Task, name: str, around: BoundingBox, domain: BoundingBox) -> Chunk:
        from chunkflow_py.errors import ChunkError, GeometryError

        chunk = task.chunk(name)
        if chunk.domain != domain:
            msg = (
                f"chunk {name!r} has the bounds {chunk.domain}, but the supervoxels have {domain} "
                "(zyx, voxels); load the fragments, supervoxels, segments and affinities from "
                "volumes with the same bounds"
            )
            raise ChunkError(msg)
        if not chunk.bbox.contains(around):
            msg = (
                f"the edges need chunk {name!r} in {around}, but only {chunk.bbox} was loaded "
                "(zyx, voxels); add --expand-margin-size auto to the loader"
            )
            raise GeometryError(msg)
        return chunk.cut(around)

    def _labels(self, task: Task, name: str, around: BoundingBox, domain: BoundingBox) -> Any:
        import numpy as np

        from chunkflow_py.segmentation.labels.components import single_channel

        labels = single_channel(self._cut(task, name, around, domain).array)
        return np.ascontiguousarray(labels, np.uint64)


@operator("write")
@graph_option()
@chunk_grid_options()
@layout_options()
@click.option("--input-name", "-i", type=ItemName("in"), default="supervoxels", show_default=True,
              help="Name of the supervoxels, made by split-supervoxels.")  # fmt: skip
@click.option("--fragments-name", type=ItemName("in"), default="fragments", show_default=True,
              help="Name of the labels from which the supervoxels were made.")  # fmt: skip
@click.option("--segments-name", type=ItemName("in"), default="segments", show_default=True,
              help="Name of the segments.")  # fmt: skip
@click.option("--affinity-name", type=ItemName("in"), default="affinity", show_default=True,
              help="Name of the affinities.")  # fmt: skip
@access_options()
def command(
    graph_path: str, graph_chunk_size: Zyx, spatial_bits: int | None, input_name: str,
    fragments_name: str, segments_name: str, affinity_name: str, **options: Any,
) -> ChunkEdgeSaver:  # fmt: skip
    """Return the operator."""
    return ChunkEdgeSaver(
        graph_path, graph_chunk_size, layout_from(options), spatial_bits, input_name,
        fragments_name, segments_name, affinity_name, access_from(options),
    )  # fmt: skip

r"""Split supervoxels at PyChunkedGraph boundaries.

Example: chunkflow generate-tasks --volume-path supervoxels.zarr --chunk-size 64 256 256 \
  --respect-stop load-volume --volume-path supervoxels.zarr \
  split-supervoxels --graph-chunk-size 64 256 256 save-volume --volume-path precomputed://chunked

A PyChunkedGraph divides the volume into chunks. A supervoxel that extends into several chunks is
split into one part per chunk. Each part, and each supervoxel that is not split, gets an id in the
format of PyChunkedGraph. The id consists of the coordinates of the chunk and of a number that
counts from 1 in the chunk. Tasks must consist of whole chunks. save-chunk-edges writes the edges
between the new supervoxels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.ops.options.graph_options import chunk_grid_options, grid_of
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.core.task import Task

SECTION = "segment"


@dataclass
class SupervoxelSplitter(OperatorBase):
    """Splits the labels of every task at the boundaries of PyChunkedGraph chunks.

    Attributes:
        graph_chunk_size: size of a chunk of the graph, voxels, zyx.
        spatial_bits: number of bits per axis in which an id stores the coordinates of its chunk
            (default: as few as the volume needs).
        input_name, output_name: names of the labels and of the result.
    """

    graph_chunk_size: Zyx
    spatial_bits: int | None = None
    input_name: str = "chunk"
    output_name: str = "chunk"
    labelling: ClassVar[None] = hook_value(None)  # ids are those of the whole volume

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the dtype and the kind of the result: uint64, segmentation."""
        return read._replace(dtype="uint64", kind="segmentation")

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Check that *box* consists of whole chunks of the graph, and return *box*.

        Raises:
            OptionError: the ids have too few bits for the chunks or for the supervoxels.
            GeometryError: the box divides a chunk.
        """
        list(grid_of(domain, self.graph_chunk_size, self.spatial_bits).chunks(box))
        return box

    def __call__(self, task: Task) -> Task:
        """Replace the labels of the task.

        Raises:
            GeometryError: the task divides a chunk of the graph.
            ChunkError: the voxels are not labels.
        """
        from chunkflow_py.segmentation.agglomeration.chunked_graph import split_supervoxels
        from chunkflow_py.segmentation.labels.components import single_channel

        chunk = task.chunk(self.input_name)
        grid = grid_of(chunk.domain, self.graph_chunk_size, self.spatial_bits)
        array = split_supervoxels(single_channel(chunk.array), chunk.bbox, grid)
        task[self.output_name] = chunk.with_array(array, kind="segmentation")
        return task


@operator("compute")
@chunk_grid_options()
@input_option(help="Name of the labels.")
@output_option()
def command(**options: Any) -> SupervoxelSplitter:
    """Return the operator."""
    return SupervoxelSplitter(**options)

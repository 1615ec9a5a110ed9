r"""Divide affinities into fragments.

Example: chunkflow generate-tasks --volume-path affinity.zarr --chunk-size 64 256 256 \
  --respect-stop load-volume --volume-path affinity.zarr --expand-margin-size auto \
  fragment-affinity --edges-path edges save-volume --volume-path zarr://fragments.zarr

This is the first step of segment-affinity. Fragments are small pieces of cells, which later steps
merge. Every voxel chooses edges to its neighbours, based on the affinities in a margin around the
voxel. Fragments are the connected components of the chosen edges. Ids are unique in the volume. The
chosen edges that cross a task boundary are stored for link-labels.

With --fragments distance, fragments grow from the middle of cells towards the membranes. With
--fragments affinity, each voxel chooses the edge with the highest affinity, so there are more and
smaller fragments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.host_memory import OperatorMemory
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import OptionError, check_extra
from chunkflow_py.ops.options.agglomeration_options import (
    fragment_options,
    fragments_from,
    layout_from,
    layout_options,
)
from chunkflow_py.ops.options.label_options import place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.affinity_layout import AffinityLayout
    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.core.task import Task
    from chunkflow_py.segmentation.agglomeration.task_fragments import FragmentOptions
    from chunkflow_py.store.store_protocol import Access
    from chunkflow_py.volume.labelling import Labelling

SECTION = "segment"

# Measured peaks of `fragments_in` without its input, bytes a voxel, by the type of the affinities.
_WORK_BYTES = {"uint8": 18, "uint16": 24}
_FLOAT_BYTES = 30


@dataclass
class FragmentMaker(OperatorBase):
    """Makes the fragments of every task, and stores the chosen edges at task boundaries.

    Attributes:
        options: rule by which voxels choose edges.
        layout: order of the affinity channels, and whether the voxel with the lower or with the
            higher coordinate stores the affinity of two neighbours.
        edges_path: URL of a folder or prefix for the edges; ``None`` if there are no tasks.
        input_name, output_name: names of the affinities and of the fragments.
        access: credentials and billing of requests to cloud storage.
    """

    options: FragmentOptions
    layout: AffinityLayout
    edges_path: str | None = None
    input_name: str = "chunk"
    output_name: str = "chunk"
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    _voxel_size_nm: tuple[float, float, float] = field(default=(1, 1, 1), init=False)
    _dtype: str = field(default="float32", init=False)

    @property
    @hook
    def destination(self) -> str | None:
        """URL of the folder or prefix to which the edges are written."""
        return None if self.edges_path is None else place_of(self.edges_path)

    @hook
    def prepare(self, outline: Any) -> None:
        """Store the voxel size and dtype of the affinities; check whether ``edges_path`` is given.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: the tasks divide a volume, but ``edges_path`` is ``None``.
        """
        self._voxel_size_nm = outline.voxel_size_nm or self._voxel_size_nm
        self._dtype = outline.voxels.dtype if outline.voxels else self._dtype
        if outline.is_divided and self.edges_path is None:
            msg = (
                "the tasks divide a volume, so fragment-affinity must store the edges between "
                "tasks for link-labels; add --edges-path URL"
            )
            raise OptionError(msg)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return *box* with the margin that is needed to choose the edges of its voxels."""
        return self.options.required_input(box, domain, self._voxel_size_nm)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return dtype, number of channels and kind of the fragments."""
        return type(read)("uint64", 1, "segmentation")

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the peak memory, in bytes, for an input of extent *size* (voxels, zyx)."""
        if size is None:
            return None
        return OperatorMemory(work=size.product() * _WORK_BYTES.get(self._dtype, _FLOAT_BYTES))

    @cached_property
    def _labelling(self) -> Labelling:
        from chunkflow_py.volume.labelling import Labelling

        return Labelling("fragment-affinity")

    @property
    @hook
    def labelling(self) -> Labelling:
        """How fragments get their ids."""
        return self._labelling

    def __call__(self, task: Task) -> Task:
        """Add the fragments that lie in the task's box to *task*, and store the chosen edges.

        Raises:
            GeometryError: the affinities lack a part of the margin.
            ChunkError: the chunk does not contain affinities.
        """
        from chunkflow_py.segmentation.agglomeration.fragment_links import save_face_edges
        from chunkflow_py.segmentation.agglomeration.task_fragments import fragments_in
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access

        chunk = task.chunk(self.input_name)
        box = chunk.bbox if task.bbox is None else task.bbox.intersection(chunk.domain)
        fragments, chosen = fragments_in(chunk, box, self.options, self.layout)
        if self.destination is not None and task.own_region is not None:
            store = RecordingStore(open_store(self.destination, self.access or Access()))
            save_face_edges(store, task.own_region, chosen)
            task.written += store.written
        task[self.output_name] = fragments
        return task


@operator("compute")
@fragment_options()
@layout_options()
@click.option("--edges-path", metavar="URL",
              help="Folder or prefix for the chosen edges that cross task boundaries.")  # fmt: skip
@input_option(help="Name of the affinities.")
@output_option()
@access_options()
def command(
    edges_path: str | None, input_name: str, output_name: str, **options: Any
) -> FragmentMaker:
    """Check the thresholds, and return the operator."""
    check_extra("segmentation", "fragment-affinity", "cc3d")
    return FragmentMaker(
        fragments_from(options), layout_from(options), edges_path, input_name, output_name,
        access_from(options),
    )  # fmt: skip

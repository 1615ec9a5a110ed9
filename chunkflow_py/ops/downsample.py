"""Shrink a chunk: average images, vote on labels.

Example: chunkflow load-h5 --file-name em.h5 downsample --factor 1 2 2 save-h5 --file-name small.h5

Along each axis, coarse voxel k covers the fine voxels from k·factor up to, but not including,
(k+1)·factor, counted from the origin of the volume. If the chunk contains only some of these fine
voxels, the coarse voxel is computed from the voxels in the chunk.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from chunkflow_py.core.geometry import BoundingBox, Scale, Zyx
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.ops.options.volume_options import downsampling_mode_option, sparse_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option, zyx_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.host_memory import OperatorMemory
    from chunkflow_py.core.task import Task

logger = logging.getLogger(__name__)


@dataclass
class Downsampler(OperatorBase):
    """Downsamples a chunk of every task; the box and the voxel size of the chunk change.

    Attributes:
        factor: fine voxels per coarse voxel, zyx.
        mode: ``mean``, ``mode`` (the most frequent value), or ``auto``, which means ``mode`` for
            labels and ``mean`` for other chunks.
        sparse: ignore fine voxels of label 0, unless all fine voxels of a coarse voxel are 0.
        input_name: name of the chunk to shrink.
        output_name: name of the result.
        coarse_tasks: whether the boxes of tasks are in voxels of the result, not of the input.
    """

    factor: Zyx = Zyx(2, 2, 2)
    mode: Literal["auto", "mean", "mode"] = "auto"
    sparse: bool = False
    input_name: str = "chunk"
    output_name: str = "chunk"
    coarse_tasks: bool = False
    keeps_voxels: bool = field(default=True, init=False, metadata=HOOK)
    is_local: bool = field(default=True, init=False, metadata=HOOK)
    _needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )
    _has_warned: bool = field(default=False, init=False, repr=False)

    @property
    @hook
    def shrinks_by(self) -> Zyx:
        """Size of one voxel of the result, zyx, measured in voxels of the task's box."""
        return Zyx(1, 1, 1) if self.coarse_tasks else self.factor

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Store the function that computes the box that later operators need.

        Args:
            required: function of the task's box and the bounds of the volume. It returns the box
                that later operators need for this task.
        """
        self._needed = required

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the box of the fine voxels in *domain* that make up the coarse voxels in *box*."""
        return Scale.of(self.factor).finer(box).intersection(domain)

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the peak memory, in bytes, for an input of extent *size* (voxels, zyx)."""
        from chunkflow_py.core.host_memory import OperatorMemory

        return None if size is None else OperatorMemory(size // self.factor + 1)

    def __call__(self, task: Task) -> Task:
        """Add the downsampled chunk to the task."""
        from chunkflow_py.volume.downsample import downsample

        chunk = task.chunk(self.input_name)
        self._warn_of_cut_voxels(chunk, task.bbox)
        task[self.output_name] = downsample(chunk, self.factor, self.mode, sparse=self.sparse)
        return task

    def _warn_of_cut_voxels(self, chunk: Chunk, bbox: BoundingBox | None) -> None:
        whole = chunk.bbox.aligned_outward(self.factor)
        if bbox is not None and self._needed is not None:
            needed = self._needed(bbox, chunk.domain.coarser(self.factor))
            whole = BoundingBox(needed.start * self.factor, needed.stop * self.factor)
        whole = whole.intersection(chunk.domain)
        if not chunk.bbox.contains(whole) and not self._has_warned:
            self._has_warned = True
            logger.warning(
                "chunk %s covers some coarse voxels only partly; these are computed from the "
                "voxels in the chunk, so the result depends on the task grid; "
                "load %s, which contains whole coarse voxels",
                chunk.bbox, whole,
            )  # fmt: skip


@operator("compute")
@input_option()
@output_option()
@zyx_option(
    "--factor",
    "-f",
    minimum=1,
    default=(2, 2, 2),
    show_default=True,
    help="Number of fine voxels per coarse voxel along each axis, zyx.",
)
@downsampling_mode_option()
@sparse_option()
def command(
    input_name: str,
    output_name: str,
    factor: Zyx,
    mode: Literal["auto", "mean", "mode"],
    sparse: bool,
) -> Downsampler:
    """Return the operator for these options."""
    return Downsampler(factor, mode, sparse, input_name, output_name)

"""Shrink a chunk: average images, vote on labels.

Example: chunkflow load-h5 -f em.h5 downsample --factor 1 2 2 save-h5 -f small.h5

Coarse voxel k is made of the fine voxels k·factor to (k+1)·factor, counted from the origin of the
volume, and of what the chunk holds of them.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
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
    """Shrinks a chunk of every task. No transform: the result has another box and voxel size.

    Attributes:
        factor: fine voxels to a coarse one, zyx.
        mode: ``mean``, ``mode``, or ``auto``: the mode for labels.
        sparse: of labels, let 0 win only where there is nothing else.
        input_name: name of the chunk to shrink.
        output_name: name of the result.
        coarse_tasks: the boxes of tasks are in voxels of the result, not of what is shrunk.
    """

    factor: Zyx = Zyx(2, 2, 2)
    mode: Literal["auto", "mean", "mode"] = "auto"
    sparse: bool = False
    input_name: str = "chunk"
    output_name: str = "chunk"
    coarse_tasks: bool = False
    keeps_voxels: bool = field(default=True, init=False, metadata=HOOK)
    _needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )
    _told: bool = field(default=False, init=False, repr=False)

    @property
    @hook
    def shrinks_by(self) -> Zyx:
        """How much larger than a task's voxels those of the result are."""
        return Zyx(1, 1, 1) if self.coarse_tasks else self.factor

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Take what the rest of the line needs for a task's box."""
        self._needed = required

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the fine voxels of all coarse ones that *box*, in fine voxels, touches."""
        return box.aligned_outward(self.factor).intersection(domain)

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return what the result of a chunk of extent *size* takes; planes are made one by one."""
        from chunkflow_py.core.host_memory import OperatorMemory

        return None if size is None else OperatorMemory(size // self.factor + 1)

    def __call__(self, task: Task) -> Task:
        """Shrink the chunk."""
        from chunkflow_py.volume.downsample import downsample

        chunk = task.chunk(self.input_name)
        self._tell_of_cut(chunk, task.bbox)
        task[self.output_name] = downsample(chunk, self.factor, self.mode, sparse=self.sparse)
        return task

    def _tell_of_cut(self, chunk: Chunk, bbox: BoundingBox | None) -> None:
        """Warn, once, if *chunk* cuts a coarse voxel that is needed for *bbox*."""
        whole = chunk.bbox.aligned_outward(self.factor)
        if bbox is not None and self._needed is not None:
            needed = self._needed(bbox, chunk.domain.coarser(self.factor))
            whole = BoundingBox(needed.start * self.factor, needed.stop * self.factor)
        whole = whole.intersection(chunk.domain)
        if not chunk.bbox.contains(whole) and not self._told:
            self._told = True
            logger.warning(
                "chunk %s cuts coarse voxels, which are made of what it holds of them, so the "
                "result depends on how the volume is cut into tasks; whole are those of %s",
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
    help="Fine voxels to a coarse one, zyx.",
)
@click.option(
    "--mode",
    type=click.Choice(["auto", "mean", "mode"]),
    default="auto",
    show_default=True,
    help="Average, or the most frequent value; auto: that for labels (segmentations, and integers "
    "of 32 bits or more of unknown kind).",
)
@click.option(
    "--sparse/--dense",
    default=False,
    show_default=True,
    help="Of labels, let 0 win only where there is nothing else; or count it like the others.",
)
def command(
    input_name: str,
    output_name: str,
    factor: Zyx,
    mode: Literal["auto", "mean", "mode"],
    sparse: bool,
) -> Downsampler:
    """Take the factor and the way."""
    return Downsampler(factor, mode, sparse, input_name, output_name)

"""Crop a chunk to its task, or by a margin.

Example: chunkflow create-chunk --size 20 64 64 crop-margin --margin-size 2 8 8 2 8 8
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import click

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import GeometryError
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Outline


def crop_margin(chunk: Chunk, low: Zyx, high: Zyx) -> Chunk:
    """Return *chunk* without its margins, as a view.

    ```
    chunk   |lll|----------------|hhh|
    result      |----------------|         l: *low* voxels, h: *high* voxels
    ```

    Args:
        chunk: (z, y, x) or (c, z, y, x), any dtype.
        low: voxels to cut off at the start of each axis, zyx.
        high: voxels to cut off at the end of each axis, zyx.

    Raises:
        GeometryError: the result would be empty.
    """
    if any(a + b >= size for a, b, size in zip(low, high, chunk.size, strict=True)):
        msg = (
            f"margins of {low} at the start and {high} at the end leave nothing of chunk "
            f"{chunk.bbox} of extent {chunk.size} (zyx, voxels); give margins whose sum is below "
            "the extent"
        )
        raise GeometryError(msg)
    return chunk.cut(BoundingBox(chunk.bbox.start + low, chunk.bbox.stop - high))


def crop_to_box(chunk: Chunk, bbox: BoundingBox | None) -> Chunk:
    """Return the part of *chunk* inside *bbox*, as a view.

    If the box extends beyond the bounds of the volume, only the part inside the bounds is used.

    Raises:
        GeometryError: *bbox* is ``None``, or *chunk* does not cover *bbox*.
    """
    if bbox is None:
        raise GeometryError(_NO_BOX)
    inside = bbox.intersection(chunk.domain)
    return chunk.cut(bbox if inside.is_empty else inside)


_NO_BOX = (
    "crop-margin needs a task with a box to crop to; give --margin-size, or begin the pipeline "
    "with create-bbox or generate-tasks"
)


@dataclass
class MarginCropper(OperatorBase):
    """Crops a chunk of every task and, if ``crop_bbox`` is true, the box of the task."""

    margins: tuple[Zyx, Zyx] | None
    crop_bbox: bool
    input_name: str
    output_name: str
    keeps_voxels: ClassVar[bool] = hook_value(True)
    is_local: ClassVar[bool] = hook_value(True)
    _needed: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, init=False, repr=False
    )

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Store the function that computes the box that later operators need.

        Args:
            required: function of the task's box and the bounds of the volume. It returns the box
                that later operators need for this task.
        """
        self._needed = required

    @property
    @hook
    def face_offsets(self) -> tuple[Zyx, Zyx]:
        """Voxels by which this operator moves the start and the stop of the task's box, zyx."""
        if self.margins is None or not self.crop_bbox:
            return Zyx(0, 0, 0), Zyx(0, 0, 0)
        return self.margins[0], -self.margins[1]

    @hook
    def prepare(self, outline: Outline) -> None:
        """Refuse a pipeline without tasks if the chunk is to be cropped to the task's box."""
        if self.margins is None and not outline.has_tasks:
            raise GeometryError(_NO_BOX)

    @hook
    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:  # noqa: ARG002
        """Return *box* grown by the margins that this operator will cut off."""
        return box if self.margins is None else box.grow(*self.margins)

    def __call__(self, task: Task) -> Task:
        """Crop the chunk to the task's box, or by the margins."""
        chunk = task.chunk(self.input_name)
        if self.margins is None:
            task[self.output_name] = crop_to_box(chunk, task.bbox)
            return task
        margins = self.margins
        task.move_faces(*self.face_offsets)
        if task.bbox is not None:
            from chunkflow_py.volume.cutout import margins_left

            box = self._needed(task.bbox, chunk.domain) if self._needed else task.bbox
            margins = margins_left(chunk, box, *margins)
        task[self.output_name] = crop_margin(chunk, *margins)
        return task


@operator("compute")
@click.option(
    "--margin-size",
    "-m",
    nargs=6,
    type=click.IntRange(min=0),
    help="Voxels to cut off: z y x at the start, then z y x at the end.  "
    "[default: crop to the task's box]",
)
@click.option(
    "--crop-bbox/--no-crop-bbox",
    default=False,
    show_default=True,
    help="Also shrink the task's box by the margins.",
)
@input_option()
@output_option()
def command(
    margin_size: tuple[int, ...] | None, crop_bbox: bool, input_name: str, output_name: str
) -> MarginCropper:
    """Return the operator, with the margins split into those at the start and those at the end."""
    margins = margin_size and (Zyx.of(margin_size[:3]), Zyx.of(margin_size[3:]))
    return MarginCropper(margins or None, crop_bbox, input_name, output_name)

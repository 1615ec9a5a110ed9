r"""Move the six faces of the task's box.

Example: chunkflow create-bbox --start 0 0 0 --size 20 64 64 \
  adjust-bbox --corner-offset -2 0 0 2 0 0
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import click

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import GeometryError
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.pipeline.operator import Outline

SECTION = "steer"


def adjust_bbox(bbox: BoundingBox, low: Zyx, high: Zyx) -> BoundingBox:
    """Return *bbox* with its start moved by *low* and its stop moved by *high* (voxels, zyx).

    Raises:
        GeometryError: the new box would be empty.
    """
    return bbox.between(low, high)


_NO_BOX = (
    "adjust-bbox needs a task with a box; begin the pipeline with create-bbox or generate-tasks"
)


@dataclass
class BoxAdjuster(OperatorBase):
    """Moves the faces of every task's box."""

    face_offsets: tuple[Zyx, Zyx] = field(metadata=HOOK)

    @hook
    def prepare(self, outline: Outline) -> None:
        """Refuse a pipeline whose tasks have no boxes."""
        if not outline.has_tasks:
            raise GeometryError(_NO_BOX)

    def __call__(self, task: Task) -> Task:
        """Move the faces of the task's box.

        Raises:
            GeometryError: the task has no box, or the new box would be empty.
        """
        if task.region is None:
            raise GeometryError(_NO_BOX)
        task.move_faces(*self.face_offsets)
        return task


@operator("compute")
@click.option(
    "--corner-offset",
    "-c",
    nargs=6,
    type=int,
    help="Voxels to add to the start of the box (z y x), then to its stop (z y x).  [default: 0]",
)
def command(corner_offset: tuple[int, ...] | None) -> BoxAdjuster:
    """Return the operator; offsets 1 to 3 move the start, and 4 to 6 the stop."""
    values = corner_offset or (0,) * 6
    return BoxAdjuster((Zyx.of(values[:3]), Zyx.of(values[3:])))

"""Choose the box that a loader reads: an explicit cut, the task's box, or the whole volume.

An explicit cut is a box given by options. The task's box is enlarged by a margin. The margin is
clipped at the bounds of the volume; `margins_left` returns the margin that remains.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import GeometryError
from chunkflow_py.tasks.task_grid import region_of
from chunkflow_py.volume.protocol import check_inside

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk


@dataclass
class Cutout:
    """The part of a volume that the options of a loader select.

    This part is an explicit cut (a box given by options), else the task's box with a margin, else
    the whole volume.

    ```
    bounds   |------------------------------------------|
    task             |-------------|
    read         |mmm|-------------|mmm|                    m: margin, clipped to the bounds
    ```

    Attributes:
        start: first voxel of an explicit cut, zyx.
        stop: end of an explicit cut (exclusive), zyx.
        size: extent of an explicit cut, voxels, zyx.
        margin: number of voxels to read beyond the task's box on each side, zyx, or ``"auto"`` for
            the voxels that the following operators need.
        spelling: names of the options for start, stop, size and margin, for messages.
    """

    start: Zyx | None = None
    stop: Zyx | None = None
    size: Zyx | None = None
    margin: Zyx | Literal["auto"] = Zyx(0, 0, 0)
    spelling: tuple[str, str, str, str] = (
        "--cutout-start", "--cutout-stop", "--cutout-size", "--expand-margin-size",
    )  # fmt: skip
    _required: Callable[[BoundingBox, BoundingBox], BoundingBox] | None = field(
        default=None, repr=False
    )

    def __post_init__(self) -> None:
        """Refuse a cut whose start, stop and size contradict each other.

        Raises:
            OptionError: stop is not start + size, or is not greater than start.
        """
        if self.start is not None:  # without it the bounds decide where the cut begins
            region_of(self.start, self.stop, self.size, names=self.spelling[:3])

    @property
    def is_explicit(self) -> bool:
        """Whether the start, the stop or the size of the cut is given."""
        return not (self.start is None and self.stop is None and self.size is None)

    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Set *required*, the function for margin ``auto``: (task's box, bounds) -> box to read."""
        self._required = required

    def box(
        self, bounds: BoundingBox, task: BoundingBox | None, what: str
    ) -> tuple[BoundingBox, BoundingBox]:
        """Return the box to read, clipped to *bounds*, and the domain of the chunk.

        If there is an explicit cut and *task* is ``None``, the domain is the cut. In all other
        cases, the domain is *bounds*.

        Args:
            bounds: box of all voxels of the volume or file.
            task: box of the task, or ``None`` for a task without a box.
            what: name of the volume or file, for messages.

        Raises:
            GeometryError: an explicit cut extends beyond the bounds, or the task's box is
                completely outside the bounds.
        """
        if self.is_explicit:
            cut = self._explicit(bounds)
            check_inside(cut, bounds, what)
            return cut, (cut if task is None else bounds)
        if task is None:
            return bounds, bounds
        if task.intersection(bounds).is_empty:
            msg = (
                f"task {task} lies outside of {what}, whose bounds are {bounds} (zyx, voxels); "
                "generate tasks inside these bounds"
            )
            raise GeometryError(msg)
        if self.margin == "auto":
            # The whole task: other operators round its box, not the part inside the bounds.
            needed = self._required(task, bounds) if self._required else task
        else:
            needed = task.grow(self.margin)
        return needed.intersection(bounds), bounds

    def known_box(self) -> BoundingBox | None:
        """Return the box of an explicit cut, or ``None`` if the box depends on the volume."""
        if self.start is None or not (self.stop or self.size):
            return None
        return BoundingBox(self.start, self.stop or self.start + (self.size or 0))

    def _explicit(self, bounds: BoundingBox) -> BoundingBox:
        start, stop = region_of(self.start, self.stop, self.size, bounds, self.spelling[:3])
        return BoundingBox(start, stop or bounds.stop)


def margins_left(chunk: Chunk, bbox: BoundingBox, low: Zyx, high: Zyx) -> tuple[Zyx, Zyx]:
    """Return the margins of a task after clipping at the bounds of the volume.

    ```
    requested   |mmmm|
    domain        |---------------------      begins at the start of the volume
    task             |--------|
    clipped       |mm|                        only these voxels may be cropped from the chunk
    ```

    Args:
        chunk: chunk of the task, with its domain.
        bbox: box of the task, without margin.
        low: requested margin at the low end of each axis, voxels, zyx.
        high: requested margin at the high end of each axis, voxels, zyx.

    Returns:
        The remaining margins at the low ends and at the high ends, voxels, zyx.
    """
    before, after = list(low), list(high)
    for axis in range(3):
        if chunk.bbox.start[axis] == chunk.domain.start[axis]:
            left = bbox.start[axis] - chunk.bbox.start[axis]
            before[axis] = min(low[axis], max(0, left))
        if chunk.bbox.stop[axis] == chunk.domain.stop[axis]:
            left = chunk.bbox.stop[axis] - bbox.stop[axis]
            after[axis] = min(high[axis], max(0, left))
    return Zyx.of(before), Zyx.of(after)

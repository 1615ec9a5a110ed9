"""Check that a task writes only to its box, and list the stored blocks inside task boxes.

```
tasks    |------ a ------|------ b ------|
chunk             |--------------|           of task a: would overwrite voxels of task b
chunk    |---------|                         of task a: leaves a gap that no other task fills
```

Operators that move, transpose or shrink a chunk on purpose (`adjust-bbox`, ``crop-margin
--crop-bbox``, transpose, downsample) change the task's box in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import GeometryError
from chunkflow_py.store.store_protocol import Leftover

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Task


@dataclass(frozen=True)
class BoxCheck:
    """Compares chunks with the boxes of their tasks.

    Attributes:
        domain: bounds of the volume that the pipeline reads, in voxels of the chunk, if known. A
            chunk need not cover voxels outside these bounds, even if they are in its task's box.
    """

    domain: BoundingBox | None = None

    @classmethod
    def of(cls, outline: Any) -> BoxCheck | None:
        """Return the check for the tasks of a pipeline; ``None`` if there is only one task.

        Args:
            outline: what is known about the tasks; see `chunkflow_py.core.outline.Outline`.
        """
        has_others = outline.has_tasks if outline.boxes is None else len(outline.boxes) > 1
        return cls(outline.domain) if has_others else None

    def __call__(self, task: Task, chunk: Chunk, bounds: BoundingBox, url: str) -> None:
        """Refuse a chunk that does not match its task's box.

        Args:
            task: task that writes the chunk; if it has no box, every chunk is accepted.
            chunk: chunk to write.
            bounds: box of all voxels of the volume; voxels outside this box are not written.
            url: address of the volume, for messages.

        Raises:
            GeometryError: the chunk extends beyond the box of its task, or does not cover the box.
        """
        if task.bbox is None:
            return
        box = task.bbox.intersection(bounds)
        written = chunk.bbox.intersection(bounds)
        if not written.is_empty and not box.contains(written):
            msg = (
                f"chunk {chunk.bbox} of task {task} extends beyond {box} (zyx, voxels), the box "
                f"that the task may write in {url}, and would overwrite output of other tasks; "
                "crop the chunk to that box with crop-margin; if the chunk was moved on purpose, "
                "also move the task's box, with adjust-bbox or crop-margin --crop-bbox"
            )
            raise GeometryError(msg)
        held = box.intersection(chunk.domain if self.domain is None else self.domain)
        if not held.is_empty and not written.contains(held):
            msg = (
                f"chunk {chunk.bbox} of task {task} does not cover {held} (zyx, voxels), the part "
                f"of {url} that only this task writes; load a larger chunk with "
                "--expand-margin-size, or shrink the task's box to the chunk with adjust-bbox or "
                "crop-margin --crop-bbox"
            )
            raise GeometryError(msg)


def stored_inside(
    volume: Any, tasks: Any, shrink: Zyx = Zyx(1, 1, 1), time: int | None = None
) -> Iterator[Leftover]:
    """Yield the write units of *volume* that are already stored inside the boxes of tasks.

    Args:
        volume: volume that the tasks write.
        tasks: lookup of the task that writes a given voxel, see
            `chunkflow_py.core.operator_base.WritersByPlace`.
        shrink: voxels of the tasks' boxes per voxel of *volume*, along z, y and x.
        time: time index to which all tasks write (default: each task writes to its own time index).
    """
    for unit in volume.stored_units():
        if time is not None and unit.time != time:
            continue
        for voxel in ((unit.box.start + 1) * shrink - 1, unit.box.start * shrink):
            if tasks.number(voxel, unit.time) is not None:
                yield Leftover(unit.url, unit.remove)
                break

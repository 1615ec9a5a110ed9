"""Where an operator writes, stored in the spec of a run so that records can be verified."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

BOX = "BOX"  # stands for the box of a task in the address of its file


@dataclass(frozen=True)
class Output:
    """One place to which an operator writes for every task.

    Attributes:
        kind: ``volume``: the write units of one level of a volume that the saved box touches;
            ``file``: one file a task, or one for all; ``objects``: any number of objects, such as
            meshes.
        url: address of the volume as `open_volume` takes it; of the file, with `BOX` for the box of
            the task; or how the addresses of the objects begin.
        mip: level of the volume.
        format: of the volume, where the address does not say it.
        time: time index of the volume that is written, where it is not the task's.
        shrink: voxels of the operator's chunk that make one of the volume, zyx.
    """

    kind: Literal["volume", "file", "objects"]
    url: str
    mip: int = 0
    format: str | None = None
    time: int | None = None
    shrink: tuple[int, int, int] = (1, 1, 1)

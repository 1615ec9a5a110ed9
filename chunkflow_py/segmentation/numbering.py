"""Ids that no two tasks of a volume share, made without counting and without a coordinator.

```
volume    0  1  2  3 | 4  5  6  7          the voxels of the volume are numbered in raster order;
pieces    .  a  a  . | .  b  b  b          a piece has the number of its first voxel, plus 1:
ids       0  2  2  0 | 0  6  6  6          a is 2, b is 6
```

A task numbers the pieces by voxels of its own box, and boxes of tasks do not overlap: all ids are
different, below 2**64 for every volume of fewer voxels. When pieces are joined later, the smallest
id is that of the first voxel of the whole object, however the volume was cut into tasks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, GeometryError, OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.geometry import BoundingBox


def global_ids(
    labels: NDArray[Any], box: BoundingBox, core: BoundingBox, domain: BoundingBox
) -> NDArray[np.uint64]:
    """Return *labels* with the ids that their pieces have in the whole volume.

    Args:
        labels: (z, y, x) 1 to N, 0 for background.
        box: where they lie.
        core: the part of *box* that is this task's alone. A piece without a voxel in it becomes
            background: a neighbour has it.
        domain: bounds of the volume.

    Returns:
        (z, y, x) ids, 0 for background: 1 + the raster index in *domain* of the first voxel that
        the piece has in *core*.

    Raises:
        GeometryError: *core* does not lie in *box* and *domain*, or the domain has 2**64 voxels.
    """
    for name, outer in (("labels", box), ("volume", domain)):
        if not outer.contains(core):
            msg = (
                f"box {core} of the task reaches outside of the {name}, {outer} (zyx, voxels); "
                f"cut it to {core.intersection(outer)}"
            )
            raise GeometryError(msg)
    if domain.voxels >= 2**64:
        msg = f"volume {domain} has {domain.voxels} voxels; ids are unique below 2**64 of them"
        raise GeometryError(msg)
    table = np.zeros(int(labels.max(initial=0)) + 1, np.uint64)
    if core.is_empty:
        return np.zeros(labels.shape, np.uint64)
    inside = labels[core.slices(box.start)].ravel()
    runs = np.concatenate(([0], np.flatnonzero(inside[1:] != inside[:-1]) + 1))
    # Of several values for one place NumPy keeps the last: here that of the first voxel.
    places = np.full(len(table), -1, np.int64)
    places[inside[runs[::-1]]] = runs[::-1]
    places[0] = -1
    found = np.flatnonzero(places >= 0)
    z, y, x = (
        axis.astype(np.uint64) + np.uint64(start)
        for axis, start in zip(
            np.unravel_index(places[found], core.size), core.start - domain.start, strict=True
        )
    )
    rows, columns = np.uint64(domain.size.y), np.uint64(domain.size.x)
    table[found] = (z * rows + y) * columns + x + np.uint64(1)
    ids: NDArray[np.uint64] = table[labels]
    return ids


@dataclass
class Numbering:
    """How an operator numbers the pieces of a chunk.

    Attributes:
        is_global: whether ids are unique in the volume, not in the chunk only.
        domain: bounds of the volume, where the line does not know them.
    """

    is_global: bool = False
    domain: BoundingBox | None = None
    _known: BoundingBox | None = field(default=None, init=False, repr=False)

    def prepare(self, outline: Any) -> None:
        """See whether the line (an `Outline`) says in which volume ids are to be unique.

        Raises:
            OptionError: it does not, or tasks lie outside.
        """
        self._known = self.domain or outline.domain
        if not self.is_global or not outline.has_tasks:
            return
        if self._known is None:
            msg = (
                "--global-ids counts the voxels of the whole volume, whose bounds this line does "
                "not know; load from a volume, or add --domain z0-z1_y0-y1_x0-x1"
            )
            raise OptionError(msg)
        region = outline.region
        if self.domain is not None and region is not None and not self.domain.contains(region):
            msg = (
                f"--domain {self.domain} does not hold all tasks, which cover {region}; "
                f"{self.domain.hull(region)} does"
            )
            raise OptionError(msg)

    def __call__(
        self, labels: NDArray[Any], chunk: Chunk, bbox: BoundingBox | None = None
    ) -> NDArray[Any]:
        """Return the labels of a chunk as they are, or with their ids in the volume.

        Args:
            labels: (z, y, x) 1 to N, 0 for background; of the extent of *chunk*.
            chunk: that they were made of.
            bbox: box of the task: what it has for itself (default: that of the chunk).

        Raises:
            ChunkError: the chunk was cut from another volume than the line said.
            GeometryError: the box and the chunk have no voxel in common.
        """
        if not self.is_global:
            return labels
        domain = self.domain or chunk.domain
        if self._known is not None and domain != self._known:
            msg = (
                f"chunk {chunk.bbox} was cut from {domain}, but the line reads {self._known}, so "
                f"that ids would not be unique; add --domain {self._known}"
            )
            raise ChunkError(msg)
        core = chunk.bbox if bbox is None else chunk.bbox.intersection(bbox)
        return global_ids(labels, chunk.bbox, core, domain)

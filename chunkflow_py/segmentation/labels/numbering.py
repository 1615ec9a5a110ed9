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

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, GeometryError, OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox

logger = logging.getLogger(__name__)


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
        is_global: whether ids are unique in the volume, not in the chunk only; ``None``: where
            the tasks of a line divide a volume, unless its output cannot hold such ids.
        domain: bounds of the volume, where the line does not know them.
        dtype: of the ids that are unique in the volume.
    """

    is_global: bool | None = False
    domain: BoundingBox | None = None
    dtype: str = field(default="uint64", init=False)
    _known: BoundingBox | None = field(default=None, init=False, repr=False)
    _decided: bool = field(default=False, init=False, repr=False)
    _has_warned: bool = field(default=False, init=False, repr=False)

    @property
    def makes_global(self) -> bool:
        """Whether ids are unique in the volume; what is to be decided is, after `prepare`."""
        return self._decided if self.is_global is None else self.is_global

    def prepare(self, outline: Any) -> None:
        """See whether the line (an `Outline`) says in which volume ids are to be unique.

        Raises:
            OptionError: it does not, or tasks lie outside.
        """
        self._known = self.domain or outline.domain
        if self.is_global is None:
            self._decided = outline.is_divided and self._has_room(outline)
        if self.makes_global:
            self.dtype = self._stored_type(outline)
        if not self.makes_global or not outline.has_tasks:
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

    def _has_room(self, outline: Any) -> bool:
        """Tell whether ids of the volume are possible; if not, warn once that they will repeat."""
        why = None
        if self._known is None:
            why = (
                "the bounds of the volume are not known; add --global-ids --domain "
                "z0-z1_y0-y1_x0-x1"
            )
        elif narrow := [t for t in outline.saved_as if not _holds(t, self._known)]:
            why = (
                f"its output holds {narrow[0]}, and ids of a volume of {self._known.voxels} voxels "
                "need more; save to a new volume, or to one of uint64, with --global-ids"
            )
        if why is not None and not self._has_warned:
            logger.warning(
                "each task numbers its objects from 1, so that ids of different tasks repeat: %s "
                "(--chunk-ids, if that is what you want)", why,
            )  # fmt: skip
            self._has_warned = True
        return why is None

    def _stored_type(self, outline: Any) -> str:
        """Return the type of the volumes that are there, if ids fit; else uint64."""
        stored = {name for name in outline.saved_as if self._known and _holds(name, self._known)}
        return stored.pop() if len(stored) == 1 else "uint64"

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
        if not self.makes_global:
            return labels
        domain = self.domain or chunk.domain
        if self._known is not None and domain != self._known:
            msg = (
                f"chunk {chunk.bbox} was cut from {domain}, but the line reads {self._known}, so "
                f"that ids would not be unique; add --domain {self._known}"
            )
            raise ChunkError(msg)
        core = chunk.bbox if bbox is None else chunk.bbox.intersection(bbox)
        return global_ids(labels, chunk.bbox, core, domain).astype(self.dtype, copy=False)


def _holds(dtype: str, domain: BoundingBox) -> bool:
    """Tell whether a type can hold the ids of a volume, from 1 to its number of voxels."""
    kind = np.dtype(dtype)
    return kind.kind in "iu" and domain.voxels <= np.iinfo(kind).max

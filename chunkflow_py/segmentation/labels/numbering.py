"""Object ids that are unique in a volume, without communication between tasks.

```
volume    0  1  2  3 | 4  5  6  7          the voxels of the volume are numbered in raster order;
pieces    .  a  a  . | .  b  b  b          the id of a piece is the number of its first voxel,
ids       0  2  2  0 | 0  6  6  6          plus 1: a is 2, b is 6
```

A piece is the part of an object in one task. A task makes ids only from voxels in its box, and the
boxes of tasks do not overlap. Therefore, all ids differ. All ids are below 2**64 if the volume has
fewer than 2**64 voxels. When the pieces of an object are joined later, the object gets the smallest
id of its pieces. This is the id of the object's first voxel, so it does not depend on the division
into tasks.
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
    """Replace the labels of a task by ids that are unique in the volume.

    Args:
        labels: (z, y, x) labels from 1 to N, 0 for background.
        box: box of *labels* in the volume, in voxels.
        core: the part of *box* that belongs to this task alone. A label without a voxel in *core*
            becomes background, because it belongs to a neighbouring task.
        domain: bounds of the volume.

    Returns:
        (z, y, x) ids, 0 for background. Each id is 1 plus the raster index in *domain* of the first
        voxel that the label has in *core*.

    Raises:
        GeometryError: *core* is not inside *box* and *domain*, or the domain has 2**64 voxels or
            more.
    """
    for name, outer in (("labels", box), ("volume", domain)):
        if not outer.contains(core):
            common = core.intersection(outer)
            remedy = "no part is inside" if common.is_empty else f"cut the task box to {common}"
            msg = f"task box {core} extends beyond the box {outer} of the {name} (zyx, voxels); "
            msg += remedy
            raise GeometryError(msg)
    if domain.voxels >= 2**64:
        msg = f"volume {domain} has {domain.voxels} voxels; unique ids need fewer than 2**64"
        raise GeometryError(msg)
    table = np.zeros(int(labels.max(initial=0)) + 1, np.uint64)
    if core.is_empty:
        return np.zeros(labels.shape, np.uint64)
    inside = labels[core.slices(box.start)].ravel()
    runs = np.concatenate(([0], np.flatnonzero(inside[1:] != inside[:-1]) + 1))
    # NumPy keeps the last of several values for one index: here that of the first voxel.
    places = np.full(len(table), -1, np.int64)
    places[inside[runs[::-1]]] = runs[::-1]
    places[0] = -1
    present = np.flatnonzero(places >= 0)
    z, y, x = (
        axis.astype(np.uint64) + np.uint64(start)
        for axis, start in zip(
            np.unravel_index(places[present], core.size), core.start - domain.start, strict=True
        )
    )
    rows, columns = np.uint64(domain.size.y), np.uint64(domain.size.x)
    table[present] = (z * rows + y) * columns + x + np.uint64(1)
    ids: NDArray[np.uint64] = table[labels]
    return ids


@dataclass
class Numbering:
    """Numbering of the objects of a chunk: unique in the chunk or in the volume.

    Attributes:
        is_global: whether ids are unique in the volume (true) or only in the chunk (false). With
            ``None``, `prepare` chooses true if the volume is divided into tasks, its bounds are
            known, and the data type of the output is large enough for such ids.
        domain: bounds of the volume (default: the bounds that the pipeline knows).
        dtype: type of ids that are unique in the volume.
    """

    is_global: bool | None = False
    domain: BoundingBox | None = None
    dtype: str = field(default="uint64", init=False)
    _known: BoundingBox | None = field(default=None, init=False, repr=False)
    _decided: bool = field(default=False, init=False, repr=False)
    _has_warned: bool = field(default=False, init=False, repr=False)

    @property
    def makes_global(self) -> bool:
        """Whether ids are unique in the whole volume, not only in a chunk; call `prepare` first."""
        return self._decided if self.is_global is None else self.is_global

    def prepare(self, outline: Any) -> None:
        """Choose the numbering, and store the bounds of the volume.

        Args:
            outline: `Outline` of the pipeline: the bounds of the volume and the box of all tasks.

        Raises:
            OptionError: the bounds are unknown, or tasks lie outside them.
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
                "--global-ids needs the bounds of the whole volume, which this pipeline does not "
                "know; load from a volume, or add --domain z0-z1_y0-y1_x0-x1"
            )
            raise OptionError(msg)
        region = outline.region
        if self.domain is not None and region is not None and not self.domain.contains(region):
            msg = (
                f"--domain {self.domain} does not contain all tasks, which cover {region}; give "
                f"--domain {self.domain.hull(region)}"
            )
            raise OptionError(msg)

    def _has_room(self, outline: Any) -> bool:
        """Return whether ids can be unique in the volume; warn once if they cannot."""
        why = None
        if self._known is None:
            why = (
                "the bounds of the volume are not known; add --global-ids --domain "
                "z0-z1_y0-y1_x0-x1"
            )
        elif narrow := [t for t in outline.saved_as if not _holds(t, self._known)]:
            why = (
                f"the output stores {narrow[0]}, which is too small for the ids of a volume of "
                f"{self._known.voxels} voxels; save to a new volume or a volume of uint64, and "
                "add --global-ids"
            )
        if why is not None and not self._has_warned:
            logger.warning(
                "each task numbers its objects from 1, so ids repeat in different tasks: %s "
                "(give --chunk-ids if this is intended)", why,
            )  # fmt: skip
            self._has_warned = True
        return why is None

    def _stored_type(self, outline: Any) -> str:
        # The dtype of the existing output volumes if all ids fit into this dtype, else uint64.
        stored = {name for name in outline.saved_as if self._known and _holds(name, self._known)}
        return stored.pop() if len(stored) == 1 else "uint64"

    def __call__(
        self, labels: NDArray[Any], chunk: Chunk, bbox: BoundingBox | None = None
    ) -> NDArray[Any]:
        """Return the labels of a chunk, made unique in the volume if `makes_global` is true.

        Args:
            labels: (z, y, x) labels from 1 to N, 0 for background; same extent as *chunk*.
            chunk: chunk from which the labels were made.
            bbox: box of the task, without margins (default: the chunk's box).

        Raises:
            ChunkError: the bounds of the chunk's volume differ from those given to `prepare`.
            GeometryError: the box and the chunk have no voxel in common.
        """
        if not self.makes_global:
            return labels
        domain = self.domain or chunk.domain
        if self._known is not None and domain != self._known:
            msg = (
                f"chunk {chunk.bbox} comes from a volume with the bounds {domain}, but ids are "
                f"numbered for the bounds {self._known}, so the ids would not be unique; add "
                f"--domain {self._known}"
            )
            raise ChunkError(msg)
        core = chunk.bbox if bbox is None else chunk.bbox.intersection(bbox)
        return global_ids(labels, chunk.bbox, core, domain).astype(self.dtype, copy=False)


def _holds(dtype: str, domain: BoundingBox) -> bool:
    kind = np.dtype(dtype)
    return kind.kind in "iu" and domain.voxels <= np.iinfo(kind).max

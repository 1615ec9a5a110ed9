"""Overlaps: stored labels of the voxels that two neighbouring tasks have both labelled.

A later step links the labels; see `labels.links.overlap_pairs`.

```
task A   |-----------|mmm|                       m: margin that a task reads beyond its box
task B           |mmm|-----------|
stored by A      |---|mmm|                       labels that A has given to the common voxels
stored by B      |mmm|---|                       labels that B has given to the common voxels
```

Each task writes one file for each face that it shares with another task. *Above* the face is the
side of the greater coordinates. The file name consists of the first voxel above the face, the axis,
and the side on which the task lies: ``64_0_128.z.below.npz``, ``64_0_128.z.above.npz``. For time
index 3, the name has the prefix ``t3_``. The file is an npz file without pickles, with three
arrays. ``offset`` is the position of the first stored voxel, zyx. ``ids`` are the distinct labels,
uint64. ``codes``, (z, y, x), contains an index into ``ids`` for each voxel.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from chunkflow_py.core.geometry import AXES, BoundingBox, Region, Zyx
from chunkflow_py.errors import GeometryError
from chunkflow_py.segmentation.labels.links import (
    SUFFIX,
    check_unique_ids,
    decoded,
    encoded,
    overlap_pairs,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.store.store_protocol import Store

Side = Literal["above", "below"]


def shared_parts(chunk: Chunk, core: BoundingBox) -> Iterator[tuple[int, Zyx, Side, Chunk]]:
    """Yield the parts of *chunk* that neighbouring tasks have also labelled.

    Args:
        chunk: labels of a task and of a margin around it.
        core: box of the task. Each face of the box is shared with another task, except faces at
            the bounds of the volume.

    Yields:
        For each shared face: its axis, the first voxel above the face (on the side of the greater
        coordinates), the side on which the task lies, and the labels of this task on both sides.

    Raises:
        GeometryError: the chunk does not extend beyond a shared face.
    """
    for axis, name in enumerate(AXES):
        low = core.start[axis] - chunk.bbox.start[axis]
        high = chunk.bbox.stop[axis] - core.stop[axis]
        sides: tuple[tuple[Side, int, int], ...] = (
            ("above", core.start[axis], low),
            ("below", core.stop[axis], high),
        )
        for side, at, beyond in sides:
            if at in (chunk.domain.start[axis], chunk.domain.stop[axis]):
                continue
            if beyond <= 0:
                msg = (
                    f"chunk {chunk.bbox} does not extend beyond the face {name} = {at} of task "
                    f"{core} (zyx, voxels), so the two tasks at this face share no voxels; give "
                    "the loader --expand-margin-size 8 8 8 or more"
                )
                raise GeometryError(msg)
            back = max(low, high)  # the margin that the neighbour reads
            start, stop = (back, beyond) if side == "below" else (beyond, back)
            part = chunk.bbox.intersection(
                BoundingBox(
                    _with(chunk.bbox.start, axis, at - start),
                    _with(chunk.bbox.stop, axis, at + stop),
                )
            )
            yield axis, _with(core.start, axis, at), side, chunk.cut(part)


def save_overlaps(store: Store, chunk: Chunk, region: Region) -> None:
    """Store a task's labels of the voxels that neighbouring tasks have also labelled.

    Args:
        store: store of the overlaps.
        chunk: (z, y, x) labels of the task and its margin. The labels must be unique in the volume.
        region: region of the task.

    Raises:
        GeometryError: the chunk does not extend beyond a shared face.
    """
    core = region.bbox.intersection(chunk.bbox)
    for axis, start, side, part in shared_parts(chunk, core):
        ids, codes = np.unique(part.array, return_inverse=True)
        codes = codes.reshape(part.shape).astype(np.min_scalar_type(len(ids)))
        offset = np.array(part.voxel_offset, np.int64)
        store.put(
            _key(region.time, start, axis, side),
            encoded(offset=offset, ids=ids.astype(np.uint64), codes=codes),
        )


def linked_by_overlap(
    store: Store, region: Region, fraction: float, voxels: int
) -> list[NDArray[np.uint64]]:
    """Return the pairs of labels to link at the faces at the start of a task's box.

    No labels are linked at a face without files of both tasks. Such a face lies at the bounds of
    the volume, or one of the two tasks was skipped.

    Args:
        store: store of the overlaps.
        region: region of the task.
        fraction: smallest mean overlap of two linked segments, as a fraction from 0 to 1; see
            `labels.links.overlap_pairs`.
        voxels: smallest number of voxels that two linked segments share.

    Returns:
        For each face that has files of both tasks, an array of pairs of labels, shape (n, 2).

    Raises:
        ChunkError: two tasks have used the same id.
        VolumeError: a file is damaged.
    """
    links = []
    for axis in range(3):
        start = region.bbox.start
        parts = [_load(store, _key(region.time, start, axis, s)) for s in ("above", "below")]
        if parts[0] is None or parts[1] is None:
            continue
        (box_a, labels_a), (box_b, labels_b) = parts[0], parts[1]
        common = box_a.intersection(box_b)
        first, second = labels_a[common.slices(box_a.start)], labels_b[common.slices(box_b.start)]
        check_unique_ids(first, second, region)
        links.append(overlap_pairs(first, second, fraction, voxels))
    return links


def _load(store: Store, key: str) -> tuple[BoundingBox, NDArray[np.uint64]] | None:
    data = store.get(key)
    if data is None:
        return None
    arrays = decoded(data, f"{store.url.rstrip('/')}/{key}", "offset", "ids", "codes")
    labels: NDArray[np.uint64] = arrays["ids"][arrays["codes"]]
    return BoundingBox.from_size(arrays["offset"].tolist(), labels.shape), labels


def _key(time: int | None, start: Zyx, axis: int, side: str) -> str:
    at = "_".join(map(str, start))
    return f"{'' if time is None else f't{time}_'}{at}.{AXES[axis]}.{side}{SUFFIX}"


def _with(place: Zyx, axis: int, value: int) -> Zyx:
    return Zyx(*(value if a == axis else at for a, at in enumerate(place)))

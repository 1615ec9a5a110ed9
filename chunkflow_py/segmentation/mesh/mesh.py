"""Surfaces of the objects of a chunk, so that those of neighbouring chunks join.

```
task                 |a             b|             its voxels
marching cubes     a-1|a| ... |b-1|b|              cells between neighbours, a to b: with the first
                                                   voxel of the next task
at the domain's end  0 ... ends with a row of 0    surfaces are closed there
```

Each cell belongs to one task, so that no triangle comes twice and none is missing; simplification
leaves the open rims of a piece as they are. Vertices are computed from whole and half numbers of
voxels of the volume, so that those of two pieces are the same to the last bit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError
from chunkflow_py.segmentation.mesh.mesh_format import Mesh

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk

_SNAP = 1e-3  # voxels: what arithmetic of float32 may have moved a vertex by

ONE = Zyx(1, 1, 1)


def labels_of(chunk: Chunk) -> NDArray[Any]:
    """Return the labels of a chunk, (z, y, x), unsigned.

    Raises:
        ChunkError: there are several channels, or its voxels are no labels.
    """
    array = chunk.array
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim != 3 or array.dtype.kind not in "bui":
        msg = (
            f"chunk {chunk.bbox} has {chunk.channels} channels of {chunk.dtype}, but objects are "
            "labels of one channel; use threshold, connected-components or agglomerate before"
        )
        raise ChunkError(msg)
    if array.dtype.kind == "i":
        if array.min(initial=0) < 0:
            msg = f"chunk {chunk.bbox} has the label {array.min()}, but labels are 0 or more"
            raise ChunkError(msg)
        return array.view(f"u{array.dtype.itemsize}")
    return array.view(np.uint8) if array.dtype == bool else array


def task_box(chunk: Chunk, box: BoundingBox | None) -> BoundingBox:
    """Return the voxels of a task: its box inside the domain of its chunk, or all of the chunk.

    Raises:
        ChunkError: the chunk does not hold them.
    """
    if box is None:
        return chunk.bbox
    inside = box.intersection(chunk.domain)
    if chunk.bbox.is_empty:
        return chunk.bbox
    if inside.is_empty or not chunk.bbox.contains(inside):
        msg = (
            f"chunk {chunk.bbox} of the volume {chunk.domain} does not hold the task {box}; let "
            "the loader read the box of the task"
        )
        raise ChunkError(msg)
    return inside


def lacks_overlap(chunk: Chunk, box: BoundingBox) -> bool:
    """Tell whether the chunk ends with *box* where the volume goes on."""
    return not chunk.bbox.contains(box.grow((0, 0, 0), ONE).intersection(chunk.domain))


def cells_of(chunk: Chunk, box: BoundingBox) -> tuple[NDArray[Any], Zyx]:
    """Return the labels between which the surface of a task runs, and where they begin.

    Args:
        chunk: labels, (z, y, x) or (1, z, y, x).
        box: of the task, inside of it.

    Returns:
        Labels (z, y, x) of *box* and one voxel after it, as far as the chunk has them; with a row
        of 0 where the domain begins or ends. And the global position of the first.
    """
    have = box.grow((0, 0, 0), ONE).intersection(chunk.bbox)
    before = [int(a == d) for a, d in zip(have.start, chunk.domain.start, strict=True)]
    after = [int(b == d) for b, d in zip(box.stop, chunk.domain.stop, strict=True)]
    labels = labels_of(chunk)[have.slices(chunk.voxel_offset)]
    padded = np.pad(labels, list(zip(before, after, strict=True)))
    return padded, have.start - before


def create_meshes(
    chunk: Chunk,
    box: BoundingBox | None = None,
    *,
    voxel_size_nm: tuple[float, float, float] | None = None,
    simplification_factor: int = 100,
    max_simplification_error: float = 40,
    ids: Collection[int] | None = None,
    skip_ids: Collection[int] = (),
    dust_threshold: int = 0,
) -> Iterator[tuple[int, Mesh]]:
    """Yield the surface of each object, by marching cubes; objects come in the order of their ids.

    Args:
        chunk: labels, (z, y, x) or (1, z, y, x); 0 is background. It should reach one voxel
            further than *box*, but for the end of its domain.
        box: that the triangles belong to (default: that of the chunk).
        voxel_size_nm: zyx (default: that of the chunk).
        simplification_factor: how many times fewer triangles there should be; 1 or less keeps all.
        max_simplification_error: by how much the surface may move meanwhile, nanometres; less where
            a closed surface would lose half of its volume.
        ids: of the objects wanted (default: all).
        skip_ids: of objects that are left out.
        dust_threshold: objects of fewer voxels in *box* are left out.

    Raises:
        ChunkError: the voxels are no labels, or do not lie where they should.
        MissingExtraError: zmesh (or, for dust, fastremap) is not installed.
    """
    from chunkflow_py.segmentation.mesh.mesh_simplify import Surfaces

    inside = task_box(chunk, box)
    if inside.is_empty:
        return
    size_nm = chunk.voxel_size_nm if voxel_size_nm is None else voxel_size_nm
    cells, start = cells_of(chunk, inside)
    unit = np.array(size_nm[::-1], np.float64)
    shift = np.array(start[::-1], np.float64) + 0.5  # zmesh counts from the middle of a voxel
    surfaces = Surfaces(cells.T, unit)
    left_out = {0, *skip_ids}
    if dust_threshold > 1:
        left_out |= _dust(labels_of(chunk)[inside.slices(chunk.voxel_offset)], dust_threshold)
    found = surfaces.ids - left_out
    factor = simplification_factor if simplification_factor > 1 else 0
    for label in sorted(found if ids is None else found.intersection(ids)):
        places, faces = surfaces.take(label, factor, max_simplification_error)
        halves = np.round(2 * places) / 2
        places = np.where(np.abs(places - halves) < _SNAP, halves, places)
        mesh = Mesh(((places + shift) * unit).astype(np.float32), faces)
        if not mesh.is_empty:
            yield label, mesh


def _dust(labels: NDArray[Any], threshold: int) -> set[int]:
    from chunkflow_py.errors import needs_extra

    with needs_extra("segmentation", "mesh --dust-threshold"):
        import fastremap
    found, counts = fastremap.unique(labels, return_counts=True)
    return {int(label) for label in found[counts < threshold]}

"""A mask that is coarser than the chunk it belongs to, at the chunk's resolution."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.geometry import BoundingBox, Zyx

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.volume.protocol import Volume

    VoxelSize = tuple[float, float, float]


def mask_of(chunk: Chunk, volume: Volume, *, fill_missing: bool = True) -> NDArray[Any]:
    """Return where *volume* is not zero, at the chunk's resolution.

    Args:
        chunk: whose box and voxel size count.
        volume: of the mask, any dtype; of several channels any may be non-zero.
        fill_missing: what lies outside of the volume is zero; if not, it is an error.

    Returns:
        (z, y, x) bool of the chunk's extent.

    Raises:
        ChunkError: the mask's voxel size is not a multiple of the chunk's.
        GeometryError: the chunk reaches outside of the mask, and may not.
    """
    ratio = _ratio(volume, chunk.voxel_size_nm)
    coarse, box = _read(volume, chunk.bbox, ratio, fill_missing=fill_missing)
    indexes = [
        np.arange(chunk.bbox.start[axis], chunk.bbox.stop[axis]) // ratio[axis] - box.start[axis]
        for axis in range(3)
    ]
    return coarse[np.ix_(*indexes)]


def touches_mask(
    volume: Volume, box: BoundingBox, voxel_size_nm: VoxelSize
) -> Callable[[BoundingBox], bool]:
    """Return the function that tells whether a box touches the mask.

    The answer for a box depends on nothing else: a patch that reaches into two tasks has to be run
    in both of them or in none.

    Args:
        volume: of the mask, any dtype; what lies outside of it is zero.
        box: which is read once, as coarse as the mask is; of boxes that reach beyond it, the mask
            is read for each by itself.
        voxel_size_nm: of the voxels that boxes are counted in, zyx.

    Raises:
        ChunkError: the mask's voxel size is not a multiple of this one.
    """
    ratio = _ratio(volume, voxel_size_nm)
    coarse, around = _read(volume, box, ratio)

    def touches(part: BoundingBox) -> bool:
        cells = BoundingBox(part.start // ratio, -(-part.stop // ratio))
        if around.contains(cells):
            return bool(coarse[cells.slices(around.start)].any())
        return bool(_read(volume, part, ratio)[0].any())

    return touches


def _read(
    volume: Volume, wanted: BoundingBox, ratio: Zyx, *, fill_missing: bool = True
) -> tuple[NDArray[np.bool_], BoundingBox]:
    """Return the mask around *wanted* (z, y, x), and the box of it in voxels of the mask."""
    box = BoundingBox(wanted.start // ratio, -(-wanted.stop // ratio))
    inside = box.intersection(volume.bounds)
    if inside != box and not fill_missing:
        msg = (
            f"chunk {wanted} needs {box} of mask {volume.url}, whose bounds are "
            f"{volume.bounds}; use --fill-missing to count the rest as zero"
        )
        raise GeometryError(msg)
    coarse = np.zeros(box.size, bool)
    if not inside.is_empty:
        values = volume.read(inside).array.astype(bool)
        coarse[inside.slices(box.start)] = values if values.ndim == 3 else values.any(axis=0)
    return coarse, box


def _ratio(volume: Volume, voxel_size_nm: VoxelSize) -> Zyx:
    ratios = [m / c for m, c in zip(volume.voxel_size_nm, voxel_size_nm, strict=True)]
    if any(r < 1 - 1e-6 or abs(r - round(r)) > 1e-6 * r for r in ratios):
        msg = (
            f"voxels of mask {volume.url} are {volume.voxel_size_nm} nm, those of the chunk "
            f"{voxel_size_nm} nm (zyx); the first must be a multiple of the second, "
            "so choose another --mip, or load the chunk with its --voxel-size"
        )
        raise ChunkError(msg)
    return Zyx.of(round(r) for r in ratios)

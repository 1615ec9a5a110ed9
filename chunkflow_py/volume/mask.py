"""A mask that is coarser than what it belongs to: a chunk, patches, or the boxes of tasks."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.geometry import BoundingBox, BoxGrid, Zyx, hull_of
from chunkflow_py.store.address import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.volume.protocol import Volume

    VoxelSize = tuple[float, float, float]

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 24  # of the mask, at once


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
    ratio = _ratio(volume, chunk.voxel_size_nm, _CHUNK)
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
    ratio = _ratio(volume, voxel_size_nm, _CHUNK)
    coarse, around = _read(volume, box, ratio)

    def touches(part: BoundingBox) -> bool:
        cells = part.coarser(ratio)
        if around.contains(cells):
            return bool(coarse[cells.slices(around.start)].any())
        return bool(_read(volume, part, ratio)[0].any())

    return touches


def boxes_in_mask(
    volume: Volume, boxes: BoxGrid | Sequence[BoundingBox], voxel_size_nm: VoxelSize
) -> NDArray[np.bool_]:
    """Return which boxes touch the mask; warns if some lie where there is none.

    Each voxel of the mask is read once for a grid, in pieces of whole blocks.

    ```
    blocks     |--------|--------|--------|--------|--------|     of the mask
    pieces     |-----------------|-----------------|--------|     as much as READ_BYTES hold
    boxes            |---|---|---|---|---|---|                    any voxel that is set, by piece
    ```

    Args:
        volume: of the mask, any dtype; what lies outside of it is zero.
        boxes: a grid, or a list.
        voxel_size_nm: of the voxels that boxes are counted in, zyx.

    Returns:
        Bool: (z, y, x) of the grid's count, or one for each of the list.

    Raises:
        ChunkError: the mask's voxel size is not a multiple of this one.
    """
    ratio = _ratio(volume, voxel_size_nm, _TASKS)
    if isinstance(boxes, BoxGrid):
        return _grid_in_mask(volume, boxes, ratio)
    coarse = [box.coarser(ratio) for box in boxes]
    outside = sum(box.intersection(volume.bounds).is_empty for box in coarse)
    _warn_of_outside(volume, outside, len(coarse))
    around = hull_of(coarse)
    if around is None:
        return np.zeros(0, bool)
    if around.voxels * _voxel_bytes(volume) > READ_BYTES:
        return np.array([_nonzero(volume, box).any() for box in coarse])
    whole = _nonzero(volume, around)
    return np.array([whole[box.slices(around.start)].any() for box in coarse])


def _grid_in_mask(volume: Volume, grid: BoxGrid, ratio: Zyx) -> NDArray[np.bool_]:
    spans = [_coarse_spans(grid, axis, ratio[axis]) for axis in range(3)]
    bounds = volume.bounds
    touching = [
        int(np.count_nonzero((high > bounds.start[axis]) & (low < bounds.stop[axis])))
        for axis, (low, high) in enumerate(spans)
    ]
    _warn_of_outside(volume, len(grid) - Zyx.of(touching).product(), len(grid))
    found = np.zeros(grid.count, bool)
    for piece in _pieces(volume, grid.bounds.coarser(ratio).intersection(bounds)):
        cells, parts = [], []
        for (low, high), first, last in zip(spans, piece.start, piece.stop, strict=True):
            here = slice(np.searchsorted(high, first, "right"), np.searchsorted(low, last, "left"))
            cells.append(here)
            parts.append((np.maximum(low[here], first), np.minimum(high[here], last)))
        if not all(len(low) for low, _ in parts):
            continue  # between boxes that are apart
        voxels = _nonzero(volume, piece)
        if not voxels.any():
            continue
        for axis, (low, high) in enumerate(parts):
            voxels = _any_along(axis, voxels, low - piece.start[axis], high - piece.start[axis])
        found[tuple(cells)] |= voxels
    return found


def _coarse_spans(grid: BoxGrid, axis: int, ratio: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return start and stop of the boxes along one axis, in voxels of the mask."""
    start = grid.start[axis] + grid.stride[axis] * np.arange(grid.count[axis])
    stop = start + grid.size[axis]
    if grid.clip_stop is not None:
        stop = np.minimum(stop, grid.clip_stop[axis])
    return start // ratio, -(-stop // ratio)


def _any_along(
    axis: int, voxels: NDArray[np.bool_], low: NDArray[Any], high: NDArray[Any]
) -> NDArray[np.bool_]:
    """Return whether any voxel of each span is set; spans are not empty, and may overlap."""
    # What lies between two spans is reduced as well, and left out; a span may end at the end.
    end = np.zeros([1 if a == axis else n for a, n in enumerate(voxels.shape)], bool)
    faces = np.stack([low, high], axis=1).ravel()
    several = np.logical_or.reduceat(np.concatenate([voxels, end], axis), faces, axis)
    odd = tuple(slice(None, None, 2) if a == axis else slice(None) for a in range(3))
    spans: NDArray[np.bool_] = several[odd]
    return spans


def _pieces(volume: Volume, wanted: BoundingBox) -> Iterator[BoundingBox]:
    """Yield boxes of whole blocks that cover *wanted*, each with READ_BYTES at most if it can."""
    if wanted.is_empty:
        return
    block = volume.block_size
    whole = wanted.aligned_outward(block, volume.bounds.start)
    size = block
    for axis in (2, 1, 0):
        fit = READ_BYTES // (size.product() * _voxel_bytes(volume))
        most = max(1, min(fit, whole.size[axis] // block[axis])) * block[axis]
        size = Zyx(*(most if a == axis else n for a, n in enumerate(size)))
    for box in BoxGrid.covering(whole, size):
        yield box.intersection(wanted)


def _voxel_bytes(volume: Volume) -> int:
    return volume.dtype.itemsize * (volume.channels or 1)


def _warn_of_outside(volume: Volume, count: int, total: int) -> None:
    if count:
        logger.warning(
            "%d of %d tasks lie wholly outside of mask %s, whose bounds are %s (in its voxels): "
            "what is outside counts as empty",
            *(count, total, without_secrets(volume.url), volume.bounds),
        )


def _nonzero(volume: Volume, box: BoundingBox) -> NDArray[np.bool_]:
    """Return where the mask is not zero (z, y, x), in any of its channels; outside it is."""
    inside = box.intersection(volume.bounds)
    coarse = np.zeros(box.size, bool)
    if not inside.is_empty:
        values = volume.read(inside).array.astype(bool)
        coarse[inside.slices(box.start)] = values if values.ndim == 3 else values.any(axis=0)
    return coarse


def _read(
    volume: Volume, wanted: BoundingBox, ratio: Zyx, *, fill_missing: bool = True
) -> tuple[NDArray[np.bool_], BoundingBox]:
    """Return the mask around *wanted* (z, y, x), and the box of it in voxels of the mask."""
    box = wanted.coarser(ratio)
    if not fill_missing and box.intersection(volume.bounds) != box:
        msg = (
            f"chunk {wanted} needs {box} of mask {volume.url}, whose bounds are "
            f"{volume.bounds}; use --fill-missing to count the rest as zero"
        )
        raise GeometryError(msg)
    return _nonzero(volume, box), box


_CHUNK = "the chunk", "choose another --mip, or load the chunk with its --voxel-size"
_TASKS = "the tasks", "choose another --mask-mip, or say the --voxel-size of the tasks' boxes"


def _ratio(volume: Volume, voxel_size_nm: VoxelSize, whose: tuple[str, str]) -> Zyx:
    ratios = [m / c for m, c in zip(volume.voxel_size_nm, voxel_size_nm, strict=True)]
    if any(r < 1 - 1e-6 or abs(r - round(r)) > 1e-6 * r for r in ratios):
        msg = (
            f"voxels of mask {volume.url} are {volume.voxel_size_nm} nm, those of {whose[0]} "
            f"{voxel_size_nm} nm (zyx); the first must be a multiple of the second, so {whose[1]}"
        )
        raise ChunkError(msg)
    return Zyx.of(round(r) for r in ratios)

"""Masks of chunks, patches and task boxes; mask voxels may be larger than the masked voxels."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx, hull_of
from chunkflow_py.errors import ChunkError, GeometryError
from chunkflow_py.store.store_address import without_secrets

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.volume.protocol import Volume

    VoxelSize = tuple[float, float, float]
    Ratio = tuple[Fraction, Fraction, Fraction]

logger = logging.getLogger(__name__)

READ_BYTES = 1 << 24  # of the mask, at once


@dataclass(frozen=True)
class BoxMask:
    """A mask that keeps some voxels of a box; upsampling is delayed until the mask is applied.

    ```
    mask       |  0  |  1  |  2  |      upsampling: each voxel takes the value of the mask voxel
    voxels     |-*-|-*-|-*-|-*-|        at the voxel's centre *; the indexes are 0 1 1 2
    ```

    Attributes:
        coarse: (z, y, x) bool, the part of the mask around the box.
        indexes: one array for each of z, y and x. For each position along this axis of the box, the
            array contains the index in *coarse*.
    """

    coarse: NDArray[np.bool_]
    indexes: tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]

    def inverted(self) -> BoxMask:
        """Return the inverted mask, which keeps the voxels that this mask does not keep."""
        return BoxMask(~self.coarse, self.indexes)

    def whole(self) -> NDArray[np.bool_]:
        """Return the mask upsampled to the voxels of the box, (z, y, x) bool."""
        return self.coarse[np.ix_(*self.indexes)]

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """Return *array* with zeros in place of the voxels that are not kept, even if they are NaN.

        Args:
            array: (z, y, x) or (c, z, y, x) of the box's extent, any dtype; not modified. If all
                voxels are kept, the result is *array* itself.
        """
        if self.coarse.all():
            return array
        if not self.coarse.any():
            return np.zeros_like(array)
        # Voxels are masked bitwise, which works for any dtype. Sections of the box that lie in the
        # same section of the mask are masked together: only one upsampled section is in memory.
        word = np.dtype(f"u{array.dtype.itemsize}")
        source, result = array.view(word), np.empty(array.shape, array.dtype)
        target = result.view(word)
        deep, *plane = self.indexes
        first = np.flatnonzero(np.diff(deep, prepend=-1))  # where a new section of the mask begins
        for start, stop in zip(first, [*first[1:], len(deep)], strict=True):
            keep = self.coarse[deep[start]]
            here = (..., slice(start, stop), slice(None), slice(None))
            if keep.all():
                target[here] = source[here]
            elif not keep.any():
                target[here] = 0
            else:
                bits = np.negative(keep.astype(word))  # all bits set, or none
                # columns first, while there are few rows
                for axis, index in ((1, plane[1]), (0, plane[0])):
                    if len(index) > bits.shape[axis]:  # else the index is the identity
                        bits = bits.take(index, axis)
                np.bitwise_and(source[here], bits, out=target[here])
        return result


def box_mask(
    volume: Volume, bbox: BoundingBox, voxel_size_nm: VoxelSize, *, fill_missing: bool = True
) -> BoxMask:
    """Return the mask that keeps the voxels of a box at which *volume* is not zero.

    Args:
        volume: the mask volume, any dtype; a voxel with several channels counts as zero only if all
            its channels are zero.
        bbox: the box, in voxels of *voxel_size_nm*.
        voxel_size_nm: size of the voxels in which *bbox* is given, nanometres, zyx.
        fill_missing: whether voxels outside the mask volume count as zero; if false, such voxels
            raise an error.

    Raises:
        ChunkError: the voxels of the mask are smaller than *voxel_size_nm*.
        GeometryError: the box extends beyond the mask volume, and *fill_missing* is false.
    """
    ratio = _ratio(volume, voxel_size_nm, _CHUNK)
    centres = [
        _scaled(2 * np.arange(bbox.start[axis], bbox.stop[axis]) + 1, ratio[axis] * 2)
        for axis in range(3)
    ]
    first, last = (Zyx.of(int(c[end]) for c in centres) for end in (0, -1))
    box = BoundingBox(first, last + 1)
    coarse = _read(volume, box, bbox, fill_missing=fill_missing)
    z, y, x = (c - start for c, start in zip(centres, box.start, strict=True))
    return BoxMask(coarse, (z, y, x))


def mask_of(chunk: Chunk, volume: Volume, *, fill_missing: bool = True) -> NDArray[Any]:
    """Return a mask of the voxels of a chunk at which *volume* is not zero; see `box_mask`.

    Args:
        chunk: chunk whose box and voxel size are used.
        volume: the mask volume, any dtype.
        fill_missing: whether voxels outside the mask volume count as zero; if false, such voxels
            raise an error.

    Returns:
        (z, y, x) bool of the chunk's extent.
    """
    found = box_mask(volume, chunk.bbox, chunk.voxel_size_nm, fill_missing=fill_missing)
    return found.whole()


def touches_mask(
    volume: Volume, box: BoundingBox, voxel_size_nm: VoxelSize
) -> Callable[[BoundingBox], bool]:
    """Return a function that checks whether the mask has a nonzero voxel in a given box.

    For the same box, the function returns the same result in all tasks, because a patch that
    extends over two tasks must be computed in both tasks or in neither.

    Args:
        volume: the mask volume, any dtype; voxels outside the volume count as zero.
        box: region for which the mask is read once, in advance. If the returned function gets a
            box that extends beyond this region, the mask is read again.
        voxel_size_nm: size of the voxels in which boxes are given, nanometres, zyx.

    Raises:
        ChunkError: the voxels of the mask are smaller than those of the boxes.
    """
    ratio = _ratio(volume, voxel_size_nm, _CHUNK)
    around = _touched(box, ratio)
    coarse = _nonzero(volume, around)

    def touches(part: BoundingBox) -> bool:
        cells = _touched(part, ratio)
        if around.contains(cells):
            return bool(coarse[cells.slices(around.start)].any())
        return bool(_nonzero(volume, cells).any())

    return touches


def boxes_in_mask(
    volume: Volume, boxes: BoxGrid | Sequence[BoundingBox], voxel_size_nm: VoxelSize
) -> NDArray[np.bool_]:
    """Return which boxes contain a nonzero mask voxel; warn of boxes outside the mask volume.

    If *boxes* is a grid, the mask is read in pieces of whole blocks, each piece only once.

    ```
    blocks     |--------|--------|--------|--------|--------|     of the mask
    pieces     |-----------------|-----------------|--------|     at most READ_BYTES each
    boxes            |---|---|---|---|---|---|                    searched piece by piece
    ```

    Args:
        volume: the mask volume, any dtype; voxels outside the volume count as zero.
        boxes: the boxes, as a grid or a list.
        voxel_size_nm: size of the voxels in which boxes are given, nanometres, zyx.

    Returns:
        One bool per box: an array of shape `BoxGrid.count` for a grid, (n,) for a list of n boxes.

    Raises:
        ChunkError: the voxels of the mask are smaller than those of the boxes.
    """
    ratio = _ratio(volume, voxel_size_nm, _TASKS)
    if isinstance(boxes, BoxGrid):
        return _grid_in_mask(volume, boxes, ratio)
    coarse = [_touched(box, ratio) for box in boxes]
    outside = sum(box.intersection(volume.bounds).is_empty for box in coarse)
    _warn_of_outside(volume, outside, len(coarse))
    around = hull_of(coarse)
    if around is None:
        return np.zeros(0, bool)
    if around.voxels * _voxel_bytes(volume) > READ_BYTES:
        return np.array([_nonzero(volume, box).any() for box in coarse])
    whole = _nonzero(volume, around)
    return np.array([whole[box.slices(around.start)].any() for box in coarse])


def _grid_in_mask(volume: Volume, grid: BoxGrid, ratio: Ratio) -> NDArray[np.bool_]:
    spans = [_coarse_spans(grid, axis, ratio[axis]) for axis in range(3)]
    bounds = volume.bounds
    touching = [
        int(np.count_nonzero((high > bounds.start[axis]) & (low < bounds.stop[axis])))
        for axis, (low, high) in enumerate(spans)
    ]
    _warn_of_outside(volume, len(grid) - Zyx.of(touching).product(), len(grid))
    found = np.zeros(grid.count, bool)
    for piece in _pieces(volume, _touched(grid.bounds, ratio).intersection(bounds)):
        cells, parts = [], []
        for (low, high), first, last in zip(spans, piece.start, piece.stop, strict=True):
            here = slice(np.searchsorted(high, first, "right"), np.searchsorted(low, last, "left"))
            cells.append(here)
            parts.append((np.maximum(low[here], first), np.minimum(high[here], last)))
        if not all(len(low) for low, _ in parts):
            continue  # the piece is in a gap between boxes
        voxels = _nonzero(volume, piece)
        if not voxels.any():
            continue
        for axis, (low, high) in enumerate(parts):
            voxels = _any_along(axis, voxels, low - piece.start[axis], high - piece.start[axis])
        found[tuple(cells)] |= voxels
    return found


def _coarse_spans(grid: BoxGrid, axis: int, ratio: Fraction) -> tuple[NDArray[Any], NDArray[Any]]:
    start = grid.start[axis] + grid.stride[axis] * np.arange(grid.count[axis])
    stop = start + grid.size[axis]
    if grid.clip_stop is not None:
        stop = np.minimum(stop, grid.clip_stop[axis])
    return _scaled(start, ratio), -_scaled(-stop, ratio)


def _any_along(
    axis: int, voxels: NDArray[np.bool_], low: NDArray[Any], high: NDArray[Any]
) -> NDArray[np.bool_]:
    # No span may be empty.
    # Gaps are reduced like spans, then dropped; the added row lets a span end at the edge.
    end = np.zeros([1 if a == axis else n for a, n in enumerate(voxels.shape)], bool)
    faces = np.stack([low, high], axis=1).ravel()
    several = np.logical_or.reduceat(np.concatenate([voxels, end], axis), faces, axis)
    odd = tuple(slice(None, None, 2) if a == axis else slice(None) for a in range(3))
    spans: NDArray[np.bool_] = several[odd]
    return spans


def _pieces(volume: Volume, wanted: BoundingBox) -> Iterator[BoundingBox]:
    """Yield boxes of whole blocks that cover *wanted*, at most READ_BYTES each if possible."""
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
            "%d of %d tasks are completely outside mask %s, whose bounds are %s (zyx, voxels of "
            "the mask): voxels outside the bounds count as zero",
            *(count, total, without_secrets(volume.url), volume.bounds),
        )


def _nonzero(volume: Volume, box: BoundingBox) -> NDArray[np.bool_]:
    inside = box.intersection(volume.bounds)
    coarse = np.zeros(box.size, bool)
    if not inside.is_empty:
        values = volume.read(inside).array.astype(bool)
        coarse[inside.slices(box.start)] = values if values.ndim == 3 else values.any(axis=0)
    return coarse


def _read(
    volume: Volume, box: BoundingBox, wanted: BoundingBox, *, fill_missing: bool
) -> NDArray[np.bool_]:
    """Return the mask in *box*, (z, y, x) bool; *wanted* is the box of the chunk, for messages."""
    if not fill_missing and box.intersection(volume.bounds) != box:
        msg = (
            f"chunk {wanted} needs box {box} of mask {volume.url}, whose bounds are "
            f"{volume.bounds} (zyx, voxels of the mask); use --fill-missing to treat voxels "
            "outside the bounds as zero"
        )
        raise GeometryError(msg)
    return _nonzero(volume, box)


# --- voxel sizes --------------------------------------------------------------------------------

_CHUNK = "the chunk", "choose another --mip, or correct the --voxel-size of the chunk's loader"
_TASKS = "the tasks", "choose another --mask-mip, or give the --voxel-size of the tasks' boxes"


def _ratio(volume: Volume, voxel_size_nm: VoxelSize, whose: tuple[str, str]) -> Ratio:
    """Return the size of a mask voxel in voxels of a chunk or task, zyx."""
    z, y, x = (_quotient(m, c) for m, c in zip(volume.voxel_size_nm, voxel_size_nm, strict=True))
    if min(z, y, x) < 1:
        msg = (
            f"the voxel size of mask {volume.url} is {volume.voxel_size_nm} nm, but the voxel size "
            f"of {whose[0]} is {voxel_size_nm} nm (zyx), and voxels of the mask must not be "
            f"smaller; {whose[1]}"
        )
        raise ChunkError(msg)
    return z, y, x


def _quotient(coarse: float, fine: float) -> Fraction:
    """Return the exact quotient of two decimal numbers: 0.3 / 0.1 is 3."""
    exact = Fraction(repr(coarse)) / Fraction(repr(fine))
    near = exact.limit_denominator(1000)
    return near if abs(near - exact) <= exact / 10**6 else exact


def _scaled(places: NDArray[Any], ratio: Fraction) -> NDArray[Any]:
    """Return integer positions divided by *ratio* and rounded down."""
    scaled: NDArray[Any] = places * ratio.denominator // ratio.numerator
    return scaled


def _touched(box: BoundingBox, ratio: Ratio) -> BoundingBox:
    """Return the box of all voxels of the mask that *box* touches."""
    start = Zyx.of(int(a // r) for a, r in zip(box.start, ratio, strict=True))
    return BoundingBox(start, Zyx.of(-int(-b // r) for b, r in zip(box.stop, ratio, strict=True)))

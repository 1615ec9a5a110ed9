"""Downsample by integer factors: the mean for images, the most frequent label for labels.

```
fine     |0 1|2 3|4 5|6 7|8 9|        with factor f, coarse voxel k is computed from the fine
chunk      |---------------|          voxels k·f to (k+1)·f - 1 that are in the chunk;
coarse   | 0 | 1 | 2 | 3 | 4 |        voxels are counted from the origin of the volume
```

If chunks begin and end at multiples of the factor, or at the bounds of the volume, the result does
not depend on how the volume is divided into chunks.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache, reduce
from itertools import product
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.volume.protocol import coarser

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind

Mode = Literal["auto", "mean", "mode"]

_WORTH_THREADS = 1 << 20  # coarse voxels
_THREADS = 2  # the rest of the pipeline needs processors too

_Span = tuple[slice, slice, int]  # of fine voxels, of coarse voxels, fine voxels in each


def downsample(
    chunk: Chunk, factor: Zyx = Zyx(2, 2, 2), mode: Mode = "auto", *, sparse: bool = False
) -> Chunk:
    """Return *chunk* with voxels that are *factor* times larger.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype, at any offset.
        factor: downsampling factor along each axis, zyx.
        mode: ``mean``, ``mode`` or ``auto``. The mean of integers is exact and rounded half to
            even; floats are summed in at least single precision. ``mode`` takes the most frequent
            value, or the smallest of equally frequent values. ``auto`` takes the mode of labels
            (see `is_labels`) and the mean of other voxels.
        sparse: whether ``mode`` ignores the label 0. A coarse voxel is then 0 only if all its fine
            voxels are 0.

    Returns:
        A chunk of the same dtype, channels and kind. A coarse voxel that extends beyond *chunk* is
        computed from the fine voxels inside *chunk*.

    Raises:
        OptionError: a factor is below 1.
        ChunkError: the mean is requested, but the voxels are bool.
    """
    if min(factor) < 1:
        msg = f"--factor {factor} must be at least 1 along each axis (zyx); 2 2 2 is usual"
        raise OptionError(msg)
    labels = is_labels(chunk.dtype, chunk.kind) if mode == "auto" else mode == "mode"
    if chunk.dtype.kind == "b" and not labels:
        msg = (
            f"chunk {chunk.bbox} is bool, which has no mean; use --mode mode, or convert the chunk "
            "to uint8"
        )
        raise ChunkError(msg)
    box = coarser(chunk.bbox, factor)
    if not chunk.array.size:  # rounding outward would make an empty box non-empty
        box = BoundingBox.from_size(box.start, -(-chunk.size // factor))
    result = np.empty((*chunk.shape[:-3], *box.size), chunk.dtype)
    spans = [_spans(*axis) for axis in zip(chunk.bbox.start, chunk.bbox.stop, factor, strict=True)]
    for channel in np.ndindex(chunk.shape[:-3]) if result.size else ():
        fine, coarse = chunk.array[channel], result[channel]
        for part in product(*spans):
            source, target = (tuple(span[i] for span in part) for i in (0, 1))
            cell = Zyx(*(span[2] for span in part))
            if cell == (1, 1, 1):
                coarse[target] = fine[source]
            elif labels:
                _modes(fine[source], cell, coarse[target], sparse=sparse)
            else:
                _means(fine[source], cell, coarse[target])
    z, y, x = (s * f for s, f in zip(chunk.voxel_size_nm, factor, strict=True))
    return Chunk(result, box.start, (z, y, x), chunk.kind, coarser(chunk.domain, factor))


def is_labels(dtype: np.dtype[Any], kind: Kind | None) -> bool:
    """Return whether voxels are labels of objects, which cannot be averaged.

    Voxels are labels if *kind* is ``segmentation``, or if *kind* is ``None`` and *dtype* is bool or
    an integer of at least 32 bits.
    """
    wide = dtype.kind == "b" or (dtype.kind in "iu" and dtype.itemsize >= 4)
    return kind == "segmentation" or (kind is None and wide)


def _spans(start: int, stop: int, factor: int) -> list[_Span]:
    first, last = -(-start // factor), stop // factor  # of the whole ones
    base = start // factor
    if first > last:  # all within one coarse voxel
        return [(slice(0, stop - start), slice(0, 1), stop - start)]
    found = []
    if head := first * factor - start:
        found.append((slice(0, head), slice(0, 1), head))
    if last > first:
        fine = slice(head, last * factor - start)
        found.append((fine, slice(first - base, last - base), factor))
    if tail := stop - last * factor:
        rest = slice(last * factor - start, stop - start)
        found.append((rest, slice(last - base, last - base + 1), tail))
    return found


# --- the mean -------------------------------------------------------------------------------------


def _means(fine: NDArray[Any], cell: Zyx, coarse: NDArray[Any]) -> None:
    # A cell has the fine voxels of one coarse voxel. The extent of fine is a multiple of the cell.
    count = cell.product()
    for z in range(coarse.shape[0]):  # plane by plane, so that the data stay in the CPU cache
        planes = fine[z * cell.z : (z + 1) * cell.z]
        if fine.dtype.kind == "f":
            sums = _sums(planes, cell, np.promote_types(fine.dtype, np.float32))
            np.divide(sums, sums.dtype.type(count), out=coarse[z], casting="same_kind")
        elif fine.dtype.itemsize < 8:
            coarse[z] = _rounded(_sums(planes, cell, _accumulator(fine.dtype, count)), count)
        else:  # the sum may exceed 64 bits: the halves of the numbers are added separately
            high = _sums(planes >> 32, cell, fine.dtype)
            low = _sums(planes & 0xFFFFFFFF, cell, fine.dtype)
            whole, rest = np.divmod(high, count)
            coarse[z] = (whole << 32) + _rounded((rest << 32) + low, count)


def _accumulator(dtype: np.dtype[Any], count: int) -> np.dtype[Any]:
    """Return the smallest dtype in which the sum of *count* voxels can be computed and rounded."""
    most = (int(np.iinfo(dtype).max) + 1) * count
    sizes = (2, 4, 8)
    kinds = [np.dtype(f"{dtype.kind}{size}") for size in sizes]
    return next((kind for kind in kinds if most <= np.iinfo(kind).max), kinds[-1])


def _sums(planes: NDArray[Any], cell: Zyx, dtype: np.dtype[Any]) -> NDArray[Any]:
    # The order of adding is fixed, so that the sums of floats are reproducible.
    width = cell.x
    pairs = planes.dtype.kind == "u" and width == 2 and dtype.itemsize == 2 * planes.itemsize
    if pairs and planes.strides[-1] == planes.itemsize:
        # Two neighbours are the halves of one wider number, with any byte order.
        both = planes.view(dtype)
        planes = (both & np.iinfo(planes.dtype).max) + (both >> 8 * planes.itemsize)
        width = 1
    total: NDArray[Any] = planes[0].astype(dtype)
    for plane in planes[1:]:
        total += plane
    total = reduce(np.add, [total[row :: cell.y] for row in range(cell.y)])
    return reduce(np.add, [total[:, column::width] for column in range(width)])


def _rounded(sums: NDArray[Any], count: int) -> NDArray[Any]:
    """Return the integers *sums* divided by *count* (at least 2), rounded half to even."""
    if count & (count - 1) == 0:
        shift = count.bit_length() - 1
        result: NDArray[Any] = (sums >> shift) & 1  # 1 where a half is rounded up
        result += sums
        result += (count >> 1) - 1
        result >>= shift
        return result
    quotient: NDArray[Any] = sums // count
    twice = (sums - quotient * count) * 2
    up: NDArray[Any] = (twice > count) | ((twice == count) & (quotient & 1 == 1))
    quotient += up
    return quotient


# --- the mode -------------------------------------------------------------------------------------


def _modes(fine: NDArray[Any], cell: Zyx, coarse: NDArray[Any], *, sparse: bool) -> None:
    # A cell has the fine voxels of one coarse voxel. The extent of fine is a multiple of the cell.
    _, height, width = fine.shape
    steps = [
        (k * height + j) * width + i
        for k, j, i in product(range(cell.z), range(cell.y), range(cell.x))
    ]

    def write(z: int) -> None:
        planes, labels = fine[z * cell.z : (z + 1) * cell.z], coarse[z]
        labels[...] = planes[0, :: cell.y, :: cell.x]
        mixed = np.flatnonzero(_mixed(planes, cell))
        if len(mixed):  # most cells lie within one object
            rows, columns = np.divmod(mixed, labels.shape[1])
            corners = rows * (cell.y * width) + columns * cell.x
            voxels = planes.reshape(-1)
            found = [voxels.take(corners + step) for step in steps]
            labels[rows, columns] = _modes_across(found, sparse=sparse)

    if coarse.size < _WORTH_THREADS:
        for z in range(len(coarse)):
            write(z)
    else:
        with ThreadPoolExecutor(_THREADS, "modes") as pool:
            list(pool.map(write, range(len(coarse))))


def _mixed(planes: NDArray[Any], cell: Zyx) -> NDArray[np.bool_]:
    # The result has one bool per cell: whether the cell has several labels. Planes are compared
    # first, then rows, then columns, so that most memory access is contiguous.
    first = planes[0, :: cell.y]
    differs = [planes[0, row :: cell.y] != first for row in range(1, cell.y)]
    if cell.z > 1:
        across = reduce(np.bitwise_or, [plane != planes[0] for plane in planes[1:]])
        differs += [across[row :: cell.y] for row in range(cell.y)]
    mixed = [first[:, column :: cell.x] != first[:, :: cell.x] for column in range(1, cell.x)]
    if differs:
        lines = reduce(np.bitwise_or, differs)
        mixed += [lines[:, column :: cell.x] for column in range(cell.x)]
    return reduce(np.bitwise_or, mixed)


def _modes_across(columns: list[NDArray[Any]], *, sparse: bool) -> NDArray[Any]:
    """Return the most frequent label of each cell (the fine voxels of one coarse voxel).

    Of equally frequent labels, the smallest is returned.

    Args:
        columns: one array for each position inside a cell, with the labels of n cells at this
            position, shape (n,). The arrays are overwritten.
        sparse: whether to return 0 only if all labels of a cell are 0.
    """
    if columns[0].dtype.kind == "f":
        columns = list(np.sort(columns, axis=0))  # NaN is neither smaller nor larger
    else:
        lower = np.empty_like(columns[0])
        for low, high in _sorting_network(len(columns)):
            np.minimum(columns[low], columns[high], out=lower)
            np.maximum(columns[low], columns[high], out=columns[high])
            columns[low], lower = lower, columns[low]
    bits = np.dtype(f"u{columns[0].itemsize}")
    best = columns[0].copy()
    chosen = best.view(bits)
    counter = np.min_scalar_type(len(columns))
    most = np.zeros(len(best), counter)
    run = np.zeros(len(best), counter)
    for index, column in enumerate(columns):
        if index:
            run *= column == columns[index - 1]
        run += column != 0 if sparse else counter.type(1)
        # Labels ascend, so the first of equally frequent labels stays. Bit masks avoid branches.
        better = np.negative((run > most).astype(bits))
        chosen ^= (chosen ^ column.view(bits)) & better
        np.maximum(most, run, out=most)
    return best


@cache
def _sorting_network(count: int) -> tuple[tuple[int, int], ...]:
    """Return the pairs of columns to compare, in this order, to sort each row of a table.

    The table has *count* columns. For each pair, the caller compares the two values in every row,
    and swaps these values if the first is larger. After the last pair, all rows are sorted.

    The method is Batcher's merge exchange (Knuth, The Art of Computer Programming, volume 3,
    section 5.2.2, algorithm M). The caller compares whole columns, because sorting many short rows
    one by one is slower.
    """
    pairs = []
    part = 1
    while part < count:
        step = part
        while step:
            for start in range(step % part, count - step, 2 * step):
                lows = range(start, start + min(step, count - start - step))
                same = (low for low in lows if low // (2 * part) == (low + step) // (2 * part))
                pairs += [(low, low + step) for low in same]
            step //= 2
        part *= 2
    return tuple(pairs)

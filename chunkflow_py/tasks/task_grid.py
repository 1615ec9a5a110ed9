"""Grids of task boxes, from a region, the size and number of boxes, and an alignment."""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import AXES, BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Iterable


def region_of(
    start: Zyx | None,
    stop: Zyx | None,
    size: Zyx | None,
    bounds: BoundingBox | None = None,
    names: tuple[str, str, str] = ("--roi-start", "--roi-stop", "--roi-size"),
) -> tuple[Zyx, Zyx | None]:
    """Compute start and stop of a region from any of start, stop, size and a volume's bounds.

    The returned stop is ``None`` if neither *stop*, *size* nor *bounds* is given.

    Args:
        start: first voxel, zyx. By default, *stop* - *size* if both are given. Otherwise, the start
            of *bounds*, or (0, 0, 0) without *bounds*.
        stop: end of the region, exclusive, zyx. By default, *start* + *size* if *size* is given.
            Otherwise, the stop of *bounds*.
        size: extent of the region, voxels, zyx.
        bounds: bounds of the volume, voxels.
        names: names of the options for start, stop and size, for messages.

    Raises:
        OptionError: start, stop and size disagree, or the region is empty.
    """
    if start is None:
        if stop is not None and size is not None:
            start = stop - size
        else:
            start = Zyx(0, 0, 0) if bounds is None else bounds.start
    elif stop is not None and size is not None and start + size != stop:
        msg = (
            f"{names[0]} {start} plus {names[2]} {size} is {start + size}, but {names[1]} is "
            f"{stop} (zyx, voxels); leave {names[1]} or {names[2]} out"
        )
        raise OptionError(msg)
    if stop is None:
        if size is not None:
            stop = start + size
        elif bounds is not None:
            stop = bounds.stop
    if stop is not None and not all(a < b for a, b in zip(start, stop, strict=True)):
        msg = (
            f"the region from {start} to {stop} (zyx, voxels) is empty; "
            f"{names[1]} must be greater than {names[0]} along every axis"
        )
        raise OptionError(msg)
    return start, stop


def task_grid(
    chunk_size: Zyx,
    start: Zyx,
    stop: Zyx | None = None,
    *,
    grid_size: Zyx | None = None,
    respect_stop: bool = False,
    block_size: Zyx | None = None,
) -> BoxGrid:
    """Return the boxes of tasks over a region.

    ```
    region          |-----------------------|             from start to stop
    aligned     |------------------------------|          extended to multiples of block_size
    boxes       |--------|--------|--------|--------|     grid_size boxes, or as many as needed
    ```

    Args:
        chunk_size: extent of a box, voxels, zyx.
        start: first voxel of the region.
        stop: end of the region, exclusive. With ``None``, the region consists of *grid_size* boxes
            along each axis, or of a single box if *grid_size* is not given.
        grid_size: number of boxes along each axis (default: as many as the region needs, or one if
            *stop* is ``None``).
        respect_stop: whether to clip the last boxes to the end of the region.
        block_size: extend the region outward to multiples of this size, counted from (0, 0, 0).

    Raises:
        OptionError: *chunk_size* is not a multiple of *block_size*; or *respect_stop* is set, and
            some boxes of the grid lie completely beyond the end of the region.
    """
    count = grid_size or (Zyx(1, 1, 1) if stop is None else None)
    end = start + chunk_size * count if stop is None and count else stop
    region = BoundingBox(start, end or start)
    if block_size is not None:
        _check_multiple(chunk_size, block_size)
        region = region.aligned_outward(block_size)
    if count is None:
        return BoxGrid.covering(region, chunk_size, respect_stop=respect_stop)
    if not respect_stop:
        return BoxGrid(region.start, chunk_size, chunk_size, count)
    largest = -(-region.size // chunk_size)
    if any(n > limit for n, limit in zip(count, largest, strict=True)):
        msg = (
            f"--grid-size {count} is too large: with --respect-stop, each box must begin before "
            f"the end of the region, {region.stop}, but some boxes of size {chunk_size} do not "
            f"(zyx, voxels); the largest grid that works is {count.low(largest)}"
        )
        raise OptionError(msg)
    return BoxGrid(region.start, chunk_size, chunk_size, count, region.stop)


def cells_touching(grid: BoxGrid, box: BoundingBox) -> tuple[slice, slice, slice]:
    """Return, for each axis, the slice of the cells whose boxes share a voxel with *box*.

    In this example, the slice is 1 to 3 (exclusive):

    ```
    cell         0     1     2     3     4
    grid      |-----|-----|-----|-----|-----|
    box              |-------|
    ```
    """
    inside = box.intersection(grid.bounds)
    if inside.is_empty:
        return slice(0), slice(0), slice(0)
    # The first box that ends after the start, and the first that begins at or after the stop.
    first = (inside.start - grid.start - grid.size) // grid.stride + 1
    stop = -(-(inside.stop - grid.start) // grid.stride)
    low, high = first.high((0, 0, 0)), stop.low(grid.count)
    z, y, x = (slice(a, b) for a, b in zip(low, high, strict=True))
    return z, y, x


def _check_multiple(chunk_size: Iterable[int], block_size: Zyx) -> None:
    size = Zyx.of(chunk_size)
    if any(size % block_size):
        bad = next(name for name, rest in zip(AXES, size % block_size, strict=True) if rest)
        nearest = (-(-size // block_size)) * block_size
        msg = (
            f"--chunk-size {size} is not a multiple of --aligned-block-size {block_size} (zyx, "
            f"voxels) along {bad}; the next larger size that works is {nearest}"
        )
        raise OptionError(msg)

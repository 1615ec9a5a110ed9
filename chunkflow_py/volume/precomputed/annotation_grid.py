"""Choose the cells of the spatial index of annotations, and list the annotations in each cell.

From one level to the next, cells are halved along their longest axis (in nanometres), and along
each axis that is at least three quarters as long. No cell becomes smaller than a given limit.
The upper bound of the grid is increased so that the size of a cell is a whole number of voxels,
because cloud-volume expects a whole number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume.precomputed.sharding import number_of_block

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

_AT_ONCE = 1 << 20  # pairs of an annotation and a cell
_SAME = 0.75  # cells are also halved along axes that are at least this fraction of the longest


@dataclass(frozen=True)
class Grid:
    """The cells of one level of a spatial index.

    Attributes:
        start: start of the first cell, voxels, zyx.
        cell: size of a cell, voxels, zyx.
        count: number of cells along each axis.
    """

    start: Zyx
    cell: Zyx
    count: Zyx

    def pairs(
        self, kind: str, geometry: NDArray[np.float32]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint64]]]:
        """Yield all pairs of an annotation and a cell that intersect, in batches of limited size.

        Args:
            kind: kind of the annotations.
            geometry: p positions of each of n annotations, voxels, zyx; shape (n, p, 3).

        Yields:
            Two arrays with an item for each pair: the index of the annotation, in ascending order,
            and the number of the cell.
        """
        low, high = geometry.min(axis=1), geometry.max(axis=1)
        if kind == "ellipsoid":
            low, high = geometry[:, 0] - geometry[:, 1], geometry[:, 0] + geometry[:, 1]
        first, last = self._cells(low), self._cells(high)
        extent = last - first + 1
        ends = np.cumsum(extent.prod(axis=1))
        row = 0
        while row < len(geometry):
            done = ends[row - 1] if row else 0
            stop = max(row + 1, int(np.searchsorted(ends, done + _AT_ONCE, "right")))
            rows, cells = _each_cell(first[row:stop], extent[row:stop])
            if kind in ("line", "ellipsoid"):
                meets = self._meets(kind, geometry[row:stop][rows], cells)
                rows, cells = rows[meets], cells[meets]
            yield rows + row, cell_numbers(cells, self.count)
            row = stop

    def _cells(self, positions: NDArray[np.float32]) -> NDArray[np.int64]:
        # A position on the upper bound is in the last cell.
        cells = np.floor((positions.astype(np.float64) - self.start) / self.cell)
        return np.clip(cells, 0, np.array(self.count) - 1).astype(np.int64)

    def _meets(
        self, kind: str, geometry: NDArray[np.float32], cells: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Return whether line or ellipsoid i intersects cell i."""
        low = cells * np.array(self.cell) + self.start
        first, second = geometry[:, 0].astype(float), geometry[:, 1].astype(float)
        if kind == "ellipsoid":
            away = np.clip(first, low, low + self.cell) - first
            with np.errstate(divide="ignore", invalid="ignore"):
                parts = np.where(away == 0, 0, away / second)
            inside: NDArray[np.bool_] = (parts**2).sum(axis=1) <= 1
            return inside
        step = second - first
        with np.errstate(divide="ignore", invalid="ignore"):
            a, b = (low - first) / step, (low + self.cell - first) / step
        # The candidates surround the line, so an axis along which it does not extend has no limits.
        enter = np.where(step == 0, 0, np.minimum(a, b)).max(axis=1)
        leave = np.where(step == 0, 1, np.maximum(a, b)).min(axis=1)
        meets: NDArray[np.bool_] = np.maximum(enter, 0) <= np.minimum(leave, 1)
        return meets


def cell_numbers(cells: NDArray[np.int64], count: Zyx) -> NDArray[np.uint64]:
    """Return the compressed Morton codes of *cells*, (n, 3), zyx, in a grid of *count* cells."""
    z, y, x = cells.T.astype(np.uint64)
    return number_of_block((z, y, x), count)


def _each_cell(
    first: NDArray[np.int64], extent: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    counts = extent.prod(axis=1)
    rows = np.repeat(np.arange(len(first)), counts)
    rank = np.arange(len(rows)) - np.repeat(np.cumsum(counts) - counts, counts)
    size = extent[rows]
    parts = (rank // (size[:, 1] * size[:, 2]), rank // size[:, 2] % size[:, 1], rank % size[:, 2])
    return rows, first[rows] + np.stack(parts, axis=1)


def levels_of(
    bounds: BoundingBox, voxel_size_nm: tuple[float, float, float], smallest: Zyx
) -> list[Grid]:
    """Return the grids of all levels, from a grid of one cell to the grid of the smallest cells.

    Args:
        bounds: box that contains all annotations.
        voxel_size_nm: edge lengths of a voxel, nanometres, zyx.
        smallest: lower limit of the size of a cell, voxels, zyx.
    """
    counts = [np.ones(3, np.int64)]
    while True:
        cell = np.array(bounds.size) / counts[-1]
        can = cell / 2 >= smallest
        if not can.any():
            break
        length = cell * voxel_size_nm
        longest = can & (length >= _SAME * length[can].max())
        counts.append(counts[-1] * np.where(longest, 2, 1))
    size: Any = -(-np.array(bounds.size) // counts[-1]) * counts[-1]
    return [Grid(bounds.start, Zyx.of((size // n).tolist()), Zyx.of(n.tolist())) for n in counts]

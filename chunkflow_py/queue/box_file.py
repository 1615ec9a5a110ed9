"""A file of task boxes: a NumPy array with one row a box, made for job arrays."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.store.local import replacing
from chunkflow_py.task_order import cells

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.geometry import BoxGrid
    from chunkflow_py.task_order import Order

ROWS_AT_ONCE = 65536


def write_boxes(path: str | Path, grid: BoxGrid, indexes: range, order: Order = "raster") -> None:
    """Write some boxes of a grid to a .npy file, whole or not at all, in constant memory.

    The array is (n, 6) int64: z, y, x of the start, then z, y, x of the stop.

    Args:
        path: of the file; one that exists is replaced when the new one is complete.
        grid: of the boxes.
        indexes: which of them, step 1.
        order: in which they are numbered.

    Raises:
        VolumeError: the file cannot be written.
    """
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(np.int64)),
        "fortran_order": False,
        "shape": (len(indexes), 6),
    }
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        along = cells(grid.count, order, indexes.start)
        for first in range(0, len(indexes), ROWS_AT_ONCE):
            part = indexes[first : first + ROWS_AT_ONCE]
            if order == "raster":
                numbers = np.stack(
                    np.unravel_index(np.arange(part.start, part.stop), grid.count), axis=1
                )
            else:
                numbers = np.array(list(islice(along, len(part))), np.int64)
            file.write(_rows(grid, numbers).tobytes())


def _rows(grid: BoxGrid, numbers: NDArray[Any]) -> NDArray[Any]:
    start = np.asarray(grid.start, np.int64) + numbers * np.asarray(grid.stride, np.int64)
    stop = start + np.asarray(grid.size, np.int64)
    if grid.clip_stop is not None:
        stop = np.minimum(stop, np.asarray(grid.clip_stop, np.int64))
    return np.concatenate([start, stop], axis=1).astype(np.int64, copy=False)

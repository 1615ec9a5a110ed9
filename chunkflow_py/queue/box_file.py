"""Write the boxes of tasks to a NumPy file; read them from NumPy, JSON and CSV files.

| file   | representation of a box                                                                |
|--------|----------------------------------------------------------------------------------------|
| .npy   | a row of integers: z, y, x of the start, then z, y, x of the stop                      |
| .json  | an item of a list: ``"0-64_0-512_0-512"``, ``{"start": [z, y, x], "stop": [z, y, x]}`` |
|        | or ``[[z0, z1], [y0, y1], [x0, x1]]``; a string may have a time: ``"t3_0-64_…"``       |
| .csv   | a row: a box string, or z0, z1, y0, y1, x0, x1. A header row is optional               |

If a .csv file has a header row, its columns can be in any order, and further columns are ignored. A
column of box strings is called ``bbox``. Columns of numbers are called z0 (or z_start, start_z), z1
(or z_stop, stop_z), and likewise for y and x.

Boxes are half-open, in voxels. Nothing in the files is evaluated or unpickled.
"""

from __future__ import annotations

import csv
import logging
import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import mapped_npy, parse_json
from chunkflow_py.core.geometry import AXES, BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.errors import ChunkflowError, OptionError
from chunkflow_py.store.local_files import os_errors, replacing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

ROWS_AT_ONCE = 65536
_LARGEST = 1 << 62  # voxels: int64 arithmetic on larger positions could overflow
_INTEGER = re.compile(r"[+-]?[0-9]{1,20}")
_BOX = re.compile(r"(?:t[0-9]+_)?[0-9_-]{11,}")  # a box string, valid or not
_NAMES = {  # name of a CSV column -> index in z0, z1, y0, y1, x0, x1
    name: 2 * axis + end
    for axis, letter in enumerate(AXES)
    for end, word in enumerate(("start", "stop"))
    for name in (f"{letter}{end}", f"{letter}_{word}", f"{word}_{letter}")
}
_COLUMNS = "z0,z1,y0,y1,x0,x1"


def write_boxes(path: str | Path, plan: Plan) -> None:
    """Write the boxes of a plan's tasks to a .npy file, atomically.

    The array is (n, 6) int64: z, y, x of the start, then z, y, x of the stop. The memory needed
    does not grow with the number of tasks.

    Args:
        path: file to write; an existing file is replaced when the new file is complete.
        plan: tasks whose boxes are written, in the order of the plan.

    Raises:
        OptionError: the tasks have a time index, which the file cannot store.
        VolumeError: the file cannot be written.
    """
    first = next(iter(plan), None)
    if first is not None and (region := plan.region(first)).time is not None:
        msg = (
            f"{path} can store only boxes, but the task {region} has a time index; send the tasks "
            f"to a queue with --queue-name instead"
        )
        raise OptionError(msg)
    header = {
        "descr": np.lib.format.dtype_to_descr(np.dtype(np.int64)),
        "fortran_order": False,
        "shape": (len(plan), 6),
    }
    grid, numbers = plan.boxes, iter(plan)
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        while len(part := np.fromiter(islice(numbers, ROWS_AT_ONCE), np.int64)):
            if isinstance(grid, BoxGrid):
                rows = _rows(grid, part % len(grid))
            else:
                boxes = [plan.region(int(number)).bbox for number in part]
                rows = np.array([(*box.start, *box.stop) for box in boxes], np.int64)
            file.write(rows.tobytes())


def _rows(grid: BoxGrid, positions: NDArray[Any]) -> NDArray[Any]:
    cells = np.stack(np.unravel_index(positions, grid.count), axis=1)
    start = np.asarray(grid.start, np.int64) + cells * np.asarray(grid.stride, np.int64)
    stop = start + np.asarray(grid.size, np.int64)
    if grid.clip_stop is not None:
        stop = np.minimum(stop, np.asarray(grid.clip_stop, np.int64))
    return np.concatenate([start, stop], axis=1).astype(np.int64, copy=False)


def read_regions(path: str | Path) -> list[Region]:
    """Read the boxes of a file, in the order of the file, without duplicates.

    Box strings may have a time index. The number of duplicates is logged.

    Args:
        path: a .csv, .json or .npy file in a format that the docstring of this module describes.

    Raises:
        OptionError: the file is malformed; the message names the row or item and the problem.
        VolumeError: the file cannot be read.
    """
    readers = {".csv": _from_csv, ".json": _from_json, ".npy": _from_npy}
    kind = Path(path).suffix.lower()
    if kind not in readers:
        msg = f"{path} ({kind or 'no extension'}) must be a .csv, .json or .npy file of boxes"
        raise OptionError(msg)
    with os_errors("read", path):
        try:
            boxes = list(readers[kind](Path(path)))
        except ChunkflowError:
            raise
        except (ValueError, EOFError, ArithmeticError, MemoryError, csv.Error) as error:
            msg = f"{path} is not a valid {kind} file of boxes: {error}; save the file again"
            raise OptionError(msg) from error
    if not boxes:
        msg = f"{path} contains no boxes; write one box per row"
        raise OptionError(msg)
    distinct = list(dict.fromkeys(boxes))
    if duplicates := len(boxes) - len(distinct):
        logger.info(
            "%d of the %d boxes in %s are duplicates and are ignored", duplicates, len(boxes), path
        )
    return distinct


def read_rows(path: str | Path, first: int, count: int) -> tuple[list[BoundingBox], int]:
    """Return consecutive boxes of a .npy file, and the number of all boxes in the file.

    Args:
        path: file that `write_boxes` or `numpy.save` wrote.
        first: row of the first box to read.
        count: number of boxes to read; fewer are returned at the end of the file.

    Raises:
        OptionError: the file is malformed; the message names the row and the problem.
        VolumeError: the file cannot be read.
    """
    with os_errors("read", path):
        try:
            array = _array(Path(path))
        except (ValueError, EOFError, ArithmeticError, MemoryError) as error:
            if isinstance(error, OptionError):
                raise
            msg = (
                f"{path} is not a valid .npy file of boxes: {error}; "
                f"create the file with generate-tasks -f"
            )
            raise OptionError(msg) from error
        rows = array[first : first + count].tolist()
    boxes = [_box(r[:3], r[3:], f"row {n} of {path}") for n, r in enumerate(rows, first)]
    return boxes, len(array)


def _from_npy(path: Path) -> Iterator[Region]:
    array = _array(path)
    for first in range(0, len(array), ROWS_AT_ONCE):
        for row, numbers in enumerate(array[first : first + ROWS_AT_ONCE].tolist(), first):
            yield Region(_box(numbers[:3], numbers[3:], f"row {row} of {path}"))


def _array(path: Path) -> NDArray[Any]:
    """Map a file of boxes into memory."""
    # Refuse pickles, which could run code, before reading anything else.
    array = mapped_npy(path)
    if not isinstance(array, np.ndarray):
        array.close()
        msg = f"{path} is an archive of arrays; save a single array with numpy.save instead"
        raise OptionError(msg)
    if array.dtype.kind not in "iu" or array.ndim != 2 or array.shape[1] != 6:
        msg = (
            f"{path} contains {array.dtype} of shape {array.shape}, but boxes are integers "
            "of shape (n, 6): z, y, x of the start, then z, y, x of the stop"
        )
        raise OptionError(msg)
    return array


def _from_json(path: Path) -> Iterator[Region]:
    items = parse_json(path.read_text("utf-8"), None)
    if not isinstance(items, list):
        msg = f"{path} contains {_short(items)} instead of a list of boxes; put the boxes into [ ]"
        raise OptionError(msg)
    for number, item in enumerate(items):
        where = f"item {number} of {path}"
        if isinstance(item, str):
            yield _parsed(item, where)
        elif isinstance(item, dict) and set(item) == {"start", "stop"}:
            yield Region(_box(item["start"], item["stop"], where))
        elif isinstance(item, list) and all(isinstance(p, list) and len(p) == 2 for p in item):
            yield Region(_box([pair[0] for pair in item], [pair[1] for pair in item], where))
        else:
            msg = (
                f'{where} is {_short(item)}, which is not a box; write "0-64_0-512_0-512", '
                '{"start": [0, 0, 0], "stop": [64, 512, 512]} or [[0, 64], [0, 512], [0, 512]]'
            )
            raise OptionError(msg)


def _from_csv(path: Path) -> Iterator[Region]:
    # utf-8-sig: some editors write a byte-order mark.
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, strict=True)
        columns, width = None, 0
        for cells in reader:
            row = [cell.strip() for cell in cells]
            where = f"line {reader.line_num} of {path}"
            if not any(row):
                continue
            if columns is None:
                if not any(_INTEGER.fullmatch(cell) or _BOX.fullmatch(cell) for cell in row):
                    columns, width = _columns([cell.lower() for cell in row], where), len(row)
                    continue
                if len(row) not in (1, 6):
                    msg = (
                        f"{where} has {len(row)} columns, but a file without a header row must "
                        f"have one column of box strings, or the six columns {_COLUMNS}"
                    )
                    raise OptionError(msg)
                columns, width = list(range(len(row))), len(row)
            if len(row) != width:
                msg = f"{where} has {len(row)} columns, but the first row has {width}"
                raise OptionError(msg)
            values = [row[column] for column in columns]
            if len(values) == 1:
                yield _parsed(values[0], where)
            else:
                numbers = [_integer(value, where) for value in values]
                yield Region(_box(numbers[0::2], numbers[1::2], where))


def _columns(names: list[str], where: str) -> list[int]:
    """Return the index of the column that contains box strings, or else six column indices.

    The six indices are those of the columns z0, z1, y0, y1, x0, x1.
    """
    corners = [(_NAMES[name], column) for column, name in enumerate(names) if name in _NAMES]
    boxes = [column for column, name in enumerate(names) if name in ("bbox", "box")]
    if len(boxes) == 1 and not corners:
        return boxes
    if not boxes and sorted(index for index, _ in corners) == [0, 1, 2, 3, 4, 5]:
        return [column for _, column in sorted(corners)]
    msg = (
        f"{where} names the columns {', '.join(names)}, but boxes need one column bbox, or the "
        f"columns {_COLUMNS}, each once (z_start and start_z also mean z0)"
    )
    raise OptionError(msg)


def _integer(text: str, where: str) -> int:
    if not _INTEGER.fullmatch(text):
        msg = f"{where} contains {_short(text)} instead of a whole number of voxels"
        raise OptionError(msg)
    return int(text)


def _parsed(text: str, where: str) -> Region:
    try:
        region = Region.parse(text)
    except ValueError as error:  # also raised by int() for thousands of digits
        msg = f"{where}: {_short(text)} is not a box such as 0-64_0-512_0-512 ({_short(error)})"
        raise OptionError(msg) from error
    return region.with_box(_box([*region.bbox.start], [*region.bbox.stop], where))


def _box(start: Any, stop: Any, where: str) -> BoundingBox:
    for values in (start, stop):
        whole = isinstance(values, list) and all(type(value) is int for value in values)
        if not whole or len(values) != 3:
            msg = f"{where} contains {_short(values)} instead of three whole numbers z, y, x"
            raise OptionError(msg)
    for axis, low, high in zip(AXES, start, stop, strict=True):
        if not -_LARGEST <= low < high <= _LARGEST:
            msg = (
                f"{where} goes from {low} to {high} along {axis}; the stop of a box must be larger "
                f"than its start, and both must be within {_LARGEST} voxels of the origin"
            )
            raise OptionError(msg)
    return BoundingBox(Zyx(*start), Zyx(*stop))


def _short(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 80 else f"{text[:80]}…"

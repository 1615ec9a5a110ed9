"""Choose block and shard sizes so that each task consists of whole shards and fits into memory.

```
tasks   |-------|-------|-------|-------|    boundaries on a common grid
blocks  |---|---|---|---|---|---|---|---|    up to 64 voxels along an axis; whole blocks per task
shards  |-------|-------|-------|-------|    2^n blocks; with --task-memory, one shard per task
```
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Sequence

USUAL_BLOCK = 64  # voxels along each axis
_SMALL_BLOCK = 16
_LARGE_BLOCK = 256
_USELESS_BLOCK = 4  # below this along an axis, even a small volume has millions of files

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def common_unit(boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox) -> Zyx:
    """Return the step (voxels, zyx) of the coarsest grid on which the boxes begin and end.

    The grid starts at the start of *bounds*. Box boundaries that coincide with the boundaries of
    *bounds*, or lie beyond them, are ignored. If all box boundaries along an axis are ignored, the
    step along this axis is 0.
    """
    steps = []
    for axis, spans in enumerate(_spans(boxes)):
        first, last = bounds.start[axis], bounds.stop[axis]
        inside = [edge - first for span in spans for edge in span if first < edge < last]
        steps.append(math.gcd(*inside))
    return Zyx(*steps)


def fitting_block(boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox) -> Zyx:
    """Return a block size of a new volume, chosen so that tasks consist of whole blocks.

    Along each axis, the block size depends on the step of the boxes (see `common_unit`) and on the
    largest divisor of this step that is at most 64:

    | step       | divisor  | block size                                                      |
    |------------|----------|-----------------------------------------------------------------|
    | 0          | any      | 64                                                              |
    | 1, 2 or 3  | any      | length of the longest task; some tasks may end inside a block   |
    | 4 to 256   | below 16 | the step                                                        |
    | above 256  | below 4  | the step                                                        |
    | all others |          | the divisor                                                     |

    Along each axis, a block is at most as long as *bounds*.
    """
    block = []
    common = common_unit(boxes, bounds)
    for step, spans, extent in zip(common, _spans(boxes), bounds.size, strict=True):
        best = max(d for d in range(1, USUAL_BLOCK + 1) if step % d == 0)
        if 0 < step <= _LARGE_BLOCK and best < _SMALL_BLOCK:
            best = step
        if best < _USELESS_BLOCK:
            longest = max(high - low for low, high in spans)
            best = longest if step < _USELESS_BLOCK else step
        block.append(max(1, min(best, extent)))
    return Zyx(*block)


def _spans(boxes: BoxGrid | Sequence[BoundingBox] | None) -> list[list[tuple[int, int]]]:
    """Return three lists, for z, y and x, with (start, stop) of each box along this axis."""
    if isinstance(boxes, BoxGrid):
        return [boxes.intervals(axis) for axis in range(3)]
    return [[(box.start[axis], box.stop[axis]) for box in boxes or ()] for axis in range(3)]


def shard_for_memory(
    block: Zyx, extent: Zyx, *, memory_bytes: int, input_bytes: int, output_bytes: int
) -> Zyx:
    """Return the extent of the largest shard that a task can write within a limit of its memory.

    The task is as large as the shard. It keeps its input, its output and the encoded shard in
    memory. The encoded shard may be as large as the output, so the task takes
    voxels · (input_bytes + 2 · output_bytes). The memory of the network and of the margin around
    the task is not included.

    The shard begins as one block and is doubled along x, y, z, x, …, because sharded precomputed
    volumes number their blocks in this order. An axis is left out once the shard reaches the end of
    the volume along this axis.

    Args:
        block: extent of a block, voxels, zyx.
        extent: extent of the volume, voxels, zyx.
        memory_bytes: limit of the memory of a task.
        input_bytes: bytes per input voxel, all channels together.
        output_bytes: bytes per output voxel, all channels together.

    Raises:
        OptionError: not even a task of one block fits into the memory.
    """
    voxel_bytes = input_bytes + 2 * output_bytes
    most = memory_bytes // voxel_bytes
    if block.product() > most:
        msg = (
            f"a task of one block {block} (zyx, voxels) takes {block.product() * voxel_bytes} "
            f"bytes ({input_bytes} per voxel for the input, 2 x {output_bytes} for the output and "
            f"its encoded copy), more than --task-memory {memory_bytes}; choose a smaller "
            "--block-size or a larger --task-memory"
        )
        raise OptionError(msg)
    shard, grown = block, True
    while grown:
        grown = False
        for axis in (2, 1, 0):
            if shard[axis] >= extent[axis]:
                continue
            longer = Zyx(*(2 * n if a == axis else n for a, n in enumerate(shard)))
            if longer.product() > most:
                return shard
            shard, grown = longer, True
    return shard


def parsed_bytes(text: str) -> int:
    """Parse a number of bytes such as ``8GB`` or ``512MiB``.

    Raises:
        OptionError: *text* is not a number of bytes, or is less than 1.
    """
    match = _SIZE.fullmatch(text.strip())
    count = 0
    if match:
        number, letter, binary = match.groups()
        step = 1024 if binary else 1000
        count = int(float(number) * step ** " KMGT".index(letter.upper() or " "))
    if count < 1:
        msg = f"{text!r} is not an amount of memory; write 8GB, 512MiB or a number of bytes"
        raise OptionError(msg)
    return count

"""Blocks and shards of a new volume, chosen so that no task cuts one and a task fits into memory.

```
tasks   |-----------|-----------|-----------|    what all faces have in common
blocks  |---|---|---|---|---|---|---|---|---|    up to 64 voxels, and no task cuts one
shards  |-------|-------|-------|-------|---|    a power of two of blocks: a task of its own
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
_USELESS_BLOCK = 4  # below this along an axis, a volume of any size is millions of files

_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)


def common_unit(boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox) -> Zyx:
    """Return the largest step on whose grid, from the start of *bounds*, all faces lie.

    Faces on or beyond those of *bounds* do not count; 0 along an axis without any other.
    """
    steps = []
    for axis, spans in enumerate(_spans(boxes)):
        first, last = bounds.start[axis], bounds.stop[axis]
        steps.append(math.gcd(*(f - first for span in spans for f in span if first < f < last)))
    return Zyx(*steps)


def fitting_block(boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox) -> Zyx:
    """Return a block size for a new volume, so that no task cuts a block.

    That is 64 voxels, or the largest divisor of what the tasks have in common up to that; if it
    is below 16, what the tasks have in common itself, up to 256. Tasks that have less than 4
    voxels in common, but are larger, get blocks as large as they are, which they cut.
    """
    block = []
    common = common_unit(boxes, bounds)
    for step, spans, extent in zip(common, _spans(boxes), bounds.size, strict=True):
        best = max(d for d in range(1, USUAL_BLOCK + 1) if step % d == 0)
        if 0 < step <= _LARGE_BLOCK and best < _SMALL_BLOCK:
            best = step
        if best < _USELESS_BLOCK:
            largest = max(high - low for low, high in spans)
            best = largest if step < _USELESS_BLOCK else step
        block.append(max(1, min(best, extent)))
    return Zyx(*block)


def _spans(boxes: BoxGrid | Sequence[BoundingBox] | None) -> list[list[tuple[int, int]]]:
    """Return (start, stop) of the boxes along z, y and x."""
    if isinstance(boxes, BoxGrid):
        return [boxes.intervals(axis) for axis in range(3)]
    return [[(box.start[axis], box.stop[axis]) for box in boxes or ()] for axis in range(3)]


def shard_for_memory(
    block: Zyx, extent: Zyx, *, memory_bytes: int, input_bytes: int, output_bytes: int
) -> Zyx:
    """Return the largest shard that a task can make in memory; the task is as large as the shard.

    A task holds its input, its output and the encoded shard, which may be as large as the output:
    voxels · (input_bytes + 2 · output_bytes). What the network takes beside that, and the margin
    that is read around the task, are not part of it.

    A shard is a block doubled along x, y, z, x, … (the order in which sharded precomputed volumes
    count their blocks), along an axis no further than to the end of the volume.

    Args:
        block: extent of a block, voxels.
        extent: of the volume, voxels.
        memory_bytes: what a task may take.
        input_bytes: of a voxel that is read, all channels together.
        output_bytes: of a voxel that is written, all channels together.

    Raises:
        OptionError: not even a block fits.
    """
    voxel_bytes = input_bytes + 2 * output_bytes
    most = memory_bytes // voxel_bytes
    if block.product() > most:
        msg = (
            f"a task of one block {block} (zyx, voxels) takes {block.product() * voxel_bytes} "
            f"bytes ({input_bytes} a voxel for the input, 2 x {output_bytes} for the output and "
            f"what is encoded of it), more than --task-memory of {memory_bytes}; make the block "
            "smaller or the memory larger"
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
    """Return the number of bytes that *text* says, such as ``8GB`` or ``512MiB``.

    Raises:
        OptionError: it says none.
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

"""Which part of which block a read or a write touches.

```
blocks    |------|------|------|------|
wanted        |-------------|                  three pieces: inside of their block, and
               ..|------|...                   outside of it, in the array that is read or written
```
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chunkflow_py.volume.engine.layout import Index

Positions = range | list[int]  # along one axis of the array


@dataclass(frozen=True)
class Piece:
    """Part of an array that lies in one block.

    Attributes:
        block: index of the block, one number an axis.
        inside: where in the block.
        outside: where in the array that is read or written.
    """

    block: Index
    inside: tuple[slice | list[int], ...]
    outside: tuple[slice | list[int], ...]


def pieces(wanted: Sequence[Positions], block: Sequence[int]) -> Iterator[Piece]:
    """Yield the pieces of the positions *wanted* along each axis, for blocks of extent *block*."""
    spans = [list(_spans(each, length)) for each, length in zip(wanted, block, strict=True)]
    for combination in itertools.product(*spans):
        index, inside, outside = zip(*combination, strict=True)
        yield Piece(index, inside, outside)


def _spans(
    wanted: Positions, length: int
) -> Iterator[tuple[int, slice | list[int], slice | list[int]]]:
    """Yield block index, positions inside and positions outside of it along one axis."""
    if isinstance(wanted, range):
        for block in range(wanted.start // length, -(-wanted.stop // length)):
            low = max(wanted.start, block * length)
            high = min(wanted.stop, (block + 1) * length)
            inside = slice(low - block * length, high - block * length)
            yield block, inside, slice(low - wanted.start, high - wanted.start)
        return
    for block in sorted({position // length for position in wanted}):
        here = [i for i, position in enumerate(wanted) if position // length == block]
        yield block, [wanted[i] - block * length for i in here], here

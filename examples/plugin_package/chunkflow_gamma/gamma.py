"""Brighten or darken an image by gamma correction.

Example: chunkflow load-h5 --file-name raw.h5 gamma --power 0.5 save-h5 --file-name bright.h5

A power below 1 brightens, one above 1 darkens.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import ChunkError
from chunkflow_py.stages import transform

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py import Chunk


def gamma(chunk: Chunk, power: float = 1.0) -> Chunk:
    """Return ``max * (chunk / max) ** power``, where ``max`` is the largest value of the dtype.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any unsigned integer dtype.
        power: 1 changes nothing.

    Returns:
        A chunk of the same position, shape and dtype.

    Raises:
        ChunkError: the dtype is not an unsigned integer.
    """
    import numpy as np

    if chunk.dtype.kind != "u":
        msg = f"gamma needs unsigned integers, got {chunk.dtype}; quantize the chunk first"
        raise ChunkError(msg)
    largest = np.iinfo(chunk.dtype).max
    changed = np.rint((chunk.array / largest) ** power * largest)
    return chunk.with_array(changed.astype(chunk.dtype), kind=chunk.kind)


@transform
@click.option(
    "--power", type=click.FloatRange(0, min_open=True), default=1.0, show_default=True,
    help="Below 1 brightens, above 1 darkens.",
)  # fmt: skip
def command(power: float) -> Callable[[Chunk], Chunk]:
    """Return the operator's function."""
    return partial(gamma, power=power)

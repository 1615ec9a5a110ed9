r"""Make a mask of the voxels that are not 0.

Example: chunkflow load-h5 --file-name raw.h5 nonzero-mask save-h5 --file-name mask.h5

The mask is 1 where at least one channel is not 0. With --inverse, the mask is 1 where all channels
are 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.pipeline.operator import transform

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk, Voxels


def nonzero_mask(chunk: Chunk, *, inverse: bool = False) -> Chunk:
    """Return a mask that is 1 where at least one channel of *chunk* is not 0.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any dtype; NaN is not 0.
        inverse: return a mask that is 1 where all channels are 0.

    Returns:
        A chunk (z, y, x), uint8, with the values 0 and 1. Its kind is ``segmentation``.
    """
    array = chunk.array if chunk.ndim == 4 else chunk.array[None]
    mask = array.any(axis=0)
    return chunk.with_array((~mask if inverse else mask).view("uint8"), kind="segmentation")


@dataclass
class NonzeroMasker(OperatorBase):
    """Turns the chunk of every task into a mask of its voxels other than 0."""

    inverse: bool = False
    is_local: ClassVar[bool] = hook_value(True)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the dtype, channels and kind of the mask; *read* describes the input."""
        return type(read)("uint8", 1, "segmentation")

    def __call__(self, chunk: Chunk) -> Chunk:
        """Return the mask."""
        return nonzero_mask(chunk, inverse=self.inverse)


@transform
@click.option(
    "--inverse/--no-inverse",
    default=False,
    show_default=True,
    help="Set the mask to 1 where all channels are 0, instead of where one of them is not 0.",
)
def command(*, inverse: bool) -> NonzeroMasker:
    """Return the operator with its option."""
    return NonzeroMasker(inverse)

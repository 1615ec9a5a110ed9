r"""Multiply chunks by another chunk.

Example: chunkflow load-h5 --file-name raw.h5 load-h5 --file-name mask.h5 --output-name mask \
  multiply --multiplier-name mask save-h5 --file-name out.h5
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook_value
from chunkflow_py.errors import ChunkError
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import ItemName, paired_names, several_names_options

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Task


def multiply(chunk: Chunk, multiplier: Chunk) -> Chunk:
    """Return the voxel-wise product of *chunk* and *multiplier*.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype.
        multiplier: (c, z, y, x) with as many channels as *chunk*, or (z, y, x), which multiplies
            every channel. The box of *multiplier* must contain the box of *chunk*.

    Returns:
        A chunk with the box of *chunk*. If both chunks hold integers, the result has the dtype of
        *chunk*, else the dtype that NumPy chooses for the product.

    Raises:
        ChunkError: *multiplier* does not cover *chunk*; *multiplier* has neither 1 channel nor as
            many channels as *chunk*; or a product of integers could overflow.
    """
    import numpy as np

    if (common := multiplier.bbox.intersection(chunk.bbox)) != chunk.bbox:
        cut = "" if common.is_empty else f", or cut the chunk to the common part {common}"
        msg = (
            f"the multiplier covers {multiplier.bbox}, which does not contain the chunk's box "
            f"{chunk.bbox}; load a multiplier for this box{cut}"
        )
        raise ChunkError(msg)
    if multiplier.channels not in (1, chunk.channels):
        msg = (
            f"the multiplier has {multiplier.channels} channels, but the chunk has "
            f"{chunk.channels}; load a multiplier with 1 or {chunk.channels} channels"
        )
        raise ChunkError(msg)
    other = multiplier.cut(chunk.bbox).array
    if other.ndim > chunk.ndim:
        other = other[0]
    if chunk.dtype.kind not in "iu" or other.dtype.kind not in "biu":
        return chunk.with_array(chunk.array * other)
    if not chunk.array.size:
        return chunk
    limits = np.iinfo(chunk.dtype)
    extremes = [int(f(array)) for array in (chunk.array, other) for f in (np.min, np.max)]
    products = [a * b for a in extremes[:2] for b in extremes[2:]]
    if min(products) < limits.min or max(products) > limits.max:
        msg = (
            f"products could range from {min(products)} to {max(products)}, which does not fit "
            f"into {chunk.dtype}, the type of the chunk; scale the multiplier to [0, 1] or load "
            "the chunk as float32"
        )
        raise ChunkError(msg)
    return chunk.with_array(np.multiply(chunk.array, other, dtype=chunk.dtype, casting="unsafe"))


@dataclass
class Multiplier(OperatorBase):
    """Multiplies one or more chunks of a task by another chunk."""

    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    multiplier_name: str
    is_local: ClassVar[bool] = hook_value(True)

    def __call__(self, task: Task) -> Task:
        """Add the products to the task."""
        multiplier = task.chunk(self.multiplier_name)
        for source, target in zip(self.input_names, self.output_names, strict=True):
            task[target] = multiply(task.chunk(source), multiplier)
        return task


@operator("compute")
@several_names_options
@click.option(
    "--multiplier-name", "-m", type=ItemName("in"), required=True, help="Name of the multiplier."
)
@click.pass_context
def command(ctx: click.Context, /, multiplier_name: str, **_: tuple[str, ...] | None) -> Multiplier:
    """Check that every input has an output name, and return the operator."""
    return Multiplier(*paired_names(ctx), multiplier_name)

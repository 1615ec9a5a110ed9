"""Change the order of a chunk's axes, such as from zyx to xyz.

Example: chunkflow load-h5 -f written_as_xyz.h5 transpose save-h5 -f zyx.h5

--axes says which of the old axes become the new ones: with xyz, the new z is the old x. Offset,
voxel size and domain change with them, and the channels of affinity and vector maps. Tasks keep
their boxes: transpose what is loaded whole, or with save-h5, save-tif, which name files after them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.geometry import AXES, BoundingBox, Zyx
from chunkflow_py.params import input_option, output_option
from chunkflow_py.stages import operator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.chunk import Chunk
    from chunkflow_py.task import Task

ORDERS = ("zyx", "zxy", "yzx", "yxz", "xzy", "xyz")


def transpose(chunk: Chunk, axes: str = "xyz") -> Chunk:
    """Return *chunk* with its axes in another order, as a view unless channels change places.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any dtype; the channel axis stays the first.
        axes: the old axes that become z, y and x; ``xyz`` turns their order around.

    Raises:
        OptionError: *axes* is not an order of z, y and x.
    """
    from chunkflow_py.chunk import Chunk

    order = _order(axes)
    array = chunk.array
    if chunk.kind in ("affinity", "vector") and chunk.channels == 3:
        # Channels are x, y, z: the new one of an axis is the old one of what it was.
        array = array[[2 - axis for axis in reversed(order)]]
    first = chunk.ndim - 3
    array = array.transpose((*range(first), *(first + axis for axis in order)))
    size_nm = [chunk.voxel_size_nm[axis] for axis in order]
    offset = _turned(chunk.voxel_offset, order)
    return Chunk(array, offset, size_nm, chunk.kind, _turned_box(chunk.domain, order))


def _order(axes: str) -> tuple[int, ...]:
    if sorted(axes) != sorted(AXES):
        msg = f"axes {axes!r} of transpose is not an order of z, y and x; write one of {ORDERS}"
        raise OptionError(msg)
    return tuple(AXES.index(axis) for axis in axes)


def _turned(values: Sequence[int], order: tuple[int, ...]) -> Zyx:
    return Zyx.of(values[axis] for axis in order)


def _turned_box(box: BoundingBox, order: tuple[int, ...]) -> BoundingBox:
    return BoundingBox(_turned(box.start, order), _turned(box.stop, order))


@dataclass
class Transposer:
    """Transposes a chunk of every task. No transform: the result has another box."""

    axes: str = "xyz"
    input_name: str = "chunk"
    output_name: str = "chunk"
    keeps_voxels: bool = field(default=True, init=False)
    _outline: Any = field(default=None, init=False, repr=False)

    def prepare(self, outline: Any) -> None:
        """Take the bounds and the voxel size of what comes (an `Outline`)."""
        self._outline = outline

    def bounds(self) -> BoundingBox | None:
        """Return the bounds of what is made."""
        domain = self._outline.domain
        return None if domain is None else _turned_box(domain, _order(self.axes))

    def known_voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Return the voxel size of what is made."""
        size = self._outline.voxel_size_nm
        if size is None:
            return None
        z, y, x = (size[axis] for axis in _order(self.axes))
        return z, y, x

    def __call__(self, task: Task) -> Task:
        """Transpose the chunk."""
        task[self.output_name] = transpose(task.chunk(self.input_name), self.axes)
        return task


@operator("compute")
@input_option()
@output_option()
@click.option("--axes", "-a", type=click.Choice(ORDERS), default="xyz", show_default=True,
              help="The old axes that become z, y and x.")  # fmt: skip
def command(input_name: str, output_name: str, axes: str) -> Transposer:
    """Take the order."""
    return Transposer(axes, input_name, output_name)

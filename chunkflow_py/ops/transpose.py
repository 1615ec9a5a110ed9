"""Change the order of a chunk's axes.

Example: chunkflow load-h5 --file-name written_as_xyz.h5 transpose save-h5 --file-name zyx.h5

--axes lists the old axes that become z, y and x: with xyz, the new z is the old x. transpose also
reorders the offset, voxel size and domain of the chunk, the task's box, and the channels of
affinity and vector maps. The operators that follow use the new order of axes. Other chunks of the
task keep the old order of axes, so save these chunks before transpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.geometry import AXES
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.core.task import Task

ORDERS = ("zyx", "zxy", "yzx", "yxz", "xzy", "xyz")


def transpose(chunk: Chunk, axes: str = "xyz") -> Chunk:
    """Return *chunk* with its axes in another order.

    The result is a view of the array of *chunk*, unless channels are reordered.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any dtype; the channel axis stays the first.
        axes: the old axes that become z, y and x; ``xyz`` reverses the order of axes.

    Raises:
        OptionError: *axes* does not name each of z, y and x once.
    """
    from chunkflow_py.core.chunk import Chunk

    order = _order(axes)
    array = chunk.array
    if chunk.kind in ("affinity", "vector") and chunk.channels == 3:
        # Channels are x, y, z: the channel of a new axis is that of the old axis it came from.
        array = array[[2 - axis for axis in reversed(order)]]
    first = chunk.ndim - 3
    array = array.transpose((*range(first), *(first + axis for axis in order)))
    size_nm = [chunk.voxel_size_nm[axis] for axis in order]
    offset, domain = chunk.voxel_offset.turned(order), chunk.domain.turned(order)
    return Chunk(array, offset, size_nm, chunk.kind, domain)


def _order(axes: str) -> tuple[int, ...]:
    if sorted(axes) != sorted(AXES):
        msg = (
            f"transpose: --axes {axes!r} does not name each of z, y and x once; give one of "
            f"{ORDERS}"
        )
        raise OptionError(msg)
    return tuple(AXES.index(axis) for axis in axes)


@dataclass
class Transposer(OperatorBase):
    """Transposes a chunk of every task, and the box of the task."""

    axes: str = "xyz"
    input_name: str = "chunk"
    output_name: str = "chunk"
    keeps_voxels: bool = field(default=True, init=False, metadata=HOOK)
    is_local: bool = field(default=True, init=False, metadata=HOOK)
    _outline: Any = field(default=None, init=False, repr=False)

    @property
    @hook
    def order(self) -> tuple[int, ...]:
        """Indexes of the old axes that become z, y and x."""
        return _order(self.axes)

    @hook
    def prepare(self, outline: Any) -> None:
        """Store *outline*, an `Outline`, which contains the bounds and voxel size of the input."""
        self._outline = outline

    @hook
    def bounds(self) -> BoundingBox | None:
        """Return the bounds of the transposed volume; ``None`` if they are not known."""
        domain = self._outline.domain
        return None if domain is None else domain.turned(self.order)

    @hook
    def known_voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Return the voxel size of the transposed chunk; ``None`` if it is not known."""
        size = self._outline.voxel_size_nm
        if size is None:
            return None
        z, y, x = (size[axis] for axis in self.order)
        return z, y, x

    def __call__(self, task: Task) -> Task:
        """Transpose the chunk, and the task's box."""
        task[self.output_name] = transpose(task.chunk(self.input_name), self.axes)
        if task.region is not None:
            task.region = task.region.with_box(task.region.bbox.turned(self.order))
        return task


@operator("compute")
@input_option()
@output_option()
@click.option("--axes", "-a", type=click.Choice(ORDERS), default="xyz", show_default=True,
              help="Old axes that become z, y and x.")  # fmt: skip
def command(input_name: str, output_name: str, axes: str) -> Transposer:
    """Return the operator for this order of axes."""
    return Transposer(axes, input_name, output_name)

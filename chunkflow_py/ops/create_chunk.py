"""Create a synthetic chunk: sine pattern, zeros or random.

With --dtype uint16, uint32 or uint64, the chunk is a segmentation: the patterns sin and random then
consist of the labels 1 to 4 and of background.

Example: chunkflow create-chunk --size 36 448 448 --pattern random save-h5 --file-name random.h5
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import floats_option, output_option, zyx_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk, Kind, Voxels
    from chunkflow_py.core.task import Task

LABELS = ("uint16", "uint32", "uint64")
DTYPES = ("uint8", "uint32", "uint16", "uint64", "float32", "float64")
Pattern = Literal["sin", "zero", "random"]


def create_chunk(
    size: Zyx = Zyx(64, 64, 64),
    dtype: str = "uint8",
    pattern: Pattern = "sin",
    voxel_offset: Zyx = Zyx(0, 0, 0),
    voxel_size_nm: tuple[float, float, float] = (1.0, 1.0, 1.0),
) -> Chunk:
    """Return a synthetic chunk; equal arguments give equal voxels.

    If the dtype is uint16, uint32 or uint64, the chunk is a segmentation with the labels 0 to 4:

    * ``sin`` makes parallel layers that cross the diagonal of the chunk, as in chunkflow 1.x.
    * ``random`` makes blocks of 8×8×8 voxels.

    For other dtypes, the chunk is an image in [0, 1] (floating point) or [0, 255] (uint8):

    * ``sin`` is a product of three sine waves. Their period is 32 voxels, counted from global
      position 0.
    * ``random`` is uniform noise.

    Args:
        size: extent, voxels, zyx.
        dtype: type of the voxels.
        pattern: ``zero``, ``sin`` or ``random``; see above.
        voxel_offset: global position of the first voxel, zyx.
        voxel_size_nm: edge lengths of a voxel, nanometres, zyx.
    """
    import numpy as np

    from chunkflow_py.core.chunk import Chunk

    size = Zyx.of(size)  # a plain tuple will do
    if size.product() > sys.maxsize:  # NumPy has a message of its own for each pattern
        msg = f"unable to allocate {size.product()} voxels"
        raise MemoryError(msg)
    kind = np.dtype(dtype)
    if pattern == "zero":
        array = np.zeros(size, kind)
    elif kind.name in LABELS and pattern == "random":
        array = np.random.default_rng(0).integers(0, 5, [-(-n // 8) for n in size], dtype=kind)
        for axis, length in enumerate(size):
            array = array.repeat(8, axis).take(range(length), axis)
    elif kind.name in LABELS:
        ramps = [np.linspace(0, 4, length) for length in size]
        angle = ramps[0][:, None, None] + ramps[1][:, None] + ramps[2]
        array = np.where(np.abs(np.sin(angle)) > 0.5, angle // np.pi + 1, 0).astype(kind)
    elif pattern == "random":
        rng = np.random.default_rng(0)
        array = (
            rng.random(size, dtype=np.float32).astype(kind)
            if kind.kind == "f"
            else rng.integers(0, 255, size, dtype=kind, endpoint=True)
        )
    else:
        waves = [
            np.sin(2 * np.pi / 32 * (np.arange(start, start + length) + 0.5))
            for start, length in zip(voxel_offset, size, strict=True)
        ]
        product = waves[0][:, None, None] * waves[1][:, None] * waves[2]
        array = ((product + 1) / 2 * (1 if kind.kind == "f" else 255)).astype(kind)
    return Chunk(array, voxel_offset, voxel_size_nm, _meaning(dtype))


def _meaning(dtype: str) -> Kind:
    return "segmentation" if dtype in LABELS else "image"


@dataclass
class ChunkMaker(OperatorBase):
    """Puts the same synthetic chunk into every task."""

    size: Zyx
    dtype: str
    pattern: Pattern
    voxel_offset: Zyx
    voxel_size_nm: tuple[float, float, float]
    output_name: str

    @hook
    def bounds(self) -> BoundingBox:
        """Return the box of the chunk, which later operators use as the bounds of the volume."""
        return BoundingBox.from_size(self.voxel_offset, self.size)

    @hook
    def known_voxel_size_nm(self) -> tuple[float, float, float]:
        """Return the voxel size of the chunk, nanometres, zyx."""
        return self.voxel_size_nm

    @hook
    def voxels(self) -> Voxels:
        """Return dtype, number of channels and kind of the chunk."""
        from chunkflow_py.core.chunk import Voxels

        return Voxels(self.dtype, 1, _meaning(self.dtype))

    def __call__(self, task: Task) -> Task:
        """Add the chunk to the task."""
        task[self.output_name] = create_chunk(
            self.size, self.dtype, self.pattern, self.voxel_offset, self.voxel_size_nm
        )
        return task


@operator("read")
@zyx_option("--size", "-s", default=(64, 64, 64), show_default=True, minimum=1,
            help="Extent of the chunk, voxels, zyx.")  # fmt: skip
@click.option("--dtype", "-d", type=click.Choice(DTYPES), default="uint8", show_default=True,
              help="Type of the voxels.")  # fmt: skip
@click.option("--pattern", "-p", type=click.Choice(["sin", "zero", "random"]), default="sin",
              show_default=True, help="Values: sine waves, zeros or random.")  # fmt: skip
@zyx_option("--voxel-offset", "-t", default=(0, 0, 0), show_default=True,
            help="Global position of the first voxel, voxels, zyx.")  # fmt: skip
@floats_option("--voxel-size", "-e", default=(1, 1, 1), show_default=True,
               help="Edge lengths of a voxel, zyx, in nm or as 0.5um.")  # fmt: skip
@output_option()
def command(
    size: Zyx,
    dtype: str,
    pattern: Pattern,
    voxel_offset: Zyx,
    voxel_size: tuple[float, float, float],
    output_name: str,
) -> ChunkMaker:
    """Return the operator, which computes the chunk again for each task."""
    return ChunkMaker(size, dtype, pattern, voxel_offset, voxel_size, output_name)

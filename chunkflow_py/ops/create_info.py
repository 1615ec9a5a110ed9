"""Create the info file of a precomputed volume.

Example: chunkflow create-info -v file://em -z 64 512 512 -d uint8 -s 40 4 4 -b 64 64 64

What options do not say is taken from the chunk, if the line has made one: its domain, voxel size,
type and channels.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.geometry import BoundingBox, Zyx
from chunkflow_py.params import floats_option, zyx_option
from chunkflow_py.stages import operator
from chunkflow_py.volume.precomputed_info import DTYPES, ENCODINGS

if TYPE_CHECKING:
    from chunkflow_py.chunk import Chunk
    from chunkflow_py.task import Task
    from chunkflow_py.volume.protocol import VolumeSpec


@dataclass
class InfoCreator:
    """Writes the info file of a precomputed volume, once; see the options for the attributes."""

    volume_path: str
    block_size: Zyx
    input_name: str = "chunk"
    channel_num: int | None = None
    layer_type: Literal["image", "segmentation"] | None = None
    data_type: str | None = None
    encoding: str = "raw"
    voxel_size: tuple[float, float, float] | None = None
    voxel_offset: Zyx | None = None
    volume_size: Zyx | None = None
    factor: Zyx = Zyx(2, 2, 2)
    max_mip: int = 0
    overwrite: bool = False
    _done: bool = field(default=False, init=False, repr=False)

    def spec(self, chunk: Chunk | None) -> VolumeSpec:
        """Return what the volume is told.

        Raises:
            OptionError: there is no chunk, and an option that stands in for it is missing.
        """
        import numpy as np

        from chunkflow_py.volume.protocol import VolumeSpec

        if chunk is None and (self.volume_size is None or self.data_type is None):
            missing = "--volume-size" if self.volume_size is None else "--data-type"
            msg = f"create-info needs {missing}, or a chunk to take it from; give one of them"
            raise OptionError(msg)
        domain = BoundingBox(Zyx(0, 0, 0), Zyx(1, 1, 1)) if chunk is None else chunk.domain
        offset = self.voxel_offset or domain.start
        channels = self.channel_num or (1 if chunk is None else chunk.channels)
        return VolumeSpec(
            BoundingBox.from_size(offset, self.volume_size or domain.size),
            self.voxel_size or ((1.0, 1.0, 1.0) if chunk is None else chunk.voxel_size_nm),
            np.dtype(self.data_type) if self.data_type or chunk is None else chunk.dtype,
            None if channels == 1 else channels,
            chunk.kind if chunk is not None else None,
            self.block_size,
            self.encoding,
        )

    def __call__(self, task: Task) -> Task:
        """Write the file, at the first task."""
        if not self._done:
            self._create(task.chunk(self.input_name) if self.input_name in task.items else None)
            self._done = True
        return task

    def _create(self, chunk: Chunk | None) -> None:
        from chunkflow_py.volume.precomputed import write_info
        from chunkflow_py.volume.precomputed_info import create_info

        info = create_info(
            self.spec(chunk), factor=self.factor, max_mip=self.max_mip, layer_type=self.layer_type
        )
        write_info(self.volume_path, info, overwrite=self.overwrite)


@operator("write")
@click.option(
    "--input-name",
    "--input-chunk-name",
    "-i",
    default="chunk",
    show_default=True,
    help="Chunk to describe, if the line has made one.",
)
@click.option(
    "--volume-path",
    "--output-layer-path",
    "--layer-path",
    "-v",
    "-l",
    default="file://.",
    show_default=True,
    help="Volume, such as file://em or gs://b/em.",
)
@click.option(
    "--channel-num",
    "-c",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Number of channels, if it is not the chunk's.",
)
@click.option("--layer-type", "-t", type=click.Choice(["image", "segmentation"]), help="Of voxels.")
@click.option("--data-type", "-d", type=click.Choice(DTYPES), help="Of voxels.")
@click.option(
    "--encoding", "-e", type=click.Choice(ENCODINGS), default="raw", show_default=True,
    help="Compression of the blocks.",
)  # fmt: skip
@floats_option("--voxel-size", "-s", help="Edge lengths of a voxel, nm, zyx.")
@zyx_option("--voxel-offset", "-o", help="Global position of the first voxel, zyx.")
@zyx_option("--volume-size", "-z", minimum=1, help="Extent of the volume, voxels, zyx.")
@zyx_option("--block-size", "-b", minimum=1, required=True, help="Extent of a block, voxels, zyx.")
@zyx_option("--factor", "-f", minimum=1, default=(2, 2, 2), show_default=True,
            help="Shrinkage from each level to the next, zyx.")  # fmt: skip
@click.option("--max-mip", "-m", type=click.IntRange(min=0), default=0, show_default=True,
              help="The coarsest level.")  # fmt: skip
@click.option("--overwrite/--no-overwrite", default=False, show_default=True,
              help="Replace an info file that says something else.")  # fmt: skip
@click.pass_context
def command(ctx: click.Context, /, channel_num: int, **options: object) -> InfoCreator:
    """Take the description of the volume."""
    given = ctx.get_parameter_source("channel_num") is not click.core.ParameterSource.DEFAULT
    return InfoCreator(channel_num=channel_num if given else None, **options)  # type: ignore[arg-type]

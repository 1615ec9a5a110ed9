"""Write a chunk into a zarr volume, which is created if it is missing.

Example: chunkflow create-chunk --size 64 128 128 save-zarr -s out.zarr

A new volume is an OME-Zarr 0.5 image; --plain makes an array alone. Its bounds are those of the
volume that the line reads, and its blocks fit the tasks, unless options say otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.params import floats_option, input_option, mip_option, zyx_option
from chunkflow_py.stages import operator
from chunkflow_py.volume import ZARR_ENCODINGS

if TYPE_CHECKING:
    from chunkflow_py.geometry import Zyx
    from chunkflow_py.stages import Outline
    from chunkflow_py.task import Task
    from chunkflow_py.volume.saver import VolumeSaver


@dataclass
class ZarrSaver:
    """Writes a chunk of every task into one zarr volume."""

    saver: VolumeSaver
    input_name: str = "chunk"

    @property
    def destination(self) -> str:
        """The level of the volume."""
        return self.saver.destination

    def prepare(self, outline: Outline) -> None:
        """Check the boxes of all tasks against the write unit."""
        self.saver.prepare(outline.boxes, outline.domain, outline.voxels)

    def __call__(self, task: Task) -> Task:
        """Write the chunk."""
        time = None if task.region is None else task.region.time
        self.saver(task.chunk(self.input_name), time)
        return task


@operator("write")
@click.option("--store", "-s", required=True, help="Folder of the volume.")
@click.option("--path", help="Image or array inside the store.")
@zyx_option(
    "--shape", minimum=1, help="Extent of a new volume that begins at 0, 0, 0, voxels, zyx."
)
@floats_option(
    "--resolution", "-r", help="Voxel size of a new volume at mip 0, nm, zyx.  [default: chunk's]"
)
@mip_option()
@click.option("--dtype", help="Convert the voxels.  [default: as they are]")
@click.option(
    "--infer-dtype/--no-infer-dtype",
    default=False,
    show_default=True,
    help="Take the type of the first chunk; without --dtype that is always so.",
)
@zyx_option(
    "--chunk-size",
    "--block-size",
    "-c",
    minimum=1,
    help="Block of a new volume, voxels, zyx.  [default: up to 64, to fit the tasks]",
)
@zyx_option("--shard-size", minimum=1, help="Blocks of a new volume that are written as one, zyx.")
@click.option(
    "--encoding",
    type=click.Choice(ZARR_ENCODINGS),
    default="zstd",
    show_default=True,
    help="Compression of a new volume.",
)
@click.option(
    "--order",
    "-o",
    type=click.Choice(["xyz", "zyx"]),
    default="xyz",
    show_default=True,
    help="Axis order of a new plain array. OME-Zarr is zyx unless this is given.",
)
@click.option(
    "--ome/--plain",
    default=True,
    show_default=True,
    help="A new volume is an OME-Zarr image, or an array alone.",
)
@click.option(
    "--create/--no-create", default=True, show_default=True, help="Create a missing volume."
)
@input_option()
@click.pass_context
def command(
    ctx: click.Context,
    /,
    store: str,
    path: str | None,
    shape: Zyx | None,
    resolution: tuple[float, float, float] | None,
    mip: int,
    dtype: str | None,
    infer_dtype: bool,
    chunk_size: Zyx | None,
    shard_size: Zyx | None,
    encoding: str,
    order: str,
    ome: bool,
    create: bool,
    input_name: str,
) -> ZarrSaver:
    """Take the description of the volume."""
    from chunkflow_py.volume.saver import VolumeSaver, checked_dtype, shape_bounds

    if dtype is not None and infer_dtype:
        msg = f"--dtype {dtype} and --infer-dtype exclude each other; leave one out"
        raise OptionError(msg)
    if shard_size is not None and chunk_size is None:
        msg = f"--shard-size {shard_size} needs --chunk-size, of which it is a multiple"
        raise OptionError(msg)
    if shard_size is not None and chunk_size is not None and any(shard_size % chunk_size):
        near = -(-shard_size // chunk_size) * chunk_size
        msg = f"--shard-size {shard_size} is no multiple of --chunk-size {chunk_size}; try {near}"
        raise OptionError(msg)
    given = ctx.get_parameter_source("order") is not click.core.ParameterSource.DEFAULT
    z, y, x = resolution or (0.0, 0.0, 0.0)
    saver = VolumeSaver(
        store if path is None else f"{store.rstrip('/')}/{path.strip('/')}",
        mip if ome else 0,
        "zarr",
        create,
        bounds=None if shape is None else shape_bounds(shape),
        voxel_size_nm=None if resolution is None else (z * 2**mip, y * 2**mip, x * 2**mip),
        dtype=checked_dtype(dtype, "--dtype"),
        block_size=chunk_size,
        shard_size=shard_size,
        encoding=encoding,
        creating={"plain": not ome, "order": order if given or not ome else "zyx"},
    )
    return ZarrSaver(saver, input_name)

"""Load a zarr array or OME-Zarr image, whole or the part a task needs.

Example: chunkflow load-zarr -f em.zarr -s 0 0 0 -z 64 512 512 save-h5 -f cut.h5

Axes, voxel size and offset are taken from the metadata: OME-Zarr 0.4 and 0.5, or attributes of a
plain array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.params import (
    channels_option,
    expand_margin_option,
    floats_option,
    mip_option,
    output_option,
    zyx_option,
)
from chunkflow_py.stages import operator

if TYPE_CHECKING:
    from chunkflow_py.geometry import Zyx
    from chunkflow_py.volume.loader import VolumeLoader

# The older default, NestedDirectoryStore, is how local arrays are stored now.
DRIVERS = ("local", "n5", "NestedDirectoryStore")


@operator("read")
@click.option("--store", "-f", required=True, help="Folder of the array or image.")
@click.option("--path", "-p", help="Array or image inside the store.")
@mip_option()
@zyx_option("--chunk-start", "-s", help="First voxel of the part to read, global, zyx.")
@zyx_option("--chunk-stop", help="End of the part to read, exclusive, global, zyx.")
@zyx_option("--chunk-size", "-z", minimum=1, help="Extent of the part to read, voxels, zyx.")
@expand_margin_option("-e")
@channels_option("-c")
@floats_option(
    "--voxel-size", "-v", help="Edge lengths of a voxel, nm, zyx, instead of the store's."
)
@click.option(
    "--driver",
    "-b",
    type=click.Choice(DRIVERS),
    help="Kind of store.  [default: found out from the files]",
)
@output_option()
def command(
    store: str,
    path: str | None,
    mip: int,
    chunk_start: Zyx | None,
    chunk_stop: Zyx | None,
    chunk_size: Zyx | None,
    expand_margin_size: Zyx | Literal["auto"],
    channels: tuple[int, ...] | None,
    voxel_size: tuple[float, float, float] | None,
    driver: str | None,
    output_name: str,
) -> VolumeLoader:
    """Take the store and the part of it."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.loader import VolumeLoader

    if driver == "n5":
        msg = "--driver n5 is not supported yet; convert the volume to zarr"
        raise OptionError(msg)
    spelling = ("--chunk-start", "--chunk-stop", "--chunk-size", "--expand-margin-size")
    return VolumeLoader(
        store if path is None else f"{store.rstrip('/')}/{path.strip('/')}",
        mip,
        "zarr",
        Cutout(chunk_start, chunk_stop, chunk_size, expand_margin_size, spelling),
        output_name,
        channels,
        voxel_size,
    )

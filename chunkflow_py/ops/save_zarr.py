"""Write a chunk into a zarr volume.

Example: chunkflow create-chunk --size 64 128 128 save-zarr --store out.zarr

A volume that does not exist is created: an OME-Zarr 0.5 image, or with --plain an array without
OME-Zarr metadata. By default, the new volume has the bounds of the volume that the pipeline reads,
and block boundaries that match task boundaries. If chunkflow 1.x must read the volume, give
--ome-version 0.4, because chunkflow 1.x reads only zarr format 2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.saving_options import (
    check_format,
    output_from,
    parallel_option,
    saving_options,
)
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import floats_option, zyx_option
from chunkflow_py.pipeline.terminal import option_headings
from chunkflow_py.volume import ZARR_ENCODINGS

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.volume.output import VolumeOutput


@operator("write")
@option_headings({"New volume": ("shape", "resolution", "order", "ome", "ome_version")})
@click.option("--store", "-s", required=True, help="Folder or address of the zarr store.")
@click.option("--path", help="Path of the image or array inside the store.")
@zyx_option("--shape", minimum=1, help="Extent of a new volume, voxels, zyx; it starts at 0, 0, 0.")
@floats_option(
    "--resolution",
    "-r",
    help="Voxel size of a new volume at mip 0, nm, zyx.  [default: as in the chunk]",
)
@click.option("--dtype", help="Type to convert the voxels to.  [default: type of the chunk]")
@click.option(
    "--infer-dtype/--no-infer-dtype",
    default=False,
    show_default=True,
    help="No effect: without --dtype, a new volume has the dtype of the first chunk.",
)
@saving_options("--chunk-size", "--block-size", "-c", encodings=ZARR_ENCODINGS, encoding="zstd")
@parallel_option()
@click.option(
    "--order",
    "-o",
    type=click.Choice(["xyz", "zyx"]),
    default="xyz",
    show_default=True,
    help="Axis order of a new volume.  [default of OME-Zarr images: zyx]",
)
@click.option(
    "--ome/--plain",
    default=True,
    show_default=True,
    help="Create a new volume as an OME-Zarr image, or as an array without OME-Zarr metadata.",
)
@click.option(
    "--ome-version",
    type=click.Choice(["0.4", "0.5", "0.6"]),
    help="OME-Zarr version of a new volume. Version 0.4 uses zarr format 2; 0.5 and 0.6 use zarr "
    "format 3. With --plain, the version selects only the zarr format.  [default: 0.5]",
)
@click.pass_context
def command(
    ctx: click.Context,
    /,
    store: str,
    path: str | None,
    shape: Zyx | None,
    resolution: tuple[float, float, float] | None,
    dtype: str | None,
    infer_dtype: bool,
    order: str,
    ome: bool,
    ome_version: str | None,
    **options: Any,
) -> VolumeOutput:
    """Return the operator that writes the chunks of tasks to the volume."""
    from chunkflow_py.volume.new_volume import checked_dtype, shape_bounds

    if dtype is not None and infer_dtype:
        msg = f"--dtype {dtype} and --infer-dtype contradict each other; give only one of them"
        raise OptionError(msg)
    given = ctx.get_parameter_source("order") is not click.core.ParameterSource.DEFAULT
    mip = options["mip"] if ome else 0
    factor = options["factor"]
    url = store if path is None else f"{store.rstrip('/')}/{path.strip('/')}"
    check_format(url, "zarr", ["store"])
    size_nm = resolution and tuple(nm * f**mip for nm, f in zip(resolution, factor, strict=True))
    return output_from(
        url,
        options,
        format="zarr",
        mip=mip,
        bounds=None if shape is None else shape_bounds(shape),
        voxel_size_nm=size_nm,
        dtype=checked_dtype(dtype, "--dtype"),
        creating={
            "plain": not ome,
            "order": order if given or not ome else "zyx",
            "ome_version": ome_version,
        },
    )

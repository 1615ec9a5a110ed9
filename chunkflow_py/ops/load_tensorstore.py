r"""Load any array that TensorStore opens, or a part of it.

Example: chunkflow load-tensorstore --driver zarr3 --kvstore gs://bucket/em --chunk-start 0 0 0 \
  --chunk-size 64 512 512

Describe the array with --spec (a TensorStore spec as JSON text or as a JSON file) or with --driver
and --kvstore; see https://google.github.io/tensorstore/spec.html. Axes and voxel size are read from
the dimensions of the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.ops.options.volume_options import (
    layer_type_option,
    region_options,
    voxel_size_option,
)
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import channels_option, expand_margin_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.volume.loader import VolumeLoader


@operator("read")
@click.option("--spec", "-f", help="TensorStore spec: JSON text, a JSON file, or a URL.")
@click.option("--driver", "-d", help="Format of the array, such as zarr3 or n5.")
@click.option("--kvstore", "-k", help="Folder or address of the array.")
@click.option(
    "--cache",
    type=click.IntRange(min=0),
    help="Size of the cache of decoded blocks, bytes.  [default: enough for the blocks that "
    "several tasks read]",
)
@click.option(
    "--axes", help="Names of the dimensions, such as xyzc.  [default: the array's labels]"
)
@voxel_size_option("-v", instead_of="the array's")
@layer_type_option(default="as in the array")
@region_options()
@expand_margin_option("-e")
@channels_option("-c")
@output_option()
def command(
    spec: str | None,
    driver: str | None,
    kvstore: str | None,
    cache: int | None,
    axes: str | None,
    voxel_size: tuple[float, float, float] | None,
    layer_type: Literal["image", "segmentation"] | None,
    chunk_start: Zyx | None,
    chunk_stop: Zyx | None,
    chunk_size: Zyx | None,
    expand_margin_size: Zyx | Literal["auto"],
    channels: tuple[int, ...] | None,
    output_name: str,
) -> VolumeLoader:
    """Return the operator, which opens the array when the pipeline starts."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.tensorstore_volume import loader_of, parsed_spec

    spelling = ("--chunk-start", "--chunk-stop", "--chunk-size", "--expand-margin-size")
    return loader_of(
        parsed_spec(spec, driver, kvstore),
        axes=axes,
        cache_bytes=cache,
        cutout=Cutout(chunk_start, chunk_stop, chunk_size, expand_margin_size, spelling),
        output_name=output_name,
        channels=channels,
        voxel_size_nm=voxel_size,
        kind=layer_type,
    )

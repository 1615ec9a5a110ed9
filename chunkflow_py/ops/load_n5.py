r"""Load an N5 dataset, or a part of it.

Example: chunkflow load-n5 --n5-dir em.n5 --group-path volumes/raw/s0 --chunk-start 0 0 0 \
  --chunk-size 64 512 512 save-h5 --file-name cut.h5

--chunk-start, --chunk-stop and --chunk-size select the part to load. The default is the task's box
with its margin, or the whole dataset if there are no tasks. Axes, voxel size and offset are
read from the attributes of the dataset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import click

from chunkflow_py.ops.options.volume_options import (
    layer_type_option,
    loader_from,
    reading_options,
    voxel_size_option,
)
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.volume.loader import VolumeLoader


@operator("read")
@click.option(
    "--n5-dir", "--store", "-f", required=True, help="Folder or address of the N5 container."
)
@click.option(
    "--group-path",
    "--path",
    "-p",
    help="Path of the dataset, or of the group of levels, in the container.",
)
@reading_options()
@voxel_size_option("-v", instead_of="the dataset's")
@layer_type_option("--type", default="as in the attributes")
@click.option(
    "--driver", "-b", type=click.Choice(["n5"]), default="n5", show_default=True,
    help="Kind of container.",
)  # fmt: skip
def command(
    n5_dir: str,
    group_path: str | None,
    voxel_size: tuple[float, float, float] | None,
    layer_type: Literal["image", "segmentation"] | None,
    driver: str,
    **options: Any,
) -> VolumeLoader:
    """Return the operator that loads the dataset."""
    url = n5_dir if group_path is None else f"{n5_dir.rstrip('/')}/{group_path.strip('/')}"
    return loader_from(url, options, format=driver, voxel_size_nm=voxel_size, kind=layer_type)

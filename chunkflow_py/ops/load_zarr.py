r"""Load a zarr array or OME-Zarr image, or a part of it.

Example: chunkflow load-zarr --store em.zarr --chunk-start 0 0 0 --chunk-size 64 512 512 \
  save-h5 --file-name cut.h5

Axes, voxel size and offset are read from the OME-Zarr metadata (version 0.6 or older). If an array
has no OME-Zarr metadata, they are read from the attributes of the array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.volume_options import (
    loader_from,
    reading_options,
    voxel_size_option,
)
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.volume.loader import VolumeLoader

# NestedDirectoryStore, the default of chunkflow 1.x, is the layout of all local arrays today.
DRIVERS = {"local": "zarr", "n5": "n5", "NestedDirectoryStore": "zarr"}


@operator("read")
@click.option("--store", "-f", required=True, help="Folder or address of the zarr store.")
@click.option("--path", "-p", help="Path of the array or image inside the store.")
@reading_options()
@voxel_size_option("-v", instead_of="the store's")
@click.option(
    "--driver",
    "-b",
    type=click.Choice(list(DRIVERS)),
    help="Format of the store.  [default: detected]",
)
def command(
    store: str,
    path: str | None,
    voxel_size: tuple[float, float, float] | None,
    driver: str | None,
    **options: Any,
) -> VolumeLoader:
    """Return the operator that loads the array."""
    url = store if path is None else f"{store.rstrip('/')}/{path.strip('/')}"
    format = None if driver is None else DRIVERS[driver]
    return loader_from(url, options, format=format, voxel_size_nm=voxel_size)

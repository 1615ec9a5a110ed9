"""Load an HDF5 dataset, whole or the part a task needs.

Example: chunkflow load-h5 -f raw.h5 -s 64 256 256 save-h5 -f corner.h5

A name without an extension is a prefix: with the task 0-64_0-256_0-256 in front, `-f raw_` reads
raw_0-64_0-256_0-256.h5. An empty file, as save-h5 leaves for a task without a result, gives None.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import (
    channels_option,
    expand_margin_option,
    floats_option,
    is_dry_run,
    output_option,
    zyx_option,
)

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.volume.files.single_file import FileLoader

DTYPES = ("float32", "float64", "uint16", "uint32", "uint64", "uint8")


def load_h5(
    path: str | Path,
    dataset_path: str | None = None,
    bbox: BoundingBox | None = None,
    channels: tuple[int, ...] | None = None,
    dtype: str | None = None,
) -> Chunk | None:
    """Return a dataset of an HDF5 file as a chunk, or ``None`` for a file of no bytes.

    Args:
        path: of the file.
        dataset_path: which dataset (default: ``main``, else the first that is 3D or 4D).
        bbox: the part to read, in global voxels (default: all).
        channels: which channels of a (c, z, y, x) dataset, in this order (default: all).
        dtype: type of the voxels (default: that of the file).

    Raises:
        VolumeError: the file or the dataset cannot be read.
        ChunkError: the dataset is neither 3D nor 4D, has not these channels, or does not fit
            into *dtype*.
    """
    from chunkflow_py.volume.files.hdf5 import open_hdf5

    found = open_hdf5(Path(path), dataset_path)
    return None if found is None else found.read(bbox, channels, dtype)


@operator("read")
@click.option("--file-name", "-f", required=True, help="HDF5 file, or prefix of one file a task.")
@click.option(
    "--dataset-path",
    "-d",
    help="Dataset inside the file.  [default: main, else the first that is 3D or 4D]",
)
@click.option(
    "--dtype",
    "-e",
    type=click.Choice(DTYPES),
    help="Convert the voxels; what cannot be is an error.",
)
@click.option(
    "--layer-type",
    "-l",
    type=click.Choice(["image", "segmentation"]),
    help="What the voxels mean.  [default: as in the file]",
)
@zyx_option(
    "--voxel-offset", "-v", help="Global position of the first voxel, instead of the file's."
)
@floats_option(
    "--voxel-size", "-x", help="Edge lengths of a voxel, nm, zyx, instead of the file's."
)
@channels_option("-c")
@zyx_option("--cutout-start", "-t", help="First voxel of the part to read, global, zyx.")
@zyx_option("--cutout-stop", "-p", help="End of the part to read, exclusive, global, zyx.")
@zyx_option("--cutout-size", "-s", minimum=1, help="Extent of the part to read, voxels, zyx.")
@expand_margin_option()
@click.option(
    "--set-bbox/--no-set-bbox",
    default=False,
    show_default=True,
    help="Make the chunk's box that of the task.",
)
@click.option(
    "--remove-empty/--do-not-remove",
    default=False,
    show_default=True,
    help="Delete the file if it was read whole and holds nothing but zeros, or nothing.",
)
@output_option()
def command(
    file_name: str,
    dataset_path: str | None,
    dtype: str | None,
    layer_type: Literal["image", "segmentation"] | None,
    voxel_offset: Zyx | None,
    voxel_size: tuple[float, float, float] | None,
    channels: tuple[int, ...] | None,
    cutout_start: Zyx | None,
    cutout_stop: Zyx | None,
    cutout_size: Zyx | None,
    expand_margin_size: Zyx | Literal["auto"],
    set_bbox: bool,
    remove_empty: bool,
    output_name: str,
) -> FileLoader:
    """Take the file and the part of it."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.hdf5 import EXTENSIONS, open_hdf5
    from chunkflow_py.volume.files.single_file import FileLoader

    return FileLoader(
        FileName(file_name, EXTENSIONS, reads=True),
        partial(
            open_hdf5,
            dataset_path=dataset_path,
            voxel_offset=voxel_offset,
            voxel_size_nm=voxel_size,
            kind=layer_type,
        ),
        Cutout(cutout_start, cutout_stop, cutout_size, expand_margin_size),
        output_name,
        channels,
        dtype,
        set_bbox,
        remove_empty and not is_dry_run(),
    )

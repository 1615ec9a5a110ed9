"""Load an HDF5 dataset, whole or the part a task needs.

Example: chunkflow load-h5 --file-name raw.h5 --cutout-size 64 256 256 save-h5 --file-name corner.h5

A name without an extension is a prefix: for the task 0-64_0-256_0-256, `--file-name raw_` reads
raw_0-64_0-256_0-256.h5. If a task has no result, save-h5 writes a file of 0 bytes; for such a file,
load-h5 adds None to the task.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.file_options import (
    dtype_option,
    file_loader,
    file_name_option,
    placement_options,
)
from chunkflow_py.ops.options.volume_options import layer_type_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import (
    channels_option,
    expand_margin_option,
    is_dry_run,
    output_option,
    zyx_option,
)

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.volume.loader import VolumeLoader

DTYPES = ("float32", "float64", "uint16", "uint32", "uint64", "uint8")


def load_h5(
    path: str | Path,
    dataset_path: str | None = None,
    bbox: BoundingBox | None = None,
    channels: tuple[int, ...] | None = None,
    dtype: str | None = None,
) -> Chunk | None:
    """Return a dataset of an HDF5 file as a chunk, or ``None`` if the file has 0 bytes.

    Args:
        path: path of the file.
        dataset_path: path of the dataset in the file (default: ``main``; if there is no ``main``,
            the first 3D or 4D dataset).
        bbox: box to read, in global voxels (default: all).
        channels: numbers of the channels to read from a (c, z, y, x) dataset, in the order of the
            result (default: all).
        dtype: type to convert the voxels to (default: the type in the file).

    Raises:
        VolumeError: the file or the dataset cannot be read.
        ChunkError: the dataset is neither 3D nor 4D, lacks one of the channels, or has a voxel that
            does not fit into *dtype*.
    """
    from chunkflow_py.volume.conversion import converted
    from chunkflow_py.volume.files.hdf5 import open_hdf5

    volume = open_hdf5(Path(path), dataset_path)
    return None if volume is None else converted(volume.read(bbox, channels), dtype)


@operator("read")
@file_name_option("HDF5 file, or prefix for one file per task.")
@click.option(
    "--dataset-path",
    "-d",
    help="Dataset inside the file.  [default: main, else the first 3D or 4D dataset]",
)
@dtype_option(DTYPES, "-e")
@layer_type_option()
@placement_options("-x")
@channels_option("-c")
@zyx_option("--cutout-start", "-t", help="Global position of the first voxel to read, zyx.")
@zyx_option("--cutout-stop", "-p", help="Global position after the last voxel to read, zyx.")
@zyx_option("--cutout-size", "-s", minimum=1, help="Extent of the part to read, voxels, zyx.")
@expand_margin_option()
@click.option(
    "--set-bbox/--no-set-bbox",
    default=False,
    show_default=True,
    help="Set the task's box to the box of the loaded chunk.",
)
@click.option(
    "--remove-empty/--do-not-remove",
    default=False,
    show_default=True,
    help="Delete the file if it has 0 bytes, or if it was read completely and is all zero.",
)
@output_option()
def command(
    file_name: str,
    cutout_start: Zyx | None,
    cutout_stop: Zyx | None,
    cutout_size: Zyx | None,
    remove_empty: bool,
    **options: Any,
) -> VolumeLoader:
    """Return the operator that loads the file, or the part that the options select."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.hdf5 import EXTENSIONS, open_hdf5

    return file_loader(
        FileName(file_name, EXTENSIONS, reads=True),
        open_hdf5,
        cutout=Cutout(cutout_start, cutout_stop, cutout_size, options["expand_margin_size"]),
        remove_empty=remove_empty and not is_dry_run(),
        **options,
    )

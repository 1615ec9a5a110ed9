"""Load an NRRD file, whole or the part a task needs.

Example: chunkflow load-nrrd --file-name raw.nrrd --voxel-size 40 4 4 save-h5 --file-name raw.h5

The header of a file lists the axes, the fastest axis first. (Neighbours along the fastest axis are
stored side by side.) The labels or, without labels, the space directions in the header say which
axis is x, y or z. If the header does not say it, --order does: by default, x is the fastest axis.
Lengths without a unit are taken to be in nanometres.

A name without an extension is a prefix: for the task 0-64_0-256_0-256, `--file-name raw_` reads
raw_0-64_0-256_0-256.nrrd.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.file_options import (
    chunk_options,
    dtype_option,
    file_loader,
    file_name_option,
    placement_options,
)
from chunkflow_py.ops.options.volume_options import layer_type_option
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.volume.loader import VolumeLoader

DTYPES = ("uint8", "uint16", "uint32", "uint64", "float32", "float64")


def load_nrrd(
    path: str | Path,
    bbox: BoundingBox | None = None,
    channels: tuple[int, ...] | None = None,
    dtype: str | None = None,
    **place: Any,
) -> Chunk | None:
    """Return the array of an NRRD file as a chunk, or ``None`` if the file has 0 bytes.

    Args:
        path: path of the file.
        bbox: box to read, in global voxels (default: all).
        channels: numbers of the channels to read, in the order of the result (default: all).
        dtype: type to convert the voxels to (default: the type in the file).
        place: keyword arguments voxel_offset, voxel_size_nm, kind and order, which are passed to
            `volume.files.nrrd.open_nrrd`.

    Raises:
        VolumeError: the file cannot be read.
        ChunkError: the axes are not those of a chunk, one of the channels is missing, or a voxel
            does not fit into *dtype*.
    """
    from chunkflow_py.volume.conversion import converted
    from chunkflow_py.volume.files.nrrd import open_nrrd

    volume = open_nrrd(Path(path), **place)
    return None if volume is None else converted(volume.read(bbox, channels), dtype)


@operator("read")
@file_name_option("NRRD file, or prefix for one file per task.")
@placement_options()
@layer_type_option()
@dtype_option(DTYPES, "-d")
@click.option(
    "--order",
    type=click.Choice(["xyz", "zyx"]),
    default="xyz",
    show_default=True,
    help="Order of the axes in a file that does not name them, the fastest axis first.",
)
@chunk_options("-c")
def command(file_name: str, **options: Any) -> VolumeLoader:
    """Return the operator that loads the file."""
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.nrrd import EXTENSIONS, open_nrrd

    return file_loader(FileName(file_name, EXTENSIONS, reads=True), open_nrrd, **options)

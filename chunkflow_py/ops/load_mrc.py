"""Load an MRC file, whole or the part a task needs.

Example: chunkflow load-mrc --file-name tomogram.mrc save-h5 --file-name tomogram.h5

The voxel size is taken from the header and converted from ångström to nm. Only the part that a task
needs is read, unless the file is compressed (.mrc.gz). A name without an extension is a prefix: for
the task 0-64_0-256_0-256, `--file-name raw_` reads raw_0-64_0-256_0-256.mrc.
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
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import expand_margin_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.volume.loader import VolumeLoader

DTYPES = ("uint8", "uint16", "float32", "float64")


def load_mrc(
    path: str | Path, bbox: BoundingBox | None = None, dtype: str | None = None, **place: Any
) -> Chunk | None:
    """Return the array of an MRC file as a chunk, or ``None`` if the file has 0 bytes.

    Args:
        path: path of the file, which holds a volume (z, y, x), a single image, or a stack of
            volumes (c, z, y, x).
        bbox: box to read, in global voxels (default: all).
        dtype: type to convert the voxels to (default: the type in the file).
        place: keyword arguments voxel_offset, voxel_size_nm and stored_bytes, which are passed to
            `volume.files.mrc.open_mrc`.

    Raises:
        VolumeError: the file cannot be read.
        ChunkError: the voxels are complex numbers, or a voxel does not fit into *dtype*.
    """
    from chunkflow_py.volume.conversion import converted
    from chunkflow_py.volume.files.mrc import open_mrc

    volume = open_mrc(Path(path), **place)
    return None if volume is None else converted(volume.read(bbox), dtype)


@operator("read")
@file_name_option("MRC file, or prefix for one file per task.", "--fname")
@placement_options()
@dtype_option(DTYPES, "-d")
@click.option(
    "--bytes",
    "stored_bytes",
    type=click.Choice(["auto", "signed", "unsigned"]),
    default="auto",
    show_default=True,
    help="Whether bytes (mode 0) are signed; auto: use the flag of IMOD in the header or, without "
    "this flag, the largest value in the header.",
)
@expand_margin_option()
@output_option()
def command(file_name: str, **options: Any) -> VolumeLoader:
    """Return the operator that loads the file."""
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.mrc import EXTENSIONS, open_mrc

    return file_loader(FileName(file_name, EXTENSIONS, reads=True), open_mrc, **options)

"""Load an MRC file, whole or the part a task needs.

Example: chunkflow load-mrc -f tomogram.mrc save-h5 -f tomogram.h5

The voxel size is that of the header, ångström told as nm. Only what a task needs is read, unless
the file is compressed (.mrc.gz). A name without an extension is a prefix: with the task
0-64_0-256_0-256 in front, `-f raw_` reads raw_0-64_0-256_0-256.mrc.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import (
    expand_margin_option,
    floats_option,
    output_option,
    zyx_option,
)

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.volume.files.single_file import FileLoader

DTYPES = ("uint8", "uint16", "float32", "float64")


def load_mrc(
    path: str | Path, bbox: BoundingBox | None = None, dtype: str | None = None, **place: Any
) -> Chunk | None:
    """Return the array of a MRC file as a chunk, or ``None`` for a file of no bytes.

    Args:
        path: of the file: a volume (z, y, x), an image, or a stack of volumes (c, z, y, x).
        bbox: the part to read, in global voxels (default: all).
        dtype: type of the voxels (default: that of the file).
        place: voxel_offset, voxel_size_nm and stored_bytes of `volume.files.mrc.open_mrc`.

    Raises:
        VolumeError: the file cannot be read.
        ChunkError: it holds complex numbers, or does not fit into *dtype*.
    """
    from chunkflow_py.volume.files.mrc import open_mrc

    found = open_mrc(Path(path), **place)
    return None if found is None else found.read(bbox, dtype=dtype)


@operator("read")
@click.option(
    "--file-name", "--fname", "-f", required=True, help="MRC file, or prefix of one file a task."
)
@zyx_option(
    "--voxel-offset", "-v", help="Global position of the first voxel, instead of the file's."
)
@floats_option(
    "--voxel-size", "-s", help="Edge lengths of a voxel, nm, zyx, instead of the file's."
)
@click.option(
    "--dtype",
    "-d",
    type=click.Choice(DTYPES),
    help="Convert the voxels; what cannot be is an error.",
)
@click.option(
    "--bytes",
    "stored_bytes",
    type=click.Choice(["auto", "signed", "unsigned"]),
    default="auto",
    show_default=True,
    help="What bytes (mode 0) are; auto: what IMOD notes, else by the largest value in the header.",
)
@expand_margin_option()
@output_option()
def command(
    file_name: str,
    voxel_offset: Zyx | None,
    voxel_size: tuple[float, float, float] | None,
    dtype: str | None,
    stored_bytes: Literal["auto", "signed", "unsigned"],
    expand_margin_size: Zyx | Literal["auto"],
    output_name: str,
) -> FileLoader:
    """Take the file and where it lies."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.mrc import EXTENSIONS, open_mrc
    from chunkflow_py.volume.files.single_file import FileLoader

    read = partial(
        open_mrc,
        voxel_offset=voxel_offset,
        voxel_size_nm=voxel_size,
        stored_bytes=stored_bytes,
    )
    return FileLoader(
        FileName(file_name, EXTENSIONS, reads=True),
        read,
        Cutout(margin=expand_margin_size),
        output_name,
        dtype=dtype,
    )

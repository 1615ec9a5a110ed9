"""Load a TIFF file or a folder of TIFF slices.

Example: chunkflow load-tif -f raw.tif -s 40 4 4 save-h5 -f raw.h5

A name without an extension that is no folder is a prefix: with the task 0-64_0-256_0-256 in front,
`-f raw_` reads raw_0-64_0-256_0-256.tif.
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
    output_option,
    zyx_option,
)

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.volume.files.single_file import FileLoader

DTYPES = ("uint8", "uint16", "uint32", "uint64", "float32", "float64", "float16")


def load_tif(
    path: str | Path,
    bbox: BoundingBox | None = None,
    channels: tuple[int, ...] | None = None,
    dtype: str | None = None,
) -> Chunk | None:
    """Return a TIFF file or a folder of sections as a chunk, or ``None`` for a file of no bytes.

    Args:
        path: of the file or folder.
        bbox: the part to read, in global voxels (default: all).
        channels: which channels, in this order (default: all).
        dtype: type of the voxels (default: that of the file).

    Raises:
        VolumeError: the file cannot be read.
        ChunkError: it has other axes than a chunk, not these channels, or does not fit *dtype*.
    """
    from chunkflow_py.volume.files.tiff import open_tiff

    found = open_tiff(Path(path))
    return None if found is None else found.read(bbox, channels, dtype)


@operator("read")
@click.option(
    "--file-name", "-f", required=True, help="TIFF file, folder of sections, or prefix of files."
)
@zyx_option(
    "--voxel-offset", "-v", help="Global position of the first voxel, instead of the file's."
)
@floats_option(
    "--voxel-size", "-s", help="Edge lengths of a voxel, nm, zyx, instead of the file's."
)
@click.option(
    "--layer-type",
    "-l",
    type=click.Choice(["image", "segmentation"]),
    help="What the voxels mean.  [default: as in the file]",
)
@click.option(
    "--dtype",
    "-d",
    type=click.Choice(DTYPES),
    help="Convert the voxels; what cannot be is an error.",
)
@channels_option("-c")
@expand_margin_option()
@output_option()
def command(
    file_name: str,
    voxel_offset: Zyx | None,
    voxel_size: tuple[float, float, float] | None,
    layer_type: Literal["image", "segmentation"] | None,
    dtype: str | None,
    channels: tuple[int, ...] | None,
    expand_margin_size: Zyx | Literal["auto"],
    output_name: str,
) -> FileLoader:
    """Take the file and where it lies."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.single_file import FileLoader
    from chunkflow_py.volume.files.tiff import EXTENSIONS, open_tiff

    return FileLoader(
        FileName(file_name, EXTENSIONS, reads=True, folders=True),
        partial(open_tiff, voxel_offset=voxel_offset, voxel_size_nm=voxel_size, kind=layer_type),
        Cutout(margin=expand_margin_size),
        output_name,
        channels,
        dtype,
    )

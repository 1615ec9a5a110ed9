"""Load an NRRD file, whole or the part a task needs.

Example: chunkflow load-nrrd -f raw.nrrd -s 40 4 4 save-h5 -f raw.h5

A header names its fastest axis first: that is x, unless its labels or space directions, or --order,
say otherwise. Lengths without a unit are nanometres. A name without an extension is a prefix: with
the task 0-64_0-256_0-256 in front, `-f raw_` reads raw_0-64_0-256_0-256.nrrd.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

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

DTYPES = ("uint8", "uint16", "uint32", "uint64", "float32", "float64")


def load_nrrd(
    path: str | Path,
    bbox: BoundingBox | None = None,
    channels: tuple[int, ...] | None = None,
    dtype: str | None = None,
    **place: Any,
) -> Chunk | None:
    """Return the array of a NRRD file as a chunk, or ``None`` for a file of no bytes.

    Args:
        path: of the file.
        bbox: the part to read, in global voxels (default: all).
        channels: which channels, in this order (default: all).
        dtype: type of the voxels (default: that of the file).
        place: voxel_offset, voxel_size_nm, kind and order of `volume.files.nrrd.open_nrrd`.

    Raises:
        VolumeError: the file cannot be read.
        ChunkError: it has other axes than a chunk, not these channels, or does not fit *dtype*.
    """
    from chunkflow_py.volume.files.nrrd import open_nrrd

    found = open_nrrd(Path(path), **place)
    return None if found is None else found.read(bbox, channels, dtype)


@operator("read")
@click.option("--file-name", "-f", required=True, help="NRRD file, or prefix of one file a task.")
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
@click.option(
    "--order",
    type=click.Choice(["xyz", "zyx"]),
    default="xyz",
    show_default=True,
    help="Axes of a file that does not name them, the fastest first.",
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
    order: str,
    channels: tuple[int, ...] | None,
    expand_margin_size: Zyx | Literal["auto"],
    output_name: str,
) -> FileLoader:
    """Take the file and where it lies."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.nrrd import EXTENSIONS, open_nrrd
    from chunkflow_py.volume.files.single_file import FileLoader

    read = partial(
        open_nrrd,
        voxel_offset=voxel_offset,
        voxel_size_nm=voxel_size,
        kind=layer_type,
        order=order,
    )
    return FileLoader(
        FileName(file_name, EXTENSIONS, reads=True),
        read,
        Cutout(margin=expand_margin_size),
        output_name,
        channels,
        dtype,
    )

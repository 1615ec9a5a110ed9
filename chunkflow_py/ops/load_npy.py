"""Load a .npy file, whole or the part a task needs.

Example: chunkflow load-npy -f raw.npy -s 40 4 4 save-h5 -f raw.h5

A name without an extension is a prefix: with the task 0-64_0-256_0-256 in front, `-f raw_` reads
raw_0-64_0-256_0-256.npy.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click
from click.core import ParameterSource

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
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.volume.files.single_file import FileLoader


def load_npy(
    path: str | Path, channels: tuple[int, ...] | None = None, **place: object
) -> Chunk | None:
    """Return the array of a .npy file as a chunk, or ``None`` for a file of no bytes.

    Args:
        path: of the file; (z, y, x) or (c, z, y, x), numbers.
        channels: which channels, in this order (default: all).
        place: voxel_offset and voxel_size_nm of `chunkflow_py.volume.files.npy.open_npy`.

    Raises:
        VolumeError: the file cannot be read.
        ChunkError: the array is not a chunk's, or has not these channels.
    """
    from chunkflow_py.volume.files.npy import open_npy

    found = open_npy(Path(path), **place)  # type: ignore[arg-type]
    return None if found is None else found.read(channels=channels)


@operator("read")
@click.option("--file-name", "-f", required=True, help=".npy file, or prefix of one file a task.")
@zyx_option(
    "--voxel-offset",
    "-t",
    default=(0, 0, 0),
    show_default=True,
    help="Global position of the first voxel, voxels, zyx.",
)
@floats_option(
    "--voxel-size",
    "-s",
    default=(1, 1, 1),
    show_default=True,
    help="Edge lengths of a voxel, nm, zyx; if not given, a warning says so.",
)
@channels_option("-c")
@expand_margin_option()
@output_option()
@click.pass_context
def command(
    ctx: click.Context,
    file_name: str,
    voxel_offset: Zyx,
    voxel_size: tuple[float, float, float],
    channels: tuple[int, ...] | None,
    expand_margin_size: Zyx | Literal["auto"],
    output_name: str,
) -> FileLoader:
    """Take the file and where it lies."""
    from chunkflow_py.volume.cutout import Cutout
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.npy import EXTENSIONS, open_npy
    from chunkflow_py.volume.files.single_file import FileLoader

    given = ctx.get_parameter_source("voxel_size") is not ParameterSource.DEFAULT
    return FileLoader(
        FileName(file_name, EXTENSIONS, reads=True),
        partial(open_npy, voxel_offset=voxel_offset, voxel_size_nm=voxel_size if given else None),
        Cutout(margin=expand_margin_size),
        output_name,
        channels,
    )

"""Load a .npy file, whole or the part a task needs.

Example: chunkflow load-npy --file-name raw.npy --voxel-size 40 4 4 save-h5 --file-name raw.h5

A name without an extension is a prefix: for the task 0-64_0-256_0-256, `--file-name raw_` reads
raw_0-64_0-256_0-256.npy.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from chunkflow_py.ops.options.file_options import (
    assumed_placement_options,
    chunk_options,
    file_loader,
    file_name_option,
)
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.volume.loader import VolumeLoader


def load_npy(
    path: str | Path, channels: tuple[int, ...] | None = None, **place: object
) -> Chunk | None:
    """Return the array of a .npy file as a chunk, or ``None`` if the file has 0 bytes.

    Args:
        path: path of the file; its array is (z, y, x) or (c, z, y, x), of any numeric dtype.
        channels: numbers of the channels to read, in the order of the result (default: all).
        place: keyword arguments voxel_offset and voxel_size_nm, which are passed to
            `volume.files.npy.open_npy`.

    Raises:
        VolumeError: the file cannot be read.
        ChunkError: the array is neither 3D nor 4D, is not numeric, or lacks one of the channels.
    """
    from chunkflow_py.volume.files.npy import open_npy

    volume = open_npy(Path(path), **place)  # type: ignore[arg-type]
    return None if volume is None else volume.read(channels=channels)


@operator("read")
@file_name_option(".npy file, or prefix for one file per task.")
@assumed_placement_options("Global position of the first voxel, voxels, zyx.", "-s")
@chunk_options("-c")
@click.pass_context
def command(ctx: click.Context, /, file_name: str, **options: Any) -> VolumeLoader:
    """Return the operator that loads the file."""
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.npy import EXTENSIONS, open_npy

    if ctx.get_parameter_source("voxel_size") is ParameterSource.DEFAULT:
        options["voxel_size"] = None
    return file_loader(FileName(file_name, EXTENSIONS, reads=True), open_npy, **options)

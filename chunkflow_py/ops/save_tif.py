"""Save a chunk to a TIFF file, one page per slice.

Example: chunkflow create-chunk save-tif --file-name chunk.tif

A name without an extension is a prefix: with `--file-name out_`, the task 0-64_0-256_0-256 writes
out_0-64_0-256_0-256.tif. Without --file-name, the name of the file is the box of the chunk.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkflow_py.ops.options.file_options import saved_dtype_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.volume.files.file_saver import FileSaver

DTYPES = ("uint8", "uint16", "uint32", "uint64", "float32", "float64")


def save_tif(
    chunk: Chunk, path: str | Path, dtype: str | None = None, compression: str = "zlib"
) -> None:
    """Write *chunk* to a TIFF file, under a temporary name until the file is complete.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any numeric dtype.
        path: path of the file; an existing file is replaced.
        dtype: type to convert the voxels to (default: the type of the chunk). With uint8,
            floating-point voxels are multiplied by 255 if they are probabilities or affinities, or
            if the kind of *chunk* is unknown and all voxels are in [0, 1].
        compression: ``zlib``, ``lzw``, ``lzma``, ``delta`` (differences of neighbouring voxels,
            compressed with zlib), ``packints`` (packbits), ``jpeg`` (lossy), or an empty string for
            no compression.

    Raises:
        ChunkError: a voxel does not fit into *dtype*, or TIFF cannot store the chunk.
        VolumeError: the file cannot be written; an existing file is then kept.
    """
    from chunkflow_py.volume.conversion import converted
    from chunkflow_py.volume.files.tiff import write_tiff

    write_tiff(Path(path), converted(chunk, dtype), compression)


@operator("write")
@input_option(help="Name of the chunk to save.")
@click.option("--file-name", "-f", help="TIFF file, or prefix for one file per task.")
@saved_dtype_option(DTYPES, "-t")
@click.option(
    "--compression",
    "-c",
    type=click.Choice(["", "zlib", "lzw", "lzma", "delta", "packints", "jpeg"]),
    default="zlib",
    show_default=True,
    help="Compression of the pages; jpeg is lossy.",
)
def command(
    input_name: str, file_name: str | None, dtype: str | None, compression: str
) -> FileSaver:
    """Return the operator that saves the chunks of tasks to files."""
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.file_saver import FileSaver
    from chunkflow_py.volume.files.tiff import EXTENSIONS

    write = partial(_write, dtype=dtype, compression=compression)
    return FileSaver(FileName(file_name or "", EXTENSIONS), write, input_name)


def _write(path: Path, chunk: Chunk, dtype: str | None, compression: str) -> None:
    save_tif(chunk, path, dtype, compression)

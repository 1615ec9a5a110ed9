"""Save a chunk with its position to an NRRD file.

Example: chunkflow create-chunk save-nrrd --file-name chunk.nrrd

In the file, x is the fastest axis, channels are the slowest axis, and lengths are in nm. A name
without an extension is a prefix: with `--file-name out_`, the task 0-64_0-256_0-256 writes
out_0-64_0-256_0-256.nrrd. Without --file-name, the name of the file is the box of the chunk.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import check_extra
from chunkflow_py.ops.options.file_options import saved_dtype_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.volume.files.file_saver import FileSaver

DTYPES = ("uint8", "uint16", "uint32", "uint64", "float32", "float64")


def save_nrrd(
    chunk: Chunk, path: str | Path, dtype: str | None = None, encoding: str = "gzip"
) -> None:
    """Write *chunk* to an NRRD file, under a temporary name until the file is complete.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any numeric dtype.
        path: path of the file; an existing file is replaced.
        dtype: type to convert the voxels to (default: the type of the chunk). With uint8,
            floating-point voxels are multiplied by 255 if they are probabilities or affinities, or
            if the kind of *chunk* is unknown and all voxels are in [0, 1].
        encoding: ``gzip``, ``bzip2`` or ``raw`` (not compressed). Only a raw file
            can be read in parts.

    Raises:
        ChunkError: a voxel does not fit into *dtype*, or NRRD cannot store this type.
        VolumeError: the file cannot be written; an existing file is then kept.
    """
    from chunkflow_py.volume.conversion import converted
    from chunkflow_py.volume.files.nrrd import write_nrrd

    write_nrrd(Path(path), converted(chunk, dtype), encoding)


@operator("write")
@input_option(help="Name of the chunk to save.")
@click.option("--file-name", "-f", help="NRRD file, or prefix for one file per task.")
@saved_dtype_option(DTYPES, "-t")
@click.option(
    "--encoding",
    "-e",
    type=click.Choice(["gzip", "bzip2", "raw"]),
    default="gzip",
    show_default=True,
    help="Compression of the voxels; only raw files can be read in parts.",
)
def command(input_name: str, file_name: str | None, dtype: str | None, encoding: str) -> FileSaver:
    """Return the operator that saves the chunks of tasks to files."""
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.file_saver import FileSaver

    check_extra("image", "save-nrrd", "nrrd")
    write = partial(_write, dtype=dtype, encoding=encoding)
    return FileSaver(FileName(file_name or "", (".nrrd",)), write, input_name)


def _write(path: Path, chunk: Chunk, dtype: str | None, encoding: str) -> None:
    save_nrrd(chunk, path, dtype, encoding)

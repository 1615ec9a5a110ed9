"""Save a chunk, synapses or points to an HDF5 file.

Example: chunkflow create-chunk save-h5 --file-name chunk.h5

A name without an extension is a prefix: with `--file-name out_`, the task 0-64_0-256_0-256 writes
out_0-64_0-256_0-256.h5. The file gets its name only when it is complete. Synapses and points are
written in the formats of save-synapses and save-points.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.ops.options.file_options import saved_dtype_option
from chunkflow_py.ops.options.volume_options import voxel_size_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, zyx_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.core.points import Points
    from chunkflow_py.core.synapses import Synapses
    from chunkflow_py.volume.files.file_saver import FileSaver


DTYPES = (
    "bool", "uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64",
    "float16", "float32", "float64",
)  # fmt: skip


def save_h5(
    chunk: Chunk,
    path: str | Path,
    dtype: str | None = None,
    **options: Any,
) -> None:
    """Write *chunk* to an HDF5 file, under a temporary name until the file is complete.

    Args:
        chunk: (z, y, x) or (c, z, y, x), numbers of any dtype.
        path: path of the file; an existing file is replaced.
        dtype: type to convert the voxels to (default: the type of the chunk). With uint8,
            floating-point voxels are multiplied by 255 if they are probabilities or affinities, or
            if the kind of *chunk* is unknown and all voxels are in [0, 1].
        options: arguments block_size, compression, with_offset and voxel_size_nm of
            `volume.files.hdf5.write_hdf5`.

    Raises:
        ChunkError: a voxel does not fit into *dtype*.
        VolumeError: the file cannot be written; an existing file is then kept.
    """
    from chunkflow_py.volume.conversion import converted
    from chunkflow_py.volume.files.hdf5 import write_hdf5

    write_hdf5(Path(path), converted(chunk, dtype), **options)


@operator("write")
@input_option("--input-name", "--input-chunk-name", "-i", help="Name of the chunk to save.")
@click.option(
    "--file-name", "-f", required=True, help="HDF5 file, or prefix for one file per task."
)
@zyx_option(
    "--chunk-size",
    "-s",
    minimum=1,
    help="Size of a stored block, voxels, zyx.  [default: 64 64 64, at most the chunk size]",
)
@click.option(
    "--compression",
    "-c",
    type=click.Choice(["gzip", "lzf", "szip"]),
    default="gzip",
    show_default=True,
    help="Compression of the blocks.",
)
@click.option(
    "--with-offset/--without-offset",
    default=True,
    show_default=True,
    help="Save the global position of the first voxel, or leave it out.",
)
@voxel_size_option("-v", instead_of="the chunk's")
@saved_dtype_option(DTYPES, "-d")
@click.option(
    "--touch/--no-touch",
    default=True,
    show_default=True,
    help="Write an empty file for a task without a result (None).",
)
def command(
    input_name: str,
    file_name: str,
    chunk_size: Zyx | None,
    compression: str,
    with_offset: bool,
    voxel_size: tuple[float, float, float] | None,
    dtype: str | None,
    touch: bool,
) -> FileSaver:
    """Return the operator that saves the chunks of tasks to HDF5 files."""
    from chunkflow_py.core.points import Points
    from chunkflow_py.core.synapses import Synapses
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.file_saver import FileSaver
    from chunkflow_py.volume.files.hdf5 import EXTENSIONS, check_compression

    check_compression(compression)
    write = partial(
        _write,
        dtype=dtype,
        block_size=chunk_size,
        compression=compression,
        with_offset=with_offset,
        voxel_size_nm=voxel_size,
    )
    others = (Points, Synapses)
    return FileSaver(FileName(file_name, EXTENSIONS), write, input_name, touch, others)


def _write(path: Path, item: Chunk | Points | Synapses, **options: Any) -> None:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.store.local_files import write_whole

    if isinstance(item, Chunk):
        save_h5(item, path, **options)
    else:
        write_whole(path, item.to_hdf5())

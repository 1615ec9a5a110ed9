"""Load a TIFF file or a folder of TIFF slices.

Example: chunkflow load-tif --file-name raw.tif --voxel-size 40 4 4 save-h5 --file-name raw.h5

A name that has no extension and is not a folder is a prefix: for the task 0-64_0-256_0-256,
`--file-name raw_` reads raw_0-64_0-256_0-256.tif.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

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

DTYPES = ("uint8", "uint16", "uint32", "uint64", "float32", "float64", "float16")


def load_tif(
    path: str | Path,
    bbox: BoundingBox | None = None,
    channels: tuple[int, ...] | None = None,
    dtype: str | None = None,
) -> Chunk | None:
    """Return a TIFF file or a folder of slices as a chunk, or ``None`` if the file has 0 bytes.

    Args:
        path: path of the file or folder.
        bbox: box to read, in global voxels (default: all).
        channels: numbers of the channels to read, in the order of the result (default: all).
        dtype: type to convert the voxels to (default: the type in the file).

    Raises:
        VolumeError: the file cannot be read.
        ChunkError: the axes are not those of a chunk, one of the channels is missing, or a voxel
            does not fit into *dtype*.
    """
    from chunkflow_py.volume.conversion import converted
    from chunkflow_py.volume.files.tiff import open_tiff

    volume = open_tiff(Path(path))
    return None if volume is None else converted(volume.read(bbox, channels), dtype)


@operator("read")
@file_name_option("TIFF file, folder of slices, or prefix for one file per task.")
@placement_options()
@layer_type_option()
@dtype_option(DTYPES, "-d")
@chunk_options("-c")
def command(file_name: str, **options: Any) -> VolumeLoader:
    """Return the operator that loads the file."""
    from chunkflow_py.volume.files.file_name import FileName
    from chunkflow_py.volume.files.tiff import EXTENSIONS, open_tiff

    return file_loader(
        FileName(file_name, EXTENSIONS, reads=True, folders=True), open_tiff, **options
    )

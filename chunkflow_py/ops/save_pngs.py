"""Save each slice of a chunk to a PNG file.

Example: chunkflow create-chunk save-pngs --output-path pngs/

The file of slice z = 42 is 00042.png. The folder may be a URL, such as s3://bucket/pngs. For an
affinity map, the mean of the channels x and y is saved.

Floats become integers by a fixed rule. Probabilities and affinities are clamped to [0, 1] and
multiplied by 255, or by 65535 with --dtype uint16. The same applies to a chunk of unknown kind
whose voxels all lie in [0, 1]. Voxels of an image are not scaled; values that do not fit into the
type are an error. All results are rounded half to even.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from pathlib import Path

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.volume.files.png import PngSaver


def save_pngs(chunk: Chunk, folder: str | Path, dtype: str = "uint8") -> None:
    """Write each slice of *chunk* to a PNG file that is named after the z of the slice.

    Args:
        chunk: (z, y, x), (1, z, y, x), or an affinity map (3, z, y, x). For an affinity map, the
            mean of the channels x and y is saved.
        folder: path or URL of a folder in any store; it is created if it is missing.
        dtype: ``uint8`` or ``uint16``. Floating-point voxels are multiplied by 255 or 65535 if they
            are probabilities or affinities, or if the kind of *chunk* is unknown and all voxels are
            in [0, 1].

    Raises:
        ChunkError: the chunk has several channels and is not an affinity map, or a voxel does not
            fit into *dtype*.
        VolumeError: a file cannot be written.
    """
    from chunkflow_py.volume.files.png import write_pngs

    write_pngs(folder, chunk, dtype)


@operator("write")
@input_option(help="Name of the chunk to save.")
@click.option(
    "--dtype",
    "-t",
    type=click.Choice(["uint8", "uint16"]),
    default="uint8",
    show_default=True,
    help="Type of the images; a probability or affinity of 1 becomes 255, or 65535 with uint16. "
    "Values that do not fit are an error.",
)
@click.option(
    "--output-path",
    "-o",
    default="./pngs/",
    show_default=True,
    help="Path or URL of the folder for the images; created if missing.",
)
def command(input_name: str, dtype: str, output_path: str) -> PngSaver:
    """Return the operator that saves chunks to the folder."""
    from chunkflow_py.volume.files.png import PngSaver

    return PngSaver(output_path, dtype, input_name)

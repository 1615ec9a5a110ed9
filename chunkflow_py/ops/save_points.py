r"""Save points to an HDF5 file.

Example: chunkflow load-h5 --file-name map.h5 detect-points --output-name point_cloud \
  save-points --file-path points.h5

A name without .h5 or .hdf5 is a prefix or a folder: the task 0-64_0-512_0-512 writes `-f points_`
to points_0-64_0-512_0-512.h5. The datasets are points (n, 3), voxel_size and confidences, all zyx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from chunkflow_py.store.task_files import ItemSaver

SECTION = "objects"


@operator("write")
@input_option("--input-name", "-i", default="point_cloud", help="Name of the points.")
@click.option(
    "--file-path", "-f", required=True, help="File or URL, or prefix for one file per task."
)
def command(input_name: str, file_path: str) -> ItemSaver:
    """Return the operator for the file."""
    from chunkflow_py.core.points import Points
    from chunkflow_py.store.task_files import ItemSaver, TaskFiles

    files = TaskFiles(file_path, ".h5", (".h5", ".hdf5"), "--file-path")
    return ItemSaver(files, input_name, Points.to_hdf5, Points)

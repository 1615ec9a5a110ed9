r"""Save points to an HDF5 file.

Example: chunkflow load-h5 --file-name map.h5 detect-points --output-name point_cloud \
  save-points --file-path points.h5

A name without .h5 or .hdf5 is a prefix or a folder: with `--file-path points_`, the task
0-64_0-512_0-512 writes points_0-64_0-512_0-512.h5. The file holds the datasets points (n, 3),
voxel_size and confidences; positions and sizes are zyx.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from chunkflow_py.ops.options.file_options import file_path_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from chunkflow_py.store.task_files import ItemSaver

SECTION = "objects"


@operator("write")
@input_option("--input-name", "-i", default="point_cloud", help="Name of the points to save.")
@file_path_option()
def command(input_name: str, file_path: str) -> ItemSaver:
    """Return the operator that saves points to the file."""
    from chunkflow_py.core.points import Points
    from chunkflow_py.store.task_files import ItemSaver, TaskFiles

    files = TaskFiles(file_path, ".h5", (".h5", ".hdf5"), "--file-path")
    return ItemSaver(files, input_name, Points.to_hdf5, Points)

r"""Save points to an HDF5 or CSV file.

Example: chunkflow load-h5 --file-name map.h5 detect-points --output-name point_cloud \
  save-points --file-path points.h5

A name without .h5, .hdf5 or .csv is a prefix or a folder: with `--file-path points_`, the task
0-64_0-512_0-512 writes points_0-64_0-512_0-512.h5, or .csv with `--format csv`. An HDF5 file holds
the datasets points (of shape n × 3), voxel_size and confidences; positions and sizes are zyx. A CSV
file has the columns z, y, x (voxels), z_nm, y_nm, x_nm and confidence.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

import click

from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.file_options import file_path_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option

if TYPE_CHECKING:
    from chunkflow_py.store.task_files import ItemSaver

SECTION = "objects"


@operator("write")
@input_option("--input-name", "-i", default="point_cloud", help="Name of the points to save.")
@file_path_option()
@click.option(
    "--format",
    "format_",
    type=click.Choice(["h5", "csv"]),
    help="Format of the files.  [default: by the extension of --file-path, else h5]",
)
def command(input_name: str, file_path: str, format_: str | None) -> ItemSaver:
    """Return the operator that saves points to the file.

    Raises:
        OptionError: the extension of the file does not belong to the format.
    """
    from chunkflow_py.core.points import Points
    from chunkflow_py.store.task_files import ItemSaver, TaskFiles

    named = {".h5": "h5", ".hdf5": "h5", ".csv": "csv"}.get(PurePath(file_path).suffix)
    if format_ is not None and named not in (None, format_):
        msg = (
            f"--file-path {file_path} does not have the extension of --format {format_}; leave "
            "--format out, or change the extension"
        )
        raise OptionError(msg)
    if (format_ or named) == "csv":
        files = TaskFiles(file_path, ".csv", (".csv",), "--file-path")
        return ItemSaver(files, input_name, Points.to_csv, Points)
    files = TaskFiles(file_path, ".h5", (".h5", ".hdf5"), "--file-path")
    return ItemSaver(files, input_name, Points.to_hdf5, Points)

"""Save synapses to an HDF5 or JSON file.

Example: chunkflow load-synapses --file-path synapses.json save-synapses --file-path synapses.h5

A name without .h5, .hdf5 or .json is a prefix or a folder: with `--file-path syns_`, the task
0-64_0-512_0-512 writes syns_0-64_0-512_0-512.h5. For a task without synapses (the item is None),
an empty file is written.
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
@input_option("--input-name", "-i", default="syns", help="Name of the synapses to save.")
@file_path_option()
def command(input_name: str, file_path: str) -> ItemSaver:
    """Return the operator that saves synapses; the extension of the file determines the format."""
    from chunkflow_py.core.synapses import Synapses
    from chunkflow_py.store.task_files import ItemSaver, TaskFiles

    files = TaskFiles(file_path, ".h5", (".h5", ".hdf5", ".json"), "--file-path")
    is_json = file_path.lower().endswith(".json")
    encode = Synapses.to_json if is_json else Synapses.to_hdf5
    return ItemSaver(files, input_name, encode, Synapses)

r"""Replace labels by the ids that solve-labels found.

Example: chunkflow generate-tasks --volume-path parts.zarr --chunk-size 64 256 256 \
  load-volume --volume-path parts.zarr relabel --table-path table \
  save-volume --volume-path zarr://labels.zarr

This is the last phase of labelling a whole volume. A task reads only those parts of the table that
may contain its labels. Labels that the table does not contain do not change.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.operator_base import OperatorBase, hook, hook_value
from chunkflow_py.errors import check_extra
from chunkflow_py.ops.options.label_options import place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.core.task import Task
    from chunkflow_py.segmentation.labels.label_table import LabelTable, ObjectCount
    from chunkflow_py.store.store_protocol import Access

SECTION = "segment"


def relabel(
    chunk: Chunk, table: LabelTable, note: Callable[[NDArray[np.uint64]], None] | None = None
) -> Chunk:
    """Return *chunk* with the labels of tasks replaced by the ids of whole objects.

    Args:
        chunk: (z, y, x) or (1, z, y, x) labels, integers.
        table: table of old and new ids; see `segmentation.labels.label_table.LabelTable`.
        note: function that receives all ids of the result, in one or several arrays; an id may
            occur several times.

    Returns:
        A chunk of the same shape, uint64, of the kind ``segmentation``.

    Raises:
        ChunkError: the voxels are not labels.
        VolumeError: the table is missing or damaged.
    """
    from chunkflow_py.segmentation.labels.label_table import relabelled

    return chunk.with_array(relabelled(chunk.array, table, note), kind="segmentation")


@dataclass
class Relabeller(OperatorBase):
    """Replaces the labels in a chunk of every task by the ids in a table.

    Attributes:
        table_path: URL of the table.
        input_name, output_name: names of the input and the output chunk.
        access: credentials and billing of requests to cloud storage.
        objects: counter of the objects in all tasks; with ``None``, objects are not counted.
    """

    table_path: str
    input_name: str = "chunk"
    output_name: str = "chunk"
    access: Access | None = None
    objects: ObjectCount | None = None
    labelling: ClassVar[None] = hook_value(None)  # objects are whole
    _tables: dict[int | None, LabelTable] = field(default_factory=dict, repr=False)

    @property
    @hook
    def origin(self) -> str:
        """URL of the table of old and new ids."""
        return place_of(self.table_path)

    @hook
    def voxels_from(self, read: Voxels) -> Voxels:
        """Return the dtype and the kind of the result: uint64, segmentation."""
        return read._replace(dtype="uint64", kind="segmentation")

    def __enter__(self) -> Relabeller:
        """Do nothing: the first task opens the table."""
        return self

    def __exit__(self, *_: object) -> None:
        """Release the table."""
        self._tables.clear()

    def __call__(self, task: Task) -> Task:
        """Replace the labels in the chunk by the ids of whole objects."""
        from chunkflow_py.segmentation.labels.label_table import LabelTable
        from chunkflow_py.store import open_store
        from chunkflow_py.store.store_protocol import Access

        time = None if task.region is None else task.region.time
        if time not in self._tables:
            store = open_store(self.origin, self.access or Access())
            self._tables[time] = LabelTable(store, time)
        note = None if self.objects is None else partial(self.objects.add, time)
        chunk = task.chunk(self.input_name)
        task[self.output_name] = relabel(chunk, self._tables[time], note)
        return task


@operator("compute")
@click.option("--table-path", "-t", required=True, metavar="URL",
              help="Table of old and new ids that solve-labels stored.")  # fmt: skip
@input_option(help="Name of the labels.")
@output_option()
@access_options()
def command(table_path: str, input_name: str, output_name: str, **options: Any) -> Relabeller:
    """Check that fastremap is installed, and return the operator."""
    check_extra("segmentation", "relabel", "fastremap")
    return Relabeller(table_path, input_name, output_name, access_from(options))

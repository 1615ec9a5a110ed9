r"""Find the segment that each T-bar lies in.

Example: chunkflow load-synapses --file-path synapses.h5 load-h5 --file-name segmentation.h5 \
  find-tbar-object save-synapses --file-path synapses_of_cells.h5

The segment ids are stored with the synapses (dataset object_ids in HDF5). A T-bar outside of the
chunk keeps its previous id; without a previous id, it gets 0.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from chunkflow_py.ops.options.synapse_options import synapses_option
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.pipeline.params import input_option, output_option

if TYPE_CHECKING:
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.synapses import Synapses
    from chunkflow_py.core.task import Task

SECTION = "objects"


def find_tbar_object(synapses: Synapses, segmentation: Chunk) -> Synapses:
    """Return *synapses* with the segment ids of their T-bars.

    Args:
        synapses: synapses with positions in voxels of the segmentation.
        segmentation: (z, y, x) or (1, z, y, x), integers; 0 is background.

    Raises:
        ChunkError: *segmentation* does not contain labels.
    """
    import numpy as np

    from chunkflow_py.segmentation.labels.partners import objects_at

    ids = objects_at(segmentation, synapses.pre).astype(np.uint64)
    if synapses.object_ids is not None:
        box = segmentation.bbox
        inside = np.all((synapses.pre >= box.start) & (synapses.pre < box.stop), axis=1)
        ids = np.where(inside, ids, synapses.object_ids.astype(np.uint64))
    return replace(synapses, object_ids=ids)


@dataclass
class ObjectFinder:
    """Finds the segment of each T-bar of every task."""

    input_name: str = "chunk"
    synapses_name: str = "syns"
    output_name: str = "syns"

    def __call__(self, task: Task) -> Task:
        """Add the synapses with segment ids to *task*, or ``None`` if *task* has no synapses."""
        from chunkflow_py.core.synapses import Synapses

        if task[self.synapses_name] is None:
            task[self.output_name] = None
            return task
        synapses = task.item(self.synapses_name, Synapses)
        task[self.output_name] = find_tbar_object(synapses, task.chunk(self.input_name))
        return task


@operator("compute")
@input_option(help="Name of the segmentation.")
@synapses_option()
@output_option("--output-name", "-o", default="syns", help="Name of the synapses with segment ids.")
def command(input_name: str, synapses_name: str, output_name: str) -> ObjectFinder:
    """Return the operator for the given names of items."""
    return ObjectFinder(input_name, synapses_name, output_name)

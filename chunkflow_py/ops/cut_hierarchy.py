"""Make the table of segment ids at a threshold.

Example: chunkflow cut-hierarchy --hierarchy-path hierarchy --graph-path graph \
  --fragment-table-path fragment-ids --table-path segment-ids --threshold 0.7

This is a step of segment-affinity, between merge-regions and relabel. For each fragment, the table
has the id that fragment-affinity assigned and the id of the segment that contains the fragment.

--threshold can have any value up to the --max-threshold of measure-contacts. The segments are the
same as if mean-affinity agglomeration had run on the whole volume at once. --min-size N then unites
each segment of fewer than N voxels with the neighbour to which it has the highest mean affinity.

One task handles the whole volume. In a run, make cut-hierarchy a step with a single task:
`then generate-tasks --roi-size 1 1 1 --chunk-size 1 1 1 cut-hierarchy ...`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.ops.options.agglomeration_options import FRACTION, THRESHOLD_HELP, graph_option
from chunkflow_py.ops.options.label_options import check_single_task, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access

SECTION = "segment"


@dataclass
class HierarchyCutter(OperatorBase):
    """Writes the table of fragment ids and segment ids.

    Attributes:
        hierarchy_path: URL of the hierarchy that merge-regions has written.
        graph_path: URL of the graph that measure-contacts has written. Its contacts are read
            only if *min_size* is above 1.
        fragment_table_path: URL of the table that solve-labels has written for the fragments.
        table_path: URL of a folder or prefix to write the table to.
        threshold: segments are merged while 1 - mean affinity is at most this value.
        min_size: unite a segment of fewer voxels than this with the neighbour of highest mean
            affinity; 0 unites no segments.
        min_affinity: a small segment is united with a neighbour only if the mean affinity between
            them, in [0, 1], is at least *min_affinity*.
        access: credentials and billing of requests to cloud storage.
    """

    hierarchy_path: str
    graph_path: str
    fragment_table_path: str
    table_path: str
    threshold: float
    min_size: int = 0
    min_affinity: float = 0.0
    access: Access | None = None

    @property
    @hook
    def origins(self) -> tuple[str, ...]:
        """URLs of all inputs; the contacts are an input only if *min_size* is above 1."""
        places = (place_of(self.hierarchy_path), place_of(self.fragment_table_path))
        contacts = f"{place_of(self.graph_path)}/contacts"
        return (*places, contacts) if self.min_size > 1 else places

    @property
    @hook
    def destination(self) -> str:
        """URL of the table that is written."""
        return place_of(self.table_path)

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that the pipeline has only one task.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: the pipeline has several tasks.
        """
        check_single_task(outline, "cut-hierarchy")

    def __call__(self, task: Task) -> Task:
        """Write the table of segment ids."""
        from chunkflow_py.segmentation.agglomeration.graph_levels import write_segment_table
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access

        access = self.access or Access()
        places = (self.hierarchy_path, self.fragment_table_path, self.graph_path)
        hierarchy, fragments, graph = (open_store(place_of(each), access) for each in places)
        table = RecordingStore(open_store(self.destination, access))
        write_segment_table(
            hierarchy, graph, fragments, table, self.threshold, self.min_size, self.min_affinity
        )
        task.written += table.written
        return task


@operator("write")
@click.option("--hierarchy-path", required=True, metavar="URL",
              help="Hierarchy that merge-regions has written.")  # fmt: skip
@graph_option()
@click.option("--fragment-table-path", required=True, metavar="URL",
              help="Table that solve-labels has written for the fragments.")  # fmt: skip
@click.option("--table-path", "-t", required=True, metavar="URL",
              help="Folder or prefix to write the table to.")  # fmt: skip
@click.option("--threshold", type=FRACTION, default=0.7, show_default=True, help=THRESHOLD_HELP)
@click.option("--min-size", type=click.IntRange(min=0), default=0, show_default=True,
              help="Unite each segment of fewer voxels than this with the neighbour of highest "
                   "mean affinity; 0 unites no segments.")  # fmt: skip
@click.option("--min-affinity", type=FRACTION, default=0.0, show_default=True,
              help="Mean affinity below which a small segment (see --min-size) is not united "
                   "with a neighbour.")  # fmt: skip
@access_options()
def command(
    hierarchy_path: str, graph_path: str, fragment_table_path: str, table_path: str,
    threshold: float, min_size: int, min_affinity: float, **options: Any,
) -> HierarchyCutter:  # fmt: skip
    """Return the operator, which opens its stores when it runs."""
    return HierarchyCutter(
        hierarchy_path, graph_path, fragment_table_path, table_path, threshold, min_size,
        min_affinity, access_from(options),
    )  # fmt: skip

"""Assign one id to each object, based on all links.

Example: chunkflow solve-labels --links-path links --table-path table

This is the third phase of labelling a whole volume, between link-labels and relabel. A link is a
pair of labels, one from each of two tasks, that belong to one object. solve-labels writes the table
of old and new ids that relabel reads. One task handles the whole volume and needs about 250 bytes
of memory per linked label. With submit, give solve-labels a pipeline of its own, with a single
task: `submit ... then generate-tasks --roi-size 1 1 1 --chunk-size 1 1 1 solve-labels ...`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.ops.options.label_options import check_single_task, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access, Stored

SECTION = "segment"


def solve_labels(
    links_path: str, table_path: str, access: Access | None = None
) -> tuple[Stored, ...]:
    """Write the table that maps all labels of an object to one id, based on stored links.

    Args:
        links_path: URL of the links that link-labels stored.
        table_path: URL of a folder or prefix for the table.
        access: credentials and billing of requests to cloud storage.

    Returns:
        The files written. The content of the table depends only on the links.

    Raises:
        VolumeError: there are no links, the links are damaged, or they come from different task
            grids.
    """
    from chunkflow_py.segmentation.labels.linking import solve_links
    from chunkflow_py.store import open_store
    from chunkflow_py.store.recording_store import RecordingStore
    from chunkflow_py.store.store_protocol import Access

    access = access or Access()
    table = RecordingStore(open_store(place_of(table_path), access))
    solve_links(open_store(place_of(links_path), access), table)
    return tuple(table.written)


@dataclass
class LabelSolver(OperatorBase):
    """Writes the table of old and new ids.

    Attributes:
        links_path: URL of the links that link-labels stored.
        table_path: URL of a folder or prefix to write the table to.
        access: credentials and billing of requests to cloud storage.
    """

    links_path: str
    table_path: str
    access: Access | None = None

    @property
    @hook
    def origin(self) -> str:
        """URL of the links that are read."""
        return place_of(self.links_path)

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
        check_single_task(outline, "solve-labels")

    def __call__(self, task: Task) -> Task:
        """Write the table of old and new ids."""
        task.written += solve_labels(self.links_path, self.table_path, self.access)
        return task


@operator("write")
@click.option("--links-path", "-l", required=True, metavar="URL",
              help="Links that link-labels stored.")  # fmt: skip
@click.option("--table-path", "-t", required=True, metavar="URL",
              help="Folder or prefix to write the table to.")  # fmt: skip
@access_options()
def command(links_path: str, table_path: str, **options: Any) -> LabelSolver:
    """Return the operator."""
    return LabelSolver(links_path, table_path, access_from(options))

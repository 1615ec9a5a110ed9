"""Find one id for each object from all links.

Example: chunkflow solve-labels --links-path links --table-path table

The third phase of labels over a whole volume, between link-labels and relabel: it writes a table,
old id and new id, for relabel. One task does the whole volume, with about 250 bytes of memory for
each label that is linked. In a run it is a stage of one task: then generate-tasks
--roi-size 1 1 1 --chunk-size 1 1 1 solve-labels ...
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from chunkflow_py.core.operator_base import OperatorBase, hook
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.label_options import place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator

if TYPE_CHECKING:
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access, Stored

SECTION = "segment"


def solve_labels(
    links_path: str, table_path: str, access: Access | None = None
) -> tuple[Stored, ...]:
    """Write the table of ids that the links ask for.

    Args:
        links_path: URL of what link-labels stored.
        table_path: URL of a folder or prefix for the table.
        access: how to call on the stores.

    Returns:
        What is stored: the table depends on the links alone.

    Raises:
        VolumeError: there are no links, they are damaged, or of several cuts into tasks.
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
    """Writes the table."""

    links_path: str
    table_path: str
    access: Access | None = None

    @property
    @hook
    def origin(self) -> str:
        """Where links are."""
        return place_of(self.links_path)

    @property
    @hook
    def destination(self) -> str:
        """Where the table is."""
        return place_of(self.table_path)

    @hook
    def prepare(self, outline: Any) -> None:
        """Refuse several tasks, each of which would do all of it (the line: an `Outline`).

        Raises:
            OptionError: there are several.
        """
        count = len(outline.boxes or ())
        if count > 1:
            msg = (
                f"solve-labels does the whole volume in one task, and the line makes {count}; "
                "begin it with generate-tasks --roi-size 1 1 1 --chunk-size 1 1 1"
            )
            raise OptionError(msg)

    def __call__(self, task: Task) -> Task:
        """Write the table."""
        task.written += solve_labels(self.links_path, self.table_path, self.access)
        return task


@operator("write")
@click.option("--links-path", "-l", required=True, metavar="URL",
              help="What link-labels stored.")  # fmt: skip
@click.option("--table-path", "-t", required=True, metavar="URL",
              help="Folder or prefix for the table.")  # fmt: skip
@access_options()
def command(links_path: str, table_path: str, **options: Any) -> LabelSolver:
    """Take the two places."""
    return LabelSolver(links_path, table_path, access_from(options))

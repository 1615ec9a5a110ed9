r"""Merge the regions of eight neighbouring boxes.

Example: chunkflow generate-tasks --volume-path affinity.zarr --chunk-size 128 512 512 \
  --respect-stop merge-regions --graph-path graph --level 1 --task-size 64 256 256

This is a step of segment-affinity, after measure-contacts. A region is a fragment, or several
fragments that have been merged. The merging proceeds in levels, which are not resolution levels.
Level 1 combines the boxes of 2 x 2 x 2 tasks of measure-contacts. Level 2 combines 2 x 2 x 2 boxes
of level 1, and so on. The last level has a single box, the whole volume.
Give --hierarchy-path at the last level, to store the hierarchy of all merges for cut-hierarchy.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import click

from chunkflow_py.core.host_memory import OperatorMemory
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook, hook_value
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.options.agglomeration_options import graph_option, task_size_option
from chunkflow_py.ops.options.label_options import check_task_boxes, place_of
from chunkflow_py.ops.options.volume_options import access_from, access_options
from chunkflow_py.pipeline.operator import operator
from chunkflow_py.segmentation.agglomeration import graph_memory

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Access

SECTION = "segment"
logger = logging.getLogger(__name__)


@dataclass
class RegionMerger(OperatorBase):
    """Merges the regions in each box of a level; the box joins 2 x 2 x 2 boxes of the level below.

    Attributes:
        graph_path: URL of the graph that measure-contacts has written.
        level: number of the level, from 1; the boxes of level 0 are the tasks of measure-contacts.
        task_size: size of the tasks of measure-contacts, voxels, zyx.
        hierarchy_path: for the last level, URL of a folder or prefix for the hierarchy.
        access: credentials and billing of requests to cloud storage.
    """

    graph_path: str
    level: int
    task_size: Zyx
    hierarchy_path: str | None = None
    access: Access | None = None
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    _boxes: Boxes | None = field(default=None, init=False)
    separates_times: ClassVar[bool] = hook_value(False)

    @property
    @hook
    def origins(self) -> tuple[str, ...]:
        """URLs of the graphs that this level reads.

        Level k reads the graph of level k - 1. If level k also stores the hierarchy, it reads the
        graphs of all levels from 0 to k - 1.
        """
        first = self.level - 1 if self.hierarchy_path is None else 0
        return tuple(f"{place_of(self.graph_path)}/level-{k}" for k in range(first, self.level))

    @property
    @hook
    def destinations(self) -> tuple[str, ...]:
        """URLs to which the graph of this merge level and the hierarchy are written."""
        level = f"{place_of(self.graph_path)}/level-{self.level}"
        hierarchy = self.hierarchy_path
        return (level,) if hierarchy is None else (level, place_of(hierarchy))

    @hook
    def prepare(self, outline: Any) -> None:
        """Check that tasks have boxes, and keep these boxes for the estimate of memory.

        Args:
            outline: what the pipeline knows about its tasks before the first task runs.

        Raises:
            OptionError: the tasks have no boxes.
        """
        check_task_boxes(outline, "merge-regions", "merges regions in the box of each task")
        self._boxes = outline.boxes

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the peak memory, in bytes, of merging in the largest box of this merge level."""
        del size
        first = next(iter(self._boxes or ()), None)  # no other box is larger
        if first is None:
            return None
        voxels = first.voxels
        work = graph_memory.graph_bytes(voxels)
        if self.hierarchy_path is not None:
            work = max(work, graph_memory.hierarchy_bytes(voxels))
        return OperatorMemory(work=work)

    def __call__(self, task: Task) -> Task:
        """Merge the regions in the box of a task.

        Raises:
            GeometryError: the box of the task is not one of the boxes of *level*.
            VolumeError: a stored file of the level below is missing or damaged.
        """
        from chunkflow_py.segmentation.agglomeration.graph_levels import (
            merge_level,
            write_all_merges,
        )
        from chunkflow_py.segmentation.agglomeration.graph_store import GraphStore
        from chunkflow_py.store import open_store
        from chunkflow_py.store.recording_store import RecordingStore
        from chunkflow_py.store.store_protocol import Access

        if task.region is None:
            msg = (
                "merge-regions needs tasks with boxes; put generate-tasks in front of merge-regions"
            )
            raise OptionError(msg)
        access = self.access or Access()
        store = RecordingStore(open_store(place_of(self.graph_path), access))
        graphs, box = GraphStore(store), task.region.bbox
        summary = merge_level(graphs, box, self.level, self.task_size)
        logger.info("level %d, box %s: %s", self.level, box, summary)
        task.written += store.written
        if self.hierarchy_path is not None:
            hierarchy = RecordingStore(open_store(place_of(self.hierarchy_path), access))
            write_all_merges(graphs, hierarchy, self.level)
            task.written += hierarchy.written
        return task


@operator("write")
@graph_option()
@click.option("--level", type=click.IntRange(min=1), required=True,
              help="Number of the merge level; along each axis, a box spans 2^level "
                   "tasks.")  # fmt: skip
@task_size_option()
@click.option("--hierarchy-path", metavar="URL",
              help="Folder or prefix for the hierarchy of all merges; give it for the last level, "
                   "whose only box is the whole volume.")  # fmt: skip
@access_options()
def command(
    graph_path: str, level: int, task_size: Zyx, hierarchy_path: str | None, **options: Any
) -> RegionMerger:
    """Return the operator."""
    return RegionMerger(graph_path, level, task_size, hierarchy_path, access_from(options))

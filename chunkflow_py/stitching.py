"""Labels of whole volumes on one machine: link, solve and relabel, each as tasks of a line.

```
WORK/stitch.json    what is stitched, so that nothing goes on with another's links
WORK/links/BOX.npz  one a task of the labels; those that are there are not made again
WORK/table/...      by which OUTPUT is a copy of LABELS; what is stored in it is not written again
```
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import OptionError
from chunkflow_py.geometry import BoxGrid, Zyx
from chunkflow_py.linking import OverlapLinker, TouchLinker, solve_links
from chunkflow_py.ops.link_labels import LabelLinker
from chunkflow_py.ops.relabel import Relabeller
from chunkflow_py.pipeline import Pipeline
from chunkflow_py.segmentation.links import link_key
from chunkflow_py.stages import Operator, Source
from chunkflow_py.store import open_store
from chunkflow_py.task import Skip, Task
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import Opening
from chunkflow_py.whole_volume import Conversion, VolumeTasks

if TYPE_CHECKING:
    from chunkflow_py.store.protocol import Store
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)

_RECORD = "stitch.json"


@dataclass
class Stitching:
    """What is stitched, and where to.

    Attributes:
        labels: URL of the volume whose ids are unique in it.
        output: URL of the volume to make.
        chunk_size: of the tasks that made the labels, which began at the volume's first voxel.
        linker: how labels of neighbouring tasks are linked.
        mip: level of the labels.
        work: URL of a folder or prefix for links and table (default: ``OUTPUT.stitch``).
        overwrite: do all of it again.
        block_size: of a new output (default: as the labels have).
        encoding: of a new output.
        task_size: of the tasks that relabel.
        opening: how to use the volumes.
    """

    labels: str
    output: str
    chunk_size: Zyx
    linker: TouchLinker | OverlapLinker
    mip: int = 0
    work: str | None = None
    overwrite: bool = False
    block_size: Zyx | None = None
    encoding: str | None = None
    task_size: Zyx | None = None
    opening: Opening = field(default_factory=Opening)

    @cached_property
    def place(self) -> str:
        """Address of the folder for links and table."""
        if self.work is not None:
            return Location.parse(self.work).store_url
        return f"{Location.parse(self.output).store_url}.stitch"

    def _store(self, name: str = "") -> Store:
        return open_store(f"{self.place}/{name}".rstrip("/"), self.opening.access)

    @cached_property
    def _volume(self) -> Volume:
        return open_volume(self.labels, self.mip, opening=self.opening)

    def begin(self) -> None:
        """Write down what is stitched, or compare with what was.

        Raises:
            OptionError: links of something else are there.
        """
        said = {
            **self.linker.about,
            "bounds": str(self._volume.bounds),
            "chunk size": list(self.chunk_size),
        }
        content = json.dumps(said, indent=2).encode() + b"\n"
        store, links = self._store(), self._store("links")
        if self.overwrite:
            for key in list(links.list()):
                links.delete(key)
            store.put(_RECORD, content, content_type="application/json")
        elif not store.put_if_absent(_RECORD, content) and store.get(_RECORD) != content:
            msg = (
                f"{self.place} holds links of something else (see {_RECORD} there), not those of "
                f"{json.dumps(said)}; give another --work-path, or --overwrite"
            )
            raise OptionError(msg)

    def linking(self, **running: Any) -> Pipeline:
        """Return the line that links labels at the faces of all tasks.

        Args:
            running: further arguments of `Pipeline`.
        """
        grid = BoxGrid.covering(self._volume.bounds, self.chunk_size, respect_stop=True)
        links = self._store("links")
        there = frozenset(links.list())
        linker = LabelLinker(links.url, self.linker, self.opening.access)

        def skip(task: Task) -> Task:
            if task.region is not None and link_key(task.region) in there:
                reason = "its links are stored"
                raise Skip(reason)
            return task

        operators = [
            Operator("resume", "read", skip, skip),
            Operator("link", "write", linker, linker),
        ]
        tasks = Source("tasks", VolumeTasks(grid, self._volume.times))
        return Pipeline(operators, tasks, **running)

    def solve(self) -> dict[str, str]:
        """Write the table; return its checksum, by time index.

        Raises:
            VolumeError: links are missing or damaged.
        """
        return solve_links(self._store("links"), self._store("table"))

    def relabelling(self, table: dict[str, str], **running: Any) -> Pipeline:
        """Create the output unless it is there, and return the line that fills it.

        Args:
            table: checksums of the table.
            running: further arguments of `Pipeline`.

        Raises:
            VolumeError: the output holds something else.
        """
        conversion = _Relabelling(
            self.labels,
            self.output,
            self.mip,
            dtype=_uint64(),
            block_size=self.block_size,
            encoding=self.encoding,
            task_size=self.task_size,
            overwrite=self.overwrite,
            reading=self.opening,
            writing=Opening(parallel=self.opening.parallel, access=self.opening.access),
            table=table,
        )
        line = conversion.line(**running)
        body = Relabeller(f"{self.place}/table", access=self.opening.access)
        relabel = Operator("relabel", "compute", body, body, ("chunk",), ("chunk",))
        line.operators.insert(-1, relabel)
        return line


@dataclass
class _Relabelling(Conversion):
    """A copy by a table, which is part of what the copy is of."""

    table: dict[str, str] = field(default_factory=dict)

    def copied(self, source: Volume) -> dict[str, Any]:
        """Return what says which voxels are copied."""
        return {**super().copied(source), "table": self.table}


def _uint64() -> Any:
    import numpy as np

    return np.dtype("uint64")

"""Labels of whole volumes on one machine: link, solve and relabel, each as tasks of a line.

```
WORK/stitch.json    what is stitched, so that nothing goes on with another's links
WORK/links/BOX.npz  one a task of the labels; those that are there are not made again
WORK/table/...      by which OUTPUT is a copy of LABELS; what is stored in it is not written again
```
"""

from __future__ import annotations

import hashlib
import json
import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.task import Skip, Task
from chunkflow_py.errors import AlignmentError, ChunkError, OptionError
from chunkflow_py.ops.link_labels import LabelLinker
from chunkflow_py.ops.relabel import Relabeller
from chunkflow_py.pipeline.operator import Operator, Source, TaskSource
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.run.whole_volume import Conversion, VolumeTasks
from chunkflow_py.segmentation.labels.label_table import ObjectCount
from chunkflow_py.segmentation.labels.linking import OverlapLinker, TouchLinker, solve_links
from chunkflow_py.segmentation.labels.links import link_key
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.labelling import FOLDER, LabellingRecords, uncovered
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeOptions, check_disjoint

if TYPE_CHECKING:
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)

_RECORD = "stitch.json"


@dataclass
class Stitching:
    """What is stitched, and where to.

    Attributes:
        labels: URL of the volume whose ids are unique in it.
        output: URL of the volume to make.
        chunk_size: of the tasks that made the labels, which began at the volume's first voxel
            (default: their boxes, as they are recorded with the labels).
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
    chunk_size: Zyx | None
    linker: TouchLinker | OverlapLinker
    mip: int = 0
    work: str | None = None
    overwrite: bool = False
    block_size: Zyx | None = None
    encoding: str | None = None
    task_size: Zyx | None = None
    opening: VolumeOptions = field(default_factory=VolumeOptions)

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
            ChunkflowError: the labels were made otherwise than they are to be linked.
        """
        if isinstance(self.linker, TouchLinker):
            self.linker.check_recorded()
        _ = self._tasks
        size = self.chunk_size
        boxes = "\n".join(map(str, self._records.regions)).encode()
        said = {
            **self.linker.about,
            "bounds": str(self._volume.bounds),
            "chunk size": hashlib.sha256(boxes).hexdigest() if size is None else list(size),
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

    @cached_property
    def _records(self) -> LabellingRecords:
        return LabellingRecords(self._volume, self.opening.access)

    @cached_property
    def _tasks(self) -> VolumeTasks | TaskSource:
        """The tasks that made the labels; what they have left out is one more, or several.

        Raises:
            OptionError: nothing says what they were.
            ChunkError: the records are of tasks that overlap, or of another size.
        """
        volume, recorded = self._volume, self._records.regions
        by_time: dict[int | None, list[BoundingBox]] = {}
        for region in recorded:
            by_time.setdefault(region.time, []).append(region.bbox)
        for boxes in by_time.values():
            try:
                check_disjoint(boxes, self.labels)
            except AlignmentError as error:
                msg = (
                    f"{self.labels} was labelled by tasks of several sizes ({error}): label into a "
                    "new volume; or, if the last tasks covered all of it, remove the folder "
                    f"{FOLDER} of the level and give their --chunk-size"
                )
                raise ChunkError(msg) from error
        if self.chunk_size is not None:
            grid = BoxGrid.covering(volume.bounds, self.chunk_size, respect_stop=True)
            tasks = VolumeTasks(grid, volume.times)
            for task in tasks if recorded else ():
                if task.region is not None:
                    self._records.owner(task.region)
            return tasks
        if not recorded:
            msg = (
                f"{self.labels} does not say by which tasks it was labelled (another program or an "
                "older version has written it); give their box size, --chunk-size Z Y X"
            )
            raise OptionError(msg)
        points = (None,) if volume.times is None else range(volume.times)
        regions: list[Region] = []
        for time in points:
            boxes = by_time.get(time, [])
            regions += (Region(box, time) for box in boxes + uncovered(boxes, volume.bounds))
        return TaskSource([region.bbox for region in regions], lambda: regions)

    def linking(self, **running: Any) -> Pipeline:
        """Return the line that links labels at the faces of all tasks.

        Args:
            running: further arguments of `Pipeline`.
        """
        source = self._tasks
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
        return Pipeline(operators, Source("tasks", source), **running)

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
            writing=VolumeOptions(parallel=self.opening.parallel, access=self.opening.access),
            table=table,
        )
        line = conversion.line(**running)
        body = Relabeller(
            f"{self.place}/table", access=self.opening.access, objects=conversion.objects
        )
        relabel = Operator("relabel", "compute", body, body, ("chunk",), ("chunk",))
        line.operators.insert(-1, relabel)
        return line


@dataclass
class _Relabelling(Conversion):
    """A copy by a table, which is part of what the copy is of; counts its objects."""

    table: dict[str, str] = field(default_factory=dict)
    objects: ObjectCount = field(default_factory=ObjectCount)

    def copied(self, source: Volume) -> dict[str, Any]:
        """Return what says which voxels are copied."""
        return {**super().copied(source), "table": self.table}

    def report(self, written: int, stored: int, total: int) -> None:
        """Log what was done, and the number of objects if all tasks were relabelled here."""
        super().report(written, stored, total)
        target = without_secrets(self.target)
        if written == total:
            count = self.objects.total()
            logger.info("%s: %d %s", target, count, "object" if count == 1 else "objects")
        elif written + stored == total:
            logger.info(
                "%s: objects are not counted, as %d of %d tasks were stored already; --overwrite "
                "does all again and counts them", target, stored, total,
            )  # fmt: skip


def _uint64() -> Any:
    import numpy as np

    return np.dtype("uint64")

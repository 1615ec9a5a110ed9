"""Stitching of the labels of a volume on one machine: link, solve and relabel.

Tasks have labelled the volume independently, so an object that extends over several tasks has a
different label in each of them. *Link* finds the labels of the same object in neighbouring tasks.
*Solve* computes a table with the new label of each label. *Relabel* writes the new labels to the
output.

```
WORK/stitch.json    parameters; a later call with other parameters is refused
WORK/links/BOX.npz  links of one labelling task; existing files are not computed again
WORK/table/...      the label table, which is applied when LABELS is copied to OUTPUT
```

Linking and relabelling are pipelines over tasks. If one of these pipelines is interrupted and run
again, stored links and blocks are not written again.
"""

from __future__ import annotations

import hashlib
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
from chunkflow_py.run.work_folder import begin_in
from chunkflow_py.segmentation.labels.label_table import ObjectCount
from chunkflow_py.segmentation.labels.linking import OverlapLinker, TouchLinker, solve_links
from chunkflow_py.segmentation.labels.links import link_key
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.labelling import FOLDER, LabellingRecords, uncovered
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeOptions
from chunkflow_py.volume.write_unit_check import check_disjoint

if TYPE_CHECKING:
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)

_RECORD = "stitch.json"


@dataclass
class Stitching:
    """Stitching of the labels of one volume; the new labels are written to another volume.

    Attributes:
        labels: URL of the volume of labels; no two labelling tasks may have used the same label.
        output: URL of the volume to create.
        chunk_size: box size of the tasks that made the labels, voxels, zyx. The boxes form a grid
            that starts at the first voxel of the volume. With ``None``, the boxes are those that
            the tasks have recorded in the folder of the labels.
        linker: method that links labels of neighbouring tasks.
        mip: resolution level of the labels.
        work: URL of a folder or prefix for the links between labels, and for the table of new
            labels; ``None`` for ``OUTPUT.stitch``.
        overwrite: whether to delete existing links and to write all of the output again.
        block_size: block size of a new output, voxels, zyx; ``None`` for the block size of the
            labels.
        encoding: encoding of the blocks of a new output.
        task_size: box size of the relabelling tasks, voxels, zyx.
        opening: options with which the labels are opened. For the output, only *parallel* and
            *access* are used.
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
        """URL of the folder or prefix in which links and label table are stored."""
        if self.work is not None:
            return Location.parse(self.work).store_url
        return f"{Location.parse(self.output).store_url}.stitch"

    def _store(self, name: str = "") -> Store:
        return open_store(f"{self.place}/{name}".rstrip("/"), self.opening.access)

    @cached_property
    def _volume(self) -> Volume:
        return open_volume(self.labels, self.mip, opening=self.opening)

    def begin(self) -> None:
        """Store the parameters of the stitching, or compare them with parameters stored earlier.

        Raises:
            OptionError: the folder contains links of a stitching with other parameters.
            ChunkflowError: the labels were made in a way that the linker does not support.
        """
        if isinstance(self.linker, TouchLinker):
            self.linker.check_recorded()
        _ = self._tasks
        size = self.chunk_size
        boxes = "\n".join(map(str, self._records.regions)).encode()
        description = {
            **self.linker.about,
            "bounds": str(self._volume.bounds),
            "chunk size": hashlib.sha256(boxes).hexdigest() if size is None else list(size),
        }
        begin_in(
            self.place,
            description,
            record=_RECORD,
            results="links",
            what="links",
            overwrite=self.overwrite,
            access=self.opening.access,
        )

    @cached_property
    def _records(self) -> LabellingRecords:
        return LabellingRecords(self._volume, self.opening.access)

    @cached_property
    def _tasks(self) -> VolumeTasks | TaskSource:
        """The boxes of the labelling tasks, and boxes for the rest of the volume.

        Raises:
            OptionError: the boxes of the tasks are not recorded, and *chunk_size* is ``None``.
            ChunkError: the recorded boxes overlap, or differ from *chunk_size*.
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
                    f"{self.labels} was labelled more than once, by tasks of different sizes "
                    f"({error}); run the labelling again and write its labels to a new volume. "
                    "If the last labelling covered the whole volume, you can instead delete "
                    f"{FOLDER!r} in the folder of this resolution level, and run stitch-labels "
                    "with the task size of the last labelling: --chunk-size Z Y X"
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
                f"{self.labels} has no record of the tasks that made the labels, because another "
                "program or an older version of chunkflow_py wrote the volume; add --chunk-size "
                "Z Y X with the box size of these tasks in voxels"
            )
            raise OptionError(msg)
        points = (None,) if volume.times is None else range(volume.times)
        regions: list[Region] = []
        for time in points:
            boxes = by_time.get(time, [])
            regions += (Region(box, time) for box in boxes + uncovered(boxes, volume.bounds))
        return TaskSource([region.bbox for region in regions], lambda: regions)

    def linking(self, **running: Any) -> Pipeline:
        """Return the pipeline that links labels across the boundaries of all tasks.

        Args:
            running: further keyword arguments for `Pipeline`.
        """
        source = self._tasks
        links = self._store("links")
        stored = frozenset(links.list())
        linker = LabelLinker(links.url, self.linker, self.opening.access)

        def skip(task: Task) -> Task:
            if task.region is not None and link_key(task.region) in stored:
                reason = "the links of the task are already stored"
                raise Skip(reason)
            return task

        operators = [
            Operator("resume", "read", skip, skip),
            Operator("link", "write", linker, linker),
        ]
        return Pipeline(operators, Source("tasks", source), **running)

    def solve(self) -> dict[str, str]:
        """Compute and store the label table; return a checksum of the table for each time index.

        Raises:
            VolumeError: links of a task are missing or damaged.
        """
        return solve_links(self._store("links"), self._store("table"))

    def relabelling(self, table: dict[str, str]) -> Relabelling:
        """Return the `Relabelling` that copies the volume and replaces each label by its new label.

        Args:
            table: checksums of the label table, with the time index as key; see `solve`.
        """
        return Relabelling(
            self.labels,
            self.output,
            self.mip,
            dtype=_uint64(),
            max_mip=0,
            block_size=self.block_size,
            encoding=self.encoding,
            task_size=self.task_size,
            overwrite=self.overwrite,
            reading=self.opening,
            writing=VolumeOptions(parallel=self.opening.parallel, access=self.opening.access),
            table_place=f"{self.place}/table",
            table=table,
        )


@dataclass
class Relabelling(Conversion):
    """Copies a volume of labels, replaces each label by its new label, and counts the objects.

    Attributes:
        table_place: URL of the label table, which contains the new labels.
        table: checksums of the label table, with the time index as key.
        objects: counter of the objects in those tasks that this process runs.
    """

    table_place: str = ""
    table: dict[str, str] = field(default_factory=dict)
    objects: ObjectCount = field(default_factory=ObjectCount)

    def copied(self, source: Volume) -> dict[str, Any]:
        """Return the record of the copy, with the checksums of the label table."""
        return {**super().copied(source), "table": self.table}

    def pipeline(self, *, dry_run: bool = False, **running: Any) -> Pipeline:
        """Create the target if it does not exist, and return the pipeline that fills it.

        Args:
            dry_run: whether only to read; the target is then neither created nor written.
            running: further keyword arguments for `Pipeline`.
        """
        pipeline = super().pipeline(dry_run=dry_run, **running)
        body = Relabeller(self.table_place, access=self.writing.access, objects=self.objects)
        relabel = Operator("relabel", "compute", body, body, ("chunk",), ("chunk",))
        pipeline.operators.insert(-1, relabel)
        return pipeline

    def end(self, written: int, stored: int, total: int) -> None:
        """Log the numbers of tasks; if this call wrote all tasks, also log the number of objects.

        Args:
            written: number of tasks that this run of the pipeline wrote.
            stored: number of tasks whose boxes were already stored.
            total: number of all tasks.
        """
        super().end(written, stored, total)
        target = without_secrets(self.target)
        if written == total:
            count = self.objects.total()
            logger.info("%s: %d %s", target, count, "object" if count == 1 else "objects")
        elif written + stored == total:
            logger.info(
                "%s: objects were not counted, because %d of %d tasks were already stored; add "
                "--overwrite to relabel all tasks and count the objects", target, stored, total,
            )  # fmt: skip


def _uint64() -> Any:
    import numpy as np

    return np.dtype("uint64")

"""Copy a volume of labels without some of its objects, on one machine.

```
WORK/objects.json, WORK/parts   measures of all objects (`chunkflow_py.run.object_table`)
WORK/table                      label table that maps removed objects to 0
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.run.object_table import ObjectTable
from chunkflow_py.run.stitching import Relabelling
from chunkflow_py.segmentation.labels.label_table import write_table
from chunkflow_py.store import open_store
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import VolumeOptions

if TYPE_CHECKING:
    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.segmentation.labels.object_measures import ObjectMeasures


@dataclass
class LabelFilter:
    """A copy of a volume of labels without some of its objects.

    Attributes:
        source: URL of the volume of labels.
        target: URL of the copy.
        min_size: objects with fewer voxels are removed; ``None`` for no limit.
        max_size: objects with more voxels are removed; ``None`` for no limit.
        keep_border: whether to keep objects that touch the bounds of the volume.
        mip: resolution level of the source.
        work: URL of a folder or prefix for intermediate results; ``None`` for ``TARGET.filter``.
        parts: URL of measures that measure-labels has stored; ``None`` to measure the objects
            first.
        block_size: block size of the copy, voxels, zyx; ``None`` for the block size of the source.
        encoding: encoding of the blocks of the copy.
        task_size: box size of the tasks, voxels, zyx.
        overwrite: whether to measure all objects again and to write all of the copy again.
        opening: options with which both volumes are opened.
    """

    source: str
    target: str
    min_size: int | None = None
    max_size: int | None = None
    keep_border: bool = True
    mip: int = 0
    work: str | None = None
    parts: str | None = None
    block_size: Zyx | None = None
    encoding: str | None = None
    task_size: Zyx | None = None
    overwrite: bool = False
    opening: VolumeOptions = field(default_factory=VolumeOptions)
    _table: dict[str, str] = field(default_factory=dict, init=False, repr=False)

    @cached_property
    def place(self) -> str:
        """URL of the folder or prefix for intermediate results."""
        work = self.work or f"{Location.parse(self.target).store_url}.filter"
        return Location.parse(work).store_url

    @cached_property
    def objects(self) -> ObjectTable:
        """The table of the measures of all objects of the source."""
        return ObjectTable(
            self.source,
            self.place,
            mip=self.mip,
            task_size=self.task_size,
            overwrite=self.overwrite,
            opening=self.opening,
        )

    def choose(self) -> str:
        """Choose the objects to remove, and store the label table that maps them to 0.

        Returns:
            A phrase for the user: how many objects were kept, and how many were removed and why.

        Raises:
            VolumeError: the measures of the objects are damaged.
        """
        import numpy as np

        store = open_store(f"{self.place}/table", self.opening.access)
        kept, counts = 0, {"too small": 0, "too large": 0, "at the border": 0}
        for time, measures in self.objects.objects(self.parts).items():
            reasons = dict(zip(counts, self._reasons(measures), strict=True))
            removed = np.zeros(len(measures), bool)
            for reason, here in reasons.items():
                counts[reason] += int(np.count_nonzero(here & ~removed))
                removed |= here
            kept += int(np.count_nonzero(~removed))
            ids = measures.labels[removed]
            checksum = write_table(store, np.stack([ids, np.zeros_like(ids)], axis=1), time)
            self._table["" if time is None else str(time)] = checksum
        gone = ", ".join(f"{count} {reason}" for reason, count in counts.items() if count)
        total = sum(counts.values())
        return f"{kept} of {kept + total} objects kept; removed: {gone or 'none'}"

    def _reasons(self, measures: ObjectMeasures) -> tuple[Any, Any, Any]:
        """Return three masks of the objects: too small, too large, and at the border."""
        import numpy as np

        bounds, none = self.objects.volume.bounds, np.zeros(len(measures), bool)
        small = none if self.min_size is None else measures.voxels < self.min_size
        large = none if self.max_size is None else measures.voxels > self.max_size
        outer = (measures.low <= bounds.start) | (measures.high >= bounds.stop)
        return small, large, none if self.keep_border else outer.any(axis=1)

    def copying(self) -> Relabelling:
        """Return the `Relabelling` that writes the copy; call `choose` first."""
        return Relabelling(
            self.source,
            self.target,
            self.mip,
            dtype=self.objects.volume.dtype,
            block_size=self.block_size,
            encoding=self.encoding,
            max_mip=0,
            task_size=self.task_size,
            overwrite=self.overwrite,
            reading=self.opening,
            writing=self.opening,
            table_place=f"{self.place}/table",
            table=self._table,
        )

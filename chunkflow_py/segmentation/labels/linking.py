"""Labels across tasks: what of neighbouring tasks is one object, and which id all of it gets.

```
label    each task labels its box, ids unique in the volume        segmentation.numbering
link     each task stores pairs of labels at its lower faces       here, segmentation.links
solve    one task reads all pairs and writes a table of ids        here, segmentation.label_table
relabel  each task maps its labels by the table
```
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import (
    AlignmentError,
    ChunkError,
    GeometryError,
    OptionError,
    VolumeError,
)
from chunkflow_py.segmentation.labels.components import single_channel
from chunkflow_py.segmentation.labels.label_table import solve, write_table
from chunkflow_py.segmentation.labels.links import (
    check_no_touch,
    check_none_touch,
    check_unique_ids,
    distinct,
    links_in,
    lower_slab,
    touching_pairs,
)
from chunkflow_py.segmentation.labels.overlaps import linked_by_overlap
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import Access
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.labelling import Labelling, LabellingRecords
from chunkflow_py.volume.location import Location, level_name
from chunkflow_py.volume.protocol import VolumeOptions, check_disjoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import Region
    from chunkflow_py.segmentation.labels.components import Connectivity
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)

_PART = Zyx(64, 512, 512)  # voxels of a task that are looked at together


@dataclass
class TouchLinker:
    """Links labels that touch across faces of tasks.

    Attributes:
        url: of the volume of labels.
        mip: its level.
        connectivity: of the labels.
        values_url: of the volume that was labelled, where it was no mask: voxels of different
            values do not hang together. Level *mip*, too.
        opening: how to use the volumes.
    """

    url: str
    mip: int = 0
    connectivity: Connectivity = 6
    values_url: str | None = None
    opening: VolumeOptions = field(default_factory=VolumeOptions)

    @property
    def place(self) -> str:
        """The level of labels, however its address is written."""
        return level_name(Location.parse(self.url), self.mip)

    @property
    def places(self) -> tuple[str, ...]:
        """The levels that are read: of labels, and of what was labelled."""
        urls = (self.url, self.values_url)
        return tuple(level_name(Location.parse(url), self.mip) for url in urls if url is not None)

    @property
    def about(self) -> dict[str, Any]:
        """How links are found."""
        values = self.values_url and level_name(Location.parse(self.values_url), self.mip)
        return {"labels": self.place, "touch": self.connectivity, "values": values}

    @cached_property
    def _labels(self) -> Volume:
        return self._open(self.url)

    @cached_property
    def _values(self) -> Volume | None:
        return None if self.values_url is None else self._open(self.values_url)

    def _open(self, url: str) -> Volume:
        volume = open_volume(url, self.mip, opening=self.opening)
        if volume.dtype.kind not in "bui" or (volume.channels or 1) > 1:
            msg = (
                f"{url} holds {volume.channels or 1} channels of {volume.dtype}, which are no "
                "labels; give the volume that connected-components --global-ids was saved to"
            )
            raise ChunkError(msg)
        return volume

    def prepare(self) -> None:
        """Open the volumes.

        Raises:
            VolumeNotFoundError: there is none.
            ChunkError: one holds no labels.
            GeometryError: their bounds differ.
        """
        if self._values is not None and self._values.bounds != self._labels.bounds:
            msg = (
                f"{self.values_url} has the bounds {self._values.bounds}, but {self.url} "
                f"{self._labels.bounds} (zyx, voxels); give the volume that was labelled"
            )
            raise GeometryError(msg)

    def __call__(self, region: Region) -> NDArray[np.uint64]:
        """Return the links across the lower faces of a task, (n, 2).

        Raises:
            GeometryError: the task lies outside of the volume.
            ChunkError: the labels were made by tasks of another size or with another connectivity,
                or two have used one id.
            OptionError: the labels are segments that touch one another.
        """
        bounds = self._labels.bounds
        box = region.bbox.intersection(bounds)
        if box.is_empty:
            msg = f"task {region} lies outside of {self.url}, whose bounds are {bounds}"
            raise GeometryError(msg)
        found = [np.empty((0, 2), np.uint64)]
        if not self._is_labelled(self.records.region(box, region.time)):
            return distinct(found[0])
        for axis in range(3):
            slab = lower_slab(box, bounds, axis, self.connectivity)
            if slab is None:
                continue
            lower, upper = self._planes(self._labels, slab, axis, region.time)
            own = tuple(
                part
                for a, part in enumerate(box.intersection(slab).slices(slab.start))
                if a != axis
            )
            values = inside = None
            if self._values is not None:
                values = self._planes(self._values, slab, axis, region.time)
                inside = values[1][own]
            check_no_touch(upper[own], box, inside)
            found.append(touching_pairs(lower, upper, self.connectivity, values))
            # A face inside of what one task has labelled has the same ids on both sides, and
            # different ones do not touch there.
            mine = values and (values[0][own], values[1][own])
            if len(touching_pairs(lower[own], upper[own], 6, mine)):
                check_unique_ids(lower[own], upper[own], region)
        return distinct(np.concatenate(found))

    @cached_property
    def records(self) -> LabellingRecords:
        """What the tasks that made the labels have written about it."""
        return LabellingRecords(self._labels, self.opening.access)

    def recorded(self) -> Labelling | None:
        """Return how the first task has labelled, if any are recorded."""
        regions = self.records.regions
        return self.records.get(regions[0]) if regions else None

    def check_recorded(self) -> None:
        """Do `check_labelling` for the first task; the others are compared when they are linked."""
        if (labelling := self.recorded()) is not None:
            self.check_labelling(labelling)

    def _is_labelled(self, region: Region) -> bool:
        """Tell whether a task has labelled *region*; compare how with how it is to be linked.

        Where nothing is recorded (other programs, older versions), the voxels are looked at: in
        the box of one task, no two labels touch.
        """
        labelling = self.records.holding(region)
        if labelling is not None:
            self.check_labelling(labelling)
            return True
        is_recorded = bool(self.records.regions)
        for part in BoxGrid.covering(region.bbox, _PART, respect_stop=True):
            box = part.grow((1, 1, 1)).intersection(region.bbox)
            labels = single_channel(self._labels.read(box, time=region.time).array)
            if is_recorded and labels.any():
                msg = (
                    f"{self.url} holds labels in {part}, but no record of the task that made them, "
                    f"unlike {self.records.regions[0]}; label that box again"
                )
                raise ChunkError(msg)
            values = None
            if self._values is not None:
                values = single_channel(self._values.read(box, time=region.time).array)
            check_none_touch(labels, region.bbox, self.connectivity, values)
        return not is_recorded

    def check_labelling(self, labelling: Labelling) -> None:
        """Refuse to link labels by touch that were made otherwise.

        Raises:
            ChunkError: they were made with another connectivity.
            OptionError: they are segments that touch one another.
        """
        if labelling.connectivity is None:
            msg = (
                f"{self.url} holds segments by {labelling.by}, which touch one another although "
                "they are different; store what tasks share by save-overlap, and link by "
                "--overlap-path"
            )
            raise OptionError(msg)
        if labelling.connectivity != self.connectivity:
            msg = (
                f"{self.url} was labelled with --connectivity {labelling.connectivity}, not "
                f"{self.connectivity}; give --connectivity {labelling.connectivity}"
            )
            raise ChunkError(msg)

    def _planes(
        self, volume: Volume, slab: BoundingBox, axis: int, time: int | None
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        array = single_channel(volume.read(slab, time=time).array)
        return array.take(0, axis), array.take(1, axis)


@dataclass
class OverlapLinker:
    """Links segments that tasks share, of what save-overlap has stored.

    Attributes:
        url: of the overlaps.
        fraction, voxels: see `segmentation.links.overlap_pairs`.
        access: how to call on the store.
    """

    url: str
    fraction: float = 0.5
    voxels: int = 1
    access: Access = field(default_factory=Access)

    @property
    def place(self) -> str:
        """Where overlaps are stored."""
        return Location.parse(self.url).store_url

    @property
    def places(self) -> tuple[str, ...]:
        """The folder that is read."""
        return (self.place,)

    @property
    def about(self) -> dict[str, Any]:
        """How links are found."""
        return {"labels": self.place, "overlap": self.fraction, "voxels": self.voxels}

    @cached_property
    def _store(self) -> Store:
        return open_store(self.place, self.access)

    def prepare(self) -> None:
        """Open the store; the overlaps may be stored later, by an earlier stage of the run."""
        _ = self._store

    def __call__(self, region: Region) -> NDArray[np.uint64]:
        """Return the links across the lower faces of a task, (n, 2).

        Raises:
            ChunkError: two tasks have used one id.
        """
        found = linked_by_overlap(self._store, region, self.fraction, self.voxels)
        return distinct(np.concatenate([np.empty((0, 2), np.uint64), *found]))


def solve_links(links: Store, table: Store) -> dict[str, str]:
    """Read all links, and write the table of ids.

    Takes about 250 bytes of memory for each label that is linked, and 500 for each task, whatever
    the number of voxels.

    Args:
        links: that link-labels wrote to.
        table: where to.

    Returns:
        Checksum of the table, by time index as text (empty without one).

    Raises:
        VolumeError: there are no links, or they are damaged or of several cuts into tasks.
    """
    regions: dict[int | None, list[BoundingBox]] = {}
    total = 0

    def noted() -> Iterator[tuple[Region, NDArray[np.uint64]]]:
        nonlocal total
        for region, pairs in links_in(links):
            regions.setdefault(region.time, []).append(region.bbox)
            total += len(pairs)
            yield region, pairs

    changes = solve(noted())
    for boxes in regions.values():
        try:
            check_disjoint(boxes, links.url)
        except AlignmentError as error:
            msg = (
                f"links of tasks that overlap lie below {links.url}: the volume was cut in more "
                "than one way; remove them, and link the tasks that made the labels again"
            )
            raise VolumeError(msg) from error
    tasks = sum(map(len, regions.values()))
    if not total and tasks > 1:
        logger.warning("no labels of the %d tasks of %s are linked", tasks, links.url)
    changed = sum(map(len, changes.values()))
    logger.info("%d links of %d tasks: %d labels change", total, tasks, changed)
    return {
        "" if time is None else str(time): write_table(table, rows, time)
        for time, rows in changes.items()
    }

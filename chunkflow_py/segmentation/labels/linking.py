"""Join the labels of neighbouring tasks into whole objects.

```
label    each task labels its box, ids unique in the volume        labels.numbering
link     each task stores the pairs that touch at its lower faces  this module, labels.links
solve    one task reads all pairs and writes a table of ids        this module, labels.label_table
relabel  each task replaces its labels with those of the table
```

The lower faces of a task are the three faces at the start of its box along z, y and x.
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
from chunkflow_py.volume.protocol import VolumeOptions
from chunkflow_py.volume.write_unit_check import check_disjoint

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import Region
    from chunkflow_py.segmentation.labels.components import Connectivity
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)

_PART = Zyx(64, 512, 512)  # voxels of a task that are examined together


@dataclass
class TouchLinker:
    """Links labels that touch across task boundaries.

    Attributes:
        url: address of the volume of labels.
        mip: resolution level of the labels in the volume.
        connectivity: connectivity of the labels.
        values_url: address of the segmentation that was labelled; it is read at the level *mip*.
            Voxels of different values in the segmentation are not connected. ``None`` if a mask was
            labelled.
        opening: options for opening the volumes.
    """

    url: str
    mip: int = 0
    connectivity: Connectivity = 6
    values_url: str | None = None
    opening: VolumeOptions = field(default_factory=VolumeOptions)

    @property
    def place(self) -> str:
        """Normalised address of the volume of labels and the resolution level, as one text."""
        return level_name(Location.parse(self.url), self.mip)

    @property
    def places(self) -> tuple[str, ...]:
        """Normalised addresses of the labels and, if given, of the segmentation *values_url*."""
        urls = (self.url, self.values_url)
        return tuple(level_name(Location.parse(url), self.mip) for url in urls if url is not None)

    @property
    def about(self) -> dict[str, Any]:
        """Description of the linking method; each file of links contains it as JSON."""
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
                f"{url} has {volume.channels or 1} channels of {volume.dtype}, but labels are "
                "integers in one channel; give the volume that holds the result of "
                "connected-components --global-ids"
            )
            raise ChunkError(msg)
        return volume

    def prepare(self) -> None:
        """Open the volumes, and check that their bounds agree.

        Raises:
            VolumeNotFoundError: a volume does not exist.
            ChunkError: the voxels of a volume are not labels.
            GeometryError: the bounds of the volumes differ.
        """
        if self._values is not None and self._values.bounds != self._labels.bounds:
            msg = (
                f"{self.values_url} has the bounds {self._values.bounds}, but {self.url} has "
                f"{self._labels.bounds} (zyx, voxels); give --values-path the segmentation from "
                "which the labels were made"
            )
            raise GeometryError(msg)

    def __call__(self, region: Region) -> NDArray[np.uint64]:
        """Return pairs of labels to link, (n, 2), at the three faces at the start of a task's box.

        Raises:
            GeometryError: the task lies outside the volume.
            ChunkError: the labels were made by tasks of another size or with another connectivity,
                or two tasks have used the same id.
            OptionError: the labels come from agglomeration. Such labels touch each other, so
                contact does not show that two of them belong together.
        """
        bounds = self._labels.bounds
        box = region.bbox.intersection(bounds)
        if box.is_empty:
            msg = (
                f"task {region} is outside of {self.url}, whose bounds are {bounds}; "
                "use the generate-tasks options that made the labels"
            )
            raise GeometryError(msg)
        links = [np.empty((0, 2), np.uint64)]
        if not self._is_labelled(self.records.region(box, region.time)):
            return distinct(links[0])
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
            links.append(touching_pairs(lower, upper, self.connectivity, values))
            # On a face inside the box of one labelling task, both sides have the same ids and
            # different ids do not touch.
            mine = values and (values[0][own], values[1][own])
            if len(touching_pairs(lower[own], upper[own], 6, mine)):
                check_unique_ids(lower[own], upper[own], region)
        return distinct(np.concatenate(links))

    @cached_property
    def records(self) -> LabellingRecords:
        """Records of the tasks that made the labels."""
        return LabellingRecords(self._labels, self.opening.access)

    def recorded(self) -> Labelling | None:
        """Return how the first recorded task made its labels.

        The result is ``None`` if there are no records.
        """
        regions = self.records.regions
        return self.records.get(regions[0]) if regions else None

    def check_recorded(self) -> None:
        """Check that the labels can be linked by touch, according to the record of the first task.

        The records of the other tasks are checked when these tasks are linked.
        """
        if (labelling := self.recorded()) is not None:
            self.check_labelling(labelling)

    def _is_labelled(self, region: Region) -> bool:
        """Return whether a task has labelled *region*; refuse labels that cannot be linked.

        If no task is recorded, because another program or an older version made the labels, the
        voxels are checked: different labels must not touch inside the box of one task.
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
                    f"{self.url} has labels in {part}, but no record of the task that made these "
                    f"labels; label {part} again, with the command that made the other labels"
                )
                raise ChunkError(msg)
            values = None
            if self._values is not None:
                values = single_channel(self._values.read(box, time=region.time).array)
            check_none_touch(labels, region.bbox, self.connectivity, values)
        return not is_recorded

    def check_labelling(self, labelling: Labelling) -> None:
        """Refuse labels that cannot be linked by touch with this connectivity.

        Raises:
            ChunkError: the labels were made with another connectivity.
            OptionError: the labels come from agglomeration. Such labels touch each other, so
                contact does not show that two of them belong together.
        """
        if labelling.connectivity is None:
            msg = (
                f"the labels in {self.url} come from {labelling.by}. Such labels touch each other, "
                "so contact does not show that two of them belong together; store the overlaps of "
                "tasks with save-overlap, and give --overlap-path instead of --volume-path"
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
    """Links segments of different tasks by the overlaps that save-overlap has stored.

    Attributes:
        url: address of the overlaps.
        fraction: smallest mean overlap of two linked segments, as a fraction from 0 to 1; see
            `labels.links.overlap_pairs`.
        voxels: smallest number of voxels that two linked segments share.
        access: options for opening the store.
    """

    url: str
    fraction: float = 0.5
    voxels: int = 1
    access: Access = field(default_factory=Access)

    @property
    def place(self) -> str:
        """Address of the overlaps."""
        return Location.parse(self.url).store_url

    @property
    def places(self) -> tuple[str, ...]:
        """The address of the overlaps, the only address from which the linker reads."""
        return (self.place,)

    @property
    def about(self) -> dict[str, Any]:
        """Description of the linking method; each file of links contains it as JSON."""
        return {"labels": self.place, "overlap": self.fraction, "voxels": self.voxels}

    @cached_property
    def _store(self) -> Store:
        return open_store(self.place, self.access)

    def prepare(self) -> None:
        """Open the store; read nothing, because an earlier step may not have run yet."""
        _ = self._store

    def __call__(self, region: Region) -> NDArray[np.uint64]:
        """Return pairs of labels to link, (n, 2), at the three faces at the start of a task's box.

        Raises:
            ChunkError: two tasks have used the same id.
        """
        links = linked_by_overlap(self._store, region, self.fraction, self.voxels)
        return distinct(np.concatenate([np.empty((0, 2), np.uint64), *links]))


def solve_links(links: Store, table: Store) -> dict[str, str]:
    """Join all links into objects, and write the table that maps each label to an object id.

    The function needs about 250 bytes of memory for each label in a link, and 500 bytes for each
    task.

    Args:
        links: store of the links that link-labels has written.
        table: store of the table.

    Returns:
        Checksum of the table of each time index. The keys are the time indexes as text, or ""
        without a time axis.

    Raises:
        VolumeError: there are no links, a file of links is damaged, or the boxes of two tasks
            overlap.
    """
    regions: dict[int | None, list[BoundingBox]] = {}
    total = 0

    def counted() -> Iterator[tuple[Region, NDArray[np.uint64]]]:
        nonlocal total
        for region, pairs in links_in(links):
            regions.setdefault(region.time, []).append(region.bbox)
            total += len(pairs)
            yield region, pairs

    changes = solve(counted())
    for boxes in regions.values():
        try:
            check_disjoint(boxes, links.url)
        except AlignmentError as error:
            msg = (
                f"{links.url} has links of tasks that overlap, because the volume was divided in "
                "different ways; remove all links, and run link-labels again with the --chunk-size "
                "that the labels were made with"
            )
            raise VolumeError(msg) from error
    tasks = sum(map(len, regions.values()))
    if not total and tasks > 1:
        logger.warning(
            "none of the labels of %d tasks in %s are linked: no object crosses a task boundary, "
            "or the options of link-labels do not fit the labels",
            tasks,
            links.url,
        )
    changed = sum(map(len, changes.values()))
    logger.info("%d links of %d tasks change %d labels", total, tasks, changed)
    return {
        "" if time is None else str(time): write_table(table, rows, time)
        for time, rows in changes.items()
    }

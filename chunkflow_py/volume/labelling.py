"""Record how the objects of a volume were labelled, in one document per task beside the blocks.

```
ARRAY/labelling/0-64_0-512_0-512.json    {"by": "connected-components", "connectivity": 6, ...}
ARRAY/labelling/t3_0-64_...              the same, for a task that writes time index 3
```

ARRAY is the folder or prefix with the blocks of the level. A task writes the document of its box
before it writes voxels, so all stored labels have a document. A task writes no other document, and
writes the same bytes if it runs again, so the order of tasks does not matter. Volumes in HDF5 files
have no documents.
"""

from __future__ import annotations

import json
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.errors import ChunkError, GeometryError, VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.store.store_protocol import Access, Leftover, Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from chunkflow_py.volume.protocol import Volume

FOLDER = "labelling"
FORMAT = "chunkflow labelling 1"
_SUFFIX = ".json"
_MOST = 4096  # limit in bytes; a document has about a hundred


class Labelling(NamedTuple):
    """Operator and connectivity with which the objects of a volume were labelled.

    Attributes:
        by: name of the operator that labelled the objects.
        connectivity: connectivity of connected components (6, 18 or 26); ``None`` for labels from
            agglomeration.
    """

    by: str
    connectivity: int | None = None


class LabellingRecords:
    """The labelling documents of one level of a volume.

    Each document records how one task has labelled the objects in its box.

    Args:
        volume: the volume, opened at this level.
        access: credentials and options of the store.
    """

    def __init__(self, volume: Volume, access: Access | None = None) -> None:
        """Open the store; the documents are read on demand."""
        self._volume = volume
        array_url: str | None = getattr(volume, "array_url", None)
        self._store = array_url and open_store(f"{array_url}/{FOLDER}", access or Access())

    def region(self, box: BoundingBox, time: int | None) -> Region:
        """Return the region that a task labels: *box* clipped to the volume, and the time index."""
        inside = box.intersection(self._volume.bounds)
        return Region(inside, None if self._volume.times is None else time or 0)

    def put(self, labelling: Labelling, box: BoundingBox, time: int | None) -> tuple[Stored, ...]:
        """Write the document of one task, if the format can store documents."""
        if not self._store:
            return ()
        key = f"{self.region(box, time)}{_SUFFIX}"
        document = {"format": FORMAT, **labelling._asdict()}
        data = json.dumps(document, sort_keys=True).encode() + b"\n"
        self._store.put(key, data, content_type="application/json")
        return (Stored.of(f"{self._store.url.rstrip('/')}/{key}", data),)

    def get(self, region: Region) -> Labelling | None:
        """Return the labelling recorded for exactly this region, or ``None`` if there is none.

        Raises:
            VolumeError: the document is damaged.
        """
        if not self._store:
            return None
        key = f"{region}{_SUFFIX}"
        data = self._store.get(key, _MOST)
        if data is None:
            return None
        try:
            document = parse_json(data)
            labelling = Labelling(document["by"], document["connectivity"])
            is_known = document["format"] == FORMAT and labelling.connectivity in (None, 6, 18, 26)
        except (ValueError, KeyError, TypeError, RecursionError, VolumeError):
            is_known = False
        if not is_known:
            msg = (
                f"{self._store.url}/{key} is damaged, or was written by a newer version of "
                "chunkflow; label the box again"
            )
            raise VolumeError(msg)
        return labelling

    @cached_property
    def regions(self) -> tuple[Region, ...]:
        """The regions that tasks have labelled, sorted; the documents are listed once."""
        regions = []
        for key in self._store.list() if self._store else ():
            try:
                regions.append(Region.parse(key.removesuffix(_SUFFIX)))
            except GeometryError as error:
                msg = (
                    f"the name of file {key} in folder {FOLDER} of {self._volume.url} is not a "
                    f"box: {error}; "
                    "move this file away"
                )
                raise VolumeError(msg) from error
        return tuple(sorted(regions, key=lambda region: (region.time or 0, region.bbox)))

    def inside(self, tasks: Any, time: int | None = None) -> Iterator[Leftover]:
        """Yield the documents of the labelled regions that tasks will write again.

        A region counts if a task writes its first or its last voxel.

        Args:
            tasks: lookup of the task that writes a given voxel, see
                `chunkflow_py.core.operator_base.WritersByPlace`.
            time: time index to which all tasks write (default: each task writes to its own time
                index).
        """
        for region in self.regions:
            corners = (region.bbox.start, region.bbox.stop - 1)
            if (
                self._store
                and time in (None, region.time)
                and any(tasks.number(voxel, region.time) is not None for voxel in corners)
            ):
                key = f"{region}{_SUFFIX}"
                url = f"{self._store.url.rstrip('/')}/{key}"
                yield Leftover(url, partial(self._store.delete, key))

    @cached_property
    def _corners(self) -> dict[int | None, tuple[np.ndarray, np.ndarray]]:
        by_time: dict[int | None, list[BoundingBox]] = {}
        for region in self.regions:
            by_time.setdefault(region.time, []).append(region.bbox)
        return {
            time: (np.array([box.start for box in boxes]), np.array([box.stop for box in boxes]))
            for time, boxes in by_time.items()
        }

    def holding(self, region: Region) -> Labelling | None:
        """Return how *region* was labelled; *region* must be inside the box of one task.

        Returns:
            The recorded labelling, or ``None`` if no task has labelled a voxel of the region.

        Raises:
            ChunkError: several tasks labelled parts of the region, or one task labelled only a
                part of the region.
        """
        if (found := self.get(region)) is not None:
            return found
        owner = self.owner(region)
        return None if owner is None else self.get(owner)

    def owner(self, region: Region) -> Region | None:
        """Return the region of the task that labelled *region*; the result contains *region*.

        If no task has labelled a voxel of *region*, the result is ``None``.

        Raises:
            ChunkError: several tasks labelled parts of the region, or one task labelled only a
                part of the region.
        """
        if region in self._known or region.time not in self._corners:
            return region if region in self._known else None
        starts, stops = self._corners[region.time]
        box = region.bbox
        touched = np.flatnonzero(((starts < box.stop) & (stops > box.start)).all(axis=1))
        if not len(touched):
            return None
        first = int(touched[0])
        own = BoundingBox(Zyx.of(starts[first].tolist()), Zyx.of(stops[first].tolist()))
        if not own.contains(box) or len(touched) > 1:
            msg = (
                f"{self._volume.url} was labelled by tasks of size {own.size} (zyx, voxels), such "
                f"as {own}, but box {region} of size {box.size} is not inside the box of one task; "
                f"use tasks of size {own.size}, or leave out --chunk-size of stitch-labels"
            )
            raise ChunkError(msg)
        return region.with_box(own)

    @cached_property
    def _known(self) -> frozenset[Region]:
        return frozenset(self.regions)


def uncovered(boxes: Iterable[BoundingBox], bounds: BoundingBox) -> list[BoundingBox]:
    """Return disjoint boxes that cover exactly the voxels of *bounds* outside all *boxes*."""
    inside = [box.intersection(bounds) for box in boxes]
    cuts = [
        np.unique([bounds.start[a], bounds.stop[a], *(b.start[a] for b in inside),
                   *(b.stop[a] for b in inside)])
        for a in range(3)
    ]  # fmt: skip
    covered = np.zeros([len(at) - 1 for at in cuts], bool)
    for box in inside:
        low, high = (
            [int(np.searchsorted(at, corner[a])) for a, at in enumerate(cuts)]
            for corner in (box.start, box.stop)
        )
        covered[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = True
    return [
        BoundingBox(
            Zyx(*(int(at[i]) for at, i in zip(cuts, cell, strict=True))),
            Zyx(*(int(at[i + 1]) for at, i in zip(cuts, cell, strict=True))),
        )
        for cell in np.argwhere(~covered).tolist()
    ]

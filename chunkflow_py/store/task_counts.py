"""Store the counts of each task, such as a histogram, as one object; readers sum the counts.

```
URL/0-64_0-512_0-512.npz      counts of the task with this box: a few arrays, and their settings
URL/64-128_0-512_0-512.npz
```

A task that runs again replaces its object with an equal object, and a killed task leaves no partial
object. Therefore, no voxel is counted twice, and the sum does not depend on the order of tasks. If
the boxes of two objects overlap, `CountStore.regions` raises an error. The objects are files of
`numpy.savez_compressed`, and are read without pickle. The entry ``about`` of a file is JSON text.
"""

from __future__ import annotations

import io
import itertools
import json
import zipfile
import zlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import npz, parse_json
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region
from chunkflow_py.errors import ChunkflowError, GeometryError, VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.store.store_protocol import Stored

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Store

VERSION = 1
SUFFIX = ".npz"


@dataclass(frozen=True)
class TaskCounts:
    """The counts of one task, with their region and settings.

    Attributes:
        region: box of the counted voxels, and time index of the task.
        arrays: arrays of counts by name.
        settings: settings of the count; only counts with equal settings can be summed.
        domain: bounds of the volume whose voxels the tasks count; ``None`` if unknown.
    """

    region: Region
    arrays: Mapping[str, NDArray[Any]]
    settings: dict[str, Any] = field(default_factory=dict)
    domain: BoundingBox | None = None


@dataclass
class CountStore:
    """The counts of all tasks, stored as objects below one URL.

    Attributes:
        url: address of the folder or prefix.
        kind: kind of the counts, such as ``histogram``; reading another kind raises an error.
    """

    url: str
    kind: str

    @cached_property
    def store(self) -> Store:
        """The store of the objects below the URL."""
        return open_store(self.url)

    @property
    def place(self) -> str:
        """The URL for comparisons and messages: without credentials, and absolute if local."""
        return place_of(self.url)

    def put(self, counts: TaskCounts) -> Stored:
        """Write the counts of one task; they replace the counts of an earlier attempt.

        Raises:
            VolumeError: the counts cannot be written.
        """
        about = {
            "kind": self.kind,
            "version": VERSION,
            "settings": counts.settings,
            "domain": None if counts.domain is None else str(counts.domain),
        }
        buffer = io.BytesIO()
        text = np.array(json.dumps(about, sort_keys=True))
        np.savez_compressed(buffer, allow_pickle=False, about=text, **dict(counts.arrays))
        key, data = f"{counts.region}{SUFFIX}", buffer.getvalue()
        self.store.put(key, data)
        return Stored.of(f"{self.store.url.rstrip('/')}/{key}", data)

    def regions(self) -> list[Region]:
        """Return the regions of all counts, sorted by time index and box.

        Raises:
            VolumeNotFoundError: there are no counts.
            VolumeError: an object is not named after a box.
            GeometryError: two boxes overlap, so voxels would be counted twice.
        """
        found = []
        for key in self.store.list():
            if "/" in key or not key.endswith(SUFFIX):
                continue
            try:
                found.append(Region.parse(key.removesuffix(SUFFIX)))
            except GeometryError as error:
                msg = f"{key} below {self.place} is not named after a box: {error}"
                raise VolumeError(msg) from error
        if not found:
            msg = f"there are no counts below {self.place}; check the URL"
            raise VolumeNotFoundError(msg)
        found.sort(key=lambda region: (-1 if region.time is None else region.time, region.bbox))
        check_disjoint(found, f"below {self.place}")
        return found

    def read(self, regions: Sequence[Region] | None = None) -> Iterator[TaskCounts]:
        """Yield the counts of the given regions, in this order (default: all stored regions).

        Raises:
            VolumeError: an object is missing or damaged, has counts of another kind, or has other
                settings than the first object.
        """
        settings: tuple[dict[str, Any], Region] | None = None
        wanted = iter(self.regions() if regions is None else regions)
        with ThreadPoolExecutor(self.store.connections, thread_name_prefix="counts") as pool:
            while batch := list(itertools.islice(wanted, 4 * self.store.connections)):
                for counts in pool.map(self._get, batch):
                    first, where = settings = settings or (counts.settings, counts.region)
                    if counts.settings != first:
                        msg = (
                            f"task {counts.region} below {self.place} was counted with the "
                            f"settings {counts.settings}, but task {where} was counted with the "
                            f"settings {first}; use the same settings for all tasks below a URL"
                        )
                        raise VolumeError(msg)
                    yield counts

    def _get(self, region: Region) -> TaskCounts:
        key = f"{region}{SUFFIX}"
        data = self.store.get(key)
        if data is None:
            msg = f"{key} below {self.place} no longer exists; run task {region} again"
            raise VolumeNotFoundError(msg)
        try:
            arrays = npz(data)
            about = parse_json(str(arrays.pop("about")))
            kind, version, settings = about["kind"], about["version"], about["settings"]
            domain = about["domain"] and BoundingBox.parse(about["domain"])
        except (ValueError, KeyError, TypeError, EOFError, OSError, zlib.error,
                zipfile.BadZipFile, NotImplementedError, RuntimeError, MemoryError,
                ChunkflowError) as error:  # fmt: skip
            msg = f"{key} below {self.place} is damaged ({error}); run task {region} again"
            raise VolumeError(msg) from error
        if (kind, version) != (self.kind, VERSION):
            msg = (
                f"{key} below {self.place} has counts of kind {kind!r}, version {version}, instead "
                f"of kind {self.kind!r}, version {VERSION}; check the URL"
            )
            raise VolumeError(msg)
        return TaskCounts(region, arrays, settings, domain)


def place_of(url: str) -> str:
    """Return *url* for comparisons and messages: without credentials, and absolute if local."""
    scheme, separator, path = url.partition("://")
    if separator and scheme != "file":
        return without_secrets(url).rstrip("/")
    return f"file://{Path(path if separator else url).expanduser().absolute()}"


def counted_region(task: Task, chunk: Chunk, *others: Chunk) -> Region:
    """Return the region whose voxels a task counts: the part of its box that all chunks cover.

    The margin of *chunk* around the task's box is left out, so that no voxel is counted by two
    tasks. The task's box is first clipped at the domain of *chunk*. If *chunk* does not contain the
    clipped box, the box of *chunk* is used instead.

    Args:
        task: task with or without a box.
        chunk: chunk whose voxels are counted.
        others: other chunks that must cover the counted voxels, such as a mask.

    Raises:
        GeometryError: the chunks have no voxel in common.
    """
    box, time = chunk.bbox, None if task.region is None else task.region.time
    if task.bbox is not None and not task.bbox.intersection(chunk.domain).is_empty:
        inside = task.bbox.intersection(chunk.domain)
        box = inside if chunk.bbox.contains(inside) else box
    for other in others:
        if box.intersection(other.bbox).is_empty:
            msg = (
                f"two chunks with the boxes {box} and {other.bbox} have no voxel in common; check "
                "their voxel offsets"
            )
            raise GeometryError(msg)
        box = box.intersection(other.bbox)
    return Region(box, time)


def check_disjoint(regions: Iterable[Region | BoundingBox], what: str) -> None:
    """Raise an error if two boxes overlap, because voxels would be counted twice.

    Args:
        regions: boxes, or regions; regions of different time indices do not overlap.
        what: phrase that follows the boxes in the message, such as ``of the tasks``.

    Raises:
        GeometryError: boxes overlap; the message names two of them.
    """
    named = [region if isinstance(region, Region) else Region(region) for region in regions]
    named.sort(key=lambda region: region.bbox.start.z)
    times = np.array([-1 if region.time is None else region.time for region in named])
    starts = np.array([region.bbox.start for region in named]).reshape(-1, 3)
    stops = np.array([region.bbox.stop for region in named]).reshape(-1, 3)
    # Only boxes that start before a box stops along z can overlap it.
    ends = np.searchsorted(starts[:, 0], stops[:, 0])
    for index, end in enumerate(ends):
        later = slice(index + 1, end)
        meets = (starts[later] < stops[index]) & (starts[index] < stops[later])
        hits = np.flatnonzero(meets.all(axis=1) & (times[later] == times[index]))
        if hits.size:
            msg = (
                f"boxes {named[index]} and {named[index + 1 + int(hits[0])]} {what} overlap, so "
                "voxels would be counted twice; use the same size for all tasks, and store their "
                "counts in a folder or prefix that contains no counts of earlier tasks"
            )
            raise GeometryError(msg)


def check_tasks(boxes: BoxGrid | Sequence[BoundingBox] | None) -> None:
    """Raise an error if the boxes of two tasks overlap, because voxels would be counted twice.

    Args:
        boxes: boxes of all tasks, or ``None`` if unknown.

    Raises:
        GeometryError: boxes overlap; the message names two of them.
    """
    if isinstance(boxes, BoxGrid):  # two neighbours along each axis suffice
        low = boxes.start
        count = boxes.count.low((2, 2, 2))
        boxes = list(BoxGrid(low, boxes.size, boxes.stride, count, boxes.clip_stop))
    check_disjoint(boxes or (), "of the tasks")


def coverage(regions: Iterable[Region], domain: BoundingBox) -> float:
    """Return the fraction of *domain* that disjoint boxes cover, averaged over time points."""
    voxels, times = 0, set()
    for region in regions:
        voxels += region.bbox.intersection(domain).voxels
        times.add(region.time)
    return voxels / (domain.voxels * max(1, len(times))) if domain.voxels else 1.0


def describe_counts(about: Mapping[str, Any]) -> str:
    """Return a text about counts, such as ``8 tasks, all of the volume``.

    Args:
        about: dict with ``tasks`` (number of tasks) and ``coverage`` (fraction of the volume, or
            ``None`` if unknown).
    """
    tasks, covered = about["tasks"], about["coverage"]
    share = {None: "", 1: ", all of the volume"}.get(covered, f", {covered or 0:.4g} of the volume")
    return f"{tasks} {'task' if tasks == 1 else 'tasks'}{share}"

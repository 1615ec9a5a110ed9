"""Read what each task needs out of one volume."""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.memory import Need
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.cutout import Cutout
from chunkflow_py.volume.levels import level_name
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import Opening, check_channels, warn_of_assumed_size

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Kind, Voxels
    from chunkflow_py.core.task import Task
    from chunkflow_py.volume.checks import Check
    from chunkflow_py.volume.protocol import Volume

MOST_CACHED = 512 * 2**20  # bytes of decoded blocks that are kept for the tasks to come
_COPIES = 2  # of a block that is being read: as stored, and decoded


@dataclass
class VolumeLoader:
    """Puts a volume, or the part of it that a task needs, into every task.

    Attributes:
        url: of the volume.
        mip: resolution level.
        format: of the volume, where the address does not say it.
        cutout: which part.
        output_name: name of the chunk in the task.
        channels: which, in this order (default: all).
        voxel_size_nm: instead of the volume's.
        kind: what the voxels mean, instead of what the volume says.
        time: time index to read (default: the task's).
        opening: how to use the volume. If it says no ``cache_bytes``, the loader decides: none
            where tasks share no blocks, else what a plane of tasks reads, or a row, or two
            tasks, the most of these that fits into 512 MiB.
        checks: called with the chunk, the volume and the time; each returns the chunk to go on
            with.
    """

    url: str
    mip: int = 0
    format: str | None = None
    cutout: Cutout = field(default_factory=Cutout)
    output_name: str = "chunk"
    channels: tuple[int, ...] | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    kind: Kind | None = None
    time: int | None = None
    opening: Opening = field(default_factory=Opening)
    checks: tuple[Check, ...] = ()
    thread_safe: ClassVar[bool] = True
    _volume: Volume | None = field(default=None, init=False, repr=False)
    _has_warned: bool = field(default=False, init=False, repr=False)
    _line: Any = field(default=None, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    @property
    def origin(self) -> str:
        """The level that is read, in which nothing of the line may write."""
        return level_name(Location.parse(self.url), self.mip)

    @property
    def origins(self) -> tuple[str, ...]:
        """All that is read: also the levels that chunks are compared with."""
        compared = (getattr(check, "origin", None) for check in self.checks)
        return (self.origin, *(place for place in compared if place is not None))

    @property
    def volume(self) -> Volume:
        """The volume, opened on first use.

        Raises:
            VolumeNotFoundError: there is none, or it has no such level.
            VolumeError: it cannot be read, or has no such time index.
            ChunkError: it has not these channels.
        """
        with self._lock:
            if self._volume is None:
                self._volume = self._open(self.opening)
            return self._volume

    def _open(self, opening: Opening) -> Volume:
        found = open_volume(self.url, self.mip, format=self.format, opening=opening)
        check_channels(self.channels, found.channels, found.url)
        if self.time is not None and not 0 <= self.time < (found.times or 0):
            there = "no time axis"
            if found.times is not None:
                there = f"the time indices 0 to {found.times - 1}"
            msg = f"{self.url} has {there}, but --time {self.time} was asked for; change --time"
            raise VolumeError(msg)
        return found

    def __enter__(self) -> VolumeLoader:
        """Keep blocks for the tasks to come, if the tasks of the line share some."""
        if not self.opening.cache_bytes and (wanted := self._shared_bytes()):
            self._volume = self._open(replace(self.opening, cache_bytes=wanted))
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is held but what is freed with the loader."""

    # --- the line ------------------------------------------------------------------------------

    def prepare(self, outline: Any) -> None:
        """Take from the line (an `Outline`) its tasks, and see whether all checks can be made.

        Raises:
            VolumeNotFoundError: something that a check needs is missing.
        """
        self._line = outline
        for check in self.checks:
            check.prepare()

    @property
    def _has_tasks(self) -> bool:
        return self._line is not None and self._line.has_tasks

    def bounds(self) -> BoundingBox:
        """Return the domain of the chunks.

        Raises:
            GeometryError: an explicit cut reaches outside of the volume.
        """
        bounds = self.volume.bounds
        domain = self.cutout.box(bounds, None, self.url)[1]
        return bounds if self._has_tasks else domain

    @property
    def times(self) -> int | None:
        """The length of the volume's time axis, if tasks name the time."""
        return self.volume.times if self.time is None else None

    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Take what the rest of the line needs for a task's box."""
        self.cutout.negotiate(required)

    def voxels(self) -> Voxels:
        """Return what the chunks will hold."""
        from chunkflow_py.core.chunk import Voxels
        from chunkflow_py.volume.new_volume import names_of

        volume = self.volume
        count = volume.channels or 1
        if volume.channels is not None and self.channels is not None:
            count = len(self.channels)
        kind, has_axis = self.kind or volume.kind, volume.channels is not None
        names = names_of(volume, self.channels)
        return Voxels(str(volume.dtype), count, kind, has_axis, names)

    def known_voxel_size_nm(self) -> tuple[float, float, float]:
        """Return the voxel size of the chunks."""
        if self.voxel_size_nm is None and not self._has_warned:
            self._has_warned = warn_of_assumed_size(self.volume.voxel_size_nm, self.url)
        return self.voxel_size_nm or self.volume.voxel_size_nm

    def memory(self, size: Zyx | None) -> Need | None:  # noqa: ARG002  (nothing is read from)
        """Return what reading takes: chunks with their margin, blocks on their way, the cache."""
        covered = [self._covered(task) for task in self._samples()]
        if not covered:
            return None
        block = self.volume.block_size.product() * self._voxel_bytes
        touched = max(blocks.voxels for _, blocks in covered) * self._voxel_bytes
        threads = self.opening.parallel or os.cpu_count() or 1
        return Need(
            size=max((box.size for box, _ in covered), key=Zyx.product),
            work=_COPIES * min(threads * block, touched),
            held={"blocks kept for later tasks": self.opening.cache_bytes or self._shared_bytes()},
        )

    @property
    def traffic(self) -> Any:
        """What reading has cost so far (see `BlockVolume.traffic`), if the volume counts it."""
        return getattr(self._volume, "traffic", None)

    @property
    def _voxel_bytes(self) -> int:
        return self.volume.dtype.itemsize * (self.volume.channels or 1)

    def _samples(self) -> list[BoundingBox | None]:
        """Return boxes of tasks, the largest among them; ``None`` stands for no box."""
        if not self._has_tasks:
            return [None]
        boxes = self._line.boxes or ()
        if isinstance(boxes, BoxGrid):
            # all of one size; those inside have margins on both sides
            found = [boxes.box(boxes.count // 2), boxes[0]]
        else:
            found = [max(boxes, key=lambda box: box.voxels)] if boxes else []
        return [box for box in found if not box.intersection(self.volume.bounds).is_empty]

    def _covered(self, task: BoundingBox | None) -> tuple[BoundingBox, BoundingBox]:
        """Return what is read for a task, and the box of the blocks that this touches."""
        bounds = self.volume.bounds
        box = self.cutout.box(bounds, task, self.url)[0]
        return box, box.aligned_outward(self.volume.block_size, bounds.start).intersection(bounds)

    def _shared_bytes(self) -> int:
        """Return how many bytes of blocks to keep, so that later tasks find what they share.

        In raster order a plane of tasks lies between two neighbours along z, a row between two
        along y, and nothing between two along x; in the other orders neighbours are nearer. What
        is kept is the most of these that tasks share blocks across and that fits.
        """
        grid = self._line.boxes if self._has_tasks else None
        if not isinstance(grid, BoxGrid) or len(grid) == 1 or self.cutout.is_explicit:
            return 0

        def blocks(z: int, y: int, x: int) -> BoundingBox:
            box = grid.box((z, y, x)).intersection(self.volume.bounds)
            return box if box.is_empty else self._covered(box)[1]

        z, y, x = grid.count // 2
        here = blocks(z, y, x)
        task = here.voxels * self._voxel_bytes
        last = grid.count - 1
        for near, between in (
            ((z - 1, y, x), blocks(z, 0, 0).hull(blocks(z, last.y, last.x))),
            ((z, y - 1, x), blocks(z, y, 0).hull(blocks(z, y, last.x))),
            ((z, y, x - 1), here),
        ):
            wanted = between.voxels * self._voxel_bytes + task
            if min(near) >= 0 and wanted <= MOST_CACHED and here.intersection(blocks(*near)).voxels:
                return wanted
        return 0

    def __call__(self, task: Task) -> Task:
        """Read the part of the volume that the task needs."""
        from chunkflow_py.core.chunk import Chunk
        from chunkflow_py.volume.engine.block_volume import counting

        box, domain = self.cutout.box(self.volume.bounds, task.bbox, self.url)
        time = self.time
        if time is None and task.region is not None:
            time = task.region.time
        with counting() as found:
            chunk = self.volume.read(box, self.channels, time=time)
        task.missing_blocks += found.missing_blocks
        for check in self.checks:
            chunk = check(chunk, self.volume, time)
        size_nm = self.voxel_size_nm or chunk.voxel_size_nm
        kind = self.kind or chunk.kind
        task[self.output_name] = Chunk(chunk.array, box.start, size_nm, kind, domain)
        return task

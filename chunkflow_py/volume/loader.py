"""Load the part of a volume that a task needs, or the file of the task."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, ClassVar

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Region, Zyx
from chunkflow_py.core.host_memory import OperatorMemory
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook, hook_value
from chunkflow_py.core.processors import usable_cores
from chunkflow_py.errors import VolumeError
from chunkflow_py.volume.cutout import Cutout
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.protocol import (
    VolumeOptions,
    check_channels,
    checked_time,
    warn_of_assumed_size,
)
from chunkflow_py.volume.volume_source import StoredVolume

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.core.chunk import Chunk, Kind, Voxels
    from chunkflow_py.core.task import Task
    from chunkflow_py.volume.protocol import Volume
    from chunkflow_py.volume.read_checks import Check
    from chunkflow_py.volume.volume_source import VolumeSource

logger = logging.getLogger(__name__)

# Bytes of decoded blocks that are kept for later tasks. On this machine, the file system caches the
# blocks as stored, so a block that is read again costs only its decoding.
MOST_CACHED = 512 * 2**20
MOST_CACHED_LOCAL = 32 * 2**20
_COPIES = 2  # of a block that is being read: as stored, and decoded


@dataclass
class VolumeLoader(OperatorBase):
    """Loads into each task the part of a volume that the task needs, or the whole volume.

    If neighbouring tasks share blocks, decoded blocks are cached. The cache has room for the blocks
    of a plane of tasks. If these exceed the limit of 512 MiB (32 MiB for a volume on a local disk),
    the cache has room for the blocks of a row of tasks. If these also exceed the limit, the cache
    has room for the blocks of two tasks.

    Attributes:
        source: object that opens the volume, or the file of each task.
        cutout: part of the volume to read.
        output_name: name of the chunk in the task.
        channels: channels to read, in this order (default: all).
        dtype: type of the voxels (default: that of the volume).
        voxel_size_nm: voxel size, nanometres, zyx (default: that of the volume).
        kind: meaning of the voxels (default: that of the volume).
        time: time index to read (default: that of the task).
        set_bbox: whether to set the task's box to the box of the chunk.
        checks: checks of the chunk, in this order. Each check is called with the chunk, the
            volume and the time index, and returns the chunk for the next check.
    """

    source: VolumeSource
    cutout: Cutout = field(default_factory=Cutout, metadata=HOOK)
    output_name: str = "chunk"
    channels: tuple[int, ...] | None = None
    dtype: str | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    kind: Kind | None = None
    time: int | None = None
    set_bbox: bool = field(default=False, metadata=HOOK)
    is_local: ClassVar[bool] = hook_value(True)
    checks: tuple[Check, ...] = ()
    _volume: Volume | None = field(default=None, init=False, repr=False)
    _has_warned: bool = field(default=False, init=False, repr=False)
    _outline: Any = field(default=None, init=False, repr=False)
    _lock: Lock = field(default_factory=Lock, init=False, repr=False)

    @property
    @hook
    def thread_safe(self) -> bool:
        """Whether several tasks may read at the same time."""
        return self.source.thread_safe

    @property
    @hook
    def tells_missing(self) -> bool:
        """Whether a missing block can be distinguished from a block of zeros."""
        return self.source.tells_missing

    @property
    @hook
    def origin(self) -> str:
        """Address of the volume or file to read; the pipeline must not write to it."""
        return self.source.origins[0]

    @property
    @hook
    def origins(self) -> tuple[str, ...]:
        """Addresses of all volumes that a task reads, including the levels that *checks* read."""
        compared = (getattr(check, "origin", None) for check in self.checks)
        return (*self.source.origins, *(each for each in compared if each is not None))

    @property
    def volume(self) -> Volume:
        """The volume that all tasks read, opened on first use.

        Raises:
            VolumeNotFoundError: the volume or the level does not exist.
            VolumeError: the volume cannot be read, the time index does not exist, or each task has
                its own volume.
            ChunkError: a requested channel does not exist.
        """
        if (volume := self._known_volume()) is None:
            msg = (
                f"{self.origin} is not a volume that all tasks share, because each task reads its "
                "own file; load a stored volume instead"
            )
            raise VolumeError(msg)
        return volume

    def _known_volume(self) -> Volume | None:
        with self._lock:
            if self._volume is None and (self.source.is_shared or self.source.is_one_file):
                self._volume = self._open()
            return self._volume

    def _open(
        self, region: Region | BoundingBox | None = None, cache_bytes: int = 0
    ) -> Volume | None:
        is_whole = not self._has_tasks and not self.cutout.is_explicit
        volume = self.source.open(region, cache_bytes=cache_bytes, is_whole=is_whole)
        if volume is None:
            return None
        check_channels(self.channels, volume.channels, volume.url)
        if self.time is not None and not 0 <= self.time < (volume.times or 0):
            there = "no time axis"
            if volume.times is not None:
                there = f"the time indices 0 to {volume.times - 1}"
            msg = f"{volume.url} has {there}, but --time is {self.time}; change or leave out --time"
            raise VolumeError(msg)
        if self.voxel_size_nm is None and not self._has_warned:
            self._has_warned = warn_of_assumed_size(volume.voxel_size_nm, volume.url)
        return volume

    def __enter__(self) -> VolumeLoader:
        """If tasks share blocks, open the volume with a cache of decoded blocks."""
        if self.source.is_shared and (wanted := self._shared_bytes()):
            self._volume = self._open(cache_bytes=wanted)
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because the cache is freed together with the loader."""

    # --- hooks of the pipeline -----------------------------------------------------------------

    @hook
    def prepare(self, outline: Any) -> None:
        """Store the description of all tasks, and prepare all checks.

        Args:
            outline: what is known about the tasks; see `chunkflow_py.core.outline.Outline`.

        Raises:
            VolumeNotFoundError: a check needs a file or level that does not exist.
        """
        self._outline = outline
        if not self.source.is_shared:
            self._volume = None  # another pipeline may have replaced the file
        for check in self.checks:
            check.prepare()

    @property
    def _has_tasks(self) -> bool:
        return self._outline is not None and self._outline.has_tasks

    @hook
    def bounds(self) -> BoundingBox | None:
        """Return the domain of the chunks, or ``None`` if each task reads its own file.

        Raises:
            GeometryError: a box given by options extends beyond the volume.
        """
        if (volume := self._known_volume()) is None:
            return None
        domain = self.cutout.box(volume.bounds, None, volume.url)[1]
        return volume.bounds if self._has_tasks else domain

    @property
    @hook
    def times(self) -> int | None:
        """Number of time points of the volume.

        The result is ``None`` if `time` is set, if the volume has no time axis, or if each task
        reads its own file.

        Raises:
            VolumeError: the volume has several time points, but tasks have no time index.
        """
        volume = self._known_volume() if self.time is None else None
        if volume is None or volume.times is None:
            return None
        if self._outline is not None and self._outline.has_times is False:
            checked_time(None, volume.times, volume.url)
        return volume.times

    @hook
    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Set the function that computes the box to read for ``--expand-margin-size auto``.

        Args:
            required: function (box of the task, bounds of the volume) -> box to read.
        """
        self.cutout.negotiate(required)

    @hook
    def voxels(self) -> Voxels | None:
        """Return properties of the chunks' voxels; ``None`` if each task reads its own file."""
        from chunkflow_py.core.chunk import Voxels
        from chunkflow_py.volume.protocol import names_of

        if (volume := self._known_volume()) is None:
            return None
        count = volume.channels or 1
        if volume.channels is not None and self.channels is not None:
            count = len(self.channels)
        kind, has_axis = self.kind or volume.kind, volume.channels is not None
        names = names_of(volume, self.channels)
        return Voxels(self.dtype or str(volume.dtype), count, kind, has_axis, names)

    @hook
    def known_voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Return the voxel size of the chunks in nm, zyx, if all tasks read one volume."""
        if self.voxel_size_nm is not None:
            return self.voxel_size_nm
        return None if (volume := self._known_volume()) is None else volume.voxel_size_nm

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:  # noqa: ARG002  (it has no input)
        """Return the memory for chunks with margins, for decoding blocks, and for the cache."""
        if not self.source.is_shared:
            return OperatorMemory()
        covered = [self._covered(task) for task in self._samples()]
        if not covered:
            return None
        block = self.volume.block_size.product() * self._voxel_bytes
        touched = max(blocks.voxels for _, blocks in covered) * self._voxel_bytes
        options = self.source.options if isinstance(self.source, StoredVolume) else VolumeOptions()
        threads = options.parallel or usable_cores()
        return OperatorMemory(
            size=max((box.size for box, _ in covered), key=Zyx.product),
            work=_COPIES * min(threads * block, touched),
            held={"blocks kept for later tasks": options.cache_bytes or self._shared_bytes()},
        )

    @property
    @hook
    def traffic(self) -> Any:
        """Totals of all reads, a `Traffic`; ``None`` if the volume does not count reads."""
        return getattr(self._volume, "traffic", None)

    @property
    def _voxel_bytes(self) -> int:
        return self.volume.dtype.itemsize * (self.volume.channels or 1)

    def _samples(self) -> list[BoundingBox | None]:
        # None stands for a task without a box.
        if not self._has_tasks:
            return [None]
        boxes = self._outline.boxes or ()
        if isinstance(boxes, BoxGrid):
            # all of one size; those inside have margins on both sides
            samples = [boxes.box(boxes.count // 2), boxes[0]]
        else:
            samples = [max(boxes, key=lambda box: box.voxels)] if boxes else []
        return [box for box in samples if not box.intersection(self.volume.bounds).is_empty]

    def _covered(self, task: BoundingBox | None) -> tuple[BoundingBox, BoundingBox]:
        bounds = self.volume.bounds
        box = self.cutout.box(bounds, task, self.volume.url)[0]
        return box, box.aligned_outward(self.volume.block_size, bounds.start).intersection(bounds)

    def _shared_bytes(self) -> int:
        # The cache keeps the blocks that several tasks read. In raster order, a plane of tasks is
        # executed between two neighbours along z, a row of tasks between two neighbours along y,
        # and no task between two neighbours along x. To read a shared block only once, the cache
        # therefore needs room for the blocks of a plane of tasks, a row of tasks, or two tasks.
        # The sizes are tried in this order, up to MOST_CACHED or MOST_CACHED_LOCAL bytes.
        grid = self._outline.boxes if self._has_tasks else None
        if not isinstance(grid, BoxGrid) or len(grid) == 1 or self.cutout.is_explicit:
            return 0

        def blocks(z: int, y: int, x: int) -> BoundingBox:
            box = grid.box((z, y, x)).intersection(self.volume.bounds)
            return box if box.is_empty else self._covered(box)[1]

        most = MOST_CACHED_LOCAL if _is_local(self.volume.url) else MOST_CACHED
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
            if min(near) >= 0 and wanted <= most and here.intersection(blocks(*near)).voxels:
                return wanted
        return 0

    # --- the tasks -----------------------------------------------------------------------------

    def __call__(self, task: Task) -> Task:
        """Read the part of the volume that the task needs.

        An empty file, which a saver writes for a task without a result, is loaded as ``None``.
        """
        from chunkflow_py.core.chunk import Chunk
        from chunkflow_py.volume.conversion import converted
        from chunkflow_py.volume.engine.block_volume import counting

        region = task.region or self.cutout.known_box()
        volume = self.volume if self.source.is_shared else self._open(region)
        if volume is None:
            logger.info("the file of task %s is empty, so chunk %s is None", task, self.output_name)
            task[self.output_name] = None
            if self.source.removes_empty:
                self.source.remove(region)
            return task
        box, domain = self.cutout.box(volume.bounds, task.bbox, volume.url)
        time = self.time
        if time is None and task.region is not None:
            time = task.region.time
        with counting() as traffic:
            chunk = volume.read(box, self.channels, time=time)
        task.missing_blocks += traffic.missing_blocks
        chunk = converted(chunk, self.dtype)
        for check in self.checks:
            chunk = check(chunk, volume, time)
        size_nm = self.voxel_size_nm or chunk.voxel_size_nm
        kind = self.kind or chunk.kind
        task[self.output_name] = Chunk(chunk.array, box.start, size_nm, kind, domain)
        if self.set_bbox:
            task.region = Region(box, None if task.region is None else task.region.time)
        if self.source.removes_empty and self._is_all_zero(chunk, volume):
            self.source.remove(region)
        return task

    def _is_all_zero(self, chunk: Chunk, volume: Volume) -> bool:
        """Return whether *chunk* is the whole *volume* and contains only zeros."""
        is_whole = chunk.bbox == volume.bounds and chunk.channels == (volume.channels or 1)
        return is_whole and not chunk.array.any()


def _is_local(url: str) -> bool:
    """Return whether an address is known to be on a local disk.

    The result is false for an address that only another library understands, such as a spec of
    TensorStore.
    """
    try:
        return Location.parse(url).is_local
    except VolumeError:
        return False

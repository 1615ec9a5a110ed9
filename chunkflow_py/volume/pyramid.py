"""Compute and write the coarser levels of a volume, each from the next finer level.

```
level 0   |---------------|---------------|---------------|----|    tasks
level 1   |-------|-------|-------|-------|-------|-------|----|    blocks: two per task
level 2   |---------------|---------------|---------------|----|    blocks: one per task
level 3   |-------------------------------|--------------------|    blocks: two tasks share a block
```

A pipeline can write a level if the level has no shards and no two tasks share a block of the level.
The other levels are written when all tasks are done, by
`chunkflow_py.run.whole_volume.downsampling`, because a block or shard of these levels may need the
output of several tasks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import AXES, BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.core.task import Output
from chunkflow_py.errors import AlignmentError, OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.downsample import Mode, downsample
from chunkflow_py.volume.location import Location, level_name, volume_name
from chunkflow_py.volume.protocol import VolumeOptions
from chunkflow_py.volume.task_box import BoxCheck, stored_inside
from chunkflow_py.volume.write_unit_check import check_disjoint

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.core.host_memory import OperatorMemory
    from chunkflow_py.core.task import Task
    from chunkflow_py.store.store_protocol import Leftover
    from chunkflow_py.volume.protocol import Volume, VolumeSpec


SCREEN = 1024  # longest axis of the coarsest level of a copy, voxels
_MOST_LEVELS = 32


@dataclass(frozen=True)
class PyramidLevel:
    """A level to write, which exists already or will be created.

    Attributes:
        mip: number of the level.
        shrink: voxels of the pipeline's chunks per voxel of this level, along z, y and x.
        bounds: box of all voxels of the level.
        write_unit: extent of a write unit of the level, voxels, zyx.
        sharded: whether a write unit is a shard.
    """

    mip: int
    shrink: Zyx
    bounds: BoundingBox
    write_unit: Zyx
    sharded: bool

    def cut_by(self, boxes: BoxGrid | Sequence[BoundingBox], fine: BoundingBox) -> str | None:
        """Return a description of the first task boundary that cuts a write unit, or ``None``.

        Args:
            boxes: boxes of the tasks, in voxels of the pipeline's chunks.
            fine: bounds of the level to which the chunks belong; task boundaries at or outside
                these bounds are ignored.
        """
        unit, origin = self.write_unit * self.shrink, self.bounds.start * self.shrink
        for axis, name in enumerate(AXES):
            if isinstance(boxes, BoxGrid):
                spans = boxes.intervals(axis)
            else:
                spans = [(box.start[axis], box.stop[axis]) for box in boxes]
            for span in spans:
                for face in span:
                    inside = fine.start[axis] < face < fine.stop[axis]
                    if inside and (face - origin[axis]) % unit[axis]:
                        return f"the task boundary at {face} along {name}"
        return None


def like_levels(
    spec: VolumeSpec, url: str, mip: int = 0, opening: VolumeOptions | None = None
) -> VolumeSpec:
    """Return *spec* with the downsampling factors of an existing volume.

    If the new volume has more levels than the existing volume, the last factor is repeated.

    Args:
        spec: description of the new volume.
        url: address of the existing volume.
        mip: level of the existing volume that corresponds to level 0 of the new volume.
        opening: options for opening the existing volume.

    Raises:
        VolumeError: the factor between two levels is not an integer.
    """
    if not spec.max_mip:
        return spec
    mips = sorted(m for m in open_volume(url, mip, opening=opening).mips if m >= mip)
    levels = [open_volume(url, m, opening=opening) for m in mips[: spec.max_mip + 1]]
    try:
        factors = tuple(level_factor(fine, coarse) for fine, coarse in pairwise(levels))
    except VolumeError as error:
        msg = f"{error}; give --factor"
        raise VolumeError(msg) from error
    return replace(spec, first_factors=factors, factor=factors[-1]) if factors else spec


def isotropic_factors(voxel_size_nm: tuple[float, float, float], levels: int) -> tuple[Zyx, ...]:
    """Return downsampling factors that make voxels as cubic as possible, one factor per level.

    Let L be the longest edge of a voxel. An axis is short if the voxel's edge along this axis is
    shorter than L/√2. The next level has half as many voxels along each short axis. If no axis is
    short, the next level has half as many voxels along all axes.

    Args:
        voxel_size_nm: size of a voxel of level 0, nanometres, zyx.
        levels: number of levels that are coarser than level 0.
    """
    factors: list[Zyx] = []
    size = voxel_size_nm
    for _ in range(levels):
        short = [nm * math.sqrt(2) < max(size) for nm in size]
        factor = Zyx(*(2 if halved or not any(short) else 1 for halved in short))
        size = tuple(nm * step for nm, step in zip(size, factor, strict=True))  # type: ignore[assignment]
        factors.append(factor)
    return tuple(factors)


def levels_for_screen(
    size: Zyx, voxel_size_nm: tuple[float, float, float], factor: Zyx | None = None
) -> int:
    """Return how many coarser levels are needed to shorten all axes to at most `SCREEN` voxels.

    Axes that *factor* never shrinks may stay longer.

    Args:
        size: extent of level 0, voxels, zyx.
        voxel_size_nm: size of a voxel of level 0, nanometres, zyx.
        factor: downsampling factor between levels, zyx (default: `isotropic_factors`).
    """
    levels = 0
    shrinking = [factor is None or step > 1 for step in factor or (2, 2, 2)]
    for step in isotropic_factors(voxel_size_nm, _MOST_LEVELS):
        if not any(n > SCREEN and shrinks for n, shrinks in zip(size, shrinking, strict=True)):
            break
        size = -(-size // (factor or step))
        levels += 1
    return levels


def level_factor(fine: Volume, coarse: Volume) -> Zyx:
    """Return the number of voxels of *fine* per voxel of *coarse*, zyx, from their voxel sizes.

    Raises:
        VolumeError: one of these numbers is not an integer.
    """
    pairs = list(zip(fine.voxel_size_nm, coarse.voxel_size_nm, strict=True))
    factor = Zyx(*(max(1, round(b / a)) for a, b in pairs))
    if any(abs(a * f - b) > 0.01 * b for (a, b), f in zip(pairs, factor, strict=True)):
        msg = (
            f"the voxel size of {coarse.url}, {coarse.voxel_size_nm} nm, is not an integer "
            f"multiple of the voxel size of {fine.url}, {fine.voxel_size_nm} nm (zyx); correct the "
            "voxel size in the metadata, or create the volume again"
        )
        raise VolumeError(msg)
    return factor


@dataclass
class PyramidOutput(OperatorBase):
    """Computes and writes the coarser levels of the chunk of each task; may run in several threads.

    Attributes:
        url: address of the volume.
        input_name: name of the chunk in the task.
        factor: downsampling from each level to the next, zyx.
        chunk_mip: level of the chunk.
        start_mip: first level to write.
        stop_mip: end of the levels to write (exclusive).
        mode: mode of `downsample`.
        opening: options for reading and writing the volume.
        announced: volumes that earlier operators will create: address -> function. The function
            returns the description of level 0, or ``None`` if only the first chunk determines it.
    """

    url: str
    input_name: str = "chunk"
    factor: Zyx = Zyx(2, 2, 2)
    chunk_mip: int = 0
    start_mip: int = 1
    stop_mip: int = 5
    mode: Mode = "auto"
    opening: VolumeOptions = field(default_factory=VolumeOptions)
    announced: Mapping[str, Callable[[], VolumeSpec | None]] = field(default_factory=dict)
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)
    _volumes: list[Volume] | None = field(default=None, init=False, repr=False)
    _check_box: BoxCheck | None = field(default=None, init=False, repr=False)
    _lock: Any = field(default_factory=Lock, init=False, repr=False)

    def __post_init__(self) -> None:
        """Check that there is a level to write, and that all levels are coarser than the chunk.

        Raises:
            OptionError: there is no level to write, or a level is not coarser than the chunk.
        """
        if not self.chunk_mip < self.start_mip < self.stop_mip:
            msg = (
                f"--start-mip {self.start_mip} and --stop-mip {self.stop_mip} (exclusive) must "
                f"name levels that are coarser than the chunk, which is at mip {self.chunk_mip}; "
                f"give --start-mip {self.chunk_mip + 1} and a larger --stop-mip"
            )
            raise OptionError(msg)

    @property
    @hook
    def destinations(self) -> tuple[str, ...]:
        """Canonical names of the levels that are written."""
        place = Location.parse(self.url)
        return tuple(level_name(place, mip) for mip in range(self.start_mip, self.stop_mip))

    @hook
    def stores(self) -> tuple[Output, ...]:
        """Return the levels that are written, as outputs."""
        place = Location.parse(self.url)
        where, kind = place.store_url, place.format
        return tuple(
            Output("volume", where, mip, kind, shrink=_power(self.factor, mip - self.chunk_mip))
            for mip in range(self.start_mip, self.stop_mip)
        )

    @hook
    def prepare(self, outline: Any) -> None:
        """Check the levels to write, and that no two tasks write to one block of a level.

        Args:
            outline: what is known about the tasks; see `chunkflow_py.core.outline.Outline`.

        Raises:
            VolumeNotFoundError: the volume, or a level of it, neither exists nor will be created.
            VolumeError: the factor between two levels is not *factor*.
            AlignmentError: two tasks would write to one block of a level, or a level has shards.
        """
        self._check_box = BoxCheck.of(outline)
        try:
            self._volumes = self._opened()
        except VolumeNotFoundError as error:
            self._check_announced(outline.boxes, error)
            return
        self._check(self._described(self._volumes), self._volumes[0].bounds, outline.boxes)

    def __call__(self, task: Task) -> Task:
        """Compute the coarser levels of the chunk, and write the levels from `start_mip` on."""
        chunk = task.chunk(self.input_name)
        with self._lock:
            if self._volumes is None:
                self._volumes = self._opened()
            volumes = self._volumes
        if self._check_box is not None:
            self._check_box(task, chunk, volumes[0].bounds, self.url)
        chunk = chunk.cut(chunk.bbox.intersection(volumes[0].bounds))
        self._check(self._described(volumes), volumes[0].bounds, [chunk.bbox])
        time = None if task.region is None else task.region.time
        coarse = within(chunk, volumes[0].bounds)
        for mip, volume in enumerate(volumes[1:], self.chunk_mip + 1):
            coarse = downsample(coarse, self.factor, self.mode)
            inside = coarse.bbox.intersection(volume.bounds)
            if mip >= self.start_mip and not inside.is_empty:
                task.written += volume.write(coarse.cut(inside), time=time)
        return task

    @hook
    def leftovers(self, tasks: Any) -> Iterator[Leftover]:
        """Yield the stored blocks that *tasks* will write again, in all levels to write."""
        for mip, volume in enumerate((self._volumes or [])[1:], self.chunk_mip + 1):
            if mip >= self.start_mip:
                shrink = _power(self.factor, mip - self.chunk_mip)
                yield from stored_inside(volume, tasks, shrink)

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the memory needed to compute the coarser levels of a chunk of extent *size*."""
        from chunkflow_py.core.host_memory import OperatorMemory

        if size is None or self._volumes is None:
            return None
        fine = self._volumes[0]
        voxel_bytes = fine.dtype.itemsize * (fine.channels or 1)
        return OperatorMemory(work=4 * (size // self.factor + 1).product() * voxel_bytes)

    # --- what the levels are -----------------------------------------------------------------

    def _opened(self) -> list[Volume]:
        fine = open_volume(self.url, self.chunk_mip, opening=self.opening)
        volumes = [fine]
        for mip in range(self.chunk_mip + 1, self.stop_mip):
            try:
                level = open_volume(self.url, mip, "r+", opening=self.opening)
            except VolumeNotFoundError as error:
                raise self._missing(mip) from error
            if (there := level_factor(volumes[-1], level)) != self.factor:
                msg = (
                    f"the voxels of mip {mip} of {self.url} are {there} times as large as the "
                    f"voxels of mip {mip - 1} (zyx), but --factor is {self.factor}; give --factor "
                    f"{there.as_option}"
                )
                raise VolumeError(msg)
            volumes.append(level)
        return volumes

    def _described(self, volumes: Sequence[Volume]) -> list[PyramidLevel]:
        return [
            PyramidLevel(
                mip,
                _power(self.factor, mip - self.chunk_mip),
                level.bounds,
                level.write_unit,
                level.write_unit != level.block_size,
            )
            for mip, level in enumerate(volumes[1:], self.chunk_mip + 1)
        ]

    def _check_announced(
        self, boxes: BoxGrid | Sequence[BoundingBox] | None, missing: VolumeNotFoundError
    ) -> None:
        address = volume_name(Location.parse(self.url))
        if address not in self.announced:
            raise missing
        spec = self.announced[address]()
        if spec is None:
            return  # checked once the volume exists
        if spec.max_mip < self.stop_mip - 1:
            raise self._missing(spec.max_mip + 1) from missing
        differing = [s for mip in range(self.stop_mip - 1) if (s := spec.step(mip)) != self.factor]
        if differing:
            msg = (
                f"an earlier command will create {self.url} with --factor "
                f"{differing[0].as_option}, but this command has --factor {self.factor.as_option} "
                "(zyx); give both commands the same --factor"
            )
            raise VolumeError(msg)
        unit, levels = spec.shard_size or spec.block_size, []
        for mip in range(self.chunk_mip + 1, self.stop_mip):
            shrink, bounds = _power(self.factor, mip - self.chunk_mip), spec.level(mip).bounds
            levels.append(PyramidLevel(mip, shrink, bounds, unit, unit != spec.block_size))
        self._check(levels, spec.level(self.chunk_mip).bounds, boxes)

    def _missing(self, mip: int) -> VolumeNotFoundError:
        last = self.stop_mip - 1
        return VolumeNotFoundError(
            f"{self.url} has no mip {mip}, but levels up to {last} are to be written; create the "
            f"volume with create-volume --max-mip {last} (or create-info), or give --stop-mip {mip}"
        )

    def _check(
        self,
        levels: Sequence[PyramidLevel],
        fine: BoundingBox,
        boxes: BoxGrid | Sequence[BoundingBox] | None,
    ) -> None:
        """Refuse levels in which tasks would overwrite each other's blocks."""
        check_disjoint(boxes or (), self.url)
        for level in levels:
            if level.mip < self.start_mip:
                continue
            if level.sharded:
                msg = f"mip {level.mip} of {self.url} is stored in shards of {level.write_unit}"
                why = "which a pipeline cannot write"
            elif boxes and (face := level.cut_by(boxes, fine)):
                unit = level.write_unit
                msg = f"{face} cuts blocks of size {unit} of mip {level.mip} of {self.url}"
                why = f"so the task size must be a multiple of {unit * level.shrink}"
            else:
                continue
            first = level.mip == self.start_mip
            stop = "leave this command out" if first else f"give --stop-mip {level.mip}"
            msg = (
                f"{msg} (zyx, voxels), {why}; {stop}, and write this level and all coarser levels "
                f"when all tasks are done: chunkflow downsample-volume {self.url} "
                f"--start-mip {level.mip} --stop-mip {self.stop_mip}"
            )
            raise AlignmentError(msg)


@dataclass
class FinerReader(OperatorBase):
    """Loads the voxels of a finer level inside the box of each task.

    Attributes:
        fine: the finer level.
        factor: number of voxels of the finer level per voxel of the task's box, along each axis,
            zyx.
        output_name: name of the chunk in the task.
    """

    fine: Volume
    factor: Zyx
    output_name: str = "chunk"
    thread_safe: bool = field(default=True, init=False, metadata=HOOK)

    @hook
    def voxels(self) -> Voxels:
        """Return dtype, channels and kind of the chunks."""
        from chunkflow_py.core.chunk import Voxels

        fine = self.fine
        return Voxels(str(fine.dtype), fine.channels or 1, fine.kind, fine.channels is not None)

    @hook
    def memory(self, size: Zyx | None) -> OperatorMemory | None:
        """Return the memory for the voxels of the finer level in a task box of extent *size*."""
        from chunkflow_py.core.host_memory import OperatorMemory

        if size is None:
            return None
        return OperatorMemory((size * self.factor).low(self.fine.bounds.size))

    def __call__(self, task: Task) -> Task:
        """Read the voxels of the finer level inside the task's box."""
        if task.region is None:
            msg = (
                "the task has no box, so the voxels of the finer level cannot be selected; use "
                "tasks that have boxes"
            )
            raise OptionError(msg)
        box = task.region.bbox
        finer = BoundingBox(box.start * self.factor, box.stop * self.factor)
        inside = finer.intersection(self.fine.bounds)
        task[self.output_name] = self.fine.read(inside, time=task.region.time)
        return task


def within(chunk: Chunk, bounds: BoundingBox) -> Chunk:
    """Return a chunk with the voxels and position of *chunk*, and the domain *bounds*."""
    from chunkflow_py.core.chunk import Chunk

    place = (chunk.voxel_offset, chunk.voxel_size_nm, chunk.kind)
    return Chunk(chunk.array, *place, bounds)


def _power(factor: Zyx, times: int) -> Zyx:
    return reduce(lambda a, b: a * b, [factor] * times, Zyx(1, 1, 1))

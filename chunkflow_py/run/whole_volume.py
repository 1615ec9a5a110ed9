"""Pipelines over a whole volume: conversion to another format, and downsampling.

Tasks are aligned to write units (blocks or shards), so an interrupted pipeline can continue where
it stopped.

```
convert      for each box that is not stored: read the box -> write the box
downsample   for each box that is not stored: read the finer level -> downsample -> write one level
```
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass, field, replace
from math import isclose
from typing import TYPE_CHECKING, Any, NoReturn

from chunkflow_py.core.geometry import BoxGrid, Region, Zyx
from chunkflow_py.core.operator_base import HOOK, SourceBase
from chunkflow_py.core.task import Task
from chunkflow_py.errors import AlignmentError, VolumeError, VolumeNotFoundError
from chunkflow_py.ops.downsample import Downsampler
from chunkflow_py.ops.skip_task_by_blocks_in_volume import StoredSkipper
from chunkflow_py.pipeline.operator import Operator, Source
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.array_identity import same_array
from chunkflow_py.volume.copy_record import CopyRecord
from chunkflow_py.volume.loader import VolumeLoader
from chunkflow_py.volume.location import Location, level_name
from chunkflow_py.volume.new_volume import kept_names
from chunkflow_py.volume.output import VolumeOutput
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec, check_channels
from chunkflow_py.volume.pyramid import (
    FinerReader,
    isotropic_factors,
    level_factor,
    levels_for_screen,
    like_levels,
)
from chunkflow_py.volume.saver import VolumeSaver
from chunkflow_py.volume.volume_source import StoredVolume
from chunkflow_py.volume.write_checks import check_leave_to_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy as np

    from chunkflow_py.volume import Mode
    from chunkflow_py.volume import downsample as shrinking
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)

TASK_BYTES = 64 * 2**20  # largest task, uncompressed, unless one write unit is larger
_USUAL_BLOCK = Zyx(64, 64, 64)
_LARGE_BLOCK = 256**3  # voxels; larger blocks of a source are not adopted for the target
# Pages of image files are decoded whole, so a task covers whole pages up to this size.
_SLAB_BYTES = 256 * 2**20


@dataclass
class Conversion:
    """A copy of a volume to another address.

    If an attribute is ``None``, the target has the same property as the source.

    Attributes:
        source: address of the volume to copy.
        target: address of the copy.
        mip: resolution level of the source to copy; it becomes level 0 of the target.
        channels: channels of the source to copy, in the order that they get in the target.
        time: time point to copy; the target then has no time axis. ``None`` copies all time points.
        dtype: data type of the target.
        voxel_size_nm: voxel size of the target, nanometres, zyx.
        block_size: block size of the target, voxels, zyx.
        shard_size: shard size of the target, voxels, zyx.
        encoding: encoding of the blocks of the target.
        factor: downsampling factor between levels of the target, zyx. With ``None``, the factors
            are those of the source; if the source has only one level, `isotropic_factors` derives
            them from the voxel size.
        max_mip: coarsest level of the target. Levels above 0 are created empty, and the pipelines
            of `downsampling` fill them. With ``None``, an existing target keeps its levels. A new
            target gets one level for each level of the source that is coarser than *mip*. If the
            source has no such level, the target gets levels until the coarsest fits on a screen. An
            HDF5 file has only level 0.
        task_size: extent of a task, voxels, zyx.
        overwrite: whether to write also boxes that are already stored in the target.
        reading: options with which the source is opened.
        writing: options with which the target is opened.
        levels: number of levels above level 0 that the target has; set by `pipeline`.
    """

    source: str
    target: str
    mip: int = 0
    channels: tuple[int, ...] | None = None
    time: int | None = None
    dtype: np.dtype[Any] | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    block_size: Zyx | None = None
    shard_size: Zyx | None = None
    encoding: str | None = None
    factor: Zyx | None = None
    max_mip: int | None = None
    task_size: Zyx | None = None
    overwrite: bool = False
    reading: VolumeOptions = field(default_factory=VolumeOptions)
    writing: VolumeOptions = field(default_factory=VolumeOptions)
    levels: int = field(default=0, init=False)

    def spec(self, source: Volume) -> VolumeSpec:
        """Return the spec with which `pipeline` creates the target if the target does not exist."""
        check_channels(self.channels, source.channels, source.url)
        channels = source.channels
        if channels is not None and self.channels is not None:
            channels = len(self.channels)
        size_nm = self.voxel_size_nm or source.voxel_size_nm
        max_mip = self._max_mip(source, size_nm)
        spec = VolumeSpec(
            bounds=source.bounds,
            voxel_size_nm=size_nm,
            dtype=source.dtype if self.dtype is None else self.dtype,
            channels=channels,
            kind=source.kind,
            block_size=self.block_size or _block_size(source).low(source.bounds.size),
            encoding=self.encoding,
            shard_size=self.shard_size,
            times=None if self.time is not None else source.times,
            factor=self.factor or Zyx(2, 2, 2),
            max_mip=max_mip,
        )
        if self.factor is not None:
            return spec
        spec = replace(spec, first_factors=isotropic_factors(size_nm, max_mip))
        return like_levels(spec, self.source, self.mip, self.reading)

    def _max_mip(self, source: Volume, size_nm: tuple[float, float, float]) -> int:
        if self.max_mip is not None:
            return self.max_mip
        if Location.parse(self.target).format == "h5":  # has no levels
            return 0
        with contextlib.suppress(VolumeNotFoundError):
            return max(open_volume(self.target, opening=self.writing).mips)
        if coarser := sum(mip > self.mip for mip in source.mips):
            return coarser
        return levels_for_screen(source.bounds.size, size_nm, self.factor)

    def pipeline(self, *, dry_run: bool = False, **running: Any) -> Pipeline:
        """Create the target if it does not exist, and return the pipeline that fills it.

        Args:
            dry_run: whether only to read; the target is then neither created nor written.
            running: further keyword arguments for `Pipeline`.

        Raises:
            VolumeNotFoundError: the source does not exist.
            VolumeError: the target cannot be created, or it exists and does not match the source.
            ChunkError: the source lacks some of the channels to copy.
        """
        check_leave_to_write(Location.parse(self.target))
        source = open_volume(self.source, self.mip, opening=self.reading)
        spec = self.spec(source)
        self.levels = spec.max_mip
        target = self._target(spec, source, create=not dry_run)
        if target is not None:
            copied, overwrite = self.copied(source), self.overwrite
            self._record(target).begin(copied, overwrite=overwrite, dry_run=dry_run)
        unit = spec.shard_size or spec.block_size
        size = self.task_size or task_size(target.write_unit if target else unit, source)
        boxes = BoxGrid.covering(source.bounds, size, respect_stop=True)
        loader = VolumeLoader(
            StoredVolume(self.source, self.mip, options=self.reading),
            channels=self.channels,
            voxel_size_nm=self.voxel_size_nm,
            time=self.time,
        )
        saver = VolumeSaver(self.target, create=False, dtype=self.dtype, opening=self.writing)
        tasks = VolumeTasks(boxes, spec.times)
        operators = [Operator("load", "read", loader, loader, (), ("chunk",)), _saving(saver)]
        if target is not None and not self.overwrite:
            operators.insert(0, _skipping(StoredSkipper(self.target, opening=self.writing)))
        return Pipeline(operators, Source("tasks", tasks), dry_run=dry_run, **running)

    def fit_display(self) -> None:
        """Store colours and contrast windows for viewers in the metadata of the target.

        The colours are those of the source, and the contrast windows fit the intensities of the
        target. Only OME-Zarr stores this information; for other formats, the method does nothing.
        Call the method when all levels are written.

        Raises:
            VolumeError: the target cannot be read, or its metadata cannot be written.
        """
        if Location.parse(self.target).format != "zarr":
            return
        from chunkflow_py.volume.zarr.display_windows import fit_windows

        source = open_volume(self.source, self.mip, opening=self.reading)
        colors = tuple(getattr(source, "channel_colors", ()))
        if self.channels is not None and colors:
            colors = tuple(colors[channel] for channel in self.channels)
        known = len(colors) == (len(self.channels) if self.channels else source.channels or 1)
        fit_windows(self.target, self.writing, colors if known else ())

    def copied(self, source: Volume) -> dict[str, Any]:
        """Return a record of the copied source and its properties, without passwords.

        `CopyRecord` stores the record in the target, so that blocks of two sources do not mix.
        """
        place = Location.parse(self.source)
        address = place.store_url if place.dataset is None else f"{place.store_url}:{place.dataset}"
        return {
            "source": without_secrets(address),
            "mip": self.mip,
            "channels": list(self.channels or range(source.channels or 1)),
            "time": self.time,
            "dtype": str(source.dtype if self.dtype is None else self.dtype),
            "source dtype": str(source.dtype),
            "bounds": str(source.bounds),
            "times": source.times,
        }

    def _record(self, target: Volume) -> CopyRecord:
        dataset = getattr(target, "dataset", None)  # of an HDF5 file
        return CopyRecord(Location.parse(self.target), dataset, self.writing.access)

    def end(self, written: int, stored: int, total: int) -> None:
        """Log the numbers of tasks; if all boxes are stored, record that the copy is complete.

        Args:
            written: number of tasks that this run of the pipeline wrote.
            stored: number of tasks whose boxes were already stored.
            total: number of all tasks.
        """
        if written + stored == total:
            copied = self.copied(open_volume(self.source, self.mip, opening=self.reading))
            self._record(open_volume(self.target, opening=self.writing)).end(copied)
        before = "all" if stored == total else f"{stored} of"
        tasks = "task" if written == 1 else "tasks"
        target = without_secrets(self.target)
        logger.info(
            "%s: wrote %d %s; %s %d were already stored", target, written, tasks, before, total
        )

    def _target(self, spec: VolumeSpec, source: Volume, *, create: bool) -> Volume | None:
        places = (Location.parse(self.source), self.mip), (Location.parse(self.target), 0)
        if same_array(*(level_name(place, mip) for place, mip in places)):
            msg = f"{self.source} cannot be converted to itself; choose another target"
            raise VolumeError(msg)
        try:
            mode: Mode = "r+" if create else "r"
            target = open_volume(self.target, mode=mode, opening=self.writing)
        except VolumeNotFoundError:
            if not create:
                return None
            named = kept_names(source, self.channels, self.target)
            return create_volume(spec, self.target, opening=self.writing, **named)
        for name, existing, required in (
            ("bounds", target.bounds, spec.bounds),
            ("number of channels", target.channels or 1, spec.channels or 1),
            ("number of time points", target.times or 1, spec.times or 1),
        ):
            if existing != required:
                self._refuse(name, existing, required)
        sizes = zip(target.voxel_size_nm, spec.voxel_size_nm, strict=True)
        if not all(isclose(a, b, rel_tol=1e-6) for a, b in sizes):
            self._refuse("voxel size", target.voxel_size_nm, f"{spec.voxel_size_nm} nm (zyx)")
        if None not in (target.kind, spec.kind) and target.kind != spec.kind:
            self._refuse("kind", target.kind, spec.kind)
        return target

    def _refuse(self, name: str, existing: object, required: object) -> NoReturn:
        msg = (
            f"{without_secrets(self.target)} already exists with {name} {existing}, but "
            f"{without_secrets(self.source)} has {name} {required}; choose another target"
        )
        raise VolumeError(msg)


def downsampling(
    url: str,
    mip: int,
    *,
    mode: shrinking.Mode = "auto",
    sparse: bool = False,
    size: Zyx | None = None,
    resume: bool = False,
    opening: VolumeOptions | None = None,
    **running: Any,
) -> Pipeline:
    """Return the pipeline that fills level *mip* from the next finer level.

    Args:
        url: address of the volume, in which level *mip* and the next finer level must exist.
        mip: level to fill.
        mode: downsampling mode; see `chunkflow_py.volume.downsample.downsample`.
        sparse: for labels, whether to ignore the label 0. A voxel then becomes 0 only if all its
            voxels at the finer level are 0.
        size: extent of a task, voxels of level *mip*, zyx; a multiple of the write unit of the
            level.
        resume: whether to skip tasks whose boxes are already stored.
        opening: options with which the volume is opened.
        running: further keyword arguments for `Pipeline`.

    Raises:
        VolumeNotFoundError: the volume lacks one of the levels.
        VolumeError: the factor between the levels is not a whole number.
        AlignmentError: *size* is not a multiple of the write unit of level *mip*.
    """
    opening = opening or VolumeOptions()
    fine = open_volume(url, mip - 1, opening=opening)
    coarse = open_volume(url, mip, opening=opening)
    if same_array(*(level_name(Location.parse(url), level) for level in (mip - 1, mip))):
        msg = f"mip {mip - 1} and mip {mip} of {url} are the same array; correct the metadata"
        raise VolumeError(msg)
    factor = level_factor(fine, coarse)
    size = size or task_size(coarse.write_unit, coarse, TASK_BYTES // factor.product())
    _check_size(size, coarse, mip)
    reader = FinerReader(fine, factor)
    shrink = Downsampler(factor, mode, sparse, coarse_tasks=True)
    operators = [
        Operator("load", "read", reader, reader, (), ("chunk",)),
        Operator("downsample", "compute", shrink, shrink, ("chunk",), ("chunk",)),
        _saving(VolumeSaver(url, mip, create=False, opening=opening)),
    ]
    if resume:
        operators.insert(0, _skipping(StoredSkipper(url, mip, opening=opening)))
    boxes = BoxGrid.covering(coarse.bounds, size, respect_stop=True)
    return Pipeline(operators, Source("tasks", VolumeTasks(boxes, coarse.times)), **running)


def _check_size(size: Zyx, level: Volume, mip: int) -> None:
    unit, extent = level.write_unit, level.bounds.size
    if any(n % u and n < e for n, u, e in zip(size, unit, extent, strict=True)):
        nearest = -(-size // unit) * unit
        msg = (
            f"a task size of {size} is not a multiple of the block or shard size {unit} of "
            f"{level.url} at mip {mip} (zyx, voxels of this level); use the task size {nearest}"
        )
        raise AlignmentError(msg)


def run_all(pipeline: Pipeline) -> Iterator[Task]:
    """Check a pipeline, run it over all its tasks, and yield the failed tasks.

    Raises:
        AlignmentError: two tasks would write to the same block or shard.
        ChunkflowError: another check of the pipeline failed before the first task.
    """
    pipeline.check()
    tasks = pipeline.run()
    try:
        for task in tasks:
            if task.failed:
                yield task
            del task
    finally:
        tasks.close()


def task_size(unit: Zyx, like: Volume, most_bytes: int = TASK_BYTES) -> Zyx:
    """Return a task size that is a multiple of write units and, if possible, of input blocks.

    If the input is an image file, a task covers whole pages of the file, as long as the task has at
    most 256 MiB. In this case, *most_bytes* may be exceeded.

    Args:
        unit: write unit of the output volume, voxels, zyx.
        like: input volume; only its bounds, block size and bytes per voxel are used.
        most_bytes: limit of the size of a task in bytes; a task of a single write unit may be
            larger.
    """
    voxel_bytes, sections = _voxel_bytes(like), getattr(like, "is_sections", False)
    size = unit
    while True:
        # Double the axis along which the task covers the fewest blocks; if several axes have the
        # fewest blocks, the shortest of them.
        open_axes = [axis for axis in range(3) if size[axis] < like.bounds.size[axis]]
        if not open_axes:
            return size
        axis = min(open_axes, key=lambda a: (size[a] / like.block_size[a], size[a]))
        larger = Zyx(*(2 * n if a == axis else n for a, n in enumerate(size)))
        cuts_page = sections and axis and size[axis] < like.block_size[axis]
        most = _SLAB_BYTES if cuts_page else most_bytes
        if larger.low(like.bounds.size).product() * voxel_bytes > most:
            return size
        size = larger


def _block_size(source: Volume) -> Zyx:
    """Return the default block size of a copy of *source*, voxels, zyx."""
    block = source.block_size
    if getattr(source, "is_sections", False):
        # As many sections as fit into a task, and about as many voxels as in a usual block.
        sections = _SLAB_BYTES // (block.product() * _voxel_bytes(source))
        halvings = 6 - min(6, max(0, sections.bit_length() - 1))
        return _USUAL_BLOCK // (2**halvings, 1, 1) * (1, 2 ** (halvings // 2), 2 ** (halvings // 2))
    return block if block.product() <= _LARGE_BLOCK else _USUAL_BLOCK


def _voxel_bytes(volume: Volume) -> int:
    return volume.dtype.itemsize * (volume.channels or 1)


@dataclass
class VolumeTasks(SourceBase):
    """The tasks of a whole volume, ordered by time point.

    Attributes:
        boxes: boxes of the tasks of one time point.
        times: number of time points; ``None`` if the volume has no time axis.
    """

    boxes: BoxGrid = field(metadata=HOOK)
    times: int | None = None

    def __len__(self) -> int:
        return len(self.boxes) * (self.times or 1)

    def __iter__(self) -> Iterator[Task]:
        points = (None,) if self.times is None else range(self.times)
        return (Task(Region(box, time)) for time in points for box in self.boxes)


def _saving(saver: VolumeSaver) -> Operator:
    body = VolumeOutput(saver, name="save")
    return Operator("save", "write", body, body, ("chunk",))


def _skipping(body: StoredSkipper) -> Operator:
    return Operator("resume", "read", body, body)

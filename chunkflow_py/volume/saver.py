"""Write chunks into one volume, which is created if it does not exist.

Properties of a new volume:

| property               | source                                                                 |
|------------------------|------------------------------------------------------------------------|
| bounds                 | an option, else the domain of the pipeline's input, else the box       |
|                        | around all tasks, else the domain of the first chunk                   |
| block size             | an option, else a size that divides tasks into whole blocks, if        |
|                        | possible (see `fitting_block`)                                         |
| time points            | an option, else the input of the pipeline; without an option, a volume |
|                        | has a time axis only if the tasks write to a time index                |
| dtype, channels, kind, | options, else the first chunk. `create_output` runs before the first   |
| voxel size             | chunk, so it uses the known properties of the pipeline's output.       |

The first block begins at the start of the bounds. If a task boundary would cut a block, and no
option gives the bounds or the block size, the bounds become the box around all tasks.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import AXES, BoundingBox, BoxGrid, Zyx, hull_of, same_size_nm
from chunkflow_py.errors import (
    ChunkError,
    ChunkflowError,
    GeometryError,
    OptionError,
    VolumeError,
    VolumeNotFoundError,
)
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.engine.block_sizes import fitting_block
from chunkflow_py.volume.location import Location, level_name, volume_name
from chunkflow_py.volume.new_volume import known_names, plan_blocks, shape_bounds, times_for
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec
from chunkflow_py.volume.write_checks import (
    check_added_level,
    check_asked,
    check_leave_to_write,
    check_level,
    check_new,
    check_room,
    check_time_chosen,
    check_voxels,
    fitted,
)
from chunkflow_py.volume.write_unit_check import check_alignment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from chunkflow_py.core.chunk import Chunk, Voxels
    from chunkflow_py.store.store_protocol import Stored
    from chunkflow_py.volume.protocol import Volume

    VoxelSize = tuple[float, float, float]

logger = logging.getLogger(__name__)

_BLOCK_FORMATS = ("zarr", "n5", "precomputed")  # whose chunks are written block by block


@dataclass
class VolumeSaver:
    """Writes chunks to one level of a volume; may be called by several threads at the same time.

    Attributes:
        url: address of the volume.
        mip: resolution level to write.
        format: format of the volume, if the address does not name it.
        create: whether to create a missing volume.
        bounds: box of all voxels of a new volume (default: see the docstring of the module).
        voxel_size_nm: voxel size of a new volume, nanometres, zyx (default: that of the chunk).
        dtype: dtype to which voxels are converted before they are written.
        block_size: extent of a block of a new volume, voxels, zyx.
        shard_size: extent of a shard of a new volume, voxels, zyx.
        encoding: compression of a new volume.
        factor: downsampling from each level of a new volume to the next, zyx.
        time: time index to write (default: that of the task).
        times: number of time points of a new volume.
        opening: options for reading and writing the volume.
        creating: settings of the format, which are passed to `create_volume`.
        exactly: whether an existing volume must have the block size, shard size, encoding and
            number of time points that are given as attributes.
        announced: volumes that earlier operators will create: address -> function. The function
            returns the description of level 0, or ``None`` if only the first chunk determines it.
    """

    url: str
    mip: int = 0
    format: str | None = None
    create: bool = True
    bounds: BoundingBox | None = None
    voxel_size_nm: tuple[float, float, float] | None = None
    dtype: np.dtype[Any] | None = None
    block_size: Zyx | None = None
    shard_size: Zyx | None = None
    encoding: str | None = None
    factor: Zyx = Zyx(2, 2, 2)
    time: int | None = None
    times: int | None = None
    opening: VolumeOptions = field(default_factory=VolumeOptions)
    creating: Mapping[str, Any] = field(default_factory=dict)
    exactly: bool = True
    announced: Mapping[str, Callable[[], VolumeSpec | None]] = field(default_factory=dict)
    volume: Volume | None = field(default=None, init=False)
    _boxes: BoxGrid | Sequence[BoundingBox] | None = field(default=None, init=False, repr=False)
    _voxels: Voxels | None = field(default=None, init=False, repr=False)
    _input_times: int | None = field(default=None, init=False, repr=False)
    _input_size_nm: VoxelSize | None = field(default=None, init=False, repr=False)
    _has_warned_of_cut: bool = field(default=False, init=False, repr=False)
    _planned: tuple[BoundingBox, Zyx] | None = field(default=None, init=False, repr=False)
    _lock: Any = field(default_factory=Lock, init=False, repr=False)

    @property
    def place(self) -> Location:
        """The location of the volume."""
        return Location.parse(self.url)

    @property
    def destination(self) -> str:
        """Canonical name of the level that is written."""
        return level_name(self.place, self.mip)

    def prepare(
        self,
        boxes: BoxGrid | Sequence[BoundingBox] | None,
        domain: BoundingBox | None,
        voxels: Voxels | None = None,
        times: int | None = None,
        voxel_size_nm: VoxelSize | None = None,
        *,
        has_tasks: bool = True,
    ) -> None:
        """Check, before the first task, that tasks can write and do not share write units.

        Args:
            boxes: for each task, the box that the task has when it arrives at the saver, if known.
            domain: bounds of the volume that the pipeline reads, if known.
            voxels: properties of the voxels that will be written, if known.
            times: length of the time axis of the volume that the pipeline reads, or ``None`` if
                this volume has no time axis.
            voxel_size_nm: size of the voxels that will be written, nanometres, zyx, if known.
            has_tasks: whether the pipeline has tasks, each of which may select a time index.

        Raises:
            OptionError: the volume has several time points, but neither an option nor a task
                selects a time index.
            ChunkError: the volume cannot store the voxels of the pipeline.
            VolumeNotFoundError: the volume does not exist and may not be created.
            VolumeError: the disk is full or read-only, the volume cannot be created with these
                options, or the volume exists with other properties.
            AlignmentError: two tasks would write to one write unit; the message gives task sizes
                that work.
            GeometryError: no task touches the volume.
        """
        self._boxes, self._voxels = boxes, voxels
        self._input_times, self._input_size_nm = times, voxel_size_nm
        check_leave_to_write(self.place)
        self.volume = self._open()
        if self.volume is not None:
            self._check_volume(self.volume)
            if self.time is None and not has_tasks:
                check_time_chosen(self.volume.times, self.url)
            return
        if self.time is None and not has_tasks:
            check_time_chosen(self.times, self.url)
        if self._is_announced:
            spec = self.announced[volume_name(self.place)]()
            if spec is None:
                return  # checked once the volume exists
            spec = spec.level(self.mip)
            unit, bounds = spec.shard_size or spec.block_size, spec.bounds
            self._check_asked(spec)
            if voxels is not None:
                check_voxels(voxels, self.dtype, spec.dtype, spec.channels, self.url)
        else:
            self._times_for(self.time)
            known = self.bounds or domain or hull_of(boxes)
            if known is None:
                self._check_new(None, self.block_size)
                return
            bounds, block = known, self.block_size
            if block is None:
                bounds, block = plan_blocks(boxes, known, self.url, fixed=self.bounds is not None)
            self._planned = bounds, block
            self._check_new(bounds, block)
            unit = self.shard_size or block
        self._check_boxes(bounds, unit)

    def create_output(self) -> str | None:
        """Create a missing volume before the first chunk, from the arguments of `prepare`.

        Returns:
            The address of the volume if this call has created the volume, else ``None``.

        Raises:
            OptionError: a property of the volume depends on the first chunk.
            VolumeError: the volume cannot be created, or another process has created it with other
                properties.
        """
        if self.volume is None and (existing := self._open()) is not None:
            self._check_volume(existing)
            self.volume = existing
        if self.volume is not None:
            return None
        if self._is_announced:
            raise VolumeNotFoundError(self._not_announced())
        size_nm = self.voxel_size_nm or self._input_size_nm
        known = {
            "bounds": self._planned,
            "type and channels": self._voxels,
            "voxel size": size_nm,
        }
        missing = [name for name, value in known.items() if value is None]
        if missing or self._planned is None:
            msg = (
                f"{self.url} does not exist, and its {' and '.join(missing)} will be known only "
                "with the first chunk; create the volume before the run with create-volume, and "
                "give these properties as options or with --like"
            )
            raise OptionError(msg)
        # Tasks need not name the time of an input with a single time point.
        times = self.times or (self._input_times if (self._input_times or 0) > 1 else None)
        spec = self._spec(*self._planned, self._voxels, size_nm, times)
        self.volume = self._created(spec)
        return self.place.url

    def stored_type(self) -> str | None:
        """Return the dtype of the stored voxels; ``None`` if it is not known yet."""
        if self.dtype is not None:
            return str(self.dtype)
        if self._is_announced:
            spec = self.announced[volume_name(self.place)]()
            return None if spec is None else str(spec.dtype)
        try:
            return str(
                open_volume(self.url, self.mip, format=self.format, opening=self.opening).dtype
            )
        except ChunkflowError:  # `prepare` raises it
            return None

    def write_bytes(self, size: Zyx) -> int | None:
        """Return the memory in bytes that a write needs besides the chunk; ``None`` if unknown.

        If a volume is not written block by block, a write is assumed to need one copy of the chunk.

        Args:
            size: extent of the chunk, voxels, zyx.
        """
        import numpy as np

        from chunkflow_py.volume.engine.block_volume import BlockVolume, write_bytes

        voxels, volume = self._voxels, self.volume
        if voxels is None:
            return None
        dtype = np.dtype(voxels.dtype) if self.dtype is None else self.dtype
        if volume is not None:
            dtype = volume.dtype
        copy = size.product() * voxels.channels * dtype.itemsize
        needed = copy
        if isinstance(volume, BlockVolume):
            needed = volume.write_bytes(size)
        elif self._planned and (self.place.format or self.format) in _BLOCK_FORMATS:
            block = self._planned[1]
            voxel = voxels.channels * dtype.itemsize
            needed = write_bytes(size, block, self.shard_size or block, voxel)
        # Voxels of another dtype are converted first.
        return needed if dtype == voxels.dtype else needed + copy

    def known_bounds(self) -> BoundingBox | None:
        """Return the bounds of the volume; ``None`` if they are not known yet."""
        if self.volume is not None:
            return self.volume.bounds
        return None if self._planned is None else self._planned[0]

    def __call__(self, chunk: Chunk, time: int | None = None) -> tuple[Stored, ...]:
        """Write the part of *chunk* inside the bounds of the volume; return the stored objects.

        Voxels are converted to the dtype of the volume if no value changes by more than rounding.
        Floats can be converted to another float type, integers to a wider integer type, and
        probabilities and affinities to uint8: p becomes 255·p, rounded half to even.

        Args:
            chunk: the chunk to write.
            time: time index of the task; the attribute `time` overrides this argument.

        Raises:
            ChunkflowError: the errors of `Volume.write` and of `create_volume`.
        """
        from chunkflow_py.volume.conversion import converted

        time = time if self.time is None else self.time
        volume = self.volume_for(chunk, time)
        _check_touch(chunk.bbox, volume.bounds, self.url)
        if self.voxel_size_nm is None:
            self._check_size(chunk.voxel_size_nm, volume)
        inside = chunk.bbox.intersection(volume.bounds)
        if inside != chunk.bbox:
            if not self._has_warned_of_cut:
                logger.warning(
                    "chunk %s extends beyond %s, whose bounds are %s: voxels outside the bounds "
                    "are not written (reported once)", chunk.bbox, self.url, volume.bounds,
                )  # fmt: skip
                self._has_warned_of_cut = True
            chunk = chunk.cut(inside)
        return volume.write(fitted(converted(chunk, self.dtype), volume), time=time)

    def left_out(self, chunk: Chunk, time: int | None = None) -> tuple[Stored, ...]:
        """Return records of the objects that a write of *chunk* would store; write nothing.

        The records tell the ledger that these objects are missing on purpose.
        """
        from chunkflow_py.store.store_protocol import Stored

        time = time if self.time is None else self.time
        if self.volume is None:
            return ()
        inside = chunk.bbox.intersection(self.volume.bounds)
        return tuple(Stored(url) for url in self.volume.objects(inside, time=time))

    def volume_for(self, chunk: Chunk, time: int | None = None) -> Volume:
        """Return the volume; if the volume does not exist, create it with properties of *chunk*."""
        with self._lock:
            if self.volume is None:
                self.volume = self._open()
                if self.volume is not None and self._is_announced:
                    self._check_volume(self.volume)
                self.volume = self.volume or self._create(chunk, time)
            return self.volume

    @property
    def _is_announced(self) -> bool:
        return volume_name(self.place) in self.announced

    def _check_volume(self, volume: Volume) -> None:
        if self._voxels is not None:
            check_voxels(self._voxels, self.dtype, volume.dtype, volume.channels, self.url)
        if self.time is not None and not 0 <= self.time < (volume.times or 0):
            there = "no time axis"
            if volume.times is not None:
                there = f"the time indices 0 to {volume.times - 1}"
            msg = f"{self.url} has {there}, but --time is {self.time}; change or leave out --time"
            raise VolumeError(msg)
        self._check_asked(volume)
        if self.voxel_size_nm is None:
            self._check_size(self._input_size_nm, volume)
        self._check_boxes(volume.bounds, volume.write_unit)

    def _check_size(self, size_nm: VoxelSize | None, volume: Volume) -> None:
        """Refuse voxels whose size differs from that of the existing volume."""
        if size_nm is None or same_size_nm(size_nm, volume.voxel_size_nm):
            return
        msg = (
            f"the pipeline makes voxels of {size_nm} nm, but {self.url} has voxels of "
            f"{volume.voxel_size_nm} nm (zyx) at mip {self.mip}; write to another volume or mip, "
            "or correct the size with the option --voxel-size of the operator that loads the chunk"
        )
        raise ChunkError(msg)

    def _check_asked(self, volume: Volume | VolumeSpec) -> None:
        if not self.exactly:
            return
        check_asked(
            volume,
            self.url,
            block_size=self.block_size,
            shard_size=self.shard_size,
            encoding=self.encoding,
            times=self.times,
        )

    def _check_new(self, bounds: BoundingBox | None, block: Zyx | None) -> None:
        """Refuse a new volume that cannot be created with the properties known so far."""
        block = block or Zyx(64, 64, 64)
        bounds = bounds or shape_bounds(self.shard_size or block)
        check_new(
            self._spec(bounds, block, self._voxels, None, self._times_for(self.time)),
            self.url,
            self.mip,
            format=self.format,
            dtype_known=self.dtype is not None or self._voxels is not None,
            **self.creating,
        )

    def _spec(
        self,
        bounds: BoundingBox,
        block: Zyx,
        voxels: Voxels | None,
        voxel_size_nm: VoxelSize | None,
        times: int | None,
    ) -> VolumeSpec:
        import numpy as np

        has_axis = voxels is not None and (voxels.channels > 1 or voxels.has_channel_axis)
        return VolumeSpec(
            bounds=bounds,
            voxel_size_nm=self.voxel_size_nm or voxel_size_nm or (1.0, 1.0, 1.0),
            dtype=self.dtype or np.dtype("uint8" if voxels is None else voxels.dtype),
            channels=voxels.channels if voxels is not None and has_axis else None,
            kind=None if voxels is None else voxels.kind,
            block_size=block,
            encoding=self.encoding,
            shard_size=self.shard_size,
            times=times,
            factor=self.factor,
        )

    def _check_boxes(self, bounds: BoundingBox, unit: Zyx) -> None:
        if not self._boxes:
            return
        region = hull_of(self._boxes)
        _check_touch(region, bounds, self.url)
        check_alignment(self._boxes, unit, bounds, self.url)
        if region is not None and self._voxels is not None and self.volume is None:
            voxel = self._voxel_bytes(self._voxels)
            written = region.intersection(bounds).voxels
            check_room(self.place, voxel * (self.block_size or unit).product(), voxel * written)

    def _voxel_bytes(self, voxels: Voxels) -> int:
        import numpy as np

        dtype = np.dtype(voxels.dtype) if self.dtype is None else self.dtype
        return voxels.channels * dtype.itemsize

    def _times_for(self, time: int | None) -> int | None:
        return times_for(time, self.times, self._input_times, self.url)

    def _open(self) -> Volume | None:
        try:
            return open_volume(self.url, self.mip, "r+", format=self.format, opening=self.opening)
        except VolumeNotFoundError as error:
            check_level(error, self.url, self.mip, self.format, self.opening)
            if self.create or self._is_announced:
                return None
            msg = f"{error}, or leave out --no-create"
            raise VolumeNotFoundError(msg) from error

    def _create(self, chunk: Chunk, time: int | None) -> Volume:
        from chunkflow_py.core.chunk import Voxels
        from chunkflow_py.volume.conversion import converted

        if self._is_announced:
            raise VolumeNotFoundError(self._not_announced())
        bounds, block = self._planned or (self.bounds or chunk.domain, self.block_size)
        block = block or fitting_block([chunk.bbox], bounds)
        voxels = Voxels(str(chunk.dtype), chunk.channels, chunk.kind, chunk.ndim == 4)
        spec = self._spec(bounds, block, voxels, chunk.voxel_size_nm, self._times_for(time))
        # check that the chunk can be written before the volume is created
        inside = chunk.bbox.intersection(bounds)
        _check_touch(chunk.bbox, bounds, self.url)
        check_alignment([inside], self.shard_size or block, bounds, self.url)
        converted(chunk.cut(inside), spec.dtype)
        return self._created(spec)

    def _created(self, spec: VolumeSpec) -> Volume:
        check_added_level(spec, self.url, self.mip, self.format, self.opening)
        creating = {**known_names(self._voxels, spec, self.url, self.format), **self.creating}
        volume = create_volume(
            spec, self.url, self.mip, format=self.format, opening=self.opening, **creating
        )
        logger.info(
            "created %s: %s, %s, block size %s", self.url, spec.bounds, spec.dtype, spec.block_size
        )
        return volume

    def _not_announced(self) -> str:
        return (
            f"{self.url} does not exist, although an earlier operator should have created this "
            "volume; create the volume before the run with create-volume"
        )


def _check_touch(box: BoundingBox | None, bounds: BoundingBox, url: str) -> None:
    if box is not None and box.intersection(bounds).is_empty and not box.is_empty:
        msg = (
            f"box {box} lies outside of {url}, whose bounds are {bounds} "
            f"({''.join(AXES)}, voxels); use tasks inside these bounds"
        )
        raise GeometryError(msg)

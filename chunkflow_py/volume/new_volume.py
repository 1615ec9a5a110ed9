"""Describe and create new volumes: from options, from another volume or from the first chunk.

`VolumeCreator` is the operator create-volume. `VolumeCreator` and
`chunkflow_py.volume.saver.VolumeSaver` use the functions of this module to choose block sizes, time
points and channel names.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx, hull_of
from chunkflow_py.core.operator_base import HOOK, OperatorBase, hook
from chunkflow_py.errors import AlignmentError, OptionError, VolumeError
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.engine.block_sizes import fitting_block, shard_for_memory
from chunkflow_py.volume.location import Location, volume_name
from chunkflow_py.volume.protocol import VolumeOptions, VolumeSpec, names_of
from chunkflow_py.volume.write_checks import check_leave_to_write, check_new
from chunkflow_py.volume.write_unit_check import check_alignment

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np

    from chunkflow_py.core.chunk import Chunk, Kind, Voxels
    from chunkflow_py.core.task import Task
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)


@dataclass
class VolumeCreator(OperatorBase):
    """Creates a volume before the first task, or when the first chunk arrives.

    The first chunk is needed if neither the options nor *like* give all properties of the volume.

    Attributes:
        url: address of the new volume.
        format: format of the volume, if the address does not name it.
        input_name: name of the chunk that supplies missing properties if *like* is not given.
        like: address of an existing volume that supplies properties not given by options.
        like_mip: level of *like*.
        like_opening: options for opening *like*.
        volume_size, voxel_offset, block_size, shard_size: see `VolumeSpec`; voxels, zyx.
        factor: downsampling from each level to the next, zyx (default: as in *like*, else 2, 2, 2).
        task_memory: memory for one task, in bytes; `shard_for_memory` chooses shards that fit.
        voxel_size: size of a voxel, nanometres, zyx.
        data_type, channel_num, kind, encoding, max_mip, times: see `VolumeSpec`.
        overwrite: whether to replace the metadata of an existing volume that has other properties.
        creating: settings of the format, which are passed to `create_volume`.
        opening: options for reading and writing the volume.
        announced: volumes that operators of the pipeline will create. The keys are addresses; the
            values are functions that return the description of the volume. This operator adds
            its own volume.
        tell: function that shows the user a generate-tasks command with one shard per task.
        command: name of the operator, for messages.
    """

    url: str
    format: str | None = None
    input_name: str = "chunk"
    like: str | None = None
    like_mip: int = 0
    like_opening: VolumeOptions = field(default_factory=VolumeOptions)
    volume_size: Zyx | None = None
    voxel_offset: Zyx | None = None
    voxel_size: tuple[float, float, float] | None = None
    data_type: str | None = None
    channel_num: int | None = None
    kind: Kind | None = None
    block_size: Zyx | None = None
    shard_size: Zyx | None = None
    task_memory: int | None = None
    encoding: str | None = None
    factor: Zyx | None = None
    max_mip: int = 0
    times: int | None = field(default=None, metadata=HOOK)
    overwrite: bool = False
    creating: Mapping[str, Any] = field(default_factory=dict)
    opening: VolumeOptions = field(default_factory=VolumeOptions)
    announced: dict[str, Callable[[], VolumeSpec | None]] = field(default_factory=dict)
    tell: Callable[[str], None] = logger.info
    command: str = "create-volume"
    _done: bool = field(default=False, init=False, repr=False)
    _is_new: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Add this volume to *announced*, so that later operators know of it before it exists."""
        self.announced[volume_name(Location.parse(self.url))] = self.known_spec

    @property
    def _size_known(self) -> bool:
        return self.voxel_size is not None or self.model is not None

    @cached_property
    def model(self) -> Volume | None:
        """The volume *like*, opened on first use; ``None`` if *like* is not given."""
        if self.like is None:
            return None
        return open_volume(self.like, self.like_mip, opening=self.like_opening)

    def _missing_options(self) -> list[str]:
        """Return the missing options whose values a chunk can supply."""
        if self.model is not None:
            return []
        given = {
            "--volume-size": self.volume_size,
            "--voxel-offset": self.voxel_offset,
            "--voxel-size": self.voxel_size,
            "--data-type": self.data_type,
            "--channel-num": self.channel_num,
            "--block-size": self.block_size,
        }
        return [option for option, value in given.items() if value is None]

    def known_spec(self) -> VolumeSpec | None:
        """Return the description of the volume, or ``None`` if it may depend on a chunk."""
        return None if self._missing_options() else self.spec(None)

    def spec(self, chunk: Chunk | None) -> VolumeSpec:
        """Return the description of the volume, with properties from options, *like* and *chunk*.

        Raises:
            OptionError: the extent or the dtype is unknown.
        """
        import numpy as np

        source: Any = self.model or chunk
        if source is None and (self.volume_size is None or self.data_type is None):
            missing = "--volume-size" if self.volume_size is None else "--data-type"
            msg = f"{self.command} needs {missing}, as no chunk supplies the value; give {missing}"
            raise OptionError(msg)
        whole = BoundingBox(Zyx(0, 0, 0), Zyx(1, 1, 1))
        if source is not None:
            whole = source.domain if self.model is None else source.bounds
        bounds = BoundingBox.from_size(
            whole.start if self.voxel_offset is None else self.voxel_offset,
            self.volume_size or whole.size,
        )
        channels = self.channel_num or (1 if source is None else source.channels or 1)
        dtype = np.dtype(self.data_type) if self.data_type else source.dtype
        same = source is not None and (dtype, channels) == (source.dtype, source.channels or 1)
        spec = VolumeSpec(
            bounds,
            self.voxel_size or ((1.0, 1.0, 1.0) if source is None else source.voxel_size_nm),
            dtype,
            None if channels == 1 else channels,
            self.kind or (source.kind if same else None),
            self.block_size or fitting_block(None, bounds),
            self.encoding,
            self.shard_size,
            self.times or (None if self.model is None else self.model.times),
            self.factor or Zyx(2, 2, 2),
            self.max_mip,
        )
        if self.like is not None and self.factor is None:
            from chunkflow_py.volume.pyramid import like_levels

            spec = like_levels(spec, self.like, self.like_mip, self.like_opening)
        return spec if self.task_memory is None else replace(spec, shard_size=self._shard(spec))

    def _shard(self, spec: VolumeSpec) -> Zyx:
        return shard_for_memory(
            spec.block_size,
            spec.bounds.size,
            memory_bytes=self.task_memory or 0,
            input_bytes=1 if self.model is None else _voxel_bytes(self.model),
            output_bytes=_voxel_bytes(spec),
        )

    def _settings(self, spec: VolumeSpec) -> dict[str, Any]:
        same = self.model is not None and (self.model.channels or 1) == (spec.channels or 1)
        kept = kept_names(self.model, None, self.url, self.format) if same else {}
        return {**kept, **self.creating}

    @hook
    def prepare(self, _: object) -> None:
        """Refuse a volume that cannot be created.

        Raises:
            VolumeError: the folder is read-only, or the format cannot store such a volume.
            OptionError: *overwrite* is set for a dataset of an HDF5 file, which cannot be replaced.
        """
        place = Location.parse(self.url)
        if self.overwrite and place.format == "h5":
            msg = (
                f"{self.url} is in an HDF5 file, where datasets cannot be replaced; leave out "
                "--overwrite"
            )
            raise OptionError(msg)
        check_leave_to_write(place)
        if (spec := self.known_spec()) is not None:
            settings = self._settings(spec)
            check_new(spec, self.url, format=self.format, **settings)

    @property
    @hook
    def single_writer(self) -> bool:
        """Whether only one process at a time may write to the volume."""
        return (Location.parse(self.url).format or self.format) == "h5"

    @hook
    def create_output(self) -> str | None:
        """Create the volume before the first task; return its address if it is new.

        Raises:
            OptionError: the volume may depend on a chunk; the message names the options to give
                instead.
        """
        if missing := self._missing_options():
            msg = (
                f"{self.command} must create {self.url} before the first task, but without "
                f"{', '.join(missing)}, properties of the volume depend on the first chunk; give "
                "these options, or create the volume before the run"
            )
            raise OptionError(msg)
        self.__enter__()
        return Location.parse(self.url).url if self._is_new else None

    def __enter__(self) -> VolumeCreator:
        """Create the volume, unless it may depend on a chunk."""
        spec = self.known_spec()
        if spec is not None and not self._done:
            self._create(spec, size_known=self._size_known)
        return self

    def __exit__(self, *_: object) -> None:
        """Do nothing, because no file is open."""

    def __call__(self, task: Task) -> Task:
        """Create the volume when the first task arrives."""
        if not self._done:
            has_chunk = self.input_name in task.items
            spec = self.spec(task.chunk(self.input_name) if has_chunk else None)
            self._create(spec, size_known=self._size_known or has_chunk)
        return task

    def _create(self, spec: VolumeSpec, *, size_known: bool) -> None:
        if not size_known:
            logger.warning(
                "%s: the voxel size of %s is unknown, so 1 nm along z, y and x is assumed; give "
                "--voxel-size", self.command, self.url,
            )  # fmt: skip
        self._is_new = not self._exists()
        create_volume(
            spec,
            self.url,
            format=self.format,
            opening=self.opening,
            **self._settings(spec),
            **({"overwrite": True} if self.overwrite else {}),
        )
        logger.info("created %s: %s, %s", self.url, spec.bounds, spec.dtype)
        if self.task_memory is not None and spec.shard_size is not None:
            z, y, x = spec.shard_size
            self.tell(f"generate-tasks --volume-path {self.url} --chunk-size {z} {y} {x}")
        self._done = True

    def _exists(self) -> bool:
        try:
            open_volume(self.url, format=self.format, opening=self.opening)
        except VolumeError:  # it does not exist, or is damaged and will be replaced
            return False
        return True


def plan_blocks(
    boxes: BoxGrid | Sequence[BoundingBox] | None, bounds: BoundingBox, url: str, *, fixed: bool
) -> tuple[BoundingBox, Zyx]:
    """Return bounds and block size of a new volume that tasks will write.

    Args:
        boxes: boxes of the tasks, if known.
        bounds: requested box of all voxels of the volume.
        url: address of the volume, for messages.
        fixed: whether the volume must have exactly *bounds*. If not, and if the tasks do not align
            with blocks that begin at the start of *bounds*, the volume covers only the box around
            all tasks, clipped to *bounds*.
    """
    block = fitting_block(boxes, bounds)
    region = hull_of(boxes)
    if not fixed and region is not None:
        try:
            check_alignment(boxes or (), block, bounds, url)
        except AlignmentError:
            region = region.intersection(bounds)
            logger.warning(
                "%s will cover only %s, the region of the tasks: the tasks do not align with "
                "blocks that begin where the input begins, at %s (zyx, voxels)",
                url, region, bounds.start,
            )  # fmt: skip
            return region, fitting_block(boxes, region)
    return bounds, block


def times_for(time: int | None, asked: int | None, of_input: int | None, url: str) -> int | None:
    """Return the length of the time axis of a new volume.

    Args:
        time: time index that will be written, or ``None``.
        asked: length that an option requests, or ``None`` if no option requests a length.
        of_input: length of the time axis of the pipeline's input, or ``None`` if the input has no
            time axis.
        url: address of the volume, for messages.

    Raises:
        OptionError: *time* is beyond the end of the time axis, or the length of the axis is not
            known.
    """
    times = asked or (None if time is None else of_input)
    if time is not None and time >= (times or 0):
        known = "is not known" if times is None else f"is {times}"
        msg = (
            f"the pipeline writes time index {time}, but the number of time points of the new "
            f"volume {url} {known}; give --times {time + 1} or more"
        )
        raise OptionError(msg)
    return times


def checked_dtype(name: str | None, option: str) -> np.dtype[Any] | None:
    """Return the dtype called *name*; ``None`` if *name* is ``None``.

    Raises:
        OptionError: no dtype has this name, or the values of the dtype are not real numbers.
    """
    if name is None:
        return None
    import numpy as np

    try:
        dtype = np.dtype(name)
    except TypeError:
        dtype = np.dtype(object)
    if dtype.kind not in "buif" or dtype.itemsize > 8:
        msg = (
            f"{option} {name} is not a type of voxels; choose bool, or an integer or float type of "
            "up to 64 bits, such as uint8 or float32"
        )
        raise OptionError(msg)
    return dtype


def shape_bounds(shape: Zyx) -> BoundingBox:
    """Return the bounds of a volume of extent *shape* that begins at the origin."""
    return BoundingBox(Zyx(0, 0, 0), shape)


def kept_names(
    model: Volume | None, channels: Sequence[int] | None, url: str, format: str | None = None
) -> dict[str, Any]:
    """Return keyword arguments of `create_volume` that copy the channel names of another volume.

    The result is empty if there are no names to copy.

    Args:
        model: the other volume.
        channels: channels of *model* that the new volume gets (default: all).
        url: address of the new volume; only zarr stores channel names.
        format: format of the new volume, if the address does not name it.
    """
    names = () if model is None else names_of(model, channels)
    return _names_setting(names, url, format)


def known_names(
    voxels: Voxels | None, spec: VolumeSpec, url: str, format: str | None = None
) -> dict[str, Any]:
    """Return keyword arguments of `create_volume` with the channel names that the pipeline knows.

    The result is empty if the names are not known.

    Args:
        voxels: properties of the voxels that the pipeline computes, if known.
        spec: description of the new volume.
        url: address of the new volume.
        format: format of the new volume, if the address does not name it.
    """
    names = () if voxels is None else voxels.channel_names
    return _names_setting(names if len(names) == (spec.channels or 1) else (), url, format)


def _names_setting(names: Sequence[str], url: str, format: str | None) -> dict[str, Any]:
    is_zarr = (Location.parse(url).format or format) == "zarr"
    return {"channel_names": tuple(names)} if names and is_zarr else {}


def _voxel_bytes(of: VolumeSpec | Volume) -> int:
    return (of.channels or 1) * of.dtype.itemsize

"""Create a volume from options, from one like it, or from the first chunk of a line."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError, VolumeError
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.disk import check_leave_to_write
from chunkflow_py.volume.engine.block_sizes import fitting_block, shard_for_memory
from chunkflow_py.volume.levels import volume_name
from chunkflow_py.volume.location import Location
from chunkflow_py.volume.new_volume import check_new, names_of, names_setting
from chunkflow_py.volume.protocol import Opening, VolumeSpec
from chunkflow_py.volume.pyramid import like_levels

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from chunkflow_py.core.chunk import Chunk, Kind
    from chunkflow_py.core.task import Task
    from chunkflow_py.volume.protocol import Volume

logger = logging.getLogger(__name__)


@dataclass
class VolumeCreator:
    """Creates a volume once: before the first task, or with the first chunk if it takes one.

    Attributes:
        url: where.
        format: of the volume, where the address does not say it.
        input_name: chunk that says what options and *like* do not.
        like: volume that says what options do not.
        like_mip: level of *like* that is meant.
        like_opening: how to call on the store of *like*.
        volume_size, voxel_offset, block_size, shard_size: voxels, zyx.
        factor: from level to level, zyx (default: those of *like*, else 2, 2, 2).
        task_memory: bytes that a task may take, to choose shards by; see `shard_for_memory`.
        voxel_size: nanometres, zyx.
        data_type, channel_num, kind, encoding, max_mip, times: as `VolumeSpec` says.
        overwrite: replace the description of a volume that is another one.
        creating: settings of `create_volume` for the format.
        opening: how to call on the store.
        announced: where to tell later commands what will be there.
        tell: called with the size of tasks that fit the shards.
        command: name, for messages.
    """

    url: str
    format: str | None = None
    input_name: str = "chunk"
    like: str | None = None
    like_mip: int = 0
    like_opening: Opening = field(default_factory=Opening)
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
    times: int | None = None
    overwrite: bool = False
    creating: Mapping[str, Any] = field(default_factory=dict)
    opening: Opening = field(default_factory=Opening)
    announced: dict[str, Callable[[], VolumeSpec | None]] = field(default_factory=dict)
    tell: Callable[[str], None] = logger.info
    command: str = "create-volume"
    _done: bool = field(default=False, init=False, repr=False)
    _made: bool = field(default=False, init=False, repr=False)

    def __post_init__(self) -> None:
        """Tell later commands of the line."""
        self.announced[volume_name(Location.parse(self.url))] = self.known_spec

    @property
    def _size_known(self) -> bool:
        return self.voxel_size is not None or self.model is not None

    @cached_property
    def model(self) -> Volume | None:
        """The volume that says what options do not."""
        if self.like is None:
            return None
        return open_volume(self.like, self.like_mip, opening=self.like_opening)

    def _unsaid(self) -> list[str]:
        """Return the options that are not given and for which a chunk may stand in."""
        if self.model is not None:
            return []
        said = {
            "--volume-size": self.volume_size,
            "--voxel-offset": self.voxel_offset,
            "--voxel-size": self.voxel_size,
            "--data-type": self.data_type,
            "--channel-num": self.channel_num,
            "--block-size": self.block_size,
        }
        return [option for option, value in said.items() if value is None]

    def known_spec(self) -> VolumeSpec | None:
        """Return what the volume will be told, or ``None`` if that may depend on a chunk."""
        return None if self._unsaid() else self.spec(None)

    def spec(self, chunk: Chunk | None) -> VolumeSpec:
        """Return what the volume is told: by options, else by *like*, else by the chunk.

        Raises:
            OptionError: nothing says its extent or its type.
        """
        import numpy as np

        source: Any = self.model or chunk
        if source is None and (self.volume_size is None or self.data_type is None):
            missing = "--volume-size" if self.volume_size is None else "--data-type"
            msg = f"{self.command} needs {missing}, or a chunk to take it from; give one of them"
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
        made = VolumeSpec(
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
            made = like_levels(made, self.like, self.like_mip, self.like_opening)
        return made if self.task_memory is None else replace(made, shard_size=self._shard(made))

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

    def prepare(self, _: object) -> None:
        """Refuse a place where nothing can be made.

        Raises:
            VolumeError: the folder must not be written to, or the volume cannot be what it is to
                be.
            OptionError: a dataset of a file is to be replaced.
        """
        place = Location.parse(self.url)
        if self.overwrite and place.format == "h5":
            msg = f"{self.url} is in a file, of which nothing is replaced; leave --overwrite out"
            raise OptionError(msg)
        check_leave_to_write(place)
        if (spec := self.known_spec()) is not None:
            settings = self._settings(spec)
            check_new(spec, self.url, format=self.format, **settings)

    @property
    def single_writer(self) -> bool:
        """Whether one process at a time may write to the volume."""
        return (Location.parse(self.url).format or self.format) == "h5"

    def create_output(self) -> str | None:
        """Create the volume before the first task; return its address if it was not there.

        Raises:
            OptionError: it may depend on a chunk; names the options that say the same.
        """
        if unsaid := self._unsaid():
            msg = (
                f"{self.command} is to make {self.url} before there is a chunk to take "
                f"{', '.join(unsaid)} from; give them, or make the volume before the run"
            )
            raise OptionError(msg)
        self.__enter__()
        return Location.parse(self.url).url if self._made else None

    def __enter__(self) -> VolumeCreator:
        """Create the volume, if no chunk is needed for it."""
        spec = self.known_spec()
        if spec is not None and not self._done:
            self._create(spec, size_known=self._size_known)
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing has to be closed."""

    def __call__(self, task: Task) -> Task:
        """Create the volume, at the first task."""
        if not self._done:
            there = self.input_name in task.items
            spec = self.spec(task.chunk(self.input_name) if there else None)
            self._create(spec, size_known=self._size_known or there)
        return task

    def _create(self, spec: VolumeSpec, *, size_known: bool) -> None:
        if not size_known:
            logger.warning(
                "%s: nothing says the voxel size of %s, 1 nm along z, y and x is taken; give "
                "--voxel-size", self.command, self.url,
            )  # fmt: skip
        self._made = not self._is_there()
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

    def _is_there(self) -> bool:
        try:
            open_volume(self.url, format=self.format, opening=self.opening)
        except VolumeError:  # there is none, or one that is damaged and will be replaced
            return False
        return True


def kept_names(
    model: Volume | None, channels: Sequence[int] | None, url: str, format: str | None = None
) -> dict[str, Any]:
    """Return the setting of `create_volume` by which a volume keeps the names of channels.

    Args:
        model: volume that has the names.
        channels: which of its channels (default: all).
        url: of the new volume; formats other than zarr have no place for names.
        format: of the new volume, where the address does not say it.
    """
    names = () if model is None else names_of(model, channels)
    return names_setting(names, url, format)


def _voxel_bytes(of: VolumeSpec | Volume) -> int:
    return (of.channels or 1) * of.dtype.itemsize

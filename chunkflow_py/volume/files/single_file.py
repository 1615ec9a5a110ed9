"""Load and save chunks in files that hold one array each, whatever their format.

A format offers a function path -> `FileArray` (or ``None`` for an empty file) and a function that
writes a chunk; which file, which cut, which type and which errors are decided here, once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk, Voxels
from chunkflow_py.core.failpoints import reached
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.memory import check_fits
from chunkflow_py.core.outputs import Output
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.store.local import os_errors, replacing, stored_file
from chunkflow_py.store.protocol import Stored
from chunkflow_py.volume.conversion import converted
from chunkflow_py.volume.cutout import Cutout
from chunkflow_py.volume.files.file_name import FileName
from chunkflow_py.volume.protocol import UNIT_NM, check_channels, warn_of_assumed_size

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from numpy.typing import DTypeLike, NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.core.task import Task
    from chunkflow_py.volume.files.file_name import OnePath

logger = logging.getLogger(__name__)

ReadPart = Callable[[tuple[slice, slice, slice], "Sequence[int] | None"], "NDArray[Any]"]

ORIGIN = Zyx(0, 0, 0)


@dataclass(frozen=True)
class FileArray:
    """An array in a file, known by its header; voxels are read on demand.

    Attributes:
        what: file and array, for messages.
        shape: (z, y, x) or (c, z, y, x).
        read_part: (slices zyx, channels or ``None``) -> voxels.
        voxel_offset: global position of the first voxel, voxels, zyx.
        voxel_size_nm: nanometres, zyx; `UNIT_NM` itself if nothing says it.
        kind: what the voxels mean, if known.
        dtype: of the voxels, if known before they are read.
    """

    what: str
    shape: tuple[int, ...]
    read_part: ReadPart
    voxel_offset: Zyx = ORIGIN
    voxel_size_nm: tuple[float, float, float] = UNIT_NM
    kind: Kind | None = None
    dtype: str | None = None

    def __post_init__(self) -> None:
        """Refuse an array that is not a chunk's."""
        if len(self.shape) not in (3, 4):
            flat = len(self.shape) == 2
            section = f"; store a section as {(1, *self.shape)}" if flat else ""
            msg = (
                f"{self.what} has {len(self.shape)} dimensions, shape {self.shape}; a chunk is "
                f"(z, y, x) or (c, z, y, x){section}"
            )
            raise ChunkError(msg)

    @property
    def bounds(self) -> BoundingBox:
        """The box of all voxels."""
        return BoundingBox.from_size(self.voxel_offset, self.shape[-3:])

    @property
    def channels(self) -> int | None:
        """Number of channels, or ``None`` without a channel axis."""
        return None if len(self.shape) == 3 else self.shape[0]

    def read(
        self,
        bbox: BoundingBox | None = None,
        channels: Sequence[int] | None = None,
        dtype: DTypeLike | None = None,
        domain: BoundingBox | None = None,
    ) -> Chunk:
        """Return the voxels inside *bbox* (default: all), read from the file now.

        Args:
            bbox: inside the bounds.
            channels: which, in this order (default: all).
            dtype: type of the result (default: that of the file).
            domain: of the chunk (default: the bounds).

        Raises:
            ChunkError: a channel does not exist, or a voxel does not fit into *dtype*.
            VolumeError: the file cannot be read.
        """
        check_channels(channels, self.channels, self.what)
        if self.channels is None:
            channels = None
        box = self.bounds if bbox is None else bbox
        count = (self.channels or 1) if channels is None else len(channels)
        size = box.voxels * count * np.dtype(self.dtype or np.uint8).itemsize
        check_fits(size, f"box {box} of {self.what} with {count} channels")
        array = self.read_part(box.slices(self.voxel_offset), channels)
        reached("mid-read")
        chunk = Chunk(
            array,
            box.start,
            self.voxel_size_nm,
            self.kind,
            self.bounds if domain is None else domain,
        )
        return converted(chunk, dtype)


@dataclass
class FileLoader:
    """Puts a file, or the part of it that a task needs, into every task.

    Attributes:
        files: name of the file, or prefix of one file a task.
        open_file: path -> its array, or ``None`` for a file without content.
        cutout: which part.
        output_name: name of the chunk in the task.
        channels: which, in this order (default: all).
        dtype: type of the voxels (default: that of the file).
        set_bbox: give the task the box of the chunk.
        remove_empty: delete a file that holds nothing, or nothing but zeros, after reading it.
    """

    files: FileName | OnePath
    open_file: Callable[[Path], FileArray | None]
    cutout: Cutout = field(default_factory=Cutout)
    output_name: str = "chunk"
    channels: tuple[int, ...] | None = None
    dtype: str | None = None
    set_bbox: bool = False
    remove_empty: bool = False
    _has_tasks: bool = field(default=False, init=False, repr=False)
    _known: FileArray | None = field(default=None, init=False, repr=False)
    _has_warned: bool = field(default=False, init=False, repr=False)

    @property
    def origin(self) -> str:
        """The file or files, which nothing of the line may replace."""
        return self.files.place

    def prepare(self, outline: Any) -> None:
        """Take from the line (an `Outline`) whether its tasks have boxes."""
        self._has_tasks = outline.has_tasks

    def bounds(self) -> BoundingBox | None:
        """Return the domain of the chunks, if one file serves all tasks; checks its header.

        Raises:
            VolumeError: the file is missing, or is not what it should be.
            ChunkError: it has other dimensions or channels.
            GeometryError: an explicit cut reaches outside of it.
        """
        path = self.files.fixed_path
        found = self._known = None if path is None else self._open(path)
        if found is None:
            return None
        check_channels(self.channels, found.channels, found.what)
        domain = self.cutout.box(found.bounds, None, found.what)[1]
        return found.bounds if self._has_tasks else domain

    def known_voxel_size_nm(self) -> tuple[float, float, float] | None:
        """Return the voxel size, if one file serves all tasks."""
        return None if self._known is None else self._known.voxel_size_nm

    def voxels(self) -> Voxels | None:
        """Return what the chunks hold, if one file serves all tasks and its header says it."""
        found = self._known
        if found is None or (dtype := self.dtype or found.dtype) is None:
            return None
        channels = found.channels if self.channels is None else len(self.channels)
        return Voxels(dtype, channels or 1, found.kind, found.channels is not None)

    def negotiate(self, required: Callable[[BoundingBox, BoundingBox], BoundingBox]) -> None:
        """Take what the rest of the line needs for a task's box."""
        self.cutout.negotiate(required)

    def __call__(self, task: Task) -> Task:
        """Read the part of the file that the task needs.

        An empty file (as a saver leaves for a task without a result) becomes ``None``.
        """
        path = self.files.path(task.region or self._cut_box())
        found = self._open(path)
        if found is None:
            logger.info("%s is empty, so %s is None", path, self.output_name)
            task[self.output_name] = None
            self._remove(path)
            return task
        box, domain = self.cutout.box(found.bounds, task.bbox, found.what)
        chunk = found.read(box, self.channels, self.dtype, domain)
        task[self.output_name] = chunk
        if self.set_bbox:
            time = task.region.time if task.region else None
            task.region = Region(chunk.bbox, time)
        whole = box == found.bounds and (self.channels is None or chunk.shape == found.shape)
        if self.remove_empty and whole and not chunk.array.any():
            self._remove(path)
        return task

    def _open(self, path: Path) -> FileArray | None:
        if isinstance(self.files, FileName) and not path.exists():
            msg = f"{path} does not exist; check {self.files.option}"
            raise VolumeNotFoundError(msg)
        found = self.open_file(path)
        if found is not None and not self._has_warned:
            self._has_warned = warn_of_assumed_size(found.voxel_size_nm, found.what)
        return found

    def _cut_box(self) -> BoundingBox | None:
        """Return the box of an explicit cut, where a line without tasks reads one file of many."""
        start, stop, size = self.cutout.start, self.cutout.stop, self.cutout.size
        if start is not None and (stop or size):
            return BoundingBox(start, stop or start + (size or 0))
        return None

    def _remove(self, path: Path) -> None:
        if self.remove_empty:
            with os_errors("remove", path):
                path.unlink()
            logger.info("removed %s, which held nothing but zeros", path)


@dataclass
class FileSaver:
    """Writes a chunk of every task to a file.

    Attributes:
        files: name of the file, or prefix of one file a task.
        write: (path, chunk) -> the whole file, under its final name only when complete.
        input_name: name of the chunk in the task.
        touch: make an empty file where the item is ``None`` (a task without a result).
        others: types that *write* takes as well as chunks.
    """

    files: FileName
    write: Callable[[Path, Any], None]
    input_name: str = "chunk"
    touch: bool | None = None
    others: tuple[type, ...] = ()
    _written: tuple[Path, Region | None] | None = field(default=None, repr=False)

    @property
    def destination(self) -> str:
        """The file or files."""
        return self.files.place

    def stores(self) -> tuple[Output, ...]:
        """Return the file, or the file of every task."""
        return (Output("file", f"file://{self.files.place}"),)

    def prepare(self, outline: Any) -> None:
        """Check the name against the tasks of the line (an `Outline`).

        Raises:
            OptionError: several tasks would write one file.
            VolumeError: no file can be made there.
        """
        self.files.check_written_once(outline.boxes)
        self.files.check_writable()

    def __call__(self, task: Task) -> Task:
        """Write the chunk.

        Raises:
            VolumeError: the file cannot be written, or an earlier task has written it.
        """
        item = task[self.input_name] if self.touch is not None else None
        if self.touch is not None and item is None:
            path = self._path(task, task.region)
            if self.touch:
                with replacing(path) as temporary:
                    temporary.touch()
                task.written.append(stored_file(path))
            else:
                task.written.append(Stored(f"file://{path.absolute()}"))
            return task
        region = task.region
        if not isinstance(item, self.others):
            item = task.chunk(self.input_name)
            region = region or Region(item.bbox)
        path = self._path(task, region)
        self.write(path, item)
        task.written.append(stored_file(path))
        logger.info("wrote %s", path)
        return task

    def _path(self, task: Task, region: Region | None) -> Path:
        path = self.files.path(region)
        # The tasks of a queue are not known in advance, so `prepare` could not see this.
        if (
            self._written is not None
            and self._written[0] == path
            and self._written[1] != task.region
        ):
            msg = (
                f"task {task} would replace {path}, which task {self._written[1]} has written; "
                f"give {self.files.option} a prefix without {self.files.extensions[0]}"
            )
            raise VolumeError(msg)
        self._written = (path, task.region)
        return path


def three_numbers(values: Iterable[Any], what: str) -> tuple[float, float, float]:
    """Return the three numbers that a header holds for z, y and x.

    Raises:
        VolumeError: there are not three finite numbers.
    """
    try:
        numbers = [float(v) for v in np.asarray(values).ravel()]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 3 or not np.isfinite(numbers).all():
        msg = f"{what} must be three numbers (zyx), got {values}; override it by an option"
        raise VolumeError(msg)
    return numbers[0], numbers[1], numbers[2]

"""Open a file that contains one array as a read-only volume.

A format provides a function that opens a path as a `FileVolume`. The function returns ``None`` for
an empty file, which savers write for a task without a result. The rules for file names, the checks
and the messages are the same for all formats.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.failpoints import reached
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.host_memory import check_fits
from chunkflow_py.errors import ChunkError, VolumeError, VolumeNotFoundError
from chunkflow_py.store.local_files import os_errors
from chunkflow_py.volume.files.file_name import FileName
from chunkflow_py.volume.protocol import UNIT_NM, check_channels, check_inside, checked_time
from chunkflow_py.volume.volume_source import VolumeSource

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.core.geometry import Region
    from chunkflow_py.store.store_protocol import Stored
    from chunkflow_py.volume.files.file_name import OnePath
    from chunkflow_py.volume.protocol import StoredUnit

logger = logging.getLogger(__name__)

ReadPart = Callable[..., "NDArray[Any]"]

ORIGIN = Zyx(0, 0, 0)


class FileVolume:
    """A read-only `Volume` of one array in a file; opening reads only the header.

    Each `read` reads voxels from the file; the whole file counts as one block.

    Attributes:
        url: names of the file and of the array, for messages.
        shape: (z, y, x) or (c, z, y, x).
        bounds, voxel_size_nm, dtype, channels, kind, block_size, write_unit, times, mips,
            single_writer: see `Volume`.
    """

    mips: tuple[int, ...] = (0,)
    single_writer: bool = True

    def __init__(
        self,
        url: str,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        read_part: ReadPart,
        *,
        voxel_offset: Zyx | None = None,
        voxel_size_nm: tuple[float, float, float] | None = None,
        kind: Kind | None = None,
        times: int | None = None,
    ) -> None:
        """Check shape and dtype, and derive the bounds.

        Args:
            url: names of the file and of the array, for messages.
            shape: shape of the array.
            dtype: type of the voxels, in any byte order.
            read_part: function (slices zyx, channels) -> voxels; ``None`` means all channels. If
                *times* is given, the function gets the time index as its third argument.
            voxel_offset: global position of the first voxel, voxels, zyx (default: the origin).
            voxel_size_nm: size of a voxel, nanometres, zyx (default: `UNIT_NM`; the loader warns
                that this size is assumed).
            kind: meaning of the voxels, if known.
            times: number of time points, or ``None`` for an array without a time axis.

        Raises:
            ChunkError: the array is neither 3D nor 4D, or its values are not real numbers.
        """
        if len(shape) not in (3, 4):
            section = f"; store a section as {(1, *shape)}" if len(shape) == 2 else ""
            msg = (
                f"{url} has {len(shape)} dimensions, shape {tuple(shape)}, but must be "
                f"(z, y, x) or (c, z, y, x){section}"
            )
            raise ChunkError(msg)
        if dtype.kind not in "buif":
            msg = f"{url} holds {dtype}, but a chunk holds real numbers; convert the array"
            raise ChunkError(msg)
        self.url = url
        self.shape = tuple(shape)
        self.dtype = dtype.newbyteorder("=")
        self.bounds = BoundingBox.from_size(voxel_offset or ORIGIN, self.shape[-3:])
        self.channels = None if len(self.shape) == 3 else self.shape[0]
        self.voxel_size_nm = voxel_size_nm or UNIT_NM
        self.kind = kind
        self.times = times
        self.block_size = self.write_unit = self.bounds.size.high((1, 1, 1))
        self._read_part = read_part

    def read(
        self,
        bbox: BoundingBox | None = None,
        channels: Sequence[int] | None = None,
        *,
        time: int | None = None,
    ) -> Chunk:
        """Return the voxels inside *bbox* (default: all); see `Volume.read`."""
        box = self.bounds if bbox is None else bbox
        check_inside(box, self.bounds, self.url)
        check_channels(channels, self.channels, self.url)
        if self.channels is None:
            channels = None
        count = (self.channels or 1) if channels is None else len(channels)
        size = box.voxels * count * self.dtype.itemsize
        check_fits(size, f"box {box} of {self.url} with {count} channels")
        at = () if self.times is None else (checked_time(time, self.times, self.url),)
        array = self._read_part(box.slices(self.bounds.start), channels, *at)
        reached("mid-read")
        return Chunk(array, box.start, self.voxel_size_nm, self.kind, self.bounds)

    def write(self, chunk: Chunk, *, time: int | None = None) -> tuple[Stored, ...]:
        """Raise an error, because the file is read only."""
        del time
        msg = f"cannot write {chunk.bbox} to {self.url}: this file is read only; write to zarr://"
        raise VolumeError(msg)

    def objects(self, bbox: BoundingBox, *, time: int | None = None) -> list[str]:  # noqa: ARG002
        """Return an empty list, because tasks do not write to this volume."""
        return []

    def stored_units(self) -> Iterator[StoredUnit]:
        """Raise an error, because the blocks of a file are not separate objects."""
        msg = (
            f"cannot list the stored blocks of {self.url}: the volume is one file; convert it to "
            "zarr"
        )
        raise VolumeError(msg)

    def has_blocks(self, bbox: BoundingBox, *, time: int | None = None) -> bool:
        """Return ``True``, because a file contains all voxels of the volume."""
        del time
        check_inside(bbox, self.bounds, self.url)
        return True


OpenFile = Callable[["Path"], "FileVolume | None"]


@dataclass
class FileSource(VolumeSource):
    """A source that opens one file for all tasks, or one file per task.

    Attributes:
        files: name of the file, or prefix of one file per task.
        open_file: function path -> volume, or ``None`` for an empty file.
        removes_empty: whether to delete a file, after a task has read it, if the file is empty or
            contains only zeros.
        open_whole: function like *open_file*, used if a task reads the whole file (default:
            *open_file*).
    """

    files: FileName | OnePath
    open_file: OpenFile
    removes_empty: bool = False
    open_whole: OpenFile | None = None
    is_shared = False
    thread_safe = False

    @property
    def origins(self) -> tuple[str, ...]:
        """Path of the file; ``BOX`` in the path stands for the box of each task."""
        return (self.files.place,)

    @property
    def is_one_file(self) -> bool:
        """Whether all tasks read the same file."""
        return self.files.fixed_path is not None

    def open(
        self,
        region: Region | BoundingBox | None = None,
        *,
        cache_bytes: int = 0,  # noqa: ARG002
        is_whole: bool = False,
    ) -> FileVolume | None:
        """Open the file of a task, or return ``None`` for an empty file."""
        path = self.files.path(region)
        if isinstance(self.files, FileName) and not path.exists():
            msg = f"{path} does not exist; check {self.files.option}"
            raise VolumeNotFoundError(msg)
        open_file = self.open_whole if is_whole and self.open_whole else self.open_file
        return open_file(path)

    def remove(self, region: Region | BoundingBox | None) -> None:
        """Delete the file of a task."""
        path = self.files.path(region)
        with os_errors("remove", path):
            path.unlink()
        logger.info("removed %s, which contained only zeros", path)


def three_numbers(values: Iterable[Any], what: str) -> tuple[float, float, float]:
    """Return three finite numbers from a header, for z, y and x.

    Raises:
        VolumeError: *values* are not three finite numbers.
    """
    try:
        numbers = [float(v) for v in np.asarray(values).ravel()]
    except (TypeError, ValueError):
        numbers = []
    if len(numbers) != 3 or not np.isfinite(numbers).all():
        msg = (
            f"{what} must be three numbers (zyx), got {values}; override the value with "
            "--voxel-offset or --voxel-size"
        )
        raise VolumeError(msg)
    return numbers[0], numbers[1], numbers[2]

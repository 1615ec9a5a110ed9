"""The `Volume` protocol, the description of a new volume, and checks of boxes and chunks."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import TYPE_CHECKING, Any, Protocol

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, GeometryError, VolumeError
from chunkflow_py.store.store_protocol import Access
from chunkflow_py.volume.write_unit_check import check_alignment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np

    from chunkflow_py.core.chunk import Chunk, Kind
    from chunkflow_py.store.store_protocol import Stored

logger = logging.getLogger(__name__)

UNIT_NM = (1.0, 1.0, 1.0)  # an assumed voxel size; compared by identity


@dataclass(frozen=True)
class VolumeSpec:
    """The description of a new volume; a format ignores properties that it cannot store.

    Attributes:
        bounds: box of all voxels of the volume; the block grid starts at ``bounds.start``.
        voxel_size_nm: size of a voxel, nanometres, zyx.
        dtype: type of the voxels.
        channels: number of channels, or ``None`` for an array without a channel axis.
        kind: meaning of the voxels.
        block_size: extent of one stored block, voxels, zyx.
        encoding: name of the compression in the format, or ``None`` for the format's default.
        shard_size: extent of a shard, a multiple of *block_size*, voxels, zyx, or ``None`` for a
            volume without shards.
        times: number of time points, or ``None`` for a volume without a time axis.
        factor: downsampling factor from each level to the next, zyx.
        max_mip: number of the coarsest level to create.
        first_factors: downsampling factors from mip 0 to 1, from mip 1 to 2 and so on. For levels
            beyond the end of this list, *factor* is used.
    """

    bounds: BoundingBox
    voxel_size_nm: tuple[float, float, float]
    dtype: np.dtype[Any]
    channels: int | None
    kind: Kind | None
    block_size: Zyx
    encoding: str | None = None
    shard_size: Zyx | None = None
    times: int | None = None
    factor: Zyx = Zyx(2, 2, 2)
    max_mip: int = 0
    first_factors: tuple[Zyx, ...] = ()

    def step(self, mip: int) -> Zyx:
        """Return the size of a voxel of level *mip* + 1 in voxels of level *mip*, zyx."""
        return self.first_factors[mip] if mip < len(self.first_factors) else self.factor

    def shrink(self, mip: int) -> Zyx:
        """Return the size of a voxel of level *mip* in voxels of level 0, zyx."""
        return reduce(lambda a, b: a * b, map(self.step, range(mip)), Zyx(1, 1, 1))

    def level(self, mip: int, start: int = 0) -> VolumeSpec:
        """Return the description of level *mip*; *self* describes the finer level *start*."""
        spec = self
        for level in range(start, mip):
            step = spec.step(level)
            z, y, x = (nm * f for nm, f in zip(spec.voxel_size_nm, step, strict=True))
            spec = replace(spec, bounds=coarser(spec.bounds, step), voxel_size_nm=(z, y, x))
        return spec


@dataclass(frozen=True)
class VolumeOptions:
    """Options for reading and writing a volume; a format ignores options that it does not support.

    Attributes:
        fill_missing: whether to read missing blocks as the fill value; if false, a missing block
            is an error.
        store_zeros: whether to write blocks that contain only the fill value; if false, such
            blocks are not written, and are deleted if they exist.
        parallel: number of blocks to encode or decode at the same time (default: one per core).
        cache_bytes: size of the cache that keeps decoded blocks for later reads, in bytes.
        access: credentials and options of the store.
    """

    fill_missing: bool = True
    store_zeros: bool = False
    parallel: int | None = None
    cache_bytes: int = 0
    access: Access = field(default_factory=Access)


@dataclass(frozen=True)
class StoredUnit:
    """A stored object, and the write unit (block or shard) whose voxels the object stores.

    Attributes:
        url: address of the object.
        box: box of the write unit, in voxels of the level.
        time: time index, or ``None`` in a volume without a time axis.
        remove: function that deletes all objects of the write unit, such as two copies of a block,
            one with and one without the extension ``.gz``.
    """

    url: str
    box: BoundingBox
    time: int | None
    remove: Callable[[], None]


class Volume(Protocol):
    """A volume at one resolution level, in any format and store.

    Attributes:
        url: address with which the volume can be opened again.
        bounds: box of all voxels, in voxels of this level.
        voxel_size_nm: size of a voxel, nanometres, zyx.
        dtype: type of the voxels.
        channels: number of channels, or ``None`` without a channel axis.
        kind: meaning of the voxels, such as ``image``, if known.
        block_size: extent of one stored block, voxels, zyx.
        write_unit: extent of the smallest part that can be written independently: a shard, or a
            block if there are no shards; voxels, zyx.
        times: number of time points, or ``None`` for a volume without a time axis.
        mips: numbers of all levels of the volume.
        single_writer: whether only one process at a time may write to the volume, because it is
            a single file.
    """

    url: str
    bounds: BoundingBox
    voxel_size_nm: tuple[float, float, float]
    dtype: np.dtype[Any]
    channels: int | None
    kind: Kind | None
    block_size: Zyx
    write_unit: Zyx
    times: int | None
    mips: tuple[int, ...]
    single_writer: bool

    def read(
        self,
        bbox: BoundingBox,
        channels: Sequence[int] | None = None,
        *,
        time: int | None = None,
    ) -> Chunk:
        """Return a chunk with the voxels inside *bbox*.

        The chunk's domain (the box of the volume that it was cut from) is `bounds`.

        Args:
            bbox: box to read, in voxels of this level.
            channels: channels to read, in this order (default: all); the result keeps the channel
                axis.
            time: time index; ignored by a volume without a time axis.

        Raises:
            GeometryError: *bbox* extends beyond the bounds.
            ChunkError: a requested channel does not exist.
            VolumeError: a block cannot be read, or the time index does not exist.
        """

    def write(self, chunk: Chunk, *, time: int | None = None) -> tuple[Stored, ...]:
        """Write *chunk*, which must completely cover every write unit that it touches.

        Args:
            chunk: chunk to write, of this volume's dtype and number of channels.
            time: time index, for a volume with a time axis.

        Returns:
            The stored object of each write unit. The tuple is empty for a volume that is a single
            file, because every write changes that file.

        Raises:
            AlignmentError: a boundary of the chunk cuts a write unit.
            GeometryError: the chunk extends beyond the bounds.
            ChunkError: the dtype or the number of channels differs from that of the volume.
            VolumeError: a block cannot be written, or the time index does not exist.
        """

    def objects(self, bbox: BoundingBox, *, time: int | None = None) -> list[str]:
        """Return the addresses of the objects of all write units that *bbox* touches.

        The addresses are spelled as in the result of `write`. The list is empty for a volume that
        is a single file.

        Raises:
            GeometryError: *bbox* extends beyond the bounds.
        """

    def stored_units(self) -> Iterator[StoredUnit]:
        """Yield the stored write units; objects are listed, but not read.

        A unit that is stored as several objects is yielded several times.

        Raises:
            VolumeError: the objects cannot be listed or identified, because the volume is a single
                file, is on a web server, or has shards that are not boxes of blocks.
        """

    def has_blocks(self, bbox: BoundingBox, *, time: int | None = None) -> bool:
        """Return whether every write unit that *bbox* touches is stored.

        Raises:
            GeometryError: *bbox* extends beyond the bounds.
        """


def coarser(bounds: BoundingBox, factor: Zyx) -> BoundingBox:
    """Return *bounds* in voxels that are *factor* times as large; see `BoundingBox.coarser`."""
    return bounds.coarser(factor)


def names_of(volume: Volume, channels: Sequence[int] | None = None) -> tuple[str, ...]:
    """Return the names of *channels* of a volume; empty if not every channel has a name."""
    known = tuple(getattr(volume, "channel_names", ()))
    if len(known) != (volume.channels or 1):
        return ()
    return known if channels is None else tuple(known[channel] for channel in channels)


def warn_of_assumed_size(size_nm: tuple[float, float, float], what: str) -> bool:
    """Warn and return ``True`` if *size_nm* is the assumed voxel size `UNIT_NM`."""
    if size_nm is not UNIT_NM:
        return False
    logger.warning(
        "%s has no voxel size, so 1 1 1 nm is assumed; give --voxel-size (zyx), such as "
        "2um 0.5um 0.5um", what,
    )  # fmt: skip
    return True


def check_inside(bbox: BoundingBox, bounds: BoundingBox, url: str) -> None:
    """Refuse a box that extends beyond the bounds of a volume.

    Raises:
        GeometryError: the box extends beyond *bounds*; the message gives the part inside.
    """
    if not bounds.contains(bbox):
        inside = bbox.intersection(bounds)
        remedy = "no part is inside" if inside.is_empty else f"the part inside is {inside}"
        msg = f"box {bbox} extends outside of {url}, whose bounds are {bounds} (zyx); {remedy}"
        raise GeometryError(msg)


def checked_time(time: int | None, times: int, url: str) -> int:
    """Return the time index to read: *time*, or 0 if *time* is ``None``.

    Args:
        time: requested time index, or ``None``.
        times: number of time points of the volume.
        url: address of the volume, for messages.

    Raises:
        VolumeError: the time index does not exist, or *time* is ``None`` although the volume has
            several time points.
    """
    if time is None and times > 1:
        msg = (
            f"{url} has {times} time points, but the task has no time index; use "
            "generate-tasks with --time-points all, or load-volume with --time"
        )
        raise VolumeError(msg)
    if not 0 <= (time or 0) < times:
        msg = f"{url} has the time indices 0 to {times - 1}, but time index {time} was requested"
        raise VolumeError(msg)
    return time or 0


def check_chunk(chunk: Chunk, volume: Volume, time: int | None = None) -> None:
    """Refuse a chunk that *volume* cannot store unchanged.

    Raises:
        GeometryError, AlignmentError, ChunkError, VolumeError: the errors of `Volume.write`.
    """
    if chunk.dtype != volume.dtype:
        msg = (
            f"chunk {chunk.bbox} has the dtype {chunk.dtype}, but {volume.url} has the dtype "
            f"{volume.dtype}; convert the chunk, or write to another volume"
        )
        raise ChunkError(msg)
    if chunk.channels != (volume.channels or 1):
        msg = (
            f"chunk {chunk.bbox} has {chunk.channels} channels, but {volume.url} has "
            f"{volume.channels or 1}; write to another volume, or select channels of the chunk"
        )
        raise ChunkError(msg)
    check_inside(chunk.bbox, volume.bounds, volume.url)
    check_alignment([chunk.bbox], volume.write_unit, volume.bounds, volume.url)
    if time is not None and volume.times is None:
        msg = (
            f"cannot write time index {time} to {volume.url}, which has no time axis; write to a "
            "volume that was created with --times"
        )
        raise VolumeError(msg)


def check_channels(channels: Sequence[int] | None, existing: int | None, what: str) -> None:
    """Refuse channels that a volume or file does not have.

    Args:
        channels: the requested channels; ``None`` for all.
        existing: number of channels of the volume or file, or ``None`` if there is no channel axis;
            ``None`` counts as one channel.
        what: the volume or file, for the message.

    Raises:
        ChunkError: a channel does not exist; the message names the existing channels.
    """
    count = existing or 1
    wrong = [c for c in channels or () if not 0 <= c < count]
    if wrong:
        there = f"has channels 0 to {count - 1}" if count > 1 else "has channel 0 only"
        msg = f"{what} {there}, but channel {wrong[0]} was requested; change --channels"
        raise ChunkError(msg)

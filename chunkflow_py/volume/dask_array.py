"""Present a volume as a lazy dask array: a dask chunk is read by the process that needs it.

```
volume   |----|----|----|----|----|--|      write units
dask     |         |         |       |      chunks of whole write units, from volume.bounds.start
```
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError, needs_extra
from chunkflow_py.volume.protocol import check_channels

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.volume.protocol import Volume


def to_dask(
    volume: Volume,
    channels: Sequence[int] | None = None,
    time: int | None = None,
    chunks: Iterable[int] | None = None,
) -> Any:
    """Return a dask array that reads *volume* lazily.

    If two calls read the same level of the same volume with the same arguments, their dask tasks
    have the same names. Therefore, dask recognises equal tasks. A dask worker in another process
    opens the volume again.

    Args:
        volume: volume, opened for reading.
        channels: channels to read, in this order (default: all).
        time: time index to read (default: all time points, as the first axis of the array).
        chunks: extent of a dask chunk, voxels, zyx (default: the write unit). If *chunks* is a
            multiple of the write unit, no block is read twice.

    Returns:
        Array of shape ([t,] [c,] z, y, x) and the volume's dtype. Axes that the volume does not
        have are left out. The first voxel of the array is at ``volume.bounds.start``.

    Raises:
        ChunkError: a requested channel does not exist.
        OptionError: the time index does not exist, or *chunks* is below 1 along an axis.
        MissingExtraError: dask is not installed.
    """
    with needs_extra("dask", "to_dask"):
        da: Any = import_module("dask.array")  # dask has few type annotations
        from dask.base import tokenize
    check_channels(channels, volume.channels, volume.url)
    size = volume.write_unit if chunks is None else Zyx.of(chunks)
    if min(size) < 1:
        msg = f"chunks must have at least 1 voxel along each axis (zyx), but are {size}"
        raise OptionError(msg)
    if time is not None and not 0 <= time < (volume.times or 1):
        msg = (
            f"{volume.url} has the time indices 0 to {(volume.times or 1) - 1}, but time index "
            f"{time} was requested"
        )
        raise OptionError(msg)
    source = VolumeArray(volume, None if channels is None else tuple(channels), time)
    extent = size.low(volume.bounds.size.high((1, 1, 1)))
    others = (1,) * source.has_time + (len(source.channels),) * source.has_channels
    return da.from_array(
        source,
        chunks=(*others, *extent),
        name=f"volume-{tokenize(source, extent)}",
        asarray=False,
        meta=np.empty((0,) * source.ndim, source.dtype),
    )


class VolumeArray:
    """A volume with the array interface that dask requires: shape, dtype and slicing.

    Args:
        volume: volume, opened for reading.
        channels: channels to read, in this order (default: all).
        time: time index to read (default: all time points).
    """

    def __init__(self, volume: Volume, channels: tuple[int, ...] | None, time: int | None) -> None:
        """Derive the shape and the axes from the volume."""
        self._volume, self._time = volume, time
        self.has_time = time is None and volume.times is not None
        self.has_channels = volume.channels is not None
        self.channels = channels or tuple(range(volume.channels or 1))
        self.dtype = volume.dtype
        times = (volume.times or 1,) * self.has_time
        self.shape = (*times, *(len(self.channels),) * self.has_channels, *volume.bounds.size)
        self.ndim = len(self.shape)

    def __dask_tokenize__(self) -> tuple[Any, ...]:
        """Return the properties from which dask derives task names, without reading voxels."""
        volume = self._volume
        level = (volume.url, getattr(volume, "mip", 0), str(volume.bounds), str(volume.dtype))
        return (*level, self.shape, self.channels, self._time)

    def __getitem__(self, key: Any) -> NDArray[Any]:
        """Read a part of the array; *key* has an integer, slice or list of integers per axis."""
        keys = _filled(key, self.ndim)
        positions = [_positions(k, n) for k, n in zip(keys, self.shape, strict=True)]
        spans = [(min(p, default=0), max(p, default=-1) + 1) for p in positions]
        part = self._read(spans)
        if any(p != list(range(*span)) for p, span in zip(positions, spans, strict=True)):
            inside = [[i - span[0] for i in p] for p, span in zip(positions, spans, strict=True)]
            part = part[np.ix_(*inside)]
        return part[tuple(0 if _is_number(k) else slice(None) for k in keys)]

    def _read(self, spans: Sequence[tuple[int, int]]) -> NDArray[Any]:
        """Return the voxels of a box; *spans* are start and stop along each axis of the array."""
        start = self._volume.bounds.start
        box = BoundingBox(
            start + Zyx.of(low for low, _ in spans[-3:]),
            start + Zyx.of(high for _, high in spans[-3:]),
        )
        channels = None
        if self.has_channels:
            low, high = spans[-4]
            channels = self.channels[low:high]
        if not self.has_time:
            return self._volume.read(box, channels, time=self._time).array
        found = [self._volume.read(box, channels, time=t).array for t in range(*spans[0])]
        return np.stack(found)


def _filled(key: Any, ndim: int) -> tuple[Any, ...]:
    """Return *key* with one entry per axis; axes missing in *key* get ``slice(None)``."""
    keys = key if isinstance(key, tuple) else (key,)
    if any(k is Ellipsis for k in keys):
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys = (*keys[:at], *(slice(None),) * (ndim - len(keys) + 1), *keys[at + 1 :])
    return (*keys, *(slice(None),) * (ndim - len(keys)))


def _positions(key: Any, length: int) -> list[int]:
    if isinstance(key, slice):
        return list(range(length)[key])
    whole = range(length)
    return [whole[int(k)] for k in ([key] if _is_number(key) else key)]


def _is_number(key: Any) -> bool:
    return isinstance(key, (int, np.integer))

"""Sample the voxels of a volume, in boxes that are spread over the volume."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.geometry import BoundingBox, Zyx

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from chunkflow_py.volume.protocol import Volume

_BOX = Zyx(32, 64, 64)  # largest box
_BOXES = 4  # most boxes along an axis


def sample_of(volume: Volume) -> NDArray[Any]:
    """Return all voxels of a small volume, or a sample of the voxels of a large volume.

    The result has the shape (channels, voxels). A sample consists of at most 64 boxes of
    32 x 64 x 64 voxels (zyx), evenly spread over the volume. In a time series, the boxes are read
    at the first, the middle and the last time point.

    Raises:
        VolumeError: the voxels cannot be read.
    """
    times: Any = [None]
    if volume.times is not None:
        times = sorted({0, volume.times // 2, volume.times - 1})
    boxes = list(_boxes(volume.bounds))
    arrays = [
        volume.read(box, time=time).array.reshape(volume.channels or 1, -1)
        for time in times
        for box in boxes
    ]
    return np.concatenate(arrays, axis=1)


def _boxes(bounds: BoundingBox) -> Iterator[BoundingBox]:
    starts = []
    for first, extent, most in zip(bounds.start, bounds.size, _BOX, strict=True):
        count = min(_BOXES, -(-extent // most))
        last = max(0, extent - most)
        starts.append([first + last * k // max(1, count - 1) for k in range(count)])
    for start in product(*starts):
        yield BoundingBox.from_size(start, _BOX).intersection(bounds)

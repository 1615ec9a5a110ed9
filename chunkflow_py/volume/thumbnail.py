"""Compute the thumbnail of a volume, a small uint8 image that tasks write beside the volume.

```
voxels   |....|....|....|....|      each thumbnail voxel is the mean of 1 x f x f voxels (zyx)
thumb    | a  | b  | c  | d  |      f: downsampling factor along y and x, here 4
```
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, VolumeError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.volume.protocol import Volume

COARSEST = 6  # halvings of y and x from mip 0


def halvings(unit: Zyx, bounds: BoundingBox, mip: int, coarsest: int = COARSEST) -> int:
    """Return how many times level *mip* can be halved along y and x to make the thumbnail.

    The number is limited because no two tasks may write to the same voxel of the thumbnail.

    Args:
        unit: greatest common divisor of the distances from the start of *bounds* to the task
            boundaries inside *bounds*, voxels, zyx; 0 along an axis without such boundaries.
        bounds: box of all voxels of the volume.
        mip: level of the volume from which the thumbnail is made.
        coarsest: largest number of halvings from mip 0 of the volume to the thumbnail.
    """
    numbers = [*unit[1:], *bounds.start[1:]]
    best = 0
    while best < coarsest - mip and all(n % 2 ** (best + 1) == 0 for n in numbers):
        best += 1
    return best


def check_kind(kind: Kind | None, url: str) -> None:
    """Refuse a segmentation, because labels cannot be averaged to a thumbnail.

    Raises:
        ChunkError: *kind* is ``segmentation``.
    """
    if kind == "segmentation":
        msg = f"{url} is a segmentation, which has no thumbnail; leave out --create-thumbnail"
        raise ChunkError(msg)


def check_stored(volume: Volume) -> None:
    """Refuse an existing thumbnail with shards, because several tasks would write each shard.

    Raises:
        VolumeError: the thumbnail is stored in shards.
    """
    if volume.write_unit != volume.block_size:
        msg = (
            f"thumbnail {volume.url} is stored in shards of {volume.write_unit} (zyx, voxels), "
            "each of which several tasks would overwrite; delete the thumbnail, or leave out "
            "--create-thumbnail"
        )
        raise VolumeError(msg)


def thumbnail(chunk: Chunk, factor: int) -> Chunk:
    """Return *chunk* downsampled along y and x, as uint8 intensities.

    Args:
        chunk: (z, y, x) or (c, z, y, x), integer, or float in [0, 1]. Of several channels, only
            the last channel is used (in an affinity map, the z channel).
        factor: downsampling factor along y and x. A thumbnail voxel that extends beyond the chunk
            is the mean of the voxels inside the chunk.

    Returns:
        Chunk (z, y, x) of uint8. The voxel offset is that of *chunk*, divided by *factor* along y
        and x and rounded down.

    Raises:
        ChunkError: the voxels are labels, which cannot be averaged.
    """
    if chunk.kind == "segmentation":
        msg = (
            f"chunk {chunk.bbox} is a segmentation, which has no thumbnail; leave out "
            "--create-thumbnail"
        )
        raise ChunkError(msg)
    array = chunk.array if chunk.ndim == 3 else chunk.array[-1]
    mean = array.astype(np.float32)
    for axis in (1, 2):
        mean = _mean_along(mean, axis, chunk.voxel_offset[axis], factor)
    scale = 255.0 if array.dtype.kind == "f" else 255.0 / np.iinfo(array.dtype).max
    grey = np.rint(np.clip(mean * np.float32(scale), 0, 255)).astype(np.uint8)
    shrink = Zyx(1, factor, factor)
    start = chunk.voxel_offset // shrink
    z, y, x = chunk.voxel_size_nm
    domain = BoundingBox(chunk.domain.start // shrink, -(-chunk.domain.stop // shrink))
    return Chunk(grey, start, (z, y * factor, x * factor), "image", domain)


def _mean_along(array: NDArray[Any], axis: int, offset: int, factor: int) -> NDArray[Any]:
    length = array.shape[axis]
    # positions in the array where a new multiple of the factor begins
    starts = np.arange(-(offset % factor), length, factor).clip(min=0)
    counts = np.diff(np.append(starts, length))
    shape = [1, 1, 1]
    shape[axis] = len(counts)
    return np.add.reduceat(array, starts, axis=axis) / counts.reshape(shape).astype(np.float32)

"""Connected components, renumbering of labels, and checks that voxels are labels."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from chunkflow_py.core.chunk import above
from chunkflow_py.errors import ChunkError, OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk

Connectivity = Literal[6, 18, 26]
CONNECTIVITIES: tuple[Connectivity, ...] = get_args(Connectivity)


def connected_components(
    array: NDArray[Any], threshold: float | None = None, connectivity: Connectivity = 6
) -> NDArray[Any]:
    """Label the connected components of *array*, in raster order.

    With a threshold, components consist of the voxels above the threshold. If the array has three
    channels, as affinities have, the mean of the channels is compared with the threshold. Without a
    threshold, neighbouring voxels of equal value are connected, and 0 is background. The mode
    without a threshold suits masks and segmentations.

    Args:
        array: (z, y, x) or (1, z, y, x), or (3, z, y, x) if a threshold is given; any real dtype.
        threshold: voxels above this value are foreground, in the unit of the voxels.
        connectivity: 6 (neighbours share a face), 18 (a face or an edge) or 26 (also a corner).

    Returns:
        (z, y, x) labels 1 to N without gaps, in raster order of their first voxels; uint32, or
        uint64 if N exceeds the range of uint32.

    Raises:
        OptionError: the connectivity is not 6, 18 or 26.
        ChunkError: the array has neither 1 nor 3 channels, a voxel is NaN, or the voxels are
            floating point and no threshold is given.
    """
    import cc3d

    if connectivity not in CONNECTIVITIES:
        msg = f"connectivity {connectivity} is not one of 6 (faces), 18 (edges), 26 (corners)"
        raise OptionError(msg)
    averaged = threshold is not None and array.ndim == 4 and array.shape[0] == 3
    voxels = array.mean(axis=0, dtype=np.float32) if averaged else single_channel(array)
    if threshold is not None:
        voxels = above(voxels, threshold)
    elif voxels.dtype.kind not in "biu":
        msg = (
            f"voxels of type {voxels.dtype} are intensities or probabilities, not a mask or a "
            "segmentation; give --threshold, the value above which voxels are foreground"
        )
        raise ChunkError(msg)
    if voxels.size == 0:
        return np.zeros(voxels.shape, np.uint32)
    if not voxels.flags.writeable:
        voxels = voxels.copy()  # cc3d refuses read-only input, though it never writes to it
    labels, count = cc3d.connected_components(voxels, connectivity=connectivity, return_N=True)
    return labels.astype(_label_dtype(count), copy=False)


def renumber(labels: NDArray[Any]) -> NDArray[Any]:
    """Renumber labels from 1 to N, in the order of the old labels; 0 stays 0.

    Args:
        labels: any shape, integers.

    Returns:
        The new labels, same shape; uint32, or uint64 if N exceeds 4 294 967 295.
    """
    if labels.size == 0:
        return np.zeros(labels.shape, np.uint32)
    highest = int(labels.max())
    # A lookup table is faster than sorting, as long as it is not larger than the array.
    if highest <= labels.size and labels.min() >= 0:
        seen = np.zeros(highest + 1, bool)
        seen[labels.ravel()] = True
        seen[0] = False
        table = np.where(seen, np.cumsum(seen), 0).astype(_label_dtype(int(seen.sum())))
        relabelled: NDArray[Any] = table[labels]
        return relabelled
    values, dense = np.unique(labels, return_inverse=True)
    numbers = np.where(values == 0, 0, np.cumsum(values != 0)).astype(_label_dtype(len(values)))
    renumbered: NDArray[Any] = numbers[dense].reshape(labels.shape)
    return renumbered


def single_channel(array: NDArray[Any]) -> NDArray[Any]:
    """Return a view of labels or of a mask without the channel axis: (z, y, x).

    Raises:
        ChunkError: the array has several channels.
    """
    if array.ndim == 4 and array.shape[0] != 1:
        msg = (
            f"labels and masks have one channel, got shape {tuple(array.shape)} (c, z, y, x); "
            "select one channel with --channel of threshold or --channels of the loader, or make "
            "labels with agglomerate"
        )
        raise ChunkError(msg)
    return array.reshape(array.shape[-3:])


def _label_dtype(count: int) -> type[np.uint32 | np.uint64]:
    return np.uint32 if count <= np.iinfo(np.uint32).max else np.uint64


def labels_of(chunk: Chunk) -> NDArray[Any]:
    """Return the labels of a chunk as unsigned integers (z, y, x).

    Raises:
        ChunkError: the chunk has several channels, or its voxels are not labels.
    """
    array = chunk.array
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim != 3 or array.dtype.kind not in "bui":
        msg = (
            f"chunk {chunk.bbox} has {chunk.channels} channels of {chunk.dtype}, but labels are "
            "integers in one channel; make labels with threshold, connected-components or "
            "agglomerate"
        )
        raise ChunkError(msg)
    if array.dtype.kind == "i":
        if array.min(initial=0) < 0:
            msg = f"chunk {chunk.bbox} has the label {array.min()}; labels must be 0 or more"
            raise ChunkError(msg)
        return array.view(f"u{array.dtype.itemsize}")
    return array.view(np.uint8) if array.dtype == bool else array

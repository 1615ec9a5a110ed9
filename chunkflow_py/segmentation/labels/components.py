"""Connected components with dense labels in raster order; checks that voxels are labels."""

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
    """Return one label for each connected piece of *array*.

    With a threshold, components consist of the voxels above it; a map of three channels (an
    affinity map) is first averaged over its channels. Without a threshold, neighbouring voxels of
    equal value are connected, which suits a mask as well as a segmentation. 0 is background.

    Args:
        array: (z, y, x), (1, z, y, x), or with a threshold also (3, z, y, x); any real dtype.
        threshold: in the unit of the voxels; voxels equal to it are background.
        connectivity: 6 (neighbours share a face), 18 (or an edge) or 26 (or a corner).

    Returns:
        (z, y, x) labels 1 to N without gaps, in raster order of their first voxels; uint32, or
        uint64 where there are more of them.

    Raises:
        OptionError: the connectivity is none of the three.
        ChunkError: the channels are not 1 or 3, a voxel is NaN, or floating-point voxels come
            without a threshold.
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
            f"voxels of type {voxels.dtype} are a map, not a mask or a segmentation; "
            "say with --threshold above which value they are foreground"
        )
        raise ChunkError(msg)
    if voxels.size == 0:
        return np.zeros(voxels.shape, np.uint32)
    if not voxels.flags.writeable:
        voxels = voxels.copy()  # cc3d never writes to its input, but takes no other
    labels, count = cc3d.connected_components(voxels, connectivity=connectivity, return_N=True)
    return labels.astype(_label_dtype(count), copy=False)


def renumber(labels: NDArray[Any]) -> NDArray[Any]:
    """Return the same segments with labels 1 to N, in the order of the old ones; 0 stays 0.

    Args:
        labels: any shape, integers.

    Returns:
        The same shape; uint32, or uint64 where there are more than 4 294 967 295 segments.
    """
    if labels.size == 0:
        return np.zeros(labels.shape, np.uint32)
    highest = int(labels.max())
    # A table is faster than sorting all voxels, as long as it is not larger than they are.
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
    """Return (z, y, x) labels or mask without a channel axis.

    Raises:
        ChunkError: there are several channels.
    """
    if array.ndim == 4 and array.shape[0] != 1:
        msg = (
            f"labels and masks have one channel, got shape {tuple(array.shape)} (c, z, y, x); pick "
            "one by threshold --channel or when loading (--channels), or make labels by "
            "agglomeration"
        )
        raise ChunkError(msg)
    return array.reshape(array.shape[-3:])


def _label_dtype(count: int) -> type[np.uint32 | np.uint64]:
    return np.uint32 if count <= np.iinfo(np.uint32).max else np.uint64


def labels_of(chunk: Chunk) -> NDArray[Any]:
    """Return the labels of a chunk, (z, y, x), unsigned.

    Raises:
        ChunkError: the chunk has several channels, or its voxels are not labels.
    """
    array = chunk.array
    if array.ndim == 4 and len(array) == 1:
        array = array[0]
    if array.ndim != 3 or array.dtype.kind not in "bui":
        msg = (
            f"chunk {chunk.bbox} has {chunk.channels} channels of {chunk.dtype}, but labels are "
            "integers in one channel; make them by threshold, connected-components or agglomerate"
        )
        raise ChunkError(msg)
    if array.dtype.kind == "i":
        if array.min(initial=0) < 0:
            msg = f"chunk {chunk.bbox} has the label {array.min()}; labels must be 0 or more"
            raise ChunkError(msg)
        return array.view(f"u{array.dtype.itemsize}")
    return array.view(np.uint8) if array.dtype == bool else array

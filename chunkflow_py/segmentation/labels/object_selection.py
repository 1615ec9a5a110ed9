"""Select objects of a segmentation by size or id, and fill their holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import parse_json
from chunkflow_py.errors import ChunkError, OptionError, VolumeError, VolumeNotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from numpy.typing import NDArray

    from chunkflow_py.store.store_protocol import Store


def mask_out(
    labels: NDArray[Any], least_voxels: int = 0, selected: Collection[int] | None = None
) -> NDArray[Any]:
    """Return a copy of *labels* without small objects and without objects that are not selected.

    Args:
        labels: any shape, integers; 0 is background.
        least_voxels: set objects with fewer voxels to 0.
        selected: ids of the objects to keep (default: all).

    Returns:
        The labels, same shape and type.

    Raises:
        ChunkError: the voxels are not labels.
    """
    import fastremap

    check_labels(labels)
    array = np.ascontiguousarray(labels)
    # fastremap crashes on negative int8.
    array = array if array.dtype.kind == "u" else array.view(f"u{array.dtype.itemsize}")
    masked = array
    if least_voxels > 1:
        ids, sizes = fastremap.unique(array, return_counts=True)
        small = ids[(sizes < least_voxels) & (ids != 0)]
        masked = fastremap.mask(array, small.tolist())
    if selected is not None:
        # The largest id that the type can hold.
        highest = 1 if labels.dtype == bool else np.iinfo(labels.dtype).max
        kept = [label for label in selected if label <= highest]
        masked = fastremap.mask_except(masked, kept) if kept else np.zeros_like(array)
    result: NDArray[Any] = masked.copy() if masked is array else masked
    return result.view(labels.dtype).reshape(labels.shape)


def read_ids(store: Store, key: str) -> frozenset[int]:
    """Return the ids in a JSON file: a list of integers, as numbers or strings.

    Args:
        store: store of the file.
        key: key of the file in the store.

    Raises:
        VolumeNotFoundError: the file does not exist.
        VolumeError: the file does not contain a list of ids, or the list is empty.
    """
    data = store.get(key)
    address = f"{store.url.rstrip('/')}/{key}"
    if data is None:
        msg = f"{address} does not exist; check --selected-obj-ids"
        raise VolumeNotFoundError(msg)
    try:
        # The ids of a JSON object (a Python dict) are its keys.
        ids = frozenset(_number(each) for each in parse_json(data, None))
    except (ValueError, TypeError) as error:
        msg = f"{address} is not a list of ids ({error}); write a list such as [34, 56, 78]"
        raise VolumeError(msg) from error
    if not ids:
        msg = (
            f"{address} lists no ids, so all objects would be removed; add ids, as in [34, 56, 78]"
        )
        raise VolumeError(msg)
    return ids


def ids_of_text(text: str) -> frozenset[int]:
    """Return the ids in a text such as ``34,56,78``.

    Raises:
        OptionError: *text* is not a list of ids.
    """
    try:
        return frozenset(_number(part) for part in text.split(","))
    except ValueError as error:
        msg = (
            f"--selected-obj-ids {text!r} is neither a list of ids nor the address of a JSON "
            "file; write 34,56,78 or s3://bucket/ids.json"
        )
        raise OptionError(msg) from error


def _number(value: Any) -> int:
    number = int(value)
    if isinstance(value, (bool, float)) or number < 0:
        msg = f"{value!r} is not an integer of at least 0"
        raise ValueError(msg)
    return number


def fill_holes(labels: NDArray[Any]) -> NDArray[Any]:
    """Fill the holes of objects: background that is enclosed by one object.

    An object encloses a hole if every path from the hole to the boundary of the array passes
    through that object. A path goes from voxel to voxel through shared faces. Other objects inside
    the hole do not change. Background that touches several objects is a hole only if one of them
    encloses the background and all the other objects.

    ```
    1 1 1 1        1 1 1 1
    1 0 0 1   ->   1 1 1 1
    1 1 0 1        1 1 1 1
    1 1 1 1        1 1 1 1
    ```

    Enclosed background that touches several objects takes longer to fill.

    Args:
        labels: (z, y, x) integers, 0 is background.

    Returns:
        The filled labels, same shape and type.

    Raises:
        ChunkError: the voxels are not labels.
    """
    import cc3d

    check_labels(labels)
    filled = labels.copy()
    if min(labels.shape) < 3:
        return filled
    pieces, is_inner = _inner_pieces(labels == 0)
    inner = np.flatnonzero(is_inner[pieces])
    if not len(inner):
        return filled
    piece, flat = pieces.ravel()[inner], labels.ravel()
    # The smallest and the largest label around each piece.
    low = np.full(len(is_inner), flat.max(), labels.dtype)
    high = np.full(len(is_inner), flat.min(), labels.dtype)
    for place in _beside(inner, labels.shape):
        has_label = flat[place] != 0
        np.minimum.at(low, piece[has_label], flat[place][has_label])
        np.maximum.at(high, piece[has_label], flat[place][has_label])
    filled.ravel()[inner] = np.where(low == high, low, labels.dtype.type(0))[piece]
    shared = inner[(low != high)[piece]]
    if len(shared):
        ids, codes = np.unique(labels, return_inverse=True)
        codes = codes.reshape(labels.shape).astype(np.uint32)
        boxes = cc3d.statistics(codes)["bounding_boxes"]
        for label in np.unique(np.concatenate([flat[p] for p in _beside(shared, labels.shape)])):
            code = int(np.searchsorted(ids, label))
            if label:
                box = boxes[code]
                others, is_enclosed = _inner_pieces(codes[box] != code)
                filled[box][is_enclosed[others] & (filled[box] == 0)] = label
    return filled


def check_labels(labels: NDArray[Any]) -> None:
    """Refuse voxels that cannot be ids of objects.

    Raises:
        ChunkError: the voxels are not integers.
    """
    if labels.dtype.kind not in "bui":
        msg = (
            f"voxels of type {labels.dtype} are intensities or probabilities, not labels of "
            "objects; run connected-components or agglomerate first"
        )
        raise ChunkError(msg)


def _inner_pieces(background: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    # The 6-connected components of *background*, and for each, whether it touches no face of the
    # array. The library fill-voids also fills some voxels on edges of the array.
    import cc3d

    pieces = cc3d.connected_components(background, connectivity=6)
    is_inner = np.ones(int(pieces.max()) + 1, bool)
    is_inner[0] = False
    for axis in range(3):
        for end in (0, -1):
            is_inner[pieces.take(end, axis).ravel()] = False
    return pieces, is_inner


def _beside(places: NDArray[np.int64], shape: tuple[int, ...]) -> Iterator[NDArray[np.int64]]:
    for axis in range(3):
        step = int(np.prod(shape[axis + 1 :]))
        yield places - step
        yield places + step

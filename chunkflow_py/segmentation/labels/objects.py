"""What is done with single objects of a segmentation: chosen by size or id, and filled."""

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
    """Return *labels* without small objects and those that are not selected.

    Args:
        labels: any shape, integers; 0 is background.
        least_voxels: objects of fewer voxels become 0.
        selected: ids to keep (default: all).

    Returns:
        The same shape and type.

    Raises:
        ChunkError: the voxels are no labels.
    """
    import fastremap

    check_labels(labels)
    array = np.ascontiguousarray(labels)
    # Unsigned: of negative int8 the library crashes.
    array = array if array.dtype.kind == "u" else array.view(f"u{array.dtype.itemsize}")
    masked = array
    if least_voxels > 1:
        ids, sizes = fastremap.unique(array, return_counts=True)
        small = ids[(sizes < least_voxels) & (ids != 0)]
        masked = fastremap.mask(array, small.tolist())
    if selected is not None:
        highest = 1 if labels.dtype == bool else np.iinfo(labels.dtype).max  # no id is above it
        kept = [label for label in selected if label <= highest]
        masked = fastremap.mask_except(masked, kept) if kept else np.zeros_like(array)
    result: NDArray[Any] = masked.copy() if masked is array else masked
    return result.view(labels.dtype).reshape(labels.shape)


def read_ids(store: Store, key: str) -> frozenset[int]:
    """Return the ids of a JSON file: a list of whole numbers, or of texts that are.

    Args:
        store: that holds the file.
        key: of the file.

    Raises:
        VolumeNotFoundError: there is none.
        VolumeError: it holds something else, or nothing.
    """
    data = store.get(key)
    what = f"{store.url.rstrip('/')}/{key}"
    if data is None:
        msg = f"{what} does not exist; check --selected-obj-ids"
        raise VolumeNotFoundError(msg)
    try:
        said = parse_json(data, None)
        # An object has its ids as names, as Python's json writes a dict.
        ids = frozenset(_number(each) for each in said)
    except (ValueError, TypeError) as error:
        msg = f"{what} is no list of ids ({error}); write [34, 56, 78]"
        raise VolumeError(msg) from error
    if not ids:
        msg = f"{what} lists no id, so that nothing would be left; write [34, 56, 78]"
        raise VolumeError(msg)
    return ids


def ids_of_text(text: str) -> frozenset[int]:
    """Return the ids of a text such as ``34,56,78``.

    Raises:
        OptionError: it is no such text.
    """
    try:
        return frozenset(_number(part) for part in text.split(","))
    except ValueError as error:
        msg = (
            f"--selected-obj-ids {text!r} is neither a list of ids nor a JSON file of one; write "
            "34,56,78 or s3://bucket/ids.json"
        )
        raise OptionError(msg) from error


def _number(said: Any) -> int:
    number = int(said)
    if isinstance(said, (bool, float)) or number < 0:
        msg = f"{said!r} is not a whole number from 0 on"
        raise ValueError(msg)
    return number


def fill_holes(labels: NDArray[Any]) -> NDArray[Any]:
    """Return *labels* with the holes of each object filled: background that it encloses.

    A hole is enclosed by one object alone: on every way by faces of voxels from it to the faces of
    the array, that object is met. Other objects in it stay. A hole between several objects is no
    hole, unless one of them encloses the others, too.

    ```
    1 1 1 1        1 1 1 1
    1 0 0 1   ->   1 1 1 1      the piece of background touches one object and not the faces of
    1 1 0 1        1 1 1 1      the array: it is filled at once, without a look at the object
    1 1 1 1        1 1 1 1
    ```

    Only where a piece of background touches several objects are these looked at, each in its box.

    Args:
        labels: (z, y, x) integers, 0 is background.

    Returns:
        The same shape and type.

    Raises:
        ChunkError: the voxels are no labels.
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
    # of each piece the smallest and the largest of the labels around it
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
        ChunkError: they are no integers.
    """
    if labels.dtype.kind not in "bui":
        msg = (
            f"voxels of type {labels.dtype} are a map, no ids of objects; make some by "
            "connected-components or agglomerate first"
        )
        raise ChunkError(msg)


def _inner_pieces(background: NDArray[np.bool_]) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the pieces of a background that hang together by faces, and which are inside.

    The library fill-voids does the same, but fills some voxels on edges of the array, too.

    Args:
        background: (z, y, x).

    Returns:
        (z, y, x) pieces, 0 where there is none; of each piece whether it does not touch the faces
        of the array.
    """
    import cc3d

    pieces = cc3d.connected_components(background, connectivity=6)
    is_inner = np.ones(int(pieces.max()) + 1, bool)
    is_inner[0] = False
    for axis in range(3):
        for end in (0, -1):
            is_inner[pieces.take(end, axis).ravel()] = False
    return pieces, is_inner


def _beside(places: NDArray[np.int64], shape: tuple[int, ...]) -> Iterator[NDArray[np.int64]]:
    """Yield the flat places of the neighbours by faces of voxels that all lie inside."""
    for axis in range(3):
        step = int(np.prod(shape[axis + 1 :]))
        yield places - step
        yield places + step

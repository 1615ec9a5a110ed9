"""Convert voxels to another dtype by fixed rules; the contrast of images is never stretched.

A map is a float chunk of kind ``probability`` or ``affinity``, or of unknown kind with all values
in [0, 1].

| from      | to               | rule                                                            |
|-----------|------------------|-----------------------------------------------------------------|
| map       | uint8, uint16    | clamp each value p to [0, 1], count the clamped voxels, and     |
|           |                  | round 255·p (uint16: 65535·p) half to even                      |
| float     | integer          | round half to even; a value that does not fit is an error       |
| integer   | integer or float | the same number; a value that does not fit is an error          |
| float     | float            | the nearest value; an overflow is an error                      |

Two conversions are always errors: floats of kind ``logit``, ``vector`` or ``embedding`` to integers
or bool; floats of unknown kind with values outside [0, 1] to uint8 or uint16.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.errors import ChunkError

if TYPE_CHECKING:
    from numpy.typing import DTypeLike, NDArray

    from chunkflow_py.core.chunk import Chunk, Kind

logger = logging.getLogger(__name__)


def converted(chunk: Chunk, dtype: DTypeLike | None) -> Chunk:
    """Return *chunk* with voxels of type *dtype*, converted by the rules of this module.

    Args:
        chunk: (z, y, x) or (c, z, y, x), any real dtype.
        dtype: dtype of the result; ``None`` keeps that of *chunk*.

    Raises:
        ChunkError: a value does not fit into *dtype*.
    """
    target = chunk.dtype if dtype is None else np.dtype(dtype)
    if target == chunk.dtype:
        return chunk
    return chunk.with_array(convert(chunk.array, target, chunk.kind))


def convert(array: NDArray[Any], dtype: DTypeLike, kind: Kind | None) -> NDArray[Any]:
    """Return *array* as *dtype*, converted by the rules of this module.

    Args:
        array: array of any shape and real dtype; not modified.
        dtype: dtype of the result: bool, integer or float.
        kind: meaning of the voxels. For uint8 and uint16, floats of a probability or affinity map
            are scaled from [0, 1] to the range of the dtype; other floats are rounded.

    Raises:
        ChunkError: a value does not fit into *dtype*.
    """
    target = np.dtype(dtype)
    if array.size == 0 or target == array.dtype:
        return array.astype(target)
    low, high = array.min(), array.max()
    if target.kind == "f":
        return _to_float(array, target, low, high)
    if not (np.isfinite(low) and np.isfinite(high)):
        msg = (
            f"{array.dtype} voxels from {low} to {high} cannot become {target}, which has neither "
            "NaN nor infinity; keep a float type"
        )
        raise ChunkError(msg)
    if array.dtype.kind == "f" and kind in ("logit", "vector", "embedding"):
        msg = (
            f"{array.dtype} voxels of kind {kind}, from {low:g} to {high:g}, cannot become "
            f"{target}, because rounding would destroy their values; keep float16 or float32"
        )
        raise ChunkError(msg)
    if array.dtype.kind == "f" and target.kind == "u" and target.itemsize <= 2:
        if kind in ("probability", "affinity") or (kind is None and low >= 0 and high <= 1):
            return _map_to_integer(array, target)
        if kind is None:
            msg = (
                f"float voxels of unknown kind, from {low:g} to {high:g}, cannot become {target}: "
                "such voxels count as probabilities, which must be in [0, 1]; for an image that "
                "may be rounded, give the loader --layer-type image; otherwise, keep a float type"
            )
            raise ChunkError(msg)
    info: Any = (0, 1) if target.kind == "b" else np.iinfo(target)
    lowest, highest = info if target.kind == "b" else (int(info.min), int(info.max))
    if round(low.item()) < lowest or round(high.item()) > highest:
        msg = (
            f"{array.dtype} voxels from {low} to {high} do not fit into {target}, whose range is "
            f"{lowest} to {highest}; choose a wider --dtype"
        )
        raise ChunkError(msg)
    if array.dtype.kind != "f":
        return array.astype(target)
    result = np.empty(array.shape, target)
    for index in np.ndindex(array.shape[:-2]):
        result[index] = np.rint(array[index])
    return result


def _to_float(array: NDArray[Any], target: np.dtype[Any], low: Any, high: Any) -> NDArray[Any]:
    info = np.finfo(target)
    if array.dtype.kind == "f":
        finite = np.isfinite(low) and np.isfinite(high)
        if finite and max(-float(low), float(high)) > float(info.max):
            msg = (
                f"{array.dtype} voxels from {low} to {high} do not fit into {target}, whose "
                f"largest value is {info.max}; choose a wider --dtype"
            )
            raise ChunkError(msg)
        return array.astype(target)
    exact = 2 ** (info.nmant + 1)
    if max(-int(low), int(high)) > exact:
        msg = (
            f"{array.dtype} voxels from {low} to {high} cannot be stored exactly as {target}, "
            f"because integers above {exact} may be rounded; choose a wider --dtype"
        )
        raise ChunkError(msg)
    return array.astype(target)


def map_to_integer(values: NDArray[Any], out: NDArray[Any]) -> int:
    """Convert a float map to integers: clamp each value p to [0, 1], and round 255·p or 65535·p.

    Rounding is half to even. float16 values are first converted to float32, because float16 cannot
    represent 65535. Other values are multiplied in their own precision.

    Args:
        values: float map of any shape, without NaN; not modified.
        out: array for the result, of the same shape: uint8 (for 255·p) or uint16 (for 65535·p).

    Returns:
        The number of clamped voxels.
    """
    values = values.astype(np.float32 if values.dtype.itemsize < 4 else values.dtype, copy=False)
    clamped = 0
    if values.size and not (values.min() >= 0 and values.max() <= 1):
        clamped = int(np.count_nonzero((values < 0) | (values > 1)))
        values = np.clip(values, 0, 1)
    section = values * values.dtype.type(np.iinfo(out.dtype).max)
    np.rint(section, out=section)
    out[...] = section
    return clamped


def _map_to_integer(array: NDArray[Any], target: np.dtype[Any]) -> NDArray[Any]:
    result = np.empty(array.shape, target)
    # section by section, so that no second float array of the whole chunk is made
    sections = np.ndindex(array.shape[:-2])
    clamped = sum(map_to_integer(array[index], result[index]) for index in sections)
    if clamped:
        logger.warning(
            "%d of %d voxels were outside [0, 1] and were clamped before conversion to %s",
            clamped, array.size, target,
        )  # fmt: skip
    return result

"""Chunk: an array with its position in a volume, voxel size and kind."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args, overload

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from chunkflow_py.core.geometry import BoundingBox, Zyx, equal_boxes_remedy
from chunkflow_py.errors import ChunkError, GeometryError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import DTypeLike, NDArray

Kind = Literal["image", "segmentation", "probability", "affinity", "logit", "vector", "embedding"]
KINDS: tuple[Kind, ...] = get_args(Kind)


def check_no_nan(array: NDArray[Any]) -> None:
    """Raise an error if a voxel is NaN, which cannot be compared with a threshold.

    Raises:
        ChunkError: a voxel is NaN; the message states how many voxels are NaN.
    """
    if array.dtype.kind != "f" or not np.isnan(array.min(initial=0)):  # NaN if one of them is
        return
    count = int(np.isnan(array).sum())
    msg = (
        f"{count} of {array.size} voxels are NaN, which cannot be compared with a threshold; find "
        "the operator that makes NaN, or replace NaN in a plugin that calls numpy.nan_to_num"
    )
    raise ChunkError(msg)


def above(array: NDArray[Any], threshold: float) -> NDArray[np.bool_]:
    """Return a mask of the voxels above *threshold*; 64-bit integers are compared exactly.

    Args:
        array: any shape, any real dtype.
        threshold: threshold in the unit of the voxels; a voxel equal to it is not in the mask.

    Raises:
        ChunkError: a voxel is NaN.
    """
    check_no_nan(array)
    if array.dtype.kind in "iu" and math.isfinite(threshold):
        threshold = math.floor(threshold)  # a float threshold would convert all voxels to float
    result: NDArray[np.bool_] = array > threshold
    return result


class Voxels(NamedTuple):
    """Dtype, channels and kind of an array that has not been computed yet.

    Attributes:
        dtype: name of the NumPy dtype.
        channels: number of channels.
        kind: what the voxels are, such as ``image`` (see `Chunk`); ``None`` if unknown.
        has_channel_axis: whether an array with a single channel is 4D. An array with several
            channels is always 4D.
        channel_names: one name per channel; empty if the names are unknown.
    """

    dtype: str
    channels: int
    kind: Kind | None
    has_channel_axis: bool = False
    channel_names: tuple[str, ...] = ()


class Chunk(NDArrayOperatorsMixin):
    """A 3D or 4D array of voxels with its position, voxel size and kind.

    ```
    domain  |------------------------------------------|   volume that the chunk was cut from
    bbox            |-----------|                          chunk: from voxel_offset, of extent size
    ```

    NumPy functions work on the array: ``np.asarray(chunk)``, ``chunk + 1``, ``np.maximum(a, b)``.
    A ufunc of two chunks requires equal boxes. ``chunk[box]`` cuts out a box in global coordinates.

    Attributes:
        array: voxels, of shape (z, y, x) or (c, z, y, x) and any dtype, in this machine's byte
            order.
        voxel_offset: global position of the first voxel, voxels, zyx.
        voxel_size_nm: edge lengths of a voxel, nanometres, zyx.
        kind: ``image``, ``segmentation``, ``probability``, ``affinity`` (channels are x, y, z),
            ``logit``, ``vector`` (channels are x, y, z), ``embedding``, or ``None`` when unknown.
        domain: bounds of the volume that the chunk was cut from (default: the box of the chunk).
    """

    __slots__ = ("array", "domain", "kind", "voxel_offset", "voxel_size_nm")

    def __init__(
        self,
        array: NDArray[Any],
        voxel_offset: Iterable[int] = (0, 0, 0),
        voxel_size_nm: Iterable[float] = (1.0, 1.0, 1.0),
        kind: Kind | None = None,
        domain: BoundingBox | None = None,
    ) -> None:
        """Wrap *array* without copying it, unless its byte order is not the machine's.

        Raises:
            ChunkError: the array is not 3D or 4D, the kind is unknown, or the voxel size is not
                three positive numbers.
            GeometryError: the chunk exceeds *domain*.
        """
        if array.ndim not in (3, 4):
            msg = f"a chunk must be (z, y, x) or (c, z, y, x); got an array of shape {array.shape}"
            raise ChunkError(msg)
        if kind is not None and kind not in KINDS:
            msg = f"chunk kind {kind!r} is not one of {', '.join(KINDS)}"
            raise ChunkError(msg)
        size_nm = tuple(float(v) for v in voxel_size_nm)
        if len(size_nm) != 3 or not all(0 < v < float("inf") for v in size_nm):
            msg = f"voxel size must be three positive numbers (nm, zyx), got {size_nm}"
            raise ChunkError(msg)
        if not array.dtype.isnative:  # compiled libraries do not accept another byte order
            array = array.astype(array.dtype.newbyteorder("="))
        self.array = array
        self.voxel_offset = Zyx.of(voxel_offset)
        self.voxel_size_nm: tuple[float, float, float] = (size_nm[0], size_nm[1], size_nm[2])
        self.kind: Kind | None = kind
        self.domain = self.bbox if domain is None else domain
        if not self.domain.contains(self.bbox):
            msg = f"chunk {self.bbox} does not lie inside its domain {self.domain}"
            raise GeometryError(msg)

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the array: (z, y, x), or (c, z, y, x) if the array has a channel axis."""
        return self.array.shape

    @property
    def ndim(self) -> int:
        """Number of axes: 3, or 4 if the array has a channel axis."""
        return self.array.ndim

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type of the voxels."""
        return self.array.dtype

    @property
    def size(self) -> Zyx:
        """Extent in voxels, zyx, without the channel axis."""
        return Zyx.of(self.array.shape[-3:])

    @property
    def channels(self) -> int:
        """Number of channels; 1 without a channel axis."""
        return 1 if self.ndim == 3 else self.shape[0]

    @property
    def bbox(self) -> BoundingBox:
        """The global box of the voxels."""
        return BoundingBox.from_size(self.voxel_offset, self.size)

    def with_array(
        self,
        array: NDArray[Any],
        voxel_offset: Iterable[int] | None = None,
        *,
        kind: Kind | Literal["same"] | None = "same",
    ) -> Chunk:
        """Return a chunk of the voxels in *array*, with the position and voxel size of this chunk.

        Args:
            array: voxels, of shape (z, y, x) or (c, z, y, x). The extent may differ from that of
                this chunk only if *voxel_offset* is given.
            voxel_offset: global position of the first voxel, zyx (default: that of this chunk).
            kind: kind of the new voxels (default: the kind of this chunk).

        Raises:
            ChunkError: the extent differs from that of this chunk, and no offset is given.
        """
        if voxel_offset is None and tuple(array.shape[-3:]) != self.size:
            msg = (
                f"an array of extent {tuple(array.shape[-3:])} cannot replace the array of chunk "
                f"{self.bbox}, which has extent {self.size} (zyx, voxels); give the voxel_offset "
                "of the new array"
            )
            raise ChunkError(msg)
        offset = self.voxel_offset if voxel_offset is None else Zyx.of(voxel_offset)
        box = BoundingBox.from_size(offset, array.shape[-3:])
        return Chunk(
            array,
            offset,
            self.voxel_size_nm,
            self.kind if kind == "same" else kind,
            self.domain.hull(box),
        )

    def astype(self, dtype: DTypeLike) -> Chunk:
        """Return a chunk with the voxels converted to *dtype*, as NumPy does."""
        return self.with_array(self.array.astype(dtype))

    def min(self) -> Any:
        """Return the smallest value of a voxel."""
        return self.array.min()

    def max(self) -> Any:
        """Return the largest value of a voxel."""
        return self.array.max()

    def cut(self, bbox: BoundingBox) -> Chunk:
        """Return the part of the chunk inside *bbox* (global coordinates), without copying it.

        Raises:
            GeometryError: part of the box is outside the chunk.
        """
        # An empty box elsewhere is contained but would index from the wrong end.
        if self.bbox.intersection(bbox) != bbox:
            msg = (
                f"box {bbox} reaches outside of chunk {self.bbox}; "
                f"the part of the box inside the chunk is {bbox.intersection(self.bbox)}"
            )
            raise GeometryError(msg)
        view = self.array[(..., *bbox.slices(self.voxel_offset))]
        return Chunk(view, bbox.start, self.voxel_size_nm, self.kind, self.domain)

    @overload
    def __getitem__(self, key: BoundingBox) -> Chunk: ...
    @overload
    def __getitem__(self, key: Any) -> Any: ...
    def __getitem__(self, key: Any) -> Any:
        """Cut out a box in global coordinates, or index the array as NumPy does."""
        return self.cut(key) if isinstance(key, BoundingBox) else self.array[key]

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the voxels as a NumPy array."""
        return np.array(self.array, dtype=dtype, copy=copy)

    def __array_ufunc__(
        self,
        ufunc: np.ufunc,
        method: Literal["__call__", "reduce", "reduceat", "accumulate", "outer", "at"],
        *inputs: Any,
        **kwargs: Any,
    ) -> Any:
        chunks = [value for value in inputs if isinstance(value, Chunk)]
        outs = kwargs.get("out", ())
        chunks += [value for value in outs if isinstance(value, Chunk)]
        first = chunks[0]
        for other in chunks[1:]:
            if other.bbox != first.bbox:
                msg = (
                    f"{ufunc.__name__} of chunks with different boxes, {first.bbox} and "
                    f"{other.bbox}; {equal_boxes_remedy(first.bbox, other.bbox)}"
                )
                raise ChunkError(msg)
        if outs:
            kwargs["out"] = tuple(v.array if isinstance(v, Chunk) else v for v in outs)
        arrays = [v.array if isinstance(v, Chunk) else v for v in inputs]
        result = getattr(ufunc, method)(*arrays, **kwargs)

        def as_chunk(value: Any, out: Any) -> Any:
            if out is not None:
                return out
            if method != "__call__" or not isinstance(value, np.ndarray):
                return value
            if value.ndim not in (3, 4) or tuple(value.shape[-3:]) != first.size:
                return value
            return first.with_array(value)

        if isinstance(result, tuple):  # a ufunc with two results, such as divmod
            return tuple(map(as_chunk, result, outs or (None,) * len(result)))
        return as_chunk(result, outs[0] if outs else None)

    def __len__(self) -> int:
        """Return the length of the first axis, as NumPy does."""
        return len(self.array)

    def __repr__(self) -> str:
        """Return kind, box, dtype and voxel size."""
        return (
            f"Chunk({self.kind or 'unknown kind'}, {self.bbox}, shape {self.shape}, {self.dtype}, "
            f"voxels of {self.voxel_size_nm} nm)"
        )

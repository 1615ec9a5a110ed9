"""The Chunk class for plugins that were written for chunkflow 1.x."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from chunkflow_py.errors import needs_extra
from chunkflow_py.pipeline.compat.places import BoundingBox, Cartesian, to_cartesian

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import DTypeLike, NDArray

LAYER_TYPES = ("image", "segmentation", "probability_map", "affinity_map", "unknown")


class Chunk(NDArrayOperatorsMixin):
    """An array of shape (z, y, x) or (c, z, y, x), with its position in the volume.

    Other attributes and methods are those of the array: ``chunk.mean()`` calls ``array.mean()``.

    Attributes:
        array: the voxels.
        voxel_offset: global position of the first voxel, zyx.
        voxel_size: edge lengths of a voxel, nanometres, zyx, or ``None``.
    """

    def __init__(
        self,
        array: Any,
        voxel_offset: Iterable[int] | None = None,
        voxel_size: Iterable[float] | None = None,
        layer_type: str | None = None,
    ) -> None:
        """Use the array without copying it; a (y, x) array gets a z axis.

        Raises:
            ValueError: the layer type is unknown.
        """
        if layer_type not in (None, *LAYER_TYPES):
            msg = f"layer type {layer_type!r} is not one of {', '.join(LAYER_TYPES)}"
            raise ValueError(msg)
        if isinstance(array, Chunk):
            voxel_offset = array.voxel_offset if voxel_offset is None else voxel_offset
            array = array.array
        self.array: NDArray[Any] = array if array.ndim > 2 else array[np.newaxis]
        offset = (0, 0, 0) if voxel_offset is None else tuple(voxel_offset)
        self.voxel_offset: Cartesian = Cartesian(*offset[-3:])  # four numbers include the channel
        self.voxel_size: Cartesian | None = to_cartesian(voxel_size)
        self._layer_type = layer_type

    def _like(self, array: NDArray[Any], offset: Iterable[int] | None = None) -> Chunk:
        place = self.voxel_offset if offset is None else offset
        return Chunk(array, place, self.voxel_size, self._layer_type)

    @classmethod
    def from_array(
        cls, array: NDArray[Any], bbox: BoundingBox, voxel_size: Iterable[float] | None = None
    ) -> Self:
        """Return a chunk that begins at the start of *bbox* and shares *array*."""
        return cls(array, voxel_offset=bbox.minpt, voxel_size=voxel_size)

    @classmethod
    def from_chunk(cls, chunk: Chunk) -> Self:
        """Convert a chunk to this class; the array is shared."""
        return cls(chunk.array, voxel_offset=chunk.voxel_offset, voxel_size=chunk.voxel_size)

    @classmethod
    def from_bbox(
        cls,
        bbox: BoundingBox,
        dtype: DTypeLike = np.uint8,
        pattern: str = "zero",
        voxel_size: Iterable[float] | None = None,
    ) -> Self:
        """Return a chunk of zeros that fills a box.

        Raises:
            ValueError: *pattern* is not ``zero``.
        """
        if pattern != "zero":
            msg = f"from_bbox makes chunks with pattern 'zero' only, not {pattern!r}"
            raise ValueError(msg)
        return cls.from_array(np.zeros(bbox.shape.tuple, dtype), bbox, voxel_size)

    # --- properties -------------------------------------------------------------------------------

    @property
    def is_image(self) -> bool:
        """Whether the array has the shape (z, y, x) and the dtype uint8."""
        return bool(self.ndim == 3 and self.dtype == np.uint8)

    @property
    def is_segmentation(self) -> bool:
        """Whether the layer type is segmentation, or the array is 3D with labels.

        All integer dtypes except uint8 count as labels, and so does bool.
        """
        labels = self.dtype.kind in "iub" and self.dtype != np.uint8
        return bool(self._layer_type == "segmentation" or (self.ndim == 3 and labels))

    @property
    def is_affinity_map(self) -> bool:
        """Whether the array has three channels and the dtype float32."""
        return bool(self.ndim == 4 and self.shape[0] == 3 and self.dtype == np.float32)

    @property
    def is_probability_map(self) -> bool:
        """Whether the dtype is float32 and all values are in [0, 1]."""
        return bool(self.dtype == np.float32 and self.max() <= 1 and self.min() >= 0)

    @property
    def layer_type(self) -> str:
        """The layer type that was set; if none was set, a guess from dtype, shape and values."""
        if self._layer_type is not None:
            return self._layer_type
        for name in LAYER_TYPES[:-1]:
            if getattr(self, f"is_{name}"):
                return name
        return "unknown"

    @layer_type.setter
    def layer_type(self, value: str | None) -> None:
        self._layer_type = value

    @property
    def properties(self) -> dict[str, Any]:
        """Voxel offset, voxel size and layer type, by name; unknown values are left out."""
        known = {
            "voxel_offset": self.voxel_offset,
            "voxel_size": self.voxel_size,
            "layer_type": self._layer_type,
        }
        return {name: value for name, value in known.items() if value is not None}

    @properties.setter
    def properties(self, value: dict[str, Any]) -> None:
        self.set_properties(value)

    def set_properties(self, properties: dict[str, Any]) -> None:
        """Set the offset, voxel size and layer type that *properties* contains."""
        for name in ("voxel_offset", "voxel_size", "layer_type"):
            if name in properties:
                setattr(self, name, properties[name])

    # --- position ------------------------------------------------------------------------------

    @property
    def bbox(self) -> BoundingBox:
        """Global box that the chunk covers."""
        return BoundingBox.from_delta(self.voxel_offset, self.array.shape[-3:])

    @property
    def bounding_box(self) -> BoundingBox:
        """Global box that the chunk covers; the same as `bbox`."""
        return self.bbox

    @property
    def start(self) -> Cartesian:
        """Global position of the first voxel, zyx."""
        return self.bbox.start

    @property
    def stop(self) -> Cartesian:
        """Global position after the last voxel, zyx."""
        return self.bbox.stop

    @property
    def ndoffset(self) -> tuple[int, ...]:
        """Global position of the first voxel, (z, y, x), or (0, z, y, x) if there are channels."""
        return (*[0] * (self.ndim - 3), *self.voxel_offset)

    @property
    def voxel_stop(self) -> tuple[int, ...]:
        """Global position after the last voxel, with one number for each axis of the array."""
        return tuple(a + b for a, b in zip(self.ndoffset, self.shape, strict=True))

    @property
    def slices(self) -> tuple[slice, ...]:
        """Global start and stop, as one slice for each axis of the array."""
        return tuple(slice(a, b) for a, b in zip(self.ndoffset, self.voxel_stop, strict=True))

    # --- as an array ------------------------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "array":
            raise AttributeError(name)
        try:
            return getattr(self.array, name)
        except AttributeError:
            kind = type(self).__name__
            msg = (
                f"{kind} has no attribute {name!r} in chunkflow_py; the array is "
                f"{kind.lower()}.array, and docs/from-chunkflow.md lists replacements for other "
                "methods"
            )
            raise AttributeError(msg) from None

    def __array__(self, dtype: DTypeLike | None = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.array, dtype=dtype, copy=copy)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **kwargs: Any) -> Any:
        arrays = [value.array if isinstance(value, Chunk) else value for value in inputs]
        outs = kwargs.get("out", ())
        first = next(value for value in (*inputs, *outs) if isinstance(value, Chunk))
        if outs:
            kwargs["out"] = tuple(out.array if isinstance(out, Chunk) else out for out in outs)
        result = getattr(ufunc, method)(*arrays, **kwargs)
        if len(outs) == 1:
            return outs[0]
        if isinstance(result, np.ndarray) and result.shape == first.shape:
            return first._like(result)
        return result

    def __getitem__(self, index: Any) -> Any:
        return self.array[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        self.array[index] = value

    def __len__(self) -> int:
        return len(self.array)

    def __repr__(self) -> str:
        return f"Chunk({self.bbox.string}, {self.shape}, {self.dtype}, {self.voxel_size})"

    def clone(self) -> Chunk:
        """Return a copy of the chunk that does not share its array."""
        return self._like(self.array.copy())

    def astype(self, dtype: DTypeLike) -> Chunk:
        """Convert the chunk to another dtype; return the chunk itself if it has this dtype."""
        if dtype is None or np.dtype(dtype) == self.dtype:
            return self
        return self._like(self.array.astype(dtype))

    def ascontiguousarray(self) -> Chunk:
        """Return the chunk with its voxels in C order."""
        return self._like(np.ascontiguousarray(self.array))

    def fill(self, x: Any) -> None:
        """Set all voxels to the value *x*."""
        self.array.fill(x)

    def transpose(self, only_array: bool = False) -> Chunk:
        """Return the chunk with reversed axes.

        Args:
            only_array: do not reverse the voxel offset and the voxel size.
        """
        turned = self._like(self.array.transpose())
        if not only_array:
            turned.voxel_offset = self.voxel_offset.inverse
            turned.voxel_size = self.voxel_size and self.voxel_size.inverse
        return turned

    def squeeze_channel(self, axis: int = 0) -> Chunk:
        """Return the chunk without the channel axis, which must have length 1."""
        return self._like(np.squeeze(self.array, axis=axis))

    # --- parts ------------------------------------------------------------------------------

    def _inside(self, slices: Any) -> tuple[Any, ...]:
        local = (
            slice(each.start - offset, each.stop - offset)
            for each, offset in zip(slices, self.ndoffset[-len(slices) :], strict=True)
        )
        return (..., *local)

    def cutout(self, x: Any) -> Chunk:
        """Return a view of the part inside *x*, which is a box or a tuple of global slices."""
        slices = tuple(getattr(x, "slices", x))
        offset = tuple(each.start for each in slices[-3:])
        return self._like(self.array[self._inside(slices)], offset)

    def save(self, patch: Chunk) -> None:
        """Copy a smaller chunk into this chunk, at the global position of the smaller chunk."""
        self.array[self._inside(patch.slices)] = patch.array

    def crop_margin(
        self, margin_size: Iterable[int] | None = None, output_bbox: BoundingBox | None = None
    ) -> Chunk:
        """Return a view without a margin, or a view of the part inside a box.

        Args:
            margin_size: three numbers of voxels to crop at both ends, zyx; or six numbers, three
                for the start and three for the stop.
            output_bbox: global box of the part; used only if *margin_size* is ``None``.
        """
        if margin_size is None and output_bbox is not None:
            return self.cutout(output_bbox)
        margin = tuple(margin_size or (0, 0, 0))
        shrunk = BoundingBox(self.start + margin[:3], self.stop - margin[-3:])
        return self.cutout(shrunk)

    def shrink(self, size: Iterable[int]) -> None:
        """Crop a margin in place.

        Args:
            size: three numbers of voxels to crop at both ends, zyx; or six numbers, three for the
                start and three for the stop.
        """
        part = self.crop_margin(size)
        self.array, self.voxel_offset = part.array, part.voxel_offset

    def threshold(self, threshold: float) -> Chunk:
        """Return a uint8 mask (z, y, x): 1 where the first channel is above *threshold*."""
        array = (self.array > threshold).astype(np.uint8)
        return Chunk(array[0] if array.ndim == 4 else array, self.voxel_offset, self.voxel_size)

    def where(self, mask: NDArray[Any]) -> tuple[Any, ...]:
        """Return the global positions where *mask* is true, one array for each axis."""
        found = np.nonzero(mask)
        return tuple(at + offset for at, offset in zip(found, self.ndoffset, strict=True))


class Image(Chunk):
    """A chunk of an image."""


class Segmentation(Chunk):
    """A chunk of labels."""

    def __init__(self, array: Any, **place: Any) -> None:
        """Set the layer type to segmentation, unless another layer type is given."""
        super().__init__(array, **({"layer_type": "segmentation"} | place))


class AffinityMap(Chunk):
    """A chunk of affinities, (3, z, y, x)."""

    def __init__(self, array: Any, **place: Any) -> None:
        """Set the layer type to affinity_map, unless another layer type is given."""
        super().__init__(array, **({"layer_type": "affinity_map"} | place))


class ProbabilityMap(Chunk):
    """A chunk of probabilities in floating point."""

    def __init__(
        self,
        array: Any,
        voxel_offset: Iterable[int] | None = None,
        voxel_size: Iterable[float] | None = None,
    ) -> None:
        """Set the layer type to probability_map.

        Raises:
            TypeError: the voxels are integers.
        """
        super().__init__(array, voxel_offset, voxel_size, "probability_map")
        if self.dtype.kind != "f":
            msg = f"a ProbabilityMap must have floats, not {self.dtype}; scale them to [0, 1]"
            raise TypeError(msg)

    def detect_points(
        self,
        min_distance: float = 1,
        threshold_rel: float = 0.3,
        exclude_border: Any = True,
        num_peaks: float = np.inf,
        return_confidences: bool = True,
    ) -> Any:
        """Return the positions of peaks, (n, 3), and if *return_confidences*, also their heights.

        If there are no peaks, the positions and the heights are ``None``.

        As in 1.x, the array is first changed in place: its mean is subtracted, negative values
        become 0, and the result is divided by its maximum.

        Raises:
            MissingExtraError: scikit-image is not installed.
        """
        with needs_extra("segmentation", "the search for peaks"):
            from skimage import feature

        self.array -= self.array.mean()
        np.maximum(self.array, 0, out=self.array)
        highest = self.array.max()
        if highest > 0:
            self.array /= highest
        found = feature.peak_local_max(  # type: ignore[no-untyped-call]
            self.array,
            min_distance=int(min_distance),
            threshold_abs=threshold_rel,
            exclude_border=exclude_border,
            num_peaks=num_peaks,
        )
        confidences = self.array[tuple(found.T)] if len(found) else None
        points = found + np.asarray(self.ndoffset) if len(found) else None
        return (points, confidences) if return_confidences else points

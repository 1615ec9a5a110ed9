"""Resample images and labels to another voxel size.

```
nm       0       6   8       12          16  18      24    from the origin of the volume
input    |     0     |     1     |     2     |             voxels of 8 nm; centres at 4, 12, 20
result   |   0    |   1    |   2    |   3    |             voxels of 6 nm; centres at 3, 9, 15, 21
```

Each voxel of the result is a weighted mean of the input voxels around its centre. Along an axis,
the weight of an input voxel at a distance of d input voxels from the centre is kernel(d / w). If
voxels become larger, w is the ratio of the sizes: the wider kernel removes details that the larger
voxels cannot represent (antialiasing). If voxels do not become larger, w = 1. Weights are divided
by their sum. At the bounds of the volume, the sum includes existing voxels only. The kernels are:

* ``linear``: 1 - abs(x), and 0 where abs(x) > 1;
* ``cubic``: the cubic convolution of Keys (1981) with a = -0.5, and 0 where abs(x) > 2. It keeps
  more detail than ``linear``, but may exceed the range of the input at sharp edges.

Other programs interpolate without smoothing, and repeat the voxels at the bounds of the volume
(``edge`` of scikit-image, ``nearest`` of SciPy). Two more kernels reproduce these programs. These
two repeat the voxels at the bounds and always use w = 1:

* ``hat``: the kernel of ``linear``;
* ``spline``: the cubic spline through the voxels. Its kernel falls by a factor of 0.27 per voxel,
  and is cut off at 14 voxels, where it is 1e-8.

Labels cannot be averaged. ``nearest`` copies the label of the input voxel that contains the centre
of the voxel of the result. ``mode`` chooses the label that covers the largest part of the voxel of
the result. If several labels cover equal parts, ``mode`` chooses the smallest of these labels.

Positions are exact fractions, and each voxel is computed by the same operations in the same order.
So the value of a voxel does not depend on the chunk that contains it.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from math import ceil, floor, lcm
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import numpy as np

from chunkflow_py.core.geometry import AXES, BoundingBox, Scale, Zyx
from chunkflow_py.core.processors import usable_cores
from chunkflow_py.errors import ChunkError, GeometryError, OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

Method = Literal["linear", "cubic", "hat", "spline", "nearest", "mode"]
METHODS: tuple[Method, ...] = get_args(Method)

# Distance, in widths of the kernel, from which it is 0.
_SUPPORT = {"linear": 1, "cubic": 2, "hat": 1, "spline": 14}
_SHARP = ("hat", "spline")  # never smooth, and repeat voxels at the bounds
_POLE = 3**0.5 - 2  # of the filter whose result are the coefficients of a cubic spline
_MOST_THREADS = 4
_STRIP = 2**16  # voxels of the result that are voted on at once
_LARGEST = 2**24  # of the numbers of a fraction, so that positions fit into 64 bits


class _Taps(NamedTuple):
    """Taps along one axis: the input voxels that contribute to each voxel of the result.

    Attributes:
        position: array of shape (voxels, taps): position of each tap along the axis, in voxels of
            the volume.
        weight: array of shape (voxels, taps): weight of each tap; 0 for taps that are not used.
    """

    position: NDArray[np.int64]
    weight: NDArray[np.float64]


class NetworkGrid(NamedTuple):
    """The voxels in which a network processes an image, and how values are interpolated.

    Attributes:
        resampling: resampling of the image to the voxels of the network.
        methods: method for each axis, zyx, to interpolate the outputs of the network at the voxels
            of the image.
        domain: bounds of the image, in voxels of the network.
    """

    resampling: Resampling
    methods: tuple[Method, Method, Method]
    domain: BoundingBox


@dataclass(frozen=True)
class Resampling:
    """Resamples arrays by a fixed ratio.

    Attributes:
        scale: size of a voxel of the result in input voxels, zyx.
        method: one of `METHODS`, or three of `METHODS` for the axes z, y and x. ``mode`` cannot be
            combined with other methods.
        origin: corner at which voxel 0 of the result begins, in input voxels, zyx.
    """

    scale: Scale
    method: Method | tuple[Method, Method, Method] = "linear"
    origin: tuple[Fraction | int, Fraction | int, Fraction | int] = (0, 0, 0)

    @property
    def methods(self) -> tuple[Method, Method, Method]:
        """The method for each axis, zyx."""
        return (self.method,) * 3 if isinstance(self.method, str) else self.method

    @property
    def interpolates(self) -> bool:
        """Whether values are averaged, so that the result may contain new values."""
        return any(method in _SUPPORT for method in self.methods)

    def __post_init__(self) -> None:
        """Check the method and the numbers of the ratio.

        Raises:
            OptionError: the method is unknown, or a numerator or denominator of the ratio of the
                voxel sizes has more than 24 bits.
        """
        for method in self.methods:
            if method not in METHODS or (method == "mode" and self.method != "mode"):
                choices = METHODS if isinstance(self.method, str) else METHODS[:-1]
                msg = f"method {method!r} is not one of {', '.join(choices)}"
                raise OptionError(msg)
        for axis, factor in zip(AXES, self.scale, strict=True):
            if max(factor.numerator, factor.denominator) >= _LARGEST:
                msg = (
                    f"the ratio of the voxel sizes along {axis} is {factor}, whose numerator or "
                    f"denominator has more than 24 bits; round the voxel sizes to fewer digits"
                )
                raise OptionError(msg)

    @property
    def inverse(self) -> tuple[Scale, tuple[Fraction | int, Fraction | int, Fraction | int]]:
        """Scale and origin of the opposite resampling, from the result to the input."""
        back = self.scale.inverse
        z, y, x = (-at * factor for at, factor in zip(self.origin, back, strict=True))
        return back, (z, y, x)

    @classmethod
    def at_corner(
        cls, scale: Scale, box: BoundingBox, method: Method | tuple[Method, Method, Method]
    ) -> Resampling:
        """Return the resampling in which a voxel of the result begins at the start of *box*.

        Args:
            scale: size of a voxel of the result in input voxels, zyx.
            box: box of input voxels.
            method: one of `METHODS`, or three of `METHODS` for the axes z, y and x.
        """
        first = scale.coarser(box).start
        rows = zip(box.start, first, scale, strict=True)
        z, y, x = (start - number * factor for start, number, factor in rows)
        return cls(scale, method, (z, y, x))

    def output_box(self, box: BoundingBox) -> BoundingBox:
        """Convert *box* from input voxels to voxels of the result, as `Scale.coarser` does."""
        return self.scale.coarser(box, self.origin)

    def required_input(self, box: BoundingBox, domain: BoundingBox) -> BoundingBox:
        """Return the input box that the result in *box* depends on.

        Args:
            box: box of the result, in voxels of the result.
            domain: bounds of the input volume, in input voxels.
        """
        if box.is_empty:
            return BoundingBox(domain.start, domain.start)
        starts, stops = [], []
        for axis in range(3):
            ends = (box.start[axis], box.stop[axis] - 1)
            low, high = (self._span(axis, at) for at in ends)
            first, last = domain.start[axis], domain.stop[axis] - 1
            starts.append(min(max(low[0], first), last))
            stops.append(min(max(high[1], first), last) + 1)
        return BoundingBox(Zyx(*starts), Zyx(*stops))

    def __call__(
        self, array: NDArray[Any], box: BoundingBox, target: BoundingBox, domain: BoundingBox
    ) -> NDArray[Any]:
        """Return the resampled voxels.

        Args:
            array: voxels, of shape (z, y, x) or (c, z, y, x) and any real dtype; bool only with the
                methods for labels.
            box: box of *array*, in input voxels.
            target: box to compute, in voxels of the result.
            domain: bounds of the input volume, in input voxels. If *box* lacks input voxels that
                *target* needs, the volume is treated as if it ended at the end of *box*.

        Returns:
            An array with the dtype and the channels of *array*. Integers are rounded half to even,
            and clipped to the range of the dtype.

        Raises:
            ChunkError: the method interpolates, which is impossible for the dtype of *array*.
            GeometryError: *array* contains no voxel of *domain*.
        """
        self.check_dtype(array.dtype)
        inside = box.intersection(domain)
        result = np.empty((*array.shape[:-3], *target.size), array.dtype)
        if not result.size:
            return result
        if inside.is_empty:
            msg = (
                f"the input box {box} contains no voxel of the volume {domain} (zyx, voxels); "
                "give an input that intersects the volume"
            )
            raise GeometryError(msg)
        part = array[(..., *inside.slices(box.start))]
        if self.methods == ("nearest",) * 3:
            index = [self._nearest(axis, target, inside) for axis in range(3)]
            for channel in np.ndindex(array.shape[:-3]):
                result[channel] = part[channel][np.ix_(*index)]
            return result
        for channel in np.ndindex(array.shape[:-3]):
            if self.method == "mode":
                self._vote(part[channel], inside, target, result[channel])
            else:
                self._interpolate(part[channel], inside, target, result[channel])
        return result

    def check_dtype(self, dtype: np.dtype[Any]) -> None:
        """Raise an error if voxels of *dtype* cannot be resampled with this method.

        Raises:
            ChunkError: the voxels are bool or integers of 64 bits, and the method interpolates.
        """
        wide = dtype.kind in "iu" and dtype.itemsize == 8
        if self.interpolates and (dtype.kind == "b" or wide):
            msg = (
                f"voxels of {dtype} cannot be interpolated (--method {self.method}); use --method "
                "nearest or mode, which keep the values"
            )
            raise ChunkError(msg)

    # --- positions ------------------------------------------------------------------------------

    def _span(self, axis: int, voxel: int) -> tuple[int, int]:
        factor, method = Fraction(self.scale[axis]), self.methods[axis]
        origin = self.origin[axis]
        if method == "nearest":
            at = floor((2 * voxel + 1) * factor / 2 + origin)
            return at, at
        if method == "mode":
            return floor(voxel * factor + origin), ceil((voxel + 1) * factor + origin) - 1
        if self._keeps(axis):
            return voxel, voxel
        centre = ((2 * voxel + 1) * factor - 1) / 2 + origin
        width = Fraction(1) if method in _SHARP else max(factor, Fraction(1))
        reach = _SUPPORT[method] * width
        return floor(centre - reach) + 1, ceil(centre + reach) - 1

    def _keeps(self, axis: int) -> bool:
        return self.scale[axis] == 1 and self.origin[axis] == 0

    def _numbers(self, axis: int) -> tuple[int, int, int]:
        # Voxel j of the result begins at (j p + a) / q, in input voxels.
        (p, q), (a, b) = (each[axis].as_integer_ratio() for each in (self.scale, self.origin))
        common = lcm(q, b)
        return p * (common // q), common, a * (common // b)

    def _nearest(self, axis: int, target: BoundingBox, box: BoundingBox) -> NDArray[np.int64]:
        p, q, a = self._numbers(axis)
        voxels = np.arange(target.start[axis], target.stop[axis], dtype=np.int64)
        index = ((2 * voxels + 1) * p + 2 * a) // (2 * q)
        return np.clip(index, box.start[axis], box.stop[axis] - 1) - box.start[axis]

    def _taps(self, axis: int, target: BoundingBox, box: BoundingBox) -> _Taps:
        p, q, a = self._numbers(axis)
        voxels = np.arange(target.start[axis], target.stop[axis], dtype=np.int64)
        # The centre is at ((2 j + 1) p + 2 a - q) / 2 q, in voxels from that of input voxel 0.
        below, rest = np.divmod((2 * voxels + 1) * p + 2 * a - q, 2 * q)
        method = self.methods[axis]
        support, width = _SUPPORT[method], q if method in _SHARP else max(p, q)
        reach = -(-support * width // q)
        offsets = np.arange(-reach, reach + 2)
        index = below[:, None] + offsets
        distance = np.abs(2 * q * offsets - rest[:, None])  # in units of 1 / 2 q
        weight = _KERNELS[method](distance / (2 * width))
        # Compared exactly: what rounding leaves at the end of the kernel is not in `_span`.
        weight[distance >= 2 * width * support] = 0
        if method in _SHARP:
            index = np.clip(index, box.start[axis], box.stop[axis] - 1)
        return _normalised(index, weight, box.start[axis], box.stop[axis])

    def _overlaps(self, axis: int, target: BoundingBox, box: BoundingBox) -> _Taps:
        # The weights are the sizes of the overlaps.
        p, q, a = self._numbers(axis)
        voxels = np.arange(target.start[axis], target.stop[axis], dtype=np.int64)
        first = (voxels * p + a) // q
        index = first[:, None] + np.arange(ceil(p / q) + 1)
        # In units of 1 / q input voxels, which are whole numbers.
        start, stop = voxels[:, None] * p + a, (voxels[:, None] + 1) * p + a
        weight = np.minimum(stop, (index + 1) * q) - np.maximum(start, index * q)
        weight = np.where(
            (index < box.start[axis]) | (index >= box.stop[axis]), 0, np.maximum(weight, 0)
        )
        return _used(index, weight.astype(np.float64), box.start[axis], box.stop[axis])

    # --- values ---------------------------------------------------------------------------------

    def _interpolate(
        self, array: NDArray[Any], box: BoundingBox, target: BoundingBox, out: NDArray[Any]
    ) -> None:
        small = array.dtype.itemsize <= 2 or array.dtype == np.float32
        number: type[Any] = np.float32 if small else np.float64
        values = array
        # The axis that becomes shortest comes first; the order depends on the ratio alone.
        for axis in sorted(range(3), key=lambda axis: (-self.scale[axis], axis)):
            if self._keeps(axis):
                keep = [slice(None)] * 3
                start = target.start[axis] - box.start[axis]
                keep[axis] = slice(start, start + target.size[axis])
                values = values[tuple(keep)]
                continue
            if self.methods[axis] == "nearest":
                values = np.take(values, self._nearest(axis, target, box), axis=axis)
                continue
            taps = self._taps(axis, target, box)
            values = _weighted(values, axis, taps, box.start[axis], number)
        if out.dtype.kind in "iu" and values.dtype.kind == "f":
            limits = np.iinfo(out.dtype)
            values = np.clip(np.rint(values), limits.min, limits.max)
        out[...] = values

    def _vote(
        self, array: NDArray[Any], box: BoundingBox, target: BoundingBox, out: NDArray[Any]
    ) -> None:
        z, y, x = (self._overlaps(axis, target, box) for axis in range(3))
        start = box.start

        def plane(number: int) -> None:
            labels: list[NDArray[Any]] = []
            shares: list[NDArray[np.float64]] = []
            choices = product(*(range(taps.position.shape[1]) for taps in (z, y, x)))
            for a, b, c in choices:
                share = y.weight[:, b, None] * x.weight[None, :, c] * z.weight[number, a]
                if share.any() or not labels:
                    row = array[z.position[number, a] - start.z]
                    index = np.ix_(y.position[:, b] - start.y, x.position[:, c] - start.x)
                    labels.append(row[index].ravel())
                    shares.append(share.ravel())
            winners = np.concatenate(
                [
                    _most(
                        np.stack([each[at : at + _STRIP] for each in labels]),
                        np.stack([each[at : at + _STRIP] for each in shares]),
                    )
                    for at in range(0, labels[0].size, _STRIP)
                ]
            )
            out[number] = winners.reshape(out.shape[1:])

        _by_threads(plane, len(out))


def _linear(x: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.maximum(1 - x, 0))


def _cubic(x: NDArray[np.float64]) -> NDArray[np.float64]:
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))


def _spline(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cardinal cubic spline: 1 at 0, 0 at every other integer."""
    total = np.zeros(x.shape)
    middle = np.floor(x)
    for offset in (-1, 0, 1, 2):
        knot = middle + offset
        # The coefficients of a spline through a single 1: sqrt(3) times powers of the pole.
        coefficient = 3**0.5 * _POLE ** np.abs(knot)
        total += coefficient * _b_spline(np.abs(x - knot))
    return total


def _b_spline(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the cubic B-spline, for distances from its centre."""
    near = 2 / 3 - x * x * (1 - x / 2)
    return np.where(x < 1, near, np.maximum(2 - x, 0) ** 3 / 6)


_KERNELS = {"linear": _linear, "cubic": _cubic, "hat": _linear, "spline": _spline}


def _normalised(
    index: NDArray[np.int64], weight: NDArray[np.float64], start: int, stop: int
) -> _Taps:
    """Return taps whose weights within [start, stop) add up to 1."""
    weight = np.where((index < start) | (index >= stop), 0.0, weight)
    total = np.zeros(len(weight))
    for column in weight.T:  # in a fixed order, so that sums are always the same
        total += column
    alone = total <= 0  # outside of the volume: the nearest voxel
    total[alone] = 1.0
    weight /= total[:, None]
    for row in np.flatnonzero(alone):
        at = np.argmin(np.abs(np.clip(index[row], start, stop - 1) - index[row]))
        weight[row] = 0.0
        weight[row, at] = 1.0
        index[row, at] = min(max(int(index[row, at]), start), stop - 1)
    return _used(index, weight, start, stop)


def _used(index: NDArray[np.int64], weight: NDArray[np.float64], start: int, stop: int) -> _Taps:
    # A tap of weight 0 must not read a voxel outside of the required input: that voxel could be
    # NaN, and 0 times NaN is NaN. Therefore, such a tap is removed if its weight is 0 for all
    # voxels, and otherwise replaced by a tap that its voxel uses.
    columns = (weight != 0).any(axis=0)
    if not columns.any():
        columns[0] = True
    index, weight = index[:, columns], weight[:, columns]
    first = np.argmax(weight != 0, axis=1)
    chosen = np.take_along_axis(index, first[:, None], axis=1)
    index = np.where(weight != 0, index, np.clip(chosen, start, stop - 1))
    return _Taps(index, weight)


def _weighted(
    array: NDArray[Any], axis: int, taps: _Taps, start: int, number: type[Any]
) -> NDArray[Any]:
    index, weight = taps.position - start, taps.weight.astype(number)
    shape = list(array.shape)
    shape[axis] = len(index)
    result = np.empty(shape, number)

    def plane(z: int) -> None:
        into = result[z]
        into[...] = 0
        if axis == 0:
            for at, factor in zip(index[z], weight[z], strict=True):
                if factor != 0:
                    into += array[at] * factor
            return
        values = array[z]
        for tap in range(index.shape[1]):
            factor = weight[:, tap]
            if axis == 1:
                into += values[index[:, tap]] * factor[:, None]
            else:
                into += values[:, index[:, tap]] * factor

    _by_threads(plane, shape[0])
    return result


def _most(labels: NDArray[Any], shares: NDArray[np.float64]) -> NDArray[Any]:
    """Return, for each voxel, the label with the largest sum of shares; if tied, the smallest.

    Args:
        labels: array of shape (candidates, voxels): labels of the input voxels that overlap each
            voxel.
        shares: array of shape (candidates, voxels): sizes of the overlaps, whole numbers.
    """
    # Most voxels lie inside an object: all candidates with a share are equal.
    reference = labels[np.argmax(shares > 0, axis=0), np.arange(labels.shape[1])]
    mixed = ((labels != reference) & (shares > 0)).any(axis=0)
    if not mixed.any():
        return np.asarray(reference)
    labels, shares = labels[:, mixed], shares[:, mixed]
    best, total = reference[mixed], np.full(labels.shape[1], -1.0)
    for candidate in range(len(labels)):
        label = labels[candidate]
        votes = np.where(labels == label, shares, 0.0).sum(axis=0)
        takes = shares[candidate] > 0
        takes &= (votes > total) | ((votes == total) & (label < best))
        best, total = np.where(takes, label, best), np.where(takes, votes, total)
    reference[mixed] = best
    return np.asarray(reference)


def _by_threads(work: Callable[[int], None], count: int) -> None:
    """Call *work* once with each of the numbers from 0 to count - 1, in several threads."""
    threads = min(usable_cores(), _MOST_THREADS, count)
    if threads < 2:
        for number in range(count):
            work(number)
        return
    with ThreadPoolExecutor(threads, "resample") as pool:
        list(pool.map(work, range(count)))

"""Positions and inputs of the patches that cover the domain, the bounds of the whole volume.

```
domain       |----------------------------------------|
output patch |oooooooooo|                                 size P, at start + k·(P − overlap)
                     |oooooooooo|
                                      |oooooooooo|        the last patch is moved back to the end
input patch mmm|------------|mmm                          grown by m = (I − P)/2, padded outside
```

P is the size of an output patch, and I is the size of an input patch. The positions of patches do
not depend on how the domain is divided into tasks. The output therefore does not depend on the
tasks either.

``--grid spread`` is the grid of nnU-Net: n patches are spread evenly over the domain along an axis.
Neighbouring patches overlap by at least the given overlap, and the last patch ends where the domain
ends. In the formulas, *size* is the size of the domain:

```
domain       |----------------------------------------|
output patch |oooooooooo|    |oooooooooo|                 patch k at round(k·(size − P)/(n − 1))
                     |oooooooooo|    |oooooooooo|...      n = ceil((size − P)/(P − overlap)) + 1
small domain    |----|
output patch |oooooooooo|                                 centred; padded on both sides
```
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

from chunkflow_py.core.geometry import AXES, BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import GeometryError, OptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

Pad = Literal["reflect", "edge", "zero", "none"]
PADS: tuple[Pad, ...] = get_args(Pad)

_USUAL_OVERLAP = Zyx(4, 64, 64)
_MANY_SPANS = 512  # tasks along one axis; for more, a bound replaces the exact margin


@dataclass(frozen=True)
class PatchGeometry:
    """Sizes of patches, checked to fit together.

    Attributes:
        input_patch_size: size of the network's input, voxels, zyx.
        output_patch_size: size of the part of the network's output that is used, voxels, zyx. This
            part is centred in the input patch.
        output_patch_overlap: voxels that neighbouring output patches share, zyx.
    """

    input_patch_size: Zyx
    output_patch_size: Zyx
    output_patch_overlap: Zyx

    @classmethod
    def of(cls, input_size: Zyx, output_size: Zyx | None, overlap: Zyx | None) -> PatchGeometry:
        """Return the geometry with defaults for the output size and the overlap.

        Args:
            input_size: size of the input patch, voxels, zyx.
            output_size: size of the output patch, voxels, zyx (default: *input_size*).
            overlap: overlap of neighbouring output patches, voxels, zyx (default: 4, 64, 64). If
                the output patch is not larger than the default along an axis, the default along
                this axis is a quarter of the patch size.

        Raises:
            OptionError: the sizes are not compatible.
        """
        output_size = output_size or input_size
        if overlap is None:
            pairs = zip(_USUAL_OVERLAP, output_size, strict=True)
            overlap = Zyx.of(usual if usual < size else size // 4 for usual, size in pairs)
        return cls(input_size, output_size, overlap)

    def __post_init__(self) -> None:
        """Check each axis.

        Raises:
            OptionError: a size is below 1; the output patch is larger than the input patch, or the
                sizes differ by an odd number; or the overlap is not smaller than the output patch.
        """
        sizes = zip(
            AXES,
            self.input_patch_size,
            self.output_patch_size,
            self.output_patch_overlap,
            strict=True,
        )
        for axis, size_in, size_out, overlap in sizes:
            if size_out < 1 or size_in < 1:
                msg = (
                    f"patch sizes must be positive: input patch {self.input_patch_size}, output "
                    f"patch {self.output_patch_size} (zyx, voxels)"
                )
                raise OptionError(msg)
            if size_out > size_in:
                msg = (
                    f"output patch {self.output_patch_size} must not be larger than input patch "
                    f"{self.input_patch_size} along {axis} (zyx, voxels); lower "
                    f"--output-patch-size to "
                    f"{self.output_patch_size.low(self.input_patch_size).as_option}"
                )
                raise OptionError(msg)
            if (size_in - size_out) % 2:
                near = Zyx(*(o - (i - o) % 2 for i, o in zip(
                    self.input_patch_size, self.output_patch_size, strict=True)))  # fmt: skip
                msg = (
                    f"output patch {self.output_patch_size} cannot be centred in input patch "
                    f"{self.input_patch_size}: they differ by {size_in - size_out}, an odd "
                    f"number, along {axis} (zyx, voxels); use --output-patch-size {near.as_option}"
                )
                raise OptionError(msg)
            if not 0 <= overlap < size_out:
                near = self.output_patch_overlap.high((0, 0, 0)).low(self.output_patch_size - 1)
                msg = (
                    f"output overlap {self.output_patch_overlap} must be smaller than output patch "
                    f"{self.output_patch_size} along {axis} (zyx, voxels); set "
                    f"--output-patch-overlap to at most {near.as_option}"
                )
                raise OptionError(msg)

    @property
    def stride(self) -> Zyx:
        """Distance from one output patch to the next, voxels, zyx."""
        return self.output_patch_size - self.output_patch_overlap

    @property
    def margin(self) -> Zyx:
        """Distance between the boundaries of input and output patch on each side, voxels, zyx."""
        return (self.input_patch_size - self.output_patch_size) // 2


@dataclass(frozen=True)
class PatchGrid:
    """The patches that cover a domain.

    Attributes:
        geometry: sizes of the patches.
        domain: bounds of the volume from which input voxels are read.
        pad: padding of input patches outside the domain: ``reflect`` (repeated mirroring),
            ``edge`` or ``zero``. With ``none``, there is no padding, and the output is smaller than
            the domain by one margin on each side.
        keep_stride: keep the distance between all neighbouring patches equal to the stride
            (``--grid padded``). The last patch along an axis may reach beyond the domain, into the
            padding. If false, the last patch is moved back into the domain.
        spread: spread the patches evenly over the domain (``--grid spread``).
    """

    geometry: PatchGeometry
    domain: BoundingBox
    pad: Pad = "reflect"
    keep_stride: bool = False
    spread: bool = False

    def __post_init__(self) -> None:
        """Check that at least one patch fits.

        Raises:
            GeometryError: the domain is empty. With *pad* ``none``: the domain is smaller than an
                input patch, or *keep_stride* is set.
            OptionError: both *keep_stride* and *spread* are set.
        """
        if self.keep_stride and self.spread:
            msg = (
                "a grid cannot both keep the stride (--grid padded) and spread the patches "
                "(--grid spread); choose one of them"
            )
            raise OptionError(msg)
        if self.domain.is_empty:
            msg = f"domain {self.domain} contains no voxels; give a box that is not empty"
            raise GeometryError(msg)
        size, need = self.domain.size, self.geometry.input_patch_size
        if self.pad == "none" and (
            any(a < b for a, b in zip(size, need, strict=True)) or self.keep_stride
        ):
            fits = (
                "--grid padded lets patches reach beyond the domain"
                if self.keep_stride
                else f"the domain needs at least {need}"
            )
            msg = (
                f"input patches of {need} (zyx, voxels) cannot cover domain {self.domain} of size "
                f"{size} without padding: {fits}; use --pad reflect"
            )
            raise GeometryError(msg)

    @property
    def cover(self) -> BoundingBox:
        """Box of all voxels that have an output."""
        if self.pad != "none":
            return self.domain
        return self.domain.grow(-self.geometry.margin)

    @cached_property
    def starts(self) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Positions, in increasing order, at which output patches start along z, y and x."""
        result = []
        for axis in range(3):
            first, last = self.cover.start[axis], self.cover.stop[axis]
            size, stride = self.geometry.output_patch_size[axis], self.geometry.stride[axis]
            if self.spread:
                overlap = self.geometry.output_patch_overlap[axis]
                result.append(_spread_starts(first, last, size, overlap))
                continue
            span = max(0, last - first - size)
            starts = [first + k * stride for k in range(-(-span // stride) + 1)]
            if len(starts) > 1 and not self.keep_stride:
                starts[-1] = last - size
            result.append(tuple(starts))
        return result[0], result[1], result[2]

    def touching(self, box: BoundingBox) -> tuple[range, range, range]:
        """Return the indices, along z, y and x, of the output patches that intersect *box*."""
        z, y, x = (self._touching(axis, box.start[axis], box.stop[axis]) for axis in range(3))
        return z, y, x

    def _touching(self, axis: int, low: int, high: int) -> range:
        size, starts = self.geometry.output_patch_size[axis], self.starts[axis]
        hit = [k for k, start in enumerate(starts) if start < high and start + size > low]
        return range(hit[0], hit[-1] + 1) if hit and low < high else range(0)

    def patches(self, box: BoundingBox) -> Iterator[BoundingBox]:
        """Yield the output boxes of the patches that touch *box*, in grid order (z slowest)."""
        for index in product(*self.touching(box)):
            start = Zyx(*(starts[k] for starts, k in zip(self.starts, index, strict=True)))
            yield BoundingBox.from_size(start, self.geometry.output_patch_size)

    def count(self, box: BoundingBox) -> Zyx:
        """Return the number of patches along each axis that touch *box*."""
        z, y, x = self.touching(box)
        return Zyx(len(z), len(y), len(x))

    def voxels_outside(self, box: BoundingBox) -> int:
        """Return how many voxels of the output patches that touch *box* lie outside *box*.

        This is the largest number of voxels that a task with this box can store for other tasks.
        """
        every = inside = 1  # products over the axes
        for axis, touched in enumerate(self.touching(box)):
            size, low, high = self.geometry.output_patch_size[axis], box.start[axis], box.stop[axis]
            starts = [self.starts[axis][k] for k in touched]
            every *= size * len(starts)
            inside *= sum(min(start + size, high) - max(start, low) for start in starts)
        return every - inside

    def shared(self, box: BoundingBox, other: BoundingBox) -> tuple[int, int]:
        """Count the output patches that touch both boxes, and the voxels of these patches in *box*.

        A voxel in several patches is counted once for each patch.
        """
        count = voxels = 1  # products over the axes
        for axis, (one, two) in enumerate(
            zip(self.touching(box), self.touching(other), strict=True)
        ):
            size, low, high = self.geometry.output_patch_size[axis], box.start[axis], box.stop[axis]
            starts = self.starts[axis][max(one.start, two.start) : min(one.stop, two.stop)]
            count *= len(starts)
            voxels *= sum(min(start + size, high) - max(start, low) for start in starts)
        return count, voxels

    def hull(self, box: BoundingBox) -> BoundingBox:
        """Return the smallest box around the output patches that touch *box*.

        At least one output patch must touch *box*.
        """
        touched = self.touching(box)
        spans = list(zip(self.starts, touched, strict=True))
        low = Zyx.of(starts[hit[0]] for starts, hit in spans)
        last = Zyx.of(starts[hit[-1]] for starts, hit in spans)
        return BoundingBox(low, last + self.geometry.output_patch_size)

    def input_box(self, patch: BoundingBox) -> BoundingBox:
        """Return the input box of an output patch; the input box may reach beyond the domain."""
        return patch.grow(self.geometry.margin)

    def required_input(self, box: BoundingBox) -> BoundingBox:
        """Return the box of the input on which the output in *box* depends.

        This output depends on all patches that touch *box*. The result is the smallest box inside
        the domain that contains the input of these patches, and the voxels from which their padding
        is copied.

        Raises:
            GeometryError: *box* does not intersect the box that the patches cover.
        """
        touched = self.touching(box)
        if not all(touched):
            msg = (
                f"box {box} does not intersect {self.cover}, the box that the patches cover; "
                f"give a box inside {self.cover}"
            )
            raise GeometryError(msg)
        low, high = zip(
            *(self._sources(axis, hit) for axis, hit in enumerate(touched)), strict=True
        )
        return BoundingBox(Zyx.of(low), Zyx.of(high))

    def _sources(self, axis: int, hit: range) -> tuple[int, int]:
        margin, size = self.geometry.margin[axis], self.geometry.output_patch_size[axis]
        first, last = self.starts[axis][hit[0]] - margin, self.starts[axis][hit[-1]] + size + margin
        sources = self.source_indices(first, last, axis)
        inside = sources[sources >= self.domain.start[axis]]
        return int(inside.min()), int(inside.max()) + 1

    def sufficient_margin(
        self, boxes: BoxGrid | Sequence[BoundingBox] | None, output_margin: Zyx
    ) -> Zyx:
        """Return the smallest margin (zyx, voxels) that suffices for the tasks in *boxes*.

        A margin suffices if each box, enlarged by the margin, contains the input for the output in
        the box and in its output margin (see `required_input`).

        Args:
            boxes: boxes of all tasks, or ``None`` for a margin that suffices for any box.
            output_margin: number of voxels around a box, zyx, that are also computed.
        """
        result = []
        for axis in range(3):
            # A voxel at the edge of a box may be the last one of a patch.
            most = self.geometry.output_patch_size[axis] - 1 + self.geometry.margin[axis]
            count = boxes.count[axis] if isinstance(boxes, BoxGrid) else len(boxes or ())
            if not 0 < count <= _MANY_SPANS or boxes is None:
                result.append(most + output_margin[axis])
                continue
            spans = (
                boxes.intervals(axis)
                if isinstance(boxes, BoxGrid)
                else {(box.start[axis], box.stop[axis]) for box in boxes}
            )
            margin = 0
            for low, high in spans:
                first = max(low - output_margin[axis], self.cover.start[axis])
                last = min(high + output_margin[axis], self.cover.stop[axis])
                if hit := self._touching(axis, first, last):
                    need = self._sources(axis, hit)
                    margin = max(margin, low - need[0], need[1] - high)
            result.append(margin)
        return Zyx.of(result)

    def source_indices(self, first: int, last: int, axis: int) -> NDArray[np.int64]:
        """Return the position to read for each position of an input patch along one axis.

        A position inside the domain is returned unchanged. A position in the padding is replaced by
        the position whose voxel is copied: with ``reflect``, the mirrored position, for example.

        Args:
            first: first position along the axis, global voxels.
            last: end of the positions (not included), global voxels.
            axis: 0, 1 or 2 for z, y or x.

        Returns:
            Global positions inside the domain. Exception: with ``pad="zero"``, positions outside
            the domain are replaced by the position just before the start of the domain.
        """
        low, high = self.domain.start[axis], self.domain.stop[axis]
        index = np.arange(first, last) - low
        length = high - low
        if self.pad == "zero":
            return np.where((index < 0) | (index >= length), -1, index) + low
        if self.pad == "reflect" and length > 1:
            period = 2 * (length - 1)
            index = np.abs((index + length - 1) % period - (length - 1))
            return index + low
        return np.clip(index, 0, length - 1) + low

    def breaks_congruence(self, divisor: Zyx) -> bool:
        """Return whether there are two patches whose distance is not a multiple of *divisor*.

        A network with pooling returns different values for the same voxel in two such patches.

        Args:
            divisor: `Backend.divisor` of the network, voxels, zyx.
        """
        return any(
            (start - starts[0]) % step
            for starts, step in zip(self.starts, divisor, strict=True)
            for start in starts
        )

    def amplification(self, box: BoundingBox) -> float:
        """Return the number of output voxels that the network computes per voxel of *box*."""
        patch = self.geometry.output_patch_size.product()
        return self.count(box).product() * patch / max(1, box.voxels)


def _spread_starts(first: int, last: int, size: int, overlap: int) -> tuple[int, ...]:
    # As compute_steps_for_sliding_window of nnU-Net 2.8, whose step is a fraction of the patch. If
    # the overlap is half of an odd patch size, rounded down, the fraction is exactly one half.
    span = last - first - size
    if span <= 0:
        return (first - -span // 2,)
    # In halves of a voxel, so that half an odd patch is an integer.
    halves = size if overlap == size // 2 and size > 1 else 2 * (size - overlap)
    steps = -(-2 * span // halves)
    # Rounded half to even, as np.round does; the quotient is rounded before the product, as there.
    return tuple(first + round(span / steps * k) for k in range(steps + 1))


def divisor_warning(grid: PatchGrid, divisor: Zyx | None) -> str | None:
    """Return a warning if patches are shifted by steps that are not multiples of *divisor*.

    Args:
        grid: grid of the patches.
        divisor: `Backend.divisor` of the network, voxels, zyx, or ``None`` if unknown.

    Returns:
        The warning, or ``None`` if all steps are multiples. For ``--grid spread``, there is no
        warning, because no option can change the steps.
    """
    if divisor is None or grid.spread or not grid.breaks_congruence(divisor):
        return None
    stride = grid.geometry.stride
    if any(stride % divisor):
        overlap = grid.geometry.output_patch_size - stride // divisor * divisor
        size = grid.geometry.output_patch_size
        near = overlap if min(size - overlap) > 0 else size - divisor
        remedy = f"--output-patch-overlap {near.as_option}"
        if not grid.keep_stride:
            remedy += " with --grid padded"
    else:
        remedy = "--grid padded"
    return (
        f"the distances between patches are not multiples of {divisor} (zyx, voxels), the product "
        "of the network's pooling factors (--patch-divisor), so overlapping patches agree less "
        f"well than they could; use {remedy}"
    )

"""Blend patches: add up weighted patches in a strip, and return each row when it is complete.

Patches arrive in the order of the grid: z slowest, then y, then x. A layer is all patches with
equal z, and a row is all patches with equal z and y. The sums of the current row are stored in one
strip. The strip has the size of a patch along z and y, and along x the size of the box that the
patches cover:

```
        y |--- row j ---|                       z |-- layer k --|
              |--- row j+1 ---|                         |-- layer k+1 --|
strip     |=============|                     strip |===========|
done      |===|           returned, because   done  |=====|
                          no later patch
                          touches these voxels
kept          |=========|                     kept        |=====| stored in `carry` until layer k+1
```

Blending needs memory for the strip and for the planes that two layers share. The amount of memory
does not depend on the size of the box along z. A row is still in the CPU cache when it is returned.
Sums are computed in float32 and in the order of the grid, so a voxel has the same bytes in every
box that contains the voxel.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise, product
from typing import TYPE_CHECKING, Literal, NamedTuple, get_args

import numpy as np
import torch

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.inference.patch_grid import PatchGrid

_WEIGHTS_KEPT = 4  # regions: first, inner, last but one and last row of a layer


class BlendedRegion(NamedTuple):
    """The weighted sums of all patches in a box that no later patch touches.

    In the formulas, p is the value of a patch at a voxel, and w is the blending weight.

    Attributes:
        box: box of the sums, global voxels.
        sums: (c, z, y, x) float32, Σ w·p; may be overwritten; valid until the next region.
        weights: (z, y, x) float32, Σ w; must not be changed. If *share* is not ``None``, skipped
            patches (patches without values) are left out of both sums. Where all patches are
            skipped, the weight is the smallest positive number, to avoid a division by 0.
        share: (z, y, x) float32 in [0, 1]: Σ w over the patches with values, divided by Σ w over
            all patches. ``None`` if the share is 1 everywhere or was not requested.
    """

    box: BoundingBox
    sums: torch.Tensor
    weights: torch.Tensor
    share: torch.Tensor | None = None


class Blender:
    """Computes Σ w·p and Σ w over patches with values p and weights w.

    Patches must be added in the order of the grid. The buffers are reused for the next box, if that
    box needs buffers of the same shapes.

    Args:
        window: weights of the voxels of an output patch, (z, y, x) float32. Sums are computed on
            the device of this tensor.
        channels: number of channels of the network's output.
        shares: leave skipped patches (patches without values) out of the sums, and return
            `BlendedRegion.share`. If false, a skipped patch counts as zeros. Use true if an
            activation is applied after blending, because the activation is not linear.
    """

    def __init__(self, window: torch.Tensor, channels: int, *, shares: bool = False) -> None:
        """Allocate the buffers that do not depend on the box."""
        self._shares = shares
        self._without: set[Zyx] = set()  # where patches without values begin
        self._window, self._channels = window, channels
        together = window.device.type != "cpu"
        self._groups = [slice(None)] if together else [slice(c, c + 1) for c in range(channels)]
        self._scratch = window.new_empty((channels if together else 1, *window.shape))
        self._strip = self._carry = torch.empty(0)
        self._weights: OrderedDict[tuple[object, ...], torch.Tensor] = OrderedDict()
        self._row: tuple[int, int] | None = None

    def begin(self, grid: PatchGrid, box: BoundingBox) -> None:
        """Prepare for the patches of *grid* that touch *box*."""
        self.box = box
        self._starts = tuple(
            tuple(starts[k] for k in touched)
            for starts, touched in zip(grid.starts, grid.touching(box), strict=True)
        )
        self._row = None
        self._without.clear()
        height, length, width = self._window.shape
        z, y, x = self._starts
        extent = (y[-1] + length - y[0], x[-1] + width - x[0])
        shared = max((a + height - b for a, b in pairwise(z)), default=0)
        self._strip = self._buffer(self._strip, (height, length, extent[1]))
        self._carry = self._buffer(self._carry, (max(shared, 0), *extent))

    def _buffer(self, old: torch.Tensor, size: tuple[int, int, int]) -> torch.Tensor:
        shape = (self._channels, *size)
        if old.shape == shape:
            return old
        return self._window.new_empty(shape)

    def advance(self, patch: BoundingBox) -> Iterator[BlendedRegion]:
        """Prepare for *patch*; if it begins a row, yield the region of the previous row."""
        row = (self._starts[0].index(patch.start.z), self._starts[1].index(patch.start.y))
        if row != self._row:
            yield from self.finish()
            self._open(row)

    def add(self, patch: BoundingBox, values: torch.Tensor | None, *, weighted: bool) -> None:
        """Add one patch; call `advance` with this patch first.

        Args:
            patch: output box of the patch.
            values: (c, z, y, x) of any floating dtype and strides; not changed. ``None`` for a
                skipped patch: all its values count as zeros, or are left out of the sums if the
                blender was created with *shares*.
            weighted: whether *values* are already multiplied by the window.
        """
        if values is None and self._shares:
            self._without.add(patch.start)
        x = patch.start.x - self._starts[2][0]
        strip = self._strip[..., x : x + patch.size.x]
        for fresh, box in self._parts(patch):
            # Channel by channel on the CPU: the products are still in the cache when added.
            for channels in self._groups:
                into = strip[channels][:, *box]
                if values is None:
                    if fresh:
                        into.zero_()
                    continue
                part = values[channels][:, *box]
                if not weighted:
                    # Multiply, then add: two correctly rounded steps. A fused multiply-add may
                    # round differently in the vector loop and in its tail, and the position of
                    # the tail depends on the width of the box.
                    out = into if fresh else self._scratch[:, *box]
                    part = torch.mul(part, self._window[box], out=out)
                if not fresh:
                    into += part
                elif weighted:
                    into.copy_(part)

    def _parts(self, patch: BoundingBox) -> Iterator[tuple[bool, tuple[slice, slice, slice]]]:
        # Divide a patch into boxes; yield whether a box is fresh, and the slices of the box.
        #
        # No earlier patch covers a fresh box.
        #
        # z   +-----------------+       1  planes that the previous layer touched
        #     |        1        |       2  lines that the previous row touched
        #     +-----+-----------+       3  columns that the previous patch touched
        #     | 2,3 |   fresh   |
        #     +-----+-----------+
        touched = [
            starts[k - 1] + size - starts[k] if (k := starts.index(start)) else 0
            for starts, start, size in zip(
                self._starts, patch.start, self._window.shape, strict=True
            )
        ]
        z, y, x = (slice(n, None) for n in touched)
        every = slice(None)
        for known, box in (
            (touched[0], (slice(touched[0]), every, every)),
            (touched[1], (z, slice(touched[1]), every)),
            (touched[2], (z, y, slice(touched[2]))),
        ):
            if known:
                yield False, box
        yield True, (z, y, x)

    def finish(self) -> Iterator[BlendedRegion]:
        """Yield the region of the current row that no later patch touches; end the row."""
        if self._row is None:
            return
        (layer, row), self._row = self._row, None
        height, length, _ = self._window.shape
        z, y, x = self._starts
        bottom = z[layer + 1] if layer + 1 < len(z) else z[layer] + height
        end = y[row + 1] if row + 1 < len(y) else y[row] + length
        corner = Zyx(z[layer], y[row], x[0])
        done = BoundingBox(corner, Zyx(bottom, end, x[0] + self._strip.shape[3]))
        done = done.intersection(self.box)
        if not done.is_empty:
            sums = self._strip[(slice(None), *done.slices(corner))]
            yield BlendedRegion(done, sums, *self._weights_on(done))
        self._put_by(bottom - z[layer], y[row] - y[0], end - y[row])

    # --- the strip -----------------------------------------------------------------------------

    def _open(self, index: tuple[int, int]) -> None:
        # Copy the sums of the earlier layer to the strip; `add` sets the other voxels.
        layer, row = index
        height, length, _ = self._window.shape
        z, y, _ = self._starts
        fresh = 0 if row == 0 else y[row - 1] + length - y[row]  # lines before it have sums already
        planes = z[layer - 1] + height - z[layer] if layer else 0
        if planes > 0 and fresh < length:
            first = y[row] + fresh - y[0]
            lines = self._carry[:, :planes, first : first + length - fresh]
            self._strip[:, :planes, fresh:] = lines
        self._row = index

    def _put_by(self, planes: int, first: int, lines: int) -> None:
        # Planes after the first *planes* also belong to the next layer, and lines after the first
        # *lines* also belong to the next row.
        height, length, _ = self._window.shape
        if planes < height:
            self._carry[:, : height - planes, first : first + lines] = self._strip[
                :, planes:, :lines
            ]
        # In steps of *lines*, so that source and target of one copy never overlap.
        for start in range(0, length - lines, lines):
            stop = min(start + lines, length - lines)
            self._strip[:, :, start:stop] = self._strip[:, :, start + lines : stop + lines]

    # --- the weights ---------------------------------------------------------------------------

    def _weights_on(self, box: BoundingBox) -> tuple[torch.Tensor, torch.Tensor | None]:
        # Regions that are touched by patches in the same way have the same weights.
        touching = tuple(
            tuple(start - low for start in starts if low - size < start < high)
            for starts, size, low, high in zip(
                self._starts, self._window.shape, box.start, box.stop, strict=True
            )
        )
        key = (*touching, box.size)
        found = self._weights.pop(key, None)
        if found is None:
            if len(self._weights) >= _WEIGHTS_KEPT:
                self._weights.popitem(last=False)
            found = self._sum_of_windows(touching, box.size)
        self._weights[key] = found
        without = {corner - box.start for corner in self._without}
        if without.isdisjoint(product(*touching)):
            return found, None
        # The same terms in the same order for each voxel: where all patches have values, the share
        # is exactly 1 and the weight is exactly Σ w, as in a region without empty patches.
        weights = self._sum_of_windows(touching, box.size, without)
        return weights.clamp_min(torch.finfo(torch.float32).tiny), weights / found

    def _sum_of_windows(
        self,
        starts: Sequence[Sequence[int]],
        size: Zyx,
        without: Collection[tuple[int, ...]] = (),
    ) -> torch.Tensor:
        # In the order in which values are summed, so that a constant image is blended exactly.
        weights = self._window.new_zeros(size)
        for corner in product(*starts):
            if corner in without:
                continue
            pairs = [_shared(*axis) for axis in zip(corner, self._window.shape, size, strict=True)]
            here, there = zip(*pairs, strict=True)
            weights[here] += self._window[there]
        return weights


def _shared(start: int, size: int, extent: int) -> tuple[slice, slice]:
    # The overlap of [0, extent) and [start, start + size), as slices of both.
    low, high = max(start, 0), min(start + size, extent)
    return slice(low, high), slice(low - start, high - start)


Bump = Literal["wu", "zung", "gaussian", "gaussian-monai", "linear", "constant", "nnunet"]
BUMPS: tuple[Bump, ...] = get_args(Bump)


def create_window(size: Zyx, bump: Bump = "wu") -> NDArray[np.float32]:
    """Return the blending weight of each voxel of a patch.

    Along an axis of n voxels, a voxel has the position i = 0 … n−1. Sums Σ and products Π are over
    the three axes:

    * ``wu``: exp(−Σ 1/(1−u²)), u = 2(i+1)/(n+1) − 1, rescaled linearly to [1, 1e6];
    * ``zung``: exp(−Σ (u(1−u))^(−3/2)), u = (i+1)/(n+1), divided by its maximum;
      weights below 1e-6 are set to 1e-6;
    * ``gaussian``: a Gaussian with standard deviation n/8 around the centre, with the maximum 1;
      weights below 1e-6 are set to 1e-6;
    * ``gaussian-monai``: the window of MONAI, which is like ``gaussian``, but weights below 1e-3
      are set to 1e-3, and the maximum is not rescaled to 1;
    * ``linear``: Π min(i+1, n−i), divided by the maximum;
    * ``constant``: 1;
    * ``nnunet``: the window of nnU-Net, a Gaussian with standard deviation n/8 around voxel n//2,
      with the maximum 10.

    Args:
        size: size of the output patch in voxels, zyx.
        bump: name of the window.

    Returns:
        (z, y, x) float32, positive everywhere and symmetric along each axis. Exception: ``nnunet``
        is symmetric only along axes of odd size, because the centre of its Gaussian is voxel n//2.

    Raises:
        OptionError: *bump* is not the name of a window.
    """
    # Terms are computed from integers, so that mirror images are bitwise equal: otherwise a
    # flipped run would blend differently.
    if bump == "constant":
        return np.ones(size, np.float32)
    if bump == "wu":
        window = np.exp(
            -_sum([1 / (1 - ((2 * np.arange(n) + 1 - n) / (n + 1)) ** 2) for n in size])
        )
        low, high = window.min(), window.max()
        if high > low:
            window = (window - low) / (high - low) * (1e6 - 1) + 1
        else:
            window = np.ones_like(window)
    elif bump == "zung":
        places = [np.arange(n) for n in size]
        exponent = _sum([((i + 1) * (len(i) - i) / (len(i) + 1) ** 2) ** -1.5 for i in places])
        # Relative to the smallest exponent, so that the centre never underflows.
        window = np.maximum(np.exp(exponent.min() - exponent), 1e-6)
    elif bump in {"gaussian", "gaussian-monai"}:
        terms = [((np.arange(n) - (n - 1) / 2) / (n / 8)) ** 2 / 2 for n in size]
        exponent = _sum(terms)
        top, least = (exponent.min(), 1e-6) if bump == "gaussian" else (0.0, 1e-3)
        window = np.maximum(np.exp(top - exponent), least)
    elif bump == "nnunet":
        window = 10 * np.exp(-_sum([((np.arange(n) - n // 2) / (n / 8)) ** 2 / 2 for n in size]))
    elif bump == "linear":
        tents = [np.minimum(np.arange(n) + 1, n - np.arange(n)).astype(float) for n in size]
        window = tents[0][:, None, None] * tents[1][:, None] * tents[2]
        window /= window.max()
    else:
        msg = f"window {bump!r} does not exist; --bump must be one of {', '.join(BUMPS)}"
        raise OptionError(msg)
    return window.astype(np.float32)


def _sum(terms: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    return terms[0][:, None, None] + terms[1][:, None] + terms[2]

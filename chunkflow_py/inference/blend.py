"""Blending: weighted patches are summed in a slab that is given out as soon as it is complete.

```
      z   |-- row 0 --|
              |-- row 1 --|
                  |-- row 2 --|
slab      |===|                       complete once row 1 begins: given out, memory reused
              |===|                   complete once row 2 begins
```

The workspace is one slab (output patch height × cross-section of the box), however deep the box.
Sums are made in the order of the grid and in float32, so the bytes of a voxel do not depend on
which box it was computed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from chunkflow_py.geometry import BoundingBox, Zyx

if TYPE_CHECKING:
    from collections.abc import Iterator


class SlabBlender:
    """Sums Σ w·p and Σ w over patches that arrive in grid order, and returns Σ w·p / Σ w.

    Args:
        box: what is to be computed, global voxels.
        channels: of the network's output.
        window: (z, y, x) float32, weights of an output patch.
        device: where the sums are kept.
    """

    def __init__(
        self, box: BoundingBox, channels: int, window: torch.Tensor, device: torch.device
    ) -> None:
        """Allocate the slab once."""
        self.box = box
        self.window = window.to(device)
        height = min(window.shape[0], box.size.z)
        shape = (height, box.size.y, box.size.x)
        self._sum = torch.zeros((channels, *shape), dtype=torch.float32, device=device)
        self._weight = torch.zeros(shape, dtype=torch.float32, device=device)
        self._base = box.start.z

    def add(self, patch: BoundingBox, values: torch.Tensor, *, weighted: bool) -> None:
        """Add one patch; what lies outside of the box is left out.

        Args:
            patch: output box of the patch; its rows must begin at or before the slab's.
            values: (c, z, y, x) float32; overwritten unless *weighted*.
            weighted: whether *values* come multiplied by the window already.
        """
        part = patch.intersection(
            BoundingBox(Zyx(self._base, self.box.start.y, self.box.start.x), self.box.stop)
        )
        # Multiply first, on the whole patch, then add: two correctly rounded steps. A fused
        # multiply-add may round differently in the vector loop and in its tail, and the place of
        # the tail depends on how the box cuts the patch.
        if not weighted:
            values.mul_(self.window)
        inside = part.slices(patch.start)
        slab = part.slices((self._base, self.box.start.y, self.box.start.x))
        self._sum[(slice(None), *slab)] += values[(slice(None), *inside)]
        self._weight[slab] += self.window[inside]

    def finish(self, stop: int) -> Iterator[tuple[int, int, torch.Tensor]]:
        """Give out the rows of the box before *stop*, which no later patch may touch.

        Yields:
            (first row, last row + 1, values): global z, and (c, z, y, x) float32, normalised;
            valid until the next call of this object.
        """
        stop = min(stop, self.box.stop.z)
        rows = stop - self._base
        if rows <= 0:
            return
        values = self._sum[:, :rows]
        values.div_(self._weight[:rows])
        yield self._base, stop, values
        self._shift(rows)
        self._base = stop

    def _shift(self, rows: int) -> None:
        """Move what is still incomplete to the front, and clear behind it."""
        height = self._weight.shape[0]
        keep = height - rows
        # In steps of *rows*, so that source and target of one copy never overlap.
        for first in range(0, keep, rows):
            last = min(first + rows, keep)
            self._sum[:, first:last] = self._sum[:, first + rows : last + rows]
            self._weight[first:last] = self._weight[first + rows : last + rows]
        self._sum[:, keep:] = 0
        self._weight[keep:] = 0

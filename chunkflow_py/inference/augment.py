"""Test-time augmentation: average the network's outputs over flips and transposes of a patch.

Each output is mapped back to the original orientation. A probability belongs to one voxel and moves
with this voxel. An affinity belongs to two voxels: channel d at voxel v links v to its lower
neighbour v-1 along axis d. In a patch flipped along d, the lower neighbour of a voxel is its upper
neighbour in the original patch. When the output is flipped back, each affinity is therefore one
voxel too low along d:

```
links of the patch          0 - 1 - 2 - 3        affinity   .  a  b  c     at 0 1 2 3
links of the flipped patch  3 - 2 - 1 - 0        affinity   .  c  b  a
flipped back                                                a  b  c  .
moved to the next voxel                                     .  a  b  c
```

Plane 0 along d (the dot in the drawing) receives no value from a patch flipped along d. The mean in
plane 0 is therefore computed from the patches that are not flipped along d. A transpose of y and x
swaps the channels y and x.

A vector belongs to one voxel and has a direction, such as towards the centre of a cell. In a patch
flipped along d, the component along d has the opposite sign, so it is negated when the output is
mapped back. A transpose of y and x swaps the components y and x.
"""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import torch

from chunkflow_py.errors import OptionError
from chunkflow_py.inference.network_output import MEANING

if TYPE_CHECKING:
    from collections.abc import Callable

AFFINITY, VECTOR = "affinity", "vector"
_WITH_AXES = tuple(kind for kind, meaning in MEANING.items() if meaning.axes)
# Channel that belongs to each axis (z, y, x), for the channel order x, y, z.
_CHANNEL = (2, 1, 0)


class Symmetry(NamedTuple):
    """One symmetry of a patch: flip some of the axes z, y, x, then possibly swap y and x.

    Attributes:
        flips: for each of the axes z, y, x, whether to flip it.
        transpose: whether to swap y and x afterwards.
    """

    flips: tuple[bool, bool, bool]
    transpose: bool

    def apply(self, batch: torch.Tensor) -> torch.Tensor:
        """Return *batch*, (n, c, z, y, x), flipped and transposed."""
        axes = [axis - 3 for axis in range(3) if self.flips[axis]]
        turned = batch.flip(axes) if axes else batch
        return turned.transpose(-1, -2) if self.transpose else turned

    def undo(self, output: torch.Tensor, kind: str | None = None) -> torch.Tensor:
        """Map the network's *output* for a transformed patch back to the original orientation.

        For affinities and vectors, a transpose also swaps the channels of y and x. For vectors, a
        flip negates the component along the flipped axis. Affinities along a flipped axis are
        still one voxel too low; `augmented` moves them.

        Args:
            output: (n, c, z, y, x); not changed.
            kind: ``affinity``, ``vector``, or anything else for values of single voxels.

        Returns:
            (n, c, z, y, x); may be a view of *output*.
        """
        if self.transpose:
            output = output.transpose(-1, -2)
            if kind in _WITH_AXES:
                order = [1, 0, *range(2, output.shape[1])]
                output = output[:, order]
        axes = [axis - 3 for axis in range(3) if self.flips[axis]]
        output = output.flip(axes) if axes else output
        if kind == VECTOR and axes:  # the flip made a copy
            for axis in axes:
                output[:, _CHANNEL[axis]].neg_()
        return output


def symmetries(*, in_plane: bool = False) -> list[Symmetry]:
    """Return all 16 symmetries, or with *in_plane* the 8 that do not flip z."""
    flips = product((False,) if in_plane else (False, True), (False, True), (False, True))
    return [Symmetry(flip, transpose) for flip in flips for transpose in (False, True)]


def augmented(
    network: Callable[[torch.Tensor], torch.Tensor],
    batch: torch.Tensor,
    kind: str | None = None,
    *,
    in_plane: bool = False,
) -> torch.Tensor:
    """Return the mean output of *network* over the symmetries of a patch.

    Args:
        network: function that maps (n, c, z, y, x) to (n, c, z, y, x). Along z, y and x, the output
            is as large as the input, or smaller by an equal margin at both ends. The output must
            not yet be multiplied by blending weights.
        batch: (n, c, z, y, x) with equal sizes along y and x; not changed.
        kind: ``affinity`` if the first three channels are the affinities of a voxel with its lower
            neighbours along x, y and z. ``vector`` if the first three channels are the components
            x, y and z of a vector. All other channels, and all channels of any other kind, are
            values of single voxels.
        in_plane: use the 8 symmetries that do not flip z instead of all 16.

    Returns:
        (n, c, z, y, x) float32. In plane 0 along an axis, the affinities along this axis are the
        mean over the symmetries that do not flip this axis.

    Raises:
        OptionError: the sizes of *batch* along y and x differ, or an affinity or vector output has
            fewer than three channels.
    """
    height, width = batch.shape[-2:]
    if height != width:
        msg = (
            f"--augment transposes y and x, but the input patch is {height} x {width} (y, x, "
            f"voxels); make --input-patch-size square in plane, or leave --augment out"
        )
        raise OptionError(msg)
    affinity = kind == AFFINITY
    runs = symmetries(in_plane=in_plane)
    total: torch.Tensor | None = None
    for symmetry in runs:
        output = network(symmetry.apply(batch).contiguous())
        if total is None:
            _check(output, kind)
            total = output.new_zeros(output.shape, dtype=torch.float32)
        output = symmetry.undo(output, kind)
        if not affinity:
            total += output
            continue
        for axis, channel in enumerate(_CHANNEL):
            _add(total[:, channel], output[:, channel], axis, moved=symmetry.flips[axis])
        total[:, 3:] += output[:, 3:]
    if total is None:  # pragma: no cover  (there is always the identity)
        return batch
    total /= len(runs)
    if affinity:
        for axis, channel in enumerate(_CHANNEL):
            have = sum(not symmetry.flips[axis] for symmetry in runs)
            total[:, channel].narrow(axis - 3, 0, 1).mul_(len(runs) / have)
    return total


def _add(total: torch.Tensor, values: torch.Tensor, axis: int, *, moved: bool) -> None:
    if not moved:
        total += values
        return
    size = total.shape[axis - 3]
    total.narrow(axis - 3, 1, size - 1).add_(values.narrow(axis - 3, 0, size - 1))


def _check(output: torch.Tensor, kind: str | None) -> None:
    height, width = output.shape[-2:]
    if height != width:
        msg = (
            f"--augment transposes y and x, but the output patch is {height} x {width} (y, x, "
            "voxels); make --output-patch-size square in plane, or leave --augment out"
        )
        raise OptionError(msg)
    if kind in _WITH_AXES and output.shape[1] < 3:
        msg = (
            f"--augment with --output-kind {kind} needs the channels x, y and z, but the network "
            f"returned {output.shape[1]} channel(s); give another --output-kind"
        )
        raise OptionError(msg)

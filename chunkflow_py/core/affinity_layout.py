"""Conventions of affinities: the order of the channels, and the voxel that stores a value.

An affinity belongs to the edge between two neighbouring voxels. This package stores affinities to
the three nearest neighbours as in `DEFAULT_LAYOUT`: the channels are in the order x, y, z, and each
value is stored at the upper voxel of the edge (the voxel with the larger coordinate). Other tools
store the channels in the order z, y, x, or each value at the lower voxel of the edge:

```
voxels                       0 --a-- 1 --b-- 2        channel of an axis   at 0   1   2
target: at the upper voxel                                                    .   a   b
source: at the lower voxel                                                    a   b   .
```

Here, a and b are the affinities of two edges, and a dot is a voxel that stores no affinity.

For affinities between more distant voxels, each channel has an offset; see `parse_offsets`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from numpy.typing import NDArray

ChannelOrder = Literal["xyz", "zyx"]
AffinityAt = Literal["target", "source"]
Offset = tuple[int, int, int]

_MOST_OFFSETS = 64


@dataclass(frozen=True)
class AffinityLayout:
    """The order of three affinity channels, and which voxel of an edge stores the affinity.

    Attributes:
        order: axes of the channels, from the first channel to the last: ``xyz`` or ``zyx``.
        at: which of two neighbouring voxels stores their affinity. With ``target``, the upper voxel
            stores the affinity, so the value at a voxel is the affinity to its lower neighbour.
            With ``source``, the lower voxel stores the affinity.
    """

    order: ChannelOrder = "xyz"
    at: AffinityAt = "target"

    @property
    def channels(self) -> tuple[int, int, int]:
        """Numbers of the channels that belong to the axes z, y and x."""
        return (2, 1, 0) if self.order == "xyz" else (0, 1, 2)

    @property
    def offsets(self) -> tuple[Offset, ...]:
        """Offset (z, y, x) of each channel, in voxels.

        The offset leads from the voxel that stores an affinity to the other voxel of the edge.
        """
        step = -1 if self.at == "target" else 1
        nearest = (step, 0, 0), (0, step, 0), (0, 0, step)
        return tuple(nearest[channel] for channel in self.channels)

    def arranged(self, affinity: NDArray[Any]) -> NDArray[Any]:
        """Convert affinities to channels in the order z, y, x, stored at the upper voxels.

        If `at` is ``target``, the result is a view. If `at` is ``source``, the values of each
        channel are shifted by one voxel along the axis of the channel. The values of the last plane
        are dropped, because the upper voxels of their edges are outside the array. The first plane
        is filled with zeros, because the lower voxels of its edges are outside the array.

        Args:
            affinity: array of shape (3, z, y, x), stored in this layout.
        """
        ordered = affinity[::-1] if self.order == "xyz" else affinity  # a view
        if self.at == "target":
            return ordered
        moved = np.zeros_like(ordered)
        for axis in range(3):
            upper = tuple(slice(1, None) if a == axis else slice(None) for a in range(3))
            lower = tuple(slice(None, -1) if a == axis else slice(None) for a in range(3))
            moved[axis][upper] = ordered[axis][lower]
        return moved


DEFAULT_LAYOUT = AffinityLayout()


def parse_offsets(text: str) -> tuple[Offset, ...]:
    """Return the offsets in a text such as ``-1,0,0 0,-1,0 0,0,-1``: z, y, x in voxels.

    Raises:
        OptionError: the text is not a list of offsets, there are too many offsets, an offset is
            zero, or two offsets are equal or opposite.
    """
    offsets: list[Offset] = []
    try:
        for word in text.split():
            z, y, x = map(int, word.split(","))
            offsets.append((z, y, x))
    except ValueError:
        offsets = []
    if not offsets:
        msg = (
            f"--affinity-offsets {text!r} is not a list of offsets; write one offset z,y,x for "
            "each channel, separated by spaces: '-1,0,0 0,-1,0 0,0,-1'"
        )
        raise OptionError(msg)
    if len(offsets) > _MOST_OFFSETS:
        msg = (
            f"--affinity-offsets has {len(offsets)} offsets, but the limit is {_MOST_OFFSETS}; "
            "leave some out"
        )
        raise OptionError(msg)
    if (0, 0, 0) in offsets:
        msg = "--affinity-offsets contains 0,0,0, the offset of a voxel to itself; remove it"
        raise OptionError(msg)
    pairs = {max(offset, tuple(-each for each in offset)) for offset in offsets}
    if len(pairs) < len(offsets):
        msg = (
            f"two of the --affinity-offsets {text!r} are equal or opposite, such as 1,0,0 and "
            "-1,0,0; remove one of the two"
        )
        raise OptionError(msg)
    return tuple(offsets)

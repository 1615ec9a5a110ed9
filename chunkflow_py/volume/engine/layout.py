"""What the block engine needs to know of a format: which object holds which blocks, and how.

```
array     |----|----|----|----|----|---|      blocks, counted from 0 along each axis of the array
objects   |---------|---------|--------|      units: one block each, or a shard of several
```
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import packed_most

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from chunkflow_py.store.protocol import Store

Index = tuple[int, ...]  # of a block or a unit, one number an axis of the array


class Layout(ABC):
    """How one resolution level keeps its voxels as objects.

    Attributes:
        axes: names of the array's axes, in the order of a decoded block; of t, c, z, y, x.
        shape: of the whole array.
        block: extent of a block.
        unit: extent of what one object holds: a block, or a shard of whole blocks.
        dtype: of the voxels.
        fill: value of voxels that are not stored.
        root: key of the array: of all its objects, what comes before the last slash that they have
            in common; empty for an array that is alone in its store.
    """

    axes: tuple[str, ...]
    shape: tuple[int, ...]
    block: tuple[int, ...]
    unit: tuple[int, ...]
    dtype: np.dtype[Any]
    fill: Any = 0
    root: str

    @property
    def block_bytes(self) -> int:
        """Bytes of a decoded block."""
        return math.prod(self.block) * self.dtype.itemsize

    @abstractmethod
    def key(self, unit: Index) -> str:
        """Return the key of the object that holds *unit*."""

    @abstractmethod
    def unit_of(self, key: str) -> Index | None:
        """Return the unit that the object *key* holds; ``None`` if it is no object of the array."""

    @abstractmethod
    def decode(self, data: bytes, block: Index) -> NDArray[Any]:
        """Return the voxels of a block, (the extent of a block, or what of it is in the array).

        The result may be read-only and share the memory of *data*.

        Raises:
            Exception: whatever the damage makes the codec stumble on; `ValueError` if the number
                of bytes is not what the extent and the type need.
        """

    @abstractmethod
    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:
        """Return the bytes of a block.

        Args:
            voxels: of the part of the block that lies in the array, of `dtype`, in the order of
                `axes`, any strides.
            block: its index.
        """

    # --- one object, one block: what a format of shards or of other names does differently -------

    def fetch(
        self, store: Store, unit: Index, blocks: Sequence[Index]
    ) -> dict[Index, bytes | None]:
        """Return the encoded *blocks*, all of *unit*; ``None`` for those that are not stored."""
        return dict.fromkeys(blocks, store.get(self.key(unit), packed_most(self.block_bytes)))

    def put(self, store: Store, unit: Index, blocks: Mapping[Index, bytes]) -> None:
        """Write *unit* whole: its encoded blocks, without those that hold nothing but `fill`."""
        (data,) = blocks.values()
        store.put(self.key(unit), data)

    def remove(self, store: Store, unit: Index) -> None:
        """Remove *unit*, if it is stored."""
        store.delete(self.key(unit))

    def exists(self, store: Store, unit: Index) -> bool:
        """Tell whether *unit* is stored."""
        return store.size(self.key(unit)) is not None

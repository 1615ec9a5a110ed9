"""Interface of the block formats, which define where a block is stored and how it is encoded.

```
array     |----|----|----|----|----|---|      blocks, numbered from 0 along each axis
objects   |---------|---------|--------|      units: one block, or one shard of several blocks
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

    from chunkflow_py.store.store_protocol import Store

Index = tuple[int, ...]  # of a block or a unit, one number per axis of the array


class BlockLayout(ABC):
    """Maps the voxels of one resolution level to objects in a store.

    Attributes:
        axes: names of the array's axes (t, c, z, y, x), in the order of a decoded block.
        shape: shape of the whole array.
        block: extent of a block.
        unit: extent of the region that one object stores: a block, or a shard of whole blocks.
        dtype: type of the voxels.
        fill: value of voxels that are not stored.
        root: key prefix of all objects of the array, without the final slash; empty for an array
            that is alone in its store.
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
        """Size of a decoded block, in bytes."""
        return math.prod(self.block) * self.dtype.itemsize

    @abstractmethod
    def key(self, unit: Index) -> str:
        """Return the key of the object that stores *unit*."""

    @abstractmethod
    def unit_of(self, key: str) -> Index | None:
        """Return the unit that object *key* stores, or ``None`` if this object stores no unit."""

    @abstractmethod
    def decode(self, data: bytes, block: Index) -> NDArray[Any]:
        """Return the voxels of a block; a format may leave out voxels outside the array.

        The result may be read-only and share the memory of *data*.

        Raises:
            Exception: *data* are damaged; the codec may raise any error.
            ValueError: the number of bytes does not match the extent and the dtype.
        """

    @abstractmethod
    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:
        """Return a block as the bytes to store.

        Args:
            voxels: voxels of the part of the block that lies inside the array. The dtype is
                `dtype`, and the axes are in the order of `axes`; any strides are allowed.
            block: index of the block.
        """

    # --- one object per block by default; formats with shards or several names override these -----

    def fetch(
        self, store: Store, unit: Index, blocks: Sequence[Index]
    ) -> dict[Index, bytes | None]:
        """Return a dict from each block to its stored bytes, or to ``None`` if it is not stored.

        All *blocks* belong to *unit*.
        """
        return dict.fromkeys(blocks, store.get(self.key(unit), packed_most(self.block_bytes)))

    def put(self, store: Store, unit: Index, blocks: Mapping[Index, bytes]) -> None:
        """Write the whole *unit* from the encoded *blocks*.

        Blocks that contain only the fill value are left out of *blocks*, and are not stored.
        """
        (data,) = blocks.values()
        store.put(self.key(unit), data)

    def remove(self, store: Store, unit: Index) -> None:
        """Remove *unit*, if it is stored."""
        store.delete(self.key(unit))

    def exists(self, store: Store, unit: Index) -> bool:
        """Return whether *unit* is stored."""
        return store.size(self.key(unit)) is not None

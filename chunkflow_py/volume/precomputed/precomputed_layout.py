"""Blocks of a precomputed volume as objects of their own, named by their x, y and z in voxels.

```
8_8_40/0-64_0-64_0-32.gz      on local disks, gzipped, as cloud-volume names it
8_8_40/0-64_0-64_0-32         in clouds, with the header Content-Encoding: gzip
```
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.decoding import packed_most
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume.engine.layout import Layout
from chunkflow_py.volume.precomputed.precomputed_codec import Codec, decompressed

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.store.protocol import Store
    from chunkflow_py.volume.engine.layout import Index
    from chunkflow_py.volume.precomputed.precomputed_info import Level

_EXTENSIONS = ("", ".gz", ".br", ".zstd", ".xz", ".bz2")  # of cloud-volume
_BLOCK = re.compile(
    r"(?P<x>-?[0-9]+)--?[0-9]+_(?P<y>-?[0-9]+)--?[0-9]+_(?P<z>-?[0-9]+)--?[0-9]+"
    rf"(?P<end>{'|'.join(map(re.escape, _EXTENSIONS))})"
)
_CONTENT_TYPES = {"jpeg": "image/jpeg", "png": "image/png", "jxl": "image/jxl"}
_CACHE = "no-cache"  # a viewer is to see what has been written since


class PrecomputedLayout(Layout):
    """The blocks of one level.

    Args:
        level: of the info file.
        is_local: whether the store is a folder, so that names tell the compression.

    Attributes:
        gzipped: whether blocks are gzipped when written.
    """

    def __init__(self, level: Level, *, is_local: bool) -> None:
        """Load the library of the encoding.

        Raises:
            MissingExtraError: it is not installed.
        """
        bounds, block = level.bounds, level.block_size
        lead = () if level.channels == 1 else (level.channels,)
        self.axes = ("c", "z", "y", "x") if lead else ("z", "y", "x")
        self.shape = (*lead, *bounds.size)
        self.block = self.unit = (*lead, *block)
        self.dtype = level.dtype
        self._level, self.root = level, level.key
        # sharded volumes say once for all whether their blocks are gzipped
        compress = level.compress if level.sharding is None else level.sharding.gzip_data
        self._codec = Codec(level.scale, level.dtype, compress=compress)
        self.gzipped = self._codec.gzipped
        self._is_local = is_local
        self._written = ".gz" if self._codec.gzipped and is_local else ""
        self._found = self._written  # what the last block had that was read
        self._others: bool | None = None

    def _box(self, block: Index) -> BoundingBox:
        """Return the global box of a block; the last along an axis ends with the volume."""
        bounds, size = self._level.bounds, self._level.block_size
        low = bounds.start + size * Zyx(*block[-3:])
        return BoundingBox(low, (low + size).low(bounds.stop))

    def _name(self, unit: Index) -> str:
        """Return the key without its extension."""
        box = self._box(unit)
        spans = [f"{a}-{b}" for a, b in zip(box.start, box.stop, strict=True)]
        return f"{self._level.key}/{'_'.join(reversed(spans))}"

    def key(self, unit: Index) -> str:
        """Return the key of a block, as it would be written."""
        return self._name(unit) + self._written

    def unit_of(self, key: str) -> Index | None:
        """Return the block that an object is of, by any of its names."""
        match = _BLOCK.fullmatch(key.rpartition("/")[2])
        if match is None:
            return None
        low = Zyx(*(int(match[axis]) for axis in "zyx")) - self._level.bounds.start
        unit = (0,) * (len(self.block) - 3) + tuple(low // self._level.block_size)
        inside = low.low((0, 0, 0)) == (0, 0, 0) and low.low(self._level.bounds.size - 1) == low
        return unit if inside and self._name(unit) + match["end"] == key else None

    def decode(self, data: bytes, block: Index) -> NDArray[Any]:
        """Return the voxels of a block, what of it is in the volume."""
        return self._codec.decode(data, (*self.shape[:-3], *self._box(block).size))

    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:  # noqa: ARG002
        """Return the bytes of a block."""
        return self._codec.encode(voxels)

    def fetch(
        self, store: Store, unit: Index, blocks: Sequence[Index]
    ) -> dict[Index, bytes | None]:
        """Return a block, whatever program has compressed it how."""
        name, data, most = self._name(unit), None, packed_most(self.block_bytes)
        for extension in self._extensions(self._found):
            data = store.get(name + extension, most)
            if data is not None:
                self._found = extension
                data = decompressed(data, extension, most)
                break
        return dict.fromkeys(blocks, data)

    def put(self, store: Store, unit: Index, blocks: Mapping[Index, bytes]) -> None:
        """Write a block, and remove what other programs have stored of it by other names."""
        (data,) = blocks.values()
        name, encoding = self._name(unit), self._codec.encoding
        store.put(
            name + self._written,
            data,
            content_type=content_type(encoding),
            content_encoding="gzip" if self._codec.gzipped and not self._is_local else None,
            cache_control=_CACHE,
        )
        for extension in self._stale(store):
            store.delete(name + extension)

    def remove(self, store: Store, unit: Index) -> None:
        """Remove a block, by all names."""
        for extension in self._extensions(self._written):
            store.delete(self._name(unit) + extension)

    def exists(self, store: Store, unit: Index) -> bool:
        """Tell whether a block is stored, by any name."""
        name = self._name(unit)
        return any(store.size(name + e) is not None for e in self._extensions(self._found))

    def _stale(self, store: Store) -> Sequence[str]:
        """Return what else may stand after the name of a block that is written.

        Without an ending a block comes before ours for cloud-volume, so that is looked for each
        time. For the others, which nobody makes by himself, the folder is looked through once: to
        look for all of every block would take longer than to write a small one.
        """
        if not self._is_local:
            return ()
        rest = [e for e in self._extensions(self._written)[1:] if e]
        if self._others is None:
            endings = (Path(key).suffix for key in store.list(f"{self._level.key}/"))
            self._others = any(ending in rest for ending in endings)
        return [*([""] if self._written else [".gz"]), *(rest if self._others else ())]

    def _extensions(self, first: str) -> list[str]:
        """Return what a block may end with, the likeliest first; in clouds there is nothing."""
        if not self._is_local:
            return [""]
        return [first, *(extension for extension in _EXTENSIONS if extension != first)]


def content_type(encoding: str) -> str:
    """Return the type that cloud-volume gives blocks of an encoding in a cloud."""
    if encoding in (
        "compressed_segmentation", "compresso", "crackle", "fpzip", "kempressed", "zfpc",
    ):  # fmt: skip
        return f"image/x.{encoding}"
    return _CONTENT_TYPES.get(encoding, "application/octet-stream")

"""Read N5 volumes: single datasets, and groups of levels s0, s1, ...

```
em.n5/attributes.json        of the group: resolution, offset, downsampling factors
em.n5/s0/attributes.json     of a level: dimensions, blockSize, dataType, compression
em.n5/s0/0/0/0               one block:

| mode | n   | x   | y   | z   | elements | voxels, big endian, x fastest, compressed |
  u16    u16   u32   u32   u32   u32

  n: number of axes; x, y, z: extent; elements: number of voxels (only in mode 1)
```

In extents, keys and block headers, N5 lists x first. This module reverses these lists to z, y, x,
so that the voxels are in C order. Blocks at the end of the array are clipped.

Metadata may follow the conventions of n5-viewer, Paintera, Neuroglancer, funlib or COSEM. See
https://github.com/saalfeldlab/n5. The tensorstore library also reads N5, but lacks the retry policy
and the block cache of this project.
"""

from __future__ import annotations

import math
import re
import struct
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.decoding import DOCUMENT_BYTES, decode, parse_json
from chunkflow_py.core.geometry import AXES, Zyx
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.store import open_store
from chunkflow_py.volume.engine.block_layout import BlockLayout
from chunkflow_py.volume.engine.block_volume import BlockVolume
from chunkflow_py.volume.foreign_errors import translated_errors
from chunkflow_py.volume.protocol import UNIT_NM
from chunkflow_py.volume.zarr import ome_metadata as ome

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.store.store_protocol import Store
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.engine.block_layout import Index
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import VolumeOptions

_ATTRIBUTES = "attributes.json"
_NAMES = "xyzct"  # in the order of N5
_LZ4_HEADER = struct.Struct("<8sBiiI")  # magic, method, bytes stored, bytes, checksum
_LZ4_RAW, _LZ4_PACKED = 0x10, 0x20
COMPRESSIONS = {  # names in N5 -> names in `core.decoding.decode`
    "blosc": "blosc",
    "bzip2": "bz2",
    "gzip": "gzip",
    "lz4": "lz4",
    "raw": "raw",
    "xz": "xz",
    "zstd": "zstd",
}


def open_volume(location: Location, mip: int, mode: Mode, opening: VolumeOptions) -> BlockVolume:
    """Open level *mip* of a group of levels, or a single dataset, which has level 0 only.

    Raises:
        VolumeNotFoundError: the N5 dataset or the level does not exist.
        VolumeError: the metadata are damaged or not supported, or *mode* is not ``r``.
    """
    if mode != "r":
        msg = f"cannot write to {location}: N5 volumes are read only; use zarr:// or precomputed://"
        raise VolumeError(msg)
    store = open_store(location.store_url, opening.access)
    with translated_errors(f"cannot open {location}", ome.MAYBE_DAMAGED):
        top = _attributes(store, "")
        is_dataset = "dimensions" in top
        levels, group = ({0: top}, {}) if is_dataset else (_levels(store), top)
        if not levels:
            msg = (
                f"{location} is not an N5 volume: it has neither dimensions in {_ATTRIBUTES} nor a "
                "level s0; check the path"
            )
            raise VolumeNotFoundError(msg)
        prefixes = {level: "" if is_dataset else f"s{level}/" for level in levels}
        prefix = ome.dataset_path(prefixes, mip, location.url)
        geometry = _geometry(levels[mip], group, mip, location.url)
        return BlockVolume(
            location.address,
            store,
            N5Layout(levels[mip], geometry.axes, prefix, location.url),
            voxel_offset=geometry.voxel_offset,
            voxel_size_nm=geometry.voxel_size_nm,
            kind=geometry.kind,
            mode=mode,
            mip=mip,
            mips=tuple(levels),
            opening=opening,
        )


def _attributes(store: Store, prefix: str) -> dict[str, Any]:
    attributes = parse_json(store.get(f"{prefix}{_ATTRIBUTES}", DOCUMENT_BYTES) or b"{}")
    if not isinstance(attributes, dict):
        msg = f"{prefix}{_ATTRIBUTES} contains a {type(attributes).__name__}, not a JSON object"
        raise TypeError(msg)
    return attributes


def _levels(store: Store) -> dict[int, dict[str, Any]]:
    """Return the attributes of the levels s0, s1 and so on, until a level does not exist."""
    levels: dict[int, dict[str, Any]] = {}
    while "dimensions" in (attributes := _attributes(store, f"s{len(levels)}/")):
        levels[len(levels)] = attributes
    return levels


def _geometry(
    document: Mapping[str, Any], group: Mapping[str, Any], mip: int, url: str
) -> ome.ArrayGeometry:
    """Return axes, voxel size and offset of a dataset.

    Raises:
        VolumeError: axes or units are not supported, or the voxels are label multisets.
    """
    if document.get("isLabelMultiset") or group.get("isLabelMultiset"):
        msg = (
            f"{url} holds label multisets of Paintera, which are not supported; export the labels "
            "as integers"
        )
        raise VolumeError(msg)
    count = len(document["dimensions"])
    transform = document.get("transform")
    known: Any = transform
    if isinstance(transform, dict) and "scale" in transform:  # COSEM
        # in C order unless "ordering" is F
        backward = slice(None, None, 1 if transform.get("ordering") == "F" else -1)
        names = [str(axis).lower() for axis in transform.get("axes", _NAMES[:count][::-1])]
        axes = names[backward]
        sizes = _named(transform["scale"][backward], axes, 1.0)
        offset = _named(transform.get("translate", [0.0] * count)[backward], axes, 0.0)
        units = _named(transform.get("units", [None] * count)[backward], axes, None)
    else:
        names = list(document.get("axes") or group.get("axes") or _NAMES[:count])
        axes = [str(axis).lower() for axis in names]
        known = _resolution(document) or _resolution(group)
        base, unit = known or ([1.0] * 3, "nm")
        factors = _named(_factors(document, group, mip) or [1.0] * 3, axes, 1.0)
        sizes = [a * b for a, b in zip(_named(base, axes, 1.0), factors, strict=True)]
        start = document.get("offset", group.get("offset", document.get("translate")))
        offset = _named(start or [0.0] * 3, axes, 0.0)
        units = [unit] * 3
        if isinstance(named := document.get("units", group.get("units")), list):
            units = _named(named, axes, "nm")
    if len(axes) != count or len(set(axes)) < count or not {"y", "x"} <= set(axes):
        msg = (
            f"{url} has {count} dimensions with the names {', '.join(axes)}, but each dimension "
            "needs a different name, and two dimensions must have the names x and y; correct axes "
            f"in {_ATTRIBUTES} of the volume"
        )
        raise VolumeError(msg)
    is_assumed = known is None and sizes == [1.0] * 3
    size = UNIT_NM if is_assumed else ome.nanometres(sizes, units, url)
    first = Zyx(*(math.floor(o / s + 0.5) for o, s in zip(offset, sizes, strict=True)))
    return ome.ArrayGeometry(tuple(axes[::-1]), size, first, _kind(document, group))


def _named(values: Sequence[Any], axes: Sequence[str], missing: Any) -> list[Any]:
    # Metadata give the values either for each of the axes, or for x, y and z.
    names = axes if len(values) == len(axes) else AXES[::-1]
    by_name = dict(zip(names, values, strict=True))
    return [by_name.get(name, missing) for name in AXES]


def _resolution(attributes: Mapping[str, Any]) -> tuple[list[float], str | None] | None:
    """Return voxel size, x first, and its unit; ``None`` if the attributes have no voxel size."""
    resolution = attributes.get("pixelResolution", attributes.get("resolution"))
    if isinstance(resolution, dict):
        return [float(v) for v in resolution["dimensions"]], resolution.get("unit")
    return None if resolution is None else ([float(v) for v in resolution], "nm")


def _factors(document: Mapping[str, Any], group: Mapping[str, Any], mip: int) -> list[float] | None:
    """Return the downsampling factors of a level, x first; ``None`` if the attributes have none."""
    factors = document.get("downsamplingFactors")
    if factors is None:
        of_all_levels = group.get("downsamplingFactors", group.get("scales"))
        factors = None if of_all_levels is None else of_all_levels[mip]
    return None if factors is None else [float(factor) for factor in factors]


def _kind(document: Mapping[str, Any], group: Mapping[str, Any]) -> Kind | None:
    for attributes in (document, group):
        if attributes.get("painteraData", {}).get("type") == "label" or "maxId" in attributes:
            return "segmentation"
    return None


class N5Layout(BlockLayout):
    """Locates and decodes the blocks of one dataset.

    Args:
        document: content of the ``attributes.json`` of the dataset.
        axes: names of the axes of the dataset, in C order.
        prefix: key of the dataset in the store, empty or with a final ``/``.
        url: address of the volume, for messages.
    """

    def __init__(
        self, document: Mapping[str, Any], axes: Sequence[str], prefix: str, url: str
    ) -> None:
        """Read shape, dtype and compression from the metadata.

        Raises:
            VolumeError: the data type or the compression is not supported.
        """
        self.axes = tuple(axes)
        self.shape = tuple(int(length) for length in document["dimensions"])[::-1]
        self.block = self.unit = tuple(int(length) for length in document["blockSize"])[::-1]
        name = document["dataType"]
        try:
            self.dtype = np.dtype(name)
        except TypeError:
            self.dtype = np.dtype("O")
        if self.dtype.kind not in "iuf":
            msg = f"{url} contains {name} values, but the voxels of a volume must be numbers"
            raise VolumeError(msg)
        if len(self.block) != len(self.shape) or min(self.block, default=0) < 1:
            msg = (
                f"{url} has the blockSize {self.block[::-1]}, which does not match the dimensions "
                f"{self.shape[::-1]} (xyz); correct blockSize in {_ATTRIBUTES} of the volume"
            )
            raise VolumeError(msg)
        self._prefix, self.root = prefix, prefix.rstrip("/")
        # N5 before version 2 has only a name
        compression = document.get("compression") or {"type": document.get("compressionType")}
        self._decompress = _decompressor(compression, url)

    def key(self, unit: Index) -> str:
        """Return the key of the object that stores *unit*."""
        return f"{self._prefix}{'/'.join(str(number) for number in reversed(unit))}"

    def unit_of(self, key: str) -> Index | None:
        """Return the unit that object *key* stores; see `BlockLayout.unit_of`."""
        names = key.removeprefix(self._prefix).split("/")
        if len(names) != len(self.shape) or not all(re.fullmatch("[0-9]+", n) for n in names):
            return None
        unit = tuple(int(name) for name in reversed(names))
        return unit if self.key(unit) == key else None

    def decode(self, data: bytes, block: Index) -> NDArray[Any]:  # noqa: ARG002  (its header has the extent)
        """Return the voxels of a block.

        Raises:
            Exception: *data* are damaged; the codec may raise any error.
            ValueError: the header of the block does not match the array or the voxels.
        """
        mode, count = struct.unpack_from(">HH", data)
        if mode not in (0, 1) or count != len(self.shape):
            msg = (
                f"the header has mode {mode} and {count} dimensions, but mode 0 or 1 and "
                f"{len(self.shape)} dimensions are expected"
            )
            raise ValueError(msg)
        extent = struct.unpack_from(f">{count}I", data, 4)[::-1]
        if any(length > most for length, most in zip(extent, self.block, strict=True)):
            msg = (
                f"the header declares {extent} voxels, but a block has at most {self.block} voxels"
            )
            raise ValueError(msg)
        size = math.prod(extent) * self.dtype.itemsize
        voxels = self._decompress(memoryview(data)[4 + 4 * count + 4 * mode :], size)
        if len(voxels) != size:
            msg = (
                f"the decompressed block has {len(voxels)} bytes, but {extent} {self.dtype} voxels "
                f"have {size} bytes"
            )
            raise ValueError(msg)
        big_endian = np.frombuffer(voxels, self.dtype.newbyteorder(">"))
        return big_endian.astype(self.dtype, copy=False).reshape(extent)

    def encode(self, voxels: NDArray[Any], block: Index) -> bytes:  # noqa: ARG002
        """Raise an error, because N5 volumes are read only.

        Raises:
            VolumeError: always.
        """
        msg = f"block {block} cannot be written: N5 volumes are read only; write to zarr://"
        raise VolumeError(msg)


def _decompressor(compression: Mapping[str, Any], url: str) -> Callable[[Any, int], Any]:
    """Return the function that decompresses blocks: (data, limit in bytes) -> content.

    Raises:
        VolumeError: the compression is not supported.
    """
    kind = compression.get("type")
    if kind == "gzip" and compression.get("useZlib"):
        return partial(decode, "zlib")
    if kind not in COMPRESSIONS:
        names = ", ".join(sorted(COMPRESSIONS))
        msg = (
            f"the blocks of {url} are compressed with {kind!r}, but only {names} are supported; "
            "store the volume again with one of these compressions"
        )
        raise VolumeError(msg)
    return _lz4 if kind == "lz4" else partial(decode, COMPRESSIONS[kind])


def _lz4(data: memoryview, most: int) -> bytes:
    """Decompress a stream of lz4-java: a list of parts, each with a header; the last part is empty.

    Raises:
        ValueError: a header or a part is damaged, or the decompressed parts exceed *most* bytes.
    """
    parts: list[bytes] = []
    at = 0
    while True:
        magic, method, stored, size, _ = _LZ4_HEADER.unpack_from(data, at)
        at += _LZ4_HEADER.size
        if magic != b"LZ4Block" or stored < 0 or at + stored > len(data):
            msg = "a part of the lz4 stream has no header, or ends too early"
            raise ValueError(msg)
        if size == 0:
            return b"".join(parts)
        part = bytes(data[at : at + stored])
        if method & 0xF0 == _LZ4_PACKED:
            part = decode("lz4", struct.pack("<i", size) + part, most)
        elif method & 0xF0 != _LZ4_RAW:
            msg = f"a part of the lz4 stream has the unknown method {method}"
            raise ValueError(msg)
        if len(part) != size:
            msg = f"a part of the lz4 stream has {len(part)} bytes, but its header declares {size}"
            raise ValueError(msg)
        most -= size
        if most < 0:
            msg = f"the lz4 stream decompresses to {-most} bytes more than expected"
            raise ValueError(msg)
        parts.append(part)
        at += stored

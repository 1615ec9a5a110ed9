"""Zarr volumes in local folders: OME-Zarr 0.4 and 0.5 images and plain arrays, v2 and v3.

```
em.zarr/zarr.json      group: axes, scale, translation, kind     written last
em.zarr/0/zarr.json    array: shape, blocks, codecs              written first
em.zarr/0/c/0/0/0      one block (or one shard of blocks)
```

What lies under a final name is always whole: blocks and metadata are written by `store.local`.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from chunkflow_py.chunk import Chunk
from chunkflow_py.errors import (
    ChunkflowError,
    VolumeError,
    VolumeNotFoundError,
    needs_extra,
)
from chunkflow_py.geometry import AXES, BoundingBox, Zyx
from chunkflow_py.store.local import os_errors, write_whole
from chunkflow_py.volume import ZARR_ENCODINGS, ome
from chunkflow_py.volume.protocol import check_channels, check_chunk, check_inside

with needs_extra("zarr", "a zarr volume"):
    import zarr
    from zarr.core.buffer import Buffer, default_buffer_prototype
    from zarr.core.sync import sync
    from zarr.storage import LocalStore, MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from zarr.abc.store import Store

    from chunkflow_py.chunk import Kind
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import VolumeSpec

Order = Literal["zyx", "xyz"]


class DurableStore(LocalStore):
    """A folder in which every write is atomic, and on the disk when it returns.

    zarr's own LocalStore is atomic too, but does not wait for the disk: after a power cut a block
    that was reported as written may be empty.
    """

    async def set(self, key: str, value: Buffer) -> None:
        """Write one key whole."""
        self._check_writable()
        await asyncio.to_thread(write_whole, self.root / key, value.to_bytes())


class ZarrVolume:
    """One array as a `Volume`.

    Args:
        place: what was opened.
        array: the array itself.
        layout: how its voxels lie in the world.
        mode: ``r`` or ``r+``.

    Attributes:
        url, bounds, voxel_size_nm, dtype, channels, kind, block_size, write_unit, times: as
            `Volume` says.
    """

    def __init__(
        self, place: Location, array: zarr.Array[Any], layout: ome.Layout, mode: Mode
    ) -> None:
        """Read off the shape of the array.

        Raises:
            VolumeError: it has an axis that is neither t, c, z, y nor x and longer than 1.
        """
        self.url = place.url
        self._array, self._axes, self._mode = array, layout.axes, mode
        shape = dict(zip(self._axes, array.shape, strict=True))
        for axis, length in shape.items():
            if axis not in "tczyx" and length != 1:
                msg = f"{self.url} has an axis {axis!r} of length {length}; known are t, c, z, y, x"
                raise VolumeError(msg)
        size = Zyx(*(shape[axis] for axis in AXES))
        self.bounds = BoundingBox.from_size(layout.voxel_offset, size)
        self.voxel_size_nm = layout.voxel_size_nm
        self.kind: Kind | None = layout.kind
        self.dtype: np.dtype[Any] = np.dtype(array.dtype)
        self.channels: int | None = shape.get("c")
        self.times: int | None = shape.get("t")
        self.block_size = self._spatial(array.chunks)
        self._stored = array.shards or array.chunks
        self.write_unit = self._spatial(self._stored)

    def _spatial(self, shape: Sequence[int]) -> Zyx:
        return Zyx(*(shape[self._axes.index(axis)] for axis in AXES))

    def read(
        self,
        bbox: BoundingBox,
        channels: Sequence[int] | None = None,
        *,
        time: int | None = None,
    ) -> Chunk:
        """Return the voxels inside *bbox*, as `Volume.read` says."""
        check_inside(bbox, self.bounds, self.url)
        check_channels(channels, self.channels, self.url)
        if channels is not None and self.channels is None:
            channels = None  # the one channel is all there is
        chosen = None if channels is None else list(channels)
        with _translated("read", self.url):
            found = self._array.get_orthogonal_selection(self._selection(bbox, time, chosen))
        kept = [axis for axis in self._axes if axis in "czyx"]
        order = [kept.index(axis) for axis in ("c", *AXES) if axis in kept]
        voxels = np.ascontiguousarray(np.asarray(found).transpose(order))
        return Chunk(voxels, bbox.start, self.voxel_size_nm, self.kind, self.bounds)

    def write(self, chunk: Chunk, *, time: int | None = None) -> None:
        """Write *chunk*, as `Volume.write` says."""
        if self._mode == "r":
            msg = f"{self.url} was opened for reading; open it with mode 'r+'"
            raise VolumeError(msg)
        check_chunk(chunk, self, time)
        length = dict(zip(self._axes, self._stored, strict=True)).get("t", 1)
        if length > 1:
            msg = (
                f"a block of {self.url} holds {length} time points, which tasks would overwrite "
                "for each other; store it with one time point a block"
            )
            raise VolumeError(msg)
        voxels = chunk.array
        if voxels.ndim == 4 and self.channels is None:
            voxels = voxels[0]
        elif voxels.ndim == 3 and self.channels is not None:
            voxels = voxels[np.newaxis]
        ours = ("c", *AXES)[-voxels.ndim :]
        voxels = voxels.transpose([ours.index(axis) for axis in self._axes if axis in ours])
        with _translated("write", self.url):
            self._array.set_orthogonal_selection(self._selection(chunk.bbox, time), voxels)

    def _selection(
        self, bbox: BoundingBox, time: int | None, channels: list[int] | None = None
    ) -> tuple[Any, ...]:
        wanted: dict[str, Any] = dict(zip(AXES, bbox.slices(self.bounds.start), strict=True))
        wanted["c"] = slice(None) if channels is None else channels
        if self.times is not None:
            if time is None and self.times > 1:
                msg = (
                    f"{self.url} has {self.times} time points and the task names none; name one "
                    "in the task's box, such as t0_0-64_0-512_0-512"
                )
                raise VolumeError(msg)
            if not 0 <= (time or 0) < self.times:
                msg = f"{self.url} has the time indices 0 to {self.times - 1}; got {time}"
                raise VolumeError(msg)
            wanted["t"] = time or 0
        return tuple(wanted.get(axis, 0) for axis in self._axes)


def open_volume(
    place: Location, mip: int, mode: Mode, *, store_zeros: bool = False, **_: object
) -> ZarrVolume:
    """Open level *mip* of an image, or a plain array, whose only level is 0.

    Raises:
        VolumeNotFoundError: there is none, or it has no such level.
        VolumeError: the metadata cannot be understood.
    """
    _check_local(place)
    with _translated("open", place.url):
        node = _node(place.folder, mode, store_zeros)
        if node is None:
            msg = f"{place} holds no zarr volume; check the path, or create the volume first"
            raise VolumeNotFoundError(msg)
        if isinstance(node, zarr.Array):
            if mip:
                msg = f"{place} is a plain array, which has no mip {mip}; use --mip 0"
                raise VolumeNotFoundError(msg)
            names = getattr(node.metadata, "dimension_names", None)
            return ZarrVolume(
                place, node, ome.array_layout(node.attrs, names, node.ndim, place.url), mode
            )
        attributes = node.attrs.asdict()
        image = ome.multiscale(attributes)
        if image is None:
            inside = ", ".join(sorted(node.keys())) or "nothing"
            msg = f"{place} is a group without an image (it holds {inside}); name one of its arrays"
            raise VolumeNotFoundError(msg)
        path = ome.dataset_path(image, mip, place.url)
        array = _node(place.folder / path, mode, store_zeros)
        if not isinstance(array, zarr.Array):
            msg = f"{place} names {path!r} as its mip {mip}, but there is no such array"
            raise VolumeNotFoundError(msg)
        layout = ome.multiscale_layout(image, path, attributes, place.url)
        return ZarrVolume(place, array, layout, mode)


def create_volume(
    spec: VolumeSpec,
    place: Location,
    mip: int = 0,
    *,
    plain: bool = False,
    order: Order = "zyx",
    shard_size: Zyx | None = None,
) -> ZarrVolume:
    """Create an OME-Zarr 0.5 image with one level, or a plain array, and open it.

    Args:
        spec: of the array; its encoding is one of `ZARR_ENCODINGS`, ``zstd`` by default.
        place: the folder.
        mip: number of the level, which names the array.
        plain: make an array that stands alone instead of a group with an image.
        order: of the array's spatial axes; the channel axis comes before them.
        shard_size: extent of a shard, a multiple of the block size (default: no shards).

    Raises:
        VolumeError: it cannot be written, or the encoding is not known.
    """
    _check_local(place)
    axes = (*(() if spec.channels is None else ("c",)), *order)
    arguments = _array_arguments(spec, axes, shard_size, place.url)
    path = str(mip)
    memory = MemoryStore()
    with _translated("create", place.url):
        if plain:
            attributes = ome.plain_attributes(spec, axes)
            zarr.create_array(memory, attributes=attributes, **arguments)
        else:
            attributes = ome.image_attributes(spec, axes, path, place.folder.name)
            group = zarr.create_group(memory, attributes=attributes)
            group.create_array(path, **arguments)
        documents = sync(_documents(memory))
        # The array before the group: whoever sees the group sees all of it.
        for key in sorted(documents, key=len, reverse=True):
            write_whole(place.folder / key, documents[key])
    return open_volume(place, 0 if plain else mip, "r+")


def _array_arguments(
    spec: VolumeSpec, axes: Sequence[str], shard_size: Zyx | None, url: str
) -> dict[str, Any]:
    channels = spec.channels or 1

    def along(extent: Zyx, others: int) -> tuple[int, ...]:
        return tuple(others if a == "c" else extent[AXES.index(a)] for a in axes)

    if shard_size is not None and any(
        s % b for s, b in zip(shard_size, spec.block_size, strict=True)
    ):
        nearest = -(-shard_size // spec.block_size) * spec.block_size
        msg = (
            f"shard size {shard_size} is not a multiple of block size {spec.block_size} (zyx, "
            f"voxels); nearest is {nearest}"
        )
        raise VolumeError(msg)
    return {
        "shape": along(spec.bounds.size, channels),
        "dtype": spec.dtype,
        "chunks": along(spec.block_size, 1),
        "shards": None if shard_size is None else along(shard_size, channels),
        "compressors": _compressors(spec.encoding or "zstd", spec.dtype, url),
        "fill_value": 0,
        "dimension_names": list(axes),
    }


def _compressors(encoding: str, dtype: np.dtype[Any], url: str) -> Any:
    from zarr.codecs import BloscCodec, GzipCodec, ZstdCodec

    if encoding == "raw":
        return None
    if encoding == "gzip":
        return GzipCodec(level=5)
    if encoding == "zstd":
        return ZstdCodec(level=3)
    if encoding == "blosc":
        return BloscCodec(typesize=dtype.itemsize, cname="zstd", clevel=5, shuffle="shuffle")
    known = ", ".join(ZARR_ENCODINGS)
    msg = f"cannot create {url}: zarr has no encoding {encoding!r}; choose {known}"
    raise VolumeError(msg)


async def _documents(memory: Store) -> dict[str, bytes]:
    prototype = default_buffer_prototype()
    found: dict[str, bytes] = {}
    async for key in memory.list():
        value = await memory.get(key, prototype)
        if value is not None:
            found[key] = value.to_bytes()
    return found


def _node(folder: Path, mode: Mode, store_zeros: bool) -> zarr.Array[Any] | zarr.Group | None:
    """Open what lies in *folder*, without a search in the folders above it."""
    if not any((folder / name).is_file() for name in ("zarr.json", ".zarray", ".zgroup")):
        return None
    store = DurableStore(folder, read_only=mode == "r")
    version: Literal[2, 3] = 3 if (folder / "zarr.json").is_file() else 2
    is_array = (folder / ".zarray").is_file()
    if version == 3:
        is_array = json.loads((folder / "zarr.json").read_bytes()).get("node_type") == "array"
    if is_array:
        config = {"write_empty_chunks": store_zeros}
        return zarr.open_array(store, mode=mode, zarr_format=version, config=config)
    return zarr.open_group(store, mode=mode, zarr_format=version, use_consolidated=False)


def _check_local(place: Location) -> None:
    if not place.is_local:
        msg = f"cannot open {place}: zarr volumes are read and written in local folders only so far"
        raise VolumeError(msg)


@contextmanager
def _translated(verb: str, url: str) -> Iterator[None]:
    try:
        with os_errors(verb, url):
            yield
    except ChunkflowError:
        raise
    except Exception as error:
        # zarr and its codecs raise whatever the damage makes them stumble on
        what = str(error) or type(error).__name__
        msg = f"cannot {verb} {url}: {what}; the metadata or a block may be damaged"
        raise VolumeError(msg) from error

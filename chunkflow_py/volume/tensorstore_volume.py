"""Read arrays with TensorStore, for formats and stores without a driver in this package.

```
spec        {"driver": "zarr3", "kvstore": "gs://bucket/em/"}     JSON, or an address of TensorStore
axes        labels of the dimensions; without labels, xyzc for precomputed and N5, else czyx
voxel size  units of the dimensions, which TensorStore reads from the metadata
```

Members of a spec that create or delete arrays are ignored: nothing is ever written.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.decoding import parse_json
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import (
    ChunkflowError,
    OptionError,
    VolumeError,
    VolumeNotFoundError,
    needs_extra,
)
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.volume.loader import VolumeLoader
from chunkflow_py.volume.protocol import check_channels, check_inside
from chunkflow_py.volume.volume_source import VolumeSource
from chunkflow_py.volume.zarr import ome_metadata as ome

with needs_extra("tensorstore", "load-tensorstore"):
    import tensorstore as ts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.core.geometry import Region
    from chunkflow_py.store.store_protocol import Stored
    from chunkflow_py.volume.protocol import StoredUnit

Spec = str | dict[str, Any]

_X_FIRST = ("neuroglancer_precomputed", "n5")
_CHANGES = ("create", "delete_existing", "open", "assume_metadata")  # arguments of the call
_ERRORS = (ValueError, TypeError, IndexError, RuntimeError, OSError)
_ADDRESSES = {  # kind of kvstore -> address of its files
    "file": "file://{path}",
    "s3": "s3://{bucket}/{path}",
    "gcs": "gs://{bucket}/{path}",
    "http": "{base_url}{path}",
}
_MESSAGE_LENGTH = 300  # characters; TensorStore repeats the whole spec after that


def parsed_spec(text: str | None, driver: str | None = None, kvstore: str | None = None) -> Spec:
    """Build a TensorStore spec from the values of options.

    Args:
        text: the spec as JSON, the path of a JSON file, or a TensorStore URL.
        driver: driver of the array, if the spec does not name it.
        kvstore: address or path of the storage.

    Raises:
        OptionError: the spec is not JSON, or an option is missing.
    """
    spec: Spec = {}
    if text is not None:
        content, where = text, "--spec"
        if not text.lstrip().startswith("{") and "://" not in text:
            where, content = f"--spec {text}", _content(text)
        if content.lstrip().startswith("{"):
            try:
                spec = parse_json(content)
            except ValueError as error:
                msg = f'{where} is not valid JSON: {error}; write {{"driver": …, "kvstore": …}}'
                raise OptionError(msg) from error
        else:
            spec = content.strip()
    if driver is None and kvstore is None and spec:
        return spec
    if isinstance(spec, str):
        msg = (
            f"--spec {without_secrets(spec)} is a complete address; leave out --driver and "
            "--kvstore"
        )
        raise OptionError(msg)
    given = {"driver": driver, "kvstore": kvstore and _address(kvstore)}
    spec = {**spec, **{key: value for key, value in given.items() if value is not None}}
    if missing := [key for key in given if key not in spec]:
        msg = f"the options do not name the {missing[0]}; give --{missing[0]}, or a full --spec"
        raise OptionError(msg)
    return spec


def _content(path: str) -> str:
    file = Path(path).expanduser()
    if not file.is_file():
        msg = f"--spec {path} is neither JSON, nor an address, nor a file; check --spec"
        raise OptionError(msg)
    return file.read_text(encoding="utf-8")


def _address(kvstore: str) -> str:
    """Return the address of a folder, with the scheme that TensorStore requires."""
    if "://" not in kvstore:
        kvstore = f"file://{Path(kvstore).expanduser().absolute()}"
    return kvstore if kvstore.endswith("/") or "|" in kvstore else f"{kvstore}/"


class TensorStoreVolume:
    """An array that TensorStore reads, as a read-only `Volume`.

    The attributes are those of `chunkflow_py.volume.protocol.Volume`.
    """

    times: int | None = None
    mips: tuple[int, ...] = (0,)
    single_writer: bool = False

    def __init__(self, spec: Spec, axes: str | None = None, cache_bytes: int = 0) -> None:
        """Open the array.

        Args:
            spec: spec of TensorStore.
            axes: one letter per dimension, such as ``xyzc`` (default: the labels of the dimensions,
                else the axes of the format).
            cache_bytes: size of the cache of decoded blocks, in bytes.

        Raises:
            VolumeNotFoundError: the array does not exist.
            VolumeError: the array cannot be opened, or its axes are not those of a volume.
        """
        self.url = _shown(spec)
        if isinstance(spec, dict):
            spec = {key: value for key, value in spec.items() if key not in _CHANGES}
        context = ts.Context({"cache_pool": {"total_bytes_limit": cache_bytes}})
        with _translated(f"open {self.url}"):
            array = ts.open(
                spec, read=True, write=False, open=True, create=False, context=context,
                recheck_cached_data="open",
            ).result()  # fmt: skip
        self.dtype = np.dtype(array.dtype.numpy_dtype)
        if self.dtype.kind not in "buif":
            msg = (
                f"{self.url} holds {array.dtype.name}, but voxels of a volume must be bool, "
                "integers or floats; choose another array"
            )
            raise VolumeError(msg)
        names = _axes(array, axes, self.url)
        order = [names.index(axis) for axis in "czyx" if axis in names]
        if "c" in names and array.shape[names.index("c")] == 1:
            order = order[1:]
        domain, layout = array.domain, array.chunk_layout.read_chunk.shape or array.shape
        alone = {i: int(domain.inclusive_min[i]) for i in range(array.rank) if i not in order}
        kept = [i for i in range(array.rank) if i in order]
        self.places = tuple(_places(array.spec(retain_context=False).to_json()))
        self._array = array[tuple(alone.get(i, slice(None)) for i in range(array.rank))].transpose(
            [kept.index(i) for i in order]
        )
        inside = self._array.domain
        self.bounds = BoundingBox(
            Zyx.of(inside.inclusive_min[-3:]), Zyx.of(inside.exclusive_max[-3:])
        )
        self.channels = int(self._array.shape[0]) if self._array.rank == 4 else None
        self.block_size = Zyx.of(int(layout[i] or 1) for i in order[-3:])
        self.write_unit = self.block_size
        self.voxel_size_nm = _voxel_size(array.dimension_units, order[-3:], self.url)
        self.kind = _kind(array)

    def read(
        self, bbox: BoundingBox, channels: Sequence[int] | None = None, *, time: int | None = None
    ) -> Chunk:
        """Return the voxels inside *bbox*, as `Volume.read` does; *time* is ignored."""
        del time
        check_inside(bbox, self.bounds, self.url)
        check_channels(channels, self.channels, self.url)
        place: tuple[Any, ...] = bbox.slices()
        if self.channels is not None:
            first = int(self._array.domain.inclusive_min[0])
            chosen = range(self.channels) if channels is None else channels
            place = ([first + c for c in chosen], *place)
        with _translated(f"read {bbox} of {self.url}"):
            voxels = self._array[place].read(order="C").result()
        return Chunk(voxels, bbox.start, self.voxel_size_nm, self.kind, self.bounds)

    def write(self, chunk: Chunk, *, time: int | None = None) -> tuple[Stored, ...]:
        """Raise an error, because the array is read only."""
        del time
        msg = (
            f"cannot write {chunk.bbox} to {self.url}: arrays of TensorStore are read only; write "
            "to zarr:// or precomputed://"
        )
        raise VolumeError(msg)

    def objects(self, bbox: BoundingBox, *, time: int | None = None) -> list[str]:  # noqa: ARG002
        """Return an empty list, because tasks do not write to this volume."""
        return []

    def stored_units(self) -> Iterator[StoredUnit]:
        """Raise an error, because TensorStore does not report which blocks are stored."""
        msg = (
            f"TensorStore does not report the stored blocks of {self.url}; instead of a "
            "TensorStore spec, give the address of a volume, such as zarr://s3://bucket/em"
        )
        raise VolumeError(msg)

    def has_blocks(self, bbox: BoundingBox, *, time: int | None = None) -> bool:
        """Raise an error, because TensorStore does not report which blocks are stored."""
        del time
        msg = (
            f"TensorStore does not report the stored blocks of {self.url} in {bbox}; instead of a "
            "TensorStore spec, give the address of a volume, such as zarr://s3://bucket/em"
        )
        raise VolumeError(msg)


@dataclass
class TensorStoreSource(VolumeSource):
    """An array that TensorStore reads, for a loader.

    Attributes:
        spec: TensorStore spec of the array.
        axes: one letter per dimension (default: the labels, else the axes of the format).
        cache_bytes: size of the cache of decoded blocks in bytes (default: the loader chooses).
    """

    spec: Spec
    axes: str | None = None
    cache_bytes: int | None = None
    tells_missing = False  # a missing block is read as the fill value
    _opened: tuple[int, TensorStoreVolume] | None = field(default=None, init=False, repr=False)

    @property
    def origins(self) -> tuple[str, ...]:
        """Addresses of the arrays to read; several addresses if the spec combines arrays.

        If the array cannot be opened, the result is the spec; the loader then raises the error
        when it opens the array.
        """
        try:
            places = self.open().places
        except ChunkflowError:
            places = ()
        return places or (_shown(self.spec),)

    def open(
        self,
        region: Region | BoundingBox | None = None,  # noqa: ARG002
        *,
        cache_bytes: int = 0,
        is_whole: bool = False,  # noqa: ARG002
    ) -> TensorStoreVolume:
        """Open the array."""
        kept = cache_bytes if self.cache_bytes is None else self.cache_bytes
        if self._opened is None or self._opened[0] != kept:
            self._opened = kept, TensorStoreVolume(self.spec, self.axes, kept)
        return self._opened[1]


def loader_of(
    spec: Spec, *, axes: str | None = None, cache_bytes: int | None = None, **settings: Any
) -> VolumeLoader:
    """Return a loader that reads an array with TensorStore.

    Args:
        spec: TensorStore spec of the array.
        axes: one letter per dimension (default: the labels, else the axes of the format).
        cache_bytes: size of the cache of decoded blocks in bytes (default: enough for the blocks
            that tasks share).
        settings: attributes of `VolumeLoader`.
    """
    return VolumeLoader(TensorStoreSource(spec, axes, cache_bytes), **settings)


def _places(spec: Any) -> Iterator[str]:
    if isinstance(spec, list):
        for each in spec:
            yield from _places(each)
    elif isinstance(spec, dict):
        kvstore = spec.get("kvstore")
        if isinstance(kvstore, dict) and (form := _ADDRESSES.get(kvstore["driver"])):
            key = spec.get("scale_metadata", {}).get("key", "")
            root = form.format_map({"path": "", **kvstore}).rstrip("/")
            yield f"{root}/{key}".rstrip("/")
        for name in ("base", "layers"):
            yield from _places(spec.get(name))


def _shown(spec: Spec) -> str:
    """Return a spec for messages, without credentials."""
    if isinstance(spec, str):
        return without_secrets(spec)
    store = spec.get("kvstore", "")
    where = store if isinstance(store, str) else json.dumps(store, sort_keys=True)
    more = {key: value for key, value in spec.items() if key not in ("driver", "kvstore")}
    rest = f" {json.dumps(more, sort_keys=True)}" if more else ""
    return without_secrets(f"{spec.get('driver')} {where}{rest}")


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Translate errors of TensorStore to a `VolumeError` with a short message.

    Args:
        doing: the operation, such as ``open URL``; the message begins with ``TensorStore cannot``.
    """
    try:
        yield
    except _ERRORS as error:
        message = str(error).partition(" [tensorstore_spec")[0].partition(" [source locations")[0]
        kind = VolumeNotFoundError if message.startswith("NOT_FOUND") else VolumeError
        reason = without_secrets(message)[:_MESSAGE_LENGTH]
        msg = f"TensorStore cannot {doing}: {reason}; check --spec"
        raise kind(msg) from error


def _axes(array: Any, axes: str | None, url: str) -> str:
    """Return one letter per dimension: c, z, y, x, or a dot for any other axis of extent 1."""
    rank = array.rank
    names = [str(label).lower().rstrip("^'") for label in array.domain.labels]
    names = ["c" if name == "channel" else name for name in names]
    if axes is not None:
        names = [*axes.lower()]
    elif not all(names):
        driver = array.spec().to_json()["driver"]
        names = [*("xyzc"[:rank] if driver in _X_FIRST else "czyx"[-rank:])]
    extra = [i for i, name in enumerate(names) if name not in "czyx" or not name]
    wide = [i for i in extra if i < rank and array.shape[i] != 1]
    known = [name for i, name in enumerate(names) if i not in extra]
    if len(names) != rank or wide or len({*known}) < len(known) or not {*"zyx"} <= {*known}:
        msg = (
            f"{url} has the dimensions {names} of extent {[*array.shape]}, but a volume must have "
            "z, y, x and optionally c (channels); name the dimensions with --axes, such as czyx, "
            "or select some dimensions with a transform in --spec"
        )
        raise VolumeError(msg)
    return "".join("." if i in extra else name for i, name in enumerate(names))


def _voxel_size(units: Sequence[Any], order: Sequence[int], url: str) -> tuple[float, float, float]:
    ordered = [units[i] for i in order]
    sizes = [1.0 if unit is None or unit.multiplier == 0 else unit.multiplier for unit in ordered]
    names = [None if unit is None else unit.base_unit or None for unit in ordered]
    return ome.nanometres(sizes, names, url)


def _kind(array: Any) -> Kind | None:
    kind = array.spec().to_json().get("multiscale_metadata", {}).get("type")
    return kind if kind in ("image", "segmentation") else None

"""Read and write a dataset of a local HDF5 file as a volume, with many readers and one writer.

| address               | dataset                                                            |
|-----------------------|--------------------------------------------------------------------|
| ``h5://em.h5``        | ``main``; if the file has no ``main``, its only dataset            |
| ``h5://em.h5:/a/raw`` | ``/a/raw``                                                         |

The module `chunkflow_py.volume.files.hdf5` lists the attributes and datasets from which the offset,
voxel size and kind of voxels are read.

Guarantees:

* When a write returns, its voxels are on the disk.
* Readers see the file before or after a write, never during a write.
* A second process that tries to write gets an error.
* If the disk is full, existing blocks are kept, and the file can still be opened.

HDF5 changes a file in place. If a process or machine dies during a write, the file may therefore be
damaged, and the block that was being overwritten may be lost. Zarr volumes do not have this
problem, and allow many writers.
"""

from __future__ import annotations

import os
import secrets
from itertools import product
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.hdf5_io import item_at
from chunkflow_py.errors import VolumeError, VolumeNotFoundError
from chunkflow_py.store.local_files import make_folder, os_errors
from chunkflow_py.volume.files.hdf5 import LAYER_TYPES, find_dataset, open_hdf5
from chunkflow_py.volume.files.hdf5_file import Sink, WriterLock, reading, writing
from chunkflow_py.volume.protocol import check_chunk, check_inside

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.store.store_protocol import Stored
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.location import Location
    from chunkflow_py.volume.protocol import StoredUnit, VolumeOptions, VolumeSpec

ENCODINGS = ("gzip", "lzf", "szip", "raw")

_MAIN = "main"


class Hdf5Volume:
    """A dataset of an HDF5 file as a `Volume`.

    Args:
        place: location of the file and the dataset.
        mode: ``r`` or ``r+``.
        opening: only ``fill_missing`` and ``store_zeros`` have an effect. HDF5 cannot remove a
            block, so zeros overwrite an existing block even without ``store_zeros``. HDF5 encodes
            one block at a time, so ``parallel`` has no effect.

    Attributes:
        url, bounds, voxel_size_nm, dtype, channels, kind, block_size, write_unit, times, mips,
            single_writer: see `Volume`; a dataset that is not stored in blocks counts as one block.

    Raises:
        VolumeNotFoundError: the file or dataset does not exist.
        VolumeError: the file cannot be read, or has several datasets and *place* names none.
    """

    single_writer = True

    def __init__(self, place: Location, mode: Mode, opening: VolumeOptions) -> None:
        """Read the header."""
        self.url = place.url
        self._path, self._mode, self._opening = place.folder, mode, opening
        self._lock: WriterLock | None = None
        self._place = place
        array = open_hdf5(self._path, place.dataset, one_only=True)
        if array is None:
            msg = f"{self.url} is an empty file; create the volume first"
            raise VolumeNotFoundError(msg)
        self._array = array
        self.bounds, self.channels, self.kind = array.bounds, array.channels, array.kind
        self.voxel_size_nm, self.dtype = array.voxel_size_nm, array.dtype
        with reading(self._path) as file:
            dataset = find_dataset(file, self._path, place.dataset)
            self._name: str = dataset.name
            self._blocks: tuple[int, ...] | None = dataset.chunks
            shape = dataset.chunks or dataset.shape
            self.encoding: str = dataset.compression or "raw"
        self.block_size = self.write_unit = Zyx.of(shape[-3:]).high((1, 1, 1))
        self.times: int | None = None
        self.mips: tuple[int, ...] = (0,)

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the address and the options, not voxels; unpickling opens the volume again."""
        return Hdf5Volume, (self._place, self._mode, self._opening)

    def read(
        self,
        bbox: BoundingBox,
        channels: Sequence[int] | None = None,
        *,
        time: int | None = None,  # noqa: ARG002  (the same at all times)
    ) -> Chunk:
        """Return the voxels inside *bbox*; see `Volume.read`."""
        check_inside(bbox, self.bounds, self.url)
        if not self._opening.fill_missing and (missing := next(self._missing(bbox), None)):
            msg = (
                f"block {missing} of {self.url} is not stored; write the block, or use "
                "--fill-missing to read it as zeros"
            )
            raise VolumeError(msg)
        return self._array.read(bbox, channels)

    def write(self, chunk: Chunk, *, time: int | None = None) -> tuple[Stored, ...]:
        """Write *chunk*; see `Volume.write`. Afterwards, only this process may write to the file.

        Returns:
            An empty tuple, because no task has an object of its own: all tasks write to one file.

        Raises:
            VolumeError: another process writes to the file; also the errors of `Volume.write`.
        """
        if self._mode == "r":
            msg = f"{self.url} was opened for reading; open it with mode 'r+'"
            raise VolumeError(msg)
        check_chunk(chunk, self, time)
        self.claim()
        voxels = chunk.array
        if voxels.ndim == 4 and self.channels is None:
            voxels = voxels[0]
        elif voxels.ndim == 3 and self.channels is not None:
            voxels = voxels[np.newaxis]
        with writing(self._path) as (file, sink):
            dataset = find_dataset(file, self._path, self._name)
            for box in self._boxes(chunk.bbox):
                part = voxels[(..., *box.slices(chunk.voxel_offset))]
                if self._is_left_out(dataset, box, part):
                    continue
                dataset[(..., *box.slices(self.bounds.start))] = part
                sink.check()  # stop compressing after a failed write
        return ()

    def objects(self, bbox: BoundingBox, *, time: int | None = None) -> list[str]:  # noqa: ARG002
        """Return an empty list, because tasks do not write separate objects."""
        return []

    def has_blocks(self, bbox: BoundingBox, *, time: int | None = None) -> bool:  # noqa: ARG002
        """Return whether every block that *bbox* touches is stored; see `Volume.has_blocks`."""
        check_inside(bbox, self.bounds, self.url)
        return next(self._missing(bbox), None) is None

    def stored_units(self) -> Iterator[StoredUnit]:
        """Raise an error, because the blocks of an HDF5 file are not separate objects."""
        msg = f"cannot list the stored blocks of {self.url}, which is one file; write to zarr://"
        raise VolumeError(msg)

    @property
    def dataset(self) -> str:
        """The name of the dataset in the file."""
        return self._name

    def claim(self) -> None:
        """Acquire the lock that makes this process the only writer of the file.

        Raises:
            VolumeError: another process writes to the file.
        """
        if self._lock is None:
            self._lock = WriterLock.of(self._path)

    def _missing(self, bbox: BoundingBox) -> Iterator[BoundingBox]:
        """Yield the boxes of those blocks that *bbox* touches and that are not stored."""
        with reading(self._path) as file:
            dataset = find_dataset(file, self._path, self._name)
            for box in self._boxes(bbox):
                if not all(self._stored(dataset, box)):
                    yield box

    def _boxes(self, bbox: BoundingBox) -> Iterator[BoundingBox]:
        """Yield the boxes of the blocks that *bbox* touches, clipped to the bounds."""
        if bbox.is_empty:
            return
        whole = bbox.aligned_outward(self.block_size, self.bounds.start)
        for box in BoxGrid.covering(whole, self.block_size):
            yield box.intersection(self.bounds)

    def _stored(self, dataset: h5py.Dataset, box: BoundingBox) -> Iterator[bool]:
        """Yield whether the block at *box* is stored.

        If a block does not contain all channels, several blocks have the same box. In this case,
        one value is yielded for each of these blocks.
        """
        if self._blocks is None:
            yield dataset.id.get_storage_size() > 0
            return
        start = box.start - self.bounds.start
        channels = (range(0, n, b) for n, b in zip(dataset.shape, self._blocks[:-3], strict=False))
        for channel in product(*channels):
            yield dataset.id.get_chunk_info_by_coord((*channel, *start)).byte_offset is not None

    def _is_left_out(self, dataset: h5py.Dataset, box: BoundingBox, voxels: Any) -> bool:
        if self._opening.store_zeros or (voxels != dataset.fillvalue).any():
            return False
        return not any(self._stored(dataset, box))


def open_volume(place: Location, mip: int, mode: Mode, opening: VolumeOptions) -> Hdf5Volume:
    """Open the dataset that *place* names, or the default that `find_dataset` chooses.

    Raises:
        VolumeNotFoundError: the file, dataset or level does not exist.
        VolumeError: the file cannot be read, or *mode* is ``r+`` and another process writes to the
            file.
    """
    _check_local(place)
    if not place.folder.exists():
        msg = f"{place} does not exist; check the path, or create the volume first"
        raise VolumeNotFoundError(msg)
    volume = Hdf5Volume(place, mode, opening)
    if mip:
        msg = f"{place} has no mip {mip}; it has mip 0 only; use --mip 0"
        raise VolumeNotFoundError(msg)
    if mode == "r+":
        volume.claim()
    return volume


def create_volume(
    spec: VolumeSpec, place: Location, mip: int, opening: VolumeOptions
) -> Hdf5Volume:
    """Create the dataset that *place* names (default: ``main``), and open it for writing.

    The file is created if it does not exist; other datasets of an existing file are kept. If
    several processes create the same dataset at the same time, all open the same dataset; the first
    process that writes to the file becomes its only writer.

    Args:
        spec: description of the dataset; its encoding is one of `ENCODINGS`, ``gzip`` by default.
        place: location of the file and the dataset.
        mip: 0, the only level.
        opening: options for reading and writing the volume.

    Raises:
        VolumeError: the file cannot be written, a different dataset of that name exists, or *spec*
            has several levels, time points or shards, which HDF5 does not support.
    """
    check_new(spec, place, mip)
    name = place.dataset or _MAIN
    path = place.folder
    if not path.exists():
        _create_file(spec, path, name)
    elif not _exists(path, name):
        _lock = WriterLock.of(path)
        with writing(path) as (file, _):
            if item_at(file, name, str(path)) is None:
                _create_dataset(spec, file, name)
    volume = Hdf5Volume(place, "r+", opening)
    _check_same(volume, spec)
    return volume


def address_of_dataset(path: Path, name: str | None) -> str:
    """Return the byte address of a dataset in its file.

    Links to the same dataset have the same address.

    Raises:
        VolumeNotFoundError: the file or dataset does not exist.
        VolumeError: the file cannot be read.
    """
    with reading(path) as file:
        return str(h5py.h5o.get_info(find_dataset(file, path, name).id).addr)


def _create_file(spec: VolumeSpec, path: Path, name: str) -> None:
    """Create the file under a temporary name, then link it to *path* unless *path* exists."""
    temporary = path.with_name(f".tmp-{secrets.token_hex(4)}-{path.name}")
    with os_errors("write", path):
        make_folder(path.parent)
        try:
            with Sink(temporary, new=True) as sink:
                with h5py.File(sink, "w") as file:
                    _create_dataset(spec, file, name)
                sink.sync()
            try:
                os.link(temporary, path)
            except FileExistsError:
                return
            folder = os.open(path.parent, os.O_RDONLY)
            try:
                os.fsync(folder)
            finally:
                os.close(folder)
        finally:
            temporary.unlink(missing_ok=True)


def _exists(path: Path, name: str) -> bool:
    with os_errors("read", path):
        if path.stat().st_size == 0:
            msg = f"{path} is an empty file; delete the file to create a volume of this name"
            raise VolumeError(msg)
    with reading(path) as file:
        return item_at(file, name, str(path)) is not None


def _create_dataset(spec: VolumeSpec, file: h5py.File, name: str) -> None:
    encoding = spec.encoding or "gzip"
    shape = (*(() if spec.channels is None else (spec.channels,)), *spec.bounds.size)
    blocks = spec.bounds.size.low(spec.block_size)
    dataset = file.create_dataset(
        name,
        shape,
        spec.dtype,
        chunks=(1,) * (len(shape) - 3) + blocks,
        compression=None if encoding == "raw" else encoding,
        compression_opts=1 if encoding == "gzip" else None,
        shuffle=encoding in ("gzip", "lzf") and spec.dtype.itemsize > 1,
        fillvalue=0,
    )
    offset, size_nm = np.array(spec.bounds.start, np.int64), np.array(spec.voxel_size_nm)
    if name.strip("/") == _MAIN:
        file.create_dataset("voxel_offset", data=offset)
        file.create_dataset("voxel_size", data=size_nm)
    else:
        dataset.attrs["voxel_offset"] = offset
        dataset.attrs["voxel_size_nm"] = size_nm
    if spec.kind is not None:
        dataset.attrs["layer_type"] = LAYER_TYPES[spec.kind]


def _check_local(place: Location) -> None:
    if not place.is_local:
        msg = (
            f"cannot open {place}: HDF5 files are read and written on local disks only; copy the "
            "file, or convert it to zarr"
        )
        raise VolumeError(msg)


def check_new(
    spec: VolumeSpec,
    place: Location,
    mip: int,
    **_: Any,
) -> None:
    """Raise the errors that `create_volume` would raise, but create nothing.

    See `write_checks.check_new`.
    """
    _check_local(place)
    _check_spec(spec, place, mip)


def _check_spec(spec: VolumeSpec, place: Location, mip: int) -> None:
    if mip or spec.max_mip:
        msg = (
            f"cannot create {place} with mip {max(mip, spec.max_mip)}: a dataset of an HDF5 file "
            "has mip 0 only; write to zarr:// or precomputed:// for more levels"
        )
        raise VolumeError(msg)
    if spec.times is not None:
        msg = (
            f"cannot create {place} with {spec.times} time points: an HDF5 volume has no time "
            "axis; write to zarr://"
        )
        raise VolumeError(msg)
    if spec.shard_size is not None:
        msg = f"cannot create {place} with shards: HDF5 has no shards; leave out the shard size"
        raise VolumeError(msg)
    available = [name for name in ENCODINGS if name == "raw" or name in h5py.filters.encode]
    if spec.encoding not in (None, *available):
        known = ", ".join(available)
        msg = f"cannot create {place}: HDF5 has no encoding {spec.encoding!r}; choose {known}"
        raise VolumeError(msg)


def _check_same(volume: Hdf5Volume, spec: VolumeSpec) -> None:
    """Raise an error if an existing dataset differs from *spec*."""
    blocks = spec.bounds.size.low(spec.block_size)
    for what, there, wanted in (
        ("bounds", volume.bounds, spec.bounds),
        ("type", volume.dtype, np.dtype(spec.dtype).newbyteorder("=")),
        ("number of channels", volume.channels, spec.channels),
        ("block size", volume.block_size, blocks),
    ):
        if there != wanted:
            msg = (
                f"{volume.url} already exists with {what} {there}, but {wanted} is requested; "
                "write to another file or dataset"
            )
            raise VolumeError(msg)

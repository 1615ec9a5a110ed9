"""Read and write an array in an HDF5 file, with its voxel offset, voxel size and kind.

| what         | written as               | names tried when reading, in this order         |
|--------------|--------------------------|-------------------------------------------------|
| voxels       | dataset ``main``         | ``main``, the first 3D or 4D dataset of numbers |
| voxel offset | dataset ``voxel_offset`` | attributes ``voxel_offset``, ``origin``         |
| voxel size   | dataset ``voxel_size``   | attributes ``voxel_size_nm``, ``voxel_size``    |
| kind         | attribute ``layer_type`` | attribute ``layer_type``                        |

Offsets (voxels) and voxel sizes (nanometres) are zyx. They are searched in three places: first in
the attributes of the dataset with the voxels, then in the dataset ``voxel_offset`` or
``voxel_size``, then in the attributes of the file.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import h5py
import numpy as np

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.hdf5_io import (
    attribute,
    check_dataset,
    datasets_in,
    item_at,
    read,
    small,
)
from chunkflow_py.errors import OptionError, VolumeError, VolumeNotFoundError
from chunkflow_py.store.local_files import os_errors, replacing
from chunkflow_py.volume.files.file_volume import ORIGIN, FileVolume, three_numbers
from chunkflow_py.volume.files.hdf5_file import Sink, reading
from chunkflow_py.volume.protocol import UNIT_NM

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Chunk, Kind

EXTENSIONS = (".h5", ".hdf5", ".hdf")
BLOCK_SIZE = Zyx(64, 64, 64)
_LISTED = 20  # datasets that a message names

# Spelling of the kinds in files, which other tools of the field read.
LAYER_TYPES: dict[Kind, str] = {
    "image": "image",
    "segmentation": "segmentation",
    "probability": "probability_map",
    "affinity": "affinity_map",
    "logit": "logit",
    "vector": "vector",
    "embedding": "embedding",
}


# --- reading ------------------------------------------------------------------------------------


def open_hdf5(
    path: Path,
    dataset_path: str | None = None,
    voxel_offset: Zyx | None = None,
    voxel_size_nm: tuple[float, float, float] | None = None,
    kind: Kind | None = None,
    *,
    one_only: bool = False,
) -> FileVolume | None:
    """Open an array in an HDF5 file, reading only headers; return ``None`` for an empty file.

    Args:
        path: file to read.
        dataset_path: path of the dataset, such as ``/volumes/raw`` (default: ``main``, else the
            first 3D or 4D dataset of numbers).
        voxel_offset: global position of the first voxel, zyx; replaces that of the file.
        voxel_size_nm: voxel size in nanometres, zyx; replaces that of the file.
        kind: kind of the voxels; replaces that of the file.
        one_only: if *dataset_path* is not given, refuse a file with several datasets, none of
            which is called ``main``.

    Raises:
        VolumeNotFoundError: the file or dataset does not exist; the message lists the datasets.
        VolumeError: the file is not an HDF5 file, or is damaged.
        ChunkError: the dataset is neither 3D nor 4D.
    """
    with os_errors("read", path):
        if path.stat().st_size == 0:
            return None
    with reading(path) as file:
        dataset = find_dataset(file, path, dataset_path, one_only=one_only)
        what = f"dataset {dataset.name} of {path}"
        return FileVolume(
            what,
            dataset.shape,
            dataset.dtype,
            partial(_read_part, path, dataset.name),
            voxel_offset=voxel_offset or _voxel_offset(file, dataset, what),
            voxel_size_nm=voxel_size_nm or _voxel_size_nm(file, dataset, what),
            kind=kind or _kind(file, dataset),
        )


def _is_array(item: object) -> bool:
    return isinstance(item, h5py.Dataset) and item.ndim in (3, 4) and item.dtype.kind in "buif"


def find_dataset(
    file: h5py.File, path: Path, dataset_path: str | None, *, one_only: bool = False
) -> h5py.Dataset:
    """Return the dataset at *dataset_path*; by default ``main``, else the first 3D or 4D array.

    Raises:
        VolumeNotFoundError: the dataset does not exist; the message lists the existing datasets.
        VolumeError: the values of the dataset are not numbers, or are stored in another file; or
            the file has several arrays, none is called ``main``, and *one_only* is true.
    """
    if dataset_path is None:
        main = item_at(file, "main", str(path))
        if _is_array(main):
            return main
        arrays = [item for item in datasets_in(file) if _is_array(item)]
        if one_only and len(arrays) > 1:
            listing = ", ".join(f"{item.name} {item.shape}" for item in arrays)
            msg = (
                f"{path} contains {len(arrays)} datasets ({listing}), but none is called main; "
                f"name the dataset to read, for example h5://{path}:{arrays[0].name}"
            )
            raise VolumeError(msg)
        if arrays:
            check_dataset(arrays[0], str(path))
            return arrays[0]
        listing = _listing(file)
        msg = f"{path} contains no 3D or 4D dataset of numbers, only {listing}; check --file-name"
        raise VolumeNotFoundError(msg)
    item = item_at(file, dataset_path, str(path))
    if not isinstance(item, h5py.Dataset):
        msg = (
            f"{path} has no dataset {dataset_path!r}, only {_listing(file)}; name an existing "
            "dataset"
        )
        raise VolumeNotFoundError(msg)
    if item.dtype.kind not in "buif":
        msg = (
            f"dataset {item.name} of {path} contains {item.dtype} values, not numbers; name "
            f"another dataset of the file: {_listing(file)}"
        )
        raise VolumeError(msg)
    return item


def _listing(file: h5py.File) -> str:
    datasets = datasets_in(file)
    shown = [f"{item.name} {item.shape}" for item in datasets[:_LISTED]]
    more = [f"and {len(datasets) - _LISTED} more"] if len(datasets) > _LISTED else []
    return ", ".join([*shown, *more]) or "groups"


def _triple(
    file: h5py.File, dataset: h5py.Dataset, name: str, *attributes: str
) -> tuple[str, Any] | None:
    path = str(file.filename)
    for each in attributes:
        if (value := attribute(dataset, each, path)) is not None:
            return each, value
    beside = item_at(file, name, path)
    if isinstance(beside, h5py.Dataset):
        numbers = beside.dtype.kind in "buif"
        return name, small(beside, path) if numbers else f"values of type {beside.dtype}"
    for each in attributes:
        if (value := attribute(file, each, path)) is not None:
            return each, value
    return None


def _voxel_offset(file: h5py.File, dataset: h5py.Dataset, what: str) -> Zyx:
    triple = _triple(file, dataset, "voxel_offset", "voxel_offset", "origin")
    if triple is None:
        return ORIGIN
    name, values = triple
    numbers = three_numbers(values, f"{name} of {what}")
    if any(v != int(v) for v in numbers):
        msg = f"{name} of {what} must be whole voxels (zyx), got {numbers}; give --voxel-offset"
        raise VolumeError(msg)
    return Zyx.of(int(v) for v in numbers)


def _voxel_size_nm(file: h5py.File, dataset: h5py.Dataset, what: str) -> tuple[float, float, float]:
    triple = _triple(file, dataset, "voxel_size", "voxel_size_nm", "voxel_size")
    if triple is None:
        return UNIT_NM
    name, values = triple
    numbers = three_numbers(values, f"{name} of {what}")
    if min(numbers) <= 0:
        msg = f"{name} of {what} must be positive (nm, zyx), got {numbers}; give --voxel-size"
        raise VolumeError(msg)
    return numbers


def _kind(file: h5py.File, dataset: h5py.Dataset) -> Kind | None:
    for owner in (dataset, file):
        value = attribute(owner, "layer_type", str(file.filename))
        text = value.decode() if isinstance(value, bytes) else str(value)
        for kind, spelling in LAYER_TYPES.items():
            if text.lower() in (kind, spelling):
                return kind
    return None


def _read_part(
    path: Path, name: str, slices: tuple[slice, slice, slice], channels: Sequence[int] | None
) -> NDArray[Any]:
    with reading(path) as file:
        dataset = find_dataset(file, path, name)
        leading = [slice(0, n) for n in dataset.shape[:-3]]
        if channels is None:
            return read(dataset, [*leading, *slices], str(path))
        size = tuple(s.stop - s.start for s in slices)
        result = np.empty((len(channels), *size), dataset.dtype)
        for index, channel in enumerate(channels):
            read(dataset, [channel, *slices], str(path), result[index])
        return result


# --- writing ------------------------------------------------------------------------------------


def check_compression(compression: str) -> None:
    """Check that this build of HDF5 can write a compression.

    Raises:
        OptionError: HDF5 cannot write this compression; the message lists the available
            compressions.
    """
    available = [name for name in ("gzip", "lzf", "szip") if name in h5py.filters.encode]
    if compression not in available:
        msg = (
            f"this build of HDF5 cannot write --compression {compression}; "
            f"choose one of {', '.join(available)}"
        )
        raise OptionError(msg)


def write_hdf5(
    path: Path,
    chunk: Chunk,
    *,
    block_size: Zyx | None = None,
    compression: str = "gzip",
    with_offset: bool = True,
    voxel_size_nm: tuple[float, float, float] | None = None,
) -> None:
    """Write *chunk* to a temporary HDF5 file, then rename the complete file to *path*.

    Args:
        path: file to write; an existing file is replaced.
        chunk: (z, y, x) or (c, z, y, x), numbers of any dtype.
        block_size: extent of a stored block, voxels, zyx (default: 64 64 64, or less if the chunk
            is smaller).
        compression: ``gzip``, ``lzf`` or ``szip``.
        with_offset: whether to write ``voxel_offset``.
        voxel_size_nm: voxel size to write instead of the chunk's, nanometres, zyx.

    As in chunkflow 1.x, the file of a segmentation also has the dataset ``unique_nonzeros``: the
    labels in the chunk, without 0, in ascending order.

    Raises:
        OptionError: the compression is not available.
        VolumeError: the file cannot be written, for example on a full disk; an existing file is
            kept.
    """
    check_compression(compression)
    size = chunk.size.low(block_size or BLOCK_SIZE)
    with (
        replacing(path) as temporary,
        Sink(temporary, new=True) as sink,
        h5py.File(sink, "w") as file,
    ):
        stored: dict[str, Any] = {}
        if chunk.array.size:
            stored = {
                "chunks": (1,) * (chunk.ndim - 3) + size,
                "compression": compression,
                "compression_opts": 1 if compression == "gzip" else None,
                "shuffle": compression != "szip" and chunk.dtype.itemsize > 1,
            }
        dataset = file.create_dataset("main", chunk.shape, chunk.dtype, **stored)
        labels: set[int] | None = None
        if chunk.kind == "segmentation" and chunk.dtype.kind in "iu":
            labels = set()
        # One layer of blocks at a time, so that compression stops soon after a failed write.
        for index in np.ndindex(chunk.shape[:-3]):
            for start in range(0, chunk.size.z, max(1, size.z)):
                part = (*index, slice(start, start + size.z))
                dataset[part] = chunk.array[part]
                sink.check()
                if labels is not None:
                    labels.update(np.unique(chunk.array[part]).tolist())
        if labels is not None:
            unique = np.array(sorted(labels - {0}), chunk.dtype)
            file.create_dataset("unique_nonzeros", data=unique)
        if with_offset:
            file.create_dataset("voxel_offset", data=np.array(chunk.voxel_offset, np.int64))
        file.create_dataset("voxel_size", data=np.array(voxel_size_nm or chunk.voxel_size_nm))
        if chunk.kind is not None:
            file.attrs["layer_type"] = LAYER_TYPES[chunk.kind]

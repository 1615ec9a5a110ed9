"""Small HDF5 files as bytes: datasets by name and attributes, for stores of any kind."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.hdf5_reading import attribute, item_at, read
from chunkflow_py.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import h5py

_RATIO, _RATIO_FROM = 32, 1 << 25  # bytes of arrays for each of a file, and beside
_DATASETS = 256  # of one file; those of ours have a dozen
SIGNATURE = b"\x89HDF\r\n\x1a\n"


def pack(datasets: Mapping[str, Any], attributes: Mapping[str, str]) -> bytes:
    """Return an HDF5 file that holds arrays and attributes; the same for the same content.

    Args:
        datasets: name -> array of numbers; what is ``None`` is left out.
        attributes: of the file, texts.
    """
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        for name, values in datasets.items():
            if values is not None:
                file.create_dataset(name, data=values, track_times=False)
        file.attrs.update(attributes)
    return buffer.getvalue()


def unpack(
    data: bytes, what: str, attributes: Sequence[str] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the datasets of numbers at the top of an HDF5 file, and some of its attributes.

    Args:
        data: the whole file.
        what: its name, for messages.
        attributes: names of those that are wanted; ``None`` stands for what is not there.

    Raises:
        VolumeError: it is not an HDF5 file, is damaged, names other files, or its datasets are
            much larger than it.
    """
    import h5py

    if not data.startswith(SIGNATURE):
        msg = f"{what} is not an HDF5 file; check its name"
        raise VolumeError(msg)
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            found = _datasets(file, what)
            size = sum(dataset.nbytes for dataset in found.values())
            if size > _RATIO * len(data) + _RATIO_FROM:
                msg = (
                    f"the datasets of {what} have {size} bytes, more than {_RATIO} times the "
                    f"{len(data)} of the file; write it again"
                )
                raise VolumeError(msg)
            arrays = {
                name: read(dataset, [slice(0, n) for n in dataset.shape], what)
                for name, dataset in found.items()
            }
            return arrays, {name: attribute(file, name, what) for name in attributes}
    except (OSError, RuntimeError, KeyError, ValueError) as error:
        if isinstance(error, VolumeError):
            raise
        reason = str(error).strip("'\"").splitlines()[0]
        msg = f"cannot read {what}, which seems damaged: {reason}; write it again"
        raise VolumeError(msg) from error


def _datasets(file: h5py.File, what: str) -> dict[str, h5py.Dataset]:
    """Return the datasets of numbers at the top of a file, by their names."""
    import h5py

    if len(file) > _DATASETS:
        msg = f"{what} holds {len(file)} datasets, more than the {_DATASETS} that are read"
        raise VolumeError(msg)
    found = {}
    for name in file:
        item = item_at(file, name, what)
        if isinstance(item, h5py.Dataset) and item.shape is not None and item.dtype.kind in "buif":
            found[name] = item
    return found

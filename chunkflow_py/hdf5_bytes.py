"""Small HDF5 files as bytes: datasets by name and attributes, for stores of any kind."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import VolumeError

if TYPE_CHECKING:
    from collections.abc import Mapping

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


def unpack(data: bytes, what: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the datasets of numbers at the top of an HDF5 file, and its attributes.

    Args:
        data: the whole file.
        what: its name, for messages.

    Raises:
        VolumeError: it is not an HDF5 file, or damaged.
    """
    import h5py

    if not data.startswith(SIGNATURE):
        msg = f"{what} is not an HDF5 file; check its name"
        raise VolumeError(msg)
    try:
        with h5py.File(io.BytesIO(data), "r") as file:
            arrays = {
                name: item[()]
                for name, item in file.items()
                if isinstance(item, h5py.Dataset) and item.dtype.kind in "buif"
            }
            return arrays, dict(file.attrs)
    except (OSError, RuntimeError, KeyError) as error:
        reason = str(error).strip("'\"").splitlines()[0]
        msg = f"cannot read {what}, which seems damaged: {reason}; write it again"
        raise VolumeError(msg) from error

"""Attributes of HDF5 files: small ones are read from every file version, large ones are refused."""

from __future__ import annotations

import io

import h5py
import numpy as np
import pytest

from chunkflow_py.core.hdf5_io import attribute
from chunkflow_py.errors import VolumeError

TEXTS = {"layer_type": "ségmentation", "layer": "another", "empty": "", "long": "x" * 60_000}


@pytest.fixture(params=["earliest", "v108", "latest"])
def data(request):
    """The bytes of a file of each format version, with few or many attributes."""
    buffer = io.BytesIO()
    with h5py.File(buffer, "w", libver=request.param) as file:
        for owner in (file, file.create_dataset("group/main", data=np.zeros((4, 4, 4), np.uint8))):
            owner.attrs.update(TEXTS)
            owner.attrs["bytes"] = np.bytes_("raw")
            owner.attrs["numbers"] = [1, 2, 3]
            owner.attrs["null"] = h5py.Empty(h5py.string_dtype())
    return buffer.getvalue()


@pytest.mark.parametrize("in_memory", [False, True])
def test_attributes_of_every_file_version_are_read(data, in_memory, tmp_path):
    """Texts of variable length, and other attributes, of a dataset and of the file."""
    path = tmp_path / "a.h5"
    path.write_bytes(data)
    with h5py.File(io.BytesIO(data) if in_memory else path, "r") as file:
        for owner in (file, file["group/main"]):

            def read(name, owner=owner):
                return attribute(owner, name, "a.h5", data=data if in_memory else None)

            assert {name: read(name) for name in TEXTS} == TEXTS
            assert read("bytes") == b"raw"
            assert read("numbers").tolist() == [1, 2, 3]
            assert read("null") is None
            assert read("missing") is None


@pytest.mark.parametrize("data", ["earliest"], indirect=True)  # later ones have checksums
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_declared_length_is_checked_before_memory_is_taken(data, in_memory, tmp_path):
    """The length of a text stands in 4 bytes that anyone can change."""
    length = len(TEXTS["layer_type"].encode()).to_bytes(4, "little")
    changed, at = bytearray(data), 0
    while (at := changed.find(b"layer_type\0", at + 1)) > 0:
        start = changed.index(length, at)
        changed[start : start + 4] = (2**32 - 1).to_bytes(4, "little")
    path = tmp_path / "a.h5"
    path.write_bytes(changed)
    with (
        h5py.File(io.BytesIO(changed) if in_memory else path, "r") as file,
        pytest.raises(VolumeError, match="a text of 4294967295 bytes, more than the limit"),
    ):
        attribute(file["group/main"], "layer_type", "a.h5", data=changed if in_memory else None)

"""Tests of chunkflow_py.volume.zarr."""

from contracts.volume_contract import VolumeContract


class TestZarr(VolumeContract):
    scheme = "zarr"

"""Tests of chunkflow_py.volume.precomputed."""

from contracts.volume_contract import VolumeContract


class TestPrecomputed(VolumeContract):
    scheme = "precomputed"

"""Tests of what zarr volumes promise as all others do: sharded, zarr v2, and in buckets."""

import pytest
from contracts.cloud_contract import CloudContract

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.testing.volume_contract import LocalContract


class TestShardedZarr(LocalContract):
    scheme = "zarr3"
    shard_size = Zyx(16, 32, 16)
    checked = ("zstd", "blosc", "raw", "gzip")


class TestZarr2(LocalContract):
    scheme = "zarr2"
    checked = ("zstd", "gzip")


class TestZarrInBuckets(CloudContract):
    scheme = "zarr"
    checked = ("zstd", "blosc", "raw", "gzip")


@pytest.mark.long
class TestShardedZarrInBuckets(CloudContract):
    scheme = "zarr"
    shard_size = Zyx(16, 32, 16)
    checked = ("zstd", "blosc", "raw", "gzip")

"""Tests of chunkflow_py.ops.options.saving_options."""

import pytest

from chunkflow_py.core.chunk import KINDS
from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.ops import create_volume
from chunkflow_py.ops.options import saving_options
from chunkflow_py.ops.options.saving_options import check_format, check_shard
from chunkflow_py.volume.precomputed import precomputed_info


def test_the_choices_are_those_of_the_formats():
    """What the command line offers is what the formats have; it cannot import them to ask."""
    assert saving_options.PRECOMPUTED_ENCODINGS == precomputed_info.ENCODINGS
    assert saving_options.PRECOMPUTED_DTYPES == precomputed_info.DTYPES
    assert create_volume.KINDS == KINDS


def test_shards_are_made_of_whole_blocks():
    """Shards that are no multiple of the block are refused with the nearest that are."""
    check_shard(None, None)
    check_shard(Zyx(8, 16, 16), Zyx(8, 8, 4))
    with pytest.raises(OptionError, match=r"size \(8, 8, 8\) .*; try \(16, 8, 8\)"):
        check_shard(Zyx(9, 8, 8), Zyx(8, 8, 8))
    with pytest.raises(OptionError, match="needs a block size"):
        check_shard(Zyx(9, 8, 8), None)


@pytest.mark.parametrize(
    ("url", "refused"),
    [("em", False), ("zarr://em", False), ("s3://b/em", False), ("h5://em.h5", True)],
)
def test_options_of_one_format(url, refused):
    """Options of one format are refused where the address names another, and only there."""
    check_format(url, "zarr", [])
    if not refused:
        check_format(url, "zarr", ["ome_version"])
        return
    with pytest.raises(OptionError, match="--ome-version is only for zarr volumes, but h5://em"):
        check_format(url, "zarr", ["ome_version"])

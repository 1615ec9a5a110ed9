"""Tests of chunkflow_py.volume.engine.block_sizes."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.volume.engine.block_sizes import (
    common_unit,
    fitting_block,
    parsed_bytes,
    shard_for_memory,
)
from chunkflow_py.volume.write_unit_check import check_alignment

DOMAIN = BoundingBox(Zyx(2, 0, 0), Zyx(42, 100, 90))


@given(
    size=st.tuples(*[st.integers(1, 300)] * 3),
    start=st.tuples(*[st.integers(-50, 50)] * 3),
    extent=st.tuples(*[st.integers(1, 900)] * 3),
    clip=st.booleans(),
)
@settings(max_examples=80)
def test_blocks_fit_every_grid(size, start, extent, clip):
    """Whatever the tasks, the block chosen for a new volume is cut by none of them."""
    bounds = BoundingBox.from_size(start, extent)
    grid = BoxGrid.covering(bounds, Zyx.of(size), respect_stop=clip)
    block = fitting_block(grid, bounds)
    assert min(block) >= 1
    assert all(b <= max(64, s) for b, s in zip(block, size))
    assert all(b >= min(4, s, e) for b, s, e in zip(block, size, extent))
    check_alignment(grid, block, bounds, "out")
    if len(grid) < 500:
        assert common_unit(grid, bounds) == common_unit(list(grid), bounds)


def test_usual_blocks():
    """Blocks are 64 voxels where tasks allow it, and near it where they do not."""
    bounds = BoundingBox(Zyx(0, 0, 0), Zyx(1000, 1000, 1000))
    for size, block in [(64, 64), (512, 64), (448, 64), (36, 36), (100, 50), (20, 20), (97, 97)]:
        grid = BoxGrid.covering(bounds, Zyx(size, size, size))
        assert fitting_block(grid, bounds) == (block, block, block), size
    assert fitting_block(None, bounds) == (64, 64, 64)
    assert fitting_block(None, DOMAIN) == (40, 64, 64)


@given(
    block=st.tuples(*[st.integers(1, 128)] * 3),
    extent=st.tuples(*[st.integers(1, 10_000)] * 3),
    blocks=st.integers(1, 10_000),
    input_bytes=st.integers(1, 8),
    output_bytes=st.integers(1, 16),
)
def test_the_largest_shard_that_fits(block, extent, blocks, input_bytes, output_bytes):
    """A shard fits the memory, is a power of two of blocks, and twice as much would not fit."""
    block, extent = Zyx.of(block), Zyx.of(extent)
    voxel = input_bytes + 2 * output_bytes
    memory = block.product() * voxel * blocks
    shard = shard_for_memory(
        block, extent, memory_bytes=memory, input_bytes=input_bytes, output_bytes=output_bytes
    )
    assert not any(shard % block)
    assert all((n & (n - 1)) == 0 for n in shard // block)
    assert shard.product() * voxel <= memory
    covers = all(s >= e for s, e in zip(shard, extent))
    assert covers or 2 * shard.product() * voxel > memory
    # no axis reaches further over the end of the volume than one block doubled once needs
    assert all(s == b or s < 2 * e for s, b, e in zip(shard, block, extent))


def test_shards_double_along_x_first():
    """Shards grow as precomputed volumes count their blocks: x, y, z, x, and not past the end."""
    block, whole = Zyx(64, 64, 64), Zyx(128, 4096, 4096)
    sizes = [
        shard_for_memory(block, whole, memory_bytes=3 * 64**3 * 2**n, input_bytes=1, output_bytes=1)
        for n in range(7)
    ]
    blocks = [tuple(size // 64) for size in sizes]
    assert blocks == [
        (1, 1, 1), (1, 1, 2), (1, 2, 2), (2, 2, 2), (2, 2, 4), (2, 4, 4), (2, 4, 8),
    ]  # fmt: skip


def test_a_block_that_does_not_fit():
    """Where not even a block fits, both numbers are named."""
    text = r"one block \(64, 64, 64\) .* takes 1310720 bytes .* more than --task-memory 1000000"
    with pytest.raises(OptionError, match=text):
        shard_for_memory(
            Zyx(64, 64, 64), Zyx(64, 64, 64), memory_bytes=10**6, input_bytes=1, output_bytes=2
        )


@pytest.mark.parametrize(
    ("text", "count"),
    [("8GB", 8 * 10**9), ("8G", 8 * 10**9), ("512MiB", 2**29), ("1.5 kB", 1500), ("77", 77)],
)
def test_amounts_of_memory(text, count):
    """Amounts are written as usual, with steps of 1000 or, with an i, of 1024."""
    assert parsed_bytes(text) == count


@pytest.mark.parametrize("text", ["", "8 apples", "-1GB", "0", "GB", "1e9"])
def test_no_amount_of_memory(text):
    """What is no amount of memory is refused with one that is."""
    with pytest.raises(OptionError, match="is not an amount of memory; write 8GB"):
        parsed_bytes(text)

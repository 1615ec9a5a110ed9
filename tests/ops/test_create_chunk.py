"""create-chunk."""

import cc3d
import numpy as np
import pytest

from chunkflow_py.cli.command_line import read_line
from chunkflow_py.core.task import Task
from chunkflow_py.ops.create_chunk import ChunkMaker, create_chunk


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
@pytest.mark.parametrize("size", [(64, 64, 64), (20, 37, 50), (1, 30, 40)])
def test_the_sine_of_labels_is_that_of_chunkflow_1(size, dtype):
    """They are the 6-connected components of |sin(4 (z + y + x))| > 0.5, each axis from 0 to 1."""
    axes = np.meshgrid(*[np.linspace(0, 1, n) for n in size], indexing="ij")
    mask = np.abs(np.sin(4 * sum(axes))) > 0.5
    expected = cc3d.connected_components(mask.astype(np.uint8), connectivity=6)
    labels = create_chunk(size, dtype)
    assert labels.dtype == dtype
    assert np.array_equal(labels.array, expected)
    assert labels.array.max() == (4 if size[0] > 1 else 3)


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
def test_random_labels_are_few_and_large(dtype):
    """A mesh of them ends: the labels 0 to 4, in whole blocks of 8 x 8 x 8 voxels."""
    labels = create_chunk((20, 30, 40), dtype, "random").array
    assert (labels.dtype, set(np.unique(labels).tolist())) == (dtype, set(range(5)))
    for z, y, x in np.ndindex(3, 4, 5):
        block = labels[8 * z : 8 * z + 8, 8 * y : 8 * y + 8, 8 * x : 8 * x + 8]
        assert len(np.unique(block)) == 1


@pytest.mark.parametrize("pattern", ["sin", "zero", "random"])
@pytest.mark.parametrize("dtype", ["uint8", "float32", "uint16", "uint64"])
def test_the_chunk_is_what_was_announced(dtype, pattern):
    """Type and meaning are known before: labels of 16, 32 and 64 bits, images otherwise."""
    maker = ChunkMaker((3, 4, 5), dtype, pattern, (1, 2, 3), (40, 4, 4), "x")
    chunk = maker(Task(None))["x"]
    assert (maker.voxels().dtype, maker.voxels().kind) == (chunk.dtype, chunk.kind)
    assert (chunk.kind == "segmentation") == (dtype in ("uint16", "uint64"))
    assert chunk.bbox == maker.bounds()


@pytest.mark.parametrize(("flag", "pattern"), [("--all-zero", "zero"), ("--not-all-zero", "sin")])
def test_the_older_flag_for_zeros_is_read(flag, pattern):
    """--all-zero is --pattern zero, and --not-all-zero the pattern of today."""
    (stage,) = read_line(["create-chunk", flag, "-s", "4", "4", "4"])
    assert stage.options["pattern"] == pattern

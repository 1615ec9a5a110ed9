"""multiply."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.multiply import Multiplier, multiply

MASK = Chunk(np.indices((2, 2, 2)).sum(axis=0).astype(np.uint8) % 2, (1, 1, 1))


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64, np.int16, np.float32])
def test_a_mask_keeps_the_dtype(dtype):
    """A mask of 0 and 1 leaves the dtype as it is."""
    chunk = Chunk(np.full((2, 2, 2), 7, dtype), (1, 1, 1), (4, 4, 4), "image")
    result = multiply(chunk, MASK)
    assert result.dtype == dtype
    assert np.array_equal(result.array, 7 * MASK.array)
    assert (result.kind, result.voxel_size_nm) == ("image", (4, 4, 4))


def test_a_mask_multiplies_every_channel():
    """A multiplier without channels, or with one, is used for all."""
    chunk = Chunk(np.arange(24, dtype=np.float32).reshape(3, 2, 2, 2), (1, 1, 1))
    one = Chunk(MASK.array[None], (1, 1, 1))
    assert np.array_equal(multiply(chunk, MASK).array, chunk.array * MASK.array)
    assert np.array_equal(multiply(chunk, one).array, chunk.array * MASK.array)
    three_d = Chunk(chunk.array[0], (1, 1, 1))
    assert multiply(three_d, one).ndim == 3


def test_a_float_multiplier_scales_an_integer_chunk():
    """Integer times float is float, as in NumPy."""
    chunk = Chunk(np.full((2, 2, 2), 100, np.uint8), (1, 1, 1))
    half = Chunk(np.full((2, 2, 2), 0.5, np.float32), (1, 1, 1))
    result = multiply(chunk, half)
    assert (result.dtype, result.array[0, 0, 0]) == (np.float32, 50)


def test_a_larger_multiplier_is_cut():
    """The multiplier may cover more than the chunk, in global coordinates."""
    chunk = Chunk(np.ones((1, 1, 1), np.uint8), (1, 1, 2))
    assert multiply(chunk, MASK).array.item() == 1
    chunk = Chunk(np.ones((1, 1, 1), np.uint8), (2, 1, 2))
    assert multiply(chunk, MASK).array.item() == 0


def test_what_does_not_fit_is_refused():
    """Boxes that are not covered, channels that differ and overflow are refused."""
    with pytest.raises(ChunkError, match="does not contain the chunk's box"):
        multiply(Chunk(np.ones((2, 2, 2), np.uint8)), MASK)
    chunk = Chunk(np.full((2, 2, 2, 2), 200, np.uint8), (1, 1, 1))
    with pytest.raises(ChunkError, match="multiplier has 3 channels"):
        multiply(chunk, Chunk(np.ones((3, 2, 2, 2), np.uint8), (1, 1, 1)))
    with pytest.raises(ChunkError, match=r"products could range from 40000 to 40000.*uint8"):
        multiply(chunk, chunk)


def test_several_names():
    """Each input is multiplied into its output; the inputs stay."""
    items = {"a": MASK, "b": MASK, "m": MASK}
    result = Multiplier(("a", "b"), ("c", "d"), "m")(Task(items=dict(items)))
    assert sorted(result.items) == ["a", "b", "c", "d", "m"]
    assert result["a"] is MASK


def test_in_a_line():
    """Outputs default to the inputs; lists of different length are a usage error."""
    line = "create-chunk -p zero copy-var -t m multiply -i chunk -m m -o x delete-var -v x"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, result.output
    line = "create-chunk -p zero copy-var -t m multiply -m m delete-var -v chunk"
    assert CliRunner().invoke(cli, line.split()).exit_code == 0
    result = CliRunner().invoke(cli, ["create-chunk", "multiply", "-m", "chunk", "-o", "a,b"])
    assert result.exit_code == 2
    assert "2 names and --input-names has 1" in result.output


def test_no_voxels_are_no_error():
    """What is empty stays so."""
    empty = Chunk(np.zeros((0, 3, 4), np.uint8))
    assert multiply(empty, empty).shape == (0, 3, 4)

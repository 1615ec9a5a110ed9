"""median-filter."""

import numpy as np
import pytest
from click.testing import CliRunner
from scipy import ndimage

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops.median_filter import MODES, median_filter

ARRAY = np.random.default_rng(0).integers(0, 256, (6, 7, 8)).astype(np.uint8)


def test_what_is_in_one_section_only_is_taken_out():
    """The default is the median of a voxel and those above and below it."""
    array = np.array([1, 9, 2, 3, 3], np.float32).reshape(5, 1, 1)
    found = median_filter(Chunk(array, (1, 2, 3), (40, 4, 4), "image"))
    assert found.array.ravel().tolist() == [1, 2, 3, 3, 3]
    assert (found.voxel_offset, found.voxel_size_nm, found.kind) == ((1, 2, 3), (40, 4, 4), "image")


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", [(3, 1, 1), (1, 3, 1), (1, 1, 3), (1, 3, 3), (5, 2, 1), (1, 1, 1)])
def test_it_is_that_of_scipy(size, mode):
    """Of all sizes and modes, in 3D and with channels."""
    expected = ndimage.median_filter(ARRAY, size, mode=mode)
    assert np.array_equal(median_filter(Chunk(ARRAY), size, mode).array, expected)
    found = median_filter(Chunk(np.stack([ARRAY, ARRAY[::-1]])), size, mode)
    assert np.array_equal(found.array[0], expected)
    assert found.array.flags.writeable


def test_a_single_section():
    """There is nothing above and below it."""
    assert np.array_equal(median_filter(Chunk(ARRAY[:1])).array, ARRAY[:1])


def test_half_precision_and_nothing_at_all():
    """float16, which SciPy refuses, is filtered exactly; no voxels are no error."""
    halves = (ARRAY / np.float16(256)).astype(np.float16)
    found = median_filter(Chunk(halves), (3, 3, 3)).array
    assert found.dtype == np.float16
    assert np.array_equal(found, ndimage.median_filter(halves.astype(np.float32), 3))
    assert median_filter(Chunk(ARRAY[:0])).shape == (0, 7, 8)


def test_failures_are_one_sentence():
    """A mode or size that is none, and the opposite side of a part."""
    with pytest.raises(OptionError, match="mode 'edge' of median-filter is not one of reflect"):
        median_filter(Chunk(ARRAY), mode="edge")
    with pytest.raises(OptionError, match=r"size \(0, 1, 1\).*at least 1"):
        median_filter(Chunk(ARRAY), (0, 1, 1))
    part = Chunk(ARRAY, domain=BoundingBox.parse("0-9_0-9_0-9"))
    with pytest.raises(ChunkError, match="wrap needs the whole volume 0-9_0-9_0-9"):
        median_filter(part, mode="wrap")


def test_the_older_spelling():
    """As a plugin, with its arguments as text."""
    line = ["create-chunk", "-s", "4", "4", "4", "plugin", "-f", "median-filter", "--args",
            "size=(3,1,1);mode=reflect"]  # fmt: skip
    result = CliRunner().invoke(cli, line)
    assert result.exit_code == 0, result.output

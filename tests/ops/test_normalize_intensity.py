"""normalize-intensity."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.normalize_intensity import normalize_intensity


def test_the_range_of_the_dtype_becomes_minus_one_to_one():
    """0 becomes -1 and the maximum 1, linearly; for uint8 it is v/127.5 - 1."""
    array = np.arange(256, dtype=np.uint8).reshape(4, 8, 8)
    result = normalize_intensity(Chunk(array, kind="image"))
    assert result.dtype == np.float32
    np.testing.assert_allclose(result.array, array / 127.5 - 1, atol=1e-6)
    assert (result.array.min(), result.array.max()) == (-1, 1)
    top = normalize_intensity(Chunk(np.full((1, 1, 1), 65535, np.uint16)))
    assert top.array.item() == 1


@pytest.mark.parametrize("dtype", [np.float32, np.int16, bool])
def test_other_types_are_refused(dtype):
    """What has no fixed range is refused by name."""
    with pytest.raises(ChunkError, match=np.dtype(dtype).name):
        normalize_intensity(Chunk(np.zeros((1, 1, 1), dtype)))

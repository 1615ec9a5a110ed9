"""gaussian-filter."""

import numpy as np
import pytest
from scipy import ndimage

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.ops.gaussian_filter import gaussian_filter


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32", "float16", "float32", "float64"])
@pytest.mark.parametrize(("sigma", "sigma_z"), [(1, 0), (2.5, 1), (0, 1.5), (0, 0), (7, 0)])
def test_it_is_that_of_scipy(dtype, sigma, sigma_z):
    """Voxels are those of SciPy, rounded half to even; 0 leaves an axis alone."""
    array = (np.random.default_rng(0).random((5, 20, 30)) * 250).astype(dtype)
    expected = ndimage.gaussian_filter(array.astype(np.float64), (sigma_z, sigma, sigma))
    found = gaussian_filter(Chunk(array), sigma, sigma_z)
    assert found.dtype == dtype
    tolerance = 0.501 if array.dtype.kind in "iu" else 250 * 4 * np.finfo(dtype).eps
    assert np.abs(found.array - expected).max() <= tolerance


def test_a_point_becomes_a_bell():
    """A single voxel spreads by the weights exp(-k²/2), cut off at 4, that sum to 1."""
    array = np.zeros((1, 9, 9))
    array[0, 4, 4] = 1
    weights = np.exp(-0.5 * np.arange(-4, 5) ** 2)
    weights /= weights.sum()
    found = gaussian_filter(Chunk(array)).array[0]
    assert found == pytest.approx(np.outer(weights, weights), abs=1e-15)


def test_sections_and_channels_do_not_mix():
    """Each section of each channel is blurred by itself; what is flat stays as it is."""
    array = np.zeros((2, 3, 8, 8), np.uint8)
    array[1, 1] = 255
    chunk = Chunk(array, (1, 2, 3), (40, 4, 4), "image")
    found = gaussian_filter(chunk, 2)
    assert np.array_equal(found.array, array)
    assert (found.voxel_offset, found.voxel_size_nm, found.kind) == ((1, 2, 3), (40, 4, 4), "image")


def test_what_cannot_be_averaged_is_refused():
    """Labels have no mean; a negative width is no width."""
    with pytest.raises(ChunkError, match="holds uint8 labels; blur the map before"):
        gaussian_filter(Chunk(np.zeros((1, 2, 2), np.uint8), kind="segmentation"))
    with pytest.raises(ChunkError, match="holds uint64 labels"):
        gaussian_filter(Chunk(np.zeros((1, 2, 2), np.uint64)))
    with pytest.raises(ChunkError, match="holds bool labels"):
        gaussian_filter(Chunk(np.zeros((1, 2, 2), bool)))
    with pytest.raises(OptionError, match="must not be negative"):
        gaussian_filter(Chunk(np.zeros((1, 2, 2))), -1)


def test_no_voxels_are_no_error():
    """What is empty stays so, over sections as well."""
    assert gaussian_filter(Chunk(np.zeros((0, 3, 4), np.uint8)), 1, 1).shape == (0, 3, 4)

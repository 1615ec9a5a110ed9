"""quantize."""

import logging

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.quantize import quantize
from chunkflow_py.volume.conversion import convert


def quantized(values, **options):
    """Return the quantised values of a probability map (1, 1, n)."""
    return quantize(Chunk(np.array([[values]], np.float64)), **options).array.ravel().tolist()


def test_the_rule_is_half_to_even():
    """255·p is rounded to the nearest integer, halves to the even one."""
    assert quantized([0, 0.5 / 255, 1.5 / 255, 2.5 / 255, 1]) == [0, 0, 2, 2, 255]


def test_values_outside_are_clamped_and_counted(caplog):
    """What lies outside of [0, 1] becomes 0 or 255, with a warning that counts it."""
    with caplog.at_level(logging.WARNING):
        assert quantized([-0.2, 1.2, 0.4]) == [0, 255, 102]
    assert "2 voxels" in caplog.text


def test_modes_of_an_affinity_map():
    """Xy is the mean of the channels x and y, z the channel z; the result is a 3D image."""
    array = np.stack([np.full((2, 3, 4), v, np.float32) for v in (0.2, 0.6, 1.0)])
    chunk = Chunk(array, (5, 6, 7), (40, 4, 4), "affinity")
    result = quantize(chunk)
    assert (result.shape, result.dtype, result.kind) == ((2, 3, 4), np.uint8, "image")
    assert set(result.array.ravel().tolist()) == {102}
    assert (result.bbox, result.voxel_size_nm) == (chunk.bbox, chunk.voxel_size_nm)
    assert set(quantize(chunk, "z").array.ravel().tolist()) == {255}


def test_one_channel_and_integers():
    """A probability map may have a channel axis, and uint8 is a probability times 255."""
    array = np.arange(24, dtype=np.uint8).reshape(1, 2, 3, 4)
    assert np.array_equal(quantize(Chunk(array)).array, array[0])


def test_there_is_one_rule():
    """A float32 map becomes the same bytes here as in a saver, at every half as well."""
    halves = (np.arange(255, dtype=np.float32) + np.float32(0.5)) / np.float32(255)
    near = [np.nextafter(halves, np.float32(side)) for side in (0, 1)]
    values = np.concatenate([halves, *near]).reshape(3, 5, 51)
    expected = convert(values, np.uint8, "probability")
    assert np.array_equal(quantize(Chunk(values)).array, expected)


def test_what_is_no_map_is_refused():
    """Other numbers of channels, signed integers and NaN are refused."""
    for array in (np.zeros((2, 1, 1, 1), np.float32), np.zeros((1, 1, 1), np.int32)):
        with pytest.raises(ChunkError, match="quantize needs"):
            quantize(Chunk(array))
    with pytest.raises(ChunkError, match="NaN"):
        quantized([np.nan])

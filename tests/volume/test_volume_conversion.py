"""Fixed rules for changing the type of voxels."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError
from chunkflow_py.volume.conversion import convert, converted

PROBABILITIES = arrays.arrays(
    np.float32, (2, 3, 4), elements=st.floats(-0.5, 1.5, width=32, allow_nan=False)
)


@pytest.mark.parametrize(("dtype", "scale"), [("uint8", 255), ("uint16", 65535)])
@settings(max_examples=30, deadline=None)
@given(array=PROBABILITIES)
def test_maps_become_integers_by_a_fixed_rule(dtype, scale, array):
    """A map is clamped to [0, 1] and rounded, half to even, of 255·p (65535·p)."""
    expected = np.rint(np.clip(array, 0, 1) * np.float32(scale)).astype(dtype)
    np.testing.assert_array_equal(convert(array, dtype, "probability"), expected)


def test_clamped_voxels_are_counted(caplog):
    """What lay outside of [0, 1] is told with its number."""
    array = np.array([[[-0.1, 0.5, 1.2, 1.0]]], np.float32)
    np.testing.assert_array_equal(convert(array, "uint8", "affinity"), [[[0, 128, 255, 255]]])
    assert "2 of 4 voxels" in caplog.text


def test_half_precision_maps_reach_the_full_scale():
    """A float16 map of ones becomes 65535, which float16 itself cannot hold."""
    assert convert(np.ones((1, 1, 1), np.float16), "uint16", "probability").item() == 65535


def test_float_images_keep_their_values():
    """A float image is rounded, half to even, not scaled."""
    array = np.array([[[0.5, 1.5, 254.6]]], np.float32)
    np.testing.assert_array_equal(convert(array, "uint8", "image"), [[[0, 2, 255]]])


def test_unknown_floats_outside_the_unit_interval_are_refused():
    """A float chunk of unknown kind is never scaled by what it happens to hold."""
    array = np.array([[[0.0, 200.0]]], np.float32)
    with pytest.raises(ChunkError, match=r"unknown kind, from 0 to 200.*--layer-type image"):
        convert(array, "uint8", None)
    np.testing.assert_array_equal(convert(array / 200, "uint8", None), [[[0, 255]]])


@pytest.mark.parametrize(
    ("values", "dtype", "target"),
    [
        ([0, 256], "uint16", "uint8"),
        ([-1, 5], "int16", "uint64"),
        ([0, 2**24 + 1], "uint32", "float32"),
        ([0, 2**53 + 1], "uint64", "float64"),
        ([0, 1e5], "float64", "float16"),
        ([0, np.nan], "float32", "uint8"),
        ([0, np.inf], "float32", "uint8"),
        ([0, 2], "uint8", "bool"),
    ],
)
def test_what_does_not_fit_is_an_error(values, dtype, target):
    """A value that the new type cannot hold is named, not wrapped or rounded."""
    array = np.array(values, dtype).reshape(1, 1, 2)
    with pytest.raises(ChunkError, match=target):
        convert(array, target, "image")


@settings(max_examples=60, deadline=None)
@given(
    source=st.sampled_from(["uint8", "uint16", "uint32", "int8", "int32", "bool"]),
    target=st.sampled_from(["uint8", "uint16", "uint64", "int16", "float32", "float64"]),
    data=st.data(),
)
def test_integers_keep_their_number_or_are_refused(source, target, data):
    """An integer that is converted without an error is the same number."""
    array = data.draw(arrays.arrays(source, (1, 2, 3)))
    exact = {"float32": 2**24, "float64": 2**53}.get(target)
    info = None if exact else np.iinfo(target)
    lowest, highest = (-exact, exact) if exact else (info.min, info.max)
    if int(array.min()) < lowest or int(array.max()) > highest:
        with pytest.raises(ChunkError, match=target):
            convert(array, target, "segmentation")
    else:
        result = convert(array, target, "segmentation")
        assert result.dtype == target
        assert result.tolist() == array.tolist()


def test_the_chunk_is_not_modified_and_keeps_its_place():
    """Converting makes a new chunk of the same box, voxel size and kind."""
    array = np.full((1, 2, 3), 0.4, np.float32)
    chunk = Chunk(array, (1, 2, 3), (4, 5, 6), "probability")
    result = converted(chunk, "uint8")
    assert (array == np.float32(0.4)).all()
    assert (result.bbox, result.voxel_size_nm, result.kind) == (chunk.bbox, (4, 5, 6), chunk.kind)
    assert converted(chunk, None) is chunk


@pytest.mark.parametrize("kind", ["logit", "vector", "embedding"])
def test_values_that_are_no_map_become_no_integers(kind):
    """Logits, vectors and embeddings are refused where rounding would leave nothing of them."""
    array = np.array([[[0.2, 1.4]]], np.float32)
    with pytest.raises(ChunkError, match=f"{kind}, from 0.2 to 1.4, cannot become uint8.*float16"):
        convert(array, "uint8", kind)
    assert convert(array, "float16", kind).dtype == np.float16

"""Shrinking voxels, against a slow and obvious way to do it."""

from collections import Counter
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import chunkflow_py.volume.downsample as downsample_module
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.volume.downsample import downsample
from chunkflow_py.volume.protocol import coarser

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"]
TRIPLE = st.tuples(*[st.integers(1, 4)] * 3).map(lambda t: Zyx(*t))
OFFSET = st.tuples(*[st.integers(-7, 7)] * 3).map(lambda t: Zyx(*t))
SIZE = st.tuples(*[st.integers(1, 9)] * 3).map(lambda t: Zyx(*t))


def cells(chunk, factor):
    """Yield (coarse position in the result, list of the fine voxels of one channel)."""
    whole = chunk.array.reshape(-1, *chunk.size)
    box = coarser(chunk.bbox, factor)
    for channel, voxels in enumerate(whole):
        for index in product(*(range(n) for n in box.size)):
            first = (box.start + index) * factor
            part = BoundingBox.from_size(first, factor).intersection(chunk.bbox)
            values = voxels[part.slices(chunk.voxel_offset)]
            yield (channel, *index), values.ravel().tolist()


def expected(chunk, factor, choose):
    """Return the result that *choose* (list of voxels -> voxel) gives."""
    box = coarser(chunk.bbox, factor)
    result = np.empty((chunk.channels, *box.size), chunk.dtype)
    for index, values in cells(chunk, factor):
        result[index] = choose(values)
    return result.reshape(*chunk.shape[:-3], *box.size)


def exact_mean(values):
    """Return the mean as Python rounds an exact fraction: half to even."""
    return round(Fraction(sum(values), len(values)))


def most_frequent(values, *, sparse=False):
    """Return the most frequent value, the smallest of several."""
    counts = Counter(v for v in values if v or not sparse)
    return min(counts, key=lambda v: (-counts[v], v)) if counts else 0


def extremes(dtype, shape, seed):
    """Return numbers from all over the type, its ends included, and small ones."""
    rng = np.random.default_rng(seed)
    info = np.iinfo(dtype)
    array = rng.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
    choice = rng.integers(0, 4, shape)
    array[choice == 0] = info.max
    array[choice == 1] = info.min
    array[choice == 2] %= 4
    return array


@settings(max_examples=150)
@given(
    dtype=st.sampled_from(DTYPES),
    size=SIZE,
    channels=st.sampled_from([None, 1, 2]),
    offset=OFFSET,
    factor=TRIPLE,
    seed=st.integers(0, 2**32 - 1),
)
def test_the_mean_of_integers_is_exact(dtype, size, channels, offset, factor, seed):
    """Integers become the exact mean, half to even, at any offset, for any factor and type."""
    shape = (*(() if channels is None else (channels,)), *size)
    chunk = Chunk(extremes(dtype, shape, seed), offset, (40, 4, 4.5), "image")
    found = downsample(chunk, factor)
    np.testing.assert_array_equal(found.array, expected(chunk, factor, exact_mean))
    assert found.dtype == chunk.dtype
    assert found.bbox == coarser(chunk.bbox, factor)
    assert found.voxel_size_nm == (40 * factor.z, 4 * factor.y, 4.5 * factor.x)
    assert found.kind == "image"


@settings(max_examples=60)
@given(
    dtype=st.sampled_from(["float16", "float32", "float64"]),
    size=SIZE,
    offset=OFFSET,
    factor=TRIPLE,
    seed=st.integers(0, 2**32 - 1),
)
def test_the_mean_of_floats(dtype, size, offset, factor, seed):
    """Floats become their mean up to the rounding of the sum, in single precision at least."""
    array = np.random.default_rng(seed).normal(size=size).astype(dtype)
    chunk = Chunk(array, offset, kind="probability")
    found = downsample(chunk, factor)
    wanted = expected(chunk, factor, lambda v: np.mean(np.array(v, np.float64)))
    unit = 2e-3 if dtype == "float16" else 1e-6
    assert found.dtype == chunk.dtype
    np.testing.assert_allclose(found.array, wanted, rtol=0, atol=4 * unit)


@settings(max_examples=150)
@given(
    dtype=st.sampled_from([*DTYPES, "bool"]),
    labels=st.sampled_from([2, 3, 50]),
    size=SIZE,
    offset=OFFSET,
    factor=TRIPLE,
    sparse=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_the_mode_of_labels(dtype, labels, size, offset, factor, sparse, seed):
    """Labels become the most frequent one, the smallest of several; 0 is one unless sparse."""
    rng = np.random.default_rng(seed)
    array = rng.integers(0, labels, size).astype(dtype)
    if np.dtype(dtype).itemsize == 8:
        array += np.array(2**60 + 1, dtype) * (array > 0)
    if dtype.startswith("i"):
        array = array - np.array(1, dtype)
    chunk = Chunk(array, offset, kind="segmentation")
    found = downsample(chunk, factor, sparse=sparse)
    wanted = expected(chunk, factor, lambda v: most_frequent(v, sparse=sparse))
    np.testing.assert_array_equal(found.array, wanted)


@settings(max_examples=60)
@given(
    kind=st.sampled_from(["image", "segmentation", "probability"]),
    factor=TRIPLE,
    offset=OFFSET,
    cuts=st.tuples(*[st.integers(1, 3)] * 3).map(lambda t: Zyx(*t)),
    seed=st.integers(0, 2**32 - 1),
)
@pytest.mark.long
def test_cutting_changes_nothing(kind, factor, offset, cuts, seed):
    """Parts that begin and end on multiples of the factor give the voxels of the whole."""
    dtype = "float32" if kind == "probability" else "uint8"
    array = np.random.default_rng(seed).integers(0, 5, (11, 10, 9)).astype(dtype)
    whole = Chunk(array, offset, kind=kind)
    result = downsample(whole, factor)
    step = factor * cuts
    first = whole.bbox.start // step
    stop = -(-whole.bbox.stop // step)
    for k in product(*(range(a, b) for a, b in zip(first, stop, strict=True))):
        box = BoundingBox.from_size(step * k, step).intersection(whole.bbox)
        part = downsample(whole.cut(box), factor)
        np.testing.assert_array_equal(part.array, result.cut(part.bbox).array)
        assert part.domain == result.domain


def test_the_input_stays_as_it_is():
    """The voxels that were given are not written to, views and read-only ones included."""
    array = np.random.default_rng(0).integers(0, 9, (2, 8, 8, 9)).astype("uint8")
    before = array.copy()
    array.flags.writeable = False
    for mode in ("mean", "mode"):
        for view in (array[:, :, :, 1:], array[:, ::-1], array.transpose(0, 3, 1, 2)):
            straight = downsample(Chunk(np.ascontiguousarray(view)), mode=mode)
            np.testing.assert_array_equal(downsample(Chunk(view), mode=mode).array, straight.array)
    np.testing.assert_array_equal(array, before)


def test_what_the_kind_says():
    """Labels by kind, or by a wide type of unknown kind, have no mean; all others have one."""
    array = np.array([[[0, 0, 0, 0, 0, 8, 8, 8]]])
    for dtype, kind, value in [
        ("uint8", "segmentation", 0),
        ("uint8", None, 3),
        ("uint64", None, 0),
        ("uint64", "image", 3),
        ("float32", None, 3),
    ]:
        chunk = Chunk(array.astype(dtype), kind=kind)
        assert downsample(chunk, Zyx(1, 1, 8)).array.item() == value, (dtype, kind)


@pytest.mark.parametrize("dtype", ["u1", "i2", "u2", "u4", "u8", "f4"])
@pytest.mark.parametrize("mode", ["mean", "mode"])
def test_the_order_of_bytes_changes_nothing(dtype, mode):
    """Voxels whose bytes are in the other order give the same result."""
    array = np.random.default_rng(0).integers(0, 99, (4, 6, 8)).astype(f"<{dtype}")
    other = Chunk(array.astype(f">{dtype}"), (2, 4, 6), (40, 4, 4), "image")
    native = Chunk(array, (2, 4, 6), (40, 4, 4), "image")
    found, wanted = downsample(other, mode=mode), downsample(native, mode=mode)
    np.testing.assert_array_equal(found.array, wanted.array)
    assert (found.bbox, found.kind, found.dtype) == (wanted.bbox, "image", np.dtype(dtype))


def test_nonsense_is_refused():
    """A factor below 1 and the mean of bools are told as such."""
    with pytest.raises(OptionError, match=r"\(2, 0, 2\) must be at least 1"):
        downsample(Chunk(np.zeros((2, 2, 2), "uint8")), Zyx(2, 0, 2))
    with pytest.raises(ChunkError, match="bool, which has no mean"):
        downsample(Chunk(np.zeros((2, 2, 2), "bool"), kind="image"))


def test_nothing_stays_nothing():
    """A chunk without voxels becomes one without voxels."""
    found = downsample(Chunk(np.zeros((0, 4, 4), "uint8"), (2, 2, 2)))
    assert found.bbox == BoundingBox((1, 1, 1), (1, 3, 3))


def test_threads_change_nothing(monkeypatch):
    """Large chunks of labels are shrunk by several threads, to the same labels."""
    labels = np.random.default_rng(0).integers(0, 4, (16, 32, 48)).astype(np.uint32)
    chunk = Chunk(labels, Zyx(0, 0, 0), kind="segmentation")
    alone = downsample_module.downsample(chunk)
    monkeypatch.setattr(downsample_module, "_WORTH_THREADS", 1)
    assert np.array_equal(downsample_module.downsample(chunk).array, alone.array)

"""Histograms: equal to NumPy's statistics of all voxels, however the volume is divided."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.histogram import Bins, Histogram, histogram_of
from chunkflow_py.errors import ChunkError

WANTED = (0, 1, 33.3, 50, 99.8, 100)


def image(dtype, seed, shape=(2, 6, 4, 5)):
    """Return random grey values around the middle of a type, or around 0."""
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return rng.normal(0.4, 0.3, shape).astype(dtype)
    low = np.iinfo(dtype).max - 300 if np.dtype(dtype).itemsize > 1 else 0
    return rng.integers(0, 120, shape).astype(dtype) + np.array(low, dtype)


def parts_of(array, cut):
    """Return an array in eight parts."""
    halves = [array]
    for axis, at in zip((-3, -2, -1), cut):
        halves = [part for half in halves for part in np.split(half, [at], axis=axis)]
    return halves


@given(
    dtype=st.sampled_from(["bool", "uint8", "int8", "uint16", "int16", "uint64", "int64"]),
    seed=st.integers(0, 999),
    cut=st.tuples(st.integers(0, 6), st.integers(0, 4), st.integers(0, 5)),
)
@settings(max_examples=40)
def test_integers_are_exact(dtype, seed, cut):
    """Sums of parts give the count, mean, deviation and percentiles that NumPy gives of all."""
    array = image("uint8", seed) > 60 if dtype == "bool" else image(dtype, seed)
    parts = [histogram_of(p, per_section=False) for p in parts_of(array, cut) if p.size]
    total = sum(parts[1:], parts[0])
    assert np.array_equal(total.counts, histogram_of(array).whole().counts)
    for channel, found in zip(array, total.statistics(WANTED), strict=True):
        values = np.sort(channel.ravel())
        exact = [int(v) for v in values]
        assert (found["count"], found["min"], found["max"]) == (120, exact[0], exact[-1])
        shifted = np.array([v - exact[0] for v in exact], float)
        assert found["std"] == pytest.approx(shifted.std(), abs=1e-9)
        assert found["mean"] - exact[0] == pytest.approx(shifted.mean(), rel=1e-9, abs=2048)
        if np.dtype(dtype).itemsize < 8:
            expected = np.percentile(channel.astype(float), WANTED)
            np.testing.assert_allclose(list(found["percentiles"].values()), expected)


@given(seed=st.integers(0, 999), cut=st.tuples(*[st.integers(1, 3)] * 3))
@settings(max_examples=20)
def test_floats_are_binned(seed, cut):
    """Counts do not depend on the cut; mean and deviation are exact, percentiles to a bin."""
    array = image("float32", seed)
    bins = Bins(0.0, 1.0, 500)
    parts = [histogram_of(p, bins=bins, per_section=False) for p in parts_of(array, cut)]
    total = sum(parts[1:], parts[0])
    whole = histogram_of(array, bins=bins)
    assert np.array_equal(total.counts, whole.whole().counts)
    np.testing.assert_allclose(total.moments, whole.whole().moments, rtol=1e-12)
    inside = whole.section(2).counts[1, 0]
    assert (inside[0], inside[-1]) == ((array[1, 2] < 0).sum(), (array[1, 2] > 1).sum())
    expected, _ = np.histogram(array[1, 2], 500, (0, 1))
    assert np.abs(inside[1:-1] - expected).sum() <= 2  # on the edge of a bin
    for channel, found in zip(array, total.statistics(WANTED), strict=True):
        exact = channel.astype(float)
        assert (found["min"], found["max"]) == (exact.min(), exact.max())
        np.testing.assert_allclose([found["mean"], found["std"]], [exact.mean(), exact.std()])
        in_bins = [p for p in WANTED if 0 < np.percentile(exact, p) < 1]
        values = [found["percentiles"][f"{p:g}"] for p in in_bins]
        # Both neighbours that a percentile lies between are known to a bin.
        inner = [np.percentile(exact, p, method=m) for p in in_bins for m in ("lower", "higher")]
        if min(inner) > 0 and max(inner) < 1:
            assert np.abs(values - np.percentile(exact, in_bins)).max() < 1 / 500 + 1e-9


def test_masks_and_what_is_not_finite():
    """Only voxels inside the mask are counted; NaN and infinity are reported, not counted."""
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    mask = array % 2 == 1
    (found,) = histogram_of(array, mask=mask).statistics()
    assert (found["count"], found["min"], found["mean"]) == (12, 1, 12)
    values = array.astype(np.float32)
    values[0, 0, :2] = np.nan, np.inf
    counted = histogram_of(values, bins=Bins(0, 24, 24))
    assert counted.not_finite == 2
    assert counted.statistics()[0]["mean"] == np.arange(2, 24).mean()
    assert histogram_of(array, mask=np.zeros_like(mask)).statistics() == [{"count": 0}]


def test_large_sections_are_counted_the_same():
    """The method for large sections gives the same counts as the other one."""
    array = np.random.default_rng(0).integers(0, 256, (1, 512, 512)).astype(np.uint8)
    found = histogram_of(array)
    expected = np.bincount(array.ravel(), minlength=256)
    assert np.array_equal(found.counts[0, 0], expected)
    assert isinstance(found, Histogram)


@pytest.mark.parametrize(
    ("array", "words"),
    [
        (np.zeros((1, 1, 2), np.float32), "float32 .*--range LOW HIGH"),
        (
            np.array([[[0, 70000]]], np.uint32),
            "from 0 to 70000, but at most 65536 different values",
        ),
    ],
)
def test_what_has_no_values_to_count(array, words):
    """Floats, and integers far apart, are refused without bins, and counted with them."""
    with pytest.raises(ChunkError, match=words):
        histogram_of(array)
    assert histogram_of(array, bins=Bins(0, 1e5, 10)).counts.sum() == 2

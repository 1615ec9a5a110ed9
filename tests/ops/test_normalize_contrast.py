"""normalize-contrast."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.normalize_contrast import normalize_contrast


def ramp(low, high):
    """Return a section (1, 1, n) with each grey value from low to high once."""
    return np.arange(low, high + 1, dtype=np.uint8)[None, None]


def limits_by_counting(section, lower_fraction, upper_fraction):
    """Return the two quantiles of a section by counting its voxels, one intensity at a time."""
    values = section[section > 0]
    if not values.size:
        return 0, 0

    def last(share):
        for intensity in range(np.iinfo(section.dtype).max + 1):
            if np.count_nonzero(values <= intensity) / values.size > share:
                return intensity - 1
        return intensity

    return last(lower_fraction), last(1 - upper_fraction)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 9999),
    lower=st.sampled_from([0, 0.01, 0.1, 0.25, 0.4]),
    upper=st.sampled_from([0, 0.01, 0.1, 0.25, 0.4]),
    minval=st.sampled_from([0, 1, 40]),
    maxval=st.sampled_from([100, 255]),
)
def test_formula_and_quantiles_are_those_of_chunkflow_1(seed, lower, upper, minval, maxval):
    """Each section is (v - lower) * maxval / (upper - lower), clipped to [minval, maxval].

    lower and upper are the last intensities up to which the fraction is not exceeded.
    """
    rng = np.random.default_rng(seed)
    low, high = sorted(rng.integers(0, 256, 2))
    array = rng.integers(low, high + 1, (2, 9, 11)).astype(np.uint8)
    result = normalize_contrast(Chunk(array), lower, upper, minval, maxval).array
    for section, found in zip(array, result, strict=True):
        first, last = limits_by_counting(section, lower, upper)
        for value, after in zip(section.ravel().tolist(), found.ravel().tolist(), strict=True):
            if first == last:
                assert after == value
            else:
                stretched = np.float32(value - first) * np.float32(maxval / (last - first))
                assert after == min(max(round(float(stretched)), minval), maxval)


def test_levels_worked_out_by_hand():
    """Of the intensities 1 to 100, once each, 0.2 and 0.1 clip at 20 and 90."""
    result = normalize_contrast(Chunk(ramp(1, 100)), 0.2, 0.1).array.ravel().tolist()
    assert result[:22] == [1] * 20 + [4, 7]  # 255 / 70 a step
    assert result[54] == round(35 * 255 / 70)
    assert result[88:] == [251] + [255] * 11


def test_zeros_are_not_counted():
    """Voxels without image do not shift the quantiles, and become the smallest value."""
    section = np.concatenate([np.zeros((1, 1, 900), np.uint8), ramp(1, 100)], axis=2)
    result = normalize_contrast(Chunk(section), 0.2, 0.1, 1, 255).array.ravel()
    alone = normalize_contrast(Chunk(ramp(1, 100)), 0.2, 0.1, 1, 255).array.ravel()
    assert np.array_equal(result[900:], alone)
    assert set(result[:900].tolist()) == {1}


def test_sections_and_channels_have_their_own_histograms():
    """Each section is stretched alone; --whole uses one histogram a channel."""
    dark, bright = ramp(10, 60), ramp(110, 160)
    some = 0.01  # at 0 the upper limit is 255 whatever the section holds
    chunk = Chunk(np.concatenate([dark, bright]))
    result = normalize_contrast(chunk, 0, some).array
    assert np.array_equal(result[0], result[1])
    whole = normalize_contrast(chunk, 0, some, per_section=False).array
    assert whole[1].max() == 255
    assert whole[0].max() < whole[1].min()
    four = Chunk(np.stack([chunk.array, chunk.array[::-1]]))
    per_channel = normalize_contrast(four, 0, some, per_section=False).array
    assert np.array_equal(per_channel[0], whole)
    assert np.array_equal(per_channel[1], whole[::-1])


def test_flat_sections_stay_as_they_are():
    """Where both quantiles are one intensity there is nothing to stretch; zeros stay zeros."""
    array = np.stack([np.full((2, 2), 90, np.uint8), np.zeros((2, 2), np.uint8)])
    result = normalize_contrast(Chunk(array), minval=5, maxval=80).array
    assert np.array_equal(result, array)


@settings(max_examples=20)
@given(seed=st.integers(0, 9999), lower=st.floats(0, 0.4), upper=st.floats(0, 0.4))
def test_brighter_stays_brighter(seed, lower, upper):
    """Sixteen bits are stretched without changing the order of any two voxels."""
    array = np.random.default_rng(seed).integers(1, 60, (1, 20, 20)).astype(np.uint16)
    result = normalize_contrast(Chunk(array), lower, upper, 1, 60000).array
    order = np.argsort(array, axis=None, kind="stable")
    assert (np.diff(result.ravel()[order].astype(int)) >= 0).all()


def test_types_and_ranges_that_cannot_work_are_refused():
    """Floats, and a maximum beyond the dtype, are refused."""
    with pytest.raises(ChunkError, match="float32"):
        normalize_contrast(Chunk(np.zeros((1, 1, 1), np.float32)))
    with pytest.raises(ChunkError, match="--maxval 300 does not fit into uint8"):
        normalize_contrast(Chunk(np.zeros((1, 1, 1), np.uint8)), maxval=300)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-l 0.6 -u 0.4", "clip all voxels"),
        ("--minval 9 --maxval 9", "--minval 9 must be below --maxval 9"),
        ("-l 1.5", "0<=x<1"),
    ],
)
def test_bad_options_end_with_2(options, words):
    """Fractions and ranges that cannot work are a usage error."""
    args = ["create-chunk", "normalize-contrast", *options.split()]
    result = CliRunner().invoke(cli, args)
    assert result.exit_code == 2
    assert words in result.output

"""normalize-contrast."""

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.chunk import Chunk
from chunkflow_py.cli.main import cli
from chunkflow_py.errors import ChunkError
from chunkflow_py.ops.normalize_contrast import normalize_contrast


def ramp(low, high):
    """Return a section (1, 1, n) with each grey value from low to high once."""
    return np.arange(low, high + 1, dtype=np.uint8)[None, None]


def test_without_clipping_the_extremes_become_the_range():
    """Fractions of 0 stretch from the darkest to the brightest voxel, linearly."""
    result = normalize_contrast(Chunk(ramp(100, 150)), 0, 0, 10, 210).array.ravel()
    assert result.tolist() == [10 + 4 * k for k in range(51)]


def test_tails_are_clipped():
    """Of a hundred grey values, a fifth below and a tenth above become the ends."""
    result = normalize_contrast(Chunk(ramp(1, 100)), 0.2, 0.1, 1, 255).array.ravel()
    assert result[20] == 1
    assert result[21] > 1
    assert result[89] == 255
    assert result[88] < 255


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
    chunk = Chunk(np.concatenate([dark, bright]))
    result = normalize_contrast(chunk, 0, 0).array
    assert np.array_equal(result[0], result[1])
    whole = normalize_contrast(chunk, 0, 0, per_section=False).array
    assert (whole[0].min(), whole[1].max()) == (1, 255)
    assert whole[0].max() < whole[1].min()
    four = Chunk(np.stack([chunk.array, chunk.array[::-1]]))
    per_channel = normalize_contrast(four, 0, 0, per_section=False).array
    assert np.array_equal(per_channel[0], whole)
    assert np.array_equal(per_channel[1], whole[::-1])


def test_flat_sections_are_only_clipped():
    """A section of one grey value keeps it, within the range; an empty one becomes minval."""
    array = np.stack([np.full((2, 2), 90, np.uint8), np.zeros((2, 2), np.uint8)])
    result = normalize_contrast(Chunk(array), minval=5, maxval=80).array
    assert (result[0] == 80).all()
    assert (result[1] == 5).all()


@settings(max_examples=40)
@given(seed=st.integers(0, 9999), lower=st.floats(0, 0.4), upper=st.floats(0, 0.4))
def test_order_and_fractions_hold(seed, lower, upper):
    """Brighter stays brighter, both ends are reached, and no more than the fractions is clipped."""
    array = np.random.default_rng(seed).integers(1, 60, (1, 20, 20)).astype(np.uint16)
    # So wide a range that no two grey values between the limits become one.
    result = normalize_contrast(Chunk(array), lower, upper, 1, 60000).array
    order = np.argsort(array, axis=None, kind="stable")
    assert (np.diff(result.ravel()[order].astype(int)) >= 0).all()
    assert (result.min(), result.max()) == (1, 60000)
    # Fractions near a whole number of voxels are rounded by their product with the count.
    assert np.mean(array < array[result == 1].max()) <= lower + 1e-9
    assert np.mean(array > array[result == 60000].min()) <= upper + 1e-9


def test_types_and_ranges_that_cannot_work_are_refused():
    """Floats, and a maximum beyond the dtype, are refused."""
    with pytest.raises(ChunkError, match="float32"):
        normalize_contrast(Chunk(np.zeros((1, 1, 1), np.float32)))
    with pytest.raises(ChunkError, match="--maxval 300 does not fit into uint8"):
        normalize_contrast(Chunk(np.zeros((1, 1, 1), np.uint8)), maxval=300)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ("-l 0.6 -u 0.4", "clip everything"),
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

"""Dataset statistics: exact however the chunks are cut, and a file that is read strictly."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.inference.statistics import read_statistics, statistics_of


@given(
    dtype=st.sampled_from(["uint8", "int8", "uint16", "int16"]),
    depths=st.lists(st.integers(1, 4), min_size=1, max_size=4),
    seed=st.integers(0, 999),
    spread=st.integers(1, 100),
)
@settings(max_examples=30, deadline=None)
def test_statistics_are_those_of_the_whole_dataset(dtype, depths, seed, spread):
    """Mean, deviation and percentiles equal NumPy's on all voxels, however they come in chunks."""
    rng = np.random.default_rng(seed)
    image = rng.integers(-spread if dtype[0] == "i" else 0, spread, (2, sum(depths), 3, 5))
    image = image.astype(dtype)
    parts = np.split(image, np.cumsum(depths)[:-1], axis=1)
    found = statistics_of(parts, percentiles=(0, 1, 33.3, 99.8, 100))
    for channel, entry in zip(image, found["channels"], strict=True):
        exact = channel.astype(np.float64)
        np.testing.assert_allclose([entry["mean"], entry["std"]], [exact.mean(), exact.std()])
        assert list(entry["percentiles"]) == ["0", "1", "33.3", "99.8", "100"]
        expected = np.percentile(exact, (0, 1, 33.3, 99.8, 100))
        np.testing.assert_allclose([*entry["percentiles"].values()], expected, atol=1e-9)


@pytest.mark.parametrize(
    ("chunks", "message"),
    [
        ([np.zeros((1, 1, 1), np.float32)], "voxels of float32 cannot be counted"),
        ([np.zeros((1, 1, 1), np.uint32)], "convert them to uint16"),
        ([np.zeros((1, 1, 1), "u1"), np.zeros((1, 1, 1), "u2")], "1 channels of uint16, .* uint8"),
        ([np.zeros((1, 1, 1), "u1"), np.zeros((2, 1, 1, 1), "u1")], "2 channels of uint8, .* 1"),
        ([], "no voxel"),
        ([np.zeros((0, 4, 4), "u1")], "no voxel"),
    ],
)
def test_what_has_no_statistics(chunks, message):
    """Types that cannot be counted, chunks that differ, and no voxels at all are refused."""
    with pytest.raises(ChunkError, match=message):
        statistics_of(chunks)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON file"),
        ("[]", "has version None"),
        ('{"version": 2, "channels": []}', "has version 2; a statistics file has version 1"),
        ('{"version": 1, "channels": [], "mip": 0}', "holds 'mip'; only version, channels"),
    ],
)
def test_what_is_no_statistics_file(tmp_path, text, message):
    """Other files are refused by what they are."""
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(OptionError, match=message):
        read_statistics(str(path))


def test_a_missing_percentile_names_the_command_that_makes_it(tmp_path):
    """The percentiles that were asked for are in the line that counts them."""
    path = tmp_path / "statistics.json"
    image = np.arange(64, dtype=np.uint8).reshape(4, 4, 4)
    path.write_text(json.dumps(statistics_of([image], percentiles=(1, 99))))
    (channel,) = read_statistics(str(path))
    with pytest.raises(OptionError, match=r"sum-statistics URL --percentiles 1,99\.5 --output"):
        channel.range("a.json", (1, 99.5))

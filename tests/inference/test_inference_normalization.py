"""Normalisation: right for every type, and the same for a voxel wherever it lies."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.inference.normalization import (
    Normalizer,
    create_normalizer,
    dtype_warning,
    read_statistics,
    statistics_of,
)

DTYPES = ["uint8", "int8", "uint16", "int16", "uint32", "int64", "float16", "float32", "float64"]


def voxels(dtype, shape=(2, 5, 6, 7), seed=0):
    """Return reproducible voxels that use the range of 8 bits, and more of a wider type."""
    top = 120 if dtype == "int8" else 250 if np.dtype(dtype).itemsize == 1 else 4000
    return np.random.default_rng(seed).integers(0, top, shape).astype(dtype)


def normalized(normalizer, source):
    """Return (c, z, y, x) float32."""
    out = np.full(source.shape, np.nan, np.float32)
    before = source.copy()
    normalizer(source, out)
    assert (source == before).all()
    return out


def statistics_file(folder, *channels, **more):
    """Write a statistics file and return its path."""
    path = folder / "statistics.json"
    path.write_text(json.dumps({"version": 1, "channels": channels} | more))
    return str(path)


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_method_on_every_type(tmp_path, dtype):
    """Values are those of the formulas in float64, rounded; floats pass dtype unchanged."""
    source = voxels(dtype)
    exact = source.astype(np.float64)
    path = statistics_file(
        tmp_path,
        {"mean": 60.5, "std": 20.25, "percentiles": {"1": 3, "99.8": 203.5}},
        {"mean": -1.5, "std": 0.125, "percentiles": {"1": -3.5, "99.8": 100}},
    )
    mean, std = np.array([60.5, -1.5]), np.array([20.25, 0.125])
    low, high = np.array([3, -3.5]), np.array([203.5, 100])
    scale = np.iinfo(dtype).max if np.dtype(dtype).kind in "iu" else 1
    each = (slice(None), None, None, None)
    expected = {
        "dtype": exact / scale,
        "none": exact,
        "zscore": (exact - mean[each]) / std[each],
        "percentile": (exact - low[each]) / (high - low)[each],
    }
    for method, values in expected.items():
        file = path if method in {"zscore", "percentile"} else None
        normalizer = create_normalizer(
            method, num_channels=2, statistics=file, percentiles=(1, 99.8)
        )
        np.testing.assert_allclose(normalized(normalizer, source), values, rtol=3e-7, atol=1e-7)


def test_wide_integers_keep_their_difference_to_the_mean():
    """A mean that float32 cannot hold is subtracted before anything is rounded to float32."""
    source = np.array([2**30 + 1, 2**30 + 3]).reshape(1, 1, 1, 2)
    normalizer = Normalizer("zscore", (float(2**30 + 2),), (0.5,))
    assert normalized(normalizer, source).ravel().tolist() == [-2, 2]


def test_clipping_is_only_done_when_asked_for():
    """Values beyond the percentiles reach the network as they are, unless limits are given."""
    source = np.array([0, 10, 20, 30], np.uint8).reshape(1, 1, 1, 4)
    plain = Normalizer("percentile", (10.0,), (10.0,))
    assert normalized(plain, source).ravel().tolist() == [-1, 0, 1, 2]
    clipped = Normalizer("percentile", (10.0,), (10.0,), (0.0, 1.0))
    assert normalized(clipped, source).ravel().tolist() == [0, 0, 1, 1]


@given(
    dtype=st.sampled_from(DTYPES),
    start=st.tuples(*[st.integers(0, 8)] * 3),
    size=st.tuples(*[st.integers(1, 20)] * 3),
    shift=st.floats(-300, 300),
    divisor=st.floats(1e-3, 1e3),
    copied=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_a_voxel_has_one_value_wherever_the_patch_lies(dtype, start, size, shift, divisor, copied):
    """Not one bit depends on how the image is cut or lies in memory."""
    source = voxels(dtype, (1, 28, 28, 28))
    box = (slice(None), *(slice(a, a + s) for a, s in zip(start, size, strict=True)))
    for normalizer in (Normalizer(), Normalizer("zscore", (shift,), (divisor,), (-1.0, 1.0))):
        patch = source[box].copy() if copied else source[box]
        part, whole = normalized(normalizer, patch), normalized(normalizer, source)
        assert part.tobytes() == whole[box].tobytes()


def test_statistics_make_a_file_that_is_read(tmp_path):
    """What is computed, written as JSON, normalises its own image to mean 0 and deviation 1."""
    image = voxels("uint16", (9, 10, 11))
    path = tmp_path / "statistics.json"
    path.write_text(json.dumps(statistics_of([image[:4], image[4:]])))
    out = normalized(create_normalizer("zscore", statistics=str(path)), image[None])
    np.testing.assert_allclose([out.mean(), out.std()], [0, 1], atol=1e-5)
    stretched = normalized(create_normalizer("percentile", statistics=str(path)), image[None])
    np.testing.assert_allclose(np.percentile(stretched, [1, 99]), [0, 1], atol=1e-5)


# Percentiles 1 and 50 are alike.
GOOD = {"mean": 1, "std": 2, "percentiles": {"1": 3, "99": 4, "50": 3}}


@pytest.mark.parametrize(
    ("channels", "options", "message"),
    [
        ([GOOD, GOOD], {}, "statistics of 2 channels, but the image has 1"),
        ([GOOD | {"std": 0}], {}, "channel 0 .* standard deviation of 0"),
        ([GOOD | {"std": -1}], {}, "standard deviation of -1"),
        ([{"std": 1}], {}, "lacks mean, which --normalize zscore needs"),
        ([{"mean": 1}], {}, "lacks std"),
        ([GOOD | {"mean": float("nan")}], {}, "mean of channel 0 .* is nan"),
        ([GOOD | {"mean": True}], {}, "mean of channel 0 .* is True"),
        ([GOOD | {"std": "2"}], {}, "std of channel 0 .* is '2'"),
        ([GOOD | {"sdt": 2}], {}, "channel 0 .* unknown key 'sdt'; use only count, mean, std"),
        ([3], {}, "channel 0 .* is 3; an entry must be an object"),
        ([], {}, "must have a list 'channels' with an entry for each channel"),
        ([GOOD | {"percentiles": [1, 99]}], {}, "percentiles of channel 0 .* must be an object"),
        ([GOOD | {"percentiles": {"1": 3, "1.0": 4}}], {}, "percentile '1.0'; .* each given once"),
        ([GOOD | {"percentiles": {"p1": 3}}], {}, "percentile 'p1'; .* from 0 to 100"),
        ([GOOD | {"percentiles": {"101": 3}}], {}, "percentile '101'"),
        (
            [GOOD],
            {"method": "percentile", "percentiles": (2, 99)},
            "lacks percentile 2 .*1, 50, 99",
        ),
        ([{"mean": 1}], {"method": "percentile"}, "lacks percentile 1 .it has none"),
        ([GOOD], {"method": "percentile", "percentiles": (1, 50)}, "has 3 as percentile 1 and 3 "),
        ([GOOD], {"method": "percentile", "percentiles": (99, 1)}, "the lower one first"),
        ([GOOD, GOOD | {"mean": 2}], {"joint": True, "num_channels": 2}, "normalised together"),
    ],
)
def test_what_a_file_must_not_say(tmp_path, channels, options, message):
    """Each mistake in a statistics file is one sentence that names the place and the value."""
    path = statistics_file(tmp_path, *channels)
    method = options.pop("method", "zscore")
    with pytest.raises(OptionError, match=message):
        create_normalizer(method, statistics=path, **options)


def test_channels_normalised_together(tmp_path):
    """Equal statistics for all channels are what a network that joins them takes."""
    path = statistics_file(tmp_path, GOOD, GOOD)
    found = create_normalizer("zscore", num_channels=2, statistics=path, joint=True, epsilon=0.5)
    assert (found.shift, found.divisor) == ((1, 1), (2.5, 2.5))


def test_a_file_where_there_should_be_one_and_where_not(tmp_path):
    """A method and its file belong together."""
    with pytest.raises(
        OptionError, match="zscore needs statistics .* --normalize-stat.* --normalize-mean and"
    ):
        create_normalizer("zscore")
    with pytest.raises(OptionError, match=r"gone\.json does not exist"):
        create_normalizer("percentile", statistics=str(tmp_path / "gone.json"))
    with pytest.raises(OptionError, match="dtype uses no statistics, but .* a.json"):
        create_normalizer("dtype", statistics="a.json")
    with pytest.raises(OptionError, match="'minmax' is not one of dtype, none, zscore, percentile"):
        create_normalizer("minmax")


@given(
    dtype=st.sampled_from(DTYPES),
    mean=st.tuples(*[st.floats(-1e4, 1e4)] * 2),
    std=st.tuples(*[st.floats(1e-3, 1e4)] * 2),
    epsilon=st.sampled_from([0.0, 0.5]),
)
@settings(max_examples=40, deadline=None)
def test_numbers_do_what_a_file_with_these_numbers_does(
    tmp_path_factory, dtype, mean, std, epsilon
):
    """Mean and standard deviation normalise to the same bytes from options and from a file."""
    channels = [{"mean": m, "std": s} for m, s in zip(mean, std, strict=True)]
    path = statistics_file(tmp_path_factory.mktemp("numbers"), *channels)
    options = {"num_channels": 2, "epsilon": epsilon}
    by_file = create_normalizer("zscore", statistics=path, **options)
    by_numbers = create_normalizer("zscore", mean=mean, std=std, **options)
    source = voxels(dtype)
    assert normalized(by_numbers, source).tobytes() == normalized(by_file, source).tobytes()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mean": (1.0,)}, "--normalize-mean is given without --normalize-std"),
        ({"std": (1.0,)}, "--normalize-std is given without --normalize-mean"),
        (
            {"mean": (1.0,), "std": (2.0,), "statistics": "a.json"},
            "--normalize-statistics is a.json, but --normalize-mean .* leave out either",
        ),
        ({"mean": (1.0, 2.0), "std": (2.0,)}, "mean has 2 numbers, but --normalize-std has 1"),
        (
            {"mean": (1.0, 2.0), "std": (2.0, 2.0)},
            "have statistics of 2 channels, but the image has 1; give 1 of each",
        ),
        (
            {"mean": (1.0,), "std": (0.0,)},
            "channel 0 .* standard deviation of 0, .* be positive",
        ),
        ({"mean": (1.0,), "std": (-2.0,)}, "standard deviation of -2"),
        (
            {"method": "dtype", "mean": (1.0,)},
            "mean is only for .* zscore, but --normalize is dtype",
        ),
        (
            {"method": "percentile", "std": (1.0,)},
            "std is only for .* zscore, .* leave --normalize-std",
        ),
        (
            {"mean": (1.0, 2.0), "std": (2.0, 2.0), "num_channels": 2, "joint": True},
            "normalised together, but the statistics in --normalize-mean and --normalize-std diff",
        ),
    ],
)
def test_numbers_that_cannot_be_used(options, message):
    """Each contradiction is one sentence that names the options and what to change."""
    with pytest.raises(OptionError, match=message):
        create_normalizer(options.pop("method", "zscore"), **options)


def test_the_warning_for_wide_integers():
    """It names divisor, what 12 bits would reach, and choices; 8 bits and floats need none."""
    text = dtype_warning("uint16")
    assert "divided by 65535" in text
    assert "12-bit data would reach only 0.062" in text
    assert all(f"--normalize {m}" in text for m in ("none", "zscore or percentile", "dtype"))
    assert "reach only 0.12" in dtype_warning("int16")
    assert "the largest voxel sampled, 1000, becomes 0.015" in dtype_warning("uint16", 1000)
    assert dtype_warning("uint16", 60000) is None
    assert [dtype_warning(d) for d in ("uint8", "int8", "bool", "float32")] == [None] * 4


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
        ([np.zeros((1, 1, 1), np.uint32)], "convert the voxels to uint16"),
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
        ("{", "is not a JSON file"),
        ("[]", "has version None"),
        ('{"version": 2, "channels": []}', "has version 2, but must have version 1"),
        (
            '{"version": 1, "channels": [], "mip": 0}',
            "key 'mip'; use only version, channels",
        ),
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

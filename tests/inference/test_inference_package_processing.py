"""Steps around a packaged network: the formulas of the specification, or a refusal by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from bioimage_packages import (
    describe,
    input_0_4,
    input_0_5,
    output_0_4,
    output_0_5,
    write_package,
)

from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.inference.bioimage import read_package


class Same(torch.nn.Module):
    """Returns what it is given."""

    def forward(self, batch):
        """Return a copy."""
        return batch * 1


def package_of(folder, version, before=(), after=(), channels=2, **more):
    """Return a package whose network changes nothing, with steps around it."""
    key = "name" if version.startswith("0.4") else "id"
    before, after = ([{key: n, "kwargs": k} for n, k in steps] for steps in (before, after))
    first, last = (input_0_4, output_0_4) if key == "name" else (input_0_5, output_0_5)
    inputs = first(preprocessing=before) | more
    if key == "name":
        inputs["shape"]["min"][1] = channels
    else:
        inputs["axes"][1]["channel_names"] = [f"c{i}" for i in range(channels)]
    outputs = last(channels=channels, postprocessing=after)
    folder = write_package(
        folder / "net", describe(version, [inputs], [outputs]), network=Same(),
        example=torch.zeros(1, channels, 4, 4, 4),
    )  # fmt: skip
    return read_package(str(folder))


def seen(package, image, statistics=None):
    """Return what the network is given for an image (c, z, y, x)."""
    out = np.empty(image.shape, np.float32)
    package.normalization.normalizer(len(image), statistics)(image, out)
    with torch.inference_mode():
        return package.load()(torch.from_numpy(out[None])).numpy()[0]


def image_of(dtype=np.uint8, channels=2):
    """Return a reproducible image (c, z, y, x)."""
    return np.random.default_rng(3).integers(0, 200, (channels, 4, 4, 6)).astype(dtype)


def each(*numbers):
    """Return one number a channel."""
    return np.array(numbers, np.float64)[:, None, None, None]


FIXED = ("fixed_zero_mean_unit_variance", {"mean": 40.0, "std": 8.0})
BY_CHANNEL = (
    "fixed_zero_mean_unit_variance",
    {"mean": [4, 40], "std": [2, "8e0"], "axis": "channel"},
)
LINEAR = ("scale_linear", {"gain": [2.0, -0.5], "offset": 3.0, "axis": "channel"})
CLIP = ("clip", {"min": -1, "max": 2.5})


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], lambda v: v),
        ([("ensure_dtype", {"dtype": "float32"})], lambda v: v),
        ([FIXED], lambda v: (v - 40) / 8),
        ([BY_CHANNEL], lambda v: (v - each(4, 40)) / each(2, 8)),
        ([("scale_linear", {"gain": 0.25})], lambda v: v * 0.25),
        ([LINEAR], lambda v: v * each(2, -0.5) + 3),
        ([BY_CHANNEL, LINEAR], lambda v: (v - each(4, 40)) / each(2, 8) * each(2, -0.5) + 3),
        ([FIXED, CLIP], lambda v: np.clip((v - 40) / 8, -1, 2.5)),
        ([FIXED, CLIP, LINEAR], lambda v: np.clip((v - 40) / 8, -1, 2.5) * each(2, -0.5) + 3),
        ([("clip", {"max": 90})], lambda v: np.minimum(v, 90)),
        ([FIXED, ("sigmoid", {})], lambda v: 1 / (1 + np.exp(-(v - 40) / 8))),
        ([FIXED, ("softmax", {})], lambda v: np.exp(v / 8) / np.exp(v / 8).sum(0)),
        ([("binarize", {"threshold": 90})], lambda v: v > 90),
        ([("binarize", {"threshold": [9, 90], "axis": "channel"})], lambda v: v > each(9, 90)),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.float32])
def test_steps_before_the_network(tmp_path, steps, expected, dtype):
    """Voxels reach the network as the steps say, whatever their type; integers are not divided."""
    image = image_of(dtype)
    package = package_of(tmp_path, "0.5.4", steps)
    assert not package.normalization.needs_statistics
    np.testing.assert_allclose(
        seen(package, image), expected(image.astype(np.float64)), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (
            ("zero_mean_unit_variance", {"axes": "zyx", "mean": [4, 40], "std": [2, 8]}),
            lambda v: (v - each(4, 40)) / each(2, 8),
        ),
        (
            ("zero_mean_unit_variance", {"mode": "fixed", "axes": "czyx", "mean": 4, "std": 2}),
            lambda v: (v - 4) / 2,
        ),
        (
            ("scale_linear", {"axes": "zyx", "gain": [2, 3], "offset": [0, 1]}),
            lambda v: v * each(2, 3) + each(0, 1),
        ),
    ],
)
def test_steps_before_the_network_in_format_0_4(tmp_path, step, expected):
    """The older spelling of fixed values means the same."""
    image = image_of()
    package = package_of(tmp_path, "0.4.9", [step], data_type="uint8")
    np.testing.assert_allclose(
        seen(package, image), expected(image.astype(np.float64)), rtol=1e-5, atol=1e-5
    )


def statistics_file(folder, image, percentiles=(1, 99.8)):
    """Write statistics of an image and return the path of their file."""
    path = folder / "statistics.json"
    channels = [
        {
            "mean": float(channel.mean()),
            "std": float(channel.std()),
            "percentiles": {str(p): float(np.percentile(channel, p)) for p in percentiles},
        }
        for channel in image
    ]
    path.write_text(json.dumps({"version": 1, "channels": channels}))
    return str(path)


@pytest.mark.parametrize(
    ("version", "step"),
    [
        ("0.4.9", ("zero_mean_unit_variance", {"mode": "per_sample", "axes": "zyx"})),
        ("0.4.9", ("zero_mean_unit_variance", {"mode": "per_dataset", "axes": "zyx"})),
        ("0.5.4", ("zero_mean_unit_variance", {"axes": ["z", "y", "x"], "eps": "1e-6"})),
        ("0.5.4", ("zero_mean_unit_variance", {"axes": ["batch", "z", "y", "x"]})),
    ],
)
def test_mean_and_deviation_come_from_a_file(tmp_path, version, step):
    """What a package takes from each sample is taken from the dataset, and asked for if missing."""
    image = image_of()
    normalization = (package := package_of(tmp_path, version, [step])).normalization
    assert (normalization.method, normalization.needs_statistics) == ("zscore", True)
    with pytest.raises(OptionError, match="zscore --normalize-statistics FILE$"):
        normalization.normalizer(2)
    exact = image.astype(np.float64)
    mean, std = exact.mean((1, 2, 3), keepdims=True), exact.std((1, 2, 3), keepdims=True)
    found = seen(package, image, statistics_file(tmp_path, image))
    np.testing.assert_allclose(found, (exact - mean) / (std + 1e-6), rtol=1e-5, atol=1e-5)
    given = normalization.normalizer(2, mean=tuple(mean.flat), std=tuple(std.flat))
    assert given == normalization.normalizer(2, statistics_file(tmp_path, image))


def test_percentiles_come_from_a_file(tmp_path):
    """Those of the package are looked up; nothing is clipped but where a clip step follows."""
    image = image_of()
    step = ("scale_range", {"axes": "zyx", "mode": "per_sample", "min_percentile": 1,
                            "max_percentile": 99.8, "eps": 0.1})  # fmt: skip
    path = statistics_file(tmp_path, image)
    low, high = (np.percentile(image, p, (1, 2, 3), keepdims=True) for p in (1, 99.8))
    expected = (image - low) / (high - low + 0.1)
    assert expected.min() < 0
    package = package_of(tmp_path, "0.4.9", [step])
    with pytest.raises(OptionError, match="percentile .*FILE with percentiles 1 and 99.8"):
        package.normalization.normalizer(2)
    np.testing.assert_allclose(seen(package, image, path), expected, rtol=1e-5, atol=1e-5)
    clipped = package_of(tmp_path, "0.4.9", [step, ("clip", {"min": 0, "max": 1})])
    np.testing.assert_allclose(
        seen(clipped, image, path), np.clip(expected, 0, 1), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize("axes", [None, ["channel", "z", "y", "x"]])
def test_channels_that_are_normalised_together(tmp_path, axes):
    """Statistics that differ between such channels are refused; of one channel nothing is asked."""
    image = image_of()
    step = ("zero_mean_unit_variance", {"axes": axes} if axes else {})
    path = statistics_file(tmp_path, image)
    package = package_of(tmp_path, "0.5.4", [step])
    with pytest.raises(OptionError, match="normalised together"):
        package.normalization.normalizer(2, path)
    single = package_of(tmp_path, "0.5.4", [step], channels=1)
    assert single.normalization.normalizer(1, statistics_file(tmp_path, image[:1]))


def test_a_file_that_is_not_needed(tmp_path):
    """Statistics beside fixed values would be ignored, so they are refused."""
    package = package_of(tmp_path, "0.5.4", [FIXED])
    with pytest.raises(
        OptionError,
        match="needs no statistics .*; leave --normalize-statistics s.json",
    ):
        package.normalization.normalizer(2, "s.json")
    with pytest.raises(OptionError, match="leave --normalize-mean and --normalize-std out"):
        package.normalization.normalizer(2, mean=(1.0, 1.0), std=(1.0, 1.0))


@pytest.mark.parametrize(
    ("steps", "activation", "expected"),
    [
        ([], "none", lambda v: v),
        ([("sigmoid", {})], "sigmoid", lambda v: v),
        ([("softmax", {"axis": "channel"})], "softmax", lambda v: v),
        ([("sigmoid", {}), ("ensure_dtype", {"dtype": "float32"})], "sigmoid", lambda v: v),
        ([("scale_linear", {"gain": 2}), ("clip", {"min": 0, "max": 1})], "none",
         lambda v: np.clip(2 * v, 0, 1)),
        ([("sigmoid", {}), LINEAR], "none", lambda v: each(2, -0.5) / (1 + np.exp(-v)) + 3),
    ],
)  # fmt: skip
def test_steps_after_the_network(tmp_path, steps, activation, expected):
    """A lone activation is left to the engine; other steps are done to each patch, in order."""
    package = package_of(tmp_path, "0.5.4", after=steps)
    assert package.activation == activation
    values = np.random.default_rng(0).normal(0, 2, (2, 4, 4, 4)).astype(np.float32)
    with torch.inference_mode():
        found = package.load()(torch.from_numpy(values[None])).numpy()[0]
    np.testing.assert_allclose(found, expected(values.astype(np.float64)), rtol=1e-5, atol=1e-5)


PER_SAMPLE = ("zero_mean_unit_variance", {"axes": ["z", "y", "x"]})


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([FIXED, PER_SAMPLE], [], "inputs.0.preprocessing.1 is .* must be .*first"),
        ([("gaussian", {})], [], "preprocessing.0 is .*'gaussian'.* step is not supported"),
        ([("scale_linear", {"gain": 0})], [], "kwargs.gain is 0; it must not be 0"),
        ([("scale_linear", {"gain": [1, 2, 3]})], [], "one number, or one for each of 2 channels"),
        ([("scale_linear", {"gain": [1, 2], "axis": "z"})], [], "axis is 'z'; .* only channels"),
        ([("scale_linear", {"gain": "two"})], [], "kwargs.gain is 'two'; it must be a number"),
        ([("fixed_zero_mean_unit_variance", {"mean": 1})], [], "kwargs.std is missing"),
        ([("fixed_zero_mean_unit_variance", {"mean": 1, "std": 0})], [], "std is 0; .* above 0"),
        (
            [("scale_range", {"reference_tensor": "other"})],
            [],
            "'other'; it must be .*: statistics of another tensor",
        ),
        ([("ensure_dtype", {"dtype": "uint8"})], [], "preprocessing.0 is .* last step is uint8"),
        (
            [FIXED, ("ensure_dtype", {"dtype": "int8"}), FIXED],
            [],
            "float64 between steps",
        ),
        ([], [("binarize", {"threshold": 0.5})], "outputs.0.postprocessing.0 .* add threshold"),
        ([], [("scale_mean_variance", {"reference_tensor": "raw"})], "by its own statistics"),
        ([], [("scale_range", {})], "by its own statistics"),
        ([], [("ensure_dtype", {"dtype": "uint8"})], "last step is uint8, but blended values"),
    ],
)
def test_steps_that_cannot_be_done(tmp_path, before, after, message):
    """Each is refused by the name of its field."""
    with pytest.raises(ModelError, match=message):
        package_of(tmp_path, "0.5.4", before, after)


def test_a_network_that_takes_integers(tmp_path):
    """Without a step that makes floats, data of type uint8 would reach the network as such."""
    with pytest.raises(ModelError, match="last step is uint8"):
        package_of(tmp_path, "0.5.4", data={"type": "uint8"})

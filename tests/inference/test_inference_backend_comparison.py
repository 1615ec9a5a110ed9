"""Accuracy: how far two outputs are from each other."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from contracts.core_contract import batch
from rigs.variants import gate_runs

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ChunkError, ModelError, OptionError
from chunkflow_py.inference import backend_comparison
from chunkflow_py.inference.backend_comparison import (
    BackendTrial,
    choose_backend,
    compare,
    error_against,
    example_patches,
    fastest,
    non_empty_batches,
)
from chunkflow_py.inference.backend_factory import create_backend

SETTINGS = {
    "model": "rsunet",
    "input_patch_size": Zyx(4, 16, 16),
    "output_patch_size": Zyx(4, 16, 16),
    "batch_size": 2,
    "device": "cpu",
}


def test_numbers_are_those_of_numpy():
    """Largest, 99.9th percentile and mean agree with NumPy's."""
    difference = np.random.default_rng(0).exponential(size=(3, 10, 20, 30)).astype(np.float32)
    zeros = torch.zeros(difference.shape)
    found = error_against(zeros, -torch.from_numpy(difference))
    assert found.largest == difference.max()
    assert found.percentile_999 == np.quantile(difference, 0.999, method="inverted_cdf")
    assert found.mean == pytest.approx(difference.mean(dtype=np.float64))
    assert str(found).startswith("largest ")


def test_not_a_number_is_never_small():
    """A NaN in an output makes all three NaN, which is below no limit."""
    measured = torch.zeros(10000)
    measured[5] = math.nan
    found = error_against(torch.zeros(10000), measured)
    assert not found.largest < 1
    assert not found.percentile_999 < 1
    assert not found.mean < 1


def test_shapes_must_agree():
    """Outputs of two shapes are refused with both."""
    with pytest.raises(ChunkError, match=r"\(2, 3\) and \(3, 2\)"):
        error_against(torch.zeros(2, 3), torch.zeros(3, 2))
    with pytest.raises(ChunkError, match="must be equal, and no size may be 0"):
        error_against(torch.zeros(0), torch.zeros(0))


def test_patches_that_vary_most_are_compared():
    """Constant patches are left out, and the last batch is filled up with zeros."""
    patches = torch.rand(5, 1, 4, 8, 8, generator=torch.Generator().manual_seed(0))
    patches[1] = 0.5
    patches[3] *= 10
    first, second = non_empty_batches(patches, 2, most=3)
    assert torch.equal(first[0], patches[3])
    assert not bool(second[1].any())
    assert not any(torch.equal(patch, patches[1]) for patch in (*first, *second))
    assert non_empty_batches(torch.ones(3, 1, 2, 2, 2), 2) == []


def test_backends_are_compared_on_patches():
    """Float32 is itself to the byte; bfloat16 is near, and never exact."""
    reference = create_backend(**SETTINGS)
    half = create_backend(**SETTINGS, dtype="bfloat16")
    batches = non_empty_batches(torch.rand(4, 1, 4, 16, 16), 2)
    same = compare(create_backend(**SETTINGS), reference, batches)
    near = compare(half, reference, batches)
    assert same.largest == 0
    assert 0 < near.mean < near.percentile_999 <= near.largest < 0.05


def test_nothing_to_compare_on():
    """Without a patch there is no accuracy."""
    backend = create_backend(**SETTINGS)
    with pytest.raises(ChunkError, match="there is no batch"):
        compare(backend, backend, [])


def test_outputs_of_another_shape_are_told():
    """Two networks whose outputs differ in shape cannot be compared."""
    other = create_backend(**(SETTINGS | {"model": "rsunet"}), num_output_channels=2)
    batches = [torch.rand(2, 1, 4, 16, 16)]
    with pytest.raises(ChunkError, match=r"\(2, 3, 4, 16, 16\) and \(2, 2, 4, 16, 16\)"):
        compare(other, create_backend(**SETTINGS), batches)


ROOT = Path(__file__).parents[2]


class Clock:
    """Time that passes only while a network runs, however busy the machine is."""

    now = 0.0

    @classmethod
    def perf_counter(cls):
        """Return the seconds so far."""
        return cls.now


@pytest.fixture(autouse=True)
def _clock(monkeypatch):
    monkeypatch.setattr(backend_comparison, "time", Clock)


class Slow:
    """A network of one multiplication that takes a given time and makes a given error."""

    device = torch.device("cpu")
    weighted, divisor, profile = False, None, {}

    def __init__(self, seconds=0.0, error=0.0):
        self.seconds, self.error, self.calls = seconds, error, 0

    def __call__(self, image):
        self.calls += 1
        Clock.now += self.seconds
        return image * 0.5 + self.error


def choose(backends, **more):
    """Choose among *backends*, by name or by name and dtype."""

    def make_backend(name, dtype):
        found = backends.get((name, dtype), backends.get(name))
        if isinstance(found, Exception):
            raise found
        return found

    names = dict.fromkeys(key if isinstance(key, str) else key[0] for key in backends)
    return choose_backend(make_backend, list(names), [batch(), batch(seed=1)], **more)


def test_takes_the_fastest():
    """The time of a batch decides among exact libraries."""
    choice = choose({"torch": Slow(0.03), "openvino": Slow(0.01), "onnxruntime": Slow(0.05)})
    assert choice.name == "openvino"
    assert [each.name for each in choice.trials] == ["torch", "openvino", "onnxruntime"]
    assert [round(each.seconds, 9) for each in choice.trials] == [0.03, 0.01, 0.05]
    assert all(each.error == 0 and not each.reason for each in choice.trials)


@pytest.mark.parametrize("error", gate_runs([2e-5, float("nan"), float("inf")], 2e-5))
def test_refuses_what_is_not_exact(error):
    """A faster library with an error above the tolerance is not taken, and the reason is kept."""
    choice = choose({"torch": Slow(0.02), "openvino": Slow(error=error)})
    assert choice.name == "torch"
    assert "above the tolerance, 1e-05" in str(choice.trials[1])
    assert choose({"torch": Slow(0.02), "openvino": Slow(error=5e-6)}).name == "openvino"


def test_errors_are_those_of_float32():
    """With bfloat16 its speed is measured, and the exactness of float32."""
    choice = choose(
        {
            ("torch", "float32"): Slow(),
            ("torch", "bfloat16"): Slow(0.03, error=0.1),
            ("openvino", "float32"): Slow(0.05),
            ("openvino", "bfloat16"): Slow(0.01, error=0.2),
            ("onnxruntime", "float32"): Slow(),
            ("onnxruntime", "bfloat16"): OptionError("float32 works there"),
        },
        dtype="bfloat16",
    )
    assert choice.name == "openvino"
    assert choice.trials[1].error == 0
    assert choice.trials[1].seconds == pytest.approx(0.01)
    assert choice.trials[2].reason == "float32 works there"


def test_what_fails_is_listed(caplog):
    """A library that is missing or breaks down is passed over, one line each in the log."""
    with caplog.at_level("INFO"):
        choice = choose(
            {
                "torch": Slow(),
                "openvino": OptionError("openvino is not installed"),
                "onnxruntime": RuntimeError("broken"),
            }
        )
    assert choice.name == "torch"
    text = [record.getMessage() for record in caplog.records]
    assert len(text) == 4
    assert "torch: " in text[0]
    assert "openvino is not installed" in text[1]
    assert "broken" in text[2]
    assert text[3] == "--backend auto chose torch"


def test_a_network_that_pytorch_cannot_run_is_an_error():
    """What PyTorch raises comes out: it is the network's own fault."""
    with pytest.raises(ModelError, match="no such network"):
        choose({"torch": ModelError("no such network"), "openvino": Slow()})


def test_a_network_that_returns_nan_is_chosen_for_nobody():
    """Without one exact library the error lists them all."""
    with pytest.raises(ModelError, match="no backend can run the network: torch: .*above"):
        choose({"torch": Slow(error=float("nan"))})


def test_the_first_run_is_not_timed():
    """Kernels are made in the first batch; three batches are run in all."""

    class Warming(Slow):
        def __call__(self, image):
            self.seconds = 0.2 if self.calls == 0 else 0.0
            return super().__call__(image)

    slow = Warming()
    choice = choose({"torch": Slow(0.02), "openvino": slow})
    assert choice.name == "openvino"
    assert slow.calls == 3


def test_large_values_have_large_errors():
    """The error is that of the largest value, if it is above one: logits have no scale."""

    class Large(Slow):
        def __call__(self, image):
            return super().__call__(image) * 1000

    choice = choose({"torch": Large(), "openvino": Large(error=2e-6)})
    assert choice.trials[1].error < 1e-5


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [((1.0, 1.0, 1.0), "a"), ((1.0, 0.99, 0.99), "a"), ((1.0, 0.9, 0.9), "b"), ((2, 3, 1), "c")],
)
def test_ties_go_to_the_first(seconds, expected):
    """Differences of 2 % are none; PyTorch, the first, is then preferred."""
    trials = [BackendTrial(n, s, 0.0) for n, s in zip("abc", seconds, strict=True)]
    assert fastest(trials).name == expected


def test_example_patches_look_like_images():
    """They are in [0, 1], repeatable, different, and neighbours resemble each other."""
    shape = (2, 1, 10, 33, 40)
    first, second = example_patches(shape)
    assert first.shape == second.shape == shape
    assert 0 <= float(first.min()) < float(first.max()) <= 1
    assert torch.equal(first, example_patches(shape)[0])
    assert not torch.equal(first, second)
    beside = (first[..., 1:] - first[..., :-1]).abs().mean()
    far = (first[..., 16:] - first[..., :-16]).abs().mean()
    assert beside < far / 2


def test_chooses_among_real_libraries(tmp_path, monkeypatch):
    """All installed libraries compute the FIB-25 network below the tolerance."""
    monkeypatch.setenv("CHUNKFLOW_CACHE_DIR", str(tmp_path))
    installed = ["torch"]
    for name in ("openvino", "onnxruntime"):
        try:
            __import__(name)
        except ImportError:
            continue
        installed.append(name)

    def make_backend(name, dtype):
        return create_backend(
            "pytorch",
            model=str(ROOT / "examples/fib25/unet_fib25_model.py"),
            weights=str(ROOT / "examples/fib25/unet_fib25.pt"),
            input_patch_size=Zyx(8, 32, 32),
            output_patch_size=Zyx(8, 32, 32),
            backend=name,
            dtype=dtype,
            device="cpu",
        )

    choice = choose_backend(make_backend, installed, example_patches((1, 1, 8, 32, 32)))
    assert choice.name in installed
    for each in choice.trials:
        assert not each.reason
        assert each.error < 1e-5

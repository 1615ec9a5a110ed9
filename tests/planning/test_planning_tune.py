"""Trying out how a network runs fastest: what is tried, what is measured, what is recommended."""

from __future__ import annotations

import subprocess
import sys
import warnings
from dataclasses import replace
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import ModelError, OptionError
from chunkflow_py.planning import tune as tune_module
from chunkflow_py.planning.tune import Candidate, Measurement, Tuning, tune
from chunkflow_py.planning.tune_process import WholePatchOperators, inspect, measure

if TYPE_CHECKING:
    from pathlib import Path

SIZE = Zyx(8, 16, 16)
SMALL: dict[str, Any] = {"input_patch_size": SIZE, "output_patch_overlap": Zyx(2, 4, 4)}
IDENTITY = {"framework": "identity", "num_output_channels": 1}

# A network whose batches of two and of other sizes end as the test wants.
INFERENCER = """
import os, time
import numpy as np

class PatchInferencer:
    def __init__(self, weight_path, mask):
        self.mask = mask

    def __call__(self, batch):
        {body}
        return batch[:, :1] * self.mask
"""


def write_model(folder: Path, body: str = "pass") -> dict[str, Any]:
    """Return a network whose forward runs *body* first."""
    file = folder / "model.py"
    file.write_text(INFERENCER.format(body=body))
    return {"model": str(file), "num_output_channels": 1}


# --- which networks depend on the whole patch ----------------------------------------------------


class Standardised(nn.Module):
    """Subtracts the mean of the patch, in code of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean((2, 3, 4), keepdim=True)


class Sections(nn.Module):
    """Subtracts the mean of the section, in code of its own."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean((-2, -1), keepdim=True)


class Functional(nn.Module):
    """Calls a function for its normalisation."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.instance_norm(x)


class ChannelSoftmax(nn.Module):
    """Adds over channels, which is no matter of the patch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.softmax(1) + x.mean(1, keepdim=True)


NETWORKS = {
    "instance": (nn.InstanceNorm3d(4), True),
    "instance with statistics": (nn.InstanceNorm3d(4, track_running_stats=True), False),
    "group": (nn.GroupNorm(2, 4), True),
    "layer": (nn.LayerNorm((8, 16, 16)), True),
    "batch": (nn.BatchNorm3d(4), False),
    "batch without statistics": (nn.BatchNorm3d(4, track_running_stats=False), True),
    "squeeze": (nn.AdaptiveAvgPool3d(1), True),
    "own code": (Standardised(), True),
    "function": (Functional(), True),
    "channels": (ChannelSoftmax(), False),
    "pooling": (nn.Sequential(nn.AvgPool3d(2), nn.Conv3d(4, 4, 3)), False),
}


@pytest.mark.parametrize("form", ["module", "TorchScript", "exported", "channels last"])
@pytest.mark.parametrize("name", NETWORKS)
def test_operators_on_the_whole_patch_are_found(name: str, form: str) -> None:
    """Normalisation by the patch's own statistics is found in each form a network comes in."""
    module, depends = NETWORKS[name]
    batch = torch.rand(1, 4, *SIZE)
    network: Any = module.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript is deprecated as such
        if form == "TorchScript":
            network = torch.jit.script(module)
        elif form == "exported":
            network = torch.export.export(module, (batch,)).module()
        elif form == "channels last":
            batch = batch.to(memory_format=torch.channels_last_3d)
        with torch.inference_mode(), WholePatchOperators() as operators:
            network(batch)
    assert bool(operators.found) == depends, operators.found


@pytest.mark.parametrize(
    ("network", "depends"),
    [(nn.InstanceNorm2d(4), True), (Sections(), True), (nn.BatchNorm2d(4), False)],
)
def test_operators_on_whole_sections_are_found(network: nn.Module, depends: bool) -> None:
    """A 2D network is watched as well, on its patches of one section."""
    with torch.inference_mode(), WholePatchOperators() as operators:
        network.eval()(torch.rand(8, 4, 16, 16))
    assert bool(operators.found) == depends


@pytest.mark.long
def test_a_patch_size_is_needed_where_it_matters(tmp_path: Path) -> None:
    """Without the trained size, a network that depends on it is refused, with the operator."""
    (tmp_path / "net.py").write_text(
        "from torch import nn\nInstantiatedModel = nn.Sequential(nn.InstanceNorm3d(1))\n"
    )
    network = {"model": str(tmp_path / "net.py"), "num_output_channels": 1}
    with pytest.raises(OptionError, match=r"uses .*norm.*set --input-patch-size to the patch size"):
        tune(network, output_patch_overlap=Zyx(0, 0, 0))


# --- one measurement -----------------------------------------------------------------------------


def ask(tmp_path: Path, network: dict[str, Any], **candidate: Any) -> dict[str, Any]:
    """Return the request for one measurement."""
    plain = {"backend": "torch", "dtype": "float32", "compile": False, "batch_size": 1}
    sizes = {"input_patch_size": list(SIZE), "output_patch_size": list(SIZE)}
    return {
        "network": {"device": "cpu", "num_input_channels": 1} | network,
        "image": None,
        "candidate": sizes | plain | candidate,
        "reference": str(tmp_path / "reference.npy"),
    }


def test_a_measurement_has_time_memory_and_error(tmp_path: Path) -> None:
    """The reference has no error; bfloat16 has one, and a batch is as exact as its patches."""
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "InstantiatedModel = nn.Sequential(nn.Conv3d(1, 8, 3, padding=1), nn.Conv3d(8, 2, 1))\n"
    )
    network = {"model": str(tmp_path / "net.py"), "num_output_channels": 2}
    cost, error = measure(ask(tmp_path, network))
    assert cost["seconds"] > 0
    assert 10**7 < cost["memory_bytes"] < 10**12
    assert error == {"largest": 0, "percentile_999": 0, "mean": 0}
    assert np.load(tmp_path / "reference.npy").shape == (2, 2, *SIZE)
    _, error = measure(ask(tmp_path, network, batch_size=4))
    assert error["largest"] < 1e-5
    _, error = measure(ask(tmp_path, network, dtype="bfloat16"))
    assert 1e-5 < error["mean"] < error["percentile_999"] <= error["largest"] < 0.1


def test_the_reference_does_not_depend_on_who_makes_it(tmp_path: Path) -> None:
    """Whichever process comes first, errors are those from float32 on the same patches."""
    (tmp_path / "net.py").write_text(
        "import torch\nfrom torch import nn\ntorch.manual_seed(0)\n"
        "InstantiatedModel = nn.Conv3d(1, 2, 3, padding=1)\n"
    )
    network = {"model": str(tmp_path / "net.py"), "num_output_channels": 2}
    list(measure(ask(tmp_path, network, dtype="bfloat16", batch_size=4)))
    made_by_bfloat16 = np.load(tmp_path / "reference.npy")
    (tmp_path / "reference.npy").unlink()
    list(measure(ask(tmp_path, network)))
    assert np.array_equal(np.load(tmp_path / "reference.npy"), made_by_bfloat16)


def test_errors_are_measured_on_the_image(tmp_path: Path) -> None:
    """Patches come from the image, not from where it is empty, and a small image is mirrored."""
    image = np.zeros((1, 4, 64, 64), dtype=np.float32)
    image[..., 40:, 40:] = 0.25
    np.save(tmp_path / "image.npy", image)
    request = ask(tmp_path, IDENTITY) | {"image": str(tmp_path / "image.npy")}
    list(measure(request))
    outputs = np.load(tmp_path / "reference.npy")
    assert outputs.shape == (2, 1, *SIZE)
    assert set(np.unique(outputs)) == {0, 0.25}
    assert outputs.reshape(2, -1).any(axis=1).all()


def test_output_that_is_no_number_is_a_failure(tmp_path: Path) -> None:
    """A way of running that gives NaN is not compared, and says so."""
    network = write_model(tmp_path, "batch = batch * np.nan")
    *_, last = measure(ask(tmp_path, network))
    assert last == {"failure": "the output contains NaN or infinity"}


def test_an_inspection_tells_what_is_there(tmp_path: Path) -> None:
    """Device, memory, arithmetic and divisor are known before anything is measured."""
    first, last = inspect(ask(tmp_path, IDENTITY))
    assert first["device"] == "cpu"
    assert first["framework"] == "identity"
    assert 0 < first["idle_bytes"] < first["memory_bytes"]
    assert set(first["dtypes"]) - {"bfloat16"} == {"float32"}
    assert list(first["divisor"]) == [1, 1, 1]
    assert last == {"whole_patch": []}


# --- what is recommended -------------------------------------------------------------------------


def row(seconds: float = 1.0, **more: Any) -> Measurement:
    """Return a good measurement."""
    values: dict[str, Any] = {"memory_bytes": 10, "largest": 0, "percentile_999": 0, "mean": 0}
    candidate = more.pop("candidate", Candidate(SIZE, SIZE))
    return Measurement(candidate, Zyx(2, 4, 4), seconds, **values | more)


def tuning(*rows: Measurement) -> Tuning:
    """Return the tuning that found these."""
    return Tuning("cpu", "cpu AVX2", "pytorch", 100, 0.01, (), list(rows))


def test_the_fastest_within_memory_and_tolerance_is_the_best() -> None:
    """Faster ones that fail, take too much or err too much are passed over, and named."""
    good, slow = row(1.0), row(2.0)
    wrong, large = row(0.1, percentile_999=0.02), row(0.2, memory_bytes=101)
    broken, unknown = row(0.3, failure="died"), row(0.4, percentile_999=None)
    found = tuning(slow, wrong, large, good, broken, unknown)
    assert found.best is good
    assert found.fastest is wrong
    assert tuning(slow, good).fastest is None
    assert tuning(wrong, broken).best is None
    assert tuning().best is None


def test_of_equally_fast_ones_the_most_exact_is_the_best() -> None:
    """Within the noise of timing nobody should pay with exactness."""
    exact = row(1.0)
    assert tuning(row(0.97, percentile_999=0.001), exact).best is exact
    faster = row(0.9, percentile_999=0.001)
    assert tuning(faster, exact).best is faster


def test_speed_counts_what_a_patch_adds() -> None:
    """Voxels a second are those of the stride, and hours those of all patches of a volume."""
    candidate = Candidate(SIZE, SIZE - 2, batch_size=4)
    found = row(3600.0, candidate=candidate)
    assert found.voxels_per_second == 4 * (6 - 2) * (14 - 4) ** 2 / 3600
    # 6, 14, 14 at stride 4, 10, 10: 2 x 3 x 3 patches in forwards of 4.
    assert found.hours(Zyx(10, 34, 34)) == 5
    assert replace(found, seconds=None).voxels_per_second == 0
    assert replace(found, seconds=None).hours(SIZE) is None


# --- the whole search, in real processes ---------------------------------------------------------


@pytest.mark.long
def test_a_candidate_that_dies_is_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A killed process, and an exception, cost a row each; what works is recommended."""
    monkeypatch.setattr(tune_module, "FACTORS", ((1, 2, 2), (2, 1, 1)))
    body = (
        "if len(batch) == 2: os.kill(os.getpid(), 9)\n"
        "        if batch.shape[-1] == 32: raise ValueError('no such size')\n"
        "        print('noise on stdout')"
    )
    seen: list[Measurement] = []
    found = tune(write_model(tmp_path, body), **SMALL, seconds=100, on_measured=seen.append)
    assert seen == found.measurements
    assert found.complete
    assert found.whole_patch == ()
    by_candidate = {(m.candidate.batch_size, m.candidate.input_patch_size): m for m in seen}
    base = by_candidate[1, SIZE]
    assert base.failure is None
    assert base.percentile_999 == 0
    killed = by_candidate[2, SIZE]
    assert killed.seconds is None
    assert killed.failure == "killed by SIGKILL, probably for lack of memory"
    refused = by_candidate[1, Zyx(8, 32, 32)]
    assert "ValueError: no such size" in str(refused.failure)
    taller = by_candidate[1, Zyx(16, 16, 16)]
    assert taller.failure is None
    assert found.best in (base, taller)


@pytest.mark.long
def test_what_would_not_fit_is_not_run() -> None:
    """Candidates far beyond the memory are foretold, not tried, and none is recommended."""
    found = tune(IDENTITY, **SMALL, memory_bytes=1)
    first, *others = found.measurements
    assert first.failure is None
    assert any(m.candidate.batch_size == 2 for m in others)
    # Four of a quarter of the size are as many voxels at a time, and are tried.
    small = Zyx(8, 8, 8)
    assert [m.failure for m in others if m.candidate == Candidate(small, small, batch_size=4)] == [
        None
    ]
    larger = [m for m in others if m.candidate.input_voxels > SIZE.product()]
    assert all(str(m.failure).startswith("not measured: would need about") for m in larger)
    assert found.best is None
    assert found.fastest is not None


@pytest.mark.long
def test_the_budget_is_kept(tmp_path: Path) -> None:
    """A candidate without end is stopped, and the search ends in time with what it has."""
    # A busy machine starts and ends processes late.
    begin = monotonic()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)
    budget, busy_s = 15.0 + 5 * (monotonic() - begin), 60.0
    begin = monotonic()
    found = tune(
        write_model(tmp_path, "if len(batch) > 1: time.sleep(1000)"), **SMALL, seconds=budget
    )
    assert monotonic() - begin < budget + busy_s
    assert found.best is not None
    assert found.best.candidate.batch_size == 1
    assert not any(m.seconds for m in found.measurements if m.candidate.batch_size > 1)


def test_a_network_that_does_not_end_is_an_error(tmp_path: Path) -> None:
    """Where not one forward ends in time, that is said in one sentence."""
    network = write_model(tmp_path, "time.sleep(1000)")
    begin = monotonic()
    with pytest.raises(ModelError, match="not finished after 4 s; raise --seconds"):
        tune(network, **SMALL, seconds=4)
    assert monotonic() - begin < 64


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        ({"device": "tpu"}, OptionError, "device 'tpu' is not one of auto"),
        ({"framework": "universal", "model": "none.py"}, ModelError, "none.py does not exist"),
        ({"framework": "pytorch"}, OptionError, "needs a network; give --convnet-model"),
    ],
)
def test_errors_are_those_of_inference(change: dict[str, Any], kind: Any, said: str) -> None:
    """What is wrong with network or device is said as `inference` says it, of the same type."""
    with pytest.raises(kind, match=said):
        tune(IDENTITY | change, **SMALL)


@pytest.mark.long
def test_sizes_are_checked_first() -> None:
    """An overlap as large as the patch is refused before any process starts."""
    with pytest.raises(OptionError, match="must be smaller than output patch"):
        tune(IDENTITY, input_patch_size=SIZE, output_patch_overlap=SIZE)

"""Memory is foretold: parts by name, and the sum is what a run then takes."""

import json
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rigs.variants import gate_runs

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.inference.activations import Activations
from chunkflow_py.inference.grid import PatchGeometry
from chunkflow_py.inference.memory import (
    Workload,
    describe_bytes,
    engine_workspace,
    forecast,
)
from chunkflow_py.inference.settings import EngineSettings

PATCH, OVERLAP = Zyx(20, 256, 256), Zyx(4, 64, 64)
SETTINGS = EngineSettings(PatchGeometry(PATCH, PATCH, OVERLAP), num_output_channels=3)
WORKLOAD = Workload(
    settings=SETTINGS,
    activations=Activations(500_000_000, PATCH.product()),
    weight_bytes=7_000_000,
    input_size=Zyx(72, 896, 896),
    output_size=Zyx(64, 768, 768),
    resident_bytes=300_000_000,
)

# Runs an engine in a process of its own; prints what was foretold and what it took, in bytes.
SCRIPT = """
import json, sys
import numpy as np, torch
from chunkflow_py.core.allocator import apart_from_heap, keep_freed_memory
keep_freed_memory()
from chunkflow_py import BoundingBox, Zyx
from chunkflow_py.inference import Engine, EngineSettings, PatchGeometry, create_backend
from chunkflow_py.inference.activations import Activations, peak_activations
from chunkflow_py.inference.backends.fold import fold_batch_norm
from chunkflow_py.inference.memory import Workload, forecast
from chunkflow_py.inference.models import create_model

def peak_bytes():
    # getrusage would tell of the process that started this one if that was larger.
    for line in open("/proc/self/status"):
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024

case = json.loads(sys.argv[1])
patch, size = Zyx.of(case["patch"]), Zyx.of(case["size"])
overlap = patch // 5
settings = EngineSettings(PatchGeometry(patch, patch, overlap), output_dtype=case["output_dtype"])
weights, maps = 0, Activations(0, 1)
if case["framework"] == "pytorch":
    network = create_model("rsunet", 1, 3)
    fold_batch_norm(network, (1, 1, *patch))
    maps = peak_activations(network, (1, 1, *patch))
    weights = sum(parameter.nbytes for parameter in network.parameters())
    del network
backend = create_backend(
    case["framework"], model="rsunet", input_patch_size=patch, output_patch_size=patch, device="cpu"
)
expected = forecast(Workload(settings, maps, weights, size, size))
image = np.full(size, 100, np.uint8)
with apart_from_heap(), torch.inference_mode():
    backend(torch.zeros((1, 1, *patch)))
engine = Engine(backend, settings)
engine.run(image, BoundingBox.from_size((0, 0, 0), size))
engine.close()
peak = peak_bytes()
print(expected.host_bytes, peak, expected.workload.resident_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory is measured as Linux tells it")
@pytest.mark.parametrize(
    "case",
    [
        {"framework": "pytorch", "patch": (16, 96, 96), "size": (16, 96, 173)},
        {"framework": "identity", "patch": (20, 128, 128), "size": (60, 512, 512)},
    ],
    ids=["rsunet", "identity"],
)
@pytest.mark.parametrize("output_dtype", gate_runs(["float32", "uint8"], "uint8"))
@pytest.mark.long
def test_what_is_foretold_is_what_it_takes(case, output_dtype):
    """The peak of a process is within 15 % of what was foretold when its network was loaded."""
    line = json.dumps(case | {"output_dtype": output_dtype})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, line], capture_output=True, text=True, check=True
    )
    expected, peak, before = map(int, done.stdout.split())
    assert expected == pytest.approx(peak, rel=0.15)
    # Not because next to nothing was added to what the libraries take.
    assert peak - before > 40_000_000
    assert expected - before == pytest.approx(peak - before, rel=0.5)


def test_parts_have_names_and_make_the_sum():
    """Each part stands by its name; on the CPU all of them are of the host."""
    found = forecast(WORKLOAD)
    assert list(found.host) == [
        *("interpreter and libraries", "network weights", "network activations"),
        *("input chunk", "output chunk", "engine workspace", "batches"),
    ]
    assert found.host_bytes == sum(found.host.values())
    assert (found.device, found.device_bytes) == ({}, 0)
    assert found.host["input chunk"] == 72 * 896 * 896
    assert found.host["output chunk"] == 3 * 4 * 64 * 768 * 768
    assert found.host["batches"] == 2 * 4 * PATCH.product()


def test_a_gpu_takes_its_parts():
    """Weights, activations and sums are on the device; chunks and pinned batches on the host."""
    found = forecast(replace(WORKLOAD, device=torch.device("cuda")))
    assert list(found.host) == [
        *("interpreter and libraries", "input chunk", "output chunk", "batches"),
    ]
    assert list(found.device) == [
        *("network weights", "network activations", "engine workspace", "batches"),
    ]
    assert found.device["network weights"] == 7_000_000
    assert found.device_bytes > 500_000_000


def test_more_of_everything_takes_more():
    """Type, batch, augmentation and tasks in flight all count."""
    base = forecast(WORKLOAD)

    def settings(**changes):
        return forecast(replace(WORKLOAD, settings=replace(SETTINGS, **changes)))

    smaller = settings(output_dtype="uint8")
    assert smaller.host["output chunk"] * 4 == base.host["output chunk"]
    assert settings(augment=True).host["batches"] > base.host["batches"]
    double = forecast(WORKLOAD.with_batch_size(2))
    for part in ("network activations", "batches"):
        assert double.host[part] == 2 * base.host[part]
    others = replace(WORKLOAD, other_bytes=10**9)
    assert forecast(others).host_bytes == base.host_bytes + 10**9
    half = others.with_output_size(Zyx(64, 768, 384))
    assert forecast(half).host["other operators"] == 10**9 // 2


def test_the_workspace_does_not_grow_with_depth():
    """A chunk of four times the depth is blended in the same memory."""
    shallow = engine_workspace(SETTINGS.geometry, 3, Zyx(64, 1024, 1024))
    assert engine_workspace(SETTINGS.geometry, 3, Zyx(260, 1024, 1024)) <= 1.05 * shallow
    assert engine_workspace(SETTINGS.geometry, 3, Zyx(64, 1024, 2048)) > 1.5 * shallow


def test_it_is_told_in_a_line_and_in_a_table():
    """A person reads the sum, and then what it is made of."""
    found = forecast(WORKLOAD)
    total = describe_bytes(found.host_bytes)
    assert str(found).startswith(f"{total} of host memory (interpreter and libraries 0.3")
    assert "\n" not in str(found)
    lines = found.table().splitlines()
    assert lines[0].split() == ["host", *total.split()]
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 1 + len(found.host)


def test_what_is_unknown_is_said_to_be():
    """Without the activations the rest is told as a lower bound."""
    found = forecast(replace(WORKLOAD, activations=None))
    assert not found.complete
    assert str(found).startswith("at least ")
    assert str(found).endswith("and the network's activations")
    assert found.table().splitlines()[-1].split() == ["network", "activations", "unknown"]


@pytest.mark.parametrize(
    ("size", "words"),
    [(99_900_000, "99.9 MB"), (10**8, "0.10 GB"), (10**12 - 10**9, "999.00 GB"),
     (3_024_057 * 10**9, "3.02 PB"), (2 * 10**12, "2.00 TB")],
)  # fmt: skip
def test_bytes_are_told_in_a_unit_that_suits_them(size, words):
    """From megabytes to petabytes."""
    assert describe_bytes(size) == words

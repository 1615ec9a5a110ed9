"""Memory is foretold: parts by name, and the sum is what a run then takes."""

from __future__ import annotations

import json
import logging
import os
import resource
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from rigs.variants import gate_runs

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.engine_settings import EngineSettings
from chunkflow_py.inference.memory_estimate import (
    Workload,
    available_device_bytes,
    available_host_bytes,
    check_fits,
    describe_bytes,
    engine_workspace,
    estimate_memory,
    largest_batch,
    lowered_batch,
    out_of_memory,
    resident_bytes,
    smaller_batch,
)
from chunkflow_py.inference.network_memory import Activations
from chunkflow_py.inference.patch_grid import PatchGeometry

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
from chunkflow_py.inference.network_memory import Activations, peak_activations
from chunkflow_py.inference.backends.fold_batch_norm import fold_batch_norm
from chunkflow_py.inference.memory_estimate import Workload, estimate_memory
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
expected = estimate_memory(Workload(settings, maps, weights, size, size))
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
    found = estimate_memory(WORKLOAD)
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
    found = estimate_memory(replace(WORKLOAD, device=torch.device("cuda")))
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
    base = estimate_memory(WORKLOAD)

    def settings(**changes):
        return estimate_memory(replace(WORKLOAD, settings=replace(SETTINGS, **changes)))

    smaller = settings(output_dtype="uint8")
    assert smaller.host["output chunk"] * 4 == base.host["output chunk"]
    assert settings(augment=True).host["batches"] > base.host["batches"]
    double = estimate_memory(WORKLOAD.with_batch_size(2))
    for part in ("network activations", "batches"):
        assert double.host[part] == 2 * base.host[part]
    others = replace(WORKLOAD, other_bytes=10**9)
    assert estimate_memory(others).host_bytes == base.host_bytes + 10**9
    half = others.with_output_size(Zyx(64, 768, 384))
    assert estimate_memory(half).host["other operators"] == 10**9 // 2


def test_the_workspace_does_not_grow_with_depth():
    """A chunk of four times the depth is blended in the same memory."""
    shallow = engine_workspace(SETTINGS.geometry, 3, Zyx(64, 1024, 1024))
    assert engine_workspace(SETTINGS.geometry, 3, Zyx(260, 1024, 1024)) <= 1.05 * shallow
    assert engine_workspace(SETTINGS.geometry, 3, Zyx(64, 1024, 2048)) > 1.5 * shallow


def test_it_is_told_in_a_line_and_in_a_table():
    """A person reads the sum, and then what it is made of."""
    found = estimate_memory(WORKLOAD)
    total = describe_bytes(found.host_bytes)
    assert str(found).startswith(f"{total} of host memory (interpreter and libraries 0.3")
    assert "\n" not in str(found)
    lines = found.table().splitlines()
    assert lines[0].split() == ["host", *total.split()]
    assert len({len(line) for line in lines}) == 1
    assert len(lines) == 1 + len(found.host)


def test_what_is_unknown_is_said_to_be():
    """Without the activations the rest is told as a lower bound."""
    found = estimate_memory(replace(WORKLOAD, activations=None))
    assert not found.complete
    assert str(found).startswith("at least ")
    assert str(found).endswith("plus the network's activations")
    assert found.table().splitlines()[-1].split() == ["network", "activations", "unknown"]


@pytest.mark.parametrize(
    ("size", "words"),
    [(99_900_000, "99.9 MB"), (10**8, "0.10 GB"), (10**12 - 10**9, "999.00 GB"),
     (3_024_057 * 10**9, "3.02 PB"), (2 * 10**12, "2.00 TB")],
)  # fmt: skip
def test_bytes_are_told_in_a_unit_that_suits_them(size, words):
    """From megabytes to petabytes."""
    assert describe_bytes(size) == words


LARGE_SETTINGS = EngineSettings(PatchGeometry(PATCH, PATCH, Zyx(4, 64, 64)), batch_size=8)
LARGE = Workload(
    settings=LARGE_SETTINGS,
    activations=Activations(8 * 500_000_000, 8 * PATCH.product()),
    weight_bytes=7_000_000,
    input_size=Zyx(128, 2048, 2048),
    output_size=Zyx(128, 2048, 2048),
    divisor=Zyx(1, 16, 16),
    resident_bytes=300_000_000,
)
NEED = estimate_memory(LARGE).host_bytes
GPU = replace(LARGE, device=torch.device("cuda"))
GB = 1_000_000_000


def test_what_fits_is_let_through(caplog):
    """Nothing is said of a run with room to spare."""
    check_fits(estimate_memory(LARGE), 2 * NEED)
    assert not caplog.records


def test_what_nearly_fills_memory_is_warned_of(caplog):
    """The forecast may be a little wrong, so a run that hardly fits is let through with a word."""
    with caplog.at_level(logging.WARNING):
        check_fits(estimate_memory(LARGE), int(1.05 * NEED))
    assert "nearly all" in caplog.text


def test_what_does_not_fit_is_refused_with_what_would():
    """Both numbers, and the largest chunk, batch and patch that fit; each of them does."""
    limit = int(0.75 * NEED)
    with pytest.raises(OptionError) as raised:
        check_fits(estimate_memory(LARGE), limit)
    text = str(raised.value)
    assert f"{NEED / 1e9:.2f} GB of host memory" in text
    assert f"{limit / 1e9:.2f} GB are available" in text
    chunk = Zyx(*map(int, text.partition("chunks of (")[2].partition(")")[0].split(",")))
    batch = int(text.partition("--batch-size ")[2].partition(",")[0])
    patch = Zyx(*map(int, text.partition("--input-patch-size ")[2].split()))
    geometry = PatchGeometry(patch, patch, LARGE_SETTINGS.geometry.output_patch_overlap)
    for other in (
        LARGE.with_output_size(chunk),
        LARGE.with_batch_size(batch),
        LARGE.with_patch(geometry),
    ):
        assert 0.5 * limit < estimate_memory(other).host_bytes <= limit
    assert estimate_memory(LARGE.with_batch_size(batch + 1)).host_bytes > limit
    assert not any(patch % LARGE.divisor)
    assert not any(chunk % LARGE_SETTINGS.geometry.stride)


def test_what_never_fits_is_said_to_never_fit():
    """No size is named that would not do."""
    with pytest.raises(
        OptionError, match="use smaller chunks, smaller batches and smaller patches together"
    ):
        check_fits(estimate_memory(LARGE), 200_000_000)


def test_an_unknown_network_is_refused_only_by_the_rest():
    """What is known not to fit is refused; the rest is not guessed."""
    unknown = replace(LARGE, activations=None)
    need = estimate_memory(unknown).host_bytes
    check_fits(estimate_memory(unknown), 2 * need)
    with pytest.raises(OptionError, match="at least"):
        check_fits(estimate_memory(unknown), need // 2)


def test_a_gpu_is_checked_beside_its_host():
    """Whichever of the two memories is too small is named."""
    need = estimate_memory(GPU).device_bytes
    check_fits(estimate_memory(GPU), 100 * GB, 2 * need)
    with pytest.raises(OptionError, match="of device memory"):
        check_fits(estimate_memory(GPU), 100 * GB, need // 2)
    with pytest.raises(OptionError, match="of host memory"):
        check_fits(estimate_memory(GPU), GB, 2 * need)


def test_the_memory_of_this_machine_is_asked_for():
    """Without numbers the system is asked; nothing here has 100 TB."""
    with pytest.raises(OptionError, match="are available"):
        check_fits(estimate_memory(replace(LARGE, weight_bytes=10**14)))


def test_the_largest_batch_is_the_largest():
    """It fits, and one more patch does not; 0 if not even one does."""
    need = estimate_memory(GPU.with_batch_size(3)).device_bytes
    assert largest_batch(GPU, 100 * GB, need) == 3
    assert largest_batch(GPU, 100 * GB, 100 * GB) == 8
    assert largest_batch(GPU, 100 * GB, GB // 10) == 0


@pytest.mark.parametrize(
    ("failed", "foretold", "smaller"),
    [(8, 3, 3), (8, 7, 4), (8, 0, 4), (2, None, 1), (1, 1, None)],
)
def test_after_a_batch_that_did_not_fit_a_smaller_one_is_tried(failed, foretold, smaller):
    """As foretold, but at most half; nothing is smaller than one patch."""
    assert smaller_batch(failed, foretold) == smaller


def test_what_is_said_when_memory_ends():
    """The batch that fits, and how to go on with it; and that results are not quite the same."""
    text = out_of_memory(torch.device("cuda:1"), 8, 4)
    assert "cuda:1" in text
    assert "--batch-size 8" in text
    assert "--batch-size 4, or --lower-batch" in text
    assert "--input-patch-size" in out_of_memory(torch.device("cuda"), 1, None)
    assert "can change rounding" in lowered_batch(8, 4)


MEGABYTE = 1 << 20
HELD = 100 * os.sysconf("SC_PAGE_SIZE")


def write(path, text):
    """Write a file of a system that is only pretended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


@pytest.fixture
def proc(tmp_path):
    """A kernel with 800 MB to give, and a process that holds 100 pages."""
    folder = tmp_path / "proc"
    write(folder / "self/statm", "5000 100 30 1 0 40 0\n")
    kib = 800 * 1024
    write(folder / "meminfo", f"MemTotal: 9999999 kB\nMemAvailable: {kib} kB\nHugePages_Free: 0\n")
    return folder


def test_without_limits_it_is_what_the_kernel_can_give(proc, tmp_path):
    """A machine without control groups has what MemAvailable says, and what is held already."""
    assert available_host_bytes(proc, tmp_path / "none") == 800 * MEGABYTE + HELD


@pytest.mark.parametrize("place", ["", "job/step"], ids=["of a container", "of a job"])
@pytest.mark.parametrize(
    ("base", "line", "names"),
    [
        ("", "0::/", ("memory.max", "memory.current")),
        ("memory", "4:memory:/", ("memory.limit_in_bytes", "memory.usage_in_bytes")),
    ],
    ids=["version 2", "version 1"],
)
def test_the_limit_of_a_control_group_counts(proc, tmp_path, base, line, names, place):
    """What is left below the limit, without what is only cached, is all there is."""
    write(proc / "self/cgroup", f"{line}job/step\n3:cpu:/other\n")
    group = tmp_path / "cgroup" / base
    write(group / place / names[0], f"{500 * MEGABYTE}\n")
    write(group / place / names[1], f"{400 * MEGABYTE}\n")
    write(group / place / "memory.stat", f"anon 7\ninactive_file {50 * MEGABYTE}\n")
    assert available_host_bytes(proc, tmp_path / "cgroup") == 150 * MEGABYTE + HELD


def test_the_limit_around_a_group_counts_too(proc, tmp_path):
    """A job without a limit of its own has that of its user's slice."""
    write(proc / "self/cgroup", "0::/slice/job\n")
    group = tmp_path / "cgroup"
    write(group / "slice/job/memory.max", "max\n")
    write(group / "slice/job/memory.current", "0\n")
    write(group / "slice/memory.max", f"{300 * MEGABYTE}\n")
    write(group / "slice/memory.current", f"{100 * MEGABYTE}\n")
    assert available_host_bytes(proc, group) == 200 * MEGABYTE + HELD


def test_a_system_that_does_not_tell_is_not_guessed_at(tmp_path):
    """Without /proc there is no answer, and no error."""
    assert available_host_bytes(tmp_path, tmp_path) is None
    assert resident_bytes(tmp_path) == 0


def test_what_the_process_holds_is_less_than_its_peak():
    """The unit is bytes."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 10 * MEGABYTE < resident_bytes() <= peak * 1.05


def test_the_cpu_has_no_memory_of_its_own():
    """There is nothing to ask."""
    assert available_device_bytes(torch.device("cpu")) is None

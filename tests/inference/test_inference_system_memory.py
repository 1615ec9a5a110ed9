"""The memory there is: of the system, or of the container or job."""

import os
import resource

import pytest
import torch

from chunkflow_py.inference.system_memory import (
    available_device_bytes,
    available_host_bytes,
    resident_bytes,
)

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

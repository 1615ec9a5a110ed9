"""The CPU: what it can, how many threads may use it, the allocator, and a timed convolution."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.allocator import keeps_freed_memory
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.planning.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
# flag of /proc/cpuinfo -> what people call it
_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "bfloat16 (AVX-512)",
    "amx_bf16": "bfloat16 (AMX)",
}
# Of the convolution that is timed: channels in and out, extent of the image (z, y, x).
_SIZE = 16, (16, 96, 96)
_GPU_SIZE = 32, (32, 256, 256)
_KERNEL = 27
LARGEST_ERROR = 1e-3  # relative; float32 with TF32 has 1e-3 of noise at most


def check_processor(proc: Path = _PROC) -> Iterator[Finding]:
    """Say what the CPU can.

    Args:
        proc: where the kernel tells of it.
    """
    model, flags = _cpu(proc)
    known = ", ".join(name for flag, name in _FEATURES.items() if flag in flags)
    if not flags:
        yield Finding("processor", "ok", f"{model or 'a CPU'}, of which the system tells no more")
    elif "avx2" in flags:
        bfloat16 = " and --dtype bfloat16" if "amx_bf16" in flags else ""
        yield Finding("processor", "ok", f"{model}: {known}{bfloat16}")
    else:
        text = f"{model} has no AVX2: networks run several times slower than on CPUs since 2013"
        yield Finding("processor", "note", text, "use another machine, or another virtual CPU type")


def check_threads(cgroup: Path = _CGROUP) -> Iterator[Finding]:
    """Compare the threads that a network would use with the cores that it may use.

    Args:
        cgroup: where the kernel tells of control groups.
    """
    affinity: Any = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    machine, quota = os.cpu_count() or cores, _quota(cgroup)
    allowed = cores if quota is None else max(1, min(cores, round(quota)))
    of = f"{allowed} of {machine} cores" if allowed < machine else f"{machine} cores"
    said = os.environ.get("OMP_NUM_THREADS")
    if said is None and quota is not None and allowed < cores:
        text = (
            f"this container may use {quota:g} of {machine} cores; networks start {cores} threads"
        )
        yield Finding("threads", "note", text, f"export OMP_NUM_THREADS={allowed}")
    elif said is None:
        yield Finding("threads", "ok", f"networks may use {of}")
    elif not is_digits(said) or int(said) < 1:
        text = f"OMP_NUM_THREADS is {said!r}, which is no number of threads"
        yield Finding("threads", "problem", text, f"export OMP_NUM_THREADS={allowed}, or unset it")
    elif int(said) < allowed:
        text = (
            f"OMP_NUM_THREADS={said}: a network on the CPU uses {said} thread(s), and may use {of}"
        )
        remedy = "unset OMP_NUM_THREADS, unless several workers share this machine"
        yield Finding("threads", "note", text, remedy)
    elif int(said) > allowed:
        text = f"OMP_NUM_THREADS={said}, and this process may use {of}: threads wait for each other"
        yield Finding("threads", "note", text, f"export OMP_NUM_THREADS={allowed}")
    else:
        yield Finding("threads", "ok", f"OMP_NUM_THREADS={said}, of {of}")


def check_allocator() -> Iterator[Finding]:
    """Say whether memory that a network frees stays with the process."""
    preloaded = [
        name
        for name in ("jemalloc", "tcmalloc", "mimalloc")
        if name in os.environ.get("LD_PRELOAD", "")
    ]
    if preloaded:
        text = f"LD_PRELOAD replaces the allocator by {preloaded[0]}, which has settings of its own"
        remedy = "measure without it: networks are tuned for the one of the system"
        yield Finding("allocator", "note", text, remedy)
    elif keeps_freed_memory():
        yield Finding("allocator", "ok", "freed memory is kept for the next patch")
    else:
        text = "the C library is not glibc: freed memory goes back, and networks may be slower"
        yield Finding("allocator", "note", text)


def check_convolution() -> Iterator[Finding]:
    """Time one convolution on the CPU, and compare it with the same in double precision."""
    try:
        import torch
    except ImportError:
        return  # `check_packages` says it
    seconds, flops, error = time_convolution(torch.device("cpu"))
    threads = torch.get_num_threads()
    yield judged("convolution", f"the CPU with {threads} thread(s)", flops / seconds, error)


def judged(check: str, what: str, speed: float, error: float) -> Finding:
    """Return what there is to say of a timed convolution.

    Args:
        check: that it belongs to.
        what: has computed it.
        speed: operations (multiplications and additions) in a second.
        error: relative to the largest value, against the CPU in double precision.
    """
    if not error <= LARGEST_ERROR:  # also NaN
        text = f"{what} computes a convolution with a relative error of {error:.2g}"
        return Finding(check, "problem", text, "do not use it: the device or PyTorch is defective")
    unit = f"{speed / 1e12:.3g} T" if speed >= 1e12 else f"{speed / 1e9:.3g} G"
    return Finding(check, "ok", f"{what}: {unit}FLOP/s in 3x3x3 convolutions, float32")


def time_convolution(device: torch.device) -> tuple[float, float, float]:
    """Time a 3x3x3 convolution in float32.

    Returns:
        Seconds of the fastest of three, operations that it takes, and the largest error of a small
        one against the CPU in double precision, relative to the largest value.
    """
    import torch

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    channels, size = _GPU_SIZE if device.type == "cuda" else _SIZE
    generator = torch.Generator().manual_seed(0)
    image = torch.rand((1, channels, *size), generator=generator).to(device)
    kernel = torch.rand((channels, channels, 3, 3, 3), generator=generator).to(device)
    convolve = torch.nn.functional.conv3d
    with torch.inference_mode():
        small = image[..., :6, :8, :8].contiguous()
        reference = convolve(small.cpu().double(), kernel.cpu().double())
        difference = convolve(small, kernel).cpu().double() - reference
        seconds = []
        for _ in range(4):  # of which the first sets up
            sync()
            start = time.perf_counter()
            convolve(image, kernel, padding=1)
            sync()
            seconds.append(time.perf_counter() - start)
    voxels = size[0] * size[1] * size[2]
    error = float(difference.abs().max() / reference.abs().max())
    return min(seconds[1:]), 2.0 * voxels * channels * channels * _KERNEL, error


def _cpu(proc: Path) -> tuple[str, set[str]]:
    """Return the name of the CPU and its flags, as far as the system tells them."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in (proc / "cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    return found.get("model name", ""), set(found.get("flags", "").split())


def _quota(cgroup: Path) -> float | None:
    """Return how many cores a container may use at a time, or ``None`` if it is not limited."""
    with suppress(OSError, ValueError):
        most, each = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if most == "max" else int(most) / int(each)
    with suppress(OSError, ValueError):  # control groups, version 1
        folder = cgroup / "cpu"
        limit = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return limit / period if limit > 0 else None
    return None

"""Check this machine: memory, disk, limits, CPU, threads, allocator, GPUs, a timed convolution."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.allocator import keeps_freed_memory
from chunkflow_py.core.host_memory import available_host_bytes, describe_bytes
from chunkflow_py.core.plain_text import is_digits
from chunkflow_py.planning.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    from chunkflow_py.inference.backends.convolution_check import Convolution

LITTLE_MEMORY = 4_000_000_000  # needed by Python and a typical network with its patches
LITTLE_DISK = 10_000_000_000
NO_DISK = 1_000_000_000
LITTLE_SHARED = 1_000_000_000  # the default of containers is 64 MB
SHARED = Path("/dev/shm")  # noqa: S108 a device, not a temporary file
# a worker opens connections, pipes to its processes, and files of volumes
FEW_FILES, NO_FILES = 1024, 256
_PROC = Path("/proc")
_CGROUP = Path("/sys/fs/cgroup")
# flag of /proc/cpuinfo -> common name
_FEATURES = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "bfloat16 (AVX-512)",
    "amx_bf16": "bfloat16 (AMX)",
}
# the timed convolution: channels in and out, extent of the image (z, y, x)
_SIZE = 16, (16, 96, 96)
_GPU_SIZE = 32, (32, 256, 256)
_KERNEL = 27
# the compared convolutions: channels, extent of the image and of the kernel (z, y, x)
_COMPARED = (16, (8, 16, 16), (3, 3, 3))
_GPU_COMPARED = (
    (32, (32, 256, 256), (3, 3, 3)),
    (32, (32, 256, 256), (1, 3, 3)),
    (32, (32, 256, 256), (3, 1, 1)),
    (16, (124, 1280, 720), (1, 3, 3)),  # wrong in bfloat16 with cuDNN 9.8 to 9.10
)
_SLOW_HALF = 1.5  # seconds in half precision per second in float32 that are worth a note
LARGEST_ERROR = 1e-3  # relative; float32 with TF32 has at most 1e-3
_SYS = Path("/sys")
_NVIDIA = "0x10de"  # vendor on the PCI bus
_DISPLAY = "0x03"  # first byte of the PCI class
_ON_CPU = "networks run on the CPU"


def check_memory() -> Iterator[Finding]:
    """Report the available memory of this machine or container."""
    free = available_host_bytes()
    if free is None:
        yield Finding("memory", "ok", "the system does not report its available memory")
    elif free < LITTLE_MEMORY:
        text = (
            f"{describe_bytes(free)} available, but a network with its patches usually needs "
            "several GB"
        )
        remedy = "use small patches, --ahead 0, or a machine with more memory"
        yield Finding("memory", "note", text, remedy)
    else:
        yield Finding("memory", "ok", f"{describe_bytes(free)} available")


def check_disk() -> Iterator[Finding]:
    """Check the folders that any pipeline may write to: working, temporary and cache folders."""
    yield check_folder("the working folder", Path.cwd(), needed=False)
    temporary = os.environ.get("TMPDIR")
    # if TMPDIR does not work, Python uses another folder
    if temporary and not Path(temporary).is_dir():
        text = (
            f"TMPDIR is {temporary}, which is not a folder; {tempfile.gettempdir()} is used instead"
        )
        yield Finding(
            "disk", "problem", text, "create this folder, or set TMPDIR to another folder"
        )
    else:
        folder = Path(temporary or tempfile.gettempdir())
        yield check_folder("the folder for temporary files", folder)
    for what, folder in _caches().items():
        yield check_folder(what, folder)


def check_folder(what: str, folder: Path, *, needed: bool = True) -> Finding:
    """Check that a folder is writable, and report its free space.

    Args:
        what: description of the folder for the finding, such as ``the working folder``.
        folder: path of the folder; if it does not exist, the nearest existing parent is checked.
        needed: whether chunkflow must be able to write to the folder. If this is false, a folder
            that is not writable is reported as a note instead of a problem.
    """
    where = f"{what} {folder}"
    try:
        there = next((each for each in (folder, *folder.parents) if each.exists()), folder)
        free = shutil.disk_usage(there).free
        with tempfile.TemporaryFile(dir=there) as file:
            file.write(b"\0" * 65536)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        level, why = "problem" if needed else "note", error.strerror or type(error).__name__
        remedy = "make space, change the permissions of the folder, or use another folder"
        return Finding("disk", level, f"{where} cannot be written to: {why}", remedy)  # type: ignore[arg-type]
    text = f"{where} has {describe_bytes(free)} free"
    if free < NO_DISK:
        return Finding("disk", "problem", text, "make space, or use another folder")
    if free < LITTLE_DISK:
        return Finding("disk", "note", text, "chunks saved to this folder may need more space")
    return Finding("disk", "ok", text)


def _caches() -> dict[str, Path]:
    from chunkflow_py.inference.backends.conversion_cache import cache_folder as converted
    from chunkflow_py.run.run_directory import cache_folder as files

    return {"the cache for files of runs": files(), "the cache of converted networks": converted()}


def check_shared_memory(folder: Path = SHARED) -> Iterator[Finding]:
    """Check that shared memory, which Dask and PyTorch use, is writable, and report its size.

    Args:
        folder: mount point of the shared memory.
    """
    if not folder.is_dir():
        yield Finding("shared-memory", "ok", f"this system has no {folder}")
        return
    tried = check_folder("shared memory", folder)
    total = shutil.disk_usage(folder).total
    if "cannot be written" in tried.text:
        remedy = f"run mount -t tmpfs tmpfs {folder}, or docker run with --shm-size 2g"
        yield Finding("shared-memory", "problem", tried.text, remedy)
    elif total < LITTLE_SHARED:
        text = (
            f"{folder} has only {describe_bytes(total)}; Dask and data loaders of PyTorch may need "
            "more"
        )
        remedy = "start the container with docker run --shm-size 2g, or --ipc host"
        yield Finding("shared-memory", "note", text, remedy)
    else:
        yield Finding("shared-memory", "ok", f"{folder} has {describe_bytes(total)}")


def check_open_files() -> Iterator[Finding]:
    """Check the limit on the number of files that a process may have open at the same time."""
    try:
        import resource
    except ImportError:  # not on Unix
        yield Finding("open-files", "ok", "this system reports no limit on open files")
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft in (-1, resource.RLIM_INFINITY) or soft >= FEW_FILES:
        yield Finding("open-files", "ok", f"a process may open {soft} files at a time")
        return
    text = (
        f"a process may open {soft} files at a time, but a worker needs up to {FEW_FILES} for its "
        "files and connections"
    )
    may = hard in (-1, resource.RLIM_INFINITY) or hard >= FEW_FILES
    remedy = (
        f"ulimit -n {FEW_FILES}"
        if may
        else f"ask an administrator to raise the hard limit of {hard}"
    )
    yield Finding("open-files", "problem" if soft < NO_FILES else "note", text, remedy)


# --- CPU ------------------------------------------------------------------------------------------


def check_processor(proc: Path = _PROC) -> Iterator[Finding]:
    """Report model and vector instructions of the CPU.

    Args:
        proc: mount point of the proc file system, in which the kernel describes the CPU.
    """
    model, flags = _cpu(proc)
    known = ", ".join(name for flag, name in _FEATURES.items() if flag in flags)
    if not flags:
        yield Finding(
            "processor",
            "ok",
            f"{model or 'a CPU'}; the system does not report its vector instructions",
        )
    elif "avx2" in flags:
        bfloat16 = "; --dtype bfloat16 runs in hardware" if "amx_bf16" in flags else ""
        yield Finding("processor", "ok", f"{model}: {known}{bfloat16}")
    else:
        text = (
            f"{model} has no AVX2 instructions, so networks are several times slower than on CPUs "
            "made since 2013"
        )
        yield Finding(
            "processor", "note", text, "use another machine, or a virtual machine with another CPU"
        )


def check_threads(cgroup: Path = _CGROUP) -> Iterator[Finding]:
    """Compare the number of threads that a network would use with the number of available cores.

    Args:
        cgroup: folder in which the kernel reports the limits of control groups (containers).
    """
    affinity: Any = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity else os.cpu_count() or 1
    machine, quota = os.cpu_count() or cores, _quota(cgroup)
    allowed = cores if quota is None else max(1, min(cores, round(quota)))
    of = f"{allowed} of {machine} cores" if allowed < machine else f"{machine} cores"
    configured = os.environ.get("OMP_NUM_THREADS")
    if configured is None and quota is not None and allowed < cores:
        text = (
            f"this container may use {quota:g} of {machine} cores, but a network starts {cores} "
            "threads, which wait for each other"
        )
        yield Finding("threads", "note", text, f"export OMP_NUM_THREADS={allowed}")
    elif configured is None:
        yield Finding("threads", "ok", f"networks may use {of}")
    elif not is_digits(configured) or int(configured) < 1:
        text = f"OMP_NUM_THREADS is {configured!r}, which is not a number of threads"
        yield Finding("threads", "problem", text, f"export OMP_NUM_THREADS={allowed}, or unset it")
    elif int(configured) < allowed:
        text = (
            f"OMP_NUM_THREADS={configured}: a network on the CPU uses {configured} thread(s), "
            f"but could use {of}"
        )
        remedy = "unset OMP_NUM_THREADS, unless several workers share this machine"
        yield Finding("threads", "note", text, remedy)
    elif int(configured) > allowed:
        text = (
            f"OMP_NUM_THREADS={configured}, but this process may use only {of}, so the "
            "threads wait for each other"
        )
        yield Finding("threads", "note", text, f"export OMP_NUM_THREADS={allowed}")
    else:
        yield Finding("threads", "ok", f"OMP_NUM_THREADS={configured}; networks may use {of}")


def check_allocator() -> Iterator[Finding]:
    """Check whether the process keeps freed memory for reuse. Reuse makes networks faster."""
    preloaded = [
        name
        for name in ("jemalloc", "tcmalloc", "mimalloc")
        if name in os.environ.get("LD_PRELOAD", "")
    ]
    if preloaded:
        text = (
            f"LD_PRELOAD selects the allocator {preloaded[0]}, but chunkflow tunes only the "
            "allocator of glibc"
        )
        remedy = f"compare the speed with and without {preloaded[0]}"
        yield Finding("allocator", "note", text, remedy)
    elif keeps_freed_memory():
        yield Finding("allocator", "ok", "the process keeps freed memory for the next patch")
    else:
        text = (
            "the C library is not glibc, so freed memory returns to the system, and networks may "
            "be slower"
        )
        yield Finding("allocator", "note", text)


def check_convolution() -> Iterator[Finding]:
    """Time a convolution on the CPU; compare its result with the result in double precision."""
    try:
        import torch
    except ImportError:
        return  # `check_packages` reports this
    seconds, flops, error = time_convolution(torch.device("cpu"))
    threads = torch.get_num_threads()
    yield judge_convolution(
        "convolution", f"the CPU with {threads} thread(s)", flops / seconds, error
    )
    yield from compare_precisions("convolution", torch.device("cpu"), ["bfloat16"])


def judge_convolution(check: str, what: str, speed: float, error: float) -> Finding:
    """Return the finding on the speed and the error of a timed convolution.

    Args:
        check: name of the check that the finding belongs to.
        what: device that computed the convolution, for the finding.
        speed: number of multiplications and additions per second.
        error: largest absolute difference from the result of the CPU in double precision, divided
            by the largest absolute value of that result.
    """
    if not error <= LARGEST_ERROR:  # also NaN
        text = f"{what} computes a convolution with a relative error of {error:.2g}"
        return Finding(
            check, "problem", text, f"do not use {what}: the device or its PyTorch is faulty"
        )
    unit = f"{speed / 1e12:.3g} T" if speed >= 1e12 else f"{speed / 1e9:.3g} G"
    return Finding(check, "ok", f"{what}: {unit}FLOP/s in 3x3x3 convolutions, float32")


def compare_precisions(
    check: str, device: torch.device, precisions: list[str]
) -> Iterator[Finding]:
    """Check that a device computes convolutions correctly in several precisions.

    Args:
        check: name of the check that the findings belong to.
        device: device that computes the convolutions.
        precisions: any of ``float16``, ``bfloat16`` and ``TF32``. The convolutions use
            PyTorch's memory format ``channels_last_3d``, because networks use this format in these
            precisions.

    Yields:
        One problem for each precision with a wrong result. If other precisions remain, one more
        finding that lists these precisions and the versions of the libraries.
    """
    import torch

    from chunkflow_py.inference.backends.compute_profile import cuda_switches, describe_device
    from chunkflow_py.inference.backends.convolution_check import (
        Convolution,
        describe_libraries,
        error_within_memory,
        remedy_for,
        wrong_convolution,
    )

    name, right = describe_device(device), []
    for precision in precisions:
        tf32 = precision == "TF32"
        dtype = torch.float32 if tf32 else getattr(torch, precision)
        for case in _GPU_COMPARED if device.type == "cuda" else (_COMPARED,):
            convolution = Convolution.plain(*case, dtype, channels_last=True)
            if not _fits(convolution, device):
                continue
            with cuda_switches(tf32=tf32):
                error = error_within_memory(convolution, device)
            if not error <= convolution.tolerance():  # also NaN
                text = wrong_convolution(name, convolution, error)
                yield Finding(check, "problem", text, remedy_for(dtype, device, tf32=tf32))
                break
        else:
            right.append(precision)
    if right:
        text = f"{name}: 3D convolutions in {', '.join(right)} are correct with "
        yield Finding(check, "ok", f"{text}{describe_libraries()}")


def _fits(convolution: Convolution, device: torch.device) -> bool:
    """Return whether a GPU has enough free memory for a convolution and its workspace."""
    import torch

    if device.type != "cuda":
        return True
    voxels = convolution.image[2] * convolution.image[3] * convolution.image[4]
    needed = 4 * voxels * convolution.image[1] * convolution.dtype.itemsize
    return bool(needed < torch.cuda.mem_get_info(device)[0])


def judge_half_speed(
    check: str, what: str, precision: str, seconds: float, float32_s: float
) -> Finding | None:
    """Return a note if a convolution is much slower in half precision than in float32.

    Args:
        check: name of the check that the finding belongs to.
        what: device that computed the convolution, for the finding.
        precision: ``float16`` or ``bfloat16``.
        seconds: time of the convolution in this precision.
        float32_s: time of the convolution in float32, in seconds.
    """
    from chunkflow_py.inference.backends.convolution_check import describe_libraries

    if seconds <= _SLOW_HALF * float32_s:
        return None
    text = (
        f"{what}: 3x3x3 convolutions in {precision} take {seconds / float32_s:.1f} times as long "
        f"as in float32 with {describe_libraries()}"
    )
    remedy = (
        "install another version of PyTorch, which brings another cuDNN, or use --dtype float32"
    )
    return Finding(check, "note", text, remedy)


def time_convolution(device: torch.device, dtype: str = "float32") -> tuple[float, float, float]:
    """Time a 3x3x3 convolution on a device.

    Args:
        device: device that computes the convolution.
        dtype: ``float32``, ``float16`` or ``bfloat16``. The memory format is
            ``channels_last_3d``, except with ``float32``.

    Returns:
        Three numbers: the seconds of the fastest of three runs, the number of multiplications and
        additions in a run, and the error of a small convolution (see `judge_convolution`).
    """
    import torch

    def sync() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    channels, size = _GPU_SIZE if device.type == "cuda" else _SIZE
    generator = torch.Generator().manual_seed(0)
    layout = torch.contiguous_format if dtype == "float32" else torch.channels_last_3d
    shapes = (1, channels, *size), (channels, channels, 3, 3, 3)
    image, kernel = (
        torch.rand(shape, generator=generator).to(
            device, getattr(torch, dtype), memory_format=layout
        )
        for shape in shapes
    )
    convolve = torch.nn.functional.conv3d
    with torch.inference_mode():
        small = image[..., :6, :8, :8].contiguous()
        reference = convolve(small.cpu().double(), kernel.cpu().double())
        difference = convolve(small, kernel).cpu().double() - reference
        seconds = []
        for _ in range(4):  # the first one includes set-up
            sync()
            start = time.perf_counter()
            convolve(image, kernel, padding=1)
            sync()
            seconds.append(time.perf_counter() - start)
    voxels = size[0] * size[1] * size[2]
    error = float(difference.abs().max() / reference.abs().max())
    return min(seconds[1:]), 2.0 * voxels * channels * channels * _KERNEL, error


def _cpu(proc: Path) -> tuple[str, set[str]]:
    """Return the model name and the feature flags of the CPU; empty if not reported."""
    found: dict[str, str] = {}
    with suppress(OSError):
        for line in (proc / "cpuinfo").read_text(encoding="utf-8").splitlines():
            key, _, value = line.partition(":")
            found.setdefault(key.strip(), value.strip())
    return found.get("model name", ""), set(found.get("flags", "").split())


def _quota(cgroup: Path) -> float | None:
    """Return the number of CPU cores that this container may use; ``None`` without a limit."""
    with suppress(OSError, ValueError):
        most, each = (cgroup / "cpu.max").read_text(encoding="ascii").split()
        return None if most == "max" else int(most) / int(each)
    with suppress(OSError, ValueError):  # control groups, version 1
        folder = cgroup / "cpu"
        limit = int((folder / "cpu.cfs_quota_us").read_text(encoding="ascii"))
        period = int((folder / "cpu.cfs_period_us").read_text(encoding="ascii"))
        return limit / period if limit > 0 else None
    return None


# --- GPUs -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class GpuSystem:
    """GPUs of this machine, as the system and PyTorch report them.

    Attributes:
        torch: version of PyTorch.
        cuda: CUDA version that PyTorch is built for; ``None`` for a PyTorch without CUDA.
        driver: version of the NVIDIA driver; ``None`` if no driver is installed.
        cards: number of NVIDIA GPUs on the PCI bus.
        count: number of GPUs that PyTorch can use.
    """

    torch: str
    cuda: str | None
    driver: str | None
    cards: int
    count: int


def gpu_system(proc: Path = _PROC, system: Path = _SYS) -> GpuSystem:
    """Return the GPUs, the driver and the PyTorch version of this machine.

    Args:
        proc: mount point of the proc file system, in which the driver reports its version.
        system: mount point of the sysfs file system, in which the kernel lists PCI devices.

    Raises:
        ImportError: PyTorch is not installed.
    """
    import torch

    driver = None
    with suppress(OSError):
        text = (proc / "driver/nvidia/version").read_text(encoding="utf-8")
        # "... x86_64 Kernel Module  580.1", "... Open Kernel Module for x86_64  580.1"
        found = re.search(r"Kernel Module\s(?:.*\s)?([0-9]+(?:\.[0-9]+)+)\s", text)
        driver = found[1] if found else "of unknown version"
    cards = sum(_is_card(folder) for folder in (system / "bus/pci/devices").glob("*"))
    cuda = torch.version.cuda
    count = torch.cuda.device_count() if cuda else 0
    return GpuSystem(torch.__version__, cuda, driver, cards, count)


def judge_gpus(seen: GpuSystem) -> Finding:
    """Return the finding on the number of usable GPUs, or on the reason why no GPU is usable."""
    built = f"PyTorch {seen.torch} is built for CUDA {seen.cuda}"
    if seen.count:
        text = f"{seen.count} GPU(s), driver {seen.driver or 'of unknown version'}, {built}"
        return Finding("gpu", "ok", text)
    if seen.cuda is None and (seen.driver or seen.cards):
        text = (
            f"this machine has an NVIDIA GPU, but PyTorch {seen.torch} is built without CUDA, "
            f"so {_ON_CPU}"
        )
        remedy = "install PyTorch with CUDA: pip install --force-reinstall torch"
        return Finding("gpu", "problem", text, remedy)
    if seen.driver:
        text = f"{built}, but cannot use a GPU with driver {seen.driver}"
        remedy = (
            "run nvidia-smi; update the driver, start the container with --gpus all, or "
            "correct CUDA_VISIBLE_DEVICES"
        )
        return Finding("gpu", "problem", text, remedy)
    if seen.cards:
        text = f"{built}, but the NVIDIA GPU of this machine has no driver, so {_ON_CPU}"
        remedy = "install the NVIDIA driver, or start the container with --gpus all"
        return Finding("gpu", "problem", text, remedy)
    return Finding("gpu", "note", f"no GPU: {_ON_CPU}, 10 to 100 times slower than on a GPU")


def check_gpus(proc: Path = _PROC, system: Path = _SYS) -> Iterator[Finding]:
    """Report memory and precisions of each usable GPU, and time a convolution on the GPU."""
    try:
        seen = gpu_system(proc, system)
    except ImportError:
        return  # `check_packages` reports this
    yield judge_gpus(seen)
    for index in range(seen.count):
        yield from _check_gpu(index)


def _check_gpu(index: int) -> Iterator[Finding]:
    import torch

    from chunkflow_py.inference.backends.compute_profile import bfloat16_unit, cuda_switches

    device = torch.device("cuda", index)
    name = f"{device} {torch.cuda.get_device_name(device)}"
    major, minor = torch.cuda.get_device_capability(device)
    built = [int(each.split("_")[1].rstrip("af")) for each in torch.cuda.get_arch_list()]
    if built and 10 * major + minor < min(built):
        text = f"{name} has compute capability {major}.{minor}, but PyTorch is built for "
        text += f"{min(built) / 10:.1f} and later"
        yield Finding("gpu", "problem", text, "install an older PyTorch, or use --device cpu")
        return
    precisions = ["float32", "float16"]
    precisions += ["TF32"] if major >= 8 else []
    precisions += ["bfloat16"] if bfloat16_unit(device) == "cuda" else []
    halves = [each for each in precisions if each in ("float16", "bfloat16")]
    try:
        free, total = torch.cuda.mem_get_info(device)
        with cuda_switches(tf32=False):  # the default of networks
            seconds, flops, error = time_convolution(device)
            half_s = {each: time_convolution(device, each)[0] for each in halves}
        compared = list(compare_precisions("gpu", device, precisions[1:]))
    except RuntimeError as refused:  # raised by CUDA, for example for lack of memory
        text = f"{name} cannot compute: {str(refused).splitlines()[0]}"
        yield Finding("gpu", "problem", text, "run nvidia-smi to see which processes use the GPU")
        return
    memory = f"{describe_bytes(free)} of {describe_bytes(total)} free"
    text = f"{name}: {memory}; {', '.join(precisions)}"
    if free < total / 2:
        yield Finding(
            "gpu",
            "note",
            text,
            "other processes use more than half of the GPU memory; run nvidia-smi",
        )
    else:
        yield Finding("gpu", "ok", text)
    yield judge_convolution("gpu", name, flops / seconds, error)
    yield from compared
    slow = (judge_half_speed("gpu", name, each, half_s[each], seconds) for each in halves)
    yield from filter(None, slow)


def _is_card(folder: Path) -> bool:
    with suppress(OSError):
        vendor = (folder / "vendor").read_text(encoding="ascii").strip()
        kind = (folder / "class").read_text(encoding="ascii").strip()
        return vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return False

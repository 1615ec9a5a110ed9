"""GPUs: driver, memory, precisions, and a timed convolution; or why there is none."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from chunkflow_py.core.memory import describe_bytes
from chunkflow_py.planning.doctor.finding import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

_PROC, _SYS = Path("/proc"), Path("/sys")
_NVIDIA = "0x10de"  # vendor of the PCI bus
_DISPLAY = "0x03"  # class, its first byte
_ON_CPU = "networks run on the CPU"


@dataclass(frozen=True)
class Seen:
    """What the system and PyTorch say of GPUs.

    Attributes:
        torch: version of PyTorch.
        cuda: version of CUDA that it is built for, or ``None``.
        driver: version of NVIDIA's driver, or ``None``.
        cards: NVIDIA's devices on the PCI bus.
        count: GPUs that PyTorch can use.
    """

    torch: str
    cuda: str | None
    driver: str | None
    cards: int
    count: int


def look(proc: Path = _PROC, system: Path = _SYS) -> Seen:
    """Return what there is.

    Args:
        proc: where the driver tells of itself.
        system: where the kernel tells of the PCI bus.

    Raises:
        ImportError: there is no PyTorch.
    """
    import torch

    driver = None
    with suppress(OSError):
        text = (proc / "driver/nvidia/version").read_text(encoding="utf-8")
        found = re.search(r"Kernel Module\D*([0-9.]+)", text)
        driver = found[1] if found else "of unknown version"
    cards = sum(_is_card(folder) for folder in (system / "bus/pci/devices").glob("*"))
    cuda = torch.version.cuda
    count = torch.cuda.device_count() if cuda else 0
    return Seen(torch.__version__, cuda, driver, cards, count)


def judge(seen: Seen) -> Finding:
    """Return whether GPUs can be used, or what is missing."""
    built = f"PyTorch {seen.torch} is built for CUDA {seen.cuda}"
    if seen.count:
        text = f"{seen.count} GPU(s), driver {seen.driver or 'of unknown version'}, {built}"
        return Finding("gpu", "ok", text)
    if seen.cuda is None and (seen.driver or seen.cards):
        text = f"there is an NVIDIA GPU, and PyTorch {seen.torch} is built without CUDA: {_ON_CPU}"
        remedy = "install the build of PyTorch for CUDA: pip install --force-reinstall torch"
        return Finding("gpu", "problem", text, remedy)
    if seen.driver:
        text = f"{built}, and cannot use a GPU by driver {seen.driver}"
        remedy = (
            "see what nvidia-smi says; update the driver, start the container with --gpus all, or "
            "mend CUDA_VISIBLE_DEVICES"
        )
        return Finding("gpu", "problem", text, remedy)
    if seen.cards:
        text = f"{built}, and there is an NVIDIA GPU without a driver: {_ON_CPU}"
        remedy = "install NVIDIA's driver, or start the container with --gpus all"
        return Finding("gpu", "problem", text, remedy)
    return Finding("gpu", "note", f"none: {_ON_CPU}, 10 to 100 times slower than on a GPU")


def check_gpus(proc: Path = _PROC, system: Path = _SYS) -> Iterator[Finding]:
    """Say which GPUs there are and what they can, and time a convolution on each."""
    try:
        seen = look(proc, system)
    except ImportError:
        return  # `check_packages` says it
    yield judge(seen)
    for index in range(seen.count):
        yield from _check_gpu(index)


def _check_gpu(index: int) -> Iterator[Finding]:
    import torch

    from chunkflow_py.inference.backends.compute_profile import bfloat16_unit, cuda_switches
    from chunkflow_py.planning.doctor.processor import judged, time_convolution

    device = torch.device("cuda", index)
    name = f"{device} {torch.cuda.get_device_name(device)}"
    major, minor = torch.cuda.get_device_capability(device)
    built = [int(each.split("_")[1].rstrip("af")) for each in torch.cuda.get_arch_list()]
    if built and 10 * major + minor < min(built):
        text = f"{name} has compute capability {major}.{minor}, and PyTorch is built for "
        text += f"{min(built) / 10:.1f} and later"
        yield Finding("gpu", "problem", text, "install an older PyTorch, or use --device cpu")
        return
    precisions = ["float32", "float16"]
    precisions += ["TF32"] if major >= 8 else []
    precisions += ["bfloat16"] if bfloat16_unit(device) == "cuda" else []
    try:
        free, total = torch.cuda.mem_get_info(device)
        with cuda_switches(tf32=False):  # as networks run unless they are told otherwise
            seconds, flops, error = time_convolution(device)
    except RuntimeError as refused:  # of CUDA; also memory that is not there
        text = f"{name} cannot compute: {str(refused).splitlines()[0]}"
        yield Finding("gpu", "problem", text, "see what nvidia-smi says of who uses it")
        return
    memory = f"{describe_bytes(free)} of {describe_bytes(total)} free"
    text = f"{name}: {memory}; {', '.join(precisions)}"
    if free < total / 2:
        yield Finding("gpu", "note", text, "others use more than half of it: see nvidia-smi")
    else:
        yield Finding("gpu", "ok", text)
    yield judged("gpu", name, flops / seconds, error)


def _is_card(folder: Path) -> bool:
    with suppress(OSError):
        vendor = (folder / "vendor").read_text(encoding="ascii").strip()
        kind = (folder / "class").read_text(encoding="ascii").strip()
        return vendor == _NVIDIA and kind.startswith(_DISPLAY)
    return False

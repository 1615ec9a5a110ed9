"""Where a network runs: choosing a device, and saying which one it is."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch

logger = logging.getLogger(__name__)


def device_of(name: str) -> torch.device:
    """Return the device called *name*; never silently another one.

    Args:
        name: ``auto`` (CUDA where there is one, else the CPU; the choice is logged), ``cpu``,
            ``cuda``, or one of several GPUs such as ``cuda:1``.

    Raises:
        OptionError: there is no such device here; says why.
    """
    import torch

    if name == "auto":
        device = torch.device("cpu" if _why_no_cuda() else "cuda:0")
        logger.info("running on %s, chosen by --device auto", describe_device(device))
        return device
    try:
        device = torch.device(name)
    except RuntimeError as error:
        msg = f"device {name!r} is not one of auto, cpu, cuda or cuda:1"
        raise OptionError(msg) from error
    if device.type not in {"cpu", "cuda"}:
        msg = f"device {name!r} is not one of auto, cpu, cuda or cuda:1"
        raise OptionError(msg)
    if device.type == "cpu":
        return device
    if missing := _why_no_cuda():
        msg = f"--device {name} cannot be used: {missing}; choose --device cpu or auto"
        raise OptionError(msg)
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        msg = f"--device {name} does not exist, this machine has cuda:0 to cuda:{count - 1}"
        raise OptionError(msg)
    return torch.device("cuda", device.index or 0)


def describe_device(device: torch.device) -> str:
    """Return the model of a GPU, or the instruction set that PyTorch uses of the CPU."""
    import torch

    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"cpu {torch.backends.cpu.get_cpu_capability()}"


def numerical_profile(device: torch.device, **more: str) -> dict[str, str]:
    """Return what decides the bytes of a result: library, device, threads, and *more*.

    Which of several GPUs it is does not decide them, only its model.
    """
    import torch

    named = describe_device(device).replace(str(device), device.type, 1)
    profile = {"torch": torch.__version__, "device": named}
    if device.type == "cpu":
        profile["threads"] = str(torch.get_num_threads())
    else:
        cudnn_version: Callable[[], int | None] = torch.backends.cudnn.version
        profile["cudnn"] = str(cudnn_version())
    return profile | more


def _why_no_cuda() -> str | None:
    import torch

    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device (is a GPU there, and its driver installed?)"
    return None

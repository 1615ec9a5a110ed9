"""Devices, dtypes and the compute profile, which determines the bytes of a result.

Two runs with the same compute profile give the same bytes, even if they divide the work into
different tasks. The compute profile is: backend, library versions, device model or CPU instruction
set, number of threads, memory layout, dtype and batch shape.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from chunkflow_py.errors import OptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)


def device_of(name: str) -> torch.device:
    """Return the device called *name*; never fall back to another device.

    Args:
        name: ``auto`` (CUDA if available, else the CPU; the choice is logged), ``cpu``, ``cuda``,
            or one of several GPUs such as ``cuda:1``.

    Raises:
        OptionError: the device does not exist on this machine; the message says why.
    """
    if name == "auto":
        device = torch.device("cpu" if _why_no_cuda() else "cuda:0")
        logger.info("running on %s, chosen by --device auto", describe_device(device))
        return device
    try:
        device = torch.device(name)
    except RuntimeError as error:
        msg = f"--device {name!r} is not one of auto, cpu, cuda, or a GPU such as cuda:1"
        raise OptionError(msg) from error
    if device.type not in {"cpu", "cuda"}:
        msg = f"--device {name!r} is not one of auto, cpu, cuda, or a GPU such as cuda:1"
        raise OptionError(msg)
    if device.type == "cpu":
        return device
    if missing := _why_no_cuda():
        msg = f"--device {name} cannot be used: {missing}; choose --device cpu or auto"
        raise OptionError(msg)
    count = torch.cuda.device_count()
    if device.index is not None and device.index >= count:
        msg = f"--device {name} does not exist; this machine has cuda:0 to cuda:{count - 1}"
        raise OptionError(msg)
    return torch.device("cuda", device.index or 0)


def describe_device(device: torch.device) -> str:
    """Return a device as text, with the model of the GPU or the instruction set of the CPU."""
    if device.type == "cuda":
        return f"{device} {torch.cuda.get_device_name(device)}"
    return f"cpu {torch.backends.cpu.get_cpu_capability()}"


def profile_of(device: torch.device, **more: str) -> dict[str, str]:
    """Return the compute profile as a dict: version of PyTorch, device, and the entries *more*.

    A CPU is described by the instruction set and the number of threads. A GPU is described by the
    model name, without the index of the GPU, and by the version of cuDNN.
    """
    named = describe_device(device).replace(str(device), device.type, 1)
    profile = {"torch": torch.__version__, "device": named}
    if device.type == "cpu":
        profile["threads"] = str(torch.get_num_threads())
    else:
        cudnn_version: Callable[[], int | None] = torch.backends.cudnn.version
        profile["cudnn"] = str(cudnn_version())
    return profile | more


def describe_profile(profile: dict[str, str]) -> str:
    """Format a compute profile as one line, for the log."""
    return ", ".join(f"{name} {value}" for name, value in profile.items())


def _why_no_cuda() -> str | None:
    if torch.version.cuda is None:
        return f"PyTorch {torch.__version__} is built without CUDA"
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA device; check that there is a GPU with a driver"
    return None


Dtype = Literal["float32", "bfloat16", "float16"]
DTYPES: tuple[Dtype, ...] = get_args(Dtype)

# cuDNN settings are global to the process, and two networks may need different ones.
_switches = threading.RLock()


def check_dtype(dtype: str, device: torch.device) -> None:
    """Check that *dtype* works on *device*; warn if bfloat16 is only emulated there.

    Raises:
        OptionError: the dtype is unknown, or does not work on the device.
    """
    if dtype not in DTYPES:
        msg = f"--dtype {dtype} is not one of {', '.join(DTYPES)}"
        raise OptionError(msg)
    if dtype == "float16" and device.type == "cpu":
        msg = (
            f"--dtype float16 does not work on {describe_device(device)}; "
            "float32 and bfloat16 work there"
        )
        raise OptionError(msg)
    if dtype == "bfloat16" and bfloat16_unit(device) == "emulated":
        logger.warning(
            "%s only emulates bfloat16: it will be slower than --dtype float32",
            describe_device(device),
        )


def bfloat16_unit(device: torch.device) -> str:
    """Return what computes bfloat16: ``amx``, ``avx512_bf16``, ``cuda``, or ``emulated``.

    ``emulated`` means that *device* has no instructions for bfloat16, so bfloat16 is slow there.
    """
    if device.type == "cuda":
        native = torch.cuda.get_device_capability(device) >= (8, 0)
        return "cuda" if native else "emulated"
    helpers: Any = torch.cpu  # without type hints
    if helpers._is_amx_tile_supported():
        return "amx"
    return "avx512_bf16" if helpers._is_avx512_bf16_supported() else "emulated"


@contextlib.contextmanager
def cuda_switches(*, tf32: bool) -> Iterator[None]:
    """Set the CUDA settings of the process for a ``with`` block.

    Only one thread at a time can be inside the block; other threads wait.

    With these settings, PyTorch uses only deterministic kernels, and does not choose kernels by
    their speed in a benchmark. The bytes of a result are therefore equal in all runs. The settings
    have no effect on kernels that are already launched or captured in a CUDA graph.

    Args:
        tf32: multiply float32 numbers on tensor cores, with only 10 bits of mantissa.
    """
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    with _switches:
        cudnn.enabled, cudnn.benchmark, cudnn.deterministic = True, False, True
        cudnn.allow_tf32 = matmul.allow_tf32 = tf32
        yield


class Multiplications(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records the dtypes of convolutions and matrix products inside the ``with`` block.

    The recorded dtypes show whether autocast had an effect. If a program was exported with
    ``run_decompositions`` (operators split into simpler ones), autocast silently has no effect.
    """

    _NAMES = ("conv", "mm", "addmm", "bmm", "baddbmm", "linear")

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        name = str(getattr(func, "overloadpacket", func)).rpartition(".")[2]
        if "conv" in name or name in self._NAMES:
            tensors = [v for v in tree_leaves((args, kwargs)) if isinstance(v, torch.Tensor)]
            self.dtypes.update(tensor.dtype for tensor in tensors[:1])
        return func(*args, **(kwargs or {}))

"""Measure one combination of settings of `tune` in a process that does nothing else.

`chunkflow_py.planning.tune` runs ``python -m chunkflow_py.planning.tune_process`` once for each
combination (candidate). Therefore, the peak memory of the process is that of one candidate, and a
crash ends only one measurement. The process reads a request from stdin, as JSON. It writes each
result to stdout as soon as the result is known, as one line of JSON.

The error of a candidate is the difference from PyTorch's float32 output on the same patches. The
error is measured after the memory, because computing in float32 may need more memory. The first
process that computes the float32 output stores it in a file for the other processes.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from chunkflow_py.core.allocator import keep_freed_memory
from chunkflow_py.errors import ChunkflowError
from chunkflow_py.inference.backend_comparison import (
    error_against,
    example_patches,
    seconds_per_batch,
)
from chunkflow_py.inference.backend_factory import create_backend
from chunkflow_py.inference.backends.compute_profile import (
    bfloat16_unit,
    describe_device,
    device_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.inference.backends.backend_protocol import Backend

PATCHES = 2  # number of patches on which the error is measured
MOST_FORWARDS = 20  # timed forward passes
ENOUGH_S = 2.0  # time limit of timed forward passes; more would not change the median

# Operators whose result at a voxel depends on all voxels of the input. A number is the index of the
# argument that says whether the operator uses the statistics of its input; if the operator does not
# use them, its result at a voxel does not depend on the other voxels.
_WHOLE_PATCH: dict[str, int | None] = {
    "instance_norm": 5,
    "batch_norm": 5,
    "native_batch_norm": 5,
    "cudnn_batch_norm": 5,
    "miopen_batch_norm": 5,
    "_native_batch_norm_legit": 5,
    "group_norm": None,
    "native_group_norm": None,
    "layer_norm": None,
    "native_layer_norm": None,
    "adaptive_avg_pool2d": None,
    "adaptive_avg_pool3d": None,
    "adaptive_max_pool2d": None,
    "adaptive_max_pool3d": None,
    "_adaptive_avg_pool2d": None,
    "_adaptive_avg_pool3d": None,
}
_REDUCTIONS = {"mean", "sum", "std", "var", "var_mean", "std_mean", "amax", "amin"}


class WholePatchOperators(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """A mode of PyTorch that records PyTorch operators whose result depends on the whole patch.

    A forward pass in this mode finds such operators in modules, in functions called by model code,
    in TorchScript and in exported programs.

    Attributes:
        found: names of the operators found so far, each once.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(
        self, func: Any, types: object, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        """Run an operator, and record its name if its result depends on the whole patch."""
        name = func.name().partition("::")[2].partition(".")[0]
        if name not in self.found and self._depends(name, func.name(), args, kwargs or {}):
            self.found.append(name)
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _depends(name: str, full: str, args: Sequence[Any], kwargs: dict[str, Any]) -> bool:
        if name in _WHOLE_PATCH:
            flag = _WHOLE_PATCH[name]
            return full.endswith(".no_stats") or flag is None or bool(args[flag])
        # patches are (n, c, z, y, x), or (n, c, y, x) in a 2D network
        if name not in _REDUCTIONS or not args or args[0].ndim not in (4, 5):
            return False
        axes = args[1] if len(args) > 1 else kwargs.get("dim")
        return not axes or any(axis % args[0].ndim >= 2 for axis in np.atleast_1d(axes))


def inspect(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the properties of the network and the device that `tune` needs to choose candidates.

    Yields:
        First, a dictionary of the properties that need no forward pass. For example,
        ``memory_bytes`` is the total memory of the device, and ``idle_bytes`` is the memory of this
        process without the network. Each patch size must be a multiple of ``divisor`` voxels.
        Second, a dictionary with the key ``whole_patch``: names of the PyTorch operators that make
        each output voxel depend on the whole patch.
    """
    device = device_of(request["network"]["device"])
    idle_bytes = 0 if device.type == "cuda" else _peak_memory(device, 0)
    halves = {"bfloat16": bfloat16_unit(device) != "emulated", "float16": device.type == "cuda"}
    backend = _backend(request)
    yield {
        "device": str(device),
        "device_name": describe_device(device),
        "memory_bytes": _total_memory(device),
        "idle_bytes": idle_bytes,
        "dtypes": ["float32", *(dtype for dtype, works in halves.items() if works)],
        "divisor": backend.divisor,
        "framework": backend.profile["framework"],
    }
    batch = _patches(request, 1).to(device)
    with torch.inference_mode(), WholePatchOperators() as operators:
        backend(batch)
    yield {"whole_patch": operators.found}


def measure(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the time, memory and error of one candidate.

    Yields:
        First, a dictionary with ``seconds`` (median duration of a forward pass) and
        ``memory_bytes`` (peak GPU or host memory of this process). Second, a dictionary with
        ``largest``, ``percentile_999`` and ``mean``: maximum, 99.9th percentile and mean of the
        absolute difference from PyTorch's float32 output.
    """
    device = device_of(request["network"]["device"])
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else 0
    backend = _backend(request)
    size = request["candidate"]["batch_size"]
    patches = _patches(request, max(size, PATCHES))
    batch = patches[:size].to(device)
    with torch.inference_mode():
        backend(batch)  # compiles the network and allocates memory that is kept
    seconds = seconds_per_batch(backend, [batch], most=MOST_FORWARDS, enough_s=ENOUGH_S)
    yield {"seconds": seconds, "memory_bytes": _peak_memory(device, free)}

    found = _outputs(backend, patches, size)
    if not np.isfinite(found).all():
        yield {"failure": "the output of the network contains NaN or infinity"}
        return
    del backend
    file = Path(request["reference"])
    if file.exists():
        reference = np.load(file)
    else:
        plain = {"backend": "torch", "dtype": "float32", "compile": False, "batch_size": 1}
        reference = found
        exactly = request["candidate"] | plain
        if exactly != request["candidate"]:
            exact = _backend(request | {"candidate": exactly})
            reference = _outputs(exact, patches, 1)
        part = file.with_suffix(".part.npy")
        np.save(part, reference)
        part.replace(file)  # atomically
    yield asdict(error_against(torch.from_numpy(reference), torch.from_numpy(found)))


def _backend(request: dict[str, Any]) -> Backend:
    candidate = request["candidate"]
    window = np.ones(candidate["output_patch_size"], dtype=np.float32)
    return create_backend(**request["network"], **candidate, window=window)


def _patches(request: dict[str, Any], count: int) -> torch.Tensor:
    """Return float32 patches, (count, c, z, y, x), cut from an image or made of synthetic data."""
    size = tuple(request["candidate"]["input_patch_size"])
    channels = request["network"]["num_input_channels"]
    if request["image"] is None:  # a larger count begins with the same patches
        return torch.cat(example_patches((1, channels, *size), number=count))
    random = np.random.default_rng(0)
    batch = np.empty((count, channels, *size), dtype=np.float32)
    image = np.load(request["image"], mmap_mode="r")
    short = [(0, max(0, s - have)) for s, have in zip(size, image.shape[1:], strict=True)]
    image = np.pad(image, [(0, 0), *short], mode="symmetric")
    for patch in batch:
        for _ in range(20):  # until a patch is not empty
            spans = zip(size, image.shape[1:], strict=True)
            corner = [int(random.integers(have - s + 1)) for s, have in spans]
            z, y, x = (slice(c, c + s) for c, s in zip(corner, size, strict=True))
            patch[:] = image[:, z, y, x]
            if patch.any():
                break
    return torch.from_numpy(batch)


def _outputs(backend: Backend, patches: torch.Tensor, batch_size: int) -> NDArray[np.float32]:
    """Return the network's output on the first `PATCHES` patches, in batches of *batch_size*."""
    found: list[NDArray[np.float32]] = []
    with torch.inference_mode():
        for first in range(0, PATCHES, batch_size):
            batch = patches[first : first + batch_size].to(backend.device)
            found.append(backend(batch).to("cpu", torch.float32).numpy().copy())
    return np.concatenate(found)[:PATCHES]


def _peak_memory(device: torch.device, free_before: int) -> int:
    """Return the peak memory of this process in bytes: GPU memory for a GPU, else host memory.

    Args:
        device: device of the network.
        free_before: free GPU memory before the network was loaded, bytes.
    """
    if device.type == "cuda":
        # the decrease of free memory also includes the memory of libraries other than PyTorch
        taken = free_before - torch.cuda.mem_get_info(device)[0]
        return max(torch.cuda.max_memory_reserved(device), taken)
    with suppress(OSError):  # the file exists only on Linux
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    # elsewhere, or as a fallback: after a fork, this includes the parent's memory
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _total_memory(device: torch.device) -> int:
    """Return the total memory of the GPU in bytes; for a CPU, that of the host or container."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    with suppress(OSError, ValueError):  # the file contains "max" if there is no limit
        total = min(total, int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    return total


def main() -> None:
    """Read a request from stdin, and write the results or a ``failure`` to stdout."""
    results = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keep the output of model code out of the results
    with suppress(OSError):
        # if memory runs out, the kernel should kill this process and no other
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    keep_freed_memory()
    request = json.load(sys.stdin)
    try:
        for found in {"inspect": inspect, "measure": measure}[request["task"]](request):
            print(json.dumps(found), file=results, flush=True)
    except Exception as error:  # noqa: BLE001  (reported to the parent process)
        message = str(error).strip().partition("\n")[0]
        ours = isinstance(error, ChunkflowError)
        failure = message if ours else f"{type(error).__name__}: {message}"
        kind = "option" if isinstance(error, ValueError) and ours else "run"
        print(json.dumps({"failure": failure, "kind": kind}), file=results, flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()

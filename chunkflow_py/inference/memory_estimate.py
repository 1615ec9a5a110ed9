"""Estimate the peak memory of inference on one task, and refuse a task that does not fit.

`chunkflow_py.pipeline.forecast` adds the memory of other operators of the pipeline, and of other
tasks that are in memory at the same time. The table lists what needs memory, and whether the memory
is that of the host or of the device (GPU). In the table, "engine" means the sums and weights of
blending, and "batches" means the buffers that contain input patches:

| purpose                   | without a GPU | with a GPU       |
|---------------------------|---------------|------------------|
| interpreter and libraries | host          | host             |
| weights                   | host          | device           |
| activations               | host          | device           |
| chunks                    | host          | host             |
| engine                    | host          | device           |
| batches                   | host          | host and device  |

    expected = estimate_memory(workload)
    print(expected.table())
    check_fits(expected)  # the error names chunk, batch and patch sizes that fit
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.core.host_memory import (
    FIRST_USE,
    available_host_bytes,
    describe_bytes,
    resident_bytes,
)
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.patch_grid import PatchGeometry, PatchGrid

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.inference.engine_settings import EngineSettings
    from chunkflow_py.inference.network_memory import Activations

_FLOAT = 4  # bytes
_FEED = 3  # batches: being filled, being copied, in the network; on the CPU there is one
_COPIES = 1  # copy of a batch that the network may modify
_REGIONS = 4  # regions of weights that the blender caches
_CONVERSION = 8  # bytes per value of a region: masks, and values of another type
_STAGED = 2  # buffers between device and host

# Names of the parts that the estimate of a whole pipeline counts itself.
LIBRARIES, WEIGHTS, INPUT, OUTPUT = (
    "interpreter and libraries", "network weights", "input chunk", "output chunk",
)  # fmt: skip

# Memory taken per byte of feature maps that PyTorch has alive at once. In the heap of glibc a gap
# between two buffers is rarely filled: measured 1.1 to 1.6. OpenVINO makes fewer maps and places
# them in one block: measured 0.6 to 0.7.
_SLACK = {"torch": 1.35, "cuda": 1.1, "openvino": 0.7}


@dataclass(frozen=True)
class Workload:
    """The quantities that decide how much memory inference needs.

    Attributes:
        settings: engine settings.
        activations: memory of the network's feature maps on a batch, or ``None`` if unknown.
        weight_bytes: memory of the network's weights, in bytes.
        input_size: size of the largest input chunk with its margin, voxels, zyx.
        output_size: size of the largest output chunk, voxels, zyx.
        input_dtype: dtype of the input's voxels.
        device: device that the network runs on.
        backend: library that runs the network: ``torch``, ``openvino``, ``onnxruntime``.
        divisor: three numbers of voxels, zyx. Patch sizes must be multiples of these numbers.
            ``None`` if unknown.
        other_bytes: memory, in bytes, that the other operators of the pipeline need if their chunks
            have the size *output_size*.
        resident_bytes: memory that this process uses now, including network weights in host
            memory.
    """

    settings: EngineSettings
    activations: Activations | None
    weight_bytes: int
    input_size: Zyx
    output_size: Zyx
    input_dtype: str = "uint8"
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    backend: str = "torch"
    divisor: Zyx | None = None
    other_bytes: int = 0
    resident_bytes: int = field(default_factory=resident_bytes)

    @property
    def margin(self) -> Zyx:
        """Size of the input chunk minus size of the output chunk, voxels, zyx."""
        return self.input_size - self.output_size

    def with_output_size(self, size: Zyx) -> Workload:
        """Return this workload with output chunks of *size* (voxels, zyx)."""
        others = self.other_bytes * size.product() // self.output_size.product()
        return replace(self, output_size=size, input_size=size + self.margin, other_bytes=others)

    def with_batch_size(self, batch_size: int) -> Workload:
        """Return this workload with batches of *batch_size* patches."""
        return self._with(replace(self.settings, batch_size=batch_size))

    def with_patch(self, geometry: PatchGeometry) -> Workload:
        """Return this workload with the patch sizes of *geometry*."""
        return self._with(replace(self.settings, geometry=geometry))

    def _with(self, settings: EngineSettings) -> Workload:
        voxels = settings.batch_size * settings.geometry.input_patch_size.product()
        found = self.activations and self.activations.scaled(voxels)
        return replace(self, settings=settings, activations=found)


@dataclass(frozen=True)
class MemoryEstimate:
    """Expected peak memory of a workload, listed by purpose, such as weights or input chunk.

    Attributes:
        workload: the workload that was estimated.
        host: bytes of host memory for each purpose.
        device: bytes of GPU memory for each purpose; empty on the CPU.
        complete: whether the network's activations are known and included.
    """

    workload: Workload
    host: dict[str, int]
    device: dict[str, int]
    complete: bool

    @property
    def host_bytes(self) -> int:
        """Total host memory, in bytes."""
        return sum(self.host.values())

    @property
    def device_bytes(self) -> int:
        """Total GPU memory, in bytes; 0 on the CPU."""
        return sum(self.device.values())

    def __str__(self) -> str:
        """Return one line: the total and the bytes for each purpose, on the host and on the GPU."""
        line = " and ".join(
            f"{describe_bytes(sum(parts.values()))} of {name} memory ("
            + ", ".join(f"{part} {describe_bytes(size)}" for part, size in parts.items() if size)
            + ")"
            for name, parts in (("host", self.host), ("device", self.device))
            if parts
        )
        return line if self.complete else f"at least {line}, plus the network's activations"

    def table(self) -> str:
        """Format a table with one line for each purpose of host and of GPU memory."""
        width = max(map(len, self.host))
        lines = []
        for name, parts in (("host", self.host), ("device", self.device)):
            if parts:
                lines.append(f"{name:{width + 2}} {describe_bytes(sum(parts.values())):>9}")
                lines += [
                    f"  {part:{width}} {describe_bytes(size):>9}" for part, size in parts.items()
                ]
        if not self.complete:
            lines.append(f"  {'network activations':{width}}   unknown")
        return "\n".join(lines)


def estimate_memory(workload: Workload) -> MemoryEstimate:
    """Return the expected peak memory of *workload*, without allocating any of it."""
    settings, device = workload.settings, workload.device
    cuda = device.type == "cuda"
    found = workload.activations
    slack = _SLACK.get("cuda" if cuda else workload.backend, 1.0)
    batch = _FLOAT * settings.batch_size * settings.num_input_channels
    batch *= settings.geometry.input_patch_size.product()
    cover = workload.input_size.high(settings.geometry.output_patch_size)
    region = _region(settings.geometry, cover)
    channels = settings.num_output_channels
    blending = engine_workspace(settings.geometry, channels, cover, channels if cuda else 1)
    if cuda:
        blending += _FLOAT * channels * region  # the means, which a copy still reads
    item = np.dtype(settings.stored_dtype).itemsize
    chunks = {
        INPUT: workload.input_size.product()
        * settings.num_input_channels
        * np.dtype(workload.input_dtype).itemsize,
        OUTPUT: workload.output_size.product() * settings.output_channels * item,
    }
    if workload.other_bytes:
        chunks["other operators"] = workload.other_bytes
    network = {
        WEIGHTS: workload.weight_bytes,
        "network activations": int(found.peak_bytes * slack) if found else 0,
    }
    converted = 0 if settings.output_dtype == "float32" else settings.num_output_channels
    work = {
        "engine workspace": blending + region * converted * _CONVERSION,
        "batches": batch * ((_FEED if cuda else 1) + _COPIES)
        + _augmentation(settings, batch)
        + _rounded(settings),
    }
    libraries = max(0, workload.resident_bytes - (0 if cuda else workload.weight_bytes))
    start = {LIBRARIES: libraries + FIRST_USE}
    if not cuda:
        return MemoryEstimate(workload, start | network | chunks | work, {}, found is not None)
    staged = _STAGED * region * settings.output_channels * item
    host = start | chunks | {"batches": batch * _FEED + staged}
    return MemoryEstimate(workload, host, network | work, found is not None)


def engine_workspace(
    geometry: PatchGeometry, channels: int, cover: Zyx, at_once: int | None = None
) -> int:
    """Return the memory that blending needs, in bytes, for the patches of a chunk.

    | buffer | size in voxels (z · y · x)                      | contents                      |
    |--------|-------------------------------------------------|-------------------------------|
    | strip  | patch z · patch y · cover x                     | sums of the current row       |
    | carry  | planes shared by two layers · cover y · cover x | sums for the next layer       |
    | other  | one patch, and a few strips                     | products and blending weights |

    The amount does not depend on the size of the chunk along z. A row is all patches with equal z
    and y, and a layer is all patches with equal z.

    Args:
        geometry: sizes of the patches.
        channels: number of channels that the network returns.
        cover: size of the box that the patches of a chunk cover, voxels, zyx.
        at_once: number of channels that are multiplied by the blending weights at a time (default:
            all).
    """
    at_once = channels if at_once is None else at_once
    height, length, width = geometry.output_patch_size
    starts, _, _ = PatchGrid(geometry, BoundingBox.from_size((0, 0, 0), cover)).starts
    shared = max((a + height - b for a, b in pairwise(starts)), default=0)
    strip = height * length * cover.x
    carry = max(0, shared) * cover.y * cover.x
    patch = height * length * width
    weights = patch + _REGIONS * _region(geometry, cover)
    return _FLOAT * (channels * (strip + carry) + at_once * patch + weights)


def _region(geometry: PatchGeometry, cover: Zyx) -> int:
    # At most so many output voxels are complete after a row of patches.
    return geometry.output_patch_size.z * geometry.output_patch_size.y * cover.x


def _augmentation(settings: EngineSettings, batch: int) -> int:
    # A flipped batch, an output flipped back, and the sum of outputs.
    if not settings.augment:
        return 0
    output = batch // settings.num_input_channels * settings.num_output_channels
    return batch + 2 * output


def _rounded(settings: EngineSettings) -> int:
    if settings.patch_precision == "float32":
        return 0
    values = settings.geometry.output_patch_size.product() * settings.num_output_channels
    return settings.batch_size * values * settings.patch_itemsize


logger = logging.getLogger(__name__)

_NEARLY = 0.9  # part of the available memory above which to warn


def check_fits(
    expected: MemoryEstimate, host_available: int | None = None, device_available: int | None = None
) -> None:
    """Refuse a run that does not fit into memory; warn if it needs over 90 % of the memory.

    Args:
        expected: estimate of the memory needed.
        host_available: host memory that the process can use in total, bytes (default: query the
            system).
        device_available: GPU memory that the process can use in total, bytes (default: query the
            device).

    Raises:
        OptionError: the run does not fit; the message names the largest chunk, batch and patch
            sizes that would fit.
    """
    limits = _limits(expected.workload, host_available, device_available)
    for name, need, limit in _compared(expected, limits):
        if limit is None:
            continue
        least = "" if expected.complete else "at least "
        what = f"the run is expected to peak at {least}{describe_bytes(need)} of {name} memory"
        there = describe_bytes(limit)
        if need > limit:
            msg = f"{what}, but only {there} are available; {_remedies(expected, limits)}"
            raise OptionError(msg)
        if need > _NEARLY * limit:
            logger.warning("%s, nearly all of the %s available", what, there)


def largest_batch(
    workload: Workload, host_available: int | None = None, device_available: int | None = None
) -> int:
    """Return the largest batch size that is expected to fit into memory; 0 if there is none.

    The result is at most the batch size of *workload*.

    Args:
        workload: quantities that decide how much memory is needed.
        host_available: host memory that the process can use in total, bytes (default: query the
            system).
        device_available: GPU memory that the process can use in total, bytes (default: query the
            device).
    """
    limits = _limits(workload, host_available, device_available)
    sizes = range(workload.settings.batch_size, 0, -1)
    return next((n for n in sizes if _fits(workload.with_batch_size(n), limits)), 0)


def smaller_batch(batch_size: int, estimated: int | None = None) -> int | None:
    """Return the batch size to try next, or ``None`` if there is no smaller one.

    The result is at most half of *batch_size*, and at most *estimated*.

    Args:
        batch_size: batch size that did not fit into memory.
        estimated: result of `largest_batch`; ``None`` if unknown.
    """
    if batch_size <= 1:
        return None
    return max(1, min(batch_size // 2, estimated or batch_size))


def out_of_memory(device: torch.device, batch_size: int, smaller: int | None) -> str:
    """Return the error message for a batch that does not fit on *device*.

    The message suggests the batch size *smaller*. If *smaller* is ``None``, not even one patch
    fits, and the message suggests other options.
    """
    if smaller is None:
        remedy = "a single patch does not fit; lower --input-patch-size, or use --dtype bfloat16"
    else:
        remedy = f"use --batch-size {smaller}, or --lower-batch to continue with smaller batches"
    return f"{device} has too little memory for --batch-size {batch_size}; {remedy}"


def lowered_batch(batch_size: int, smaller: int) -> str:
    """Return the warning for a run that continues with *smaller* patches per batch."""
    return (
        f"--batch-size {batch_size} did not fit into memory; continuing with batches of {smaller}. "
        "The batch size can change rounding, so results may differ slightly from earlier results"
    )


_Limits = tuple[int | None, int | None]


def _limits(workload: Workload, host: int | None, device: int | None) -> _Limits:
    if host is None:
        host = available_host_bytes()
    return host, available_device_bytes(workload.device) if device is None else device


def _compared(expected: MemoryEstimate, limits: _Limits) -> Iterator[tuple[str, int, int | None]]:
    yield "host", expected.host_bytes, limits[0]
    if expected.device:
        yield "device", expected.device_bytes, limits[1]


def _fits(workload: Workload, limits: _Limits) -> bool:
    compared = _compared(estimate_memory(workload), limits)
    return all(limit is None or need <= limit for _, need, limit in compared)


def _remedies(expected: MemoryEstimate, limits: _Limits) -> str:
    workload = expected.workload

    def fits(other: Workload) -> bool:
        return _fits(other, limits)

    found = []
    if chunk := _largest(_chunks(workload), lambda size: fits(workload.with_output_size(size))):
        found.append(f"chunks of {chunk} (zyx, voxels)")
    if (batch := largest_batch(workload, *limits)) and batch < workload.settings.batch_size:
        found.append(f"--batch-size {batch}")
    if patch := _largest(_patches(workload), lambda size: fits(_with_patch(workload, size))):
        found.append(f"--input-patch-size {' '.join(map(str, patch))}")
    if not found:
        return "use smaller chunks, smaller batches and smaller patches together"
    return f"use {', or '.join(found)}"


def _largest(sizes: Iterator[Zyx], fits: Callable[[Zyx], bool]) -> Zyx | None:
    return next((size for size in sizes if fits(size)), None)


def _chunks(workload: Workload) -> Iterator[Zyx]:
    # Ever smaller chunks. An axis that shrinks becomes a multiple of the stride.
    geometry = workload.settings.geometry
    size, patch, stride = workload.output_size, geometry.output_patch_size, geometry.stride
    while any(a > b for a, b in zip(size, stride, strict=True)):
        axis = max(range(3), key=lambda k: size[k] / patch[k])
        step = stride[axis]
        # A tenth at a time, so that few steps lead from a very large chunk to a small one.
        less = max(1, min((size[axis] - 1) // step, int(size[axis] * 0.9) // step)) * step
        if less >= size[axis]:
            return
        size = Zyx.of(less if k == axis else v for k, v in enumerate(size))
        yield size


def _patches(workload: Workload) -> Iterator[Zyx]:
    # Ever smaller input patches: first in plane, then along z.
    geometry = workload.settings.geometry
    step = workload.divisor or Zyx(4, 4, 4)
    least = geometry.output_patch_overlap + geometry.margin * 2 + 1
    size = geometry.input_patch_size
    while True:
        cut = (0, 1, 1) if size.y > least.y + step.y and size.x > least.x + step.x else (1, 0, 0)
        size = Zyx.of((v - 1) // s * s if c else v for v, s, c in zip(size, step, cut, strict=True))
        if any(v < low for v, low in zip(size, least, strict=True)):
            return
        yield size


def _with_patch(workload: Workload, size: Zyx) -> Workload:
    old = workload.settings.geometry
    new = PatchGeometry(size, size - old.margin * 2, old.output_patch_overlap)
    return workload.with_patch(new)


__all__ = ["available_device_bytes", "available_host_bytes", "resident_bytes"]


def available_device_bytes(device: torch.device) -> int | None:
    """Return the GPU memory that this process can use in total; ``None`` for the CPU."""
    if device.type != "cuda":
        return None
    return torch.cuda.mem_get_info(device)[0] + torch.cuda.memory_reserved(device)

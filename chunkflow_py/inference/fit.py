"""Whether a run fits into memory, and what would fit in its place."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import Zyx
from chunkflow_py.core.memory import available_host_bytes, describe_bytes
from chunkflow_py.errors import OptionError
from chunkflow_py.inference.grid import PatchGeometry
from chunkflow_py.inference.memory import forecast
from chunkflow_py.inference.system_memory import available_device_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import torch

    from chunkflow_py.inference.memory import Forecast, Workload

logger = logging.getLogger(__name__)

_NEARLY = 0.9  # of what is available: to be warned of


def check_fits(
    expected: Forecast, host_available: int | None = None, device_available: int | None = None
) -> None:
    """Refuse what will not fit into memory; warn of what will hardly.

    Args:
        expected: what will be needed.
        host_available: bytes the process may hold in all (default: asked of the system).
        device_available: the same of the GPU.

    Raises:
        OptionError: it does not fit; the largest chunk, batch and patch that would are named.
    """
    limits = _limits(expected.workload, host_available, device_available)
    for name, need, limit in _compared(expected, limits):
        if limit is None:
            continue
        least = "" if expected.complete else "at least "
        what = f"the run is expected to peak at {least}{describe_bytes(need)} of {name} memory"
        there = describe_bytes(limit)
        if need > limit:
            msg = f"{what}, and {there} are available; {_remedies(expected, limits)}"
            raise OptionError(msg)
        if need > _NEARLY * limit:
            logger.warning("%s, nearly all of the %s available", what, there)


def largest_batch(
    workload: Workload, host_available: int | None = None, device_available: int | None = None
) -> int:
    """Return the largest batch up to the one asked for that is expected to fit; 0 if none is."""
    limits = _limits(workload, host_available, device_available)
    sizes = range(workload.settings.batch_size, 0, -1)
    return next((n for n in sizes if _fits(workload.with_batch_size(n), limits)), 0)


def smaller_batch(batch_size: int, foretold: int | None = None) -> int | None:
    """Return the batch to go on with after one did not fit, or ``None`` if it was a single patch.

    Args:
        batch_size: that did not fit.
        foretold: what `largest_batch` says; not believed beyond half of what just failed.
    """
    if batch_size <= 1:
        return None
    return max(1, min(batch_size // 2, foretold or batch_size))


def out_of_memory(device: torch.device, batch_size: int, smaller: int | None) -> str:
    """Return what to say when *device* has too little memory for a batch."""
    if smaller is None:
        remedy = "a single patch does not fit; lower --input-patch-size, or use --dtype bfloat16"
    else:
        remedy = f"give --batch-size {smaller}, or --lower-batch to go on with it"
    return f"{device} has too little memory for --batch-size {batch_size}; {remedy}"


def lowered_batch(batch_size: int, smaller: int) -> str:
    """Return what to warn of when the run goes on with smaller batches."""
    return (
        f"--batch-size {batch_size} did not fit, going on with {smaller}: the numerical profile "
        "changed, so results differ by rounding from those computed so far"
    )


_Limits = tuple[int | None, int | None]


def _limits(workload: Workload, host: int | None, device: int | None) -> _Limits:
    if host is None:
        host = available_host_bytes()
    return host, available_device_bytes(workload.device) if device is None else device


def _compared(expected: Forecast, limits: _Limits) -> Iterator[tuple[str, int, int | None]]:
    yield "host", expected.host_bytes, limits[0]
    if expected.device:
        yield "device", expected.device_bytes, limits[1]


def _fits(workload: Workload, limits: _Limits) -> bool:
    compared = _compared(forecast(workload), limits)
    return all(limit is None or need <= limit for _, need, limit in compared)


def _remedies(expected: Forecast, limits: _Limits) -> str:
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
        return "neither smaller chunks nor a smaller batch or patch alone would fit"
    return f"what fits: {', or '.join(found)}"


def _largest(sizes: Iterator[Zyx], fits: Callable[[Zyx], bool]) -> Zyx | None:
    return next((size for size in sizes if fits(size)), None)


def _chunks(workload: Workload) -> Iterator[Zyx]:
    """Yield smaller and smaller sizes of chunks, whole strides along the axes that are cut."""
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
    """Yield smaller and smaller input patches: in plane first, then along z."""
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

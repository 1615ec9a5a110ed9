"""Compare backends: their error against PyTorch in float32, and their speed.

`--backend auto` and `chunkflow_py.planning.tune` measure with these functions. `--backend auto`
compares all libraries in one process; `tune` runs each setting in a separate process.
"""

from __future__ import annotations

import gc
import logging
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from chunkflow_py.errors import ChunkError, ChunkflowError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from chunkflow_py.inference.backends.backend_protocol import Backend


@dataclass(frozen=True)
class Accuracy:
    """Absolute differences between two outputs, in the units of the output.

    If an output contains NaN, all attributes are NaN. A test such as ``largest <= limit`` is then
    false.

    Attributes:
        largest: largest difference.
        percentile_999: 99.9th percentile of the differences.
        mean: mean of the differences.
    """

    largest: float
    percentile_999: float
    mean: float

    def __str__(self) -> str:
        """Format the three differences in one line."""
        return (
            f"largest {self.largest:.1e}, 99.9 % below {self.percentile_999:.1e}, "
            f"mean {self.mean:.1e}"
        )


def error_against(reference: torch.Tensor, measured: torch.Tensor) -> Accuracy:
    """Return a summary of the absolute differences between *measured* and *reference*.

    Args:
        reference: array of any shape and floating dtype.
        measured: array of the shape of *reference*, any floating dtype, on any device.

    Raises:
        ChunkError: the shapes differ, or the arrays are empty.
    """
    if reference.shape != measured.shape or not reference.numel():
        msg = (
            f"outputs of shape {tuple(reference.shape)} and {tuple(measured.shape)} cannot be "
            "compared; the shapes must be equal, and no size may be 0"
        )
        raise ChunkError(msg)
    difference = (measured.to(reference.device, torch.float32) - reference.float()).abs()
    return _summary([difference.flatten().cpu()])


def compare(backend: Backend, reference: Backend, batches: Iterable[torch.Tensor]) -> Accuracy:
    """Return a summary of the absolute differences between the results of two backends.

    Args:
        backend: backend to measure.
        reference: backend that runs the same network with PyTorch in float32, not compiled.
        batches: batches (n, c, z, y, x) of float32, of the shape that both backends were created
            for. Do not use patches of zeros, because the results of all backends are then equal.

    Raises:
        ChunkError: *batches* is empty, or the results differ in shape.
    """
    differences: list[torch.Tensor] = []
    for batch in batches:
        # A result is valid until the next call, even of another backend that shares the network.
        expected = reference(batch.to(reference.device)).to("cpu", torch.float32, copy=True)
        found = backend(batch.to(backend.device)).to("cpu", torch.float32)
        if found.shape != expected.shape:
            return error_against(expected, found)  # raises: the shapes differ
        differences.append((found - expected).abs().flatten())
    if not differences:
        msg = (
            "there is no batch, so backends cannot be compared; give a patch whose voxels are not "
            "all equal"
        )
        raise ChunkError(msg)
    return _summary(differences)


def non_empty_batches(
    patches: torch.Tensor, batch_size: int, *, most: int = 4
) -> list[torch.Tensor]:
    """Return batches with which backends can be compared.

    The batches contain the patches with the largest standard deviation.

    Args:
        patches: (k, c, z, y, x) float32, normalised.
        batch_size: number of patches in a batch; the last batch is padded with zeros.
        most: largest number of patches to use.

    Returns:
        Batches of (batch_size, c, z, y, x). Patches whose voxels are all equal are left out, so the
        list can be empty.
    """
    spread = patches.flatten(1).std(1)
    order = [int(k) for k in spread.argsort(descending=True)[:most] if float(spread[k]) > 0]
    batches = []
    for first in range(0, len(order), batch_size):
        batch = patches.new_zeros((batch_size, *patches.shape[1:]))
        chosen = order[first : first + batch_size]
        batch[: len(chosen)] = patches[chosen]
        batches.append(batch)
    return batches


def _summary(differences: list[torch.Tensor]) -> Accuracy:
    together = torch.cat(differences)
    # NaN sorts last, so the percentile would miss it.
    if bool(torch.isnan(together).any()):
        return Accuracy(math.nan, math.nan, math.nan)
    rank = math.ceil(0.999 * together.numel())
    return Accuracy(
        float(together.max()),
        float(together.kthvalue(rank).values),
        float(together.mean(dtype=torch.float64)),
    )


logger = logging.getLogger(__name__)

TOLERANCE = 1e-5
_TIE = 1.02  # a later trial must be faster by more than the scatter of timings


@dataclass(frozen=True)
class BackendTrial:
    """Measurements of one backend.

    Attributes:
        name: name of the backend.
        seconds: median time of a forward pass, seconds, in the dtype of the production run;
            ``None`` if the backend did not run.
        error: largest absolute difference between the float32 results of this backend and of
            PyTorch. The difference is divided by PyTorch's largest absolute value if that value is
            above 1. ``None`` if the backend did not run.
        reason: why the backend cannot be chosen; empty if the backend can be chosen.
    """

    name: str
    seconds: float | None = None
    error: float | None = None
    reason: str = ""

    def __str__(self) -> str:
        if self.seconds is None or self.error is None:
            return f"{self.name}: {self.reason}"
        measured = f"{self.name}: {self.seconds:.3g} s a batch, float32 error {self.error:.1e}"
        return f"{measured}; {self.reason}" if self.reason else measured


@dataclass(frozen=True)
class BackendChoice:
    """The backend that was chosen, with the measurements of all backends that were tried.

    Attributes:
        name: name of the chosen backend.
        trials: measurements, in the order in which they were made.
    """

    name: str
    trials: tuple[BackendTrial, ...]


def choose_backend(
    make: Callable[[str, str], Backend],
    names: Sequence[str],
    patches: Sequence[torch.Tensor],
    *,
    dtype: str = "float32",
    tolerance: float = TOLERANCE,
) -> BackendChoice:
    """Time each backend on a few batches; return the fastest whose error is within *tolerance*.

    Only one backend at a time is in memory. Of two equally fast backends, the one that comes first
    in *names* is chosen.

    Args:
        make: function that receives the name of a backend and a dtype, and returns the backend. If
            the function raises an error, the backend is not chosen, and its trial records the
            error.
        names: names of the backends to try. The first must be PyTorch, because the results of the
            other backends are compared with its results.
        patches: non-empty batches (n, c, z, y, x) float32, on the device.
        dtype: dtype of the production run, used for timing; errors are measured in float32.
        tolerance: largest error allowed in float32.

    Raises:
        ModelError: no backend can run the network.
        ChunkflowError: the first backend failed; its error is passed on.
    """
    wanted: list[torch.Tensor] = []
    trials: list[BackendTrial] = []
    for name in names:
        try:
            trial = _measure(make, name, patches, dtype, wanted)
        except Exception as error:
            if not trials:
                raise
            logger.debug("backend %s", name, exc_info=True)
            cause = str(error) if isinstance(error, ChunkflowError) else repr(error)
            trial = BackendTrial(name, reason=cause)
        else:
            error_found = trial.error if trial.error is not None else float("inf")
            if not error_found <= tolerance:
                why = f"the error is above the tolerance, {tolerance:.0e}"
                trial = BackendTrial(name, trial.seconds, trial.error, why)
        gc.collect()
        logger.info("--backend auto tried %s", trial)
        trials.append(trial)
    choice = BackendChoice(fastest(trials).name, tuple(trials))
    logger.info("--backend auto chose %s", choice.name)
    return choice


def fastest(trials: Sequence[BackendTrial]) -> BackendTrial:
    """Return the fastest trial of a backend that can be chosen (its ``reason`` is empty).

    A later trial is preferred to an earlier one only if the later trial is more than 2 % faster,
    because timings vary by about 2 %.

    Raises:
        ModelError: no backend can be chosen.
    """
    best: BackendTrial | None = None
    for each in trials:
        if each.reason or each.seconds is None:
            continue
        if best is None or best.seconds is None or each.seconds * _TIE < best.seconds:
            best = each
    if best is None:
        msg = f"no backend can run the network: {'; '.join(map(str, trials))}"
        raise ModelError(msg)
    return best


def example_patches(
    shape: Sequence[int], *, number: int = 2, seed: int = 0, device: torch.device | None = None
) -> list[torch.Tensor]:
    """Return synthetic batches of blobs, edges and noise, with values in [0, 1].

    Args:
        shape: shape of a batch, (n, c, z, y, x).
        number: number of batches; no two batches are equal.
        seed: seed of the random numbers.
        device: device of the batches (default: the CPU).
    """
    generator = torch.Generator().manual_seed(seed)
    size = tuple(shape[2:])
    batches = []
    for _ in range(number):
        small = torch.rand((*shape[:2], *(-(-s // 8) for s in size)), generator=generator)
        blobs = torch.nn.functional.interpolate(small, size=size, mode="nearest")
        batch = blobs.mul_(0.8).add_(torch.rand(tuple(shape), generator=generator), alpha=0.2)
        batches.append(batch.to(device or torch.device("cpu")))
    return batches


def _measure(
    make: Callable[[str, str], Backend],
    name: str,
    patches: Sequence[torch.Tensor],
    dtype: str,
    wanted: list[torch.Tensor],
) -> BackendTrial:
    # The first backend (PyTorch) fills *wanted*; the errors of the others are measured against it.
    error = 0.0

    def compare(index: int, found: torch.Tensor) -> None:
        nonlocal error
        if len(wanted) <= index:
            wanted.append(found.float().cpu().clone())
        error = max(error, _difference(found.float().cpu(), wanted[index]))

    def timed(dtype: str, compare: Callable[[int, torch.Tensor], None] | None = None) -> float:
        backend = make(name, dtype)
        backend(patches[0])
        return seconds_per_batch(backend, patches, on_output=compare)

    seconds = timed("float32", compare)
    if dtype != "float32":
        gc.collect()
        seconds = timed(dtype)
    return BackendTrial(name, seconds, error)


def seconds_per_batch(
    backend: Backend,
    batches: Sequence[torch.Tensor],
    *,
    most: int = 2,
    enough_s: float = 0.0,
    on_output: Callable[[int, torch.Tensor], None] | None = None,
) -> float:
    """Return the median time of a forward pass in seconds.

    Before this call, run the backend once, because the first pass of a backend is slow.

    Args:
        backend: backend to measure.
        batches: batches to run in turn, each at least once.
        most: number of forward passes; if there are more batches, each batch is run once.
        enough_s: stop early when the passes have taken this many seconds in total; 0 for never. An
            early stop needs at least three passes, and one pass for each batch.
        on_output: called once for each batch, with the index of the batch and the output.
    """
    seconds: list[float] = []
    with torch.inference_mode():
        while len(seconds) < max(most, len(batches)):
            if len(seconds) >= max(3, len(batches)) and sum(seconds) >= enough_s > 0:
                break
            index = len(seconds)
            _finish(backend.device)
            start = time.perf_counter()
            output = backend(batches[index % len(batches)])
            _finish(backend.device)
            seconds.append(time.perf_counter() - start)
            if on_output is not None and index < len(batches):
                on_output(index, output)
    return statistics.median(seconds)


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    if found.shape != wanted.shape:
        return math.inf
    error = error_against(wanted, found).largest / max(1.0, float(wanted.abs().max()))
    return math.inf if math.isnan(error) else error

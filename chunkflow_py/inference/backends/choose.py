"""Choose the fastest library that computes what PyTorch computes: `--backend auto`."""

from __future__ import annotations

import gc
import logging
import math
import statistics
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from chunkflow_py.errors import ChunkflowError, ModelError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from chunkflow_py.inference.backends.protocol import Backend

logger = logging.getLogger(__name__)

TOLERANCE = 1e-5
_RUNS = 3  # of which the first one warms up and is not timed
_TIE = 1.02  # a later candidate has to be faster by more than what timings scatter


@dataclass(frozen=True)
class Candidate:
    """What was measured of one library.

    Attributes:
        name: of the backend.
        seconds: median for one batch in the dtype that was asked for; ``None`` if it did not run.
        error: largest difference from PyTorch, both in float32, divided by the largest value if
            that is above 1; ``None`` if it did not run.
        reason: why it cannot be chosen; empty if it can.
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
class Choice:
    """The library that was chosen, and all that were looked at.

    Attributes:
        name: of the backend.
        candidates: in the order in which they were measured.
    """

    name: str
    candidates: tuple[Candidate, ...]


def choose_backend(
    make: Callable[[str, str], Backend],
    names: Sequence[str],
    patches: Sequence[torch.Tensor],
    *,
    dtype: str = "float32",
    tolerance: float = TOLERANCE,
) -> Choice:
    """Measure each library on a few batches and return the fastest that is exact.

    One library at a time is in memory. Of two that are equally fast, the first one wins.

    Args:
        make: makes the backend of a name for a dtype; what it raises is why it is not chosen.
        names: of backends. The first one, PyTorch, is what the others are compared with.
        patches: non-empty batches (n, c, z, y, x) float32, on the device.
        dtype: to be used; errors are measured in float32 all the same.
        tolerance: largest error in float32.

    Raises:
        ModelError: no library runs the network.
        ChunkflowError: the first library does not, and that for a reason of its own.
    """
    wanted: list[torch.Tensor] = []
    candidates: list[Candidate] = []
    for name in names:
        try:
            candidate = _measure(make, name, patches, dtype, wanted)
        except Exception as error:
            if not candidates:
                raise
            logger.debug("backend %s", name, exc_info=True)
            said = str(error) if isinstance(error, ChunkflowError) else repr(error)
            candidate = Candidate(name, reason=said)
        else:
            error_found = candidate.error if candidate.error is not None else float("inf")
            if not error_found <= tolerance:
                why = f"the error is above {tolerance:.0e}"
                candidate = Candidate(name, candidate.seconds, candidate.error, why)
        gc.collect()
        logger.info("--backend auto tried %s", candidate)
        candidates.append(candidate)
    choice = Choice(fastest(candidates).name, tuple(candidates))
    logger.info("--backend auto chose %s", choice.name)
    return choice


def fastest(candidates: Sequence[Candidate]) -> Candidate:
    """Return the candidate that is fastest by more than 2 % of those that can be chosen.

    Raises:
        ModelError: none can.
    """
    best: Candidate | None = None
    for each in candidates:
        if each.reason or each.seconds is None:
            continue
        if best is None or best.seconds is None or each.seconds * _TIE < best.seconds:
            best = each
    if best is None:
        msg = f"no backend runs the network: {'; '.join(map(str, candidates))}"
        raise ModelError(msg)
    return best


def example_patches(
    shape: Sequence[int], *, number: int = 2, seed: int = 0, device: torch.device | None = None
) -> list[torch.Tensor]:
    """Return batches in [0, 1] that look a little like an image: blobs, edges and noise.

    Args:
        shape: of a batch, (n, c, z, y, x).
        number: of batches; all differ.
        seed: of the random numbers.
        device: where they are to be; the CPU, if ``None``.
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
) -> Candidate:
    """Return error and seconds of one library; the first one fills *wanted*."""
    error = 0.0

    def compare(index: int, found: torch.Tensor) -> None:
        nonlocal error
        if len(wanted) <= index:
            wanted.append(found.float().cpu().clone())
        error = max(error, _difference(found.float().cpu(), wanted[index]))

    seconds = _time(make(name, "float32"), patches, compare)
    if dtype != "float32":
        gc.collect()
        seconds = _time(make(name, dtype), patches, None)
    return Candidate(name, seconds, error)


def _time(
    backend: Backend,
    patches: Sequence[torch.Tensor],
    compare: Callable[[int, torch.Tensor], None] | None,
) -> float:
    seconds = []
    for run in range(max(_RUNS, len(patches))):
        index = run % len(patches)
        _finish(backend.device)
        start = time.perf_counter()
        found = backend(patches[index])
        _finish(backend.device)
        seconds.append(time.perf_counter() - start)
        if compare is not None and run < len(patches):
            compare(index, found)
    return statistics.median(seconds[1:])


def _finish(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _difference(found: torch.Tensor, wanted: torch.Tensor) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    largest = float((found - wanted).abs().max())
    error = largest / max(1.0, float(wanted.abs().max()))
    return float("inf") if math.isnan(error) else error

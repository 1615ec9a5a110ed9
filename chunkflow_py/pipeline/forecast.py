"""Estimate the peak memory of a pipeline before the first task reads its input.

The estimate is the sum of:

- the current memory of the process;
- for each operator, the memory that does not depend on the number of tasks;
- for each stage (read, compute, write), the number of its simultaneous tasks, times the largest
  memory that one task needs in this stage. In the read stage, for example, a task needs its chunk
  and the blocks that are being decoded.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoxGrid, Zyx
from chunkflow_py.core.host_memory import (
    FIRST_USE,
    OperatorMemory,
    available_host_bytes,
    describe_bytes,
    resident_bytes,
)
from chunkflow_py.core.outline import ScaledBoxes
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.overlap import stages_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.pipeline.operator import Operator
    from chunkflow_py.pipeline.overlap import Stage

logger = logging.getLogger(__name__)

RESIDENT = "interpreter, libraries and weights"  # does not depend on the size of tasks
_DOING = {"read": "reading", "compute": "computing", "write": "writing"}


@dataclass(frozen=True)
class PipelineMemory:
    """Estimated peak of the host memory of a pipeline.

    Attributes:
        parts: bytes of each part of the estimate. Each key describes its part, such as ``reading``.
        unknown: names of operators whose memory is unknown and therefore not in *parts*.
    """

    parts: dict[str, int]
    unknown: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """The sum of all known parts, bytes."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        parts = ", ".join(f"{name} {describe_bytes(n)}" for name, n in self.parts.items() if n)
        known = f"{describe_bytes(self.bytes)} of host memory ({parts})"
        if not self.unknown:
            return known
        return f"at least {known}; more for {', '.join(self.unknown)}, whose memory is unknown"


def choose_ahead(
    operators: Sequence[Operator],
    ahead: int | None,
    voxels: Mapping[str, Mapping[str, Voxels | None]],
    extents: Mapping[str, Zyx],
    tasks: int | None,
) -> int:
    """Log the estimated peak memory; return the number of tasks to prefetch per stage.

    Args:
        operators: operators of the pipeline, after their ``__enter__``.
        ahead: requested number of tasks; ``None`` chooses 1 if memory suffices, else 0.
        voxels: dtype, channels and kind of each output, by operator name and item name.
        extents: sizes of outputs, voxels, zyx, by operator name.
        tasks: number of tasks, if known.

    Raises:
        OptionError: not even one task at a time fits into memory; the message names a task size
            that fits, if one is known.
    """

    def expected(ahead: int) -> PipelineMemory:
        return estimate_memory(stages_of(operators, ahead), voxels, extents, tasks if ahead else 1)

    chosen = 1 if ahead is None else ahead
    if not any(operator.hooks.declares("memory") for operator in operators):
        return chosen  # no part is known
    estimate, available = expected(chosen), available_host_bytes()
    if available is not None and estimate.bytes > available:
        least, limit = expected(0), describe_bytes(available)
        if least.bytes > available:
            _refuse(operators, least, limit)
        peak = (
            f"--ahead {chosen} is expected to peak at {describe_bytes(estimate.bytes)} of host "
            "memory"
        )
        if ahead is None:
            logger.info("%s, and %s are available: using --ahead 0", peak, limit)
            chosen, estimate = 0, least
        else:
            less = describe_bytes(least.bytes)
            logger.warning("%s, and %s are available; --ahead 0 would take %s", peak, limit, less)
    logger.info("expected peak: %s", estimate)
    return chosen


def _refuse(operators: Sequence[Operator], least: PipelineMemory, available: str) -> None:
    for operator in operators:
        operator.hooks.check_memory(least.bytes)
    msg = (
        f"the run is expected to peak at {describe_bytes(least.bytes)} of host memory, and "
        f"{available} are available; make the tasks smaller"
    )
    raise OptionError(msg)


def estimate_memory(
    stages: Sequence[Stage],
    voxels: Mapping[str, Mapping[str, Voxels | None]],
    extents: Mapping[str, Zyx],
    tasks: int | None = None,
) -> PipelineMemory:
    """Estimate the peak memory of a pipeline.

    Args:
        stages: stages of the pipeline, in order.
        voxels: dtype, channels and kind of each output, by operator name and item name.
        extents: sizes of the outputs of operators without an input, such as loaders, voxels, zyx,
            by operator name. Sizes that an operator estimates itself take precedence.
        tasks: upper limit of simultaneous tasks.
    """
    parts: dict[str, int] = {RESIDENT: resident_bytes() + FIRST_USE}
    unknown: list[str] = []
    sizes: dict[str, Zyx | None] = {}
    alive: dict[str, int] = {}
    peaks = []
    for stage in stages:
        peak = 0
        for operator in stage.operators:
            first = operator.inputs[0] if operator.inputs else ""
            read = sizes.get(first) if first else extents.get(operator.name)
            need, known = _need(operator, read, alive.get(first, 0))
            extent = need.size or read
            made = {}
            for item in operator.outputs:
                held = voxels.get(operator.name, {}).get(item)
                known = known and held is not None and extent is not None
                # Unknown voxels count as one byte each; the operator is listed as unknown.
                made[item] = 0 if extent is None else extent.product() * voxel_bytes(held)
                sizes[item] = extent
            peak = max(peak, sum(alive.values()) + sum(made.values()) + need.work)
            alive.update(made)
            for item in operator.hooks.removes:
                alive.pop(item, None)
            for part, amount in need.held.items():
                parts[part] = parts.get(part, 0) + amount
            if not known:
                unknown.append(operator.name)
        peaks.append((peak, stage))
    doing = {_DOING[stage.name]: 0 for _, stage in peaks}
    remaining = tasks
    for peak, stage in sorted(peaks, key=lambda pair: -pair[0]):
        count = stage.tasks if remaining is None else min(stage.tasks, remaining)
        remaining = None if remaining is None else remaining - count
        doing[_DOING[stage.name]] += count * peak
    parts |= {name: amount for name, amount in doing.items() if amount}
    return PipelineMemory(parts, tuple(unknown))


def largest_size(boxes: Boxes | None) -> Zyx | None:
    """Return the size of the largest of *boxes*; ``None`` without boxes."""
    if isinstance(boxes, BoxGrid):
        return boxes.size
    if isinstance(boxes, ScaledBoxes):
        return boxes.largest
    return max((box.size for box in boxes or ()), key=Zyx.product, default=None)


def _need(operator: Operator, size: Zyx | None, read: int) -> tuple[OperatorMemory, bool]:
    """Return the memory of an operator, and whether all of this memory is known.

    An operator without an estimate is assumed to make chunks as large as its input. A saver without
    an estimate is assumed to hold one encoded copy of its input.
    """
    estimate = operator.hooks.memory(size)
    if estimate is not None:
        return estimate, estimate.complete
    work = read if operator.stage == "write" else 0
    return OperatorMemory(work=work), not operator.hooks.declares("memory")


def voxel_bytes(voxels: Voxels | None) -> int:
    """Return the bytes of one voxel with all its channels; 1 if *voxels* is ``None``."""
    import numpy as np

    return 1 if voxels is None else np.dtype(voxels.dtype).itemsize * voxels.channels

"""The memory that a whole line takes at its peak, told before the first read.

```
a task     read: chunk, blocks | compute: chunk, result | write: result, encoded      its largest
                                                                                    state in a lane
the line   what the process holds now + what operators hold for all tasks
           + for each lane, the tasks in it at once x the largest state of one
```
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
from chunkflow_py.errors import OptionError
from chunkflow_py.pipeline.hooks import ChecksMemory, HasMemory, RemovesItems
from chunkflow_py.pipeline.lanes import lanes_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.core.chunk import Voxels
    from chunkflow_py.pipeline.hooks import Boxes
    from chunkflow_py.pipeline.lanes import Lane
    from chunkflow_py.pipeline.operator import Operator

logger = logging.getLogger(__name__)

RESIDENT = "interpreter, libraries and weights"  # a part that does not grow with the tasks
_DOING = {"read": "reading", "compute": "computing", "write": "writing"}


@dataclass(frozen=True)
class LineForecast:
    """Expected peak of a line's memory on the host.

    Attributes:
        parts: bytes by what takes them.
        unknown: names of operators of which not all is known, so that it may be more.
    """

    parts: dict[str, int]
    unknown: tuple[str, ...] = ()

    @property
    def bytes(self) -> int:
        """All parts together."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        """Return one line."""
        parts = ", ".join(f"{name} {describe_bytes(n)}" for name, n in self.parts.items() if n)
        line = f"{describe_bytes(self.bytes)} of host memory ({parts})"
        if not self.unknown:
            return line
        return f"at least {line}, and what is not known of {', '.join(self.unknown)}"


def choose_ahead(
    stages: Sequence[Operator],
    ahead: int | None,
    voxels: Mapping[str, Mapping[str, Voxels | None]],
    extents: Mapping[str, Zyx],
    tasks: int | None,
) -> int:
    """Tell how much memory a line will take, and return how many tasks lanes may work ahead.

    Args:
        stages: operators of the line, entered.
        ahead: the number that was asked for; ``None``: 1 if the memory for it is there, else 0.
        voxels: what each operator makes, as `forecast` takes it.
        extents: of what operators without an input make, as `forecast` takes them.
        tasks: of the line, if their number is known.

    Raises:
        OptionError: it does not fit with one task at a time either; names what would, if known.
    """

    def expected(ahead: int) -> LineForecast:
        return forecast(lanes_of(stages, ahead), voxels, extents, tasks if ahead else 1)

    chosen = 1 if ahead is None else ahead
    if not any(isinstance(stage.body, HasMemory) for stage in stages):
        return chosen  # nothing is known
    told, available = expected(chosen), available_host_bytes()
    if available is not None and told.bytes > available:
        least, there = expected(0), describe_bytes(available)
        if least.bytes > available:
            _refuse(stages, least, there)
        words = f"--ahead {chosen} is expected to peak at {describe_bytes(told.bytes)}"
        if ahead is None:
            logger.info("%s, and %s are available: going on with --ahead 0", words, there)
            chosen, told = 0, least
        else:
            less = describe_bytes(least.bytes)
            logger.warning("%s, and %s are available; --ahead 0 would take %s", words, there, less)
    logger.info("expected peak: %s", told)
    return chosen


def _refuse(stages: Sequence[Operator], least: LineForecast, available: str) -> None:
    for stage in stages:
        if isinstance(stage.body, ChecksMemory):
            stage.body.check_memory(least.bytes)
    msg = (
        f"the run is expected to peak at {describe_bytes(least.bytes)} of host memory, and "
        f"{available} are available; make the tasks smaller"
    )
    raise OptionError(msg)


def forecast(
    lanes: Sequence[Lane],
    voxels: Mapping[str, Mapping[str, Voxels | None]],
    extents: Mapping[str, Zyx],
    tasks: int | None = None,
) -> LineForecast:
    """Return what a line takes at its peak.

    Args:
        lanes: of the line, in order.
        voxels: what each operator makes, by its name and that of the item.
        extents: of what operators without an input make, where they do not say it, by their name.
        tasks: there are no more than this many in flight.
    """
    parts: dict[str, int] = {RESIDENT: resident_bytes() + FIRST_USE}
    unknown: list[str] = []
    sizes: dict[str, Zyx | None] = {}
    alive: dict[str, int] = {}
    peaks = []
    for lane in lanes:
        peak = 0
        for stage in lane.stages:
            first = stage.inputs[0] if stage.inputs else ""
            read = sizes.get(first) if first else extents.get(stage.name)
            need, known = _need(stage, read, alive.get(first, 0))
            extent = need.size or read
            made = {}
            for item in stage.outputs:
                held = voxels.get(stage.name, {}).get(item)
                known = known and held is not None and extent is not None
                # What is not known is taken for bytes, and told to be more.
                made[item] = 0 if extent is None else extent.product() * voxel_bytes(held)
                sizes[item] = extent
            peak = max(peak, sum(alive.values()) + sum(made.values()) + need.work)
            alive.update(made)
            for item in stage.body.removes if isinstance(stage.body, RemovesItems) else ():
                alive.pop(item, None)
            for part, amount in need.held.items():
                parts[part] = parts.get(part, 0) + amount
            if not known:
                unknown.append(stage.name)
        peaks.append((peak, lane))
    doing = {_DOING[lane.name]: 0 for _, lane in peaks}
    left = tasks
    for peak, lane in sorted(peaks, key=lambda pair: -pair[0]):
        count = lane.tasks if left is None else min(lane.tasks, left)
        left = None if left is None else left - count
        doing[_DOING[lane.name]] += count * peak
    parts |= {name: amount for name, amount in doing.items() if amount}
    return LineForecast(parts, tuple(unknown))


def largest_size(boxes: Boxes | None) -> Zyx | None:
    """Return the extent of the largest of *boxes*, if there are any."""
    if isinstance(boxes, BoxGrid):
        return boxes.size
    return max((box.size for box in boxes or ()), key=Zyx.product, default=None)


def _need(stage: Operator, size: Zyx | None, read: int) -> tuple[OperatorMemory, bool]:
    """Return what an operator takes, and whether it is known.

    One that does not say makes chunks as large as it reads; to save one takes a copy, encoded.
    """
    said = stage.body.memory(size) if isinstance(stage.body, HasMemory) else None
    if said is not None:
        return said, said.complete
    work = read if stage.lane == "write" else 0
    return OperatorMemory(work=work), not isinstance(stage.body, HasMemory)


def voxel_bytes(voxels: Voxels | None) -> int:
    """Return what one voxel takes with all its channels; 1 if it is not known."""
    import numpy as np

    return 1 if voxels is None else np.dtype(voxels.dtype).itemsize * voxels.channels

"""What is asked about a line, and what is answered: plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.planning.durations import Crew

if TYPE_CHECKING:
    from pathlib import Path

    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.pipeline.operator import Operator, Source
    from chunkflow_py.planning.amounts import Patches, Transfer
    from chunkflow_py.planning.durations import Duration
    from chunkflow_py.planning.prices import Cost, Instance, Prices
    from chunkflow_py.planning.suggestion import Suggestion


@dataclass(frozen=True)
class PlannedLine:
    """A line to plan.

    Attributes:
        name: of the stage.
        operators: of it.
        source: that makes the tasks; ``None``: it runs once.
        words: as it was typed, source included.
        mip: the global option.
        ahead: the global option.
    """

    name: str
    operators: tuple[Operator, ...]
    source: Source | None
    words: tuple[str, ...]
    mip: int = 0
    ahead: int | None = None


@dataclass(frozen=True)
class PlanSettings:
    """What is told about the run.

    Attributes:
        module: that rehearses, run as ``python -m``; ``None``: nothing is rehearsed.
        rehearsal_s: seconds after which a rehearsal ends.
        crew: who works.
        memory_bytes: of a machine (default: that of the instance, else of this one).
        instance: type of machine.
        price: dollars an hour of a machine.
        price_file: table of prices.
        seconds_per_task: in one process, instead of what is measured.
        speeds: what `chunkflow tune --json` has printed.
    """

    module: str | None = None
    rehearsal_s: float = 60.0
    crew: Crew = field(default_factory=Crew)
    memory_bytes: int | None = None
    instance: str | None = None
    price: float | None = None
    price_file: Path | None = None
    seconds_per_task: float | None = None
    speeds: Path | None = None


@dataclass(frozen=True)
class Memory:
    """What a process takes at its peak.

    Attributes:
        bytes: of the host.
        how: where this comes from.
        foretold_bytes: by what operators say.
        parts: of what is foretold, by what takes it.
        unknown: operators of which not all is foretold.
        device_bytes: of a GPU, foretold; 0 without one.
    """

    bytes: int
    how: str
    foretold_bytes: int
    parts: dict[str, int]
    unknown: tuple[str, ...] = ()
    device_bytes: int = 0

    @property
    def is_least(self) -> bool:
        """Whether a process may take more, by what nobody could estimate."""
        return bool(self.unknown) and self.how.startswith("foretold")


@dataclass
class StagePlan:
    """What one stage takes.

    Attributes:
        name: of the stage.
        tasks: how many.
        task_size: of the largest, voxels, zyx, if it is known.
        reads: of volumes.
        writes: to volumes.
        patches: of networks.
        stored: operator -> bytes of all tasks as they are stored, by what was measured.
        memory: of a process.
        duration: of the stage.
        hours: of all machines together.
        cost: on demand, or at the price that was told.
        spot: the same at the spot price, if it is known.
        suggestion: a better size of tasks.
        misfits: why it cannot run as it is, each with what would fit.
        notes: what else is to be known.
    """

    name: str
    tasks: int = 0
    task_size: Zyx | None = None
    reads: list[Transfer] = field(default_factory=list)
    writes: list[Transfer] = field(default_factory=list)
    patches: list[Patches] = field(default_factory=list)
    stored: dict[str, int] = field(default_factory=dict)
    memory: Memory | None = None
    duration: Duration | None = None
    hours: float | None = None
    cost: Cost | None = None
    spot: Cost | None = None
    suggestion: Suggestion | None = None
    misfits: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class LinePlan:
    """What a line takes.

    Attributes:
        stages: one after the other.
        crew: who works.
        prices: that costs come from.
        instance: that was named.
        price: dollars an hour that were told.
    """

    stages: list[StagePlan]
    crew: Crew
    prices: Prices
    instance: Instance | None = None
    price: float | None = None

    @property
    def fits(self) -> bool:
        """Whether it can run as it is."""
        return not any(stage.misfits for stage in self.stages)

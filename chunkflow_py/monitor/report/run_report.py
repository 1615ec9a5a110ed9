"""The measurements that a report shows of a run."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx, hull_of
from chunkflow_py.monitor.report.seam_measure import FACES, sampled, seams_of
from chunkflow_py.monitor.report.volume_planes import planes_of, volumes_of
from chunkflow_py.monitor.run_facts import StepFacts
from chunkflow_py.run.repair import damages_of
from chunkflow_py.store import open_store

if TYPE_CHECKING:
    from chunkflow_py.monitor.report.seam_measure import Seams
    from chunkflow_py.monitor.report.volume_planes import RunVolume, VolumePlanes
    from chunkflow_py.planning.prices import Prices
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep, Spec
    from chunkflow_py.run.verify import Damage
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

MOST_FAILED = 20  # failed tasks that are listed with their attempts, and findings of verify


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        at: the point through which planes are shown, in voxels of the tasks, zyx (default: the
            middle of the tasks).
        faces: of tasks, along each axis, to look for seams at; 0: none.
        failed: tasks that were given up, to list.
        verify: read again all that was stored.
        price: dollars for an hour of one worker, if known.
        prices: of requests and storage.
    """

    at: Zyx | None = None
    faces: int = FACES
    failed: int = MOST_FAILED
    verify: bool = False
    price: float | None = None
    prices: Prices | None = None


@dataclass
class StepReport:
    """The contents of a report about one step.

    Attributes:
        stage: of the spec.
        facts: sums over its records.
        profile: compute profile that its first worker has set; empty if none did.
        taken_from: URL of the run whose output was taken over.
        closed: whether all tasks have ended well, so that the next stage is open.
        volumes: that it reads and writes.
        others: what else it reads and writes, as sentences.
        planes: of the volumes that no earlier step has shown.
        seams: of what it has written.
    """

    stage: RunStep
    facts: StepFacts
    profile: dict[str, str]
    taken_from: str | None
    closed: bool
    volumes: list[RunVolume] = field(default_factory=list)
    others: list[str] = field(default_factory=list)
    planes: list[VolumePlanes] = field(default_factory=list)
    seams: list[Seams] = field(default_factory=list)

    @property
    def left(self) -> int:
        """Number of tasks that have not ended."""
        return self.stage.tasks - self.facts.finished


@dataclass
class RunReport:
    """The contents of a report about a run.

    Attributes:
        address: of the run, with its digest.
        spec: of the run.
        options: of the report.
        stages: of it.
        damages: what `verify` has found, the first ones, with the name of the stage; ``None`` if
            it was not run.
        damage_kinds: what it has found -> how often.
    """

    address: str
    spec: Spec
    options: ReportOptions
    stages: list[StepReport]
    damages: list[tuple[str, Damage]] | None = None
    damage_kinds: Counter[str] = field(default_factory=Counter)

    @property
    def left(self) -> int:
        """Number of tasks of all steps that have not ended."""
        return sum(stage.left for stage in self.stages)

    @property
    def dead(self) -> int:
        """Number of tasks of all steps that were given up."""
        return sum(stage.facts.dead for stage in self.stages)


def report_of(home: RunDirectory, options: ReportOptions) -> RunReport:
    """Collect the contents of a report; the run is not changed.

    Memory does not grow with the number of tasks. A volume that cannot be read becomes a problem in
    the report.

    Raises:
        ChunkflowError: the run cannot be read.
    """
    shown: set[tuple[str, int]] = set()
    stages = [_stage_report(home, stage, options, shown) for stage in home.spec.steps]
    report = RunReport(home.address, home.spec, options, stages)
    if options.verify:
        report.damages = []
        for name, damage in damages_of(home):
            report.damage_kinds[damage.kind] += 1
            if len(report.damages) < MOST_FAILED:
                report.damages.append((name, damage))
    return report


def _stage_report(
    home: RunDirectory, stage: RunStep, options: ReportOptions, shown: set[tuple[str, int]]
) -> StepReport:
    logger.info("reading the records of stage %s: %d tasks", stage.name, stage.tasks)
    ledger, plan = home.ledger(stage.name), home.plan(stage.name)
    taken = home.spec.reused.get(stage.name)
    store = home.store if taken is None else open_store(taken)
    report = StepReport(
        stage,
        StepFacts.of_step(stage.name, ledger, options.failed),
        json.loads(store.get(f"stages/{stage.name}/profile.json") or b"{}"),
        taken,
        home.is_closed(stage.name),
    )
    report.volumes, report.others = volumes_of(stage)
    region = _region(plan)
    if region is None:
        return report
    point = options.at or region.start + region.size // 2
    point = point.high(region.start).low(region.stop - 1)
    for place in report.volumes:
        if (place.address, place.mip) not in shown:
            shown.add((place.address, place.mip))
            report.planes.append(planes_of(place, region, point))
    outputs = [place for place in report.volumes if place.role == "output"]
    if outputs and options.faces and report.facts.done:
        seed = int(stage.hash[:8], 16)
        faces = sampled(plan, ledger, options.faces, seed)
        report.seams = [seams_of(place, faces, seed) for place in outputs]
    return report


def _region(plan: Plan) -> BoundingBox | None:
    """Return the box around all tasks."""
    boxes = plan.boxes
    return boxes.bounds if isinstance(boxes, BoxGrid) else hull_of(boxes)

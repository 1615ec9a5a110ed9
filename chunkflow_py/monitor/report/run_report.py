"""Collect the measurements that the report on a run shows."""

from __future__ import annotations

import json
import logging
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx, hull_of
from chunkflow_py.monitor.provenance import counts_of
from chunkflow_py.monitor.report.seam_measure import FACES, sampled, seams_of
from chunkflow_py.monitor.report.volume_planes import planes_of
from chunkflow_py.monitor.run_facts import StepFacts
from chunkflow_py.monitor.run_volumes import volumes_of
from chunkflow_py.run.repair import damages_of
from chunkflow_py.run.spending import spending_text
from chunkflow_py.store import open_store

if TYPE_CHECKING:
    from chunkflow_py.monitor.provenance import Facts
    from chunkflow_py.monitor.report.seam_measure import Seams
    from chunkflow_py.monitor.report.volume_planes import VolumePlanes
    from chunkflow_py.monitor.run_volumes import RunVolume
    from chunkflow_py.planning.prices import Prices
    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep, Spec
    from chunkflow_py.run.submission_record import SubmissionRecord
    from chunkflow_py.run.verify import Damage
    from chunkflow_py.tasks.task_plan import Plan

logger = logging.getLogger(__name__)

MOST_FAILED = 20  # most failed tasks, and most findings of verify, that are listed


@dataclass(frozen=True)
class ReportOptions:
    """Options of a report.

    Attributes:
        at: point that the three image planes contain, zyx, in voxels at the resolution of the tasks
            (default: the centre of the box around all tasks).
        faces: number of task boundaries, along each axis, at which seams are measured; 0 to measure
            no seams.
        failed: limit of the number of given-up tasks that the report lists.
        verify: whether to read all stored output again, and compare it with the records.
        price: US dollars per hour of one worker; ``None`` if unknown.
        prices: prices of requests and storage; ``None`` if unknown.
    """

    at: Zyx | None = None
    faces: int = FACES
    failed: int = MOST_FAILED
    verify: bool = False
    price: float | None = None
    prices: Prices | None = None


@dataclass
class StepReport:
    """The contents of a report on one step.

    Attributes:
        stage: the step, as the spec describes it.
        facts: totals over the records of the step.
        profile: compute profile (backend, device, threads and precision) that the first worker of
            the step has stored; empty if no worker has begun.
        taken_from: URL of the run whose output is used for this step; ``None`` if this run executes
            the step.
        closed: whether all tasks have ended and none was given up; the next step may then begin.
        volumes: volumes that the step reads and writes.
        others: sentences about the files and other addresses that the step reads or writes.
        planes: images of *volumes*, except volumes that were already shown for an earlier step.
        seams: seam measures of the volumes that the step writes.
        origins: number of tasks for each combination of facts about the worker, such as its
            version; see `chunkflow_py.monitor.provenance`.
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
    origins: Counter[Facts] = field(default_factory=Counter)

    @property
    def left(self) -> int:
        """Number of tasks that have not ended."""
        return self.stage.tasks - self.facts.finished


@dataclass
class RunReport:
    """The contents of a report on a run.

    Attributes:
        address: address of the run, with the hash of its spec.
        spec: spec of the run.
        options: options of the report.
        stages: contents of the report on each step.
        damages: findings of `verify`, each with the name of its step, up to a limit; ``None`` if
            the output was not verified.
        damage_kinds: number of findings of `verify`, by the kind of problem.
        spending: phrase about the cost that workers have reported, and about the budget of the run;
            empty if no cost is reported and the run has no budget.
        submission: who submitted the run; ``None`` if this was not recorded.
    """

    address: str
    spec: Spec
    options: ReportOptions
    stages: list[StepReport]
    damages: list[tuple[str, Damage]] | None = None
    damage_kinds: Counter[str] = field(default_factory=Counter)
    spending: str = ""
    submission: SubmissionRecord | None = None

    @property
    def left(self) -> int:
        """Number of tasks of all steps that have not ended."""
        return sum(stage.left for stage in self.stages)

    @property
    def dead(self) -> int:
        """Number of tasks of all steps that were given up."""
        return sum(stage.facts.dead for stage in self.stages)


def report_of(home: RunDirectory, options: ReportOptions) -> RunReport:
    """Collect the contents of a report on a run, without changing the run.

    The memory needed does not grow with the number of tasks. If a volume cannot be read, the report
    shows the reason instead of the volume.

    Raises:
        ChunkflowError: the run cannot be read.
    """
    shown: set[tuple[str, int]] = set()
    stages = [_stage_report(home, stage, options, shown) for stage in home.spec.steps]
    report = RunReport(
        home.address,
        home.spec,
        options,
        stages,
        spending=spending_text(home),
        submission=home.submission,
    )
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
    logger.info("reading the records of step %s: %d tasks", stage.name, stage.tasks)
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
    report.origins = counts_of(store, report.facts.attempts)
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
    """Return the box around all tasks of a plan; ``None`` if there are no tasks."""
    boxes = plan.boxes
    return boxes.bounds if isinstance(boxes, BoxGrid) else hull_of(boxes)

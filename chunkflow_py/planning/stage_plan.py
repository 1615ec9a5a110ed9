"""All that a line will take, and all that does not fit, before anything is made."""

from __future__ import annotations

from dataclasses import replace
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoxGrid
from chunkflow_py.core.memory import available_host_bytes, describe_bytes
from chunkflow_py.errors import ChunkflowError, VolumeNotFoundError
from chunkflow_py.pipeline.forecast import RESIDENT
from chunkflow_py.pipeline.hooks import HasSingleWriter
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.planning.amounts import (
    domain_of,
    largest_task,
    middle_box,
    patches_of,
    reads_of,
    total,
    writes_of,
)
from chunkflow_py.planning.durations import mean_work, measured_duration, told_duration
from chunkflow_py.planning.observation import observe
from chunkflow_py.planning.plans import LinePlan, Memory, StagePlan
from chunkflow_py.planning.prices import cost_of, load_prices
from chunkflow_py.planning.rehearsal import left_out
from chunkflow_py.planning.speeds import speed_duration
from chunkflow_py.planning.suggestion import KEPT, better_size, cut_stride
from chunkflow_py.planning.tasks import middle_tasks, plan_of, spread_boxes
from chunkflow_py.run.step_pipeline import check_margins, worker_pipeline
from chunkflow_py.volume.output import VolumeOutput

if TYPE_CHECKING:
    from collections.abc import Sequence

    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.pipeline.hooks import Boxes
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.planning.durations import Duration
    from chunkflow_py.planning.observation import Observation
    from chunkflow_py.planning.plans import PlannedLine, PlanSettings
    from chunkflow_py.planning.prices import Instance, Prices

_REHEARSED = 256  # tasks at most, which follow each other


def plan_line(lines: Sequence[PlannedLine], settings: PlanSettings) -> LinePlan:
    """Return what the stages of a line take; what is made for a rehearsal is removed.

    Raises:
        OptionError: the prices, or the speeds, are of no use.
    """
    prices = load_prices(settings.price_file)
    instance = None if settings.instance is None else prices.instance(settings.instance)
    stages: list[StagePlan] = []
    for line in lines:
        stages.append(_Planner(line, settings, prices, instance, is_first=not stages).plan())
    return LinePlan(stages, settings.crew, prices, instance, settings.price)


class _Planner:
    """Plans one stage."""

    def __init__(
        self,
        line: PlannedLine,
        settings: PlanSettings,
        prices: Prices,
        instance: Instance | None,
        *,
        is_first: bool,
    ) -> None:
        self.line, self.settings, self.prices, self.instance = line, settings, prices, instance
        self.is_first = is_first
        self.found = StagePlan(line.name)
        self.boxes: Boxes | None = None
        self.looked_at: Boxes | None = None
        self.share = 1.0  # of the tasks in the boxes: not 1 with a mask, a part, or time points
        self.numbers: list[int] = []
        self.observations: list[Observation] = []

    def plan(self) -> StagePlan:
        line, found = self.line, self.found
        if line.source is None:
            self.pipeline = Pipeline(line.operators, None, ahead=line.ahead)
            found.tasks = 1
        else:
            self.pipeline = worker_pipeline(line.operators, line.source, line.ahead)
            if not self._take_tasks(line.source):
                return found
        problems: list[ChunkflowError] = []
        self.pipeline.check(problems)
        if self._waits_for(problems):
            return found
        self._check(problems)
        found.task_size = largest_task(self.boxes, domain_of(self.pipeline))
        found.reads = [each.times(self.share) for each in reads_of(self.pipeline)]
        found.writes = [each.times(self.share) for each in writes_of(self.pipeline)]
        self.patches = patches_of(self.pipeline)
        found.patches = [each.times(self.share) for each in self.patches]
        if self.settings.module is not None and not found.misfits:
            self._rehearse(self.settings.module)
        self._take_memory()
        self._take_time()
        if (words := cut_stride(self.pipeline)) is not None:
            found.notes.append(words)
        return found

    def _waits_for(self, problems: Sequence[ChunkflowError]) -> bool:
        """Tell whether a later stage reads what is not there yet, and note it."""
        waits = not self.is_first and any(isinstance(p, VolumeNotFoundError) for p in problems)
        if waits:
            self.found.notes.append(
                "it reads what is not there yet, such as what an earlier stage writes; plan it "
                "again when that is done"
            )
        return waits

    # --- what fits -----------------------------------------------------------------------------

    def _take_tasks(self, source: Source) -> bool:
        try:
            plan = plan_of(source)
            self.boxes, self.found.tasks = plan.boxes, len(plan)
        except ChunkflowError as error:
            if not self._waits_for([error]):
                self.found.misfits.append(str(error))
            return False
        self.share = len(plan) / max(1, len(plan.boxes))
        self.looked_at = plan.boxes if self.share == 1 else spread_boxes(plan)
        self.numbers = middle_tasks(plan, _REHEARSED)
        return True

    def _check(self, problems: list[ChunkflowError]) -> None:
        found, crew = self.found, self.settings.crew
        try:
            check_margins(self.pipeline)
        except ChunkflowError as error:
            problems.append(error)
        found.misfits += dict.fromkeys(str(problem) for problem in problems)
        for stage in self.line.operators:
            body: Any = stage.body
            if (
                isinstance(body, HasSingleWriter)
                and body.single_writer
                and crew.machines * crew.processes > 1
            ):
                found.misfits.append(
                    f"{stage.name} writes to a file that one process may write at a time, and "
                    f"there are {crew.machines * crew.processes}; write to zarr:// or "
                    "precomputed://, or one file a task"
                )
        self._check_cover()

    def _check_cover(self) -> None:
        """See whether tasks and volume cover each other."""
        domain, boxes = domain_of(self.pipeline), self.looked_at
        cutout = getattr(self.line.operators[0].body, "cutout", None)
        if domain is None or not boxes or cutout is None or cutout.is_explicit:
            return
        inside = total(boxes, lambda box: _sign(box.intersection(domain).size)) / len(boxes)
        tasks = self.found.tasks
        if outside := tasks - round(inside * tasks):
            first = boxes.start if isinstance(boxes, BoxGrid) else boxes[0].start
            start = first.high(domain.start).low(domain.stop - 1)
            self.found.misfits.append(
                f"{outside} of {tasks} tasks lie outside of what is read, "
                f"{domain}; the nearest region is --roi-start {_words(start)} --roi-stop "
                f"{_words(domain.stop)} (zyx, voxels)"
            )
        region = self.pipeline.outlines[self.pipeline.operators[0].name].region
        if region is not None and not region.contains(domain):
            left = 1 - region.intersection(domain).voxels / max(1, domain.voxels)
            if left > 0:
                self.found.notes.append(
                    f"{left:.0%} of what is read, {domain}, is in no task: they cover "
                    f"{region.intersection(domain)}"
                )

    # --- what it takes -------------------------------------------------------------------------

    def _rehearse(self, module: str) -> None:
        found, crew = self.found, self.settings.crew
        share = -(-len(self.numbers) // crew.processes)
        parts = [self.numbers[k * share : (k + 1) * share] for k in range(crew.processes)]
        request = {"words": self.line.words, "mip": self.line.mip, "ahead": self.line.ahead}
        self.observations = observe(
            module,
            request,
            [part for part in parts if part] or [[]],
            self.settings.rehearsal_s,
            self._scratch(),
        )
        if skipped := left_out(self.line.operators):
            found.notes.append(f"not rehearsed, so not in the time: {', '.join(skipped)}")
        for each in self.observations:
            if each.failure and each.is_refused and self._is_elsewhere:
                found.notes.append(f"not rehearsed, as it does not fit here: {each.failure}")
            elif each.failure and each.failure not in found.misfits:
                found.misfits.append(each.failure)
        self._take_stored()

    @property
    def _is_elsewhere(self) -> bool:
        told = self.settings.memory_bytes is not None or self.instance is not None
        return told and self._limit > (available_host_bytes() or 0)

    def _scratch(self) -> Path | None:
        """Return a folder on the disk that is written to, if it is one of this machine."""
        for stage in self.line.operators:
            body: Any = stage.body
            if isinstance(body, VolumeOutput) and body.saver.place.protocol == "file":
                folder = Path(body.saver.place.path).parent
                while not folder.is_dir() and folder != folder.parent:
                    folder = folder.parent
                return folder
        return None

    def _take_stored(self) -> None:
        """Tell, from what was measured, how large all is as it is stored."""
        found = self.found
        for transfer in found.reads:
            seen = [o.traffic[transfer.operator] for o in self.observations
                    if transfer.operator in o.traffic]  # fmt: skip
            needed = sum(amounts[2] for amounts in seen)
            if needed:
                share = sum(amounts[0] for amounts in seen) / needed
                found.stored[transfer.operator] = round(share * transfer.total_bytes)
        tasks = [task for o in self.observations for task in o.tasks]
        if len(found.writes) == 1 and tasks and any(task.written for task in tasks):
            (transfer,) = found.writes
            done = sum(self._voxels(task.bbox) for task in tasks)
            share = sum(task.written for task in tasks) / max(1, done)
            everything = self._mean_voxels() * found.tasks
            found.stored[transfer.operator] = round(share * everything)

    def _voxels(self, box: BoundingBox | None) -> float:
        """Return how many voxels of the volume a task covers."""
        domain = domain_of(self.pipeline)
        if box is None:
            return 1.0
        return float((box if domain is None else box.intersection(domain)).voxels)

    def _mean_voxels(self) -> float:
        if not self.boxes:
            return 1.0
        domain = domain_of(self.pipeline)
        boxes = self.boxes
        return (
            total(boxes, lambda box: (box if domain is None else box.intersection(domain)).size)
            / len(boxes)
        )  # fmt: skip

    @property
    def _limit(self) -> int:
        """Memory of a machine, bytes."""
        if self.settings.memory_bytes is not None:
            return self.settings.memory_bytes
        if self.instance is not None:
            return self.instance.memory_bytes
        return available_host_bytes() or 2**63

    def _take_memory(self) -> None:
        found, crew = self.found, self.settings.crew
        seen = [each for each in self.observations if each.ready_s is not None]
        if seen:
            most = max(seen, key=lambda each: each.peak_bytes)
            found.memory = _observed_memory(most)
        elif found.misfits and not found.reads:
            return
        else:
            told = self.pipeline.foretold()
            found.memory = Memory(
                told.bytes, "foretold", told.bytes, told.parts,
                (*told.unknown, *(p.operator for p in found.patches)),
            )  # fmt: skip
        process, limit = found.memory.bytes, self._limit
        share = limit // crew.processes
        found.suggestion = better_size(
            self.pipeline, found.writes, self.patches, share, process,
            found.memory.parts.get(RESIDENT, 0), crew.machines * crew.processes,
        )  # fmt: skip
        if process * crew.processes > limit:
            several = "" if crew.processes == 1 else f"{crew.processes} processes of "
            remedy = "make the tasks smaller"
            if found.suggestion is not None:
                remedy = f"what fits: {found.suggestion}"
            if crew.processes > 1 and (fewer := limit // process):
                remedy += f", or --processes {fewer}"
            found.misfits.append(
                f"{several}{describe_bytes(process)} of memory are more than the "
                f"{describe_bytes(limit)} of a machine; {remedy}"
            )
        gpu = self.instance.device_bytes if self.instance is not None else 0
        if gpu and found.memory.device_bytes * crew.processes > gpu:
            found.misfits.append(
                f"{describe_bytes(found.memory.device_bytes * crew.processes)} of GPU memory are "
                f"more than the {describe_bytes(gpu)} of {self.settings.instance}; lower "
                "--batch-size or --input-patch-size, or give --processes 1"
            )

    def _take_time(self) -> None:
        found, settings = self.found, self.settings
        if settings.seconds_per_task is not None:
            how = "as told by --seconds-per-task"
            found.duration = told_duration(
                found.tasks, settings.seconds_per_task, settings.crew, how
            )
        elif settings.speeds is not None:
            found.duration = speed_duration(
                settings.speeds, self.line.operators, found.patches, found.tasks, settings.crew
            )
        elif self.observations:
            found.duration = self._measured()
        if found.duration is None:
            how = "rehearse it"
            if self.observations:
                how = f"the rehearsal ended after {settings.rehearsal_s:g} s: give more --seconds"
            words = f"how long it takes is not known; {how}, or give --seconds-per-task"
            found.notes.append(words)
        else:
            if settings.instance is not None and self.observations:
                found.notes.append(
                    f"{settings.instance} is taken to be as fast as this machine "
                    f"({', '.join(self._devices()) or 'cpu'})"
                )
            found.hours = found.duration.seconds * settings.crew.machines / 3600
        self._take_cost()

    def _take_cost(self) -> None:
        found = self.found
        hour, spot = self.settings.price, None
        if hour is None and self.instance is not None:
            hour, spot = self.instance.hour, self.instance.spot_hour
        amounts = (found.hours, found.tasks, found.reads, found.writes, found.stored)
        found.cost = cost_of(self.prices, hour, *amounts)
        if spot is not None and self.instance is not None:
            found.spot = cost_of(self.prices, spot, *amounts)
            if self.instance.spot_is_assumed:
                words = "the spot price is a share of that on demand, see the table of prices"
                found.spot = replace(found.spot, assumed=(*found.spot.assumed, words))

    def _devices(self) -> list[str]:
        return sorted({device for each in self.observations for device in each.devices})

    def _measured(self) -> Duration | None:
        found = self.found
        domain = domain_of(self.pipeline)

        def size(box: BoundingBox) -> Sequence[float]:
            return (box if domain is None else box.intersection(domain)).size

        measures = [(each.box, float(each.input_voxels)) for each in found.patches]
        measures = measures or [(size, 1.0)]

        def work(box: BoundingBox | None) -> float:
            if box is None:
                if not self.boxes:
                    return 1.0
                box = middle_box(self.boxes)
            return sum(prod(measure(box)) * weight for measure, weight in measures)

        lanes = {stage.name: stage.lane for stage in self.line.operators}
        mean = mean_work(self.boxes, measures)
        return measured_duration(
            self.observations, found.tasks, mean, work, self.settings.crew, lanes
        )


def _observed_memory(seen: Observation) -> Memory:
    """Return the memory of a process that was rehearsed; caches grow on after it."""
    decoded = sum(amounts[1] for amounts in seen.traffic.values())
    growth = max(0, seen.parts.get(KEPT, 0) - decoded) if seen.traffic else 0
    measured, how = seen.peak_bytes + growth, "measured, at the peak of a rehearsal"
    if len(seen.tasks) < 2 and not seen.is_whole and seen.foretold_bytes > measured:
        measured, how = seen.foretold_bytes, "foretold; the rehearsal ended before its peak"
    return Memory(measured, how, seen.foretold_bytes, seen.parts, seen.unknown, seen.device_bytes)


def _sign(size: Zyx) -> tuple[int, int, int]:
    z, y, x = (int(length > 0) for length in size)
    return z, y, x


def _words(triple: Zyx) -> str:
    return " ".join(map(str, triple))

"""Plan a run before it starts: estimate each step, and find problems such as too little memory."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.geometry import BoxGrid
from chunkflow_py.core.host_memory import available_host_bytes, describe_bytes
from chunkflow_py.errors import ChunkflowError, VolumeNotFoundError
from chunkflow_py.pipeline.forecast import RESIDENT
from chunkflow_py.pipeline.overlap import stages_of
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.planning.duration_estimate import (
    mean_work,
    measured_duration,
    speed_duration,
    stated_duration,
)
from chunkflow_py.planning.exchange_estimate import (
    NetworkTime,
    exchange_if_it_pays,
    exchange_of,
    exchange_protocol,
    gain_of,
    network_time,
    store_speed,
)
from chunkflow_py.planning.pilot import operators_left_out, run_pilots
from chunkflow_py.planning.prices import cost_of, exchange_cost, load_prices
from chunkflow_py.planning.quotas import message_use, rate_uses, vcpu_use
from chunkflow_py.planning.run_plan import ESTIMATED, Memory, RunPlan, StepPlan
from chunkflow_py.planning.task_amounts import (
    domain_of,
    largest_task,
    middle_box,
    middle_tasks,
    patches_of,
    plan_of,
    reads_of,
    spread_boxes,
    total,
    writes_of,
)
from chunkflow_py.planning.task_size_advice import KEPT, better_task_size, strides_cut_by_tasks
from chunkflow_py.run.step_pipeline import check_margins, worker_pipeline
from chunkflow_py.volume.output import VolumeOutput

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from chunkflow_py.core.geometry import BoundingBox, Zyx
    from chunkflow_py.core.outline import Boxes
    from chunkflow_py.pipeline.operator import Source
    from chunkflow_py.planning.duration_estimate import Duration
    from chunkflow_py.planning.pilot import Observation
    from chunkflow_py.planning.prices import Cost, Instance, Prices
    from chunkflow_py.planning.run_plan import PlannedStep, PlanSettings
    from chunkflow_py.planning.task_amounts import Patches

_PILOT_TASKS = 256  # maximum number of consecutive tasks of a pilot


def plan_run(steps: Sequence[PlannedStep], settings: PlanSettings) -> RunPlan:
    """Run a pilot of each step unless *settings* exclude it, and return the plan of the run.

    Args:
        steps: steps of the run, in order.
        settings: options of `chunkflow plan`.

    Raises:
        OptionError: the price table or the file of speeds cannot be used, the table lacks the
            machine type, or the file lacks the network.
    """
    prices = load_prices(settings.price_file)
    instance = None if settings.instance is None else prices.instance(settings.instance)
    stages: list[StepPlan] = []
    for step in steps:
        stages.append(_Planner(step, settings, prices, instance, is_first=not stages).plan())
    return RunPlan(stages, settings.fleet, prices, instance, settings.price)


class _Planner:
    def __init__(
        self,
        step: PlannedStep,
        settings: PlanSettings,
        prices: Prices,
        instance: Instance | None,
        *,
        is_first: bool,
    ) -> None:
        self.step, self.settings, self.prices, self.instance = step, settings, prices, instance
        self.is_first = is_first
        self.found = StepPlan(step.name)
        self.boxes: Boxes | None = None
        self.looked_at: Boxes | None = None
        self.patches: list[Patches] = []
        self.share = 1.0  # tasks per box; not 1 with a mask, a selection of tasks, or time points
        self.numbers: list[int] = []
        self.observations: list[Observation] = []

    def plan(self) -> StepPlan:
        step, found = self.step, self.found
        if step.source is None:
            self.pipeline = Pipeline(step.operators, None, ahead=step.ahead)
            found.tasks = 1
        else:
            self.pipeline = worker_pipeline(step.operators, step.source, step.ahead)
            if not self._take_tasks(step.source):
                return found
        errors: list[ChunkflowError] = []
        self.pipeline.check(errors)
        if self._waits_for(errors):
            return found
        self._check(errors)
        found.task_size = largest_task(self.boxes, domain_of(self.pipeline))
        found.reads = [each.times(self.share) for each in reads_of(self.pipeline)]
        found.writes = [each.times(self.share) for each in writes_of(self.pipeline)]
        self.patches = patches_of(self.pipeline)
        found.patches = [each.times(self.share) for each in self.patches]
        self._take_exchanges()
        if self.settings.module is not None and not found.problems:
            self._run_pilots(self.settings.module)
        self._take_time()
        self._take_memory()
        if (note := strides_cut_by_tasks(self.pipeline)) is not None:
            found.notes.append(note)
        return found

    def _waits_for(self, errors: Sequence[ChunkflowError]) -> bool:
        """Return whether this step reads a volume that an earlier step must first create.

        In this case, add a note to the plan.
        """
        waits = not self.is_first and any(isinstance(p, VolumeNotFoundError) for p in errors)
        if waits:
            self.found.notes.append(
                "this step reads a volume that does not exist yet, such as the output of an "
                "earlier step; plan this step again when the earlier step is complete"
            )
        return waits

    # --- problems -----------------------------------------------------------------------------

    def _take_tasks(self, source: Source) -> bool:
        try:
            plan = plan_of(source)
            self.boxes, self.found.tasks = plan.boxes, len(plan)
        except ChunkflowError as error:
            if not self._waits_for([error]):
                self.found.problems.append(str(error))
            return False
        self.share = len(plan) / max(1, len(plan.boxes))
        self.looked_at = plan.boxes if self.share == 1 else spread_boxes(plan)
        self.numbers = middle_tasks(plan, _PILOT_TASKS)
        return True

    def _check(self, errors: list[ChunkflowError]) -> None:
        found = self.found
        try:
            check_margins(self.pipeline)
        except ChunkflowError as error:
            errors.append(error)
        found.problems += dict.fromkeys(str(error) for error in errors)
        for stage in self.step.operators:
            if stage.hooks.single_writer and self._workers > 1:
                found.problems.append(
                    f"{stage.name} writes to a file that only one process can write at a time, "
                    f"but the run has {self._workers} processes; write to a "
                    "zarr:// or precomputed:// volume, or to one file per task"
                )
        self._check_cover()

    def _check_cover(self) -> None:
        """Report tasks outside the input, and parts of the input that no task covers."""
        domain, boxes = domain_of(self.pipeline), self.looked_at
        cutout = self.step.operators[0].hooks.cutout
        if domain is None or not boxes or cutout is None or cutout.is_explicit:
            return
        inside = total(boxes, lambda box: _sign(box.intersection(domain).size)) / len(boxes)
        tasks = self.found.tasks
        if outside := tasks - round(inside * tasks):
            first = boxes.start if isinstance(boxes, BoxGrid) else boxes[0].start
            start = first.high(domain.start).low(domain.stop - 1)
            self.found.problems.append(
                f"{outside} of {tasks} tasks are outside the input volume, whose box is {domain} "
                f"(zyx, voxels); the nearest region inside is --roi-start {start.as_option} "
                f"--roi-stop {domain.stop.as_option}"
            )
        region = self.pipeline.outlines[self.pipeline.operators[0].name].region
        if region is not None and not region.contains(domain):
            left = 1 - region.intersection(domain).voxels / max(1, domain.voxels)
            if left > 0:
                self.found.notes.append(
                    f"tasks do not cover {left:.0%} of the input volume: its box is {domain}, and "
                    f"tasks cover only {region.intersection(domain)} (zyx, voxels)"
                )

    # --- estimates -------------------------------------------------------------------------

    @property
    def _workers(self) -> int:
        """Number of worker processes of the run."""
        return self.settings.fleet.machines * self.settings.fleet.processes

    def _take_exchanges(self) -> None:
        if isinstance(boxes := self.boxes, BoxGrid):
            tasks, share = self.found.tasks, self.share
            found = (exchange_of(p, boxes, tasks, self._workers, share) for p in self.patches)
            self.found.exchanges = [each for each in found if each is not None]

    def _run_pilots(self, module: str) -> None:
        found, fleet = self.found, self.settings.fleet
        share = -(-len(self.numbers) // fleet.processes)
        parts = [self.numbers[k * share : (k + 1) * share] for k in range(fleet.processes)]
        request = {"argv": self.step.argv, "mip": self.step.mip, "ahead": self.step.ahead}
        self.observations = run_pilots(
            module,
            request,
            [part for part in parts if part] or [[]],
            self.settings.pilot_s,
            self._scratch(),
        )
        if skipped := operators_left_out(self.step.operators):
            found.notes.append(
                "the pilot run leaves these operators out, so the estimated time does not include "
                f"them: {', '.join(skipped)}"
            )
        for each in self.observations:
            if each.failure and each.is_refused and self._is_elsewhere:
                found.notes.append(
                    "no pilot was run, because the pipeline does not fit on this machine: "
                    f"{each.failure}"
                )
            elif each.failure and each.failure not in found.problems:
                found.problems.append(each.failure)
        self._take_stored()

    @property
    def _is_elsewhere(self) -> bool:
        is_given = self.settings.memory_bytes is not None or self.instance is not None
        return is_given and self._limit > (available_host_bytes() or 0)

    def _scratch(self) -> Path | None:
        """Return a folder on the same disk as the output, if the output is a local volume."""
        for stage in self.step.operators:
            body: Any = stage.body
            if isinstance(body, VolumeOutput) and body.saver.place.protocol == "file":
                folder = Path(body.saver.place.path).parent
                while not folder.is_dir() and folder != folder.parent:
                    folder = folder.parent
                return folder
        return None

    def _take_stored(self) -> None:
        """Estimate the compressed bytes of all tasks from the compressed bytes of the pilot run."""
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
        """Return the number of voxels of the input volume that lie in the box of a task."""
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
        """Memory of one machine of the run, in bytes."""
        if self.settings.memory_bytes is not None:
            return self.settings.memory_bytes
        if self.instance is not None:
            return self.instance.memory_bytes
        return available_host_bytes() or 2**63

    def _take_memory(self) -> None:
        found, fleet = self.found, self.settings.fleet
        seen = [each for each in self.observations if each.ready_s is not None]
        if seen:
            most = max(seen, key=lambda each: each.peak_bytes)
            found.memory = _observed_memory(most)
        elif found.problems and not found.reads:
            return
        else:
            estimate = self.pipeline.estimated_memory()
            found.memory = Memory(
                estimate.bytes, ESTIMATED, estimate.bytes, estimate.parts,
                (*estimate.unknown, *(p.operator for p in found.patches)),
            )  # fmt: skip
        process, limit = found.memory.bytes, self._limit
        share = limit // fleet.processes
        exchange = None
        if found.gain is not None and found.gain.pays and len(self.patches) == 1:
            boxes = len(self.boxes or ())
            exchange = exchange_if_it_pays(found.gain, self.patches[0], boxes, self._workers)
        found.suggestion = better_task_size(
            self.pipeline, found.writes, self.patches, share, process,
            found.memory.parts.get(RESIDENT, 0), self._workers, exchange,
        )  # fmt: skip
        if process * fleet.processes > limit:
            needs = "a process needs"
            if fleet.processes > 1:
                needs = f"{fleet.processes} processes each need"
            remedy = "make the tasks smaller (--chunk-size)"
            if found.suggestion is not None:
                remedy = f"give {found.suggestion}, which would fit"
            if fleet.processes > 1 and (fewer := limit // process):
                remedy += f", or --processes {fewer}"
            found.problems.append(
                f"{needs} {describe_bytes(process)} of memory, but a machine has "
                f"{describe_bytes(limit)}; {remedy}"
            )
        gpu = self.instance.device_bytes if self.instance is not None else 0
        if gpu and found.memory.device_bytes * fleet.processes > gpu:
            found.problems.append(
                f"{describe_bytes(found.memory.device_bytes * fleet.processes)} of GPU memory are "
                f"needed, but {self.settings.instance} has {describe_bytes(gpu)}; give a smaller "
                "--batch-size or --input-patch-size, or --processes 1"
            )

    def _take_time(self) -> None:
        found, settings = self.found, self.settings
        if settings.seconds_per_task is not None:
            how = "from --seconds-per-task"
            found.duration = stated_duration(
                found.tasks, settings.seconds_per_task, settings.fleet, how
            )
        elif settings.speeds is not None:
            found.duration = speed_duration(
                settings.speeds, self.step.operators, found.patches, found.tasks, settings.fleet
            )
        elif self.observations:
            found.duration = self._measured()
        if found.duration is None:
            how = "leave --no-rehearse out to measure it"
            if any(each.failure for each in self.observations):
                how = "the pilot failed, so correct this first"
            elif self.observations:
                how = f"the pilot ended after {settings.pilot_s:g} s, so raise --seconds"
            note = f"the duration is not known; {how}, or give --seconds-per-task"
            found.notes.append(note)
        else:
            if settings.instance is not None and self.observations:
                found.notes.append(
                    f"{settings.instance} is assumed to be as fast as this machine "
                    f"({', '.join(self._devices()) or 'cpu'})"
                )
            found.hours = found.duration.seconds * settings.fleet.machines / 3600
        found.cost, found.spot = self._costs(found.hours)
        self._take_quotas()
        self._take_gain()

    def _take_quotas(self) -> None:
        """Compare the simultaneous needs of all machines with the quotas of services."""
        found, settings = self.found, self.settings
        if (use := vcpu_use(self.instance, settings.fleet, settings.vcpu_quota)) is not None:
            found.quotas.append(use)
        if settings.fleet.machines > 1:
            ahead = 1 if self.step.ahead is None else self.step.ahead
            stages = stages_of(self.pipeline.operators, ahead)
            window = sum(stage.tasks for stage in stages) if ahead else 1
            task_s = None if found.duration is None else found.duration.task_s
            found.quotas.append(message_use(settings.fleet, max(1, window), task_s))
        if found.duration is not None:
            found.quotas += rate_uses(found.reads, found.writes, found.duration.seconds)
        for use in found.quotas:
            if use.is_exceeded:
                remarks = found.problems if use.is_problem else found.notes
                remarks.append(f"the run needs {use}; {use.remedy}")

    def _costs(
        self, hours: float | None, more: Mapping[str, float] = MappingProxyType({})
    ) -> tuple[Cost, Cost | None]:
        found = self.found
        hour, spot_hour, spot = self.settings.price, None, None
        if hour is None and self.instance is not None:
            hour, spot_hour = self.instance.hour, self.instance.spot_hour
        amounts = (hours, found.tasks, found.reads, found.writes, found.stored)
        cost_at = partial(
            cost_of,
            self.prices,
            read_price=self.settings.read_price,
            months=self.settings.months,
        )
        cost = cost_at(hour, *amounts)
        if spot_hour is not None and self.instance is not None:
            spot = cost_at(spot_hour, *amounts)
            if self.instance.spot_is_assumed:
                assumption = (
                    "the spot price is the on-demand price multiplied by the spot_share of the "
                    "price table"
                )
                spot = replace(spot, assumed=(*spot.assumed, assumption))
            spot = replace(spot, parts={**spot.parts, **more})
        return replace(cost, parts={**cost.parts, **more}), spot

    def _take_gain(self) -> None:
        """Estimate the time and cost of the step if tasks exchange patches."""
        found, settings, network = self.found, self.settings, None
        if not found.exchanges or found.duration is None:
            return
        if settings.seconds_per_task is None and settings.speeds is None:
            mean = mean_work(self.boxes, [(p.box, float(p.input_voxels)) for p in self.patches])
            network = network_time(self.observations, self.patches, mean, self._stages)
        if network is None:
            how = "assuming that the network takes all the time of a task"
            network = NetworkTime(found.duration.task_s, 0.0, how)
        gain = gain_of(
            found.exchanges, found.patches, network, found.duration, settings.fleet,
            store_speed(self.observations, found.reads, found.writes),
        )  # fmt: skip
        place = exchange_protocol(found.reads, found.writes)
        more = exchange_cost(self.prices, place, found.exchanges, gain.duration.seconds)
        cost, spot = self._costs(gain.hours, more)
        found.gain = replace(gain, cost=cost, spot=spot)

    @property
    def _stages(self) -> dict[str, str]:
        """The stage in which each operator runs: ``read``, ``compute`` or ``write``."""
        return {operator.name: operator.stage for operator in self.step.operators}

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

        mean = mean_work(self.boxes, measures)
        return measured_duration(
            self.observations, found.tasks, mean, work, self.settings.fleet, self._stages
        )


def _observed_memory(seen: Observation) -> Memory:
    """Return the peak memory of a pilot process, plus the expected growth of its caches.

    If the pilot may have ended before its peak, the result is at least the estimated memory.
    """
    decoded = sum(amounts[1] for amounts in seen.traffic.values())
    growth = max(0, seen.parts.get(KEPT, 0) - decoded) if seen.traffic else 0
    measured, how = seen.peak_bytes + growth, "measured, at the peak of a pilot"
    if len(seen.tasks) < 2 and not seen.is_whole and seen.estimated_bytes > measured:
        measured, how = seen.estimated_bytes, f"{ESTIMATED}; the pilot ended before its peak"
    return Memory(measured, how, seen.estimated_bytes, seen.parts, seen.unknown, seen.device_bytes)


def _sign(size: Zyx) -> tuple[int, int, int]:
    z, y, x = (int(length > 0) for length in size)
    return z, y, x

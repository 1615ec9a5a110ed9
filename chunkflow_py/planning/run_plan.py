"""The plan of a run: settings and estimates of its steps, as text and as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.planning.duration_estimate import Fleet
from chunkflow_py.planning.exchange_estimate import MEASURED

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from chunkflow_py.core.geometry import Zyx
    from chunkflow_py.pipeline.operator import Operator, Source
    from chunkflow_py.planning.duration_estimate import Duration
    from chunkflow_py.planning.exchange_estimate import Exchange, Gain
    from chunkflow_py.planning.prices import Cost, Instance, Prices
    from chunkflow_py.planning.quotas import QuotaUse
    from chunkflow_py.planning.task_amounts import Patches, Transfer
    from chunkflow_py.planning.task_size_advice import Suggestion

ESTIMATED = "estimated"  # source of a number that was not measured
_INDENT = " " * 13
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))


@dataclass(frozen=True)
class PlannedStep:
    """A step of the run that is planned, as parsed from the command line.

    Attributes:
        name: name of the step.
        operators: operators of the step's pipeline.
        source: source of the tasks; ``None`` if the pipeline has no source and runs once.
        argv: command line of the pipeline as typed, including the source.
        mip: value of the global option ``--mip``.
        ahead: value of the global option ``--ahead``: number of tasks to prefetch per stage.
    """

    name: str
    operators: tuple[Operator, ...]
    source: Source | None
    argv: tuple[str, ...]
    mip: int = 0
    ahead: int | None = None


@dataclass(frozen=True)
class PlanSettings:
    """Options of `chunkflow plan`.

    Attributes:
        module: module that pilot processes run with ``python -m``; ``None`` for a plan without
            pilot run.
        pilot_s: time limit of the pilot run of a step, seconds.
        fleet: numbers of machines and worker processes.
        memory_bytes: memory of a machine in bytes (default: memory of *instance*; without
            *instance*, available memory of this machine).
        instance: machine type, such as ``g5.xlarge``, that determines price and memory.
        price: price of a machine, dollars per hour (default: the price of *instance*).
        price_file: path of a price table (default: the table of this package).
        seconds_per_task: seconds per task in one process, used instead of a measurement.
        speeds: path of a file with the output of `chunkflow tune --json`, from which the duration
            is estimated.
        vcpu_quota: largest number of virtual processors that the account may use; ``None`` if it is
            not known.
        read_price: price of reading a gigabyte of the input, dollars.
        months: number of months for which the output is stored; the cost includes this storage.
    """

    module: str | None = None
    pilot_s: float = 60.0
    fleet: Fleet = field(default_factory=Fleet)
    memory_bytes: int | None = None
    instance: str | None = None
    price: float | None = None
    price_file: Path | None = None
    seconds_per_task: float | None = None
    speeds: Path | None = None
    vcpu_quota: int | None = None
    read_price: float = 0.0
    months: float = 0.0


@dataclass(frozen=True)
class Memory:
    """Peak memory of a worker process.

    Attributes:
        bytes: peak host memory in bytes, measured or estimated.
        how: text that says where *bytes* comes from, such as ``estimated``.
        estimated_bytes: estimated host memory in bytes, the sum of *parts*.
        parts: dict from a purpose, such as weights, to the estimated bytes of host memory.
        unknown: names of operators whose memory is not fully estimated.
        device_bytes: estimated GPU memory in bytes; 0 without a GPU.
    """

    bytes: int
    how: str
    estimated_bytes: int
    parts: dict[str, int]
    unknown: tuple[str, ...] = ()
    device_bytes: int = 0

    @property
    def is_least(self) -> bool:
        """Whether *bytes* is only a lower limit, because some operators are not fully estimated."""
        return bool(self.unknown) and self.how.startswith(ESTIMATED)


@dataclass
class StepPlan:
    """Estimates and problems of one step; an estimate that is not known is ``None``.

    Tasks can exchange patches: one task computes a patch that crosses task boundaries, and stores
    the results for the other tasks.

    Attributes:
        name: name of the step.
        tasks: number of tasks; 0 if not known.
        task_size: size of the largest task, voxels, zyx.
        reads: amounts that each loader reads.
        writes: amounts that each saver writes.
        patches: numbers of patches that each network computes without an exchange of patches.
        exchanges: amounts that tasks exchange, for each network with patches that several tasks
            share.
        gain: time and cost of the step if tasks exchange patches, and the time that this saves.
        stored: stored (compressed) bytes that all tasks read or write, by the name of the loader or
            saver, extrapolated from the pilot run.
        memory: peak memory of a worker process.
        duration: duration of the step without an exchange of patches.
        hours: the duration multiplied by the number of machines, in hours.
        cost: cost without an exchange, at the on-demand price or the price that the user gives.
        spot: cost without an exchange, at the spot price.
        quotas: amounts that all workers need simultaneously, such as messages in flight, each with
            the quota of the service.
        suggestion: task size with less work or memory; ``None`` if the present size is as good.
        problems: reasons why the step cannot run, each with a remedy.
        notes: other remarks, which do not prevent the step from running.
    """

    name: str
    tasks: int = 0
    task_size: Zyx | None = None
    reads: list[Transfer] = field(default_factory=list)
    writes: list[Transfer] = field(default_factory=list)
    patches: list[Patches] = field(default_factory=list)
    exchanges: list[Exchange] = field(default_factory=list)
    gain: Gain | None = None
    stored: dict[str, int] = field(default_factory=dict)
    memory: Memory | None = None
    duration: Duration | None = None
    hours: float | None = None
    cost: Cost | None = None
    spot: Cost | None = None
    quotas: list[QuotaUse] = field(default_factory=list)
    suggestion: Suggestion | None = None
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class RunPlan:
    """Estimates and problems of a run.

    Attributes:
        stages: plans of the steps, in order.
        fleet: numbers of machines and worker processes.
        prices: price table from which the costs are computed.
        instance: machine type; ``None`` if the user gives none.
        price: price of a machine, dollars per hour; ``None`` if the user gives none.
    """

    stages: list[StepPlan]
    fleet: Fleet
    prices: Prices
    instance: Instance | None = None
    price: float | None = None

    @property
    def fits(self) -> bool:
        """Whether the run can be executed as planned: no step has a problem."""
        return not any(stage.problems for stage in self.stages)


# --- as text --------------------------------------------------------------------------------------


def plan_lines(plan: RunPlan) -> Iterator[str]:
    """Yield the lines of a plan as text for people."""
    for stage in plan.stages:
        if len(plan.stages) > 1:
            yield f"step {stage.name}"
        yield from _stage(plan, stage)
        yield ""
    if len(plan.stages) > 1:
        yield from _sum(plan)
    yield _verdict(plan)


def _verdict(plan: RunPlan) -> str:
    if not plan.fits:
        return "the run cannot be executed as planned; see the problems above"
    memories = [stage.memory for stage in plan.stages if stage.memory is not None]
    unknown = dict.fromkeys(name for each in memories if each.is_least for name in each.unknown)
    if not unknown:
        return "the run fits"
    return (
        f"no problem found, but the memory of {', '.join(unknown)} is not known; "
        "leave --no-rehearse out to measure it"
    )


def _stage(plan: RunPlan, stage: StepPlan) -> Iterator[str]:
    if stage.tasks:
        size = "" if stage.task_size is None else f" of {stage.task_size.as_option} (zyx, voxels)"
        yield _line("tasks", f"{stage.tasks:,}{size}")
    for transfer in stage.reads:
        yield from _transfer("reads", transfer, stage, "GET")
    for transfer in stage.writes:
        yield from _transfer("writes", transfer, stage, "PUT")
    for patches in stage.patches:
        yield from _patches(patches)
    for exchange in stage.exchanges:
        yield from _exchange(exchange)
    if stage.gain is not None:
        yield from _gain(stage, stage.gain)
    if stage.memory is not None:
        yield from _memory(stage.memory, plan.fleet.processes)
    if stage.duration is not None:
        took, fleet = stage.duration, plan.fleet
        who = f"{_many(fleet.machines, 'machine')}, {_many(fleet.processes, 'process')} on each"
        yield _line("time", f"{duration_text(took.seconds)} on {who}")
        yield f"{_INDENT}{took.task_s:.3g} s a task, {took.start_s:.3g} s to start; {took.how}"
    if stage.hours is not None:
        yield _line("hours", f"{_number(stage.hours)} (all machines together)")
    if stage.cost is not None:
        yield from _cost(plan, stage, stage.cost)
    for number, use in enumerate(stage.quotas):
        yield _line("" if number else "quotas", str(use))
    if stage.suggestion is not None:
        found = stage.suggestion
        gain = ""
        if found.amplification is not None and found.instead_of is not None:
            gain = (
                f": {found.amplification:.2f} voxels computed per output voxel, "
                f"instead of {found.instead_of:.2f}"
            )
        if found.exchanged_bytes is not None:
            gain = f" with the exchange{gain}; {found.exchanged_bytes:.3g} bytes written and as "
            gain += "many read per output voxel"
        yield _line("better", f"{found}{gain}; {describe_bytes(found.memory_bytes)} a process")
    for note in stage.notes:
        yield _line("note", note)
    for problem in stage.problems:
        yield _line("problem", problem)


def _transfer(title: str, transfer: Transfer, stage: StepPlan, action: str) -> Iterator[str]:
    amounts = f"{describe_bytes(transfer.total_bytes)} by {transfer.operator}"
    if (stored := stage.stored.get(transfer.operator)) is not None:
        amounts += f", {describe_bytes(stored)} stored (measured)"
    yield _line(title, f"{amounts}: {transfer.place}")
    more = (
        [f"{transfer.amplification:.2f} times the voxels that tasks cover"]
        if title == "reads"
        else []
    )
    if transfer.block_amplification is not None:
        more.append(
            f"{transfer.block_amplification:.2f} voxels fetched per voxel read, because whole "
            "blocks are fetched"
        )
    if transfer.requests:
        most = "at most " if title == "reads" else ""
        more.append(
            f"{most}{_amount(transfer.requests)} {action} requests, "
            f"{_amount(transfer.task_requests)} a task"
        )
    if more:
        yield _INDENT + "; ".join(more)


def _patches(patches: Patches) -> Iterator[str]:
    yield _line(
        "patches",
        f"{patches.computed:,} by {patches.operator}, {patches.of_task.as_option} a task: "
        f"{patches.recomputation:.2f} times the {patches.ideal:,} patches that a single task for "
        "the whole volume would compute",
    )
    yield f"{_INDENT}{patches.amplification:.2f} voxels computed per output voxel"
    if patches.no_exchange is not None:
        yield _line("exchange", f"none: {patches.no_exchange}")


def _exchange(found: Exchange) -> Iterator[str]:
    yield _line(
        "exchange",
        f"{found.computed:,} patches, {found.recomputation:.2f} times those of a single task, if "
        f"tasks find all parts of {found.operator} in the exchange",
    )
    yield (
        f"{_INDENT}{describe_bytes(found.written_bytes)} written and as much read: "
        f"{found.voxel_bytes:.3g} bytes per output voxel, {describe_bytes(found.task_bytes)} and "
        f"{found.task_objects:.2g} objects a task"
    )
    yield (
        f"{_INDENT}at most {describe_bytes(found.peak_bytes)} stored at a time; up to "
        f"{describe_bytes(found.memory_bytes)} more memory per process"
    )


def _gain(stage: StepPlan, gain: Gain) -> Iterator[str]:
    saves = f"saves {gain.saved_s:.3g} s of network time per task"
    if gain.how != MEASURED:
        saves += f" ({gain.how})"
    moved = f"{describe_bytes(gain.transfer_bytes)} per task"
    if gain.bytes_per_s is None or gain.transfer_s is None:
        least = describe_bytes(round(gain.least_bytes_per_s))
        yield (
            f"{_INDENT}pays if a process writes and reads at least {least}/s: {saves}, but writes "
            f"and reads {moved}"
        )
    else:
        verdict = "pays" if gain.pays else "does not pay"
        speed = describe_bytes(round(gain.bytes_per_s))
        yield (
            f"{_INDENT}{verdict}: {saves}, but takes {gain.transfer_s:.3g} s to write and read "
            f"{moved} at {speed}/s ({MEASURED})"
        )
    totals = f"{_INDENT}with it {_total(gain.duration, gain.hours, gain.cost)}"
    if stage.duration is not None:
        totals += f"; without {_total(stage.duration, stage.hours, stage.cost)}"
    yield totals


def _total(duration: Duration, hours: float | None, cost: Cost | None) -> str:
    amounts = duration_text(duration.seconds)
    if hours is not None:
        amounts += f", {_number(hours)} machine hours"
    if cost is not None and cost.parts:
        amounts += f", ${_money(cost.dollars)}"
    return amounts


def _memory(memory: Memory, processes: int) -> Iterator[str]:
    least = "at least " if memory.is_least else ""
    amounts = f"{least}{describe_bytes(memory.bytes)} a process ({memory.how})"
    if processes > 1:
        amounts += f", {describe_bytes(memory.bytes * processes)} a machine"
    yield _line("memory", amounts)
    parts = ", ".join(f"{name} {describe_bytes(n)}" for name, n in memory.parts.items() if n)
    if parts:
        yield f"{_INDENT}estimated {describe_bytes(memory.estimated_bytes)}: {parts}"
    if memory.device_bytes:
        yield _line("GPU memory", f"{describe_bytes(memory.device_bytes)} a process (estimated)")


def _cost(plan: RunPlan, stage: StepPlan, cost: Cost) -> Iterator[str]:
    if not cost.parts and not cost.month and not cost.egress:
        return
    kind = ""
    if plan.price is None and plan.instance is not None:
        kind = f" on demand ({plan.instance.name}, ${plan.instance.hour:g} an hour)"
    amounts = f"${_money(cost.dollars)}{kind}"
    if stage.spot is not None and plan.instance is not None:
        hour = plan.instance.spot_hour
        amounts += f", ${_money(stage.spot.dollars)} spot (${hour:.3g} an hour)"
    yield _line("cost", amounts)
    yield _INDENT + ", ".join(f"{name} ${_money(value)}" for name, value in cost.parts.items())
    if cost.month:
        size = describe_bytes(cost.stored_bytes)
        yield f"{_INDENT}${_money(cost.month)} per month to store the output ({size})"
    if cost.egress:
        yield (
            f"{_INDENT}${_money(cost.cross_region)} more if the input is in another region of its "
            f"cloud, ${_money(cost.egress)} more if it is in another cloud"
        )
    yield f"{_INDENT}prices of {plan.prices.date}: {plan.prices.source}"
    for assumption in dict.fromkeys((*cost.assumed, *(stage.spot.assumed if stage.spot else ()))):
        yield f"{_INDENT}assumed: {assumption}"


def _sum(plan: RunPlan) -> Iterator[str]:
    took = [stage.duration.seconds for stage in plan.stages if stage.duration is not None]
    if took:
        left = len(plan.stages) - len(took)
        more = f", without {_many(left, 'step')} of unknown duration" if left else ""
        yield _line("in all", f"{duration_text(sum(took))}{more}")
    dollars = sum(stage.cost.dollars for stage in plan.stages if stage.cost is not None)
    if dollars:
        yield _line("", f"${_money(dollars)}")


def _line(title: str, text: str) -> str:
    return f"{title:<{len(_INDENT)}}{text}"


def duration_text(seconds: float) -> str:
    """Return a duration in seconds as text, in days, hours, minutes or seconds."""
    for unit, name in _UNITS:
        if seconds >= 2 * unit:
            return f"{_number(seconds / unit)} {name}"
    return f"{seconds:.3g} s"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _money(dollars: float) -> str:
    return f"{dollars:,.2f}" if dollars >= 1 or not dollars else f"{dollars:.2g}"


def _amount(count: int) -> str:
    return f"{count:,}"


def _many(count: int, name: str) -> str:
    plural = f"{name}es" if name.endswith("s") else f"{name}s"
    return f"{count:,} {name if count == 1 else plural}"


# --- as JSON --------------------------------------------------------------------------------------


def plan_json(plan: RunPlan) -> dict[str, Any]:
    """Return a plan as a JSON object, in the format of `chunkflow plan --json`."""
    return {
        "fits": plan.fits,
        "machines": plan.fleet.machines,
        "processes": plan.fleet.processes,
        "instance": None if plan.instance is None else plan.instance.name,
        "prices": {"date": plan.prices.date, "source": plan.prices.source},
        "stages": [_stage_data(stage) for stage in plan.stages],
    }


def _stage_data(stage: StepPlan) -> dict[str, Any]:
    return {
        "name": stage.name,
        "tasks": stage.tasks,
        "task_size": stage.task_size,
        "reads": [_transfer_data(each, stage) for each in stage.reads],
        "writes": [_transfer_data(each, stage) for each in stage.writes],
        "patches": [_patches_data(each) for each in stage.patches],
        "exchange": [
            {**vars(each), "recomputation": each.recomputation} for each in stage.exchanges
        ],
        "with_exchange": None if stage.gain is None else _gain_data(stage.gain),
        "memory": None if stage.memory is None else _memory_data(stage.memory),
        "duration": None if stage.duration is None else dict(vars(stage.duration)),
        "machine_hours": stage.hours,
        "cost": _cost_data(stage.cost),
        "spot": _cost_data(stage.spot),
        "quotas": [{**vars(use), "is_exceeded": use.is_exceeded} for use in stage.quotas],
        "suggestion": stage.suggestion and {**vars(stage.suggestion)},
        "misfits": stage.problems,
        "notes": stage.notes,
    }


def _cost_data(cost: Cost | None) -> dict[str, Any] | None:
    return None if cost is None else {**vars(cost), "dollars": cost.dollars}


def _gain_data(gain: Gain) -> dict[str, Any]:
    return {
        **vars(gain),
        "pays": gain.pays,
        "least_bytes_per_s": gain.least_bytes_per_s,
        "duration": dict(vars(gain.duration)),
        "cost": _cost_data(gain.cost),
        "spot": _cost_data(gain.spot),
    }


def _transfer_data(transfer: Transfer, stage: StepPlan) -> dict[str, Any]:
    return {
        **vars(transfer),
        "stored_bytes": stage.stored.get(transfer.operator),
        "amplification": transfer.amplification,
        "block_amplification": transfer.block_amplification,
    }


def _memory_data(memory: Memory) -> dict[str, Any]:
    data = dict(vars(memory))
    data["foretold_bytes"] = data.pop("estimated_bytes")
    return data


def _patches_data(patches: Patches) -> dict[str, Any]:
    functions = ("box", "sharing")
    data = {name: value for name, value in vars(patches).items() if name not in functions}
    return {**data, "recomputation": patches.recomputation}

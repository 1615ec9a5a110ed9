"""A plan as lines for a person, and as data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from chunkflow_py.core.memory import describe_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.planning.amounts import Patches, Transfer
    from chunkflow_py.planning.plans import LinePlan, Memory, StagePlan
    from chunkflow_py.planning.prices import Cost

_INDENT = " " * 13
_UNITS = ((86400.0, "days"), (3600.0, "hours"), (60.0, "minutes"))


def words_of(plan: LinePlan) -> Iterator[str]:
    """Yield lines that tell a plan."""
    for stage in plan.stages:
        if len(plan.stages) > 1:
            yield f"stage {stage.name}"
        yield from _stage(plan, stage)
        yield ""
    if len(plan.stages) > 1:
        yield from _sum(plan)
    yield _verdict(plan)


def _verdict(plan: LinePlan) -> str:
    if not plan.fits:
        return "it cannot run as it is"
    memories = [stage.memory for stage in plan.stages if stage.memory is not None]
    unknown = dict.fromkeys(name for each in memories if each.is_least for name in each.unknown)
    if not unknown:
        return "it fits"
    return (
        f"nothing known speaks against it, but the memory of {', '.join(unknown)} is not known; "
        "leave --no-rehearse out to measure it"
    )


def _stage(plan: LinePlan, stage: StagePlan) -> Iterator[str]:
    if stage.tasks:
        size = "" if stage.task_size is None else f" of {_triple(stage.task_size)} (zyx, voxels)"
        yield _line("tasks", f"{stage.tasks:,}{size}")
    for transfer in stage.reads:
        yield from _transfer("reads", transfer, stage, "GET")
    for transfer in stage.writes:
        yield from _transfer("writes", transfer, stage, "PUT")
    for patches in stage.patches:
        yield from _patches(patches)
    if stage.memory is not None:
        yield from _memory(stage.memory, plan.crew.processes)
    if stage.duration is not None:
        took, crew = stage.duration, plan.crew
        who = f"{_many(crew.machines, 'machine')}, {_many(crew.processes, 'process')} on each"
        yield _line("time", f"{duration_words(took.seconds)} on {who}")
        yield f"{_INDENT}{took.task_s:.3g} s a task, {took.start_s:.3g} s to start; {took.how}"
    if stage.hours is not None:
        yield _line("hours", f"{_number(stage.hours)} of machines")
    if stage.cost is not None:
        yield from _cost(plan, stage, stage.cost)
    if stage.suggestion is not None:
        found = stage.suggestion
        gain = ""
        if found.amplification is not None and found.instead_of is not None:
            gain = (
                f": {found.amplification:.2f} voxels computed for each, not {found.instead_of:.2f}"
            )
        yield _line("better", f"{found}{gain}; {describe_bytes(found.memory_bytes)} a process")
    for note in stage.notes:
        yield _line("note", note)
    for misfit in stage.misfits:
        yield _line("misfit", misfit)


def _transfer(title: str, transfer: Transfer, stage: StagePlan, action: str) -> Iterator[str]:
    words = f"{describe_bytes(transfer.total_bytes)} by {transfer.operator}"
    if (stored := stage.stored.get(transfer.operator)) is not None:
        words += f", {describe_bytes(stored)} as it is stored (measured)"
    yield _line(title, f"{words}: {transfer.place}")
    more = [f"{transfer.amplification:.2f} times what tasks cover"] if title == "reads" else []
    if transfer.block_amplification is not None:
        more.append(f"whole blocks are {transfer.block_amplification:.2f} times that")
    if transfer.requests:
        most = "at most " if title == "reads" else ""
        more.append(
            f"{most}{_amount(transfer.requests)} {action}, {_amount(transfer.task_requests)} a task"
        )
    if more:
        yield _INDENT + "; ".join(more)


def _patches(patches: Patches) -> Iterator[str]:
    yield _line(
        "patches",
        f"{patches.computed:,} by {patches.operator}, {_triple(patches.of_task)} a task: "
        f"{patches.recomputation:.2f} times the {patches.ideal:,} without faces of tasks",
    )
    yield f"{_INDENT}{patches.amplification:.2f} voxels computed for each one of the output"


def _memory(memory: Memory, processes: int) -> Iterator[str]:
    least = "at least " if memory.is_least else ""
    words = f"{least}{describe_bytes(memory.bytes)} a process ({memory.how})"
    if processes > 1:
        words += f", {describe_bytes(memory.bytes * processes)} a machine"
    yield _line("memory", words)
    parts = ", ".join(f"{name} {describe_bytes(n)}" for name, n in memory.parts.items() if n)
    if parts:
        yield f"{_INDENT}foretold {describe_bytes(memory.foretold_bytes)}: {parts}"
    if memory.device_bytes:
        yield _line("GPU memory", f"{describe_bytes(memory.device_bytes)} a process (foretold)")


def _cost(plan: LinePlan, stage: StagePlan, cost: Cost) -> Iterator[str]:
    if not cost.parts and not cost.month and not cost.egress:
        return
    kind = ""
    if plan.price is None and plan.instance is not None:
        kind = f" on demand ({plan.instance.name}, ${plan.instance.hour:g} an hour)"
    words = f"${_money(cost.dollars)}{kind}"
    if stage.spot is not None and plan.instance is not None:
        hour = plan.instance.spot_hour
        words += f", ${_money(stage.spot.dollars)} spot (${hour:.3g} an hour)"
    yield _line("cost", words)
    yield _INDENT + ", ".join(f"{name} ${_money(value)}" for name, value in cost.parts.items())
    if cost.month:
        yield f"{_INDENT}${_money(cost.month)} a month to keep what is written"
    if cost.egress:
        yield f"{_INDENT}${_money(cost.egress)} more where what is read leaves its region"
    yield f"{_INDENT}prices of {plan.prices.date}: {plan.prices.source}"
    for words in dict.fromkeys((*cost.assumed, *(stage.spot.assumed if stage.spot else ()))):
        yield f"{_INDENT}assumed: {words}"


def _sum(plan: LinePlan) -> Iterator[str]:
    took = [stage.duration.seconds for stage in plan.stages if stage.duration is not None]
    if took:
        left = len(plan.stages) - len(took)
        more = f", and {_many(left, 'stage')} not known" if left else ""
        yield _line("in all", f"{duration_words(sum(took))}{more}")
    dollars = sum(stage.cost.dollars for stage in plan.stages if stage.cost is not None)
    if dollars:
        yield _line("", f"${_money(dollars)}")


def _line(title: str, words: str) -> str:
    return f"{title:<{len(_INDENT)}}{words}"


def duration_words(seconds: float) -> str:
    """Return a time in the unit that suits it."""
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


def _triple(size: Any) -> str:
    return " ".join(str(length) for length in size)


def data_of(plan: LinePlan) -> dict[str, Any]:
    """Return a plan as JSON can hold it."""
    return {
        "fits": plan.fits,
        "machines": plan.crew.machines,
        "processes": plan.crew.processes,
        "instance": None if plan.instance is None else plan.instance.name,
        "prices": {"date": plan.prices.date, "source": plan.prices.source},
        "stages": [_stage_data(stage) for stage in plan.stages],
    }


def _stage_data(stage: StagePlan) -> dict[str, Any]:
    cost = {"cost": stage.cost, "spot": stage.spot}
    return {
        "name": stage.name,
        "tasks": stage.tasks,
        "task_size": stage.task_size,
        "reads": [_transfer_data(each, stage) for each in stage.reads],
        "writes": [_transfer_data(each, stage) for each in stage.writes],
        "patches": [_patches_data(each) for each in stage.patches],
        "memory": None if stage.memory is None else dict(vars(stage.memory)),
        "duration": None if stage.duration is None else dict(vars(stage.duration)),
        "machine_hours": stage.hours,
        **{name: each and {**vars(each), "dollars": each.dollars} for name, each in cost.items()},
        "suggestion": stage.suggestion and {**vars(stage.suggestion)},
        "misfits": stage.misfits,
        "notes": stage.notes,
    }


def _transfer_data(transfer: Transfer, stage: StagePlan) -> dict[str, Any]:
    return {
        **vars(transfer),
        "stored_bytes": stage.stored.get(transfer.operator),
        "amplification": transfer.amplification,
        "block_amplification": transfer.block_amplification,
    }


def _patches_data(patches: Patches) -> dict[str, Any]:
    data = {name: value for name, value in vars(patches).items() if name != "box"}
    return {**data, "recomputation": patches.recomputation}

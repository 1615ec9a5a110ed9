"""How long a run took and what it cost: the plots and sums of the page."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chunkflow_py.core.memory import describe_bytes
from chunkflow_py.monitor.report.charts import bars, duration, number, over_time, spans
from chunkflow_py.monitor.report.markup import Html, facts, table, tag

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.monitor.report.measured import RunReport, StageReport, Wanted
    from chunkflow_py.monitor.run_facts import StepFacts
    from chunkflow_py.planning.prices import Prices

_COLUMNS = 120  # bars of a plot over time, at most
_TASKS = 4  # that end in the time of a bar, on average, at least
_WORKERS = 25  # that are shown, those with most tasks

_MACHINES = (
    "Machine hours are from the start of each worker's first task to the end of its last, added up "
    "over workers: starting up, and waiting after the last task, are not in them."
)
_WASTED = (
    "The ledger does not say how long a failed attempt took, so each is counted as long as a task "
    "that is done takes on average. Attempts of workers that died without a word are not known."
)


def money(dollars: float) -> str:
    """Return an amount in dollars."""
    return f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:.3g}"


def took_parts(report: RunReport) -> Iterator[Html]:
    """Yield times and costs of all stages."""
    for stage in report.stages:
        yield tag("h3", f"Stage {stage.stage.name}")
        if not stage.facts.finished:
            yield tag("p", "No task has ended.")
            continue
        yield from _times(stage.facts)
        yield from _workers(stage.facts)
        yield from _costs(stage, report.wanted)
    yield tag("p", _MACHINES, class_="note")
    yield tag("p", _WASTED, class_="note")


def _times(found: StepFacts) -> Iterator[Html]:
    start, stop = found.start or 0.0, found.last or 0.0
    speed = found.voxels / found.wall_s / 1e6 if found.wall_s else 0.0
    yield facts([
        ("from", _when(start)), ("to", f"{_when(stop)}, {duration(found.wall_s)}"),
        ("voxels", f"{found.voxels:,} of tasks that are done, {number(speed)} Mvoxel/s"),
    ])  # fmt: skip
    whole = sum(found.seconds.values())
    if whole:
        yield tag("h4", "Seconds by operator")
        rows = [
            (name, value, f"{duration(value)}, {value / whole:.0%}")
            for name, value in found.seconds.items()
        ]
        yield bars(rows, "seconds by operator, of all tasks together")
        head = ["operator", "all tasks", "mean of a task", "slowest", "Mvoxel/s"]
        yield table(head, (
            [name, duration(value), duration(value / found.finished), duration(found.most_s[name]),
             number(found.voxels / value / 1e6) if value else "-"]
            for name, value in found.seconds.items()
        ), "numbers")  # fmt: skip
        words = "; ".join(f"{box} {duration(seconds)}" for seconds, box in found.slowest)
        yield tag("p", f"The slowest tasks: {words}.", class_="note")
    if found.voxels and len(found.over_time.bins) > 1:
        yield tag("h4", "Throughput over time")
        yield over_time(_columns(found), "Mvoxel/s", "millions of voxels done a second")


def _columns(found: StepFacts) -> list[tuple[float, float, float]]:
    """Return start and stop, seconds from the first task on, and Mvoxel/s of each column."""
    bins, width = found.over_time.bins, found.over_time.width_s
    low, high = int((found.start or 0.0) // width), max(bins)
    wanted = min(_COLUMNS, max(2, found.finished // _TASKS))
    together = -(-(high - low + 1) // wanted)
    columns = []
    for first in range(low, high + 1, together):
        part = range(first, min(first + together, high + 1))
        voxels = sum(bins.get(key, 0.0) for key in part)
        seconds = len(part) * width
        start = float((first - low) * width)
        columns.append((start, start + seconds, voxels / seconds / 1e6))
    return columns


def _workers(found: StepFacts) -> Iterator[Html]:
    ranked = sorted(found.workers.items(), key=lambda item: (-item[1].tasks, item[0]))
    shown = sorted(ranked[:_WORKERS], key=lambda item: (item[1].start, item[0]))
    start = found.start or 0.0
    yield tag("h4", f"Workers: {len(ranked):,}")
    rows = [
        (name, each.start - start, each.stop - start, f"{each.tasks:,} tasks")
        for name, each in shown
    ]
    yield spans(rows, max(found.wall_s, 1e-3), "from the first task of a worker to its last")
    if len(ranked) > len(shown):
        yield tag("p", f"Shown are the {len(shown)} with most tasks.", class_="note")


def _costs(stage: StageReport, wanted: Wanted) -> Iterator[Html]:
    found, price = stage.facts, wanted.price
    hours, teravoxels = found.machine_s / 3600, found.voxels / 1e12
    yield tag("h4", "Cost")
    said: list[tuple[str, object]] = [("machine hours", number(hours))]
    if teravoxels:
        said.append(("machine hours a teravoxel", number(hours / teravoxels)))
    if price is None:
        said.append(("dollars", "give --price, of an hour of one worker, or --instance"))
    else:
        said.append(("dollars", f"{money(hours * price)} at {money(price)} an hour of a worker"))
        if teravoxels:
            said.append(("dollars a teravoxel", money(hours * price / teravoxels)))
    objects = sum(found.objects.values())
    said.append(("written", f"{objects:,} objects, {describe_bytes(found.stored_bytes)}"))
    if wanted.prices is not None:
        said += _storage(found, wanted.prices)
    failures = found.failures
    if failures and not found.wasted_s:
        said.append(("wasted", f"{failures:,} failed attempts, of unknown length"))
    elif failures:
        share = found.wasted_s / (sum(found.seconds.values()) + found.wasted_s)
        about = "about " if found.untimed else ""
        words = f"{failures:,} failed attempts, {about}{duration(found.wasted_s)} ({share:.1%})"
        said.append(("wasted", words))
        if price is not None:
            # of the hours of machines, which may work on several tasks at once
            said.append(("dollars wasted", f"about {money(hours * price * share)}"))
    else:
        said.append(("wasted", "no attempt has failed"))
    yield facts(said)


def _storage(found: StepFacts, prices: Prices) -> Iterator[tuple[str, str]]:
    """Yield what writing and keeping the output costs, where it is in a cloud of the table."""
    for protocol in sorted(found.objects.keys() & prices.stores.keys()):
        store = prices.stores[protocol]
        put = found.objects[protocol] * store["put"]
        month = found.stored[protocol] / 1e9 * store["gb_month"]
        words = f"{money(put)} to write, {money(month)} a month to keep; prices of {prices.date}"
        yield f"dollars of {protocol}", words


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))

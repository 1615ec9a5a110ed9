"""The page: one HTML file with all that was measured, and nothing that it would have to load."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from chunkflow_py.core.memory import describe_bytes
from chunkflow_py.monitor.report.charts import duration, number
from chunkflow_py.monitor.report.looks import seam_parts, slice_parts
from chunkflow_py.monitor.report.markup import Html, joined, table, tag
from chunkflow_py.monitor.report.ran import ran_parts
from chunkflow_py.monitor.report.took import money, took_parts
from chunkflow_py.monitor.report.wrong import verify_parts, wrong_parts
from chunkflow_py.store.address import public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.monitor.report.measured import RunReport

# What the page may load: nothing. Browsers keep to it whatever a page holds.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
STYLE = """
:root { color-scheme: light; }
body { font: 15px/1.45 system-ui, sans-serif; color: #222; max-width: 1000px; margin: 2em auto;
       padding: 0 1em; }
h1 { font-size: 1.5em; overflow-wrap: anywhere; }
h2 { margin-top: 2em; border-bottom: 1px solid #bbb; }
h3 { margin-top: 1.6em; } h4 { margin: 1.4em 0 .4em; }
.state { padding: .6em 1em; border-left: 6px solid #3a7d44; background: #eef6ef; }
.unfinished, .damaged { border-color: #b3261e; background: #fbeceb; }
.failures { border-color: #c77700; background: #fdf4e5; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .6em 0; font-variant-numeric: tabular-nums; }
th, td { border-bottom: 1px solid #ddd; padding: .25em .7em .25em 0; text-align: left;
         vertical-align: top; }
table.numbers td:not(:first-child), table.numbers th:not(:first-child) { text-align: right; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .15em 1em; margin: .6em 0; }
dt { color: #666; } dd { margin: 0; overflow-wrap: anywhere; }
pre, code { font: 12px/1.45 ui-monospace, monospace; }
pre { background: #f4f4f4; padding: .7em; white-space: pre-wrap; overflow-wrap: anywhere; }
svg { max-width: 100%; height: auto; font: 12px system-ui, sans-serif; display: block;
      margin: .6em 0; }
rect { fill: #3b6ea5; } line { stroke: #ccc; } text { fill: #333; }
.planes { display: flex; flex-wrap: wrap; gap: 1em; align-items: flex-start; }
figure { margin: 0; } figcaption { color: #666; font-size: 13px; }
img { image-rendering: pixelated; display: block; background: #000; }
.note { color: #666; font-size: 13px; } summary { cursor: pointer; }
@media print { details > * { display: block; } body { max-width: none; } }
"""


def page_of(report: RunReport, now: float | None = None) -> str:
    """Return the page; the same for the same report, but for the date.

    Args:
        report: what was measured.
        now: seconds since 1970, for the date (default: this machine's clock).
    """
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    title = f"Report on {public(report.address.partition('#')[0])}"
    body = (
        tag("h1", title),
        *_state(report),
        tag("p", f"Written on {when}. All times are UTC, by the clocks of workers.", class_="note"),
        _summary(report),
        tag("h2", "What ran", id="ran"),
        *ran_parts(report),
        tag("h2", "How long it took, and what it cost", id="took"),
        *took_parts(report),
        tag("h2", "What went wrong", id="wrong"),
        *wrong_parts(report),
        tag("h2", "Slices", id="slices"),
        *slice_parts(report),
        tag("h2", "Seams", id="seams"),
        *seam_parts(report),
        tag("h2", "Verified", id="verified"),
        *verify_parts(report),
    )
    head = (
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=Html(POLICY)),
        tag("meta", name_="viewport", content="width=device-width"),
        tag("title", title),
        tag("style", Html(STYLE)),
    )
    whole = tag("html", tag("head", *head), tag("body", joined(body, "\n")), lang="en")
    return f"<!DOCTYPE html>\n{whole}\n"


def _state(report: RunReport) -> Iterator[Html]:
    tasks = sum(stage.stage.tasks for stage in report.stages)
    if report.left:
        waiting = [
            f"{s.stage.name}: {s.left:,} of {s.stage.tasks:,}" for s in report.stages if s.left
        ]
        words = (
            f"This run is not complete: {report.left:,} of {tasks:,} tasks have not ended "
            f"({', '.join(waiting)}). What follows is of those that have."
        )
        yield tag("p", words, class_="state unfinished")
    if report.dead:
        words = f"{report.dead:,} of {tasks:,} tasks were given up; their output is missing."
        yield tag("p", words, class_="state failures")
    if set(report.damage_kinds) - {"not recorded", "failed"}:  # which is said above
        words = "What is stored is not what was recorded; see Verified."
        yield tag("p", words, class_="state damaged")
    if not report.left and not report.dead:
        yield tag("p", f"This run is complete: all {tasks:,} tasks have ended.", class_="state")


def _summary(report: RunReport) -> Html:
    head = ["stage", "tasks", "done", "skipped", "failed", "left", "Gvoxel", "time", "Mvoxel/s"]
    head += ["machine hours", "stored"]
    price = report.wanted.price
    rows = []
    for each in report.stages:
        found = each.facts
        speed = found.voxels / found.wall_s / 1e6 if found.wall_s else 0.0
        rows.append([
            each.stage.name, f"{each.stage.tasks:,}", f"{found.done:,}", f"{found.skipped:,}",
            f"{found.dead:,}", f"{each.left:,}", number(found.voxels / 1e9),
            duration(found.wall_s), number(speed), number(found.machine_s / 3600),
            describe_bytes(found.stored_bytes),
            *([money(found.machine_s / 3600 * price)] if price is not None else []),
        ])  # fmt: skip
    head += ["cost"] if price is not None else []
    return table(head, rows, "numbers")

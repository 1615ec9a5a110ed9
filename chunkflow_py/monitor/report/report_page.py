"""Write the page of a report: one HTML file that loads no other files.

The page has these sections: what ran (with all parameters that are needed to repeat the run), how
long the run took and what it cost, what went wrong, slices of the input and the output, seams
between tasks, and the findings of `verify`.
"""

from __future__ import annotations

import base64
import json
import shlex
import time
from typing import TYPE_CHECKING, Any

from chunkflow_py.core.host_memory import describe_bytes
from chunkflow_py.monitor.provenance import TITLES
from chunkflow_py.monitor.report.report_markup import (
    Html,
    bars,
    duration,
    facts,
    joined,
    number,
    over_time,
    spans,
    table,
    tag,
)
from chunkflow_py.monitor.report.seam_measure import REACH, WINDOW
from chunkflow_py.monitor.run_facts import cause_text, patch_texts
from chunkflow_py.run.run_spec import FILE_MARK
from chunkflow_py.store.store_address import public

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.monitor.report.run_report import ReportOptions, RunReport, StepReport
    from chunkflow_py.monitor.report.seam_measure import Seam
    from chunkflow_py.monitor.report.volume_planes import PlaneImage, VolumePlanes
    from chunkflow_py.monitor.run_facts import StepFacts
    from chunkflow_py.planning.prices import Prices
    from chunkflow_py.run.ledger.ledger_record import FailedAttempt
    from chunkflow_py.run.submission_record import SubmissionRecord

# The page may load nothing; browsers enforce this policy, whatever the page contains.
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
_SHOWN_PROFILES = 10
_SHOWN_ORIGINS = 50
_COLUMNS = 120  # most bars of a plot over time
_TASKS = 4  # least number of tasks per bar, on average
_WORKERS = 25  # workers that are shown: those with the most tasks

_MACHINES = (
    "The machine hours of a worker are the time from the start of its first task to the end of its "
    "last task. They are added up over workers. The time that a worker runs before its first task "
    "and after its last task is not included."
)
_WASTED = (
    "A failed attempt of unknown duration counts as the mean duration of a done task. "
    "Attempts that a worker did not record, because the worker died, are not counted."
)
_REASONS = 20
_SIDE = 300  # pixels of the longest side of all planes of a volume

_FORMULA = (
    "A face is the boundary between two neighbouring tasks. Along each axis, the report measures a "
    "sample of the faces between done tasks. For each face, the report reads a slab that is "
    f"{2 * REACH + 2} voxels thick and at most {WINDOW} x {WINDOW} voxels wide. Across: the mean "
    "absolute difference between neighbouring voxels on opposite sides of a face; for labels, the "
    "share of pairs with different labels. Inside: the same for neighbouring voxels inside a task, "
    f'up to {REACH} voxels from the face. Seam measure: the sum of "across" over all faces, '
    'divided by the sum of "inside". If it is 1, task boundaries look like the inside of tasks. If '
    "it is 2, differences across a boundary are twice as large as inside. 95 % range: the range "
    "that contains the seam measure of 95 % of random samples, drawn with replacement from these "
    "faces (bootstrap)."
)


def page_of(report: RunReport, now: float | None = None) -> str:
    """Return the HTML of the report's page.

    The pages of equal reports differ only in the date.

    Args:
        report: measurements to show.
        now: date of the report, in seconds since 1970 (default: the clock of this machine).
    """
    when = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))
    title = f"Report on {public(report.address.partition('#')[0])}"
    body = (
        tag("h1", title),
        *_state(report),
        tag(
            "p",
            f"Written on {when}. All times are in UTC, as the clocks of the workers show them.",
            class_="note",
        ),
        _summary(report),
        tag("h2", "What ran", id="ran"),
        *_ran_parts(report),
        tag("h2", "How long it took, and what it cost", id="took"),
        *_took_parts(report),
        tag("h2", "What went wrong", id="wrong"),
        *_wrong_parts(report),
        tag("h2", "Slices", id="slices"),
        *_slice_parts(report),
        tag("h2", "Seams", id="seams"),
        *_seam_parts(report),
        tag("h2", "Verified", id="verified"),
        *_verify_parts(report),
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
        text = (
            f"This run is not complete: {report.left:,} of {tasks:,} tasks have not ended "
            f"({', '.join(waiting)}). This report covers the tasks that have ended."
        )
        yield tag("p", text, class_="state unfinished")
    if report.dead:
        text = f"{report.dead:,} of {tasks:,} tasks were given up; their output is missing."
        yield tag("p", text, class_="state failures")
    if set(report.damage_kinds) - {"not recorded", "failed"}:  # reported above
        text = "Some stored objects differ from the records; see the section Verified."
        yield tag("p", text, class_="state damaged")
    if not report.left and not report.dead:
        yield tag("p", f"This run is complete: all {tasks:,} tasks have ended.", class_="state")


def _summary(report: RunReport) -> Html:
    head = ["step", "tasks", "done", "skipped", "failed", "left", "Gvoxel", "time", "Mvoxel/s"]
    head += ["machine hours", "stored"]
    price = report.options.price
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


# --- what ran -------------------------------------------------------------------------------------


def _ran_parts(report: RunReport) -> Iterator[Html]:
    """Yield the section about what ran: the description of the run and of each step."""
    spec = report.spec
    yield facts([
        ("run", report.address.partition("#")[0]),
        ("SHA-256 of the spec", spec.digest),
        ("chunkflow_py", spec.version),
        ("submitted by", _submitter(report.submission)),
        ("submitted in", spec.folder),
        ("queue", spec.queue or "none: a Dask scheduler distributes the tasks"),
        ("taken over", "; ".join(f"step {n} from {url}" for n, url in spec.reused.items())
         or "nothing: this run does all steps itself"),
    ])  # fmt: skip
    for stage in report.stages:
        yield tag("h3", f"Step {stage.stage.name}")
        yield from _ran_stage(stage)


def _submitter(submission: SubmissionRecord | None) -> str:
    if submission is None:
        return "not recorded"
    return f"{submission.user}@{submission.host} on {_when(submission.when)}: {submission.command}"


def _ran_stage(report: StepReport) -> Iterator[Html]:
    stage = report.stage
    names = {file.placeholder: file.name for file in stage.files}
    argv = [_named(word, names) for word in (*stage.source, *stage.arguments)]
    yield tag("pre", shlex.join(["chunkflow", *argv]))
    yield facts([
        ("hash of the step", stage.hash),
        ("hash of the previous step", stage.previous),
        ("taken over from", report.taken_from or ""),
        ("tasks", f"{stage.tasks:,}: {_plan_text(stage.plan)}"),
        ("workers", "all with one compute profile" if stage.device_class == "same"
         else "with any compute profile: their results agree only within a tolerance"),
        ("code outside of chunkflow_py", "; ".join(stage.code)),
        *((f"{place.role} ({place.operator})", f"{place.address} at mip {place.mip}")
          for place in report.volumes),
        *(("other data", other) for other in report.others),
    ])  # fmt: skip
    head = ["file", "role", "SHA-256"]
    yield table(head, ([f.origin or f.name, f.role, tag("code", f.sha256)] for f in stage.files))
    if report.profile:
        yield tag("h4", "Compute profile")
        yield facts(sorted(report.profile.items()))
    profiles = [(p, n) for p, n in report.facts.profiles.most_common() if p]
    if len(profiles) > 1:
        rows = ((profile, f"{count:,}") for profile, count in profiles[:_SHOWN_PROFILES])
        yield table(["compute profile of workers", "tasks"], rows)
    if any(report.origins):
        yield tag("h4", "Made by")
        head = [*TITLES.values(), "tasks"]
        ranked = report.origins.most_common(_SHOWN_ORIGINS)
        known = ((dict(facts), f"{count:,}") for facts, count in ranked)
        yield table(head, ([*(made.get(name, "") for name in TITLES), n] for made, n in known))
    options = [
        (operator, f"--{name.replace('_', '-')}", _option_text(value, names))
        for operator, chosen in stage.options
        for name, value in chosen.items()
        if name not in ("reads", "writes")
    ]
    inside = table(["command", "option", "value"], options)
    yield tag("details", tag("summary", f"All {len(options)} options, including defaults"), inside)


def _plan_text(plan: dict[str, Any]) -> str:
    if plan["kind"] != "grid":
        return "a list of boxes"
    text = f"boxes of {_zyx(plan['size'])} from {_zyx(plan['start'])} (zyx, voxels)"
    if plan["stride"] != plan["size"]:
        text += f" at a stride of {_zyx(plan['stride'])}"
    return text + (f", {plan['times']} time points" if plan["times"] else "")


def _zyx(three: list[int]) -> str:
    return ", ".join(map(str, three))


def _named(word: str, names: dict[str, str]) -> str:
    for mark, name in names.items():
        if mark in word:
            return word.replace(mark, name)
    return word


def _option_text(value: Any, names: dict[str, str]) -> str:
    if isinstance(value, str):
        return _named(value, names) if value.startswith(FILE_MARK) else value
    return json.dumps(value)


# --- how long it took, and what it cost -----------------------------------------------------------


def money(dollars: float) -> str:
    """Format an amount in US dollars, such as ``$12.30`` or ``$0.0123``."""
    return f"${dollars:,.2f}" if dollars >= 1 else f"${dollars:.3g}"


def _took_parts(report: RunReport) -> Iterator[Html]:
    """Yield the section about times and costs: first of the whole run, then of each step."""
    if report.spending:
        yield tag("p", f"Reported by the workers of the run: {report.spending}.")
    for stage in report.stages:
        yield tag("h3", f"Step {stage.stage.name}")
        if not stage.facts.finished:
            yield tag("p", "No task has ended.")
            continue
        yield from _times(stage.facts)
        yield from _workers(stage.facts)
        yield from _costs(stage, report.options)
    yield tag("p", _MACHINES, class_="note")
    yield tag("p", _WASTED, class_="note")


def _times(found: StepFacts) -> Iterator[Html]:
    start, stop = found.start or 0.0, found.last or 0.0
    speed = found.voxels / found.wall_s / 1e6 if found.wall_s else 0.0
    yield facts([
        ("from", _when(start)), ("to", f"{_when(stop)}, {duration(found.wall_s)}"),
        ("voxels", f"{found.voxels:,} in done tasks, {number(speed)} Mvoxel/s"),
    ])  # fmt: skip
    whole = sum(found.seconds.values())
    if whole:
        yield tag("h4", "Seconds by operator")
        rows = [
            (name, value, f"{duration(value)}, {value / whole:.0%}")
            for name, value in found.seconds.items()
        ]
        yield bars(rows, "seconds of each operator, over all tasks")
        head = ["operator", "all tasks", "mean per task", "slowest", "Mvoxel/s"]
        yield table(head, (
            [name, duration(value), duration(value / found.finished), duration(found.most_s[name]),
             number(found.voxels / value / 1e6) if value else "-"]
            for name, value in found.seconds.items()
        ), "numbers")  # fmt: skip
        slowest = "; ".join(f"{box} {duration(seconds)}" for seconds, box in found.slowest)
        yield tag("p", f"The slowest tasks: {slowest}.", class_="note")
    if found.voxels and len(found.over_time.bins) > 1:
        yield tag("h4", "Throughput over time")
        yield over_time(_columns(found), "Mvoxel/s", "millions of voxels per second in done tasks")


def _columns(found: StepFacts) -> list[tuple[float, float, float]]:
    """Return the start, stop and Mvoxel/s of each bar of the plot of throughput.

    Start and stop are seconds since the first task began.
    """
    bins, width = found.over_time.bins, found.over_time.width_s
    low, high = int((found.start or 0.0) // width), max(bins)
    columns_wanted = min(_COLUMNS, max(2, found.finished // _TASKS))
    together = -(-(high - low + 1) // columns_wanted)
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
    yield spans(
        rows,
        max(found.wall_s, 1e-3),
        "time from the start of the first task to the end of the last task of each worker",
    )
    if len(ranked) > len(shown):
        yield tag("p", f"The {len(shown)} workers with the most tasks are shown.", class_="note")


def _costs(stage: StepReport, options: ReportOptions) -> Iterator[Html]:
    found, price = stage.facts, options.price
    hours, teravoxels = found.machine_s / 3600, found.voxels / 1e12
    yield tag("h4", "Cost")
    rows: list[tuple[str, object]] = [("machine hours", number(hours))]
    if teravoxels:
        rows.append(("machine hours per teravoxel", number(hours / teravoxels)))
    if price is None:
        rows.append(
            (
                "dollars",
                "unknown; give --price (US dollars per worker hour) or --instance for an estimate",
            )
        )
    else:
        rows.append(("dollars", f"{money(hours * price)} at {money(price)} per worker hour"))
        if teravoxels:
            rows.append(("dollars per teravoxel", money(hours * price / teravoxels)))
    objects = sum(found.objects.values())
    rows.append(("written", f"{objects:,} objects, {describe_bytes(found.stored_bytes)}"))
    if options.prices is not None:
        rows += _storage(found, options.prices)
    if found.patches:
        rows.append(("patches", "; ".join(patch_texts(found.patches))))
    failures = found.failures
    if failures and not found.wasted_s:
        rows.append(("wasted", f"{failures:,} failed attempts, of unknown duration"))
    elif failures:
        share = found.wasted_s / (sum(found.seconds.values()) + found.wasted_s)
        about = "about " if found.untimed else ""
        text = f"{failures:,} failed attempts, {about}{duration(found.wasted_s)} ({share:.1%})"
        rows.append(("wasted", text))
        if price is not None:
            # a share of the machine hours: a machine may work on several tasks at once
            rows.append(("dollars wasted", f"about {money(hours * price * share)}"))
    else:
        rows.append(("wasted", "nothing: no attempt has failed"))
    yield facts(rows)


def _storage(found: StepFacts, prices: Prices) -> Iterator[tuple[str, str]]:
    """Yield the costs of writing and of storing the output, for each store with known prices."""
    for protocol in sorted(found.objects.keys() & prices.stores.keys()):
        store = prices.stores[protocol]
        put = found.objects[protocol] * store["put"]
        month = found.stored[protocol] / 1e9 * store["gb_month"]
        text = f"{money(put)} to write, {money(month)} per month to store; prices of {prices.date}"
        yield f"dollars of {protocol}", text


def _when(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))


# --- what went wrong ------------------------------------------------------------------------------


def _wrong_parts(report: RunReport) -> Iterator[Html]:
    """Yield the section about tasks that failed, were skipped, or read missing blocks."""
    parts = [part for stage in report.stages for part in _wrong_stage(stage)]
    yield from parts or [tag("p", "No task failed or was skipped, and no block was missing.")]


def _wrong_stage(report: StepReport) -> Iterator[Html]:
    name, found = report.stage.name, report.facts
    if found.dead:
        yield tag("h3", f"Step {name}: {found.dead:,} failed tasks")
        if found.dead > len(found.failed):
            yield tag("p", f"The first {len(found.failed)} are shown.", class_="note")
        for task in found.failed:
            title = f"{task.box}: {task.reason or 'no reason given'}"
            tried = (_attempt(n, each) for n, each in enumerate(task.attempts, 1))
            yield tag("details", tag("summary", title), *tried)
    if found.failures:
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(found.errors.kinds().items()))
        yield tag("h3", f"Step {name}: {found.failures:,} failed attempts ({kinds})")
        if found.causes:
            yield tag("p", f"Causes: {cause_text(found.causes, found.failures)}.")
        for group in found.errors.ranked()[:_REASONS]:
            example = _attempt(None, group.examples[0])
            yield tag("details", tag("summary", f"{group.count:,} x {group.reason}"), example)
    if found.skipped:
        yield tag("h3", f"Step {name}: {found.skipped:,} skipped tasks")
        ranked = sorted(found.skip_reasons.items(), key=lambda item: (-item[1], item[0]))
        yield table(["tasks", "reason"], ((f"{n:,}", why) for why, n in ranked[:_REASONS]))
    if found.missing_blocks:
        yield tag(
            "h3", f"Step {name}: {found.missing_blocks:,} missing blocks read as the fill value"
        )
        text = (
            f"{found.missing_tasks:,} tasks have read blocks that are not stored, for example the "
            f"tasks {', '.join(found.missing_boxes)}."
        )
        yield tag("p", text)


def _attempt(number: int | None, failure: FailedAttempt) -> Html:
    which = f"for example, task {failure.box}" if number is None else f"attempt {number}"
    kind = f"{failure.kind} ({failure.cause})" if failure.cause else failure.kind
    title = tag("p", f"{which}: {kind}, worker {failure.worker}: {failure.reason}")
    traceback = (tag("pre", failure.traceback),) if failure.traceback else ()
    return tag("div", title, *traceback)


# --- slices and seams -----------------------------------------------------------------------------


def _slice_parts(report: RunReport) -> Iterator[Html]:
    """Yield the section with images of all volumes."""
    shown = False
    for stage in report.stages:
        for planes in stage.planes:
            shown = True
            yield from _volume_images(stage.stage.name, planes)
    if not shown:
        yield tag("p", "This run has no input or output volume that can be shown.")


def _volume_images(stage: str, shown: VolumePlanes) -> Iterator[Html]:
    place = shown.place
    yield tag("h4", f"{place.role.capitalize()} of step {stage}: {place.address}")
    if shown.problem:
        yield tag("p", f"This volume cannot be shown: {shown.problem}")
        return
    scale = _SIDE / max(extent for plane in shown.planes for extent in plane.extent_nm)
    yield tag("div", *(_figure(plane, scale) for plane in shown.planes), class_="planes")
    yield tag("p", shown.description, class_="note")


def _figure(plane: PlaneImage, scale: float) -> Html:
    height, width = (max(1, round(extent * scale)) for extent in plane.extent_nm)
    source = f"data:image/png;base64,{base64.b64encode(plane.png).decode()}"
    caption = f"{plane.axes}, {plane.where}"
    image = tag("img", src=Html(source), width=width, height=height, alt=caption)
    return tag("figure", image, tag("figcaption", caption))


def _seam_parts(report: RunReport) -> Iterator[Html]:
    """Yield the section with the seam measures of all output volumes."""
    measured = [(stage.stage.name, seams) for stage in report.stages for seams in stage.seams]
    if not measured:
        text = "Not measured, because no task is done, or no output can be read, or --faces is 0."
        yield tag("p", text)
        return
    head = ["axis", "seam measure", "95 % range", "faces", "across", "inside"]
    for name, seams in measured:
        what = "labels" if seams.labels else "image or map"
        yield tag("h4", f"Output of step {name}: {seams.place.address} ({what})")
        if seams.problem:
            yield tag("p", f"Not measured: {seams.problem}.")
        yield table(head, (_seam_row(each) for each in seams.axes), "numbers")
    yield tag("p", _FORMULA, class_="note")


def _seam_row(seam: Seam) -> list[str]:
    ratio = "all values equal" if seam.ratio is None else number(seam.ratio)
    spread = "-"
    if seam.low is not None and seam.high is not None:
        spread = f"{number(seam.low)} to {number(seam.high)}"
    return [seam.axis, ratio, spread, f"{seam.faces}", number(seam.across), number(seam.inside)]


# --- findings of verify ---------------------------------------------------------------------------


def _verify_parts(report: RunReport) -> Iterator[Html]:
    """Yield the section with the result of comparing the stored output with the records."""
    if report.damages is None:
        text = (
            "The stored output was not compared with the records. To compare it, run chunkflow "
            "report --verify or chunkflow verify; both read all stored output."
        )
        yield tag("p", text)
    elif not report.damages:
        text = (
            "Every recorded object was read again for this report: all are present and match "
            "their checksums."
        )
        yield tag("p", text, class_="state")
    else:
        total = sum(report.damage_kinds.values())
        kinds = ", ".join(f"{n:,} {kind}" for kind, n in sorted(report.damage_kinds.items()))
        yield tag("p", f"{total:,} findings: {kinds}.", class_="state damaged")
        yield table(["step", "finding"], ((name, str(damage)) for name, damage in report.damages))
        if total > len(report.damages):
            yield tag("p", f"The first {len(report.damages)} are shown.", class_="note")

"""Tables of the recorded runs of `queues.py`: measured values, targets and verdicts.

Pure functions of the recorded JSON, so that a table in the documentation cannot differ from it.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from records import Case, spread
from table import Line, at_least, at_most, not_measured

if TYPE_CHECKING:
    from records import Record, Report

SEND_TARGET = 0.8
CPU_TARGET = 5.0
MEMORY_LIMIT = 1.2  # ratio of the most to the fewest boxes; SQLite's cache fills up in between
OVERHEAD_LIMIT_MS = 2.0
SCALING_TARGET = 0.95
OWN = ("embedded", "directory", "SQS")
DOCUMENTED = {"python-task-queue": 1320, "daisy": 4600}  # tasks/s, on other machines


def lines(report: Report) -> list[Line]:
    """Return every line of the table."""
    kinds = {
        "send": _send,
        "receive": _receive,
        "memory": _memory,
        "nothing": _nothing,
        "sleep": _sleep,
    }
    result = []
    for name, settings in report["cases"].items():
        case = Case(name, report)
        result += kinds[settings["kind"]](case)
        result += [
            not_measured(name, contestant, "", why)
            for contestant, why in case.errors.items()
            if contestant not in case.records
        ]
    return result


def _rates(records: list[Record]) -> str:
    return spread([record["tasks"] / record["wall_s"] for record in records], "tasks/s")


def _cpu_ms(record: Record) -> float:
    return float(1000 * record["cpu_s"] / record["tasks"])


def _send(case: Case) -> list[Line]:
    result = [Line(case.name, name, _rates(records)) for name, records in case.records.items()]
    what = "speed of generate-tasks relative to boto3, same number of connections"
    if reason := case.missing(("ours", "boto3")):
        return [*result, not_measured(case.name, what, f"at least {SEND_TARGET:.2f} x", reason)]
    ratio = case.median("boto3", "wall_s") / case.median("ours", "wall_s")
    return [*result, at_least(case.name, what, ratio, SEND_TARGET, "x")]


def _receive(case: Case) -> list[Line]:
    result = [
        Line(case.name, f"CPU time of the client, {name}", spread(times, "ms per task"))
        for name, records in case.records.items()
        if (times := [_cpu_ms(record) for record in records])
    ]
    what = "CPU time of chunkflow 1.2.0 relative to ours"
    if reason := case.missing(("ours", "chunkflow")):
        return [*result, not_measured(case.name, what, f"at least {CPU_TARGET:.2f} x", reason)]
    theirs, ours = (
        median(_cpu_ms(record) for record in case.records[name]) for name in ("chunkflow", "ours")
    )
    return [*result, at_least(case.name, what, theirs / ours, CPU_TARGET, "x")]


def _memory(case: Case) -> list[Line]:
    result = [
        Line(case.name, name, f"{spread(peaks, 'MB')} at its peak, {_rates(records)}")
        for name, records in case.records.items()
        if (peaks := [record["peak_bytes"] / 1e6 for record in records])
    ]
    sizes = list(case.settings["tasks"])
    fewest, most = sizes[0], sizes[-1]
    what = f"peak memory, {most} relative to {fewest}"
    if reason := case.missing((fewest, most)):
        return [*result, not_measured(case.name, what, f"at most {MEMORY_LIMIT:.2f} x", reason)]
    ratio = case.median(most, "peak_bytes") / case.median(fewest, "peak_bytes")
    return [*result, at_most(case.name, what, ratio, MEMORY_LIMIT, "x")]


def _nothing(case: Case) -> list[Line]:
    result = []
    alone_s = None
    workers = case.settings["processes"]
    if "no queue" in case.records:
        alone_s = median(record["wall_s"] / record["tasks"] for record in case.records["no queue"])
        text = f"{1e3 * alone_s:.3f} ms per task, one process"
        result.append(Line(case.name, "the same pipeline without queue and ledger", text))
    for name, records in case.records.items():
        if name == "no queue":
            continue
        text = _rates(records)
        if name in DOCUMENTED:
            text += f"; published: {DOCUMENTED[name]:,}, on another machine"
        result.append(Line(case.name, name, text))
    for name in OWN:
        what = f"overhead per task, {name}"
        target = f"at most {OVERHEAD_LIMIT_MS:.3g} ms" if name == OWN[0] else ""
        if reason := case.missing(("no queue", name)):
            result.append(not_measured(case.name, what, target, reason))
            continue
        assert alone_s is not None
        times = [
            1e3 * (workers * record["wall_s"] / record["tasks"] - alone_s)
            for record in case.records[name]
        ]
        note = f" ({min(times):.3g} to {max(times):.3g})"
        if name == OWN[0]:
            limit = OVERHEAD_LIMIT_MS
            result.append(at_most(case.name, what, median(times), limit, "ms", note))
        else:
            result.append(Line(case.name, what, f"{median(times):.3g} ms{note}"))
        result.append(_details(case, name))
    return result


def _details(case: Case, name: str) -> Line:
    """Return the parts of the overhead."""
    gap, mean = (1e3 * case.median(name, key) for key in ("gap_s", "mean_gap_s"))
    records = case.records[name]
    busy = [1e3 * record["supervisor_cpu_s"] / record["tasks"] for record in records]
    files = max(record["ledger_files"] for record in records)
    text = (
        f"median {gap:.3f} ms, mean {mean:.2f} ms; CPU time of the supervisor "
        f"{median(busy):.2f} ms per task; {files} files of the ledger at the end"
    )
    return Line(case.name, f"time between two tasks of a process, {name}", text)


def _sleep(case: Case) -> list[Line]:
    result = []
    for name in case.settings["tasks"]:
        what = f"share of the time that processes spend in tasks, {name}"
        if name not in case.records:
            continue
        share = case.median(name, "at_work")
        records = case.records[name]
        speed = median(case.settings["seconds"] * r["tasks"] / r["wall_s"] for r in records)
        note = f"; {speed:.2f} tasks at the same time, on average over the whole run"
        result.append(at_least(case.name, what, share, SCALING_TARGET, "%", note))
    return result

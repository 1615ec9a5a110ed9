"""What the recorded runs of `exchange.py` mean: lines of measured value, target and verdict.

Pure functions of the recorded JSON, so that a table in the documentation cannot differ from it.
"""

from __future__ import annotations

from statistics import median
from typing import TYPE_CHECKING

from records import Case, spread
from table import Line, at_least, at_most, not_measured, within

if TYPE_CHECKING:
    from records import Report

ALONE_LIMIT, SEVERAL_LIMIT = 1.00, 1.05  # patches computed / distinct patches
ROUNDED = 0.005  # a ratio of 1.00 is below 1.005
ONE_TASK_LIMIT, SPEED_TARGET = 1.05, 1.5
BYTES_LIMIT = 0.15
COST_LIMIT = 0.01  # of the forward, for digests and for copies
ALONE, KILLED, APART = "1 worker", "8 workers, killed", "8 workers, no exchange"
ONE, SMALL, BARE, BUCKET = "one task", "exchange", "no exchange", "exchange in a bucket"


def lines(report: Report) -> list[Line]:
    """Return every line of the table."""
    result = []
    for name, settings in report["cases"].items():
        case = Case(name, report)
        result += _counts(case) if settings["kind"] == "counts" else _times(case)
        result += [
            not_measured(name, contestant, "", why) for contestant, why in case.errors.items()
        ]
    return result


# --- counts --------------------------------------------------------------------------------------


def _counts(case: Case) -> list[Line]:
    result = []
    geometry = case.settings["geometry"]
    for name, (record, *_) in case.records.items():
        ratio = record["forwards"] / geometry["distinct"]
        note = f" ({record['forwards']:,} of {geometry['distinct']:,}, {record['tasks']} tasks)"
        if name == KILLED:
            note += (
                f"; {record['killed_forwards']:,} more in {record['killed_attempts']} killed tasks"
            )
        what = f"computed / distinct, {name}"
        if name == APART:
            expected = geometry["apart"] / geometry["distinct"]
            line = within(
                case.name, f"{what}, difference from the expected ratio", ratio / expected, 0.01
            )
            result += [Line(case.name, what, f"{ratio:.2f} x{note}"), line]
            continue
        limit = ALONE_LIMIT + ROUNDED if name == ALONE else SEVERAL_LIMIT
        result.append(at_most(case.name, what, ratio, limit, "x", note))
    for name, (record, *_) in case.records.items():
        if name == APART:
            continue
        text = f"{record['peak_bytes'] / 1e6:.3g} MB"
        if "planned_peak_bytes" in record:
            text += f"; estimate of plan: at most {record['planned_peak_bytes'] / 1e6:.3g} MB"
        result.append(Line(case.name, f"most bytes stored at the same time, {name}", text))
    return [*result, _same_bytes(case)]


def _same_bytes(case: Case) -> Line:
    outputs = {
        record["digest"]
        for records in case.records.values()
        for record in records
        if "digest" in record
    }
    return at_most(case.name, "different outputs of all runs", len(outputs), 1, "")


# --- times ---------------------------------------------------------------------------------------


def _times(case: Case) -> list[Line]:
    result = []
    for name, records in case.records.items():
        tasks = records[0]["tasks"]
        text = f"{spread(_seconds(case, name), 's')}; {tasks} task{'s' * (tasks > 1)}"
        if "grid" in case.settings["contestants"][name]:
            text += f", scaled to {case.settings['geometry']['tasks']}"
        if "patches" in records[0]:
            text += f", {records[0]['patches']} patches computed"
        result.append(Line(case.name, f"wall time, {name}", text))
    result += [
        _ratio(case, "time of eight tasks relative to one task", SMALL, ONE, ONE_TASK_LIMIT),
        _ratio(case, "speed relative to no exchange", BARE, SMALL, SPEED_TARGET, is_speed=True),
        _ratio(case, "speed relative to chunkflow 1.2.0", "chunkflow", SMALL, None, is_speed=True),
        _remaining(case),
        *_exchanged(case, SMALL),
        *_exchanged(case, BUCKET),
        *_costs(case),
    ]
    return [*result, _same_bytes(case)]


def _seconds(case: Case, name: str) -> list[float]:
    """Return the time of each round for the whole volume."""
    if "grid" not in case.settings["contestants"][name]:
        return case.values(name, "wall_s")
    tasks = case.settings["geometry"]["tasks"]
    return [record["wall_s"] * tasks / record["tasks"] for record in case.records[name]]


def _ratio(
    case: Case, what: str, above: str, below: str, limit: float | None, *, is_speed: bool = False
) -> Line:
    """Return the ratio of two times: the median over the rounds of that within a round."""
    if reason := case.missing((above, below)):
        words = "" if limit is None else f"at {'least' if is_speed else 'most'} {limit:.2f} x"
        return not_measured(case.name, what, words, reason)
    pairs = zip(_seconds(case, above), _seconds(case, below), strict=True)
    ratio = median(one / other for one, other in pairs)
    if limit is None:
        return Line(case.name, what, f"{ratio:.2f} x")
    judge = at_least if is_speed else at_most
    return judge(case.name, what, ratio, limit, "x")


def _remaining(case: Case) -> Line:
    latency_ms = 1e3 * case.settings["latency_s"]
    what = (
        f"time saved in a bucket with {latency_ms:.0f} ms per request, relative to the local disk"
    )
    if reason := case.missing((BARE, SMALL, BUCKET)):
        return not_measured(case.name, what, "", reason)
    bare, local, bucket = (case.median(name, "wall_s") for name in (BARE, SMALL, BUCKET))
    return Line(case.name, what, f"{(bare - bucket) / (bare - local):.0%}")


def _exchanged(case: Case, name: str) -> list[Line]:
    """Return the bytes and requests of the exchange, and the bytes against the estimate."""
    if name not in case.records:
        return []
    record = case.records[name][0]
    written, read = (record["exchanged_bytes"][key] for key in ("written", "read"))
    text = f"{written / 1e6:.1f} MB written, {read / 1e6:.1f} MB read"
    if "requests" in record:
        count = sum(record["requests"].values()) / record["tasks"]
        each = ", ".join(f"{number} {method}" for method, number in record["requests"].items())
        text += f"; {count:.1f} requests per task ({each})"
    result = [Line(case.name, f"bytes exchanged, {name}", text)]
    if name == BUCKET:
        what = "bytes written compared with the estimate of plan"
        if "planned_bytes" not in record:
            words = f"within {BYTES_LIMIT:.0%}"
            return [*result, not_measured(case.name, what, words, "plan does not estimate them")]
        planned = record["planned_bytes"]
        note = f" of {planned / 1e6:.1f} MB"
        result.append(within(case.name, what, written / planned, BYTES_LIMIT, note))
    return result


def _costs(case: Case) -> list[Line]:
    """Return the processor time of each part of the exchange, as a share of the forward."""
    if SMALL not in case.records:
        return []
    result = []
    for part in case.records[SMALL][0]["exchange_s"]:
        share = median(
            record["exchange_s"][part][1] / record["forward_s"] for record in case.records[SMALL]
        )
        what = f"processor time of {part}, share of the time in the network"
        if part in ("digests of inputs", "copies"):
            result.append(at_most(case.name, what, share, COST_LIMIT, "%"))
        else:
            result.append(Line(case.name, what, f"{share:.2%}"))
    return result

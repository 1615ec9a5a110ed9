"""What the recorded runs of `volumes.py` mean: lines of measured value, target and verdict.

Pure functions of the recorded JSON, so that a table in the documentation cannot differ from it.
"""

from __future__ import annotations

from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from records import Case, spread
from table import Line, at_least, at_most, not_measured
from volumes_cases import CONVERT_PEER, HALF, LANES, NO_LANES, PROGRAM, SYNCED

if TYPE_CHECKING:
    from records import Record, Report

STORAGE_TARGET = 0.95
GZIP_TARGET = 5.0
CHUNKFLOW_TARGET = 4.0
OVERLAP_LIMIT, OVERLAP_TARGET = 1.10, 2.5
EQUAL_LIMIT = 1.15
OUTSIDE_LIMIT = 0.05
CONVERT_TARGET = 1.0
GROWTH_LIMIT = 1.1
_ON_DISK = ", on the disk"


def lines(report: Report) -> list[Line]:
    """Return every line of the table."""
    result = []
    for name, settings in report["cases"].items():
        case = Case(name, report)
        of_kind = {"storage": storage_lines, "line": line_lines, "convert": convert_lines}
        of_case = of_kind[settings["kind"]](case)
        result += [replace(line, section=_title(name)) for line in of_case]
    return result


def _title(case: str) -> str:
    # The names of cases are stored with an older term.
    return case.replace("line on", "pipeline on").replace("equal lanes", "equal stages")


# --- one volume, written or read at once ----------------------------------------------------------


def storage_lines(case: Case) -> list[Line]:
    """Return speeds, and ratios to the fastest library of the same durability."""
    voxels = 1
    for size in case.settings["size"]:
        voxels *= size
    result = []
    for name, records in case.records.items():
        speeds = [voxels / seconds / 1e9 for record in records for seconds in record["seconds"]]
        first = voxels / case.median(name, "first_s") / 1e9
        stored = records[0]["stored_bytes"] / voxels
        text = f"{spread(speeds, 'GB/s')}, first {first:.3g}, stored {stored:.2f} of the raw size"
        result.append(Line(case.name, name, text))
    result += [not_measured(case.name, name, "", why) for name, why in case.errors.items()]
    if case.settings["operation"] == "read":
        return [*result, _against(case, PROGRAM, "")]
    if case.settings["format"] == "gzip":
        return [*result, _against_cloud_volume(case), _against(case, SYNCED, "")]
    return [*result, _against(case, SYNCED, _ON_DISK), _against(case, PROGRAM, "")]


def _against(case: Case, own: str, durability: str) -> Line:
    """Return how fast *own* is beside the fastest library that waits for the disk, or does not."""
    what = f"speed relative to the fastest other library{durability}"
    words = f"at least {STORAGE_TARGET:.2f} x"
    peers = [
        name
        for name in case.settings["order"]
        if name not in (PROGRAM, SYNCED) and name.endswith(_ON_DISK) == bool(durability)
    ]
    if reason := case.missing((own, *peers)):
        return not_measured(case.name, what, words, reason)
    peer = case.fastest(peers)
    ratio = case.median(peer, "wall_s") / case.median(own, "wall_s")
    return at_least(case.name, what, ratio, STORAGE_TARGET, "x", f" ({peer})")


def _against_cloud_volume(case: Case) -> Line:
    what = "speed on the disk relative to cloud-volume, which does not wait"
    if reason := case.missing((SYNCED, "cloud-volume")):
        return not_measured(case.name, what, f"at least {GZIP_TARGET:.2f} x", reason)
    ratio = case.median("cloud-volume", "wall_s") / case.median(SYNCED, "wall_s")
    return at_least(case.name, what, ratio, GZIP_TARGET, "x")


# --- pipelines -----------------------------------------------------------------------------------


def line_lines(case: Case) -> list[Line]:
    """Return wall times, time in each stage, and the targets of this case."""
    result = []
    for name in case.records:
        text = f"{spread(case.values(name, 'wall_s'), 's')} for the tasks, "
        text += f"{case.median(name, 'process_s'):.3g} s for the process"
        if stages := _stages(case, name):
            text += "; " + ", ".join(f"{stage} {time:.3g} s" for stage, time in stages.items())
        result.append(Line(case.name, f"wall time, {name}", text))
    result += [not_measured(case.name, name, "", why) for name, why in case.errors.items()]
    if case.settings["place"] == "bucket":
        result += _overlap_lines(case)
    elif "network" in case.settings:
        result.append(_outside_line(case))
    else:
        result += _chunkflow_lines(case)
    return [*result, _memory_line(case)]


def _stages(case: Case, contestant: str) -> dict[str, float]:
    found = [record["lanes"] for record in case.records[contestant] if "lanes" in record]
    if not found:
        return {}
    return {stage: median(stages[stage] for stages in found) for stage in found[0]}


def _overlap_lines(case: Case) -> list[Line]:
    what = "wall time relative to the time of the slowest stage"
    words = f"at most {OVERLAP_LIMIT:.2f} x"
    if reason := case.missing((LANES, NO_LANES)):
        return [not_measured(case.name, what, words, reason)]
    ratio = median(r["wall_s"] / max(r["lanes"].values()) for r in case.records[LANES])
    result = [at_most(case.name, what, ratio, OVERLAP_LIMIT, "x")]
    apart = _stages(case, NO_LANES)
    text = f"{max(apart.values()) / (sum(apart.values()) / 3):.2f} x"
    result.append(
        Line(case.name, "slowest stage relative to the mean of the stages, --ahead 0", text)
    )
    if case.settings["equal"]:
        speed = case.median(NO_LANES, "wall_s") / case.median(LANES, "wall_s")
        what = "speed relative to --ahead 0"
        result.append(at_least(case.name, what, speed, OVERLAP_TARGET, "x"))
    return result


def _chunkflow_lines(case: Case) -> list[Line]:
    words = f"at least {CHUNKFLOW_TARGET:.2f} x"
    result = []
    for key, part in (("wall_s", "tasks"), ("process_s", "whole process with its start")):
        what = f"speed relative to chunkflow 1.2.0, {part}"
        if reason := case.missing((LANES, "chunkflow")):
            result.append(not_measured(case.name, what, words, reason))
            continue
        ratio = case.median("chunkflow", key) / case.median(LANES, key)
        result.append(at_least(case.name, what, ratio, CHUNKFLOW_TARGET, "x"))
    return result


def _outside_line(case: Case) -> Line:
    what = "time outside the network, share of the wall time"
    if reason := case.missing((LANES,)):
        return not_measured(case.name, what, f"at most {OUTSIDE_LIMIT:.1%}", reason)
    share = median(1 - record["forward_s"] / record["wall_s"] for record in case.records[LANES])
    return at_most(case.name, what, share, OUTSIDE_LIMIT, "%")


def _memory_line(case: Case) -> Line:
    what, words = "peak memory compared with the estimate", "at most the estimate"
    records: list[Record] = case.records.get(LANES, [])
    estimated = [record for record in records if record.get("forecast_bytes")]
    if not estimated:
        return not_measured(case.name, what, words, "there is no estimate")
    worst = max(estimated, key=lambda record: record["peak_bytes"] / record["forecast_bytes"])
    return at_most(case.name, what, worst["peak_bytes"], worst["forecast_bytes"], "GB")


# --- conversions ----------------------------------------------------------------------------------


def convert_lines(case: Case) -> list[Line]:
    """Return times and memory, the speed against the libraries, and the growth of memory."""
    result = []
    for name in case.records:
        text = f"{spread(case.values(name, 'process_s'), 's')}"
        text += f", peak {case.median(name, 'peak_bytes') / 1e9:.2f} GB"
        text += f", stored {case.median(name, 'stored_bytes') / 1e9:.2f} GB"
        result.append(Line(case.name, name, text))
    result += [not_measured(case.name, name, "", why) for name, why in case.errors.items()]
    for own in (SYNCED, PROGRAM):
        what = f"speed of `{own}` relative to `{CONVERT_PEER}`"
        if reason := case.missing((own, CONVERT_PEER)) or _differing(case, (own, CONVERT_PEER)):
            result.append(not_measured(case.name, what, f"at least {CONVERT_TARGET:.2f} x", reason))
        else:
            ratio = case.median(CONVERT_PEER, "process_s") / case.median(own, "process_s")
            result.append(at_least(case.name, what, ratio, CONVERT_TARGET, "x"))
    if HALF in case.settings["order"]:
        what = "peak memory relative to that for half of the pages"
        if reason := case.missing((SYNCED, HALF)):
            result.append(not_measured(case.name, what, f"at most {GROWTH_LIMIT:.2f} x", reason))
        else:
            ratio = case.median(SYNCED, "peak_bytes") / case.median(HALF, "peak_bytes")
            result.append(at_most(case.name, what, ratio, GROWTH_LIMIT, "x"))
    return result


def _differing(case: Case, contestants: tuple[str, ...]) -> str:
    found = {record["checksum"] for name in contestants for record in case.records[name]}
    return "the copies differ" if len(found) > 1 else ""

"""What the recorded runs of `segmentation.py` mean: lines of measured value, target and verdict.

Pure functions of the recorded JSON, so that a table in the documentation cannot differ from it.
"""

from __future__ import annotations

from math import prod
from statistics import median
from typing import TYPE_CHECKING

from records import Case, spread
from table import Line, at_least, at_most, not_measured

if TYPE_CHECKING:
    from records import Report

PEER, ONE, TWO = "waterz", "1 process", "2 processes"
SPEED_TARGET, MEMORY_LIMIT, SCALING_TARGET = 1.0, 1.0, 1.8


def lines(report: Report) -> list[Line]:
    """Return every line of the table."""
    result = []
    for name in report["cases"]:
        case = Case(name, report)
        result += _speed(case) + _same_bytes(case) + _growth(case)
        result += [
            not_measured(name, contestant, "", why) for contestant, why in case.errors.items()
        ]
    return result


def _speed(case: Case) -> list[Line]:
    voxels = prod(case.settings["size"])
    result = []
    for name in case.records:
        speed = [voxels / seconds / 1e6 for seconds in case.values(name, "wall_s")]
        peak = case.median(name, "peak_bytes")
        text = f"{spread(speed, 'Mvoxel/s')}; peak {peak / 1e9:.2f} GB"
        result.append(Line(case.name, f"speed and memory, {name}", text))
    for what, slower, target in (
        (f"speed of {ONE} relative to {PEER}", PEER, SPEED_TARGET),
        (f"speed of {TWO} relative to {ONE}", ONE, SCALING_TARGET),
    ):
        faster = ONE if slower == PEER else TWO
        why = case.missing((slower, faster))
        if why:
            result.append(not_measured(case.name, what, f"at least {target:g} x", why))
            continue
        ratio = median(
            a / b
            for a, b in zip(
                case.values(slower, "wall_s"), case.values(faster, "wall_s"), strict=True
            )
        )
        result.append(at_least(case.name, what, ratio, target, "x"))
    what = f"peak memory of {ONE} relative to {PEER}"
    why = case.missing((PEER, ONE))
    if why:
        return [*result, not_measured(case.name, what, f"at most {MEMORY_LIMIT:g} x", why)]
    ratio = case.median(ONE, "peak_bytes") / case.median(PEER, "peak_bytes")
    return [*result, at_most(case.name, what, ratio, MEMORY_LIMIT, "x")]


def _same_bytes(case: Case) -> list[Line]:
    outputs = {
        record["digest"]
        for records in case.records.values()
        for record in records
        if "digest" in record
    }
    if not outputs:
        return []
    return [at_most(case.name, "different outputs of all runs", len(outputs), 1, "")]


def _growth(case: Case) -> list[Line]:
    """Return how the graph grows from boxes of one task to the whole volume."""
    if ONE not in case.records:
        return []
    (record, *_) = case.records[ONE]
    result = []
    for level, found in enumerate(record["levels"]):
        tasks = 8**level
        text = (
            f"{found['contacts']:,} contacts, {found['merges']:,} merges, {found['left']:,} "
            f"contacts left open, {found['bytes'] / 1e6:.3g} MB stored"
        )
        result.append(Line(case.name, f"fullest box of {tasks} task{'s' * (tasks > 1)}", text))
    return result

"""What the rounds of the benchmark of operators say together, as a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from records import Case, Report, spread
from table import Line, not_measured

if TYPE_CHECKING:
    from collections.abc import Iterator

PEER = "chunkflow"
VERSION = f"{PEER} 1.2.0"
SAME_S = 0.02  # seconds on 64 million voxels that no line of commands would notice


def lines(report: Report) -> list[Line]:
    """Return the table of a report: what the peer has, and below it what it has not."""
    every = [Case(name, report) for name in report["cases"]]
    compared = [case for case in every if case.settings["peer"] is not None]
    alone = [case for case in every if case.settings["peer"] is None]
    found = [line for case in compared for line in _compared(case)]
    return found + [_alone(case) for case in alone]


def _megavoxels(case: Case) -> float:
    z, y, x = case.settings["size"]
    voxels: int = z * y * x
    return voxels / 1e6


def _rate(case: Case, contestant: str) -> str:
    rates = [_megavoxels(case) / wall for wall in case.values(contestant, "wall_s")]
    return spread(rates, "Mvoxel/s")


def _compared(case: Case) -> Iterator[Line]:
    section = f"compared with {VERSION}"
    if "ours" not in case.records:
        yield not_measured(section, case.name, "none slower", case.missing(("ours",)))
        return
    if PEER not in case.records:
        said = f"{_rate(case, 'ours')}; {VERSION} fails: {case.missing((PEER,))}"
        yield Line(section, case.name, said[:160])
        return
    ours, theirs = case.median("ours", "wall_s"), case.median(PEER, "wall_s")
    met = ours <= theirs or ours - theirs < SAME_S
    measured = f"{_rate(case, 'ours')}; chunkflow: {_rate(case, PEER)}"
    target = "not slower"
    yield Line(section, case.name, measured, target, theirs / ours, "met" if met else "not met")


def _alone(case: Case) -> Line:
    section = f"not available in {VERSION}"
    missing = case.missing(("ours",))
    said = missing or _rate(case, "ours")
    return Line(section, case.name, f"{said}; {VERSION}: {case.settings['note']}")


def gains(report: Report, most: int = 10) -> str:
    """Return the operators that gain most, the largest first, in words."""
    found = {}
    for name, settings in report["cases"].items():
        case = Case(name, report)
        if settings["peer"] is not None and {"ours", PEER} <= case.records.keys():
            found[name] = case.median(PEER, "wall_s") / case.median("ours", "wall_s")
    best = sorted(found, key=found.__getitem__, reverse=True)[:most]
    return "; ".join(f"{name} {found[name]:.1f}x" for name in best)

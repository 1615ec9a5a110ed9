"""What the table of the benchmark of operators says of recorded runs."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from operators import BENCHMARK, documented
from operators_cases import CASES, cases
from operators_report import PEER, gains, lines
from page import written_between

from chunkflow_py.cli import catalog


def _report(*runs: tuple[str, str, float]) -> dict[str, Any]:
    chosen = {name: case for name, case in cases().items() if name in {run[0] for run in runs}}
    return {
        "cases": chosen,
        "runs": [
            {"case": name, "contestant": who, "round": n, "wall_s": wall}
            for n, (name, who, wall) in enumerate(runs)
        ],
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "verdict"),
    [(1.0, 1.1, "met"), (1.1, 1.0, "not met"), (0.019, 0.001, "met"), (0.03, 0.005, "not met")],
)
def test_slower_is_what_would_be_noticed(ours: float, theirs: float, verdict: str) -> None:
    """The same time, or no more than 20 ms longer."""
    (line,) = lines(_report(("threshold", "ours", ours), ("threshold", PEER, theirs)))
    assert line.verdict == verdict


def test_what_the_peer_cannot_do_is_shown_and_not_judged() -> None:
    """An operator without a peer, or whose peer fails, has a rate but no verdict."""
    report = _report(("clahe", "ours", 2.0), ("save-nrrd", "ours", 2.0))
    report["runs"].append(
        {"case": "save-nrrd", "contestant": PEER, "round": 0, "error": "it fails"}
    )
    found = {line.what: line for line in lines(report)}
    assert not found["clahe"].verdict
    assert not found["save-nrrd"].verdict
    assert "it fails" in found["save-nrrd"].measured


def test_gains_are_listed_the_largest_first() -> None:
    """Ten of them, by the ratio of the medians."""
    runs = [("mask", "ours", 1.0), ("mask", PEER, 3.0), ("load-tif", "ours", 1.0)]
    assert gains(_report(*runs, ("load-tif", PEER, 5.0))) == "load-tif 5.0x; mask 3.0x"


def test_cases_are_commands() -> None:
    """Each case is a line of one command that there is."""
    assert {shlex.split(case.words)[0] for case in CASES.values()} <= set(catalog.names())


def test_the_page_is_that_of_the_recorded_results() -> None:
    """The documentation shows what was measured, unedited."""
    assert written_between(BENCHMARK.page) == documented()

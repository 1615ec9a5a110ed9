"""What the table of the benchmark of segmentation says of recorded runs."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from page import written_between
from processes import ROOT
from segmentation import BENCHMARK, cases
from segmentation_report import ONE, PEER, TWO, lines

if TYPE_CHECKING:
    from table import Line

(NAME,) = cases()


def _run(contestant: str, wall_s: float, **more: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"wall_s": wall_s, "peak_bytes": 4e9}
    if contestant != PEER:
        level = {"boxes": 8, "contacts": 70, "merges": 5, "left": 60, "bytes": 4e6}
        record |= {"digest": "a", "levels": [level, {**level, "boxes": 1}]}
    return {"case": NAME, "contestant": contestant, "round": 0, **record, **more}


def _line(what: str, *runs: dict[str, Any]) -> Line:
    found = [line for line in lines({"cases": cases(), "runs": list(runs)}) if what in line.what]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("contestant", "seconds", "verdict"),
    [(ONE, 100.0, "met"), (ONE, 101.0, "not met"), (TWO, 55.0, "met"), (TWO, 56.0, "not met")],
)
def test_speeds_are_judged(contestant: str, seconds: float, verdict: str) -> None:
    """One process against waterz, two processes against one."""
    slower = PEER if contestant == ONE else ONE
    line = _line(f"speed of {contestant} relative", _run(slower, 100.0), _run(contestant, seconds))
    assert line.verdict == verdict


def test_speeds_are_compared_within_a_round() -> None:
    """A machine that becomes slower between two rounds makes no difference."""
    runs = [_run(name, factor * at) for factor in (1, 2, 3) for name, at in ((PEER, 10), (ONE, 5))]
    assert _line(f"speed of {ONE} relative to", *runs).measured == "2.00 x"


def test_memory_is_judged() -> None:
    """At most that of waterz."""
    assert _line("peak memory", _run(PEER, 1.0), _run(ONE, 1.0)).verdict == "met"
    line = _line("peak memory", _run(PEER, 1.0), _run(ONE, 1.0, peak_bytes=4.1e9))
    assert line.verdict == "not met"


def test_different_outputs_are_noticed() -> None:
    """Any number of processes stores the same bytes."""
    assert _line("different outputs", _run(ONE, 1.0), _run(TWO, 1.0)).verdict == "met"
    line = _line("different outputs", _run(ONE, 1.0), _run(TWO, 1.0, digest="b"))
    assert line.verdict == "not met"


def test_the_growth_of_the_graph_is_shown() -> None:
    """One line for each level."""
    assert _line("box of 1 task", _run(ONE, 1.0)).measured.startswith("70 contacts, 5 merges, 60")
    assert "4 MB" in _line("box of 8 tasks", _run(ONE, 1.0)).measured


def test_what_did_not_run_is_not_judged() -> None:
    """The reason stands in the table."""
    lost = {"case": NAME, "contestant": PEER, "round": 0, "error": "out of memory"}
    line = _line(f"speed of {ONE} relative to", _run(ONE, 1.0), lost)
    assert line.verdict == "not measured: out of memory"


def test_documentation_shows_what_was_recorded() -> None:
    """The tables of docs/benchmarks-segmentation.md are those of the results, to the letter."""
    written = written_between(BENCHMARK.page)
    assert written == BENCHMARK.documented(), "run: python benchmarks/segmentation.py --write-docs"


@pytest.mark.long
def test_a_quick_run_measures_everything(tmp_path: Any) -> None:
    """The command runs, and the outputs are the same."""
    command = [sys.executable, str(ROOT / "benchmarks" / "segmentation.py"), "--quick"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    (outputs,) = (line for line in done.stdout.splitlines() if "different outputs" in line)
    assert outputs.endswith("met")
    assert "not measured" not in done.stdout.replace("0 not measured", "")

"""What the benchmarks share: their options, the recorded report, and the page."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from pathlib import Path

import pytest
import recorded
from page import BEGIN, END, written_between
from records import Report
from table import Line

PAGE = f"before\n{BEGIN}{END}after\n"


def _measure(arguments: Namespace, report: Report) -> None:
    for name in report["cases"]:
        for number in range(arguments.rounds):
            recorded.add_run(report, name, "ours", number, {"wall_s": 1.0})
            recorded.add_run(report, name, "peer", number, {"error": "it fails"})


def _lines(report: Report) -> list[Line]:
    return [Line("section", "runs", str(len(report["runs"])))]


@pytest.fixture
def benchmark_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> recorded.Benchmark:
    """A benchmark of two cases, whose results and page are in a folder of the test."""
    monkeypatch.setattr(recorded, "ROOT", tmp_path)
    monkeypatch.setattr(recorded, "RESULTS", tmp_path)
    (tmp_path / "docs").mkdir()
    benchmark = recorded.Benchmark(
        name="two",
        script="twos.py",
        purpose="Two cases.\n\nMore.",
        libraries=("numpy",),
        cases=lambda *, quick: {"a": {"quick": quick}, "b": {"quick": quick}},
        lines=_lines,
        fills="for nothing",
        quick="one round",
    )
    benchmark.page.write_text(PAGE)
    return benchmark


def _run(
    benchmark: recorded.Benchmark, monkeypatch: pytest.MonkeyPatch, *options: str
) -> Report | None:
    monkeypatch.setattr(sys, "argv", ["twos.py", *options])
    return benchmark.run(_measure)


def test_a_whole_run_is_recorded_and_stands_on_the_page(
    benchmark_of_two: recorded.Benchmark,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Keys keep their order, so that recorded files differ only in what was measured."""
    _run(benchmark_of_two, monkeypatch, "--rounds", "2")
    report = json.loads(benchmark_of_two.result.read_text())
    assert list(report) == ["command", "machine", "rounds", "cases", "runs"]
    assert report["command"] == "python benchmarks/twos.py --rounds 2"
    assert report["runs"][-1] == {
        "case": "b",
        "contestant": "peer",
        "round": 1,
        "error": "it fails",
    }
    text = written_between(benchmark_of_two.page)
    assert text == benchmark_of_two.documented()
    assert "| runs | 8 |" in text
    assert "2 interleaved rounds, medians. Recorded in `benchmarks/results/two.json`." in text
    output, progress = capsys.readouterr()
    assert output.splitlines()[-1] == "0 met, 0 not met, 0 not measured"
    assert "  a, round 1, ours: 1.00 s\n  a, round 1, peer: it fails\n" in progress


@pytest.mark.parametrize(
    ("options", "chosen", "runs"),
    [
        (("--quick",), {"a": {"quick": True}, "b": {"quick": True}}, 4),
        (("--only", "b"), {"b": {"quick": False}}, 6),
    ],
)
def test_a_part_of_a_run_is_recorded_only_where_output_says(
    benchmark_of_two: recorded.Benchmark,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    chosen: recorded.Cases,
    runs: int,
) -> None:
    """Neither the results of the last whole run nor the page change."""
    output = benchmark_of_two.result.with_name("part.json")
    report = _run(benchmark_of_two, monkeypatch, *options, "--output", str(output))
    assert report is not None
    assert (report["cases"], len(report["runs"])) == (chosen, runs)
    assert json.loads(output.read_text()) == report
    assert benchmark_of_two.recorded() is None
    assert benchmark_of_two.page.read_text() == PAGE


def test_the_page_can_be_written_without_a_run(
    benchmark_of_two: recorded.Benchmark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page says so if nothing has been recorded."""
    assert _run(benchmark_of_two, monkeypatch, "--write-docs") is None
    expected = PAGE.replace(END, recorded.NOTHING_RECORDED + END)
    assert benchmark_of_two.page.read_text() == expected

"""What the table of the inference benchmark says of recorded runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from inference import PAGE, cases, documented, forecast_minutes
from inference_gpu import busy_share
from inference_report import lines
from page import written_between
from processes import RESULTS, ROOT
from table import Line, as_markdown, as_text

NETWORK = "rsunet 36x448x448"
IDENTITY = "identity 100x1000x1000, 1 channel"


def _run(case: str, contestant: str, wall: float, **more: Any) -> dict[str, Any]:
    record = {"wall_s": wall, "peak_bytes": 2e9, "mean": 0.5, "patches": 8, "round": 0}
    if contestant.startswith("ours"):
        record |= {"forward_s": wall * 0.98, "bare_forward_s": wall / 8}
    return {"case": case, "contestant": contestant, **record, **more}


def _report(*runs: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A report of *runs*; only cases that ran are in it."""
    everything = {
        NETWORK: {"kind": "network", "model": "rsunet", "size": [36, 448, 448]},
        IDENTITY: {"kind": "identity", "model": "identity", "size": [100, 1000, 1000]},
        "shallow": {"kind": "workspace", "model": "identity", "size": [64, 8, 8]},
        "deep": {"kind": "workspace", "model": "identity", "size": [256, 8, 8]},
    }
    ran = {run["case"] for run in runs}
    report = {
        "machine": {"bfloat16": True},
        "arithmetic": {},
        "cases": {name: case for name, case in everything.items() if name in ran},
        "runs": list(runs),
        "errors": {},
        "gpu": {"note": "no CUDA device"},
    }
    return report | more


def _line(report: dict[str, Any], what: str) -> Line:
    found = [line for line in lines(report) if what in line.what]
    assert len(found) == 1, [line.what for line in lines(report)]
    return found[0]


def _network_runs(torch: float, openvino: float, chunkflow: float, monai: float) -> list[Any]:
    return [
        _run(NETWORK, "ours torch float32", torch),
        _run(NETWORK, "ours openvino float32", openvino),
        _run(NETWORK, "chunkflow", chunkflow),
        _run(NETWORK, "monai", monai),
    ]


def test_speed_is_that_of_medians_against_the_faster_peer() -> None:
    """The fastest backend is compared with the faster peer, median with median, not best runs."""
    runs = _network_runs(10, 5, 30, 20) + _network_runs(11, 4, 31, 2) + _network_runs(9, 90, 32, 21)
    line = _line(_report(*runs), "speed in float32")
    assert line.ratio == pytest.approx(20 / 5 / 2.8)
    assert line.measured == "4.00 x (openvino float32 compared with monai)"
    assert (line.target, line.verdict) == ("at least 2.80 x", "met")


def test_a_missed_target_is_not_met() -> None:
    """Just below the target is below the target."""
    line = _line(_report(*_network_runs(10, 10.1, 27.9, 28)), "speed in float32")
    assert (line.measured.split()[0], line.verdict) == ("2.79", "not met")


def test_a_peer_that_failed_gives_no_verdict() -> None:
    """Without both peers nothing is claimed, and the reason stands in the table."""
    runs = _network_runs(10, 5, 30, 20)[:3]
    failed = {"case": NETWORK, "contestant": "monai", "round": 0, "error": "no such module"}
    line = _line(_report(*runs, failed), "speed in float32")
    assert (line.measured, line.ratio, line.verdict) == ("", None, "not measured: no such module")


def test_bfloat16_is_asked_of_processors_that_have_it() -> None:
    """Elsewhere the line says why there is no verdict."""
    runs = [*_network_runs(10, 5, 30, 20), _run(NETWORK, "ours torch bfloat16", 4)]
    assert _line(_report(*runs), "speed in bfloat16").verdict == "met"
    without = _report(*runs, machine={"bfloat16": False})
    assert "avx512_bf16" in _line(without, "speed in bfloat16").verdict


def test_time_outside_is_that_of_the_worst_way() -> None:
    """One precision over the limit is enough to miss it."""
    runs = _network_runs(10, 5, 30, 20)
    assert _line(_report(*runs), "time outside the network").verdict == "met"
    runs[1]["forward_s"] = 5 * 0.9
    line = _line(_report(*runs), "time outside the network")
    assert line.measured == "10.0% (most: openvino float32)"
    assert (line.ratio, line.verdict) == (pytest.approx(10 / 3), "not met")


def test_speed_of_multiplication_stands_beside_the_network() -> None:
    """The share that the forward reaches, and what nothing but products would gain."""
    arithmetic = {"operations_per_s": {"float32": 2e9}, "operations": {"rsunet": 1e9}}
    report = _report(*_network_runs(10, 5, 30, 20), arithmetic=arithmetic)
    # 8 forwards of 1e9 in 4.9 s of the machine's 2e9 a second; 4 s would be the least.
    assert "82% of the speed" in _line(report, "speed of the forward pass").measured
    assert _line(report, "at the speed of large matrix").measured == "5.00 x monai"


def test_different_work_is_seen() -> None:
    """A contestant whose output is another one is named."""
    runs = _network_runs(10, 5, 30, 20)
    assert _line(_report(*runs), "outputs' means").verdict == "met"
    runs[3]["mean"] = 0.4
    line = _line(_report(*runs), "outputs' means")
    assert "monai" in line.measured
    assert line.verdict == "not met"


def test_blending_has_a_target_for_each_peer() -> None:
    """Ten times chunkflow, three times MONAI, and less memory than either at its best."""
    report = _report(
        _run(IDENTITY, "ours torch float32", 0.5, peak_bytes=1.8e9),
        _run(IDENTITY, "chunkflow", 4.9, peak_bytes=2.4e9),
        _run(IDENTITY, "monai", 1.6, peak_bytes=1.7e9),
    )
    assert _line(report, "speed, ours").measured == "200 Mvoxel/s (one run)"
    assert _line(report, "speed relative to chunkflow").verdict == "not met"
    assert _line(report, "speed relative to MONAI").ratio == pytest.approx(3.2 / 3)
    assert _line(report, "peak memory compared with chunkflow").verdict == "met"
    assert _line(report, "peak memory compared with MONAI").verdict == "not met"


@pytest.mark.parametrize(("deep_peak", "verdict"), [(1.30e9, "met"), (1.32e9, "not met")])
def test_workspace_is_what_is_beyond_program_input_and_output(
    deep_peak: float, verdict: str
) -> None:
    """A deeper chunk may take 5 % more of it, not 5 % more of everything."""
    name = "ours torch float32"
    report = _report(
        _run("shallow", name, 1, peak_bytes=0.7e9, before_bytes=0.2e9, output_bytes=0.25e9),
        _run("deep", name, 1, peak_bytes=deep_peak, before_bytes=0.25e9, output_bytes=0.79e9),
    )
    assert _line(report, "workspace of the deeper").verdict == verdict


@pytest.mark.parametrize(("forecast", "verdict"), [(1.8e9, "met"), (2.4e9, "not met")])
def test_forecast_is_judged_by_its_worst(forecast: float, verdict: str) -> None:
    """Too little and too much are both wrong, and the worst backend counts."""
    runs = _network_runs(10, 5, 30, 20)
    runs[0]["forecast_bytes"], runs[1]["forecast_bytes"] = 2e9, forecast
    line = _line(_report(*runs), "estimated peak memory")
    assert (line.verdict, line.target) == (verdict, "within 15%")


def test_errors_of_float32_have_a_limit() -> None:
    """Reduced precision is told, float32 is judged, and NaN is not below a limit."""

    def errors(largest: float) -> dict[str, float]:
        return {"largest": largest, "percentile_999": 1e-7, "mean": 1e-8}

    found = {
        "openvino float32": errors(1e-6),
        "onnxruntime float32": errors(float("nan")),
        "torch bfloat16": errors(1e-2),
    }
    report = _report(errors={"rsunet": found})
    assert _line(report, "openvino float32").verdict == "met"
    assert _line(report, "onnxruntime").verdict == "not met"
    assert _line(report, "bfloat16").verdict == ""


def test_gpu_is_not_measured_or_judged_at_its_fastest() -> None:
    """Without a GPU both lines say so; with one the fastest setting counts."""
    assert _line(_report(), "GPU is busy").verdict == "not measured: no CUDA device"
    slow = {"name": "float32", "wall_s": 2.0, "outside_share": 0.01, "busy_share": 0.99}
    fast = {"name": "float16", "wall_s": 1.0, "outside_share": 0.06, "busy_share": 0.96}
    report = _report(gpu={"device": "a GPU", "runs": [slow, fast]})
    assert _line(report, "time outside the forward").verdict == "not met"
    assert _line(report, "GPU is busy").verdict == "met"


def test_busy_share_counts_overlaps_once() -> None:
    """Copies beside kernels are not counted twice, and gaps are not busy."""
    assert busy_share([(6, 10), (0, 2), (1, 4), (2, 3)]) == pytest.approx(0.8)
    assert busy_share([]) == 0


def test_table_tells_how_many_lines_are_met() -> None:
    """The last line counts verdicts; lines for sight have none."""
    text = as_text(lines(_report(*_network_runs(10, 9, 30, 20))))
    assert text.splitlines()[0].split()[0] == "what"
    assert text.splitlines()[-1] == "2 met, 1 not met, 4 not measured"


def test_documentation_shows_what_was_recorded() -> None:
    """The tables of docs/benchmarks.md are those of the results, to the letter."""
    expected = documented(sorted(RESULTS.glob("inference*.json")))
    assert written_between(PAGE) == expected, "run: python benchmarks/inference.py --write-docs"


def test_markdown_has_five_columns() -> None:
    """A bar inside of a cell would move the columns."""
    text = as_markdown([Line("section", "a|b", "1", "at least 2", 0.5, "not met")])
    assert text.splitlines()[-1] == "| a b | 1 | at least 2 | 0.50 | **not met** |"


def test_default_run_is_forecast_before_it_starts() -> None:
    """More rounds take longer, and fewer with --quick."""
    whole, quick = cases(quick=False, smoke=False), cases(quick=True, smoke=False)
    assert forecast_minutes(quick, 1, {}) < forecast_minutes(whole, 1, {})
    assert forecast_minutes(whole, 1, {}) < forecast_minutes(whole, 3, {})


def test_a_contestant_reports_what_the_table_needs() -> None:
    """One real run of this package in a process of its own."""
    job = {
        "model": "identity",
        "size": [12, 48, 48],
        "patch": [8, 32, 32],
        "overlap": [2, 8, 8],
        "channels": 3,
        "output_dtype": "uint8",
    }
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/peers/run_chunkflow_py.py"), json.dumps(job)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["patches"] == 2 * 2 * 2
    assert found["mean"] == pytest.approx(127.5, rel=0.01)
    assert found["output_bytes"] == 3 * 12 * 48 * 48
    assert 0 < found["forward_s"] < found["wall_s"]
    assert found["before_bytes"] <= found["peak_bytes"]

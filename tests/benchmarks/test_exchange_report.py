"""What the tables of the benchmark of the patch exchange say of recorded runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from exchange import BENCHMARK, cases, geometry_of
from exchange_counts import counted, digest_of_files, measure_counts
from exchange_report import ALONE, APART, BARE, BUCKET, KILLED, ONE, SMALL, lines
from page import written_between
from processes import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from table import Line

COUNTS, TIMES = cases()
GEOMETRY = {"distinct": 1000, "apart": 2000, "tasks": 8}


def _count(contestant: str, forwards: int, **more: Any) -> dict[str, Any]:
    record = {"forwards": forwards, "killed_forwards": 0, "killed_attempts": 0, "tasks": 144}
    record |= {"peak_bytes": 5e6, "digest": "a", "wall_s": 1.0}
    return {"case": COUNTS, "contestant": contestant, "round": 0, **record, **more}


def _time(contestant: str, wall_s: float, number: int = 0, **more: Any) -> dict[str, Any]:
    record: dict[str, Any] = {"wall_s": wall_s, "tasks": 2 if contestant == "chunkflow" else 8}
    if contestant != "chunkflow":
        spent = {"digests of inputs": [9.0, 0.05], "copies": [9.0, 0.2], "packing": [9.0, 0.3]}
        record |= {"exchanged_bytes": {"written": 35e6, "read": 20e6}}
        record |= {"digest": "a", "patches": 75, "forward_s": 10.0}
        record |= {"exchange_s": spent}
    return {"case": TIMES, "contestant": contestant, "round": number, **record, **more}


def _line(what: str, *runs: dict[str, Any]) -> Line:
    named = {run["case"] for run in runs}
    chosen = {
        name: case | {"geometry": GEOMETRY} for name, case in cases().items() if name in named
    }
    found = [line for line in lines({"cases": chosen, "runs": list(runs)}) if what in line.what]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(
    ("contestant", "forwards", "verdict"),
    [
        (ALONE, 1000, "met"),
        (ALONE, 1006, "not met"),
        ("8 workers", 1050, "met"),
        ("8 workers", 1051, "not met"),
        (KILLED, 1051, "not met"),
    ],
)
def test_patches_are_compared_with_distinct_ones(
    contestant: str, forwards: int, verdict: str
) -> None:
    """One worker computes each patch once; several at most one of twenty again."""
    assert _line("computed / distinct", _count(contestant, forwards)).verdict == verdict


def test_passes_of_killed_tasks_are_told_apart() -> None:
    """What a killed task has computed is lost with or without an exchange."""
    record = _count(KILLED, 1010, killed_forwards=120, killed_attempts=7)
    line = _line("computed / distinct", record)
    assert (line.verdict, line.measured.endswith("; 120 more in 7 killed tasks")) == ("met", True)


def test_tasks_without_exchange_follow_the_geometry() -> None:
    """Otherwise the counting itself is wrong."""
    assert _line("difference from the expected", _count(APART, 2000)).verdict == "met"
    assert _line("difference from the expected", _count(APART, 1900)).verdict == "not met"


def test_the_size_of_the_exchange_stands_beside_the_planned_one() -> None:
    """If `plan` says one."""
    assert _line("most bytes", _count(ALONE, 1000)).measured == "5 MB"
    line = _line("most bytes", _count(ALONE, 1000, planned_peak_bytes=7e6))
    assert line.measured == "5 MB; estimate of plan: at most 7 MB"


def test_another_output_is_not_met() -> None:
    """Runs with and without an exchange store the same bytes."""
    runs = (_count(ALONE, 1000), _count(APART, 2000, digest="b"))
    assert _line("different outputs", *runs).verdict == "not met"


def test_times_are_compared_within_a_round() -> None:
    """A machine that is slow for one round is slow for all contestants.

    chunkflow runs two of the eight tasks.
    """
    runs = [
        _time(name, wall_s * pace, number)
        for number, pace in enumerate((1.0, 3.0, 1.2))
        for name, wall_s in ((ONE, 10.0), (SMALL, 10.4), (BARE, 16.0), ("chunkflow", 13.0))
    ]
    assert _line("relative to one task", *runs).measured == "1.04 x"
    line = _line("speed relative to no exchange", *runs)
    assert (line.measured, line.verdict) == ("1.54 x", "met")
    assert _line("speed relative to chunkflow", *runs).measured == "5.00 x"


def test_the_remaining_share_of_the_saved_time() -> None:
    """Of 10 s that the exchange saves, a bucket leaves 8 s."""
    runs = (_time(BARE, 20.0), _time(SMALL, 10.0), _time(BUCKET, 12.0))
    assert _line("time saved in a bucket", *runs).measured == "80%"


def test_bytes_are_compared_with_the_estimate() -> None:
    """What is written; less is read, as tasks of one process share memory."""
    line = _line("compared with the estimate", _time(BUCKET, 1.0, planned_bytes=40e6))
    assert (line.measured.split(" ")[0], line.verdict) == ("-12.5%", "met")
    assert "not measured" in _line("compared with the estimate", _time(BUCKET, 1.0)).verdict


def test_processor_time_is_compared_with_the_forward() -> None:
    """Digests and copies take at most a hundredth of the time in the network."""
    assert _line("digests of inputs", _time(SMALL, 1.0)).verdict == "met"
    assert _line("copies", _time(SMALL, 1.0)).verdict == "not met"


def test_what_did_not_run_is_not_judged() -> None:
    """The reason stands in the table."""
    lost = {"case": TIMES, "contestant": SMALL, "round": 0, "error": "no space"}
    line = _line("relative to one task", _time(ONE, 1.0), lost)
    assert line.verdict == "not measured: no space"


def test_documentation_shows_what_was_recorded() -> None:
    """The tables of docs/benchmarks-exchange.md are those of the results, to the letter."""
    written = written_between(BENCHMARK.page)
    assert written == BENCHMARK.documented(), "run: python benchmarks/exchange.py --write-docs"


def test_the_last_task_of_a_killed_worker_is_lost_unless_it_is_recorded() -> None:
    """Passes before the first task are those of a check, not of a patch."""
    lines_of = {
        "a": ["forward 0", "task A", "forward 1", "forward 2", "task B", "forward 3"],
        "b": ["forward 0", "task C", "forward 4", "task B", "forward 3", "forward 2"],
        "c": ["forward 0", "task D", "forward 5"],
    }
    found = counted(lines_of, {"a": 1, "b": 2, "c": 1}, ["a", "c"])
    assert found == {
        "forwards": 6,
        "killed_forwards": 1,
        "killed_attempts": 1,
        "distinct": 5,
        "tasks": 4,
    }


def test_what_a_killed_process_leaves_behind_is_no_output(tmp_path: Path) -> None:
    """Temporary files do not count; other names and contents do."""
    (tmp_path / "0").write_bytes(b"a")
    expected = digest_of_files(tmp_path)
    (tmp_path / ".tmp-1").write_bytes(b"b")
    assert digest_of_files(tmp_path) == expected
    (tmp_path / "0").write_bytes(b"b")
    assert digest_of_files(tmp_path) != expected


@pytest.mark.long
@pytest.mark.parametrize("kills", [0, 1])
def test_workers_count_their_patches(tmp_path: Path, kills: int) -> None:
    """Real workers: no more patches than without an exchange, and each patch at least once."""
    case = cases()[COUNTS] | {"size": (32, 64, 64)}
    case["geometry"] = geometry_of(case)
    case["contestants"] = {"two": {"workers": 2, "kills": kills, "exchange": "on"}}
    found = measure_counts(tmp_path, case, "two")
    assert (found["tasks"], found["kills"], case["geometry"]["tasks"]) == (8, kills, 8)
    assert found["distinct"] == case["geometry"]["distinct"]
    assert found["distinct"] <= found["forwards"] <= case["geometry"]["apart"]
    assert (found["killed_forwards"] > 0) <= (kills > 0)
    assert found["peak_bytes"] > 0


def test_a_run_is_timed(tmp_path: Path) -> None:
    """One real run whose second task uses parts of the first one, or computes them."""
    image = ["create-chunk", "--size", "8", "16", "48", "--pattern", "random", "save-zarr"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    made = [sys.executable, "-m", "chunkflow_py", *image, "--store", str(tmp_path / "em.zarr")]
    subprocess.run(made, check=True, capture_output=True, env=environment)
    source, target = f"zarr://{tmp_path}/em.zarr", f"zarr://{tmp_path}/out.zarr"
    line = [
        *("generate-tasks", "--volume-path", source, "--chunk-size", "8", "16", "16"),
        *("load-volume", "--volume-path", source, "--expand-margin-size", "auto"),
        *("inference", "--framework", "identity", "--num-output-channels", "1"),
        *("--input-patch-size", "8", "16", "12", "--output-patch-overlap", "0", "0", "4"),
        *("save-volume", "--volume-path", target, "--block-size", "8", "16", "16"),
    ]
    job = {"line": line, "exchange": "on", "folder": str(tmp_path)}
    script = ROOT / "benchmarks" / "peers" / "run_exchange_ours.py"
    command = [sys.executable, str(script), json.dumps(job)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["tasks"] == 3
    assert (
        found["patches"] + found["found"]
        == geometry_of(
            {"size": (8, 16, 48), "task": (8, 16, 16), "patch": (8, 16, 12), "overlap": (0, 0, 4)}
        )["apart"]
    )
    assert 0 < found["forward_s"] <= found["wall_s"]
    assert found["exchange_s"]["digests of inputs"][0] > 0
    assert found["exchanged_bytes"]["written"] >= 2 * 8 * 16 * 4 * 4  # two parts of 4 in x

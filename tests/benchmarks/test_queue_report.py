"""What the tables of the benchmark of queues say of recorded runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest
from page import written_between
from peers.build import python_of
from processes import ROOT
from queues import BENCHMARK, PLUGIN, cases, documented
from queues_report import lines

if TYPE_CHECKING:
    from pathlib import Path

    from table import Line

SEND, RECEIVE, MEMORY, NOTHING, SLEEP = cases()


def _run(case: str, contestant: str, **more: Any) -> dict[str, Any]:
    tasks = cases()[case]["tasks"][contestant]
    record = {"case": case, "contestant": contestant, "round": 0, "wall_s": 1.0, "tasks": tasks}
    return record | more


def _worked(contestant: str, wall_s: float, **more: Any) -> dict[str, Any]:
    seen = {"gap_s": 2e-5, "mean_gap_s": 4e-4, "supervisor_cpu_s": 4.0, "ledger_files": 11}
    return _run(NOTHING, contestant, wall_s=wall_s, **seen, **more)


def _line(what: str, *runs: dict[str, Any]) -> Line:
    chosen = {name: case for name, case in cases().items() if name in {run["case"] for run in runs}}
    found = [line for line in lines({"cases": chosen, "runs": list(runs)}) if what in line.what]
    assert len(found) == 1, found
    return found[0]


@pytest.mark.parametrize(("wall", "verdict"), [(1.24, "met"), (1.26, "not met")])
def test_sending_is_compared_with_boto3(wall: float, verdict: str) -> None:
    """At least 0.8 of what boto3 alone sends."""
    line = _line("relative to boto3", _run(SEND, "ours", wall_s=wall), _run(SEND, "boto3"))
    assert line.verdict == verdict


def test_receiving_is_compared_by_processor_time_of_a_task() -> None:
    """Numbers of tasks differ, as the peer is slower; what one costs is compared."""
    ours = _run(RECEIVE, "ours", cpu_s=10_000 * 0.0003)
    line = _line("chunkflow 1.2.0", ours, _run(RECEIVE, "chunkflow", cpu_s=1000 * 0.0015))
    assert (line.measured, line.verdict) == ("5.00 x", "met")


def test_memory_of_most_boxes_is_compared_with_that_of_fewest() -> None:
    """A thousand times as many boxes may take a fifth more."""
    names = list(cases()[MEMORY]["tasks"])
    runs = [_run(MEMORY, name, peak_bytes=30e6 + 2.5e6 * n) for n, name in enumerate(names)]
    line = _line("peak memory", *runs)
    assert (line.measured, line.verdict) == ("1.25 x", "not met")


@pytest.mark.parametrize(("wall", "verdict"), [(10.4, "met"), (10.6, "not met")])
def test_overhead_is_that_of_four_workers_without_the_line(wall: float, verdict: str) -> None:
    """20,000 tasks in 10.5 s on 4 workers are 2.1 ms each, of which 0.1 ms are the line's own."""
    alone = _run(NOTHING, "no queue", wall_s=2.0)
    line = _line("overhead per task, embedded", alone, _worked("embedded", wall))
    assert line.verdict == verdict


def test_what_did_not_run_is_not_judged() -> None:
    """The reason stands in the table, for overheads as for peers."""
    alone = _run(NOTHING, "no queue", wall_s=2.0)
    lost = {"case": NOTHING, "contestant": "embedded", "round": 0, "error": "no space"}
    line = _line("overhead per task, embedded", alone, lost)
    assert line.verdict == "not measured: no space"


def test_peers_stand_beside_what_was_said_of_them() -> None:
    """Measured here, said elsewhere."""
    line = _line("python-task-queue", _run(NOTHING, "python-task-queue", wall_s=2.0))
    assert line.measured == "1e+03 tasks/s (one run); published: 1,320, on another machine"


def test_each_number_of_workers_is_judged() -> None:
    """95 % of the time in tasks, while all have work."""
    line = _line("8 workers", _run(SLEEP, "8 workers", at_work=0.949, wall_s=21.0))
    assert line.verdict == "not met"
    assert "7.62 tasks at the same time" in line.measured


def test_documentation_shows_what_was_recorded() -> None:
    """The tables of docs/benchmarks-queue.md are those of the results, to the letter."""
    written = written_between(BENCHMARK.page)
    assert written == documented(), "run: python benchmarks/queues.py --write-docs"


def _report(job: dict[str, Any], script: str = "run_queue_ours.py", python: Any = None) -> Any:
    done = subprocess.run(
        [str(python or sys.executable), str(ROOT / "benchmarks/peers" / script), json.dumps(job)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        check=True,
        capture_output=True,
        text=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", ["sqlite", "file"])
def test_a_worker_is_timed(tmp_path: Path, kind: str) -> None:
    """One real run: sent, worked off by two processes, each task seen by the clock."""
    job = {
        "what": "work", "queue": f"{kind}://{tmp_path}/queue", "tasks": 100, "processes": 2,
        "seconds": 0.002, "folder": str(tmp_path), "plugin": PLUGIN,
    }  # fmt: skip
    found = _report(job)
    assert (found["tasks"], found["ledger_files"]) == (100, 1)
    assert found["processes"] in (1, 2)  # on a busy machine one may have done all
    assert found["wall_s"] >= 100 * 0.002 / 2
    assert 0 <= found["gap_s"] <= found["wall_s"]


def test_a_producer_and_a_line_are_timed(tmp_path: Path) -> None:
    """Boxes sent to a queue, and worked on without one."""
    found = _report({"what": "send", "queue": f"sqlite://{tmp_path}/queue", "tasks": 300})
    assert found["tasks"] == 300
    assert found["wall_s"] > 0
    assert found["peak_bytes"] > 1e6
    assert _report({"what": "line", "tasks": 100, "plugin": PLUGIN})["wall_s"] > 0


@pytest.mark.skipif(not python_of("queues").exists(), reason="make peers makes it")
@pytest.mark.parametrize("peer", ["task-queue", "daisy"])
def test_a_peer_works_tasks_off(tmp_path: Path, peer: str) -> None:
    """The tools of the field do the same job."""
    job = {"peer": peer, "tasks": 100, "processes": 2, "folder": str(tmp_path)}
    assert _report(job, "run_queue_peers.py", python_of("queues"))["wall_s"] > 0

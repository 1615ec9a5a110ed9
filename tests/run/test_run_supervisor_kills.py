"""Workers that are killed at each point of a task's way: nothing is lost, nothing counted twice."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rigs.workers import LONG_S, Stage, wait_for

TESTS = Path(__file__).parents[1]
LEASE_S = 2.0
PROGRAM = f"""
import sys
from pathlib import Path
from rigs.workers import Stage
if __name__ == "__main__":
    stage = Stage(Path(sys.argv[1]), 12, f"sqlite://{{sys.argv[1]}}/queue")
    print(stage.work(seconds=float(sys.argv[2]), lease_s={LEASE_S}).state)
"""


def start(folder: Path, seconds: float = 0.0, **environment: str) -> subprocess.Popen[str]:
    """Start a worker as a process of its own."""
    path = folder / "worker.py"
    path.write_text(PROGRAM)
    return subprocess.Popen(
        [sys.executable, str(path), str(folder), str(seconds)],
        env=os.environ | {"PYTHONPATH": str(TESTS)} | environment,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Twelve tasks in an embedded queue."""
    stage = Stage(tmp_path, 12, f"sqlite://{tmp_path}/queue")
    stage.send()
    return stage


def finish(stage: Stage) -> None:
    """Have another worker finish the stage."""
    assert stage.work(lease_s=LEASE_S).state == "complete"
    assert stage.states() == dict.fromkeys(range(12), "done")
    counts = stage.queue.counts()
    assert counts.waiting + counts.leased == 0


@pytest.mark.drill
@pytest.mark.parametrize("point", ["leased", "written-not-recorded", "recorded-not-acknowledged"])
def test_killed_at_any_point_nothing_is_lost(stage: Stage, point: str) -> None:
    """Another worker takes over when the lease ends; what is recorded is not computed again."""
    with start(stage.folder, 0.01, CHUNKFLOW_FAILPOINT=f"{point}:kill@2") as process:
        assert process.wait(LONG_S) == -signal.SIGKILL
    recorded = set(stage.states())
    begun = time.monotonic()
    finish(stage)
    assert time.monotonic() - begun < LONG_S
    if point == "recorded-not-acknowledged":
        assert recorded
    assert all(stage.attempts(number) == 1 for number in recorded)
    assert all(stage.attempts(number) <= 2 for number in range(12))


@pytest.mark.drill
@pytest.mark.long
def test_without_the_safeguard_a_kill_loses_tasks(stage: Stage) -> None:
    """Acknowledged before it is recorded, a task is gone: the order is what keeps it."""
    faults = {
        "CHUNKFLOW_FAILPOINT": "written-not-recorded:kill@2",
        "CHUNKFLOW_UNSAFE": "ledger-before-acknowledgement",
    }
    with start(stage.folder, 0.01, **faults) as process:
        assert process.wait(LONG_S) == -signal.SIGKILL
    outcome = stage.work(lease_s=LEASE_S)
    assert outcome.state == "stopped"
    assert "neither queued nor recorded" in outcome.message


@pytest.mark.drill
@pytest.mark.long
def test_a_worker_that_was_suspended_does_no_harm(stage: Stage) -> None:
    """Stopped for longer than its lease, it finds its tasks done by another, and goes on."""
    with start(stage.folder, 0.3) as process:
        wait_for(lambda: any(stage.attempts(number) for number in range(12)))
        process.send_signal(signal.SIGSTOP)
        finish(stage)
        attempts = {record.number: record.attempt for record in stage.ledger.records()}
        process.send_signal(signal.SIGCONT)
        assert process.communicate(timeout=LONG_S)[0] == "complete\n"
    assert attempts == {record.number: record.attempt for record in stage.ledger.records()}

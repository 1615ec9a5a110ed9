"""How long a worker may go on."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from chunkflow_py.errors import OptionError
from chunkflow_py.run.worker.worker_limits import WorkerLimits, parse_time_left, walltime_of_job

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("1-02:03:04", 93784), ("02:03:04", 7384), ("3:04", 184), ("59", 59), ("0:00", 0)],
)
def test_slurms_times_are_read(text: str, seconds: int) -> None:
    """Days, hours, minutes and seconds, with as many of them as Slurm writes."""
    assert parse_time_left(text) == seconds


@pytest.mark.parametrize("text", ["UNLIMITED", "NOT_SET", "INVALID", "", "1:2:3:4", "-1:00"])
def test_no_time_is_refused(text: str) -> None:
    """A job without a limit has no walltime that could be kept."""
    with pytest.raises(OptionError, match="omit --walltime"):
        parse_time_left(text)


def test_the_end_of_the_job_is_taken_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """SLURM_JOB_END_TIME is enough; squeue is not asked."""
    monkeypatch.setenv("SLURM_JOB_END_TIME", str(int(time.time()) + 500))
    assert 490 < walltime_of_job() <= 500


def test_squeue_is_asked_where_the_environment_does_not_say(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Older versions of Slurm tell the time left through squeue."""
    program = tmp_path / "squeue"
    program.write_text('#!/bin/sh\ntest "$3" = 77 && echo 1:30\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.delenv("SLURM_JOB_END_TIME", raising=False)
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    assert walltime_of_job() == 90
    monkeypatch.setenv("SLURM_JOB_ID", "78")
    with pytest.raises(OptionError, match="job 78"):
        walltime_of_job()
    monkeypatch.delenv("SLURM_JOB_ID")
    with pytest.raises(OptionError, match="SLURM_JOB_ID is not set"):
        walltime_of_job()


def test_the_first_limit_is_the_deadline() -> None:
    """Walltime, less a little for leaving, or the money: whatever ends first, and it is named."""
    assert WorkerLimits().deadline_s is None
    time_first = WorkerLimits(walltime_s=100, max_cost=1, cost_per_hour=2)
    assert time_first.deadline_s == 98
    assert "walltime of 100 s" in time_first.reason
    money_first = WorkerLimits(walltime_s=3600, max_cost=1, cost_per_hour=2)
    assert money_first.deadline_s == 1800
    assert "cost limit of 1 at 2" in money_first.reason
    assert WorkerLimits(walltime_s=10_000).deadline_s == 9980


def test_a_cost_limit_needs_a_price() -> None:
    """Without a price nobody can say when the money is spent."""
    with pytest.raises(OptionError, match="--cost-per-hour"):
        WorkerLimits(max_cost=5)


def test_the_limits_are_those_of_the_worker_not_of_a_stage() -> None:
    """What one stage has taken is gone for the next, and what is used up is named."""
    limits = WorkerLimits(max_tasks=5, walltime_s=100, idle_exit_s=30)
    later = limits.after(90, 3)
    assert (later.max_tasks, later.deadline_s, later.reached) == (2, 8, None)
    assert "walltime of 100 s" in later.reason
    assert "the limit of --max-tasks is reached" in (limits.after(1, 7).reached or "")
    assert limits.after(98, 0).reached == "the walltime of 100 s is used up"
    money = WorkerLimits(max_cost=1, cost_per_hour=3600)
    assert "cost limit of 1 at 3600" in (money.after(2, 0).reached or "")


def test_a_worker_waits_no_longer_than_its_limits() -> None:
    """Idle workers, too, leave in time: after --idle-exit, or when the walltime is over."""
    limits = WorkerLimits(walltime_s=100, idle_exit_s=30)
    assert limits.idle_left_s(0) == 30
    assert limits.after(90, 0).idle_left_s(25) == 5
    assert limits.after(95, 0).idle_left_s(0) == 3
    assert WorkerLimits().idle_left_s(1e9) == float("inf")

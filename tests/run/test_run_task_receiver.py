"""Poison tasks: detected by the marks that they leave in the ledger."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from rigs.workers import Stage, wait_for

from chunkflow_py.queue.leases import LeaseKeeper
from chunkflow_py.queue.message_body import parse_body
from chunkflow_py.run.worker.failure_policy import AttemptLimits
from chunkflow_py.run.worker.task_receiver import GIVEN_BACK, RECEIVES, Job, PoisonTaskGuard


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """Four tasks."""
    stage = Stage(tmp_path, 4)
    stage.send()
    return stage


def deliver(stage: Stage, times: int) -> None:
    """Have all messages received so often, and given back in order."""
    for _ in range(times):
        stage.queue.release(stage.queue.receive(10, 60))


def guard_of(stage: Stage, *, keeps_attempts: bool = False) -> PoisonTaskGuard:
    """Return the guard of a new worker."""
    return PoisonTaskGuard(
        stage.ledger, AttemptLimits(permanent=3), "5bec", keeps_attempts=keeps_attempts
    )


def jobs_of(stage: Stage, keeper: LeaseKeeper, worker: int = 0) -> list[Job]:
    """Return the tasks that wait, received."""
    found = []
    for held in keeper.receive(10):
        region = parse_body(held.message.body).region
        number = stage.plan.number(region)
        found.append(Job(number, str(region), [held], f"{worker}-{number}"))
    return sorted(found, key=lambda job: job.number)


def test_messages_that_came_often_are_no_failures(stage: Stage) -> None:
    """However often tasks were released or drained, all are done, and none has failed."""
    deliver(stage, 12)
    assert stage.work().state == "complete"
    assert set(stage.states().values()) == {"done"}
    assert [stage.attempts(number) for number in range(4)] == [1] * 4
    assert not list(stage.ledger.failures())


def test_only_one_suspected_task_runs_at_a_time(stage: Stage) -> None:
    """Else nobody could tell which of them has ended the worker."""
    deliver(stage, RECEIVES)
    with LeaseKeeper(stage.queue, 60) as keeper:
        guard = guard_of(stage)
        first, second, *_ = jobs_of(stage, keeper)
        assert guard.admits(first)
        assert first.is_suspected
        assert not guard.admits(second)
        keeper.drop(*first.leases)
        assert guard.admits(second)


def test_tasks_that_are_not_suspected_run_at_once(stage: Stage) -> None:
    """Messages that have come three times, say by two spot notices, are like all others."""
    deliver(stage, RECEIVES - 1)
    with LeaseKeeper(stage.queue, 60) as keeper:
        guard = guard_of(stage)
        assert all(guard.admits(job) and not job.is_suspected for job in jobs_of(stage, keeper))


@pytest.mark.parametrize("keeps_attempts", [False, True])
def test_many_workers_that_fall_silent_end_a_task(stage: Stage, keeps_attempts: bool) -> None:
    """Each has said that it begins, and nothing more; orderly ends between them do not count.

    A task that ends its workers is bounded; one whose workers are killed a dozen times is not
    given up for that.
    """
    deliver(stage, RECEIVES)
    with LeaseKeeper(stage.queue, 60) as keeper:
        job = jobs_of(stage, keeper)[0]
    most = AttemptLimits().worker_lost
    assert most == 20
    for worker in range(most):
        guard = guard_of(stage, keeps_attempts=keeps_attempts)
        job.attempt = f"orderly-{worker}"
        assert guard.begin(job, None) is None
        guard.withdraw(job)
        job.attempt = f"silent-{worker}"
        assert guard.begin(job, None) is None
        assert job.number not in stage.states()
    record = guard_of(stage, keeps_attempts=keeps_attempts).begin(job, None)
    assert record is not None
    assert stage.states() == {job.number: "dead"}
    assert "failed 20 times, the last time: the worker disappeared" in (record.reason or "")
    silent = [failure for failure in stage.ledger.failures() if failure.kind == "worker-lost"]
    assert {failure.attempt for failure in silent} == {f"silent-{n}" for n in range(most)}


def test_a_worker_that_lives_has_lost_no_attempt(stage: Stage) -> None:
    """A mark that a compaction has put back after its removal counts only when others find it."""
    deliver(stage, RECEIVES)
    with LeaseKeeper(stage.queue, 60) as keeper:
        job = jobs_of(stage, keeper)[0]
    guard = guard_of(stage)
    for number in range(2):  # the mark of the first attempt stays
        job.attempt = f"alive-{number}"
        assert guard.begin(job, None) is None
    assert not list(stage.ledger.failures())
    job.attempt = "other-0"
    assert guard_of(stage).begin(job, None) is None
    assert {each.attempt for each in stage.ledger.failures()} == {"alive-0", "alive-1"}


def test_lost_workers_and_failures_are_counted_apart(stage: Stage) -> None:
    """A healthy task that many workers were killed on has its failures of its own all left."""
    deliver(stage, RECEIVES)
    with LeaseKeeper(stage.queue, 60) as keeper:
        jobs = jobs_of(stage, keeper)
        for worker in range(7):
            jobs[0].attempt = f"silent-{worker}"
            assert guard_of(stage).begin(jobs[0], None) is None
        stage.queue.release([lease.message for job in jobs for lease in job.leases])
    assert stage.work({0: "fails@2"}).state == "complete"
    assert set(stage.states().values()) == {"done"}
    kinds = [failure.kind for failure in stage.ledger.failures(0)]
    assert (kinds.count("worker-lost"), kinds.count("permanent")) == (7, 2)


@pytest.mark.parametrize("keeps_attempts", [False, True])
@pytest.mark.parametrize("is_compacted", [False, True])
def test_a_worker_that_stops_leaves_no_mark_that_blames_it(
    stage: Stage, is_compacted: bool, keeps_attempts: bool
) -> None:
    """A suspected task that has not ended when its worker must leave does not count as lost."""
    deliver(stage, RECEIVES)
    supervisor = stage.supervisor(seconds=30, grace_s=0.2, records_attempts=keeps_attempts)
    thread = threading.Thread(target=supervisor.run)
    thread.start()
    wait_for(lambda: any(stage.attempts(number) for number in range(4)))
    if is_compacted:
        stage.ledger.compact()
    (begun,) = [number for number in range(4) if stage.attempts(number)]
    supervisor.stop("the test says so")
    thread.join(30)
    assert not thread.is_alive()
    marks = [mark.attempt for mark in stage.ledger.attempts(begun)]
    given_back = [each.attempt for each in stage.ledger.failures() if each.reason == GIVEN_BACK]
    assert len(marks) == keeps_attempts
    assert given_back == marks
    assert len(list(stage.ledger.failures())) == len(given_back)
    assert stage.queue.counts().waiting == 4

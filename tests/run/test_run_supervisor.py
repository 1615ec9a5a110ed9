"""One worker on one stage: every task recorded once, acknowledged after that, nothing lost."""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest
from rigs import lines
from rigs.workers import LONG_S, Background, Stage, wait_for

from chunkflow_py.errors import OptionError
from chunkflow_py.run.ledger.ledger_record import Record
from chunkflow_py.run.worker.worker_limits import WorkerLimits

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A stage of twelve tasks, which are queued; no thread of it lives on."""
    before = set(threading.enumerate())
    stage = Stage(tmp_path, 12)
    stage.send()
    yield stage
    for thread in set(threading.enumerate()) - before:
        if "fold" not in thread.name:
            thread.join(LONG_S)
            assert not thread.is_alive(), thread


# --- the way of a task ---------------------------------------------------------------------------


@pytest.mark.parametrize("ahead", [0, 1])
def test_all_tasks_are_worked_off(stage: Stage, ahead: int) -> None:
    """Every task is computed once, recorded with what it wrote, and acknowledged."""
    outcome = stage.work(processes=2, ahead=ahead)
    assert (outcome.state, outcome.done, outcome.failures) == ("complete", 12, 0)
    assert stage.queue.counts().waiting + stage.queue.counts().leased == 0
    records = {record.number: record for record in stage.ledger.records()}
    assert sorted(records) == list(range(12))
    assert len({record.attempt for record in records.values()}) == 12
    for number, record in records.items():
        assert stage.attempts(number) == 1
        assert record.box == str(stage.plan.region(number))
        assert (record.state, record.spec, record.worker) == ("done", "5bec", "tester")
        assert list(record.seconds) == ["acts"]
        (stored,) = record.written
        assert stored.url.endswith(f"/{number}.done")


def test_a_skipped_task_is_recorded_with_its_reason(stage: Stage) -> None:
    """Skipped is a way to end: recorded, acknowledged, not tried again."""
    outcome = stage.work({3: "skips"})
    assert (outcome.state, outcome.done, outcome.skipped) == ("complete", 11, 1)
    (record,) = stage.ledger.records(states=["skipped"])
    assert (record.number, record.reason) == (3, "nothing to see")
    assert stage.attempts(3) == 1


def test_a_finished_task_is_never_computed_again(stage: Stage) -> None:
    """A duplicate of a task that is in the ledger is acknowledged, whoever has recorded it."""
    stage.send([4, 4, 5])
    box = str(stage.plan.region(4))
    stage.ledger.record([Record(4, box, "done", "5bec", "another", "another")])
    assert stage.work(processes=2).state == "complete"
    assert stage.attempts(4) == 0
    assert stage.attempts(5) == 1
    assert stage.queue.counts().waiting + stage.queue.counts().leased == 0


def test_a_message_delivered_twice_at_once_is_one_task(stage: Stage) -> None:
    """Both messages share the fate of the one attempt."""
    for _ in range(4):
        stage.send()
    assert stage.work(seconds=0.02).state == "complete"
    assert [stage.attempts(number) for number in range(12)] == [1] * 12
    assert stage.queue.counts().waiting + stage.queue.counts().leased == 0


def test_hostile_messages_are_put_aside(stage: Stage) -> None:
    """What is no task of the plan goes to the dead letters with the reason, and is not computed."""
    bad = ["../../etc/passwd", '{"bbox": 7}', "0-1_0-1_12-13", '{"bbox":"0-1_0-1_0-1","x":1}']
    stage.queue.send(bad)
    stage.send([0], stage="unknown")
    assert stage.work().state == "complete"
    dead = {letter.body: letter.reason for letter in stage.queue.dead_letters()}
    assert len(dead) == 5
    assert all(body in dead for body in bad)
    assert all(dead.values())


# --- other runs and stages -----------------------------------------------------------------------


def test_tasks_of_another_run_are_refused(stage: Stage, caplog: pytest.LogCaptureFixture) -> None:
    """They are left to their own workers, said once, and never computed here."""
    stage.send([0, 1], run="other", stage="infer")
    stage.send([2], run="other", stage="unheard-of")
    outcome = stage.work(run="mine", limits=WorkerLimits(idle_exit_s=2.0))
    assert outcome.state == "complete"  # by the records of its own tasks, not by the queue
    assert stage.queue.counts().waiting == 3
    assert caplog.text.count("the queue contains tasks of another run (hash other)") == 1
    assert [stage.attempts(number) for number in range(3)] == [1] * 3


def test_stages_follow_each_other(stage: Stage) -> None:
    """A late duplicate of an earlier stage is dropped; a task of a later one ends this stage."""
    stages = {"mask": "hash0", "infer": "hash1", "label": "hash2"}
    stage.send([0], run="hash0", stage="mask")
    assert stage.work(run="hash1", stages=stages).state == "complete"
    assert stage.queue.counts().waiting == 0
    stage.send([0], run="hash2", stage="label")
    outcome = stage.work(run="hash1", stages=stages, limits=WorkerLimits(idle_exit_s=LONG_S))
    assert outcome.state in ("stage-closed", "complete")
    assert stage.queue.counts().waiting == 1


def test_stages_that_a_repair_has_reopened(stage: Stage) -> None:
    """A task of an earlier stage that is open again is kept; one of a later that is not, is not."""
    stages = {"mask": "hash0", "infer": "hash1", "label": "hash2"}
    stage.send([0], run="hash2", stage="label")
    outcome = stage.work(run="hash1", stages=stages, is_wanted=lambda name: name == "mask")
    assert outcome.state == "complete"
    assert stage.queue.counts().waiting == 0, "who opens that stage sends it anew"
    stage.send([0], run="hash0", stage="mask")
    outcome = stage.work(
        run="hash1", stages=stages, is_wanted=lambda name: name == "mask",
        limits=WorkerLimits(idle_exit_s=LONG_S),
    )  # fmt: skip
    assert outcome.state in ("stage-closed", "complete")
    assert stage.queue.counts().waiting == 1


# --- the end -------------------------------------------------------------------------------------


def test_a_worker_waits_for_what_others_have(stage: Stage) -> None:
    """An empty queue is no end while leased work may return: the last task is waited for."""
    (message,) = stage.queue.receive(1, 60)
    worker = Background(stage.supervisor())
    wait_for(lambda: len(stage.notes.records) == 11)
    time.sleep(0.8)
    assert worker.thread.is_alive()
    stage.queue.release([message])
    assert worker.wait().state == "complete"
    assert len(stage.states()) == 12


def test_a_worker_may_leave_when_the_queue_is_empty(stage: Stage) -> None:
    """Told not to wait, it leaves with work left, and says how much."""
    stage.queue.receive(1, 60)
    outcome = stage.work(until_complete=False)
    assert outcome.state == "stopped"
    assert "1 tasks" in outcome.message


def test_lost_messages_are_told(tmp_path: Path) -> None:
    """If no task is queued or leased but some are missing, the message names the remedy."""
    stage = Stage(tmp_path, 5)
    stage.send([0, 1, 2])
    outcome = stage.work(lease_s=1.0)
    assert (outcome.state, outcome.done) == ("stopped", 3)
    assert "2 tasks are neither queued nor recorded; run chunkflow repair" in outcome.message


def test_no_more_tasks_are_taken_than_asked_for(stage: Stage) -> None:
    """With --max-tasks exactly so many end here, and the others wait for other workers."""
    outcome = stage.work(processes=2, limits=WorkerLimits(max_tasks=5))
    assert (outcome.state, outcome.done) == ("stopped", 5)
    assert stage.queue.counts().waiting == 7


def test_a_stop_after_the_last_record_is_no_work_left(tmp_path: Path) -> None:
    """Asked to stop when its last task is recorded, a worker looks whether the step is complete."""
    stage = Stage(tmp_path, 2)
    stage.send()
    supervisor = stage.supervisor()

    def stop(record: object) -> None:
        stage.notes.records.append(record)
        if len(stage.notes.records) == 2:
            supervisor.stop("test")

    stage.notes.task_ended = stop
    assert supervisor.run().state == "complete"


def test_a_spent_budget_ends_with_the_task_that_is_computed(stage: Stage) -> None:
    """It is finished, longer than the grace; what was loaded ahead goes back, and is not begun."""
    line = partial(lines.loads_then_acts, str(stage.output), {}, 1.0, 2)

    def reached() -> str | None:
        return "the money is spent" if stage.attempts(0) else None

    outcome = stage.work(line=line, grace_s=0.1, stop_reason=reached)
    assert (outcome.state, outcome.message) == ("stopped", "stopped: the money is spent")
    assert (outcome.done, outcome.failures) == (1, 0)
    assert sum(stage.attempts(number) for number in range(12)) == 1
    counts = stage.queue.counts()
    assert (counts.waiting, counts.leased) == (11, 0)


def test_a_signal_shortens_the_end_of_a_spent_budget(stage: Stage) -> None:
    """A task that would take long is given back after the grace of the second reason."""
    worker = Background(
        supervisor := stage.supervisor(
            {0: "hangs"}, grace_s=0.5, stop_reason=lambda: "spent" if stage.attempts(0) else None
        )
    )
    wait_for(lambda: any("spent" in note for note in stage.notes.messages))
    supervisor.stop("the machine is needed")
    outcome = worker.wait()
    assert (outcome.state, outcome.message) == ("stopped", "stopped: spent")
    assert (stage.queue.counts().waiting, stage.queue.counts().leased) == (12, 0)


def test_no_task_is_begun_that_would_last_too_long(stage: Stage) -> None:
    """Before the walltime ends, a worker stops taking tasks; all that it began is finished."""
    start = time.monotonic()
    outcome = stage.work(seconds=0.4, limits=WorkerLimits(walltime_s=4.0))
    assert outcome.state == "stopped"
    assert "walltime of 4 s" in outcome.message
    assert 1 <= outcome.done < 12
    assert time.monotonic() - start < 8
    begun = [number for number in range(12) if stage.attempts(number)]
    assert sorted(stage.states()) == begun
    assert stage.queue.counts().waiting == 12 - len(begun)


# --- children ------------------------------------------------------------------------------------


def test_a_wrong_line_is_refused_at_once(stage: Stage) -> None:
    """A line that cannot be made is the error of whoever typed it; no task is taken."""
    with pytest.raises(OptionError, match="no such option"):
        stage.work(line=lines.wrong)
    assert stage.queue.counts().waiting == 12


def test_a_child_that_cannot_begin_stops_the_worker(stage: Stage) -> None:
    """After some tries it is said what kills it; no task is blamed."""
    with pytest.raises(Exception, match="has failed to start 3 times in a row: killed by SIGKILL"):
        stage.work(line=lines.dies)
    assert not list(stage.ledger.failures())
    assert stage.queue.counts().waiting == 12


def test_profiles_are_joined_and_checked_before_the_first_task(stage: Stage) -> None:
    """A worker whose profile does not match is refused at the door."""
    profiles = {"one": {"device": "cpu", "dtype": "float32"}, "two": {"dtype": "bfloat16"}}
    line = partial(lines.profiled, profiles)
    seen = []

    def refuse(profile: dict[str, str]) -> None:
        seen.append(profile)
        msg = "this machine would compute other bytes"
        raise OptionError(msg)

    with pytest.raises(OptionError, match="other bytes"):
        stage.work(line=line, check_profile=refuse)
    assert seen == [{"device": "cpu", "dtype": "float32", "two.dtype": "bfloat16"}]
    assert stage.queue.counts().waiting == 12
    assert stage.work(line=line).state == "complete"
    (profile,) = {record.profile for record in stage.ledger.records()}
    assert profile == "device cpu, dtype float32, two.dtype bfloat16"


def test_each_child_has_its_device_and_threads(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment is set before anything of the line is imported."""
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    names = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "LINE")
    line = partial(lines.tells, names, str(stage.output))
    stage.work(
        line=line, devices=["2"], environment={"LINE": "yes"}, limits=WorkerLimits(max_tasks=6)
    )
    said = (stage.output / "environment").read_text().splitlines()
    assert said == ["CUDA_VISIBLE_DEVICES=2", "OMP_NUM_THREADS=3", "LINE=yes"]
    stage.work(line=line, threads=1)
    assert "OMP_NUM_THREADS=1" in (stage.output / "environment").read_text()


def test_attempts_are_told_to_the_ledger_before_they_begin(stage: Stage) -> None:
    """Where workers compute different bytes, what an attempt wrote can be told from others'."""
    assert stage.work(records_attempts=True).state == "complete"
    for record in stage.ledger.records():
        (attempt,) = stage.ledger.attempts(record.number)
        assert attempt.attempt == record.attempt

"""Tasks that fail, children that die, leases that are lost, and how a worker stops."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest
from rigs import lines
from rigs.metadata import metadata_server
from rigs.variants import gate_runs
from rigs.workers import LONG_S, Background, Stage, wait_for

from chunkflow_py.core.interrupts import STOP
from chunkflow_py.errors import QueueUnreachableError
from chunkflow_py.queue.queue_protocol import Counts, open_queue
from chunkflow_py.run.worker.worker_limits import TaskLimit
from chunkflow_py.run.worker.worker_pool import WorkerProcess

TESTS = Path(__file__).parents[1]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A stage of twelve tasks, which are queued."""
    stage = Stage(tmp_path, 12)
    stage.send()
    return stage


def all_but(stage: Stage, *numbers: int) -> bool:
    """Return whether all tasks are done but these, which are dead."""
    wanted = {number: "dead" if number in numbers else "done" for number in range(12)}
    return stage.states() == wanted


# --- tasks that fail -----------------------------------------------------------------------------


def test_a_task_that_fails_is_given_up_after_some_attempts(stage: Stage) -> None:
    """Its failures are in the ledger with their tracebacks; the others finish."""
    outcome = stage.work({5: "fails"}, processes=2)
    assert (outcome.state, outcome.dead, outcome.failures) == ("complete-with-failures", 1, 3)
    assert all_but(stage, 5)
    assert stage.attempts(5) == 3
    failures = list(stage.ledger.failures(5))
    assert len({failure.attempt for failure in failures}) == 3
    assert all("task 5 is poison" in failure.reason for failure in failures)
    assert all("in fails\n    raise ValueError" in failure.traceback for failure in failures)
    assert all((failure.seconds or 0) > 0 for failure in failures)
    (letter,) = stage.queue.dead_letters()
    assert "failed 3 times, the last time: acts failed on task 0-1_0-1_5-6" in letter.reason
    (dead,) = stage.ledger.records(states=["dead"])
    assert dead.reason == letter.reason


def test_a_failure_that_passes_is_no_failure(stage: Stage) -> None:
    """A task may fail for the network more often than by its own fault; in the end it is done."""
    outcome = stage.work({5: "disconnects@4"})
    assert outcome.state == "complete"
    assert stage.attempts(5) == 5
    assert {failure.kind for failure in stage.ledger.failures(5)} == {"transient"}


@pytest.mark.parametrize(
    ("act", "says", "cause"),
    [
        ("crashes", "killed by SIGSEGV (segmentation fault) in operator acts", "segfault"),
        ("is_killed", "because the system reports no lack of memory; peak memory", "killed"),
    ],
)
def test_a_task_that_kills_its_child_is_given_up(
    stage: Stage, act: str, says: str, cause: str
) -> None:
    """The cause of death is its failure; what else was in the child is done, and not blamed."""
    outcome = stage.work({5: act}, processes=2, ahead=1)
    assert outcome.state == "complete-with-failures"
    assert all_but(stage, 5)
    failures = list(stage.ledger.failures())
    assert {failure.number for failure in failures} == {5}
    assert len(failures) == 3
    assert all(says in failure.reason for failure in failures)
    assert stage.ledger.counts().causes == {cause: 3}
    if act == "crashes":
        assert all("in crashes" in failure.traceback for failure in failures)


def test_none_is_blamed_for_the_death_of_a_child_with_several_tasks(stage: Stage) -> None:
    """Those that had begun in it run again, each alone: only the one that kills it is blamed."""
    line = partial(lines.loads_then_acts, str(stage.output), {2: "crashes"}, 0.05, 2)
    assert stage.work(line=line).state == "complete-with-failures"
    assert all_but(stage, 2)
    assert {failure.number for failure in stage.ledger.failures()} == {2}


def test_a_task_that_hangs_is_cut(stage: Stage) -> None:
    """A limit from start to end kills its child, and says in which operator it was, and where."""
    outcome = stage.work({5: "hangs"}, processes=2, task_limit=TaskLimit(0.5))
    assert outcome.state == "complete-with-failures"
    assert all_but(stage, 5)
    failures = list(stage.ledger.failures())
    assert {failure.number for failure in failures} == {5}
    assert "s in operator acts: --task-limit allows 0.5 s" in failures[0].reason
    assert "in hangs" in failures[0].traceback
    assert all((failure.seconds or 0) > 0.5 for failure in failures), "what they have wasted"
    assert stage.ledger.counts().causes == {"hang": 3}
    stage.ledger.compact()
    assert stage.ledger.counts().causes == {"hang": 3}


def test_a_task_without_enough_memory_is_given_up_where_others_succeed(stage: Stage) -> None:
    """On a worker that has done others, a task that runs alone and lacks memory is to blame."""
    outcome = stage.work({11: "takes_memory"})
    assert outcome.state == "complete-with-failures"
    assert all_but(stage, 11)
    assert "not enough memory" in next(iter(stage.ledger.failures(11))).reason
    assert stage.ledger.counts().causes == {"host-memory": 3}


def test_a_machine_without_enough_memory_stops(stage: Stage) -> None:
    """Where no task succeeds, the machine is to blame: it stops, and no task is counted out."""
    outcome = stage.work(dict.fromkeys(range(12), "takes_memory"))
    assert outcome.state == "stopped"
    assert "has too little memory" in outcome.message
    assert not list(stage.ledger.failures())
    assert stage.queue.counts().waiting == 12


def test_a_full_disk_is_waited_for(stage: Stage) -> None:
    """Nothing is counted against a task; the worker says so, waits, and goes on."""
    outcome = stage.work({5: "fills_disk@2"}, processes=2)
    assert outcome.state == "complete"
    assert not list(stage.ledger.failures())
    assert stage.attempts(5) == 3
    assert any(
        "No space left" in words and "receives no tasks for" in words
        for words in stage.notes.messages
    )


# --- leases --------------------------------------------------------------------------------------


def test_the_lease_of_a_long_task_is_renewed(stage: Stage) -> None:
    """A task that takes longer than its lease is computed once, and so is what waits behind it."""
    outcome = stage.work({5: "hangs_2_s"}, lease_s=0.6)
    assert outcome.state == "complete"
    assert [stage.attempts(number) for number in range(12)] == [1] * 12


def test_work_stops_when_the_lease_cannot_be_renewed(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without renewal the task is abandoned: no record, no acknowledgement, and it comes again.

    Its process is killed before anybody waits for its end, or it would go on without a lease.
    """
    refused = threading.Event()
    calls = []
    kill, reap = WorkerProcess.kill, WorkerProcess.reap

    def noted(name, call):
        return lambda process: (calls.append((name, process.process.pid)), call(process))

    monkeypatch.setattr(WorkerProcess, "kill", noted("kill", kill))
    monkeypatch.setattr(WorkerProcess, "reap", noted("reap", reap))
    extend = stage.queue.extend

    def refuse(messages, lease_s):
        if not refused.is_set() and stage.attempts(5):
            msg = "the queue does not answer"
            raise QueueUnreachableError(msg)
        return extend(messages, lease_s)

    monkeypatch.setattr(stage.queue, "extend", refuse)
    worker = Background(stage.supervisor({5: "hangs@1"}, lease_s=1.5))
    stage.wait_until_begun(5)
    begun = time.monotonic()
    wait_for(lambda: stage.attempts(5) == 2 or stage.queue.counts().leased == 0)
    assert time.monotonic() - begun < LONG_S
    refused.set()
    assert worker.wait().state == "complete"
    assert not list(stage.ledger.failures())
    assert stage.attempts(5) == 2
    assert calls[0][0] == "kill"
    assert ("reap", calls[0][1]) in calls


# --- stopping ------------------------------------------------------------------------------------


def test_asked_to_stop_it_finishes_what_has_begun(stage: Stage) -> None:
    """What has not begun is given back within 2 s; what has begun is finished and recorded."""
    worker = Background(stage.supervisor({}, seconds=2.5, processes=2))
    wait_for(lambda: sum(stage.attempts(number) for number in range(12)) == 2)
    start = time.monotonic()
    worker.supervisor.stop("the test says so")
    wait_for(lambda: stage.queue.counts().waiting == 10)
    assert time.monotonic() - start < 2
    outcome = worker.wait()
    assert (outcome.state, outcome.done) == ("stopped", 2)
    assert outcome.message == "stopped: the test says so"
    assert stage.queue.counts().leased == 0


def test_a_worker_that_drains_with_the_last_tasks_reports_completion(tmp_path: Path) -> None:
    """Once they are recorded no work is left, and the worker must not report any."""
    stage = Stage(tmp_path, 2)
    stage.send()
    worker = Background(stage.supervisor({}, seconds=1.0, processes=2))
    stage.wait_until_begun(0, 1)
    worker.supervisor.stop("the test says so")
    outcome = worker.wait()
    assert (outcome.state, outcome.done) == ("complete", 2)
    assert outcome.message == "all 2 tasks are recorded"


def test_what_cannot_be_finished_within_the_grace_is_given_back(stage: Stage) -> None:
    """After the grace the children are killed, and their tasks can be received at once."""
    worker = Background(stage.supervisor({0: "hangs", 1: "hangs"}, processes=2, grace_s=0.5))
    stage.wait_until_begun(0, 1)
    start = time.monotonic()
    worker.supervisor.stop("the test says so")
    assert worker.wait().state == "stopped"
    assert time.monotonic() - start < 10
    counts = stage.queue.counts()
    assert counts.leased == 0
    assert counts.waiting + len(stage.states()) == 12
    assert not list(stage.ledger.failures())


def test_a_notice_of_the_cloud_stops_it(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    """It drains as for a signal, and says what the notice was."""
    with metadata_server() as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{metadata.host}")
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
        metadata.notices["action"] = {"action": "terminate"}
        outcome = stage.work(seconds=1.0, watches_notices=True)
    assert outcome.state == "stopped"
    assert "will be interrupted" in outcome.message
    assert stage.queue.counts().leased == 0


PROGRAM = """
import logging, sys
from pathlib import Path
from rigs.workers import Stage
if __name__ == "__main__":
    stage = Stage(Path(sys.argv[1]), 12, f"sqlite://{sys.argv[1]}/queue")
    stage.send()
    outcome = stage.work(dict.fromkeys(range(12), sys.argv[2]), processes=2)
    print(outcome.state, outcome.done, outcome.message)
"""


# After the first, a message that was taken out of the queue takes a second to arrive.
SLOW_RECEIPT = """
def slowly(receive):
    taken = []
    def call(stop, most, *args):
        messages = receive(stop, 1, *args)
        taken.extend(messages)
        if len(taken) > 1:
            Path(sys.argv[1], "under-way").touch()
            time.sleep(1)
        return messages
    return call
"""


def program(folder: Path, act: str, *, slow_receipt: bool = False) -> subprocess.Popen[str]:
    """Start a worker as a process of its own, on tasks that all do *act*."""
    path = folder / "worker.py"
    text = PROGRAM
    if slow_receipt:
        slow = "    stage.queue.receive_until = slowly(stage.queue.receive_until)\n    outcome"
        text = "import time" + SLOW_RECEIPT + PROGRAM.replace("    outcome", slow, 1)
    path.write_text(text)
    environment = os.environ | {"PYTHONPATH": str(TESTS), "PYTHONWARNINGS": "default"}
    return subprocess.Popen(
        [sys.executable, str(path), str(folder), act],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def begun(folder: Path) -> list[int]:
    """Return the process ids of children that have begun a task."""
    lines = [path.read_text() for path in (folder / "output").glob("*.begun")]
    return [int(line.split()[0]) for line in lines if line]


@pytest.mark.parametrize("number", gate_runs(STOP, signal.SIGTERM))
def test_the_first_signal_lets_tasks_finish(tmp_path: Path, number: int) -> None:
    """Sent to all its processes, as terminals and Slurm do, it stops nothing that has begun."""
    with program(tmp_path, "hangs_2_s") as process:
        wait_for(lambda: len(begun(tmp_path)) == 2)
        os.killpg(process.pid, number)
        said = process.communicate(timeout=LONG_S)[0]
    assert said.startswith("stopped 2 stopped: got SIG")


def test_the_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """All is given back, and its children are gone."""
    with program(tmp_path, "hangs") as process:
        wait_for(lambda: len(begun(tmp_path)) == 2)
        children = begun(tmp_path)
        start = time.monotonic()
        process.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=LONG_S)[0]
    assert time.monotonic() - start < 10
    assert said.startswith("stopped 0")
    wait_for(lambda: not any(Path(f"/proc/{child}").exists() for child in children))


def test_a_message_that_arrives_after_the_second_signal_is_given_back(tmp_path: Path) -> None:
    """It was taken out of the queue before: others would wait for its lease to end."""
    with program(tmp_path, "hangs", slow_receipt=True) as process:
        wait_for((tmp_path / "under-way").exists)
        for _ in range(2):
            process.send_signal(signal.SIGTERM)
            time.sleep(0.2)
        assert process.communicate(timeout=LONG_S)[0].startswith("stopped 0")
    assert open_queue(f"sqlite://{tmp_path}/queue").counts() == Counts(12, 0, 0)


def test_children_die_with_their_supervisor(tmp_path: Path) -> None:
    """After kill -9 of the supervisor nothing of it is left at work."""
    with program(tmp_path, "hangs") as process:
        wait_for(lambda: len(begun(tmp_path)) == 2)
        children = begun(tmp_path)
        process.kill()
        wait_for(lambda: not any(is_alive(child) for child in children))
        assert len(children) == 2
        assert process.wait(10) == -signal.SIGKILL


def is_alive(process: int) -> bool:
    """Return whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

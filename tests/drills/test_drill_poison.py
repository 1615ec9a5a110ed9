"""Tasks that cannot be done, disks that are full, messages that are no tasks."""

import os
import subprocess
import time
from pathlib import Path

import pytest

from drills.invariants import check
from drills.rig import STAGE

pytestmark = pytest.mark.drill
REASONS = {
    3: ("raise", "this task is poison"),
    6: ("segfault", "SIGSEGV"),
    9: ("hang", "cut off after"),
    12: ("memory", "not enough memory"),
}


@pytest.mark.slow
def test_poison(make_drill, expected):
    """Each is given up after its attempts, with the reason; all others are done."""
    drill = make_drill((2, 2, 4), {number: act for number, (act, _) in REASONS.items()})
    drill.submit()
    worker = drill.work("--lease", 4, "-n", 2, "--task-limit", 2, "--max-failures", 2)
    assert drill.wait() == [1]
    # A child died twice each of the segmentation fault and the hang, and once more with others.
    check(drill, expected(drill), dead=REASONS, cap=2, faults=6)
    records = drill.records()
    failures = list(drill.home.ledger(STAGE).failures())
    for number, (_, reason) in REASONS.items():
        assert reason in (records[number].reason or "")
        mine = [failure for failure in failures if failure.number == number]
        assert len(mine) == 2
        assert all("poison.py" in failure.traceback for failure in mine)
    status = drill.status()
    assert status["state"] == "complete but for failures"
    assert len(status["failures"]) == len(REASONS) == len(drill.dead_letters())
    assert all(record.box in worker.said() for record in records.values() if record.state == "dead")


@pytest.fixture
def small_disk(tmp_path):
    """Yield a folder on a file system of one megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(place)]
    if os.geteuid() or subprocess.run(mount, check=False).returncode:
        pytest.skip("only root may mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.mark.slow
def test_the_disk_is_full(make_drill, expected, small_disk, tmp_path):
    """Nothing is torn or counted as the tasks' failure; it goes on when there is space again."""
    drill = make_drill((1, 2, 4), folder=tmp_path / "drill", output=f"zarr://{small_disk}/out.zarr")
    drill.submit()
    filler = small_disk / "filler"
    with filler.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(1024))
        except OSError:
            filler.write_bytes(filler.read_bytes()[: -3 * 4096])  # three blocks fit
    worker = drill.work("--lease", 5)
    drill.until(lambda: "receives no tasks" in worker.said(), "the full disk")
    time.sleep(2)
    assert worker.is_alive
    assert not list(drill.home.ledger(STAGE).failures())
    check(drill, expected(drill), complete=False, faults=2)  # what was in hand was in vain
    computed = len(drill.calls())
    time.sleep(1)
    assert len(drill.calls()) == computed
    filler.unlink()
    assert drill.wait() == [0]
    check(drill, expected(drill), faults=2)


@pytest.mark.long
def test_hostile_messages(make_drill, expected, tmp_path):
    """Whatever comes in a message, it is put aside with the reason, and nothing else happens."""
    drill = make_drill((1, 2, 2), folder=tmp_path / "drill")
    drill.submit()
    hostile = [
        "__import__('os').system('touch hacked')",
        "cos\nsystem\n(S'touch hacked'\ntR.",  # a pickle
        "../../../../etc/passwd",
        "0-8_0-16_0-16/../../hacked",
        f"0-{10**30}_0-16_0-16",
        "0-8_0-16",
        "8-0_16-0_16-0",
        "1-9_0-16_0-16",  # a box, but no task
        "-8-0_0-16_0-16",
        '{"bbox": "0-8_0-16_0-16", "run": "../../../etc", "stage": "drill"}',
        '{"bbox": "0-8_0-16_0-16", "stage": "../hacked"}',
        '{"bbox": ["0-8_0-16_0-16"]}',
        '{"bbox": "0-8_0-16_0-16", "pipeline": "save-h5 -f hacked"}',
        "{" * 4000,
        "9" * 100_000,
        "\u202e0-8_0-16_0-16",
    ]
    drill.send(hostile)
    drill.work("--lease", 5)
    assert drill.wait() == [0]
    check(drill, expected(drill))
    letters = {letter.body: letter.reason for letter in drill.dead_letters()}
    assert set(letters) == set(hostile)
    assert all(letters.values())
    assert not [path for path in tmp_path.rglob("*") if "hacked" in path.name]
    assert not Path("hacked").exists()


@pytest.mark.slow
def test_two_runs_on_one_queue(make_drill, expected, tmp_path):
    """A worker leaves the tasks of another run alone: its output holds nothing of that run."""
    ours = make_drill((1, 2, 2), folder=tmp_path / "ours")
    ours.submit()
    theirs = make_drill(
        (1, 2, 2),
        folder=tmp_path / "theirs",
        queue=ours.queue_url,
        middle=("threshold", "-t", 200),
    )
    theirs.submit("--shared-queue")
    worker = ours.work("--lease", 5)
    assert ours.wait() == [0]
    check(ours, expected(ours))
    assert "give each run its own queue" in worker.said()
    assert theirs.records() == {}
    assert theirs.counts().waiting == 4
    assert not theirs.voxels().any()


@pytest.mark.long
def test_a_changed_line_is_refused(make_drill):
    """The same run with another threshold is no run to go on with, and nothing is sent."""
    drill = make_drill((1, 2, 2))
    drill.submit()
    drill.middle = ("threshold", "-t", 200)
    words = ("submit", "--run", drill.url, "--queue", drill.queue_url, "--stage", STAGE)
    again = drill.call(*words, *drill.source_words, *drill.line_words(drill.output))
    assert again.returncode == 2
    assert "threshold" in again.stderr
    assert drill.counts().waiting == 4


@pytest.mark.slow
def test_a_task_that_takes_its_worker_down(make_drill, expected):
    """As where a container's limit of memory ends all its processes: a few of them, not all."""
    drill = make_drill((1, 2, 2), {None: "sleep:0.1", 1: "kill-all"})
    drill.submit()
    while drill.wait(drill.work("--lease", 1)) != [1]:
        assert len(drill.workers) < 30
    check(drill, expected(drill), dead=[1], faults=len(drill.workers))
    (record,) = [record for record in drill.records().values() if record.state == "dead"]
    assert "the worker disappeared" in record.reason


@pytest.mark.slow
def test_a_healthy_task_whose_workers_are_killed(make_drill, expected):
    """Ten kills of everything, each in the middle of it, are no fault of the task: it is done."""
    drill = make_drill((1, 1, 1), {None: "sleep:1.5"})
    drill.submit()
    for times in range(1, 11):
        worker = drill.work("--lease", 1, "--max-failures", 1)
        drill.until(lambda times=times: len(drill.calls()) == times, "the task")
        worker.kill()
    drill.work("--lease", 1, "--max-failures", 1)
    assert drill.wait()[-1] == 0
    check(drill, expected(drill), faults=10)
    kinds = [failure.kind for failure in drill.home.ledger(STAGE).failures()]
    assert set(kinds) == {"worker-lost"}
    assert len(kinds) >= 6

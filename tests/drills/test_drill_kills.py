"""Workers that are killed: at each named point, with the last task, the child alone, at random."""

import signal
import time
from pathlib import Path

import pytest
from rigs.variants import gate_runs

from drills.invariants import check
from drills.rig import PATIENCE_S, SMALL_BLOCK

pytestmark = pytest.mark.drill
LEASE_S = 2
LEASE = ("--lease", LEASE_S)
EPSILON_S = 6  # of a busy machine

POINTS = [
    "leased:kill-all@1",
    "mid-read:kill-all@3",
    "mid-write:kill-all@2",
    "written-not-recorded:kill-all@1",
    "recorded-not-acknowledged:kill-all@1",
]


@pytest.mark.long
def test_without_faults(make_drill, expected):
    """A run without faults computes nothing twice and ends with 0, and loads no torch for it."""
    drill = make_drill((2, 2, 2), {None: "sleep:0.1"})
    drill.submit()
    worker = drill.work()
    drill.until(drill.computed, "the first task")
    loaded = [Path(f"/proc/{pid}/maps").read_text() for pid in worker.pids()]
    assert len(loaded) == 2
    assert not any("torch" in maps for maps in loaded)
    assert drill.wait() == [0]
    check(drill, expected(drill))
    assert drill.computed() == dict.fromkeys(range(8), 1)


@pytest.mark.parametrize("point", gate_runs(POINTS, *POINTS[2::2]))
def test_killed_at(make_drill, expected, point):
    """Another worker takes over, and what is recorded is not computed again."""
    drill = make_drill((2, 2, 2), block=SMALL_BLOCK)
    drill.submit()
    victim = drill.work(*LEASE, failpoint=point)
    drill.wait(victim)
    assert victim.process.returncode == -signal.SIGKILL
    before = drill.records()
    drill.work(*LEASE)
    drill.wait()
    check(drill, expected(drill), faults=1, earlier=before)
    if point.startswith("recorded"):
        assert before
        again = {number for number, times in drill.computed().items() if times > 1}
        assert not again & set(before)


@pytest.mark.slow
def test_killed_in_the_network(make_drill, expected):
    """A worker that dies between two batches of patches has written nothing of the task."""
    network = ("inference", "--framework", "identity", "--num-output-channels", 1)
    patches = ("--input-patch-size", 8, 16, 16, "--output-patch-overlap", 0, 0, 0)
    middle = (*network, *patches, "threshold", "-t", 0.4)
    drill = make_drill((2, 2, 2), middle=middle)
    drill.submit()
    victim = drill.work(*LEASE, failpoint="mid-inference:kill-all@2")
    drill.wait(victim)
    assert victim.process.returncode == -signal.SIGKILL
    drill.work(*LEASE)
    drill.wait()
    check(drill, expected(drill), faults=1)


@pytest.mark.long
def test_the_last_task_is_waited_for(make_drill, expected):
    """A queue that looks empty keeps nobody from waiting for what a dead worker had in hand."""
    # Tasks that take a while are not handed to a process before it has room.
    drill = make_drill((1, 2, 2), {None: "sleep:0.3", 2: "sleep:60@1"})
    drill.submit()
    first = drill.work(*LEASE, ahead=0)
    drill.until(lambda: drill.computed()[2], "the task that takes long")
    second = drill.work(*LEASE)
    drill.until(lambda: len(drill.records()) == 3, "the end of all others")
    time.sleep(1)
    assert second.is_alive
    first.kill()
    killed = time.monotonic()
    assert drill.wait(second) == [0]
    check(drill, expected(drill), faults=1)
    recovered = [call.when for call in drill.calls() if call.number == 2][-1]
    assert recovered - killed < LEASE_S + EPSILON_S


@pytest.mark.long
def test_a_child_that_is_killed_is_reported(make_drill, expected):
    """As if for memory: it is said within 10 s, and whose task it was as soon as it ran alone."""
    drill = make_drill((1, 2, 4), {3: "kill"})
    drill.submit()
    worker = drill.work(*LEASE, "--max-failures", 1)
    drill.until(lambda: "killed by SIGKILL, by a user or a program" in worker.said(), "the report")
    died = next(call.when for call in drill.calls() if call.number == 3)
    assert time.monotonic() - died < 10
    assert drill.wait(worker) == [1]
    check(drill, expected(drill), faults=1, dead=[3])
    reason = drill.records()[3].reason
    assert "SIGKILL, by a user or a program" in reason
    assert "plugin" in reason


@pytest.mark.long
def test_a_supervisor_alone_is_killed(make_drill, expected):
    """Its child does not outlive it, or write after another worker has taken over."""
    drill = make_drill((1, 2, 4), {None: "sleep:0.5"})
    drill.submit()
    victim = drill.work(*LEASE, "-n", 2)
    drill.until(drill.computed, "the first task")
    children = victim.children()
    victim.kill_supervisor()
    drill.until(lambda: not any(child.is_running() for child in children), "its children's end", 5)
    drill.act({})
    drill.work(*LEASE)
    assert drill.wait()[1:] == [0]
    check(drill, expected(drill), faults=2)


@pytest.mark.slow
def test_killed_at_random(make_drill, expected):
    """Supervisors, children and both, every half second: each is replaced, and nothing is lost."""
    drill = make_drill((6, 5, 5), {None: "sleep:0.1"})
    drill.submit()
    options = (*LEASE, "--max-failures", 20)
    kills = drill.churn(4, options, every_s=0.5, until=lambda: len(drill.records()) > 130)
    codes = drill.wait(*drill.alive(), patience_s=2 * PATIENCE_S)
    assert set(codes) == {0}
    check(drill, expected(drill), faults=kills, cap=20)
    assert kills

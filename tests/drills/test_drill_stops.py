"""Workers that are asked to stop, and zombies: stopped longer than a lease, and let go on."""

import signal
import time

import pytest

from drills.invariants import check
from drills.rig import SMALL_BLOCK

pytestmark = pytest.mark.drill
LONG_LEASE = ("--lease", 600)  # so that only what is given back comes again within a test
SLACK_S = 6  # of a busy machine


def stopped(drill, worker, *signals):
    """Send signals, each when the one before was answered; return how long the worker then took."""
    for number, each in enumerate(signals):
        if number:  # the system delivers two signals of one kind as one, if none was taken yet
            drill.until(lambda: "stopping: got" in worker.said(), "an answer to the signal")
        worker.ask(each)
        asked = time.monotonic()
    assert drill.wait(worker) == [75]
    return time.monotonic() - asked


@pytest.mark.slow
def test_a_long_grace(make_drill, expected):
    """What is begun is finished, all else can be received at once, and nothing is done again."""
    drill = make_drill((1, 2, 4), {None: "sleep:1"})
    drill.submit()
    worker = drill.work(*LONG_LEASE, "--grace", 60)
    drill.until(drill.computed, "the first task")
    time.sleep(drill.random.uniform(0, 1.5))
    stopped(drill, worker, signal.SIGUSR1)
    assert set(drill.computed()) == set(drill.records())
    counts = drill.counts()
    assert (counts.leased, counts.waiting) == (0, drill.tasks - len(drill.records()))
    check(drill, expected(drill), complete=False)
    drill.act({})
    drill.work(*LONG_LEASE)
    assert drill.wait()[1] == 0
    check(drill, expected(drill))


@pytest.mark.long
def test_a_short_grace(make_drill, expected):
    """When the grace is over the lease is given back, and others receive the task at once."""
    drill = make_drill((1, 2, 2), {None: "sleep:60@1"})
    drill.submit()
    worker = drill.work(*LONG_LEASE, "--grace", 1)
    drill.until(drill.computed, "the first task")
    assert stopped(drill, worker, signal.SIGTERM) < 1 + 2 + SLACK_S
    assert drill.counts().leased == 0
    check(drill, expected(drill), complete=False, faults=1)
    drill.act({})
    drill.work(*LONG_LEASE)
    assert drill.wait()[1] == 0
    check(drill, expected(drill), faults=1)


@pytest.mark.long
def test_two_signals(make_drill, expected):
    """The second signal ends it at once, whatever the grace is, and nothing is torn or kept."""
    drill = make_drill((1, 2, 2), {None: "sleep:60@1"})
    drill.submit()
    worker = drill.work(*LONG_LEASE, "--grace", 300)
    drill.until(drill.computed, "the first task")
    assert stopped(drill, worker, signal.SIGTERM, signal.SIGTERM) < 2 + SLACK_S
    assert drill.counts().leased == 0
    check(drill, expected(drill), complete=False, faults=1)
    drill.act({})
    drill.work(*LONG_LEASE)
    assert drill.wait()[1] == 0
    check(drill, expected(drill), faults=1)


@pytest.mark.parametrize(
    "point", ["mid-write", "written-not-recorded", "recorded-not-acknowledged"]
)
@pytest.mark.long
def test_a_zombie(make_drill, expected, point):
    """Stopped at a point until another worker has done all: what it does after that is in vain."""
    drill = make_drill((1, 2, 4), block=SMALL_BLOCK)
    drill.submit()
    zombie = drill.work("--lease", 1.5, failpoint=f"{point}:stop-all@1")
    drill.until(zombie.has_stopped, "the zombie")
    other = drill.work("--lease", 3)
    assert drill.wait(other) == [0]
    before = drill.records()
    zombie.send(signal.SIGCONT)
    assert drill.wait(zombie) == [0]
    check(drill, expected(drill), faults=1, earlier=before)
    if not point.startswith("recorded"):
        assert {record.worker for record in before.values()} >= {"w1"}
    counts = drill.counts()
    assert (counts.waiting, counts.leased, counts.dead) == (0, 0, 0)

"""Workers that are killed: at each named point, at random, the supervisor or a child alone."""

import signal

import pytest

from drills.invariants import check

pytestmark = pytest.mark.drill
LEASE = ("--lease", 3)


def test_without_faults(make_drill, expected):
    """A run without faults passes the checker, computes nothing twice, and ends with 0."""
    drill = make_drill((2, 2, 2))
    drill.submit()
    drill.work()
    assert drill.wait() == [0]
    check(drill, expected(drill.grid))
    assert drill.computed() == dict.fromkeys(range(8), 1)


POINTS = [
    "leased:kill-all@1",
    "mid-read:kill-all@3",
    "mid-write:kill-all@1",
    "written-not-recorded:kill-all@1",
    "recorded-not-acknowledged:kill-all@1",
]


@pytest.mark.parametrize("point", POINTS)
def test_killed_at(make_drill, expected, point):
    """Another worker takes over within the lease, and a recorded task is not computed again."""
    drill = make_drill((2, 2, 2))
    drill.submit()
    victim = drill.work(*LEASE, failpoint=point)
    drill.wait(victim)
    assert victim.process.returncode == -signal.SIGKILL
    before = drill.records()
    drill.work(*LEASE)
    drill.wait()
    check(drill, expected(drill.grid), faults=1, earlier=before)
    if point.startswith("recorded"):
        assert before
        again = {number for number, times in drill.computed().items() if times > 1}
        assert not again & set(before)

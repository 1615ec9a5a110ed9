"""A drill that cannot fail proves nothing: without each safeguard an invariant breaks.

Every test is the same drill twice, once as it is and once with the safeguard removed. What the
checker then finds is what the safeguard prevents.
"""

import json
import signal
from pathlib import Path

import pytest

from drills.invariants import findings
from drills.rig import SMALL_BLOCK
from drills.test_drill_damage import flipped

pytestmark = pytest.mark.drill


def broken(found):
    """Return the numbers of the invariants that do not hold."""
    return {words[:2] for words in found}


@pytest.fixture(params=["", "removed"])
def unsafe(request):
    """Return what turns the name of a safeguard into what is removed: nothing, or it."""
    return lambda name: name if request.param else ""


@pytest.mark.slow
def test_put_if_absent(make_drill, expected, unsafe):
    """Without it a zombie replaces the record of who has done its task meanwhile."""
    drill = make_drill((1, 2, 3), {None: "sleep:0.3"})
    drill.submit()
    removed = unsafe("put-if-absent")
    zombie = drill.work("--lease", 1.5, failpoint="written-not-recorded:stop-all@1", unsafe=removed)
    drill.until(zombie.has_stopped, "the zombie")
    ended = {call.number for call in drill.calls()[:1]}
    other = drill.work("--lease", 3)
    drill.until(lambda: ended & set(drill.records()), "who does its task")
    other.kill()
    before = drill.records()
    zombie.send(signal.SIGCONT)
    assert drill.wait(zombie) == [0]
    found = findings(drill, expected(drill), faults=2, earlier=before)
    assert broken(found) == ({"I2"} if removed else set()), found
    if removed:
        assert "by w1" in found[0]
        assert "by w0" in found[0]


def test_atomic_write(make_drill, expected, unsafe):
    """Without it a worker that dies leaves half a block where readers look for the whole one."""
    drill = make_drill((1, 2, 4), block=SMALL_BLOCK)
    drill.submit()
    removed = unsafe("atomic-write")
    # The supervisor stores the record of its start up to three times: when it starts, and when it
    # knows the device and the machine. Meanwhile, the process writes the many blocks of a task.
    victim = drill.work("--lease", 60, failpoint="mid-write:kill-all@4", unsafe=removed)
    drill.wait(victim)
    found = findings(drill, expected(drill), complete=False, faults=1)
    assert broken(found) == ({"I1", "I4"} if removed else set()), found


@pytest.mark.slow
def test_heartbeat(make_drill, expected, unsafe):
    """Without it every task that takes longer than its lease is done again."""
    drill = make_drill((1, 1, 1), {None: "sleep:3"})
    drill.submit()
    removed = unsafe("heartbeat")
    worker = drill.work("--lease", 1.5, unsafe=removed, ahead=0)
    if removed:
        drill.until(lambda: max(drill.computed().values(), default=0) > 1, "what is done again")
        worker.kill()
    else:
        assert drill.wait() == [0]
    found = findings(drill, expected(drill), complete=not removed)
    assert broken(found) == ({"I6"} if removed else set()), found


@pytest.mark.long
def test_checksum(make_drill, expected, unsafe):
    """Without it nobody can tell that a block is damaged whose length is the same."""
    drill = make_drill((1, 2, 2))
    drill.submit()
    removed = unsafe("checksum")
    drill.work(unsafe=removed)
    assert drill.wait() == [0]
    found = findings(drill, expected(drill))
    assert broken(found) == ({"I3"} if removed else set()), found
    block = Path(drill.block(2))
    block.write_bytes(flipped(block.read_bytes()))
    listed = drill.call("verify", drill.url)
    assert listed.returncode == (0 if removed else 1)
    assert (str(block) in listed.stdout) != bool(removed)


@pytest.mark.slow
def test_ledger_before_acknowledgement(make_drill, expected, unsafe):
    """Without this order a task is lost when its worker dies: neither queued nor recorded."""
    drill = make_drill((1, 2, 2), {None: "sleep:0.3"})
    drill.submit()
    removed = unsafe("ledger-before-acknowledgement")
    point = "written-not-recorded:kill-all@1"
    drill.wait(drill.work("--lease", 1, failpoint=point, unsafe=removed))
    found = findings(drill, expected(drill), complete=False, faults=1)
    assert broken(found) == ({"I3"} if removed else set()), found
    other = drill.work("--lease", 1)
    assert drill.wait(other) == [75 if removed else 0]
    found = findings(drill, expected(drill), faults=1)
    # The worker says that work is left, which is right: it is the run that cannot end.
    assert broken(found) == ({"I2", "I5"} if removed else set()), found


@pytest.mark.long
def test_pinned_spec(make_drill, expected, unsafe):
    """Without it who can write to the run's home changes what workers compute."""
    drill = make_drill((1, 2, 2))
    drill.submit()
    path = Path(drill.url) / "spec.json"
    submitted = path.read_text()
    spec = json.loads(submitted)
    words = spec["stages"][0]["words"]  # which a stage's hash does not cover, as its options do
    words[words.index("100")] = "200"
    path.write_text(json.dumps(spec, sort_keys=True, separators=(",", ":")) + "\n")
    removed = unsafe("pinned-spec")
    worker = drill.work(unsafe=removed)
    assert drill.wait() == [0 if removed else 2]
    path.write_text(submitted)  # or nobody could look
    if removed:
        found = findings(drill, expected(drill))
        assert "I1" in broken(found), found
    else:
        assert "is not the spec that was submitted" in " ".join(worker.said().split())
        assert drill.records() == {}
        assert drill.calls() == []


def test_the_names_are_those_of_the_package():
    """No safeguard is without its test."""
    from typing import get_args

    from chunkflow_py.core.failpoints import Safeguard

    tested = {name.removeprefix("test_").replace("_", "-") for name in globals()}
    assert set(get_args(Safeguard)) <= tested

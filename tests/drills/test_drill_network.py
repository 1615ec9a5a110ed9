"""Networks that fail under a run: nothing answers, too slowly, by half, or not at all."""

import os
import time
from collections import Counter
from dataclasses import replace

import pytest

from chunkflow_py.errors import VolumeUnreachableError
from chunkflow_py.store import open_store
from chunkflow_py.store.network_retry import RetryPolicy
from chunkflow_py.store.object_store import CONNECTIONS
from drills.clouds import LEDGER, in_cloud
from drills.invariants import check
from drills.rig import PATIENCE_S

pytestmark = [
    pytest.mark.drill,
    pytest.mark.aws,
    pytest.mark.parametrize("s3", ["ministack"], indirect=True),
]
# Of storms that let nothing through.
STORM_S = float(os.environ.get("CHUNKFLOW_DRILL_STORM_S", "60"))
SHORT_STORM_S = 8.0
TASKS = (2, 4, 4)
PROCESSES = 2  # of a worker that talk to stores: its supervisor and its child
AMPLIFICATION = 3  # of all requests of a run, by a storm


# --- what does not answer ----------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stall", "drip", "reset", "reset_after", "truncate"])
def test_each_kind_on_queue_and_store(make_drill, s3, expected, kind):
    """A run goes on after calls of each sort have met the fault, and connections are bounded."""
    drill = in_cloud(make_drill, s3, TASKS, {None: "sleep:0.1"})
    drill.submit()
    rules = [{"target": action} for action in ("ReceiveM", "DeleteM", "GetQueueA")]
    rules += [{"method": "GET", "path": LEDGER}, {"method": "PUT", "path": LEDGER}]
    rules += [{"method": "PUT", "path": "out.zarr"}]
    with s3.faults(*({"type": kind, "s": 60, "count": 1} | rule for rule in rules)) as faults:
        drill.work("--lease", 20)
        assert drill.wait(patience_s=2 * PATIENCE_S) == [0]
        log = faults.log()
    assert sum(each["fault"] == kind for each in log) == len(rules)
    assert max(each["under_way"] for each in log) <= PROCESSES * CONNECTIONS
    check(drill, expected(drill), faults=len(rules))


@pytest.mark.slow
def test_half_open(make_drill, s3, expected):
    """All that is behind the network falls silent for longer than any call waits, then is back."""
    drill = in_cloud(make_drill, s3, TASKS, {None: "sleep:0.3"})
    drill.submit()
    workers = [drill.work("--lease", 20) for _ in range(2)]
    drill.until(lambda: len(drill.calls()) >= 4, "the first tasks")
    with s3.faults.silent():
        time.sleep(35)
        assert all(worker.is_alive for worker in workers)
    assert drill.wait() == [0, 0]
    check(drill, expected(drill), faults=2)


HASTY = replace(
    RetryPolicy(), stall_s=0.5, longest_s=2.0, budget_s=3.0, unreachable_s=3.0, longest_wait_s=0.2
)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["stall", "drip"])
def test_calls_on_the_store_end_by_their_deadline(s3, kind):
    """However the answer comes, a call of the ledger's store ends, and says that it was late."""
    store = open_store(s3.url, retry_policy=HASTY)
    store.put("a", b"0123456789" * 100)
    # A byte in time before the connection counts as dead: only the deadline of the try ends it.
    with s3.faults({"type": kind, "s": 0.1}) as faults:
        for call in (lambda: store.get("a"), lambda: store.update("a", lambda old: b"2")):
            start = time.monotonic()
            with pytest.raises(VolumeUnreachableError, match="in time"):
                call()
            assert time.monotonic() - start < PATIENCE_S / 4
        assert max(each["under_way"] for each in faults.log()) <= PROCESSES * CONNECTIONS


# --- storms ------------------------------------------------------------------------------------


def storm(share):
    """Return rules by which a share of all requests is refused, in each of three ways."""
    # The second rule sees only what the first let pass.
    return [
        {"type": "status", "code": code, "p": share / (3 - share * n), "body": "<Error/>"}
        for n, code in enumerate((503, 429, 500))
    ]


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.1, pytest.param(0.5, marks=pytest.mark.slow)])
def test_a_storm_that_lets_some_through(make_drill, s3, expected, share):
    """The run ends well, and makes little more than 1 / (1 - share) times the requests."""
    drill = in_cloud(make_drill, s3, TASKS, {None: "sleep:0.1"})
    drill.submit()
    with s3.faults(*storm(share)) as faults:
        drill.work("--lease", 20)
        assert drill.wait(patience_s=2 * PATIENCE_S) == [0]
        log = faults.log()
    check(drill, expected(drill), faults=2)
    needed = sum(each["fault"] == "none" for each in log)
    refused = len(log) - needed
    assert refused > 0.5 * share * len(log)
    # A call is tried again on its own, and nothing else is asked for its sake.
    assert len(log) < 1.5 / (1 - share) * needed + 10


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [SHORT_STORM_S, STORM_S])
def test_a_storm_that_lets_nothing_through(make_drill, s3, expected, seconds):
    """All workers wait it out, ask less and less, and go on; no task is blamed."""
    drill = in_cloud(make_drill, s3, TASKS, {None: "sleep:0.2"})
    drill.submit()
    s3.faults.set()
    workers = [drill.work("--lease", 10) for _ in range(2)]
    drill.until(lambda: len(drill.calls()) >= 6, "the first tasks")
    needed = len(s3.faults.log())
    with s3.faults(*storm(1)) as faults:
        start = time.monotonic()
        time.sleep(seconds)
        log = faults.log()
        assert all(worker.is_alive for worker in workers)
    assert drill.wait(patience_s=2 * PATIENCE_S) == [0, 0]
    needed += len(s3.faults.log())
    check(drill, expected(drill), faults=2)
    assert not [f for f in drill.home.ledger("drill").failures() if f.kind == "permanent"]
    thirds = Counter(min(2, int(3 * (each["at"] - start) / seconds)) for each in log)
    print(f"{needed} requests, and in the storm {thirds}")  # noqa: T201 what was measured
    assert thirds[2] < thirds[0] / 2
    assert needed + len(log) < AMPLIFICATION * needed
    if seconds >= 60:  # each call now waits five seconds in the mean, and there are few
        assert thirds[2] < 2 * len(workers) * seconds / 3

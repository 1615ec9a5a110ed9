"""Everything at once: kills, zombies, poison, copies, and a network that fails one time in ten."""

import math
import os
import signal
import time

import pytest

from drills.clouds import in_cloud
from drills.invariants import check
from drills.rig import LARGEST

pytestmark = [pytest.mark.drill, pytest.mark.slow, pytest.mark.scale, pytest.mark.aws]
GRID = tuple(map(int, os.environ.get("CHUNKFLOW_DRILL_GRID", "20,10,10").split(",")))
WORKERS = 8
LEASE_S = 10
MOST_COPIES = 5
SHARE = 0.1 / 3
FAULTS = [
    {"type": "status", "code": 503, "p": SHARE},
    {"type": "reset", "p": SHARE / (1 - SHARE)},
    {"type": "reset_after", "p": SHARE / (1 - 2 * SHARE)},
]
LONGEST_S = 3000


@pytest.mark.timeout(LONGEST_S + 300)
@pytest.mark.parametrize("s3", ["ministack"], indirect=True)
def test_everything_at_once(make_drill, s3, fauxqs, expected, monkeypatch):
    """Bytes are those of the plain line, three tasks are given up with reasons, and the code is 1.

    Eight workers, of which one is killed every second; a tenth of all requests to queue and store
    is refused, reset, or reset after the act; each message comes up to five times; two workers are
    stopped for longer than their leases.
    """
    monkeypatch.setenv("AWS_ENDPOINT_URL_SQS", fauxqs.address)
    total = math.prod(GRID)
    assert total <= math.prod(LARGEST)
    poison = {total // 9: "raise", total // 3: "segfault", total // 2: "hang"}
    drill = in_cloud(
        make_drill, s3, GRID, poison, variables={"AWS_ENDPOINT_URL_SQS": fauxqs.address}
    )
    drill.submit()
    bodies = [drill.body(number) for number in range(total)]
    copies = [body for body in bodies for _ in range(drill.random.randrange(MOST_COPIES))]
    drill.random.shuffle(copies)
    drill.send(copies)
    began = time.monotonic()
    seed = drill.seed
    with s3.faults(*FAULTS, seed=seed), fauxqs(*FAULTS, seed=seed):
        options = ("--lease", LEASE_S, "--task-limit", 5)
        churn = {"every_s": 1, "patience_s": LONGEST_S}

        def computed(share):
            return lambda: len(drill.calls()) > share * total

        kills = drill.churn(WORKERS, options, until=computed(0.2), **churn)
        zombies = drill.random.sample(drill.alive(), 2)
        for zombie in zombies:
            zombie.send(signal.SIGSTOP)
        over = time.monotonic() + 1.5 * LEASE_S
        churn["spared"] = zombies
        kills += drill.churn(WORKERS + 2, options, until=lambda: time.monotonic() > over, **churn)
        for zombie in zombies:
            zombie.send(signal.SIGCONT)
        churn["spared"] = ()
        kills += drill.churn(WORKERS, options, until=lambda: False, **churn)
        codes = drill.wait(*drill.alive(), patience_s=LONGEST_S)
        seconds = time.monotonic() - began
        requests = len(s3.faults.log()), len(fauxqs.log())
    assert kills
    status = drill.status()
    print(  # noqa: T201 what was measured
        f"{total} tasks in {seconds:.0f} s; {kills} kills, {len(drill.workers)} workers, "
        f"{len(copies)} copies, {len(drill.calls())} computed; requests to store and queue: "
        f"{requests}; {status['stages']}"
    )
    most = MOST_COPIES - 1
    faults = kills + 2 + len(copies) // 4  # what is done by several at the same time
    check(drill, expected(drill), dead=poison, faults=faults, copies=most)
    assert set(codes) <= {1}
    assert any(worker.process.returncode == 1 for worker in drill.workers)
    (stage,) = status["stages"]
    assert status["state"] == "complete but for failures"
    assert (stage["done"], stage["failed"]) == (total - len(poison), len(poison))
    assert len(status["failures"]) == len(poison)
    # The last of its three failures may have been that its worker's child was killed.
    reasons = {number: set() for number in poison}
    for failure in drill.home.ledger("drill").failures():
        reasons.get(failure.number, set()).add(failure.reason)
    for number, words in zip(poison, ("this task is poison", "SIGSEGV", "--task-limit allows 5 s")):
        assert any(words in reason for reason in reasons[number]), reasons[number]

"""Kills, copies, zombies and poison at once, on 2,000 tasks."""

import signal
import time

import pytest

from drills.invariants import check
from drills.rig import LARGEST, STAGE

pytestmark = [pytest.mark.drill, pytest.mark.slow, pytest.mark.timeout(1800)]

SLEEP_S, LEASE_S = 0.2, 8
COPIES = 4  # of a message, beside itself, at most


class Zombies:
    """Stops workers for longer than their lease, and lets them go on.

    Args:
        drill: whose workers.
        at: seconds after the beginning at which one is stopped.
        stopped_s: for how long.
    """

    def __init__(self, drill, at, stopped_s):
        self.drill, self.due, self.stopped_s = drill, list(at), stopped_s
        self.began = time.monotonic()
        self.stopped = {}
        self.spared = []

    def tick(self):
        """Do what is due; return whether none is stopped or to be."""
        now = time.monotonic()
        if self.due and now - self.began > self.due[0]:
            fit = [w for w in self.drill.alive() if w.children() and w not in self.spared]
            if fit:
                del self.due[0]
                worker = self.drill.random.choice(fit)
                self.spared.append(worker)
                self.stopped[worker] = now + self.stopped_s
                worker.send(signal.SIGSTOP)
        for worker, until in list(self.stopped.items()):
            if now > until:
                del self.stopped[worker]
                worker.send(signal.SIGCONT)
        return not self.due and not self.stopped


def test_headline(make_drill, expected):
    """Byte-identical, 1,997 done, 3 dead with reasons, exit code 1 and the list.

    Eight workers, one killed every second; up to five copies of each message; two workers stopped
    for longer than their leases; tasks that raise, segfault and hang.
    """
    drill = make_drill(LARGEST)
    poison = {411: "raise", 1203: "segfault", 1777: "hang"}
    drill.act({None: f"sleep:{SLEEP_S}"} | poison)
    drill.submit()
    bodies = list(drill.bodies())
    copies = [body for body in bodies for _ in range(drill.random.randint(0, COPIES))]
    drill.random.shuffle(copies)
    drill.send(copies)
    began = time.monotonic()
    zombies = Zombies(drill, at=(6, 14), stopped_s=1.5 * LEASE_S)
    options = ("--lease", LEASE_S, "--task-limit", 4)
    kills = drill.churn(
        8,
        options,
        every_s=1,
        until=lambda: zombies.tick() and False,
        spared=zombies.spared,
        patience_s=170,
    )
    while not zombies.tick():
        time.sleep(0.1)
    codes = drill.wait(*drill.alive(), patience_s=60)
    took = time.monotonic() - began
    assert set(codes) <= {1}
    assert kills
    assert 1 in {worker.process.returncode for worker in drill.workers}
    # Each time that a poison task kills its process, others may have been in it.
    check(drill, expected(drill), dead=poison, faults=kills + 2 + 2 * 3 * 3, copies=COPIES)
    status = drill.status()
    (stage,) = status["stages"]
    assert (stage["done"], stage["failed"], stage["left"]) == (drill.tasks - 3, 3, 0)
    reasons = {record.number: record.reason for record in drill.records().values() if record.reason}
    assert reasons.keys() == poison.keys()
    failures = {}
    for failure in drill.home.ledger(STAGE).failures():
        failures.setdefault(failure.number, []).append(failure.reason)
    for number, words in {
        411: "this task is poison",
        1203: "SIGSEGV",
        1777: "cut off after",
    }.items():
        assert any(words in reason for reason in failures[number])
    last = next(w for w in drill.workers if w.process.returncode == 1)
    assert "3 as failed" in last.said()
    assert len(status["failures"]) == 3
    again = sum(times - 1 for number, times in drill.computed().items() if number not in poison)
    print(  # noqa: T201 what happened
        f"{drill.tasks} tasks and {len(copies)} copies in {took:.0f} s: {kills} kills, "
        f"{len(drill.workers)} workers, {again} tasks computed again; reasons: {reasons}"
    )

"""Six workers of a pool, three runs with two priorities, and workers that are killed."""

import subprocess
import time

import pytest

from drills.invariants import check
from drills.rig import Drill
from drills.worker import PROGRAM, Worker

pytestmark = [pytest.mark.drill, pytest.mark.slow, pytest.mark.timeout(900)]

WORKERS = 6
HELD = 3  # tasks that a worker may hold: one that it computes, and those that it reads ahead
TASK_S = 1.0
LEASE = ("--lease", 5)
PATIENCE_S = 600.0


def make_keys(folder):
    """Write a pair of keys, because the runs of drills have a plugin; return their paths."""
    private, public = folder / "private.pem", folder / "public.pem"
    for line in (
        ("openssl", "genpkey", "-algorithm", "ed25519", "-out", private),
        ("openssl", "pkey", "-in", private, "-pubout", "-out", public),
    ):
        subprocess.run(line, check=True, capture_output=True)
    return private, public


def test_the_higher_priority_comes_first_and_nothing_is_lost(tmp_path, source, expected):
    """Workers go on with the other runs when the urgent one has no tasks; kills change nothing."""
    private, public = make_keys(tmp_path)
    drills = {}
    for name, priority, grid in (
        ("low", 0, (3, 3, 3)),
        ("mid", 0, (2, 2, 3)),
        ("top", 9, (4, 3, 3)),
    ):
        drill = Drill(
            tmp_path / name, source, grid, {None: f"sleep:{TASK_S}"},
            run=str(tmp_path / "runs" / name),
        )  # fmt: skip
        drill.submit("--priority", priority, "--sign-key", private)
        drills[name] = drill
    top, others = drills["top"], (drills["low"], drills["mid"])
    pool = f"{tmp_path}/runs/"
    workers = []

    def start():
        options = ("--trust-key", public, *LEASE)
        worker = Worker(top, f"worker-{len(workers)}", options, place=pool)
        workers.append(worker)

    try:
        for _ in range(WORKERS):
            start()
        kills = 0
        until = time.monotonic() + PATIENCE_S
        next_kill = None
        while any(worker.is_alive for worker in workers):
            assert time.monotonic() < until
            others_began = any(drill.calls() for drill in others)
            has_free_tasks = len({call.number for call in top.calls()}) < top.tasks - HELD * WORKERS
            assert not (others_began and has_free_tasks)
            if not has_free_tasks and next_kill is None:
                next_kill = time.monotonic()
            if next_kill is not None and time.monotonic() > next_kill and kills < 4:
                alive = [worker for worker in workers if worker.is_alive]
                if alive:
                    top.random.choice(alive).kill()
                    kills += 1
                    start()
                next_kill = time.monotonic() + 5
            time.sleep(0.1)
    finally:
        for worker in workers:
            if worker.is_alive:
                worker.kill()
    assert kills
    ended = [worker for worker in workers if not worker.is_killed]
    assert {worker.process.returncode for worker in ended} == {0}
    for drill in drills.values():
        drill.workers = []
        check(drill, expected(drill), faults=kills)
    status = subprocess.run(
        [*PROGRAM, "status", pool], capture_output=True, text=True, check=True, cwd=tmp_path
    ).stdout
    lines = status.splitlines()
    assert [line.split()[0] for line in lines[1:4]] == ["top", "low", "mid"]
    assert all("complete" in line for line in lines[1:4])

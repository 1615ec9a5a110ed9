"""Fail points, which the drills rely on to stop a worker at a chosen moment."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

from chunkflow_py.core import failpoints
from chunkflow_py.core.failpoints import FailPointError, reached

THREADS = 8
TURNS = 5000  # without a lock, 2 of 3000 turns are wrong


def test_threads_that_arrive_together_are_counted_one_by_one(monkeypatch):
    """Exactly one acts, although others may arrive before it has compared its number."""
    monkeypatch.setenv("CHUNKFLOW_FAILPOINT", "mid-write:raise@2")
    monkeypatch.setattr(failpoints, "_points", failpoints._points.__wrapped__)
    barrier = threading.Barrier(THREADS)

    def arrive(_):
        barrier.wait(timeout=60)
        try:
            reached("mid-write")
        except FailPointError:
            return 1
        return 0

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(THREADS) as threads:
            for turn in range(TURNS):
                failpoints._passed.clear()
                assert sum(threads.map(arrive, range(THREADS))) == 1, turn
    finally:
        sys.setswitchinterval(interval)
        failpoints._passed.clear()

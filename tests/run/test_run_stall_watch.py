"""A supervisor that stalls ends its worker."""

import subprocess
import sys
import threading
import time
from functools import partial

from rigs.workers import Notes, Stage, wait_for

from chunkflow_py.run.worker import supervisor
from chunkflow_py.run.worker.stall_watch import CODE, StallWatch

HANGS = """
import sys, threading
from chunkflow_py.run.worker.stall_watch import StallWatch
StallWatch(limit_s=5, second_s=0.05)

def hang_here():
    threading.Event().wait()

hang_here()
"""


def test_a_process_that_hangs_ends_and_says_where():
    """Code 70, and the stack of the thread that hangs."""
    ended = subprocess.run(
        [sys.executable, "-c", HANGS], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == CODE
    assert "hang_here" in ended.stderr


def test_ticks_keep_a_process_alive():
    """Only seconds in a row without a tick count."""
    stalls = []
    watch = StallWatch(limit_s=20, on_stall=lambda: stalls.append(1), second_s=0.02)
    for _ in range(40):
        watch.tick()
        time.sleep(0.02)
    assert not stalls
    wait_for(lambda: stalls)
    watch.close()
    watch = StallWatch(limit_s=2, on_stall=lambda: stalls.append(2), second_s=0.5)
    watch.close()
    time.sleep(1.5)
    assert stalls == [1]


def test_a_supervisor_that_hangs_is_noticed(tmp_path, monkeypatch):
    """A callback that never returns is the supervisor's thread that hangs."""
    noticed, go_on = threading.Event(), threading.Event()

    class Hanging(Notes):
        def task_ended(self, record):
            super().task_ended(record)
            go_on.wait(60)

    quick = partial(StallWatch, limit_s=20, on_stall=noticed.set, second_s=0.05)
    monkeypatch.setattr(supervisor, "StallWatch", quick)
    stage = Stage(tmp_path, 2, notes=Hanging())
    stage.send()
    works = stage.supervisor()
    thread = threading.Thread(target=works.run)
    thread.start()
    try:
        assert noticed.wait(60)
    finally:
        go_on.set()
        thread.join(60)

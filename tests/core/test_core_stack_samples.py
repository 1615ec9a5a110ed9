"""Samples of stacks do not stop the process, although Python 3.11 has a deadlock there."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest

from chunkflow_py.core.stack_samples import protect_stack_samples

is_affected = pytest.mark.skipif(sys.version_info >= (3, 12), reason="only Python 3.11 needs it")

# A sample starts a collection, whose callback lets a thread end while the sample holds the lock.
SAMPLE = """
import gc, sys, threading, time, weakref
from chunkflow_py.core.stack_samples import protect_stack_samples

if sys.argv[1] == "protected":
    protect_stack_samples()
gc.disable()
may_end = threading.Event()
thread = threading.Thread(target=may_end.wait)
thread.start()

class Node:
    pass

def collected(_):
    may_end.set()
    time.sleep(0.5)  # the thread takes the GIL, and ends

node = Node()
node.itself = node
reference = weakref.ref(node, collected)
del node
gc.set_threshold(1)
gc.enable()
sys._current_frames()
gc.collect()
thread.join()
print("ended")
"""


def sample(how: str, seconds: float) -> str:
    """Run the code above in a new process; return what it prints."""
    line = [sys.executable, "-c", SAMPLE, how]
    done = subprocess.run(line, capture_output=True, check=True, text=True, timeout=seconds)
    return done.stdout


def test_a_thread_may_end_while_stacks_are_sampled() -> None:
    """The sample ends, and so does the thread."""
    assert sample("protected", 60) == "ended\n"


@pytest.mark.long
@is_affected
def test_without_protection_the_process_stops() -> None:
    """Negative control: this is what the protection is for."""
    with pytest.raises(subprocess.TimeoutExpired):
        sample("not", 10)


@is_affected
def test_the_collector_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is off during a sample only, also after an error, and protecting twice changes nothing."""
    seen = []

    def frames() -> dict[int, object]:
        seen.append(gc.isenabled())
        if len(seen) == 2:
            raise RuntimeError
        return {}

    monkeypatch.setattr(sys, "_current_frames", frames)
    protect_stack_samples()
    protected = sys._current_frames
    protect_stack_samples()
    assert sys._current_frames is protected
    assert sys._current_frames() == {}
    assert gc.isenabled()
    with pytest.raises(RuntimeError):
        sys._current_frames()
    assert gc.isenabled()
    gc.disable()
    try:
        sys._current_frames()
        assert not gc.isenabled()
    finally:
        gc.enable()
    assert seen == [False] * 3

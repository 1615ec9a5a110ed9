"""Time of the network, without waiting for it."""

from __future__ import annotations

import threading
import time

import pytest
import torch

from chunkflow_py.inference.device_streams import Stopwatch


def test_a_stopwatch_is_read_while_it_runs() -> None:
    """From another thread; what has ended counts in any case, and what has failed is over."""
    watch = Stopwatch(torch.device("cpu"))
    assert watch.so_far() == 0
    matrix = torch.ones(512, 512)
    with watch.running():
        for _ in range(20):
            matrix = (matrix @ matrix).clamp(0, 1)
    total = watch.seconds()
    assert watch.so_far() == total > 0
    begun, end = threading.Event(), threading.Event()

    def fail() -> None:
        begun.set()
        end.wait(10)
        raise ValueError

    def work() -> None:
        with pytest.raises(ValueError, match="^$"), watch.running():
            fail()

    thread = threading.Thread(target=work)
    thread.start()
    begun.wait(10)
    time.sleep(0.02)
    assert watch.so_far() > total + 0.015
    end.set()
    thread.join()
    after = watch.so_far()
    time.sleep(0.01)
    assert watch.so_far() == after

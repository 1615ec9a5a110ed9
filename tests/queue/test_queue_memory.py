"""The queue inside of a process."""

import itertools

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from chunkflow_py.queue.memory_queue import MemoryQueue
from chunkflow_py.testing.queue_contract import QueueContract
from chunkflow_py.testing.queue_model import QueueModel

NUMBERS = itertools.count()


class TestMemoryQueue(QueueContract):
    """The contract of every queue."""

    many_messages = None  # its memory is where they are
    crosses_processes = False

    @pytest.fixture
    def url(self):
        """Return a name of its own."""
        return f"memory://test-{next(NUMBERS)}"


def test_it_does_what_the_model_does():
    """No order of calls, and no time between them, makes a difference to a simple model."""
    first = next(NUMBERS)

    def open_queue(clock):
        return MemoryQueue(f"model-{next(NUMBERS)}", create=True, clock=clock)

    run_state_machine_as_test(
        lambda: QueueModel(open_queue), settings=settings(max_examples=60, stateful_step_count=30)
    )
    assert next(NUMBERS) - first > 60, "each sequence of calls has had a queue of its own"


def test_simulated_time():
    """With a given clock leases end when it says so, and nobody waits."""
    now = [100.0]
    queue = MemoryQueue(f"simulated-{next(NUMBERS)}", create=True, clock=lambda: now[0])
    assert queue.receive(1, 60, 1e9) == []
    queue.send(["a"])
    assert [message.receives for message in queue.receive(1, 60)] == [1]
    now[0] += 59.9
    assert queue.receive(1, 60, 1e9) == []
    now[0] += 0.1
    assert [message.receives for message in queue.receive(1, 60)] == [2]

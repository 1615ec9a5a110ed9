"""Leases that are renewed, and what becomes of those that are not."""

import threading
import time
from threading import Event

import pytest

from chunkflow_py.core import failpoints
from chunkflow_py.core.geometry import Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import LeaseLostError
from chunkflow_py.pipeline.operator import Operator, Source
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.queue.leases import LeaseKeeper, boottime
from chunkflow_py.queue.queue_protocol import open_queue

PATIENCE_S = 30.0  # on a busy machine


@pytest.fixture
def queue(request):
    """Return a queue of this process with two messages."""
    queue = open_queue(f"memory://{request.node.nodeid}", create=True)
    queue.send(["0-1_0-1_0-1", "0-1_0-1_1-2"])
    return queue


class Keeper(LeaseKeeper):
    """Counts what is lost."""

    def __init__(self, queue, lease_s, **more):
        self.lost, self.told = [], Event()
        super().__init__(queue, lease_s, on_lost=self._hear, **more)

    def _hear(self, held):
        self.lost.append(held)
        self.told.set()


def test_leases_are_renewed_until_dropped(queue):
    """Who holds a message has it for longer than a lease; when released, others get it at once."""
    with Keeper(queue, 2.0) as keeper:
        held = keeper.receive(2)
        assert len(held) == 2
        first_end = held[0].ends
        assert boottime() < first_end <= boottime() + 2
        assert queue.receive(2, 60, 3.5) == []
        assert all(each.ends > first_end and not each.lost for each in held)
        held[0].release()
        (again,) = queue.receive(2, 60)
        assert (again.body, again.receives) == (held[0].message.body, 2)
        held[1].acknowledge()
        assert [each.dropped for each in held] == [True, True]
        assert keeper.held == keeper.lost == []
    assert queue.acknowledge([again]) == []
    assert queue.counts().leased == queue.counts().waiting == 0


def test_a_message_that_is_gone_is_lost(queue):
    """When the queue says that a lease is not ours, its holder is told, once."""
    with Keeper(queue, 1.0) as keeper:
        taken, kept = keeper.receive(2)
        queue.acknowledge([taken.message])
        assert keeper.told.wait(PATIENCE_S)
        assert keeper.lost == [taken]
        assert taken.lost
        assert not kept.lost
        taken.release()  # of no effect
        assert queue.counts().waiting == 0


def test_what_the_queue_does_not_let_anybody_keep_ends(queue):
    """No renewal goes beyond the longest lease: then the message is lost, and said to be."""
    queue.longest_lease_s = 2.5
    with Keeper(queue, 1.0) as keeper:
        start = boottime()
        (held,) = keeper.receive(1)
        assert keeper.told.wait(PATIENCE_S)
        assert held.lost
        assert boottime() - start > 1.5
        assert held.ends <= start + 2.5 + 1
        assert queue.receive(2, 60, 2.0)


def test_a_lease_that_has_ended_is_lost_for_good(queue):
    """After a sleep or a stop longer than the lease nobody renews: somebody else may have it."""
    skipped = [0.0]
    with Keeper(queue, 60.0, clock=lambda: boottime() + skipped[0]) as keeper:
        (held,) = keeper.receive(1)
        assert not held.lost
        skipped[0] = 61.0
        assert held.lost  # at once, before the thread looks
        skipped[0] = 0.0
        assert held.lost
        held.acknowledge()
        assert queue.counts().leased == 1  # not acknowledged: the other one will


def test_without_renewals_others_get_the_message(queue, monkeypatch):
    """The heartbeat is what keeps a message: without it, it is delivered a second time."""
    monkeypatch.setenv("CHUNKFLOW_UNSAFE", "heartbeat")
    failpoints._removed.cache_clear()
    try:
        with Keeper(queue, 0.5) as keeper:
            (held,) = keeper.receive(1)
            bodies = {}
            end = time.monotonic() + PATIENCE_S
            while held.message.body not in bodies and time.monotonic() < end:
                bodies |= {each.body: each for each in queue.receive(2, 60, 1)}
            assert bodies[held.message.body].receives == 2
            assert held.lost
    finally:
        monkeypatch.undo()
        failpoints._removed.cache_clear()


def test_everything_is_given_back_at_once(queue):
    """All that is held can be received by others at once."""
    with Keeper(queue, 60.0) as keeper:
        keeper.receive(2)
        keeper.release_all()
        assert keeper.held == []
        assert len(queue.receive(2, 60)) == 2


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_task_whose_lease_is_lost_goes_no_further(queue, ahead):
    """The operator after the loss is not called; the task ends with an error that says why."""
    skipped = [0.0]
    calls = []

    def sleep(task):
        calls.append("sleep")
        skipped[0] = 61.0
        return task

    def write(task):
        calls.append("write")
        return task

    with Keeper(queue, 60.0, clock=lambda: boottime() + skipped[0]) as keeper:
        (held,) = keeper.receive(1)
        tasks = [Task(Region.parse(held.message.body), lease=held)]
        operators = [
            Operator("sleep", "compute", sleep, sleep),
            Operator("write", "write", write, write),
        ]
        pipeline = Pipeline(operators, Source("tasks", tasks), ahead=ahead)
        pipeline.check()
        (task,) = pipeline.run()
    assert calls == ["sleep"]
    assert isinstance(task.outcome.cause, LeaseLostError)
    assert "write failed on task 0-1_0-1_" in str(task.outcome)


@pytest.mark.parametrize("scheme", ["sqlite", "file"])
def test_a_wait_ends_early(tmp_path, scheme):
    """A worker that leaves need not wait for its request, if it polls the queue itself."""
    address = tmp_path / ("tasks.sqlite" if scheme == "sqlite" else "tasks")
    stop = Event()
    with LeaseKeeper(open_queue(f"{scheme}://{address}", create=True), 300) as keeper:
        threading.Timer(0.1, stop.set).start()
        start = time.monotonic()
        assert keeper.receive(1, 60, stop) == []
        assert time.monotonic() - start < 30
        keeper.queue.send(["0-1_0-1_0-1"])
        assert len(keeper.receive(1, 60, stop)) == 1  # what is free is received nevertheless

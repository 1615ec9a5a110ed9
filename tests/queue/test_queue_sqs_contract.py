"""Queues of Amazon SQS keep the contract of queues, on three emulators.

Each emulator leaves out what it does otherwise than SQS is documented to do.
"""

from concurrent.futures import ThreadPoolExecutor
from contextlib import closing

import pytest

from chunkflow_py.queue.queue_protocol import Counts, open_queue
from chunkflow_py.testing.queue_contract import LONG_S, QueueContract, received


class SqsContract(QueueContract):
    """What all emulators have in common."""

    short_lease_s = 1.0  # SQS counts in seconds
    many_messages = None  # the emulators keep every message in memory; see the tests marked scale
    any_text = False  # SQS refuses what XML cannot hold

    @pytest.fixture
    def url(self, sqs_server):
        return f"sqs://{sqs_server.name}"

    def test_handles_end_with_the_lease(self, queue):
        """What was acknowledged or released is not ours any more, nor does it come back."""
        if self.delivers_stale_handles:
            pytest.skip("this emulator takes any handle")
        queue.send(["a", "b"])
        gone, free = received(queue, 2)
        queue.acknowledge([gone])
        queue.release([free])
        (again,) = received(queue, 1)
        self.assert_lost(queue.extend([gone, free], LONG_S), [gone, free])
        assert queue.extend([again], LONG_S) == []
        assert queue.acknowledge([again]) == []
        self.assert_counts(queue, 0, 0)

    def test_counts(self, queue):
        """Messages are counted in the state that they are in; SQS counts delayed ones as leased."""
        queue.send(map(str, range(5)))
        self.assert_counts(queue, 5, 0)
        first, second, third = received(queue, 3)
        self.assert_counts(queue, 2, 3)
        queue.acknowledge([first])
        queue.release([second])
        self.assert_counts(queue, 3, 1)
        queue.release([third], LONG_S)
        self.assert_counts(queue, 3, 1)


@pytest.mark.parametrize("sqs_server", ["ministack"], indirect=True)
@pytest.mark.aws
class TestMinistack(SqsContract):
    """It refuses every old handle, where SQS may accept one."""


@pytest.mark.parametrize("sqs_server", ["moto"], indirect=True)
@pytest.mark.aws
@pytest.mark.long
class TestMoto(SqsContract):
    """It accepts an old handle for anything."""

    delivers_stale_handles = True
    # It has no lock: of two deletions at once it forgets one, and two receipts get one message.
    test_many_workers = test_one_queue_in_many_threads = None


@pytest.mark.parametrize("sqs_server", ["fauxqs"], indirect=True)
@pytest.mark.scale
@pytest.mark.long
class TestFauxqs(SqsContract):
    """It takes an old handle for a deletion and deletes nothing, as SQS may."""

    tells_lost = False
    many_messages = 2000
    test_text = None  # it refuses characters beyond 16 bits
    test_ended_leases_count_as_waiting = None  # it counts them as leased until somebody asks
    # What the other two show already, and slowly.
    test_many_workers = test_a_killed_worker = test_extended_leases_last = None
    test_release_with_a_delay = test_one_queue_in_many_threads = None

    def test_stale_handles_are_lost(self, queue, stale):
        """An extension by an old handle is told to be lost, even where a deletion is not."""
        old, new = stale
        assert queue.extend([old, new], LONG_S) == [old]


@pytest.mark.parametrize("sqs_server", ["fauxqs"], indirect=True)
@pytest.mark.scale
@pytest.mark.drill
@pytest.mark.slow
def test_a_long_queue_is_drained(sqs_queue):
    """Tens of thousands of messages are taken by several workers, each once."""
    count = 30_000
    assert sqs_queue.send(f"0-1_0-1_{n}-{n + 1}" for n in range(count)) == count

    def drain(_):
        done = []
        with closing(open_queue(sqs_queue.name)) as mine:
            while messages := mine.receive(30, LONG_S):
                done += [message.body for message in messages]
                assert mine.acknowledge(messages) == []
        return done

    with ThreadPoolExecutor(4) as pool:
        done = [body for part in pool.map(drain, range(4)) for body in part]
    assert len(done) == len(set(done)) == count
    assert sqs_queue.counts().waiting == 0


@pytest.mark.parametrize("sqs_server", ["fauxqs"], indirect=True)
def test_who_does_not_ask_for_dead_letters_makes_one_request(sqs_server, sqs_queue):
    """Workers ask again and again how much waits."""
    sqs_queue.send(["0-1_0-1_0-1"])
    with sqs_server.faults() as faults:
        assert sqs_queue.counts(dead=False) == Counts(1, 0, None)
        assert len(faults.log()) == 1
    assert sqs_queue.counts() == Counts(1, 0, 0)

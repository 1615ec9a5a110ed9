"""Which messages somebody works on: told by every queue but Amazon SQS."""

import secrets

import pytest

from chunkflow_py.queue.queue_protocol import TellsLeased, open_queue


@pytest.mark.parametrize("scheme", ["sqlite", "file", "memory"])
def test_leased_messages_are_told(scheme, tmp_path):
    """Those that are received and neither given back, put aside nor acknowledged; none is taken."""
    queue = open_queue(f"{scheme}://{tmp_path}/{secrets.token_hex(4)}/q", create=True)
    assert isinstance(queue, TellsLeased)
    queue.send([f"task {k}" for k in range(6)])
    assert queue.leased(10) == []
    one, two, three, four, five = queue.receive(5, 60)
    late = queue.receive(1, 0.0)
    assert len(late) == 1
    assert len(queue.leased(2)) == 2
    queue.acknowledge([one])
    queue.release([two])
    queue.bury([three], "it is broken")
    for _ in range(2):
        assert sorted(queue.leased(10)) == sorted([four.body, five.body])
    assert queue.counts().leased == 2
    queue.close()


def test_a_queue_of_amazon_cannot_tell():
    """It counts what is in flight and does not say what that is."""
    from chunkflow_py.queue.sqs_queue import SqsQueue

    assert not issubclass(SqsQueue, TellsLeased)

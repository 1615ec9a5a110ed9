"""A queue that is removed is gone, with its messages and dead letters."""

from contextlib import closing

import pytest

from chunkflow_py.errors import QueueError
from chunkflow_py.queue.queue_protocol import Removable, open_queue


@pytest.fixture(params=["sqlite", "file", "sqs"])
def url(request, tmp_path):
    """The address of a queue of each kind that stays."""
    if request.param == "sqs":
        request.getfixturevalue("sqs")
        return "removed"
    return f"{request.param}://{tmp_path}/queue{'.sqlite' * (request.param == 'sqlite')}"


def test_a_removed_queue_is_gone(url, tmp_path):
    """With a waiting, a leased and a dead message; a second removal does nothing."""
    with closing(open_queue(url, create=True)) as queue:
        assert isinstance(queue, Removable)
        queue.send(["one", "two", "three"])
        messages = queue.receive(2, 60.0)
        queue.bury(messages[:1], "bad")
        queue.remove()
        queue.remove()
    with pytest.raises(QueueError, match="does not exist"):
        open_queue(url)
    assert not list(tmp_path.glob("queue*"))
    with closing(open_queue(url, create=True)) as queue:
        counts = queue.counts()
        assert (counts.waiting, counts.leased, counts.dead) == (0, 0, 0)


def test_both_queues_of_sqs_are_removed(sqs):
    """The queue, and the one of its dead letters."""
    with closing(open_queue("gone", create=True)) as queue:
        assert len(sqs.list_queues()["QueueUrls"]) == 2
        queue.remove()
    assert not sqs.list_queues().get("QueueUrls")

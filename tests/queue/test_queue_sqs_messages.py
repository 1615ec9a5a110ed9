"""Queues of Amazon SQS: how they are made and named, and what one request may carry."""

import json
from collections import Counter
from contextlib import closing

import pytest

from chunkflow_py.queue.queue_protocol import Message, open_queue
from chunkflow_py.testing.queue_processes import received

pytestmark = pytest.mark.aws


def attributes(client, name):
    """Return what the server says of a queue."""
    url = client.get_queue_url(QueueName=name)["QueueUrl"]
    return client.get_queue_attributes(QueueUrl=url, AttributeNames=["All"])["Attributes"]


def test_a_new_queue_has_a_place_for_dead_letters(sqs_queue, sqs_server):
    """Two weeks of retention, and a count of receipts that no drain of workers ever reaches."""
    with closing(sqs_server.client) as client:
        said = attributes(client, sqs_queue.name)
        dead = attributes(client, f"{sqs_queue.name}-dead")
    redrive = json.loads(said["RedrivePolicy"])
    assert redrive["deadLetterTargetArn"] == dead["QueueArn"]
    assert int(redrive["maxReceiveCount"]) == 1000
    assert said["MessageRetentionPeriod"] == dead["MessageRetentionPeriod"] == str(14 * 24 * 3600)
    assert said["VisibilityTimeout"] == "120"


def test_an_existing_queue_is_left_as_it_is(sqs_server):
    """A queue that somebody has made as they like it is not changed, nor given another one."""
    with closing(sqs_server.client) as client:
        settings = {"VisibilityTimeout": "77"}
        client.create_queue(QueueName=sqs_server.name, Attributes=settings)
        with closing(open_queue(sqs_server.name, create=True)) as queue:
            queue.send(["a"])
            assert queue.counts().dead is None
            queue.bury(queue.receive(1, 60), "no place for it")
            assert queue.counts().waiting == queue.counts().leased == 0
            assert list(queue.dead_letters()) == []
        assert attributes(client, sqs_server.name)["VisibilityTimeout"] == "77"
        assert not client.list_queues(QueueNamePrefix=f"{sqs_server.name}-dead").get("QueueUrls")


def test_a_full_address_is_a_queue(sqs_queue, sqs_server, monkeypatch):
    """The address that a console shows works where the environment says nothing."""
    owner = sqs_queue._address.split("/")[-2]
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    url = f"{sqs_server.faults.address}/{owner}/{sqs_queue.name}"
    with closing(open_queue(f"sqs://{url}")) as queue:
        assert queue.name == sqs_queue.name
        assert queue.counts().waiting == 0


def test_large_messages_share_fewer_to_a_request(sqs_queue, sqs_server):
    """No request carries more than SQS takes, in bytes and in messages."""
    bodies = [f"{n}{'ü' * 30_000}" for n in range(12)]
    with sqs_server.faults() as faults:
        assert sqs_queue.send(bodies) == 12
        sizes = [int(each["headers"]["Content-Length"]) for each in faults.log()]
    assert len(sizes) == 3  # JSON spells these letters in six bytes, of which SQS counts two
    received = Counter()
    while sum(received.values()) < 12:
        received.update(message.body for message in sqs_queue.receive(10, 60, 1))
    assert received == Counter(bodies)


def test_many_are_received_by_several_requests_at_once(sqs_queue, sqs_server):
    """A receive may bring more than one request can, of which only the first waits."""
    sqs_queue.send(map(str, range(45)))
    with sqs_server.faults() as faults:
        messages = sqs_queue.receive(50, 60, 5)
        assert len(faults.log()) == 5
    assert {int(message.body) for message in messages} == set(range(45))
    # SQS may deliver a message twice, and moto does so where requests come at the same time.
    assert len(sqs_queue.acknowledge(messages)) <= len(messages) - 45


def test_long_reasons_keep_both_ends(sqs_queue):
    """A traceback is cut in its middle, and what SQS refuses in it is replaced."""
    sqs_queue.send(["a"])
    sqs_queue.bury(sqs_queue.receive(1, 60), f"ValueError\x00{'x' * 50_000}line 7")
    (letter,) = sqs_queue.dead_letters()
    assert letter.reason.startswith("ValueError?xxx")
    assert letter.reason.endswith("line 7")
    assert 4096 < len(letter.reason) < 10_000


def test_huge_hostile_messages_are_put_aside_too(sqs_queue):
    """Message and reason together have to fit: of a message that does not, the head is kept."""
    sqs_queue.send(["x" * (256 << 10)])
    sqs_queue.bury(sqs_queue.receive(1, 60), "too long")
    assert sqs_queue.counts().dead == 1
    (letter,) = sqs_queue.dead_letters()
    assert letter.reason == "too long"
    assert len(letter.body) > 200_000


def test_messages_put_aside_by_the_service_have_a_reason(sqs_server):
    """What others have configured to be given up after some receipts is read with a reason."""
    with closing(sqs_server.client) as client:
        dead = client.create_queue(QueueName=f"{sqs_server.name}-other")["QueueUrl"]
        client.send_message(QueueUrl=dead, MessageBody="a")
        said = client.get_queue_attributes(QueueUrl=dead, AttributeNames=["QueueArn"])
        arn = said["Attributes"]["QueueArn"]
        redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": "3"})
        settings = {"RedrivePolicy": redrive}
        client.create_queue(QueueName=sqs_server.name, Attributes=settings)
    with closing(open_queue(sqs_server.name)) as queue:
        (letter,) = queue.dead_letters()
        assert letter.body == "a"
        assert "received too often" in letter.reason


@pytest.mark.parametrize("sqs_server", ["moto"], indirect=True)
def test_nobody_keeps_a_message_for_more_than_twelve_hours(sqs_queue):
    """An extension that SQS does not grant counts as a lost lease."""
    sqs_queue.send(["a"])
    (message,) = sqs_queue.receive(1, 60)
    assert sqs_queue.extend([message], sqs_queue.longest_lease_s + 1) == [message]
    assert sqs_queue.extend([message], 60) == []


def test_nonsense_handles_are_lost_one_by_one(sqs_queue):
    """A handle that no server knows does not spoil the batch it is in."""
    sqs_queue.send(["a", "b"])
    good = []
    while len(good) < 2:
        good += sqs_queue.receive(2, 60, 1)
    strange = Message("c", "nonsense")
    assert sqs_queue.acknowledge([good[0], strange, good[1]]) == [strange]
    assert sqs_queue.counts().leased == 0


@pytest.mark.parametrize(
    "body",
    [
        '{"__type": "com.amazonaws.sqs#InternalError", "message": "please try again"}',
        "{}",
        "<ErrorResponse><Error><Code>InternalError</Code></Error></ErrorResponse>",
    ],
)
@pytest.mark.parametrize("kind", ["status", "status_late"])
def test_an_error_with_status_200_is_no_success(sqs_queue, sqs_server, kind, body):
    """What the service does not confirm counts as not done, and is asked for again."""
    rule = {"type": kind, "code": 200, "body": body, "count": 1}
    texts = ['{"__type": "of a message"}', "b"]
    with sqs_server.faults(rule | {"target": "SendMessageBatch"}):
        assert sqs_queue.send(texts) == 2
    copies = 2 if kind == "status_late" else 1  # delivered at least once
    messages = received(sqs_queue, 2 * copies)
    assert sorted(message.body for message in messages) == sorted(texts * copies)
    with sqs_server.faults(rule | {"target": "DeleteMessageBatch"}):
        sqs_queue.acknowledge(messages)
    assert sqs_queue.counts().leased == 0

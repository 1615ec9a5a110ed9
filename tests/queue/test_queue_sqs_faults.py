"""Queues of Amazon SQS over a network that fails, and with a service that refuses."""

import json
import logging
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from threading import Event

import pytest

from chunkflow_py.errors import QueueError, QueueUnreachableError
from chunkflow_py.queue import sqs_client
from chunkflow_py.queue.leases import LeaseKeeper, boottime
from chunkflow_py.queue.queue_protocol import open_queue
from chunkflow_py.store import network_retry

pytestmark = [
    pytest.mark.aws,
    pytest.mark.drill,
    pytest.mark.parametrize("sqs_server", ["ministack"], indirect=True),
]

BODIES = [f"0-1_0-1_{n}-{n + 1}" for n in range(60)]
PATIENCE_S = 60.0  # on a busy machine


@pytest.fixture
def hasty(monkeypatch):
    """Let deadlines pass within a test."""
    policy = replace(sqs_client.RETRY_POLICY, stall_s=1.0, first_wait_s=0.02, longest_wait_s=0.5)
    monkeypatch.setattr(sqs_client, "RETRY_POLICY", policy)
    return policy


def drained(queue, lease_s=60.0):
    """Receive and acknowledge until nothing is left; return the bodies and how often each came."""
    bodies = Counter()
    end = time.monotonic() + PATIENCE_S
    while sum(bodies.values()) < len(BODIES) or len(bodies) < len(set(BODIES)):
        assert time.monotonic() < end, f"{len(bodies)} came"
        messages = queue.receive(30, lease_s, 1)
        bodies.update(message.body for message in messages)
        queue.acknowledge(messages)
    return bodies


def test_entries_that_fail_are_sent_again(sqs_queue, sqs_server):
    """Of a batch that is taken in part, the rest is sent again until all is there, once each."""
    with sqs_server.faults({"type": "refuse", "share": 0.5, "p": 0.8}) as faults:
        assert sqs_queue.send(BODIES) == len(BODIES)
        messages = []
        while len(messages) < len(BODIES):
            messages += sqs_queue.receive(30, 60, 1)
        assert sqs_queue.extend(messages, 60) == []
        sqs_queue.release(messages[:20])
        assert sqs_queue.acknowledge(messages[20:]) == []
        assert sum(each.get("refused", 0) for each in faults.log()) > 30
    assert sorted(message.body for message in messages) == sorted(BODIES)
    assert sqs_queue.counts().waiting == 20
    assert sqs_queue.counts().leased == 0


def test_entries_that_fail_for_our_fault_are_lost_not_raised(sqs_queue, sqs_server):
    """An entry that is refused for good is returned, and not tried again."""
    sqs_queue.send(BODIES[:10])
    messages = sqs_queue.receive(10, 60)
    rule = {"type": "refuse", "sender": True, "code": "ReceiptHandleIsInvalid", "share": 0.5}
    with sqs_server.faults(rule) as faults:
        lost = sqs_queue.extend(messages, 60)
        (request,) = faults.log()
    assert 0 < len(lost) == request["refused"] < 10


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_storms_are_weathered(sqs_queue, sqs_server, hasty, share):
    """With a share of all requests refused, cut off or answered after the act, nothing is lost.

    Tries in all stay below four times what is needed without faults.
    """
    rules = [
        {"type": "status", "code": code, "p": share / 5, "body": "<Error/>"}
        for code in (500, 503, 429)
    ]
    rules += [{"type": kind, "p": share / 5} for kind in ("reset", "reset_after")]
    with sqs_server.faults(*rules) as faults:
        assert sqs_queue.send(BODIES) == len(BODIES)
        # A lost answer hides its messages until their leases end.
        bodies = drained(sqs_queue, 2.0)
        log = faults.log()
    assert set(bodies) == set(BODIES)
    faulty = sum(each["fault"] != "none" for each in log)
    assert faulty > 0
    assert len(log) < 4 * (len(log) - faulty) + 20


def test_an_outage_is_waited_out_and_told(sqs_queue, sqs_server, caplog, monkeypatch):
    """While everything is refused it is tried again, and the log says how often; then all is sent.

    How the waits between tries grow is tested with the stores, which share them.
    """
    monkeypatch.setattr(network_retry._NOTES, "_said", -1e9)  # it is said now and then
    rule = {"type": "status", "code": 503, "count": 6}
    with caplog.at_level(logging.INFO), sqs_server.faults(rule) as faults:
        assert sqs_queue.send(["a"]) == 1
        assert Counter(each["fault"] for each in faults.log()) == {"status": 6, "none": 1}
    assert " network calls; the last failure" in caplog.text


@pytest.mark.parametrize("kind", ["stall", "drip", "truncate"])
def test_no_call_outlives_its_deadline(sqs_queue, sqs_server, hasty, kind):
    """An answer that never comes, or byte by byte, or by half, is given up and asked for again."""
    sqs_queue.send(["a"])
    rule = {"type": kind, "s": 0.5, "count": 1, "target": "GetQueueAttr"}
    with sqs_server.faults(rule) as faults:
        start = time.monotonic()
        assert sqs_queue.counts().waiting == 1
        assert len(faults.log()) >= 2
    assert time.monotonic() - start < 15


def test_connections_that_hang_are_bounded(sqs_queue, sqs_server, hasty, monkeypatch):
    """While no answer ever comes, calls end with an error, and open no new connections for ever."""
    monkeypatch.setattr(sqs_client, "RETRY_POLICY", replace(hasty, stall_s=0.1, budget_s=1.0))
    with sqs_server.faults({"type": "stall"}) as faults:
        with pytest.raises(QueueUnreachableError, match="no answer in time"):
            sqs_queue.send(BODIES * 10)
        assert max(each["under_way"] for each in faults.log()) <= sqs_client.CONNECTIONS


def test_a_dead_address_is_told_soon(sqs_queue, monkeypatch):
    """Where nobody has ever answered, the error comes after seconds, not minutes."""
    policy = replace(sqs_client.RETRY_POLICY, unheard_s=0.5)
    monkeypatch.setattr(sqs_client, "RETRY_POLICY", policy)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    start = time.monotonic()
    with pytest.raises(QueueUnreachableError, match="127.0.0.1:9"):
        open_queue("affinity")
    assert time.monotonic() - start < 15


def test_refused_credentials_are_looked_for_anew(sqs_queue, sqs_server, monkeypatch):
    """After a refusal the request is signed with what the environment says now."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
    body = json.dumps({"__type": "ExpiredToken", "message": "The security token is expired"})
    with sqs_server.faults({"type": "status", "code": 403, "body": body, "count": 2}) as faults:
        assert sqs_queue.send(["a"]) == 1
        keys = [each["headers"]["Authorization"] for each in faults.log()]
    assert "Credential=rig/" in keys[0]
    assert "Credential=renewed/" in keys[-1]


def test_credentials_refused_for_good_are_one_sentence(sqs_queue, sqs_server, monkeypatch):
    """When refusals do not end the error says what to check, and holds no secret."""
    monkeypatch.setattr(sqs_client, "REFUSED_S", 1.0)
    body = json.dumps({"__type": "AccessDenied", "message": "not authorized"})
    with sqs_server.faults({"type": "status", "code": 403, "body": body}):
        with pytest.raises(QueueError, match="check the credentials") as caught:
            sqs_queue.send(["a"])
        start = time.monotonic()
        with pytest.raises(QueueError, match="check the credentials"):
            open_queue(sqs_queue.name)  # nothing has worked with it before: it is told at once
        assert time.monotonic() - start < 10
    assert "AccessDenied" in str(caught.value)
    assert sqs_server.environment["AWS_SECRET_ACCESS_KEY"] not in str(caught.value)


def test_a_heartbeat_that_is_refused_ends_the_lease_in_time(sqs_queue, sqs_server):
    """Who cannot renew knows that the lease is lost before anybody else has the message."""
    sqs_queue.send(["a"])
    told = Event()
    with closing(open_queue(sqs_queue.name)) as other:
        rule = {"type": "status", "code": 503, "target": "ChangeMessageVisibility"}
        with (
            sqs_server.faults(rule),
            LeaseKeeper(sqs_queue, 3.0, on_lost=lambda _: told.set()) as keeper,
        ):
            start = boottime()
            (held,) = keeper.receive(1, 1)
            assert not held.lost
            (again,) = other.receive(1, 60, 20)
            assert held.lost
            assert boottime() - start > 2
            assert again.receives == 2
            assert told.wait(PATIENCE_S)
            assert keeper.held == []


def test_waiting_for_messages_is_no_slow_call(sqs_queue, caplog, monkeypatch):
    """An idle worker fills no log: the service is silent because nothing is there."""
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(network_retry._NOTES, "_said_of_waiting", -1e9)
    monkeypatch.setattr(network_retry._NOTES, "LONG_WITHOUT_AN_ANSWER_S", 1)
    assert sqs_queue.receive(1, 60, 4) == []
    assert not [each for each in caplog.records if "retried" in each.getMessage()]

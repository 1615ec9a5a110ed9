"""Notices of clouds that a machine will be taken away."""

from __future__ import annotations

import socket
import threading
import time
from queue import Empty, Queue
from typing import TYPE_CHECKING

import pytest
from rigs.metadata import metadata_server

from chunkflow_py.run.worker.worker_interruption import InterruptionWatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rigs.metadata import Metadata

LONG_S = 20.0


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    """Servers of both clouds, found as the tools of these clouds find them."""
    with metadata_server() as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{metadata.host}/")
        monkeypatch.setenv("GCE_METADATA_HOST", metadata.host)
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
        monkeypatch.delenv("NO_GCE_CHECK", raising=False)
        yield metadata


@pytest.mark.parametrize(
    ("notice", "says"),
    [
        ({"action": {"action": "terminate", "time": "2026-09-18T08:22:00Z"}}, "terminate"),
        ({"rebalance": {"noticeTime": "2026-10-27T08:22:00Z"}}, "likely to be interrupted"),
        ({"preempted": True}, "preempted"),
    ],
)
def test_a_notice_is_told_once(metadata: Metadata, notice: dict[str, object], says: str) -> None:
    """Each kind of notice that comes up is heard, once, by the protocol of its cloud."""
    heard: Queue[str] = Queue()
    watch = InterruptionWatch(heard.put, interval_s=0.02)
    try:
        with pytest.raises(Empty):  # there is none yet
            heard.get(timeout=0.3)
        metadata.notices.update(notice)
        assert says in heard.get(timeout=LONG_S)
        with pytest.raises(Empty):
            heard.get(timeout=0.2)
    finally:
        watch.close()
    assert metadata.log.count("/latest/api/token") == 1  # a token is used again


def test_a_token_that_has_ended_is_renewed(metadata: Metadata) -> None:
    """A server that forgets its tokens, as one that is restarted, is asked for a new one."""
    heard: Queue[str] = Queue()
    watch = InterruptionWatch(heard.put, interval_s=0.02)
    try:
        while not metadata.tokens:
            time.sleep(0.01)
        metadata.tokens.clear()
        metadata.notices["action"] = {"action": "stop"}
        assert "stop" in heard.get(timeout=LONG_S)
    finally:
        watch.close()


def test_a_slow_server_delays_nothing(metadata: Metadata) -> None:
    """To start and to end the watch takes no time, however slow the servers are."""
    metadata.delay_s = 1.0
    start = time.monotonic()
    watch = InterruptionWatch(pytest.fail, interval_s=0.02)
    watch.close()
    assert time.monotonic() - start < 0.9


def test_an_absent_server_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where nobody answers, nobody is asked any more after some tries."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{probe.getsockname()[1]}"  # nobody listens there
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{host}")
        monkeypatch.setenv("GCE_METADATA_HOST", host)
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
        before = set(threading.enumerate())
        InterruptionWatch(pytest.fail, interval_s=0.01)
        for thread in set(threading.enumerate()) - before:
            thread.join(LONG_S)
            assert not thread.is_alive()


def test_aws_is_not_asked_where_that_is_forbidden(
    metadata: Metadata, monkeypatch: pytest.MonkeyPatch
) -> None:
    """AWS_EC2_METADATA_DISABLED is respected."""
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    metadata.notices["action"] = {"action": "terminate"}
    heard: Queue[str] = Queue()
    watch = InterruptionWatch(heard.put, interval_s=0.02)
    try:
        with pytest.raises(Empty):
            heard.get(timeout=0.3)
    finally:
        watch.close()
    assert not [path for path in metadata.log if path.startswith("/latest")]


@pytest.mark.parametrize(
    ("forbidden", "machine"),
    [
        ("NO_GCE_CHECK", ("g5.xlarge", "us-east-1b")),
        ("AWS_EC2_METADATA_DISABLED", ("g2-standard-4", "us-central1-a")),
    ],
)
def test_the_machine_is_asked_for_once(
    metadata: Metadata,
    monkeypatch: pytest.MonkeyPatch,
    forbidden: str,
    machine: tuple[str, str],
) -> None:
    """A server that answers says the type and the zone of the machine, and then only notices."""
    monkeypatch.setenv(forbidden, "true")
    heard: Queue[tuple[str, str]] = Queue()
    watch = InterruptionWatch(pytest.fail, 0.02, on_machine=lambda *said: heard.put(said))
    try:
        assert heard.get(timeout=LONG_S) == machine
        with pytest.raises(Empty):
            heard.get(timeout=0.3)
    finally:
        watch.close()
    assert sum("zone" in path for path in metadata.log) == 1

"""Records of workers: what they have, why they stopped, and what became of their attempts."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from rigs.metadata import metadata_server
from rigs.workers import Background, Stage, wait_for

from chunkflow_py.errors import VolumeRefusedError
from chunkflow_py.run.worker_records import (
    WorkerFate,
    WorkerRecords,
    WorkerRegistration,
    WorkerStart,
    worker_id,
)
from chunkflow_py.store import open_store
from chunkflow_py.store.memory_store import MemoryStore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rigs.metadata import Metadata

    from chunkflow_py.store.store_protocol import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """The store of a run directory."""
    return open_store(str(tmp_path / "run"))


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch) -> Iterator[Metadata]:
    """The metadata service of a machine of AWS."""
    with metadata_server() as metadata:
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{metadata.host}/")
        monkeypatch.setenv("NO_GCE_CHECK", "true")
        monkeypatch.delenv("AWS_EC2_METADATA_DISABLED", raising=False)
        yield metadata


def stage_store(stage: Stage) -> Store:
    """Return the store of the run directory of a stage."""
    return open_store(str(stage.folder / "run"))


def registered(store: Store, name: str = "me") -> WorkerRegistration:
    """Return the registration of a worker that has begun."""
    registration = WorkerRegistration(store, WorkerStart.here(name))
    registration.begin()
    return registration


def test_a_record_says_what_the_worker_has(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the environment says is recorded at once; what is learned later does not replace it."""
    monkeypatch.setenv("CHUNKFLOW_IMAGE", "registry/image@sha256:12ab")
    monkeypatch.setenv("CHUNKFLOW_ZONE", "rack-7")
    monkeypatch.delenv("CHUNKFLOW_INSTANCE_TYPE", raising=False)
    registration = registered(store)
    attempt = f"{registration.attempts()}-0"
    first = WorkerRecords(store).start_of(attempt)
    assert first is not None
    assert (first.worker, first.image, first.zone) == ("me", "registry/image@sha256:12ab", "rack-7")
    assert first.version
    assert first.torch
    assert first.instance_type == ""
    registration.learned_machine("g5.xlarge", "us-east-1b")
    registration.learned(device="NVIDIA H100")
    registration.end("complete", "no task is left")
    then = WorkerRecords(store).start_of(attempt)
    assert then == replace(first, instance_type="g5.xlarge", device="NVIDIA H100")


def test_workers_with_one_name_are_told_apart(store: Store) -> None:
    """Each attempt leads to the worker that made it; no two prefixes of a worker are equal."""
    one, other = registered(store), registered(store)
    assert one.attempts() != one.attempts()
    assert worker_id(f"{one.attempts()}-5") == one.start.id != other.start.id
    assert WorkerRecords(store).start_of(f"{other.attempts()}-5") == other.start


@pytest.mark.parametrize("attempt", ["", "first", "0123456789abcdef", "../../secret-1", "A" * 12])
def test_attempts_of_earlier_versions_have_no_worker(store: Store, attempt: str) -> None:
    """Names that contain no id of a worker lead nowhere, whatever they are."""
    assert worker_id(attempt) == ""
    assert WorkerRecords(store).start_of(attempt) is None
    assert WorkerRecords(store).fate_of(attempt) == WorkerFate("unknown", "worker-lost")


def test_only_the_first_reason_to_stop_counts(store: Store) -> None:
    """What a preempted worker says at its end does not hide that it was preempted."""
    registration = registered(store)
    registration.stopping("preempted", "this spot instance will be interrupted")
    registration.stopping("limit", "too late")
    registration.end("complete", "no task is left")
    counts = WorkerRecords(store).counts()
    assert (counts.started, counts.stopped, counts.silent) == (1, {"preempted": 1}, 0)
    (key,) = [key for key in store.list("workers/") if "stopped" in key]
    assert "spot instance" in json.loads(store.get(key) or b"")["reason"]
    fate = WorkerRecords(store).fate_of(registration.attempts() + "-1")
    assert fate == WorkerFate("me", "preempted")


def test_workers_are_counted_by_keys(store: Store) -> None:
    """A worker without a second object is at work or lost; foreign objects are not counted."""
    for why in ("complete", "hang", "complete"):
        registered(store).end(why, "so it is")  # type: ignore[arg-type]
    silent = registered(store)
    for key in ("workers/x", "workers/y/stopped-complete.json", "workers/z/stopped-other.json"):
        store.put(key, b"{")
    counts = WorkerRecords(store).counts()
    assert (counts.started, counts.stopped) == (4, {"complete": 2, "hang": 1})
    assert counts.silent == 1
    assert WorkerRecords(store).fate_of(f"{silent.attempts()}-1") == WorkerFate("me", "worker-lost")


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"{}",
        b'{"id":"1"}',
        b'{"id":"1","worker":7}',
        b'{"id":"1","worker":"w","when":"now"}',
        b'{"id":"1","worker":"w","when":1e400}',
        b'{"id":"1","worker":"w","when":-1}',
        b"\xff",
        b"[" * 100_000,
    ],
)
def test_a_damaged_record_is_no_record(
    store: Store, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    """Workers can write anything there: a warning, and the origin is unknown."""
    store.put("workers/0123456789ab/started.json", content)
    with caplog.at_level(logging.WARNING):
        assert WorkerRecords(store).start_of("0123456789ab-0-1") is None
    assert "the record of worker 0123456789ab is damaged" in caplog.text


def test_records_that_cannot_be_read_stop_no_task(caplog: pytest.LogCaptureFixture) -> None:
    """A worker that looks up a lost attempt goes on: the fate is unknown."""

    class Refusing(MemoryStore):
        def get_range(self, key: str, start: int, stop: int) -> bytes | None:
            msg = f"403 for {key} {start} {stop}"
            raise VolumeRefusedError(msg)

    with caplog.at_level(logging.WARNING):
        fate = WorkerRecords(Refusing("refusing")).fate_of("0123456789ab-0-1")
    assert fate == WorkerFate("unknown", "worker-lost")
    assert "cannot be read: 403" in caplog.text


def test_records_of_other_versions_are_read(store: Store) -> None:
    """Unknown names are ignored, and facts that are missing are unknown; texts are made safe."""
    content = '{"id": "forged", "worker": "a\\u001b[2Jb", "colour": 1, "image": "https://u:p@h/i"}'
    store.put("workers/0123456789ab/started.json", content.encode())
    start = WorkerRecords(store).start_of("0123456789ab-0-1")
    assert start is not None
    assert start.id == "0123456789ab", "the key names the worker, not its content"
    assert "\x1b" not in start.worker
    assert start.image == "https://h/i"
    assert start.version == ""


def test_a_worker_without_access_continues(caplog: pytest.LogCaptureFixture) -> None:
    """A store that refuses the records costs a warning each, no more."""

    class Refusing(MemoryStore):
        def put(self, key: str, *_: object, **__: object) -> None:
            msg = f"403 for {key}"
            raise VolumeRefusedError(msg)

    with caplog.at_level(logging.WARNING):
        registration = registered(Refusing("refusing"))
        registration.end("complete", "no task is left")
    assert caplog.text.count("cannot be stored, and the worker continues: 403") == 2


def test_a_preempted_worker_is_recorded_while_it_stops(tmp_path: Path, metadata: Metadata) -> None:
    """The cause is stored at the notice: a machine that is gone earlier than its tasks says it."""
    stage = Stage(tmp_path, 3)
    stage.send()
    records = WorkerRecords(stage_store(stage))
    registration = registered(stage_store(stage))
    worker = Background(
        stage.supervisor({0: "hangs"}, watches_notices=True, registration=registration)
    )
    stage.wait_until_begun(0)
    wait_for(lambda: registration.start.zone == "us-east-1b")
    metadata.notices["action"] = {"action": "terminate"}
    wait_for(lambda: records.counts().stopped == {"preempted": 1})
    assert worker.thread.is_alive(), "it lets its tasks finish"
    worker.supervisor._post("signal", "SIGTERM")
    assert worker.wait().state == "stopped"
    registration.end("complete", "")
    start = records.start_of(f"{registration.attempts()}-1")
    assert start is not None
    assert start.instance_type == "g5.xlarge"


def test_a_lost_attempt_names_its_worker(tmp_path: Path) -> None:
    """The next worker counts it with the name of the worker, and the cause that it has left."""
    stage = Stage(tmp_path, 1)
    gone = registered(stage_store(stage), "gone")
    gone.end("evicted", "got SIGTERM")
    silent = registered(stage_store(stage), "silent")
    for worker in (gone, silent):
        stage.ledger.begin(0, f"{worker.attempts()}-0", "")
    stage.send()
    message = [*stage.queue.receive(1, 60)]
    while message[0].receives <= 3:  # the task is suspected
        stage.queue.release(message)
        message = [*stage.queue.receive(1, 60)]
    stage.queue.release(message)
    me = registered(stage_store(stage))
    fate_of = WorkerRecords(stage_store(stage)).fate_of
    assert stage.work(registration=me, fate_of=fate_of).state == "complete"
    failures = {each.worker: (each.kind, each.cause) for each in stage.ledger.failures()}
    assert failures == {
        "gone": ("worker-lost", "evicted"),
        "silent": ("worker-lost", "worker-lost"),
    }
    (record,) = stage.ledger.records()
    assert worker_id(record.attempt) == me.start.id

"""Check whether queues exist, and whether their settings are right for workers.

A check never receives messages from the inspected queue, because these messages are for workers. If
writing is allowed, the check sends and receives a message on a temporary queue beside that queue.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkflowError, QueueError
from chunkflow_py.planning.doctor.finding import Finding
from chunkflow_py.queue.queue_protocol import address_of, open_queue
from chunkflow_py.queue.sqs_address import RECEIVES, SqsAddress, find_or_create
from chunkflow_py.store.store_address import without_secrets

if TYPE_CHECKING:
    from collections.abc import Iterator

    from chunkflow_py.queue.sqs_client import SqsClient

BUDGET_S = 10.0
FEW_RECEIVES = 100  # spot interruptions and drains also increase the count
SHORT_RETENTION_S = 4 * 24 * 3600
SHORT_LEASE_S = 30
_DAY = 24 * 3600


def check_queue(url: str, *, write: bool = False) -> Iterator[Finding]:
    """Report the number of tasks in a queue, and check the settings of the queue.

    Args:
        url: address of the queue, see `open_queue`.
        write: whether the check may create a temporary queue beside the inspected queue. The check
            removes the temporary queue afterwards.
    """
    shown = without_secrets(url)
    try:
        scheme, rest = address_of(url)
        with closing(open_queue(url)) as queue:
            counts = queue.counts()
        dead = "" if counts.dead is None else f", {counts.dead} dead letters"
        text = f"{shown}: {counts.waiting} tasks waiting, {counts.leased} leased{dead}"
        yield Finding("queue", "ok", text)
        if scheme == "sqs":
            yield from _check_sqs(shown, rest)
        if write:
            yield _try(scheme, rest, shown)
    except (ChunkflowError, OSError) as error:
        yield Finding("queue", "problem", f"{shown}: {error}")


def _check_sqs(shown: str, name: str) -> Iterator[Finding]:
    """Check the attributes of an Amazon SQS queue."""
    place = SqsAddress.of(name)
    with closing(_client(place)) as client:
        address = find_or_create(client, place, create=False)
        attributes = _attributes(client, address)
        redrive: dict[str, Any] = json.loads(attributes.get("RedrivePolicy") or "{}")
        if not redrive:
            text = (
                f"{shown} has no dead-letter queue, so a task that crashes workers is delivered "
                "again and again"
            )
            remedy = "create the queue with submit --create-queue, or set a RedrivePolicy"
            yield Finding("queue", "problem", text, remedy)
        else:
            yield from _check_redrive(shown, redrive)
    kept_s, lease_s = (
        int(attributes.get("MessageRetentionPeriod", 0)),
        int(attributes["VisibilityTimeout"]),
    )
    if kept_s < SHORT_RETENTION_S:
        text = (
            f"{shown} deletes messages after {kept_s / _DAY:.1f} days, whether or not a worker has "
            "received them"
        )
        yield Finding("queue", "note", text, "set its MessageRetentionPeriod to 1209600 (14 days)")
    if lease_s < SHORT_LEASE_S:
        text = f"{shown} leases messages for only {lease_s} s, unless the worker sets another time"
        yield Finding("queue", "note", text, "set its VisibilityTimeout to 120")


def _check_redrive(shown: str, redrive: dict[str, Any]) -> Iterator[Finding]:
    dead = str(redrive.get("deadLetterTargetArn", "")).rpartition(":")[2]
    receives = int(redrive.get("maxReceiveCount", 0))
    text = f"{shown} moves a task to {dead} after the task was received {receives} times"
    if receives < FEW_RECEIVES:
        text += "; interrupted attempts count too, although the task has not failed"
        yield Finding("queue", "note", text, f"set the maxReceiveCount to {RECEIVES}")
    else:
        yield Finding("queue", "ok", text)


def _client(place: SqsAddress) -> SqsClient:
    from chunkflow_py.queue.sqs_client import SqsClient

    return SqsClient(f"queue {place.name!r}", place.endpoint, place.region)


def _attributes(client: SqsClient, address: str) -> dict[str, str]:
    answer = client.ask(
        "get_queue_attributes", retries_credentials=False, budget_s=BUDGET_S, QueueUrl=address,
        AttributeNames=["All"],
    )  # fmt: skip
    found: dict[str, str] = answer.get("Attributes") or {}
    return found


def _try(scheme: str, rest: str, shown: str) -> Finding:
    """Send and receive a message on a temporary queue, and return the finding."""
    name = f"chunkflow-doctor-{secrets.token_hex(6)}"
    if scheme == "memory":
        return Finding("queue", "ok", f"{shown} exists only in this process; nothing to check")
    own = name if scheme == "sqs" else str(Path(rest).expanduser().parent / name)
    if scheme == "sqs" and rest.startswith("http"):
        own = f"{rest.rpartition('/')[0]}/{name}"
    try:
        with closing(open_queue(f"{scheme}://{own}", create=True)) as queue:
            queue.send(["doctor"])
            received = queue.receive(1, lease_s=60, wait_s=BUDGET_S)
            queue.acknowledge(received)
    except QueueError as error:
        text = f"a temporary queue beside {shown} did not work: {error}"
        return Finding("queue", "note", text)
    finally:
        _remove(scheme, own)
    if [each.body for each in received] != ["doctor"]:
        text = (
            f"a message sent to a temporary queue beside {shown} was not received within "
            f"{BUDGET_S:.0f} s"
        )
        return Finding("queue", "problem", text, "look at the status page of the queue service")
    return Finding(
        "queue", "ok", f"a message was sent and received on a temporary queue beside {shown}"
    )


def _remove(scheme: str, own: str) -> None:
    if scheme == "sqs":
        for suffix in ("", "-dead"):
            place = SqsAddress.of(f"{own}{suffix}")
            with suppress(QueueError), closing(_client(place)) as client:
                address = find_or_create(client, place, create=False)
                client.ask(
                    "delete_queue", retries_credentials=False, budget_s=BUDGET_S, QueueUrl=address
                )
    elif scheme == "sqlite":
        for suffix in ("", "-wal", "-shm"):
            Path(f"{own}{suffix}").unlink(missing_ok=True)
    else:
        shutil.rmtree(own, ignore_errors=True)


def clock_of(url: str) -> str | None:
    """Return the address of a queue's server, for `check_clock`; ``None`` without a server."""
    try:
        scheme, rest = address_of(url)
        if scheme != "sqs":
            return None
        place = SqsAddress.of(rest)
        if place.endpoint:
            return without_secrets(place.endpoint)
        for variable in ("AWS_ENDPOINT_URL_SQS", "AWS_ENDPOINT_URL"):
            if named := os.environ.get(variable):
                return named
        with closing(_client(place)) as client:
            return f"https://sqs.{client.region}.amazonaws.com"
    except ChunkflowError:  # `check_queue` reports this error
        return None

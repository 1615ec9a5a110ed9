"""Queues of Amazon SQS by their names: found, made, and the nearest named when there is none."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from chunkflow_py.errors import QueueError
from chunkflow_py.queue.sqs_client import SqsRefusedError

if TYPE_CHECKING:
    from chunkflow_py.queue.sqs_client import SqsClient

logger = logging.getLogger(__name__)

# Releases and drains raise SQS's own count, so that it must not end a task early.
RECEIVES = "1000"
KEPT_S = str(14 * 24 * 3600)
LEASE_S = 120


@dataclass(frozen=True)
class Place:
    """Where a queue is, as far as a person has said it.

    Attributes:
        name: of the queue.
        owner: account that has it, if it was said.
        endpoint: address of the service, the same.
        region: of the service, the same.
    """

    name: str
    owner: str | None = None
    endpoint: str | None = None
    region: str | None = None

    @classmethod
    def of(cls, text: str) -> Place:
        """Read a name, or the full URL of a queue."""
        if not text.startswith(("http://", "https://")):
            return cls(text)
        parts = urlsplit(text)
        owner, _, name = parts.path.strip("/").rpartition("/")
        found = re.fullmatch(r"sqs\.([\w-]+)\.amazonaws\.com(\.cn)?", parts.hostname or "")
        return cls(name, owner, f"{parts.scheme}://{parts.netloc}", found and found[1])


def find_or_create(client: SqsClient, place: Place, *, create: bool, lease_s: int = LEASE_S) -> str:
    """Return the address of a queue.

    Args:
        client: of the service.
        place: of the queue.
        create: make it unless it exists, and one for its dead letters; what exists stays as it is.
        lease_s: of one that is made, for those who receive without saying it.

    Raises:
        QueueError: it does not exist; names the nearest that does.
    """
    address = _find(client, place.name, place.owner)
    if address is None and create:
        address = _create(client, place.name, lease_s)
    if address is None:
        raise QueueError(_missing(client, place.name))
    return address


def address_of_dead(client: SqsClient, address: str) -> str | None:
    """Return the address of the queue that the dead letters of another go to, if there is one."""
    policy = attributes_of(client, address, "RedrivePolicy").get("RedrivePolicy")
    if not policy:
        return None
    owner, name = json.loads(policy)["deadLetterTargetArn"].split(":")[-2:]
    return _find(client, name, owner)


def attributes_of(client: SqsClient, address: str, *names: str) -> dict[str, str]:
    """Return attributes of a queue, by their names."""
    answer = client.ask("get_queue_attributes", QueueUrl=address, AttributeNames=names)
    found: dict[str, str] = answer.get("Attributes") or {}
    return found


def _find(client: SqsClient, name: str, owner: str | None = None) -> str | None:
    said: dict[str, Any] = {"QueueOwnerAWSAccountId": owner} if owner else {}
    try:
        # Nothing has worked before: what is refused here is wrong, and does not pass.
        answer = client.ask("get_queue_url", patient=False, QueueName=name, **said)
    except SqsRefusedError as error:
        if error.code.endswith(("NonExistentQueue", "QueueDoesNotExist")):
            return None
        raise
    address: str = answer["QueueUrl"]
    return address


def _create(client: SqsClient, name: str, lease_s: int) -> str:
    dead = _made(client, f"{name}-dead", {"MessageRetentionPeriod": KEPT_S})
    arn = attributes_of(client, dead, "QueueArn")["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVES})
    attributes = {
        "MessageRetentionPeriod": KEPT_S,
        "VisibilityTimeout": str(lease_s),
        "RedrivePolicy": redrive,
    }
    address = _made(client, name, attributes)
    logger.info("made queue %s, and %s-dead for what cannot be done", name, name)
    return address


def _made(client: SqsClient, name: str, attributes: dict[str, str]) -> str:
    """Make a queue; one that another producer has made meanwhile is left as it is."""
    if (address := _find(client, name)) is not None:
        return address
    try:
        answer = client.ask("create_queue", QueueName=name, Attributes=attributes)
    except SqsRefusedError as error:
        address = _find(client, name) if "Exists" in error.code else None
        if address is None:
            raise
        return address
    made: str = answer["QueueUrl"]
    return made


def _missing(client: SqsClient, name: str) -> str:
    hint = ""
    try:
        answer = client.ask("list_queues", patient=False, MaxResults=1000)
    except SqsRefusedError:
        pass  # a worker need not be allowed to list
    else:
        names = [url.rpartition("/")[2] for url in answer.get("QueueUrls") or ()]
        near = get_close_matches(name, names, n=1, cutoff=0.0)
        hint = f" (nearest: {near[0]!r})" if near else " (there are no queues at all)"
    return (
        f"queue {name!r} does not exist in {client.region}{hint}; check the name, or make it "
        "by submit or generate-tasks, and that of a run by chunkflow repair RUN"
    )

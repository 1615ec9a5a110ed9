"""Find or create queues of Amazon SQS by name; for an unknown name, suggest a similar name."""

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

# SQS also counts receipts that end in a release or a drain: a low limit would bury tasks early.
RECEIVES = "1000"
RETENTION_S = str(14 * 24 * 3600)
LEASE_S = 120


@dataclass(frozen=True)
class SqsAddress:
    """The name and location of a queue; boto3 chooses each value that is ``None``.

    Attributes:
        name: name of the queue.
        owner: number of the AWS account that owns the queue.
        endpoint: URL of the service.
        region: AWS region of the service.
    """

    name: str
    owner: str | None = None
    endpoint: str | None = None
    region: str | None = None

    @classmethod
    def of(cls, text: str) -> SqsAddress:
        """Parse the name or the full URL of a queue."""
        if not text.startswith(("http://", "https://")):
            return cls(text)
        parts = urlsplit(text)
        owner, _, name = parts.path.strip("/").rpartition("/")
        match = re.fullmatch(r"sqs\.([\w-]+)\.amazonaws\.com(\.cn)?", parts.hostname or "")
        return cls(name, owner, f"{parts.scheme}://{parts.netloc}", match and match[1])


def find_or_create(
    client: SqsClient, place: SqsAddress, *, create: bool, lease_s: int = LEASE_S
) -> str:
    """Return the URL of a queue; create the queue if *create* is true and the queue is missing.

    Args:
        client: client of the service.
        place: name and location of the queue.
        create: whether to create the queue and its dead-letter queue if they do not exist; existing
            queues are not changed.
        lease_s: default lease of a new queue in seconds, for receivers that do not request a
            duration.

    Raises:
        QueueError: the queue does not exist; the message suggests the most similar existing name.
    """
    address = _find(client, place.name, place.owner)
    if address is None and create:
        address = _create(client, place.name, lease_s)
    if address is None:
        raise QueueError(_missing(client, place.name))
    return address


def address_of_dead(client: SqsClient, address: str) -> str | None:
    """Return the URL of the dead-letter queue of a queue; ``None`` if there is none."""
    policy = attributes_of(client, address, "RedrivePolicy").get("RedrivePolicy")
    if not policy:
        return None
    owner, name = json.loads(policy)["deadLetterTargetArn"].split(":")[-2:]
    return _find(client, name, owner)


def attributes_of(client: SqsClient, address: str, *names: str) -> dict[str, str]:
    """Return the attributes *names* of a queue, keyed by name."""
    answer = client.ask("get_queue_attributes", QueueUrl=address, AttributeNames=names)
    attributes: dict[str, str] = answer.get("Attributes") or {}
    return attributes


def _find(client: SqsClient, name: str, owner: str | None = None) -> str | None:
    account: dict[str, Any] = {"QueueOwnerAWSAccountId": owner} if owner else {}
    try:
        # This is the first request: if it is refused, the credentials are wrong, not expired.
        answer = client.ask("get_queue_url", retries_credentials=False, QueueName=name, **account)
    except SqsRefusedError as error:
        if error.code.endswith(("NonExistentQueue", "QueueDoesNotExist")):
            return None
        raise
    address: str = answer["QueueUrl"]
    return address


def _create(client: SqsClient, name: str, lease_s: int) -> str:
    dead = _create_unless_exists(client, f"{name}-dead", {"MessageRetentionPeriod": RETENTION_S})
    arn = attributes_of(client, dead, "QueueArn")["QueueArn"]
    redrive = json.dumps({"deadLetterTargetArn": arn, "maxReceiveCount": RECEIVES})
    attributes = {
        "MessageRetentionPeriod": RETENTION_S,
        "VisibilityTimeout": str(lease_s),
        "RedrivePolicy": redrive,
    }
    address = _create_unless_exists(client, name, attributes)
    logger.info("created the queue %s, and %s-dead for its dead letters", name, name)
    return address


def _create_unless_exists(client: SqsClient, name: str, attributes: dict[str, str]) -> str:
    """Create a queue unless another producer has created it; return its URL."""
    if (address := _find(client, name)) is not None:
        return address
    try:
        answer = client.ask("create_queue", QueueName=name, Attributes=attributes)
    except SqsRefusedError as error:
        address = _find(client, name) if "Exists" in error.code else None
        if address is None:
            raise
        return address
    new_address: str = answer["QueueUrl"]
    return new_address


def _missing(client: SqsClient, name: str) -> str:
    hint = ""
    try:
        answer = client.ask("list_queues", retries_credentials=False, MaxResults=1000)
    except SqsRefusedError:
        pass  # a worker needs no permission to list queues
    else:
        names = [url.rpartition("/")[2] for url in answer.get("QueueUrls") or ()]
        near = get_close_matches(name, names, n=1, cutoff=0.0)
        hint = f" (nearest name: {near[0]!r})" if near else " (there are no queues at all)"
    return (
        f"queue {name!r} does not exist in {client.region}{hint}; check the name, or create the "
        "queue with submit or generate-tasks; chunkflow repair RUN recreates the queue of a run"
    )

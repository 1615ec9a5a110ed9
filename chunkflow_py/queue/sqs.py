"""Queues of Amazon SQS, or of any server that speaks its protocol.

Endpoint, region and credentials come from where boto3 looks for them: ``AWS_ENDPOINT_URL``,
``AWS_DEFAULT_REGION``, ``AWS_ACCESS_KEY_ID``, ``~/.aws`` and the machine's role.
"""

from __future__ import annotations

import logging
import random
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import QueueError, needs_extra

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from concurrent.futures import Future

logger = logging.getLogger(__name__)

BATCH = 10  # messages that one request may carry
SENDERS = 8
TRIES = 8
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0


class SqsQueue:
    """One queue of Amazon SQS.

    Attributes:
        url: ``sqs://`` and the name.
    """

    def __init__(self, name: str, *, create: bool = False) -> None:  # noqa: ARG002 comes next
        """Find the queue called *name*.

        Raises:
            QueueError: it does not exist, or the service cannot be reached.
            MissingExtraError: boto3 is not installed.
        """
        self.name = name
        self.url = f"sqs://{name}"
        with needs_extra("sqs", f"queue {name!r}"):
            import boto3
            from botocore.config import Config
        with _translated(f"queue {name!r} cannot be opened"):
            config = Config(retries={"mode": "standard", "total_max_attempts": 5})
            # A session of its own: the default one keeps the first credentials it has seen.
            self._client: Any = boto3.session.Session().client("sqs", config=config)
            try:
                self._address = self._client.get_queue_url(QueueName=name)["QueueUrl"]
            except self._client.exceptions.QueueDoesNotExist as error:
                raise QueueError(self._missing()) from error

    def send(self, bodies: Iterable[str]) -> int:
        """Send messages in batches, several at a time; refused ones are sent again.

        Raises:
            QueueError: a message could not be sent; says how many were.
        """
        texts = iter(bodies)
        sent = 0
        waiting: deque[Future[int]] = deque()
        with ThreadPoolExecutor(SENDERS, thread_name_prefix="sqs-send") as pool:
            try:
                while batch := list(islice(texts, BATCH)):
                    # Bounded, so that the messages in memory do not grow with their number.
                    if len(waiting) >= 2 * SENDERS:
                        sent += waiting.popleft().result()
                    waiting.append(pool.submit(self._send_batch, batch))
                while waiting:
                    sent += waiting.popleft().result()
            except QueueError as error:
                sent += sum(_counted(future) for future in waiting)
                msg = f"{error}; {sent} messages before it were sent"
                raise QueueError(msg) from error
        return sent

    def _send_batch(self, bodies: list[str]) -> int:
        entries = [{"Id": str(n), "MessageBody": body} for n, body in enumerate(bodies)]
        for attempt in range(TRIES):
            with _translated(f"cannot send to {self.url}"):
                answer = self._client.send_message_batch(QueueUrl=self._address, Entries=entries)
            failed = {entry["Id"]: entry for entry in answer.get("Failed", [])}
            if not failed:
                return len(bodies)
            entries = [entry for entry in entries if entry["Id"] in failed]
            first = failed[entries[0]["Id"]]
            reason = f"{first.get('Code', 'unknown')}: {first.get('Message', 'no reason given')}"
            if any(entry.get("SenderFault") for entry in failed.values()):
                break
            logger.debug("%s refused %d messages (%s)", self.url, len(entries), reason)
            if attempt < TRIES - 1:
                longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
                # The jitter keeps many senders from coming back all at once.
                time.sleep(longest * random.uniform(0.5, 1))  # noqa: S311
        msg = f"{self.url} refused message {entries[0]['MessageBody']!r} ({reason})"
        raise QueueError(msg)

    def _missing(self) -> str:
        names: list[str] = []
        for page in self._client.get_paginator("list_queues").paginate():
            names += [url.rpartition("/")[2] for url in page.get("QueueUrls", [])]
        near = get_close_matches(self.name, names, n=1, cutoff=0.0)
        hint = f"nearest: {near[0]!r}" if near else "there are no queues at all"
        region = self._client.meta.region_name
        return (
            f"queue {self.name!r} does not exist in {region}; "
            f"create it or check --queue-name ({hint})"
        )


def _counted(future: Future[int]) -> int:
    try:
        return future.result()
    except QueueError:
        return 0


@contextmanager
def _translated(what: str) -> Iterator[None]:
    from botocore.exceptions import BotoCoreError, ClientError, NoCredentialsError, NoRegionError

    try:
        yield
    except NoRegionError as error:
        msg = f"{what}: no region is set; set AWS_DEFAULT_REGION, such as us-east-1"
        raise QueueError(msg) from error
    except NoCredentialsError as error:
        msg = f"{what}: no credentials were found; set AWS_ACCESS_KEY_ID or run aws configure"
        raise QueueError(msg) from error
    except (BotoCoreError, ClientError) as error:
        msg = f"{what}: {error}"
        raise QueueError(msg) from error

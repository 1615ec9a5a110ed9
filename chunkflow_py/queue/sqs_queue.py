"""Queues of Amazon SQS, or of another server that implements its protocol.

boto3 finds the endpoint, the region and the credentials in ``AWS_ENDPOINT_URL``,
``AWS_DEFAULT_REGION``, ``AWS_ACCESS_KEY_ID``, ``~/.aws`` and the machine's role.
"""

from __future__ import annotations

import logging
import math
import random
import re
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import QueueError, QueueUnreachableError
from chunkflow_py.queue.daemon_threads import DaemonThreads
from chunkflow_py.queue.queue_protocol import Counts, DeadLetter, Message
from chunkflow_py.queue.sqs_address import (
    LEASE_S,
    SqsAddress,
    address_of_dead,
    attributes_of,
    find_or_create,
)
from chunkflow_py.queue.sqs_client import LONGEST_POLL_S, RETRY_POLICY, SqsClient, SqsRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

logger = logging.getLogger(__name__)

BATCH = 10  # most messages in one request
BATCH_BYTES = 256 << 10  # most bytes in one request
SENDERS = 8
TRIES = 8  # for the entries of a batch that fail while others succeed
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
LONGEST_REASON = 8192  # characters
READ_S = 60  # seconds for which dead letters are hidden from other readers

# SQS refuses the characters that XML cannot contain.
_UNSENDABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STALE = re.compile(r"ReceiptHandle|NotInflight|InvalidParameterValue|InvalidIdFormat")


class SqsQueue:
    """One queue of Amazon SQS.

    Attributes:
        url: ``sqs://``, followed by the name or the full URL of the queue.
        longest_lease_s: 12 hours in seconds, the longest lease that SQS grants.
    """

    longest_lease_s = 12 * 3600.0

    def __init__(self, name: str, *, create: bool = False, lease_s: int = LEASE_S) -> None:
        """Find or create a queue.

        Args:
            name: name of the queue, or its full URL, such as
                ``https://sqs.us-east-1.amazonaws.com/123/name``.
            create: whether to create the queue, and ``<name>-dead`` for its dead letters, if they
                do not exist.
            lease_s: default lease of a new queue in seconds, for receivers that do not request a
                duration.

        Raises:
            QueueError: the queue does not exist, or the service cannot be reached.
            MissingExtraError: boto3 is not installed.
        """
        self.url = f"sqs://{name}"
        place = SqsAddress.of(name)
        self.name = place.name
        self._client = SqsClient(f"queue {self.name!r}", place.endpoint, place.region)
        self._batches = DaemonThreads(SENDERS, "sqs-batches")
        try:
            self._address = find_or_create(self._client, place, create=create, lease_s=lease_s)
        except BaseException:
            self.close()
            raise
        self._dead: str | None = None
        self._knows_dead = False

    # --- sending -------------------------------------------------------------------------------

    def send(self, bodies: Iterable[str]) -> int:
        """Send messages in concurrent batches; return the number of messages sent.

        Raises:
            QueueError: a message could not be sent; the error states how many messages were sent.
        """
        sent = 0
        waiting: deque[Future[int]] = deque()
        try:
            for batch in _batched(bodies):
                # Bound the number of batches in memory.
                if len(waiting) >= 2 * SENDERS:
                    sent += waiting.popleft().result()
                waiting.append(self._batches.submit(self._send_batch, batch))
            while waiting:
                sent += waiting.popleft().result()
        except QueueError as error:
            sent += sum(_counted(future) for future in waiting)
            msg = f"{error}; {sent} messages were sent before this failure"
            may_pass = isinstance(error, QueueUnreachableError)
            raise (QueueUnreachableError if may_pass else QueueError)(msg) from error
        return sent

    def _send_batch(
        self,
        bodies: Sequence[str],
        address: str | None = None,
        attributes: dict[str, Any] | None = None,
    ) -> int:
        entries = [
            {"Id": str(n), "MessageBody": body, **(attributes or {})}
            for n, body in enumerate(bodies)
        ]
        failed = self._request_batch("send_message_batch", entries, address)
        for entry, error in failed:
            body = entry["MessageBody"][:200]
            msg = f"{self.url} refused message {body!r} ({_error_text(error)})"
            raise QueueError(msg)
        return len(bodies)

    # --- receiving -----------------------------------------------------------------------------

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Return free messages, each leased for *lease_s* seconds; *most* limits their number.

        Concurrent requests ask for 10 messages each. If the queue is empty, only one of these
        requests waits for a message, for at most *wait_s* seconds.
        """
        end = time.monotonic() + wait_s
        while True:
            poll_s = max(0, min(LONGEST_POLL_S, math.ceil(end - time.monotonic())))
            numbers = [min(BATCH, most - first) for first in range(0, most, BATCH)]
            waits = [poll_s, *([0] * (len(numbers) - 1))]
            requests = [
                partial(self._receive, self._address, number, lease_s, wait)
                for number, wait in zip(numbers, waits, strict=True)
            ]
            messages = [
                Message(
                    each.get("Body", ""),
                    each["ReceiptHandle"],
                    int(each.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
                )
                for answer in self._call_concurrently(requests)
                for each in answer
            ]
            if messages or time.monotonic() >= end:
                return messages

    def _receive(
        self, address: str, most: int, lease_s: float, wait_s: int, **options: Any
    ) -> list[dict[str, Any]]:
        answer = self._client.ask(
            "receive_message",
            wait_s=wait_s,
            QueueUrl=address,
            MaxNumberOfMessages=most,
            VisibilityTimeout=math.ceil(lease_s),
            WaitTimeSeconds=wait_s,
            AttributeNames=["ApproximateReceiveCount"],
            **options,
        )
        return [each for each in answer.get("Messages", ()) if each.get("ReceiptHandle")]

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove the messages of finished tasks; return those whose lease SQS reports as lost.

        SQS does not report most lost leases.
        """
        return self._change_messages("delete_message_batch", messages)

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Make leases end *lease_s* seconds from now; return the messages whose lease was lost.

        SQS does not extend a lease beyond 12 hours after receipt. A lease that would exceed this
        limit counts as lost.
        """
        # A short budget: the caller renews other leases too, and retries before this lease ends.
        return self._change_messages(
            "change_message_visibility_batch",
            messages,
            budget_s=lease_s / 6,
            VisibilityTimeout=math.ceil(lease_s),
        )

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Make messages available to all receivers after *delay_s* seconds.

        Failed requests are retried for 10 s.
        """
        # Giving up is harmless: the leases end anyway.
        self._change_messages(
            "change_message_visibility_batch",
            messages,
            budget_s=10,
            VisibilityTimeout=math.ceil(delay_s),
        )

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Send messages to the dead-letter queue, then remove them from this queue.

        The reason becomes an attribute of the message; the middle of a long reason is cut out.
        Messages whose lease was lost are ignored.
        """
        lost = {message.handle for message in self.extend(messages, READ_S)}
        messages = [message for message in messages if message.handle not in lost]
        reason = _UNSENDABLE.sub("?", reason) or "no reason given"
        if len(reason) > LONGEST_REASON:
            half = LONGEST_REASON // 2
            reason = f"{reason[:half]}\n…\n{reason[-half:]}"
        attributes = {
            "MessageAttributes": {"reason": {"DataType": "String", "StringValue": reason}}
        }
        if (dead := self._dead_address()) is not None:
            most_bytes = BATCH_BYTES - len(reason.encode()) - 100
            bodies = [m.body.encode()[:most_bytes].decode(errors="ignore") for m in messages]
            for batch in _batched(bodies, BATCH_BYTES - most_bytes):
                self._send_batch(batch, dead, attributes)
        self._change_messages("delete_message_batch", messages)

    # --- inspection ----------------------------------------------------------------------------

    def counts(self, *, dead: bool = True) -> Counts:
        """Return the approximate numbers of waiting, leased and dead messages."""
        waiting, leased = self._count(self._address)
        address = self._dead_address() if dead else None
        return Counts(waiting, leased, None if address is None else sum(self._count(address)))

    def remove(self) -> None:
        """Remove the queue and its dead-letter queue."""
        for address in (self._address, self._dead_address()):
            if address is not None:
                try:
                    self._client.ask("delete_queue", QueueUrl=address)
                except SqsRefusedError as error:
                    if "NonExistentQueue" not in error.code:
                        raise

    def _dead_address(self) -> str | None:
        if not self._knows_dead:
            self._dead = address_of_dead(self._client, self._address)
            self._knows_dead = True
        return self._dead

    def _count(self, address: str) -> tuple[int, int]:
        names = [f"ApproximateNumberOfMessages{each}" for each in ("", "Delayed", "NotVisible")]
        attributes = attributes_of(self._client, address, *names)
        visible, delayed, leased = (int(attributes.get(name, 0)) for name in names)
        return visible + delayed, leased

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield each dead letter once; hide the letters from other readers until the end."""
        dead = self._dead_address()
        if dead is None:
            return
        seen: dict[str, Message] = {}
        options = {"MessageAttributeNames": ["reason"]}
        try:
            while letters := self._receive(dead, BATCH, READ_S, 1, **options):
                for letter in letters:
                    body, handle = letter.get("Body", ""), letter["ReceiptHandle"]
                    is_new = letter.get("MessageId", handle) not in seen
                    seen[letter.get("MessageId", handle)] = Message(body, handle)
                    attribute = letter.get("MessageAttributes", {}).get("reason", {})
                    reason = attribute.get(
                        "StringValue", "received too often without being finished"
                    )
                    if is_new:
                        yield DeadLetter(body, reason)
        finally:
            self._change_messages(
                "change_message_visibility_batch",
                [*seen.values()],
                address=dead,
                budget_s=10,
                VisibilityTimeout=0,
            )

    def close(self) -> None:
        """Close the connections."""
        self._batches.close()
        self._client.close()

    # --- batches -------------------------------------------------------------------------------

    def _call_concurrently(self, calls: Sequence[Any]) -> list[Any]:
        """Make calls over several connections; return their results in the order of the calls."""
        # The first call, which may wait for long, runs here and occupies no thread.
        futures = [self._batches.submit(call) for call in calls[1:]]
        return [call() for call in calls[:1]] + [future.result() for future in futures]

    def _change_messages(
        self, action: str, messages: Sequence[Message], address: str | None = None, **options: Any
    ) -> list[Message]:
        """Apply *action* to all messages; return the messages whose handle is no longer valid."""
        parts = [messages[n : n + BATCH] for n in range(0, len(messages), BATCH)]
        lost = self._call_concurrently(
            [partial(self._change_batch, action, part, address, **options) for part in parts]
        )
        return [message for part in lost for message in part]

    def _change_batch(
        self,
        action: str,
        messages: Sequence[Message],
        address: str | None,
        *,
        budget_s: float = RETRY_POLICY.budget_s,
        **options: Any,
    ) -> list[Message]:
        entries = [
            {"Id": str(n), "ReceiptHandle": message.handle, **options}
            for n, message in enumerate(messages)
        ]
        try:
            failed = self._request_batch(action, entries, address, budget_s)
        except SqsRefusedError as error:
            if not _STALE.search(error.code):
                raise
            if len(messages) == 1:
                return [*messages]
            # Some servers refuse a whole batch because of one handle: send one at a time.
            lost: list[Message] = []
            for message in messages:
                lost += self._change_batch(action, [message], address, budget_s=budget_s, **options)
            return lost
        for entry, reason in failed:
            logger.debug(
                "%s: %s of entry %s failed: %s", self.url, action, entry["Id"], _error_text(reason)
            )
        return [messages[int(entry["Id"])] for entry, _ in failed]

    def _request_batch(
        self,
        action: str,
        entries: list[dict[str, Any]],
        address: str | None = None,
        budget_s: float = RETRY_POLICY.budget_s,
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Send a batch, and send again the entries that failed because of the server.

        Returns:
            The refused entries, each with the error of the service.

        Raises:
            QueueError: the request failed (see `SqsClient.ask`), or entries failed repeatedly in
                the server.
        """
        refused: list[tuple[dict[str, Any], dict[str, Any]]] = []
        end = time.monotonic() + budget_s
        for attempt in range(TRIES):
            answer = self._client.ask(
                action, budget_s=budget_s, QueueUrl=address or self._address, Entries=entries
            )
            # Entries that the answer does not mention may have failed.
            done = {str(each.get("Id")) for each in answer.get("Successful") or ()}
            failed = {e["Id"]: {"Code": "NotAnswered"} for e in entries if e["Id"] not in done}
            failed |= {str(each.get("Id")): each for each in answer.get("Failed") or ()}
            retryable = {n for n, each in failed.items() if not _is_final(each)}
            final = failed.keys() - retryable
            refused += [(e, failed[e["Id"]]) for e in entries if e["Id"] in final]
            if not retryable:
                return refused
            entries = [entry for entry in entries if entry["Id"] in retryable]
            reason = _error_text(failed[entries[0]["Id"]])
            logger.debug("%s: %d entries of a batch failed (%s)", self.url, len(entries), reason)
            longest_s = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
            if attempt == TRIES - 1 or time.monotonic() + longest_s > end:
                break
            # Jitter, so that many senders do not retry at the same time.
            time.sleep(longest_s * random.uniform(0.5, 1))  # noqa: S311
        body = entries[0].get("MessageBody")
        what = f"refused message {body[:200]!r}" if body else f"refused {len(entries)} messages"
        msg = f"{self.url} {what} in each of {attempt + 1} tries ({reason})"
        raise QueueUnreachableError(msg)


def _batched(bodies: Iterable[str], extra: int = 0) -> Iterator[list[str]]:
    """Yield lists of bodies that fit into one request.

    Each message takes *extra* bytes in addition to its body.
    """
    batch: list[str] = []
    size = 0
    for body in bodies:
        needed = extra + (len(body) if body.isascii() else len(body.encode()))
        if batch and (len(batch) == BATCH or size + needed > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += needed
    if batch:
        yield batch


def _is_final(error: dict[str, Any]) -> bool:
    return bool(error.get("SenderFault") or _STALE.search(str(error.get("Code", ""))))


def _error_text(error: dict[str, Any]) -> str:
    return f"{error.get('Code', 'unknown')}: {error.get('Message', 'no reason given')}"


def _counted(future: Future[int]) -> int:
    try:
        return future.result()
    except QueueError:
        return 0

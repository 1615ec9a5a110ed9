"""Queues of Amazon SQS, or of any server that speaks its protocol.

Endpoint, region and credentials come from where boto3 looks for them: ``AWS_ENDPOINT_URL``,
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
    Place,
    address_of_dead,
    attributes_of,
    find_or_create,
)
from chunkflow_py.queue.sqs_client import LONGEST_POLL_S, MANNERS, SqsClient, SqsRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from concurrent.futures import Future

logger = logging.getLogger(__name__)

BATCH = 10  # messages that one request may carry
BATCH_BYTES = 256 << 10  # that they may have together
SENDERS = 8
TRIES = 8  # of what is refused in a batch that was taken
FIRST_WAIT_S = 0.1
LONGEST_WAIT_S = 5.0
LONGEST_REASON = 8192  # characters
READ_S = 60  # for which dead letters are hidden while they are read

# What XML cannot hold, SQS refuses.
_UNSENDABLE = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_STALE = re.compile(r"ReceiptHandle|NotInflight|InvalidParameterValue|InvalidIdFormat")


class SqsQueue:
    """One queue of Amazon SQS.

    Attributes:
        url: ``sqs://`` and the name.
        longest_lease_s: SQS takes a message back 12 hours after its receipt.
    """

    longest_lease_s = 12 * 3600.0

    def __init__(self, name: str, *, create: bool = False, lease_s: int = LEASE_S) -> None:
        """Find a queue.

        Args:
            name: of the queue, or its full URL (``https://sqs.us-east-1.amazonaws.com/123/name``).
            create: make it unless it exists, and a queue ``<name>-dead`` for its dead letters.
            lease_s: of one that is made, for those who receive without saying it.

        Raises:
            QueueError: it does not exist, or the service cannot be reached.
            MissingExtraError: boto3 is not installed.
        """
        self.url = f"sqs://{name}"
        place = Place.of(name)
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

    # --- messages in ---------------------------------------------------------------------------

    def send(self, bodies: Iterable[str]) -> int:
        """Send messages in batches, several at a time; refused ones are sent again.

        Raises:
            QueueError: a message could not be sent; says how many were.
        """
        sent = 0
        waiting: deque[Future[int]] = deque()
        try:
            for batch in _batched(bodies):
                # Bounded, so that the messages in memory do not grow with their number.
                if len(waiting) >= 2 * SENDERS:
                    sent += waiting.popleft().result()
                waiting.append(self._batches.submit(self._send_batch, batch))
            while waiting:
                sent += waiting.popleft().result()
        except QueueError as error:
            sent += sum(_counted(future) for future in waiting)
            msg = f"{error}; {sent} messages before it were sent"
            again = isinstance(error, QueueUnreachableError)
            raise (QueueUnreachableError if again else QueueError)(msg) from error
        return sent

    def _send_batch(
        self, bodies: Sequence[str], to: str | None = None, more: dict[str, Any] | None = None
    ) -> int:
        entries = [
            {"Id": str(n), "MessageBody": body, **(more or {})} for n, body in enumerate(bodies)
        ]
        failed = self._tried("send_message_batch", entries, to)
        for entry, why in failed:
            msg = f"{self.url} refused message {entry['MessageBody'][:200]!r} ({_said(why)})"
            raise QueueError(msg)
        return len(bodies)

    # --- messages out --------------------------------------------------------------------------

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Return up to *most* messages; only the first request waits, several go at once."""
        end = time.monotonic() + wait_s
        while True:
            left = max(0, min(LONGEST_POLL_S, math.ceil(end - time.monotonic())))
            numbers = [min(BATCH, most - first) for first in range(0, most, BATCH)]
            waits = [left, *([0] * (len(numbers) - 1))]
            asked = [
                partial(self._receive, self._address, number, lease_s, wait)
                for number, wait in zip(numbers, waits, strict=True)
            ]
            found = [
                Message(
                    each.get("Body", ""),
                    each["ReceiptHandle"],
                    int(each.get("Attributes", {}).get("ApproximateReceiveCount", 1)),
                )
                for answer in self._at_once(asked)
                for each in answer
            ]
            if found or time.monotonic() >= end:
                return found

    def _receive(
        self, address: str, most: int, lease_s: float, wait_s: int, **more: Any
    ) -> list[dict[str, Any]]:
        answer = self._client.ask(
            "receive_message",
            wait_s=wait_s,
            QueueUrl=address,
            MaxNumberOfMessages=most,
            VisibilityTimeout=math.ceil(lease_s),
            WaitTimeSeconds=wait_s,
            AttributeNames=["ApproximateReceiveCount"],
            **more,
        )
        return [each for each in answer.get("Messages", ()) if each.get("ReceiptHandle")]

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove messages; SQS itself takes most handles whose lease has ended."""
        return self._of_each("delete_message_batch", messages)

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Let leases end *lease_s* from now; beyond 12 hours from receipt they count as lost."""
        # Whoever renews has other leases to look after: it comes back while some of this is left.
        return self._of_each(
            "change_message_visibility_batch",
            messages,
            budget_s=lease_s / 6,
            VisibilityTimeout=math.ceil(lease_s),
        )

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Give messages back; in the end they come back by themselves, so it is soon given up."""
        self._of_each(
            "change_message_visibility_batch",
            messages,
            budget_s=10,
            VisibilityTimeout=math.ceil(delay_s),
        )

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Send messages to the queue of dead letters, with the reason, then remove them.

        The reason is an attribute of the message and cut in its middle if it is long. Messages that
        are not ours any more are left to those who have them.
        """
        stale = {message.handle for message in self.extend(messages, READ_S)}
        messages = [message for message in messages if message.handle not in stale]
        reason = _UNSENDABLE.sub("?", reason) or "no reason given"
        if len(reason) > LONGEST_REASON:
            half = LONGEST_REASON // 2
            reason = f"{reason[:half]}\n…\n{reason[-half:]}"
        more = {"MessageAttributes": {"reason": {"DataType": "String", "StringValue": reason}}}
        if (dead := self._dead_address()) is not None:
            room = BATCH_BYTES - len(reason.encode()) - 100
            bodies = [m.body.encode()[:room].decode(errors="ignore") for m in messages]
            for batch in _batched(bodies, BATCH_BYTES - room):
                self._send_batch(batch, dead, more)
        self._of_each("delete_message_batch", messages)

    # --- what there is -------------------------------------------------------------------------

    def counts(self, *, dead: bool = True) -> Counts:
        """Return how many messages there are, which SQS knows only about."""
        waiting, leased = self._count(self._address)
        address = self._dead_address() if dead else None
        return Counts(waiting, leased, None if address is None else sum(self._count(address)))

    def _dead_address(self) -> str | None:
        if not self._knows_dead:
            self._dead = address_of_dead(self._client, self._address)
            self._knows_dead = True
        return self._dead

    def _count(self, address: str) -> tuple[int, int]:
        names = ["", "Delayed", "NotVisible"]
        wanted = (f"ApproximateNumberOfMessages{each}" for each in names)
        said = attributes_of(self._client, address, *wanted)
        here, delayed, leased = (
            int(said.get(f"ApproximateNumberOfMessages{each}", 0)) for each in names
        )
        return here + delayed, leased

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield each dead letter once; they are hidden from other readers meanwhile."""
        dead = self._dead_address()
        if dead is None:
            return
        seen: dict[str, Message] = {}
        more = {"MessageAttributeNames": ["reason"]}
        try:
            while letters := self._receive(dead, BATCH, READ_S, 1, **more):
                for letter in letters:
                    body, handle = letter.get("Body", ""), letter["ReceiptHandle"]
                    known = letter.get("MessageId", handle) in seen
                    seen[letter.get("MessageId", handle)] = Message(body, handle)
                    said = letter.get("MessageAttributes", {}).get("reason", {})
                    reason = said.get("StringValue", "received too often without being finished")
                    if not known:
                        yield DeadLetter(body, reason)
        finally:
            action = "change_message_visibility_batch"
            self._of_each(action, [*seen.values()], at=dead, budget_s=10, VisibilityTimeout=0)

    def close(self) -> None:
        """Let go of the connections."""
        self._batches.close()
        self._client.close()

    # --- batches -------------------------------------------------------------------------------

    def _at_once(self, calls: Sequence[Any]) -> list[Any]:
        """Return what the calls return, made over several connections."""
        # The first, which may wait for long, leaves the threads to others.
        futures = [self._batches.submit(call) for call in calls[1:]]
        return [call() for call in calls[:1]] + [future.result() for future in futures]

    def _of_each(
        self, action: str, messages: Sequence[Message], at: str | None = None, **said: Any
    ) -> list[Message]:
        """Ask for the same for every message; return those whose handle is good no more."""
        parts = [messages[n : n + BATCH] for n in range(0, len(messages), BATCH)]
        lost = self._at_once([partial(self._of_batch, action, part, at, **said) for part in parts])
        return [message for part in lost for message in part]

    def _of_batch(
        self,
        action: str,
        messages: Sequence[Message],
        at: str | None,
        *,
        budget_s: float = MANNERS.budget_s,
        **said: Any,
    ) -> list[Message]:
        entries = [
            {"Id": str(n), "ReceiptHandle": message.handle, **said}
            for n, message in enumerate(messages)
        ]
        try:
            failed = self._tried(action, entries, at, budget_s)
        except SqsRefusedError as error:
            if not _STALE.search(error.code):
                raise
            if len(messages) == 1:
                return [*messages]
            # Some servers refuse a whole batch for the sake of one handle.
            singly = [[message] for message in messages]
            lost = [self._of_batch(action, m, at, budget_s=budget_s, **said) for m in singly]
            return [message for part in lost for message in part]
        for entry, why in failed:
            logger.debug("%s: %s of message %s: %s", self.url, action, entry["Id"], _said(why))
        return [messages[int(entry["Id"])] for entry, _ in failed]

    def _tried(
        self,
        action: str,
        entries: list[dict[str, Any]],
        at: str | None = None,
        budget_s: float = MANNERS.budget_s,
    ) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Send a batch, and what fails for no fault of ours again; return what is refused, and why.

        Raises:
            QueueError: see `SqsClient.ask`; or entries fail for no fault of ours, again and again.
        """
        refused: list[tuple[dict[str, Any], dict[str, Any]]] = []
        end = time.monotonic() + budget_s
        for attempt in range(TRIES):
            answer = self._client.ask(
                action, budget_s=budget_s, QueueUrl=at or self._address, Entries=entries
            )
            # What the answer does not speak of may not have been done.
            done = {str(each.get("Id")) for each in answer.get("Successful") or ()}
            failed = {e["Id"]: {"Code": "NotAnswered"} for e in entries if e["Id"] not in done}
            failed |= {str(each.get("Id")): each for each in answer.get("Failed") or ()}
            again = {n for n, each in failed.items() if not _is_final(each)}
            refused += [(e, failed[e["Id"]]) for e in entries if e["Id"] in failed.keys() - again]
            if not again:
                return refused
            entries = [entry for entry in entries if entry["Id"] in again]
            reason = _said(failed[entries[0]["Id"]])
            logger.debug("%s failed %d entries (%s)", self.url, len(entries), reason)
            longest = min(LONGEST_WAIT_S, FIRST_WAIT_S * 2**attempt)
            if attempt == TRIES - 1 or time.monotonic() + longest > end:
                break
            # The jitter keeps many senders from coming back all at once.
            time.sleep(longest * random.uniform(0.5, 1))  # noqa: S311
        body = entries[0].get("MessageBody")
        what = f"refused message {body[:200]!r}" if body else f"failed {len(entries)} of a batch"
        msg = f"{self.url} {what} ({reason}), again and again"
        raise QueueUnreachableError(msg)


def _batched(bodies: Iterable[str], extra: int = 0) -> Iterator[list[str]]:
    """Yield what one request may carry; *extra* bytes come with each message."""
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


def _is_final(why: dict[str, Any]) -> bool:
    return bool(why.get("SenderFault") or _STALE.search(str(why.get("Code", ""))))


def _said(why: dict[str, Any]) -> str:
    return f"{why.get('Code', 'unknown')}: {why.get('Message', 'no reason given')}"


def _counted(future: Future[int]) -> int:
    try:
        return future.result()
    except QueueError:
        return 0

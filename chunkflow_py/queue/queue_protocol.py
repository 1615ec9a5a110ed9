"""The protocol that all task queues implement, and the table of URL schemes.

| URL                  | queue                                                                  |
|----------------------|------------------------------------------------------------------------|
| ``name``             | the queue of this name in Amazon SQS                                   |
| ``sqs://name``       | the queue of this name in Amazon SQS                                   |
| ``sqlite:///path``   | a SQLite file, for the processes of one machine; needs no server       |
| ``file:///path``     | a folder on a file system that machines share; needs no server         |
| ``memory://name``    | the memory of this process, for tests                                  |

Receiving a message *leases* the message: other receivers do not see the message until its lease
ends or the receiver releases the message. Acknowledging a message removes it. Every queue delivers
each message at least once, in any order. Leases are timed by the queue's clock, never by the
caller's wall clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from threading import Event
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from chunkflow_py.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# scheme -> (module, class); imported on first use
SCHEMES: dict[str, tuple[str, str]] = {
    "sqs": ("chunkflow_py.queue.sqs_queue", "SqsQueue"),
    "sqlite": ("chunkflow_py.queue.sqlite_queue", "SqliteQueue"),
    "file": ("chunkflow_py.queue.directory_queue", "DirectoryQueue"),
    "memory": ("chunkflow_py.queue.memory_queue", "MemoryQueue"),
}


@dataclass(frozen=True, slots=True)
class Message:
    """One receipt of a message.

    Attributes:
        body: text of the message.
        handle: identifies this receipt; a later receipt of the same message has another handle.
        receives: number of times that the message was received, including this receipt.
    """

    body: str
    handle: str
    receives: int = 1


@dataclass(frozen=True, slots=True)
class Counts:
    """The numbers of messages in a queue; approximate for SQS.

    Attributes:
        waiting: number of messages that can be received now or after a delay.
        leased: number of messages whose lease has not ended.
        dead: number of dead letters; ``None`` if the queue does not store dead letters.
    """

    waiting: int
    leased: int
    dead: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """The text of a message that no worker will receive again, and the reason."""

    body: str
    reason: str


class Queue(Protocol):
    """A task queue; safe to call from several threads.

    Attributes:
        url: address that `open_queue` accepts.
        longest_lease_s: the longest time for which a message can stay leased after its receipt,
            all extensions included, in seconds; infinite for most queues.

    Raises (all methods):
        QueueError: the queue cannot be reached, or refuses the request. Transient failures are
            retried first.
    """

    url: str
    longest_lease_s: float

    def send(self, bodies: Iterable[str]) -> int:
        """Send messages, using an amount of memory that does not grow with their number.

        Args:
            bodies: texts of the messages, such as box strings.

        Returns:
            The number of messages sent, each confirmed by the queue.

        Raises:
            QueueError: a message could not be sent; the text of the error contains the number of
                messages that were sent.
        """

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Return free messages, each leased for *lease_s* seconds from now.

        A message is free if it is not leased, and not delayed by `release`.

        Args:
            most: limit of the number of messages.
            lease_s: duration of each lease, in seconds.
            wait_s: longest time to wait for the first message, in seconds. If no message becomes
                free in this time, the list is empty.
        """

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove the messages of finished tasks; return the messages whose lease was lost.

        A message whose lease was lost may stay in the queue. Delivering a finished task again does
        no harm.
        """

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Make leases end *lease_s* seconds from now; return messages whose lease was lost."""

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Make messages available to all receivers after *delay_s* seconds.

        Messages whose lease was lost are ignored.
        """

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Move messages to the dead letters, and store *reason* with each dead letter.

        A queue that does not store dead letters deletes the messages.
        """

    def counts(self, *, dead: bool = True) -> Counts:
        """Count the waiting, leased and dead messages.

        Args:
            dead: whether to count the dead letters even if this needs an extra request. Queues that
                need no extra request ignore *dead*, and always count the dead letters.
        """

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield the dead letters; they stay in the queue."""

    def close(self) -> None:
        """Close connections and files."""


@runtime_checkable
class TellsLeased(Protocol):
    """A queue that can list its leased messages; Amazon SQS cannot."""

    def leased(self, most: int) -> list[str]:
        """Return the texts of messages that are leased now; *most* limits their number."""


@runtime_checkable
class EndsWaits(Protocol):
    """A queue whose wait for messages can be ended early by another thread."""

    def receive_until(
        self, stop: Event | None, most: int, lease_s: float, wait_s: float = 0.0
    ) -> list[Message]:
        """Return free messages; stop waiting for a message when *stop* is set.

        The other arguments are the same as those of `Queue.receive`.
        """


def address_of(url: str) -> tuple[str, str]:
    """Split the URL of a queue into scheme and name, without opening the queue.

    Raises:
        QueueError: the scheme is unknown, or the name is missing.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "sqs", url
    if scheme not in SCHEMES:
        near = get_close_matches(scheme, SCHEMES, n=1, cutoff=0.0)[0]
        known = ", ".join(f"{name}://" for name in SCHEMES)
        msg = (
            f"queue {url!r} has the scheme {scheme!r}, which is not one of {known}; "
            f"did you mean {near}://{rest}?"
        )
        raise QueueError(msg)
    if not rest:
        msg = f"queue {url!r} has no name; write {scheme}://NAME"
        raise QueueError(msg)
    return scheme, rest


@runtime_checkable
class Removable(Protocol):
    """A queue that can remove itself."""

    def remove(self) -> None:
        """Remove the queue with its messages and dead letters, if the queue exists."""


def open_queue(url: str, *, create: bool = False, lease_s: int | None = None) -> Queue:
    """Open the queue at *url*; a bare name is a queue of Amazon SQS.

    Args:
        url: URL of the queue, in one of the forms in the table at the top of this module.
        create: whether to create the queue if it does not exist; for SQS, also its dead-letter
            queue. Only producers should set *create*: a worker with a mistyped name would create an
            empty queue and wait forever.
        lease_s: default lease of a new SQS queue in seconds (default: 120). The default applies to
            receivers that do not request a duration.

    Raises:
        QueueError: the scheme is unknown, or the queue does not exist.
    """
    scheme, rest = address_of(url)
    module, name = SCHEMES[scheme]
    make: Any = getattr(import_module(module), name)
    more = {"lease_s": lease_s} if lease_s is not None and scheme == "sqs" else {}
    return cast("Queue", make(rest, create=create, **more))


def poll_for_messages(
    take: Callable[[], list[Message]],
    wait_s: float,
    pauses_s: tuple[float, float],
    stop: Event | None = None,
) -> list[Message]:
    """Call *take* until it returns messages or *wait_s* has passed.

    Args:
        take: function that returns the messages that can be received now.
        wait_s: time after which to give up, in seconds; if it is 0, *take* is called once.
        pauses_s: the first and the longest pause between two calls, in seconds; each pause is
            twice as long as the one before it.
        stop: event that ends the wait when it is set.
    """
    deadline = time.monotonic() + wait_s
    pause_s, longest_s = pauses_s
    stop = stop or Event()
    while True:
        messages = take()
        remaining_s = deadline - time.monotonic()
        if messages or remaining_s <= 0 or stop.wait(min(pause_s, remaining_s)):
            return messages
        pause_s = min(2 * pause_s, longest_s)

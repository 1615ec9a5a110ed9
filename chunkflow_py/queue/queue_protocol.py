"""What every queue of tasks can do, and the table of URL schemes.

| URL                  | queue                                                                  |
|----------------------|------------------------------------------------------------------------|
| ``name``             | Amazon SQS, by the queue's name                                        |
| ``sqs://name``       | the same                                                               |
| ``sqlite:///path``   | a file, for processes of one machine; needs no server                  |
| ``file:///path``     | a folder on a file system that machines share; needs no server         |
| ``memory://name``    | in this process, for tests                                             |

A message that is received is *leased*: hidden from others until it is acknowledged (gone),
released (visible again) or the lease ends (the same). Every queue delivers at least once, in any
order. Times are those of the queue, never the caller's wall clock.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol, cast, runtime_checkable

from chunkflow_py.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

# scheme -> (module, class); imported when a URL asks for it
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
        body: its text.
        handle: names this very receipt to the queue.
        receives: how often the message was received, this time included.
    """

    body: str
    handle: str
    receives: int = 1


@dataclass(frozen=True, slots=True)
class Counts:
    """How many messages there are, as far as the queue knows; SQS only about.

    Attributes:
        waiting: that could be received, now or after their delay.
        leased: that somebody works on.
        dead: put aside; ``None`` where there is no place for them.
    """

    waiting: int
    leased: int
    dead: int | None = None


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """A message that was put aside, and why."""

    body: str
    reason: str


class Queue(Protocol):
    """A place where messages wait for workers; safe to call from several threads.

    Attributes:
        url: what a person would write to open it again.
        longest_lease_s: for which a message can be kept after its receipt, all extensions
            included, in seconds; infinite for most.

    Raises (all methods):
        QueueError: the queue cannot be reached, or refuses. What may pass by itself has been
            tried again before.
    """

    url: str
    longest_lease_s: float

    def send(self, bodies: Iterable[str]) -> int:
        """Send messages, in constant memory however many there are.

        Args:
            bodies: text of the messages, such as box strings.

        Returns:
            How many were sent; the queue has confirmed each.

        Raises:
            QueueError: a message could not be sent; says how many were.
        """

    def receive(self, most: int, lease_s: float, wait_s: float = 0.0) -> list[Message]:
        """Return up to *most* messages, each leased for *lease_s* from now.

        Waits up to *wait_s* for the first; returns an empty list if none came.
        """

    def acknowledge(self, messages: Sequence[Message]) -> list[Message]:
        """Remove messages that are finished; return those that were not leased to us any more.

        A message whose lease has ended may stay, and will be delivered again: that is harmless.
        """

    def extend(self, messages: Sequence[Message], lease_s: float) -> list[Message]:
        """Let leases end *lease_s* from now; return those messages that are not ours any more."""

    def release(self, messages: Sequence[Message], delay_s: float = 0.0) -> None:
        """Give messages back, to be received by others after *delay_s*; lost ones are ignored."""

    def bury(self, messages: Sequence[Message], reason: str) -> None:
        """Put messages aside with the reason, where nobody receives them.

        Where the queue has no place for dead letters they are removed.
        """

    def counts(self, *, dead: bool = True) -> Counts:
        """Return how many messages there are.

        Args:
            dead: whether those that were put aside are to be counted, where that costs more.
        """

    def dead_letters(self) -> Iterator[DeadLetter]:
        """Yield what was put aside; it stays there."""

    def close(self) -> None:
        """Let go of connections and files."""


@runtime_checkable
class TellsLeased(Protocol):
    """A queue that can tell which messages somebody works on; Amazon SQS cannot."""

    def leased(self, most: int) -> list[str]:
        """Return the texts of up to *most* messages that are leased now; changes nothing."""


def address_of(url: str) -> tuple[str, str]:
    """Return the scheme of a queue and what follows it; nothing is opened.

    Raises:
        QueueError: the scheme is not known, or there is no name.
    """
    scheme, separator, rest = url.partition("://")
    if not separator:
        scheme, rest = "sqs", url
    if scheme not in SCHEMES:
        near = get_close_matches(scheme, SCHEMES, n=1, cutoff=0.0)[0]
        known = ", ".join(f"{name}://" for name in SCHEMES)
        msg = (
            f"queue {url!r} has the scheme {scheme!r}, which is none of {known}; "
            f"did you mean {near}://{rest}?"
        )
        raise QueueError(msg)
    if not rest:
        msg = f"queue {url!r} has no name; write {scheme}://NAME"
        raise QueueError(msg)
    return scheme, rest


def open_queue(url: str, *, create: bool = False, lease_s: int | None = None) -> Queue:
    """Return the queue at *url*; a bare name is a queue of Amazon SQS.

    Args:
        url: see the table above.
        create: make the queue (of SQS: and that of its dead letters) if there is none. Producers
            may ask for it, workers must not: a mistyped name would make them wait for ever.
        lease_s: of a queue of SQS that is made, what its messages are leased for where who receives
            them does not say it (default: two minutes).

    Raises:
        QueueError: the scheme is not known, or the queue does not exist.
    """
    scheme, rest = address_of(url)
    module, name = SCHEMES[scheme]
    make: Any = getattr(import_module(module), name)
    more = {"lease_s": lease_s} if lease_s is not None and scheme == "sqs" else {}
    return cast("Queue", make(rest, create=create, **more))


def poll_for_messages(
    take: Callable[[], list[Message]], wait_s: float, pauses_s: tuple[float, float]
) -> list[Message]:
    """Call *take* until it returns messages or *wait_s* has passed; for queues without events.

    Args:
        take: returns the messages that can be received now.
        wait_s: how long to try; with 0, *take* is called once.
        pauses_s: the first and the longest pause between two calls; each is twice the last.
    """
    deadline = time.monotonic() + wait_s
    pause_s, longest_s = pauses_s
    while True:
        messages = take()
        remaining_s = deadline - time.monotonic()
        if messages or remaining_s <= 0:
            return messages
        time.sleep(min(pause_s, remaining_s))
        pause_s = min(2 * pause_s, longest_s)

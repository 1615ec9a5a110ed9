"""What every queue of tasks can do, and the table of URL schemes.

| URL                  | queue                           |
|----------------------|---------------------------------|
| ``name``             | Amazon SQS, by the queue's name |
| ``sqs://name``       | the same                        |
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from chunkflow_py.errors import QueueError

if TYPE_CHECKING:
    from collections.abc import Iterable

# scheme -> (module, class); imported when a URL asks for it
SCHEMES: dict[str, tuple[str, str]] = {"sqs": ("chunkflow_py.queue.sqs", "SqsQueue")}


class Queue(Protocol):
    """A place where messages wait for workers.

    Attributes:
        url: what a person would write to open it again.
    """

    url: str

    def send(self, bodies: Iterable[str]) -> int:
        """Send messages, in constant memory however many there are.

        Args:
            bodies: text of the messages, such as box strings.

        Returns:
            How many were sent; the queue has confirmed each.

        Raises:
            QueueError: a message could not be sent; says how many were.
        """


def open_queue(url: str) -> Queue:
    """Return the queue at *url*; a bare name is a queue of Amazon SQS.

    Raises:
        QueueError: the scheme is not known, or the queue does not exist.
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
    module, name = SCHEMES[scheme]
    return cast("Queue", getattr(import_module(module), name)(rest))

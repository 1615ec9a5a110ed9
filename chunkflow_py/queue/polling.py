"""Waiting for a message where nobody tells that one has come."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from chunkflow_py.queue.queue_protocol import Message


def polled(
    take: Callable[[], list[Message]], wait_s: float, pauses_s: tuple[float, float]
) -> list[Message]:
    """Return what *take* finds, tried again until it finds something or *wait_s* has passed.

    Args:
        take: returns the messages that are there.
        wait_s: for which it is tried.
        pauses_s: the first and the longest pause between two tries; each is twice the last.
    """
    deadline = time.monotonic() + wait_s
    pause, longest = pauses_s
    while True:
        messages = take()
        remains = deadline - time.monotonic()
        if messages or remains <= 0:
            return messages
        time.sleep(min(pause, remains))
        pause = min(2 * pause, longest)

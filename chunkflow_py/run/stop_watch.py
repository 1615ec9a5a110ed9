"""Check regularly, in a thread, whether a worker must take no more tasks of a run."""

from __future__ import annotations

import logging
import random
import threading
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chunkflow_py.errors import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

logger = logging.getLogger(__name__)

INTERVAL_S = 30.0  # between two looks of a worker
_EARLY = (0.75, 1.0)  # share of the interval, so that workers do not look at the same time
_CLOSE_S = 5.0


@dataclass
class StopWatch:
    """The result of the latest check whether a worker must stop working on a run.

    Attributes:
        reason: why the worker must take no more tasks; ``None`` while the worker may take tasks.
    """

    reason: str | None = None


@contextmanager
def watching(look: Callable[[], str | None], interval_s: float = INTERVAL_S) -> Iterator[StopWatch]:
    """Call *look* now, and then repeatedly in a thread until the ``with`` block ends.

    If a call in the thread fails, the error is logged, and the latest result stays valid.

    Args:
        look: function that returns the reason why the worker must take no more tasks, or ``None``.
            The function may read from a store.
        interval_s: longest time between two calls, in seconds.

    Raises:
        ChunkflowError: the first call failed.
    """
    watch = StopWatch(look())
    is_over = threading.Event()

    def keep_looking() -> None:
        while not is_over.wait(interval_s * random.uniform(*_EARLY)):  # noqa: S311
            try:
                watch.reason = look()
            except Exception as error:  # noqa: BLE001  (the thread must live)
                logger.warning(
                    "cannot check whether this worker must stop; the check is repeated: %s",
                    named(error),
                )

    thread = threading.Thread(target=keep_looking, name="stop-watch", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        is_over.set()
        thread.join(_CLOSE_S)

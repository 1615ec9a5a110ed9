"""End a worker that has stalled, so that other workers get its tasks.

The main loop of a worker runs in its supervisor. If the supervisor hangs, another thread still
renews the leases, so no other worker would ever receive the tasks. When the process ends, the
leases expire.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger(__name__)

LIMIT_S = 300  # a supervisor ticks several times a second
CODE = 70  # exit code of an unexpected error


class StallWatch:
    """Counts, in a thread, the seconds since the supervisor last reported that it is running.

    The thread does not count the time in which the whole process was suspended.

    Args:
        limit_s: number of seconds after which *on_stall* is called.
        on_stall: function that is called once, in the thread; the default ends the process.
        second_s: time after which the thread counts one second; less than 1 s in tests, to save
            time.
    """

    def __init__(
        self,
        limit_s: int = LIMIT_S,
        on_stall: Callable[[], None] | None = None,
        second_s: float = 1.0,
    ) -> None:
        self._limit, self._second_s = limit_s, second_s
        self._on_stall = on_stall or self._end_process
        self._seconds = 0
        self._over = threading.Event()
        threading.Thread(target=self._count, name="stall-watch", daemon=True).start()

    def tick(self) -> None:
        """Report that the supervisor is running; called in the supervisor's thread."""
        self._seconds = 0

    def close(self) -> None:
        """Stop counting."""
        self._over.set()

    def _count(self) -> None:
        while not self._over.wait(self._second_s):
            self._seconds += 1
            if self._seconds >= self._limit:
                self._on_stall()
                return

    def _end_process(self) -> None:
        logger.critical(
            "the main loop of this worker has not responded for %d s, so the worker ends; other "
            "workers receive its tasks when their leases expire; the stack traces below show where "
            "the worker hangs",
            self._limit,
        )
        with suppress(Exception):  # a closed stderr must not keep the process alive
            faulthandler.dump_traceback(sys.__stderr__ or 2)
        os._exit(CODE)

"""What a signal does to a worker while none of its stages listens: at its start, between stages."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chunkflow_py.core.interrupts import (
    Interrupted,
    kept_signal,
    leave_within,
    on_stop_signals,
    restore_signals,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

GRACE_S = 10.0  # from the signal to the end, for what is given back


class AskedToStop(Interrupted):
    """A signal has come; no error, so that nothing on the way out takes it for one."""


@contextmanager
def stops_when_asked(code: int) -> Iterator[None]:
    """Raise `AskedToStop` in the main thread at the first signal, and leave at the second.

    Supervisors install handlers of their own meanwhile, and put these back.

    Args:
        code: exit code of the process, if it is not ended after `GRACE_S`.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    asked: list[int] = []

    def leave() -> None:
        os._exit(code)

    def ask(number: int) -> None:
        if asked:
            leave()
        asked.append(number)
        leave_within(GRACE_S, leave)
        raise AskedToStop(signal.Signals(number).name)

    before = on_stop_signals(ask)
    try:
        if (kept := kept_signal()) is not None:  # it came while the command line was imported
            raise AskedToStop(kept)
        yield
    finally:
        restore_signals(before)

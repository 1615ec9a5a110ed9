"""What a signal does to a worker while none of its stages listens: at its start, between stages."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

from chunkflow_py.interrupts import Interrupted, kept_signal, stop_signals

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

    def leave() -> None:
        os._exit(code)

    def ask(number: int, _: object) -> None:
        for each in numbers:
            signal.signal(each, lambda *_: leave())
        timer = threading.Timer(GRACE_S, leave)
        timer.daemon = True
        timer.start()
        raise AskedToStop(signal.Signals(number).name)

    numbers = stop_signals()
    before = {number: signal.signal(number, ask) for number in numbers}
    try:
        if (kept := kept_signal()) is not None:  # it came while the command line was imported
            raise AskedToStop(kept)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

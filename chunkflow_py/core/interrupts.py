"""Handle stop signals from the start, even before the rest of the package is imported.

Importing the command line takes a fraction of a second. A signal that arrives in that time is
recorded (`keep_signals`), and a worker then stops as soon as it has started.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # like `signal`, but makes no enums: 20 x faster
import atexit
import errno
import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

# Signals by which administrators, schedulers and terminals ask a worker to stop.
STOP = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1)
WORKERS = ("work", "run")  # the subcommands that drain
# Options that may come before a subcommand.
_TAKE_A_VALUE = ("--mip", "-m", "--ahead", "--log-level", "-l", "--log-file", "-f")
_TRY_AGAIN = 75  # EX_TEMPFAIL

_kept: list[int] = []
_planned: list[threading.Timer] = []


class Interrupted(KeyboardInterrupt):
    """Raised when a user or a signal ends the process; not recorded as the failure of a task."""


def stop_signals() -> list[signal.Signals]:
    """Return the signals in `STOP` that a worker handles; under nohup, SIGHUP is not handled."""
    is_ignored = signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    return [number for number in STOP if not (is_ignored and number == signal.SIGHUP)]


def on_stop_signals(handler: Callable[[int], None]) -> dict[int, Any]:
    """Call *handler*, in the main thread, with each signal that asks this process to stop.

    When a terminal closes, the shell and the kernel may each send a SIGHUP; the second SIGHUP does
    not count as another request.

    Returns:
        The previous handlers by signal number, for `restore_signals`.
    """
    heard: list[int] = []

    def handle(number: int, _: object) -> None:
        if number == signal.SIGHUP:
            leave_closed_terminal()
            if heard:
                return
        heard.append(number)
        handler(number)

    return {number: signal.signal(number, handle) for number in stop_signals()}


def restore_signals(before: dict[int, Any]) -> None:
    """Restore the handlers that `on_stop_signals` returned."""
    for number, handler in before.items():
        signal.signal(number, handler)


def leave_within(seconds: float, leave: Callable[[], None]) -> None:
    """After *seconds*, call *leave* to end this process, unless `stay` is called before."""
    timer = threading.Timer(seconds, leave)
    timer.daemon = True
    timer.start()
    _planned.append(timer)


def stay() -> None:
    """Cancel all exits that `leave_within` has scheduled.

    A program that calls the command line as a function calls `stay`, so that it can continue.
    """
    while _planned:
        _planned.pop().cancel()


def leave_closed_terminal(*_: object) -> None:
    """Redirect output from a closed terminal to /dev/null, because writes would fail."""
    import termios

    for descriptor in (0, 1, 2):
        try:
            termios.tcgetattr(descriptor)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                nowhere = os.open(os.devnull, os.O_RDWR)
                os.dup2(nowhere, descriptor)
                os.close(nowhere)


def starts_worker(arguments: Sequence[str]) -> bool:
    """Return whether *arguments* start a worker: whether their subcommand is one of `WORKERS`."""
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("-"):
            return argument in WORKERS
        if argument in _TAKE_A_VALUE:
            next(remaining, None)
    return False


def keep_signals() -> None:
    """Record the first signal that asks this process to stop; end the process at the second.

    The handlers stay until the process ends. Code that temporarily installs other handlers must
    restore the handlers of `keep_signals` afterwards. While Python exits, the signals are ignored.
    """
    for number in on_stop_signals(_keep):
        atexit.register(signal.signal, number, signal.SIG_IGN)


@contextmanager
def kept_signals() -> Iterator[None]:
    """Within the ``with`` block, handle stop signals as `keep_signals` does.

    For programs that call the command line as a function.
    """
    if threading.current_thread() is not threading.main_thread():  # where Python handles signals
        yield
        return
    before = on_stop_signals(_keep)
    try:
        yield
    finally:
        _kept.clear()
        restore_signals(before)


def kept_signal() -> str | None:
    """Return the name of the signal that was recorded; ``None`` if no signal has arrived."""
    return signal.Signals(_kept[0]).name if _kept else None


def _keep(number: int) -> None:
    if _kept:
        os._exit(_TRY_AGAIN)  # no task is leased yet
    _kept.append(number)


class marked_interrupts:  # noqa: N801  (a context manager, faster than a generator)
    """Within the ``with`` block, raise `Interrupted` instead of KeyboardInterrupt on ctrl-C.

    A KeyboardInterrupt that code in the block raises itself is not changed. This context manager
    has no effect outside the main thread, or if another handler of SIGINT is installed.
    """

    __slots__ = ("_is_set",)

    def __enter__(self) -> None:
        self._is_set = (
            threading.get_ident() == threading.main_thread().ident
            and _signal.getsignal(signal.SIGINT) is signal.default_int_handler
        )
        if self._is_set:
            _signal.signal(signal.SIGINT, _interrupt)

    def __exit__(self, *_: object) -> None:
        if self._is_set and _signal.getsignal(signal.SIGINT) is _interrupt:
            _signal.signal(signal.SIGINT, signal.default_int_handler)


def _interrupt(*_: object) -> None:
    raise Interrupted

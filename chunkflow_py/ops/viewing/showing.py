"""Wait until the user ends the view of a task; then the pipeline continues."""

from __future__ import annotations

import signal
import threading
import webbrowser
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chunkflow_py.pipeline.terminal import echo

if TYPE_CHECKING:
    from types import FrameType

    from chunkflow_py.core.task import Task


@dataclass
class Showing:
    """Keeps the view of a task open, and blocks the pipeline until the user ends the view.

    While a view is open, SIGINT (Ctrl-C) ends the view, and SIGTERM ends the view and suppresses
    all later views. While no view is open, signals reach the previous handlers.

    Attributes:
        ended: whether views of later tasks are suppressed.
    """

    ended: bool = field(default=False, init=False)
    _over: threading.Event = field(default_factory=threading.Event, init=False, repr=False)
    _handlers: dict[int, Any] = field(default_factory=dict, init=False, repr=False)
    _viewing: bool = field(default=False, init=False)

    def __enter__(self) -> Showing:
        """Install the signal handlers, if this thread is the main thread."""
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._handlers[number] = signal.signal(number, self._interrupted)
        return self

    def __exit__(self, *_: object) -> None:
        """Restore the previous signal handlers."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers.clear()

    def wait(self, task: Task, url: str, *, open_page: bool = False) -> None:
        """Print the address of the view of *task*, and return when the view ends.

        Args:
            task: task that the view shows.
            url: address of the page.
            open_page: whether to open the page in the browser.
        """
        self._over.clear()
        self._viewing = True
        echo(f"{task} is shown at {url} until you press Ctrl-C", err=True)
        if open_page:
            webbrowser.open(url)
        while not self._over.wait(0.2):
            pass  # Python handles a signal only when this main thread wakes up
        self._viewing = False

    def close(self) -> None:
        """End the current view."""
        self._over.set()

    def _interrupted(self, number: int, frame: FrameType | None) -> None:
        if self._viewing:
            self.ended = number == signal.SIGTERM
            self._over.set()
            return
        before = self._handlers[number]
        if callable(before):
            before(number, frame)
            return
        signal.signal(number, before)
        signal.raise_signal(number)

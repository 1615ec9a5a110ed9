"""Threads that nobody waits for: a call in one of them can be given up, whatever it hangs in."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DaemonThreads:
    """A pool of threads that do not keep the process alive; made when they are needed.

    Args:
        most: threads there may be, those included that hang.
        name: of the threads, for debuggers.
    """

    def __init__(self, most: int, name: str) -> None:
        """Begin with no thread."""
        self._most, self._name = most, name
        self._work: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0  # minus what waits for a thread

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Call it in a thread; cancel the future to give it up before it has begun."""
        future: Future[T] = Future()
        with self._lock:
            self._idle -= 1
            if self._idle < 0 and self._threads < self._most:
                self._threads += 1
                self._idle += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._work.put((future, call, arguments))
        return future

    def close(self) -> None:
        """Let the threads end when they have done what was asked before."""
        with self._lock:
            for _ in range(self._threads):
                self._work.put(None)

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            _do(*job)
            del job  # or its result would live until the next comes
            with self._lock:
                self._idle += 1


def _do(future: Future[T], call: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call(*arguments))
    except BaseException as error:  # noqa: BLE001 raised where the result is asked for
        future.set_exception(error)

"""A thread pool whose callers can abandon a call, even if the call hangs in a system call."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class DaemonThreads:
    """A pool of daemon threads, started on demand; the threads do not keep the process alive.

    Args:
        max_threads: maximum number of threads, including threads that hang.
        name: name of the threads, which debuggers show.
    """

    def __init__(self, max_threads: int, name: str) -> None:
        """Create the pool; the first call starts the first thread."""
        self._max_threads = max_threads
        self._name = name
        self._work: SimpleQueue[Any] = SimpleQueue()
        self._lock = threading.Lock()
        self._threads = 0
        self._idle = 0  # idle threads minus queued calls

    def submit(self, call: Callable[..., T], *arguments: Any) -> Future[T]:
        """Run *call* in a thread; return a future, which can be cancelled until the call begins."""
        future: Future[T] = Future()
        with self._lock:
            self._idle -= 1
            if self._idle < 0 and self._threads < self._max_threads:
                self._threads += 1
                self._idle += 1
                threading.Thread(target=self._run, name=self._name, daemon=True).start()
        self._work.put((future, call, arguments))
        return future

    def close(self) -> None:
        """Let the threads end after the calls submitted so far; do not wait for these calls."""
        with self._lock:
            for _ in range(self._threads):
                self._work.put(None)

    def _run(self) -> None:
        while (job := self._work.get()) is not None:
            _run_job(*job)
            del job  # or its result would stay in memory until the next job
            with self._lock:
                self._idle += 1


def _run_job(future: Future[T], call: Callable[..., T], arguments: tuple[Any, ...]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        future.set_result(call(*arguments))
    except BaseException as error:  # noqa: BLE001 raised by future.result()
        future.set_exception(error)

"""Streams that prefetch in background threads: all concurrency between stages is here."""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TYPE_CHECKING, Any, TypeVar

from chunkflow_py.errors import ChunkflowError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

T = TypeVar("T")
R = TypeVar("R")
_END = object()
LOOK_S = 1.0  # interval between checks that a thread is still alive


def _nothing() -> None:
    """Do nothing."""


def prefetch(
    stream: Iterable[T],
    depth: int,
    name: str = "prefetch",
    halt: Callable[[], None] = _nothing,
) -> Iterator[T]:
    """Yield the items of *stream*; one thread prefetches up to *depth* of them.

    The order is kept. If the stream raises an exception, it is raised in the place of the item that
    failed. Closing the generator early stops the thread and closes the stream.

    Args:
        stream: stream to run in the background.
        depth: maximum number of prefetched items; 0 runs the stream in the caller's thread.
        name: name of the thread, for debuggers and logs.
        halt: function that is called before the wait for the thread's end. It must end a stream
            that is waiting for its next item.
    """
    if depth == 0:
        yield from stream
        return
    items = iter(stream)
    pool = _one_thread(name)
    try:
        waiting = deque(pool.submit(next, items, _END) for _ in range(depth))
        while (item := _result(waiting.popleft(), pool)) is not _END:
            waiting.append(pool.submit(next, items, _END))
            yield item  # type: ignore[misc]  # _END was sorted out above
            del item  # an item may be large: do not keep it while waiting for the next
    finally:
        halt()
        pool.shutdown(cancel_futures=True)
        if close := getattr(items, "close", None):
            close()


def mapped(
    stream: Iterable[T],
    work: Callable[[T], R],
    depth: int,
    name: str = "mapped",
    halt: Callable[[], None] = _nothing,
) -> Iterator[R]:
    """Yield ``work(item)`` for each item, in order; several items are processed at the same time.

    ```
    depth 1     work(a) --------------> yield a'        b runs while the caller waits for a';
                work(b) --------------------> yield b'   c starts when the caller asks for b'
    ```

    The order is kept. An error is raised in the place of the item that failed, and no further item
    is started. Closing the generator early waits for started items and closes the stream.

    Args:
        stream: items, taken one after the other in a separate thread.
        work: function that several threads may call at the same time.
        depth: maximum number of items in progress besides the one that the caller waits for.
        name: name of the threads.
        halt: see `prefetch`.
    """
    items = iter(stream)
    feeder = _one_thread(f"{name}-feed")
    workers = _Threads(depth + 1, name)

    def begin() -> Future[R] | None:
        item = next(items, _END)
        return None if item is _END else workers.submit(work, item)  # type: ignore[arg-type]

    try:
        waiting = deque(feeder.submit(begin) for _ in range(depth + 1))
        while (begun := _result(waiting.popleft(), feeder)) is not None:
            result = _result(begun, workers)
            del begun
            yield result
            del result  # before another item is started
            waiting.append(feeder.submit(begin))
    finally:
        halt()
        feeder.shutdown(cancel_futures=True)
        workers.shutdown(cancel_futures=True)
        if close := getattr(items, "close", None):
            close()


def overlapped(
    stream: Iterable[T],
    begin: Callable[[T], Future[T]],
    name: str = "overlapped",
    halt: Callable[[], None] = _nothing,
) -> Iterator[T]:
    """Yield the result of each item; an item is started before the previous one is finished.

    ```
    begin(a) ---------------------> yield a'
                begin(b) ----------------------------> yield b'      b starts when available;
                                        begin(c) ----->              a' never waits for it
    ```

    Args:
        stream: items; a thread takes them.
        begin: function that starts the work on an item; items are processed one after the other.
        name: name of the thread.
        halt: see `prefetch`.
    """
    items = iter(stream)
    pool = _one_thread(name)
    running: deque[Future[T]] = deque()
    upcoming: Future[object] | None = pool.submit(next, items, _END)
    ended = False
    try:
        while upcoming is not None or running:
            if upcoming is not None and (not running or _came(upcoming)):
                item = _result(upcoming, pool)
                ended = item is _END
                upcoming = None
                if not ended:
                    running.append(begin(item))  # type: ignore[arg-type]  # _END was sorted out
                    if len(running) == 1:
                        upcoming = pool.submit(next, items, _END)
                del item
                continue
            if upcoming is not None and not upcoming.done():
                _wait_for_either(running[0], upcoming, pool)
                if not running[0].done():
                    continue
            result = running.popleft().result()
            if len(running) == 1:  # start one more, unless the stream has ended
                upcoming = upcoming or (None if ended else pool.submit(next, items, _END))
            yield result
            del result
    finally:
        halt()
        pool.shutdown(cancel_futures=True)
        if close := getattr(items, "close", None):
            close()


class _Threads(ThreadPoolExecutor):
    """A thread pool that can detect that all its threads have died.

    A pool counts a dead thread as working, so the items of the pool would wait for ever. A thread
    dies if another thread raises an exception in it (PyThreadState_SetAsyncExc).
    """

    def __init__(self, number: int, name: str) -> None:
        self._begun: list[threading.Thread] = []
        super().__init__(number, name, lambda: self._begun.append(threading.current_thread()))

    def check(self) -> None:
        if self._begun and not any(thread.is_alive() for thread in self._begun):
            names = ", ".join(thread.name for thread in self._begun)
            msg = f"thread {names} ended before its work was done; run the same command again"
            raise ChunkflowError(msg)


def _one_thread(name: str) -> _Threads:
    """Return a pool whose thread already runs.

    Otherwise, Ctrl-C during the start of the thread would make the pool lose the thread: nothing
    could wait for the thread or close its stream.
    """
    pool = _Threads(1, name)
    pool.submit(int).result()
    return pool


def _result(future: Future[T], threads: _Threads) -> T:
    """Wait for a result of a pool as long as one of its threads is alive."""
    while not future.done() and not wait((future,), LOOK_S).done:
        threads.check()
    return future.result()


def _wait_for_either(one: Future[Any], other: Future[Any], threads: _Threads) -> None:
    # a separate function, so that futures and their items are not kept afterwards
    while not wait((one, other), LOOK_S, FIRST_COMPLETED).done:
        threads.check()


def _came(upcoming: Future[object]) -> bool:
    """Return whether an item is ready.

    A failed item does not count as ready, because its error is raised only after all earlier items
    are yielded.
    """
    return upcoming.done() and upcoming.exception() is None

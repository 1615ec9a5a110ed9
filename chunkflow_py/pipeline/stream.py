"""Iterators that run a stage of a pipeline in background threads."""

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
    """Yield the items of *stream* in their order; one thread prefetches up to *depth* items.

    An exception of the stream is raised after all earlier items are yielded. Closing the generator
    early stops the thread and closes the stream.

    Args:
        stream: stream to run in the background.
        depth: maximum number of prefetched items; 0 runs the stream in the caller's thread.
        name: name of the thread, for debuggers and logs.
        halt: function that is called when the generator is closed. If the stream is waiting for an
            item, from a queue for example, this function must end the wait, because closing the
            generator waits for the thread.
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
    """Yield ``work(item)`` for each item in order, and process several items at the same time.

    An example with depth 1: ``work(a)`` and ``work(b)`` start together, while the caller waits for
    the result of a. ``work(c)`` starts when the caller requests the result of b.

    An exception of ``work(item)`` is raised after all earlier results are yielded, and no further
    item is started. Closing the generator early waits for started items and closes the stream.

    Args:
        stream: items, taken one after the other in a separate thread.
        work: function that several threads may call at the same time.
        depth: maximum number of later items in progress while the caller waits for an item.
        name: name of the threads.
        halt: function that is called when the generator is closed, see `prefetch`.
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
    """Yield the result of each item; start the next item before this item is finished.

    ```
    begin(a) ---------------------> result of a
                begin(b) ----------------------------> result of b
                                        begin(c) ----------------------> result of c
    ```

    At most two items are in progress. Below this limit, an item is started as soon as *stream*
    yields the item. A result is yielded as soon as the result is ready, even if *stream* has not
    yielded the next item yet.

    Args:
        stream: items, taken one after the other in a separate thread.
        begin: function that starts the work on an item and returns the future of the result.
        name: name of the thread.
        halt: function that is called when the generator is closed, see `prefetch`.
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

    `ThreadPoolExecutor` counts a dead thread as working, so that the pool's items would wait for
    ever. A thread dies, for example, if another thread raises an exception in the dying thread
    (PyThreadState_SetAsyncExc).
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
    # The thread is started here, because Ctrl-C during a later start would make the pool lose the
    # thread, and nothing could wait for the thread or close its stream.
    pool = _Threads(1, name)
    pool.submit(int).result()
    return pool


def _result(future: Future[T], threads: _Threads) -> T:
    while not future.done() and not wait((future,), LOOK_S).done:
        threads.check()
    return future.result()


def _wait_for_either(one: Future[Any], other: Future[Any], threads: _Threads) -> None:
    # a separate function, so that futures and their items are not kept afterwards
    while not wait((one, other), LOOK_S, FIRST_COMPLETED).done:
        threads.check()


def _came(upcoming: Future[object]) -> bool:
    # A failed item does not count, because its error is raised after all earlier items are yielded.
    return upcoming.done() and upcoming.exception() is None

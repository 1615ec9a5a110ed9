"""Streams that run ahead in the background. All concurrency between stages is here."""

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
LOOK_S = 1.0  # between two looks whether a thread that is waited for still lives


def _nothing() -> None:
    """Do nothing."""


def prefetch(
    stream: Iterable[T],
    depth: int,
    name: str = "prefetch",
    halt: Callable[[], None] = _nothing,
) -> Iterator[T]:
    """Yield the items of *stream*, of which up to *depth* are made ahead by one thread.

    Order is kept; an exception of the stream is raised where its item would have come; closing
    the generator early stops the thread and closes the stream.

    Args:
        stream: stream to run in the background.
        depth: maximum number of items that wait; 0 runs the stream here, in the caller's thread.
        name: name of the thread, for debuggers and logs.
        halt: called before the end is waited for: lets a stream end that waits for its next item.
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
    """Yield *work* (item) for each item, in order; several items are processed at the same time.

    ```
    depth 1     work(a) --------------> yield a'        while a' is waited for, b is worked on;
                work(b) --------------------> yield b'   c is not begun before b' is asked for
    ```

    Order is kept; an error is raised where its item would have come, and then nothing new is
    begun; closing the generator early waits for what has begun and closes the stream.

    Args:
        stream: of items, taken one after the other in a thread of its own.
        work: may be called in several threads at once.
        depth: how many items may be taken beyond the one that is asked for, or in hand.
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
            del result  # before another item takes its place
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
    """Yield the result of each item, with the next item already begun.

    ```
    begin(a) ---------------------> yield a'
                begin(b) ----------------------------> yield b'      b is begun once it is there;
                                        begin(c) ----->              a' never waits for it
    ```

    Args:
        stream: of items; what is slow about it runs in a thread.
        begin: starts the work on an item; work on one item follows that on the one before.
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
            if len(running) == 1:  # there is room for one more, unless the stream has ended
                upcoming = upcoming or (None if ended else pool.submit(next, items, _END))
            yield result
            del result
    finally:
        halt()
        pool.shutdown(cancel_futures=True)
        if close := getattr(items, "close", None):
            close()


class _Threads(ThreadPoolExecutor):
    """A pool that knows whether any of its threads still lives.

    A pool counts a dead thread as one that works, so that what it was given waits for ever. A
    thread dies of an exception that somebody else raises in it (PyThreadState_SetAsyncExc).
    """

    def __init__(self, number: int, name: str) -> None:
        self._begun: list[threading.Thread] = []
        super().__init__(number, name, lambda: self._begun.append(threading.current_thread()))

    def check(self) -> None:
        if self._begun and not any(thread.is_alive() for thread in self._begun):
            names = ", ".join(thread.name for thread in self._begun)
            msg = f"thread {names} has ended before its work was done; run the same again"
            raise ChunkflowError(msg)


def _one_thread(name: str) -> _Threads:
    """Return a pool whose thread runs already; ctrl-C at its start would lose it.

    What that one ran could not be waited for, and a stream that it ran could not be closed.
    """
    pool = _Threads(1, name)
    pool.submit(int).result()
    return pool


def _result(future: Future[T], threads: _Threads) -> T:
    """Wait for a result of a pool, as long as one of its threads lives."""
    while not future.done() and not wait((future,), LOOK_S).done:
        threads.check()
    return future.result()


def _wait_for_either(one: Future[Any], other: Future[Any], threads: _Threads) -> None:
    # A function of its own, so that no futures, nor the items in them, are kept afterwards.
    while not wait((one, other), LOOK_S, FIRST_COMPLETED).done:
        threads.check()


def _came(upcoming: Future[object]) -> bool:
    """Return whether an item is ready; an error must wait until earlier items are yielded."""
    return upcoming.done() and upcoming.exception() is None

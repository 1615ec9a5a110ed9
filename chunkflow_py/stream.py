"""prefetch(): a stream run ahead in the background. All concurrency between lanes is here."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

T = TypeVar("T")
_END = object()


def prefetch(stream: Iterable[T], depth: int, name: str = "prefetch") -> Iterator[T]:
    """Yield the items of *stream*, of which up to *depth* are made ahead by one thread.

    Order is kept; an exception of the stream is raised where its item would have come; closing
    the generator early stops the thread and closes the stream.

    Args:
        stream: what to run in the background.
        depth: how many items may wait; 0 runs the stream here, in the caller's thread.
        name: of the thread, for debuggers and logs.
    """
    if depth == 0:
        yield from stream
        return
    items = iter(stream)
    pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
    try:
        waiting = deque(pool.submit(next, items, _END) for _ in range(depth))
        while (item := waiting.popleft().result()) is not _END:
            waiting.append(pool.submit(next, items, _END))
            yield item  # type: ignore[misc]  # _END was sorted out above
            del item  # an item may be large: do not keep it while waiting for the next
    finally:
        pool.shutdown(cancel_futures=True)
        if close := getattr(items, "close", None):
            close()

"""Jobs on blocks in a pool of threads, and what is said of one that fails."""

from __future__ import annotations

import os
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from threading import Event
from typing import TYPE_CHECKING, Any

from chunkflow_py.errors import ChunkflowError, VolumeError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator

_NOT_RUN = object()


class Foreign:
    """Translates whatever a codec stumbles on into one sentence."""

    def __init__(self, words: str, remedy: str = "") -> None:
        self._words, self._remedy = words, remedy

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ChunkflowError):
            reason = str(error).strip() or type(error).__name__
            msg = f"{self._words}: {reason}{self._remedy}"
            raise VolumeError(msg) from error


def cores() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_all(pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], Any]]) -> None:
    """Run the jobs; after a failure no further one begins, and none runs on."""
    for _ in results(pool, jobs):
        pass


def results(pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], Any]]) -> Iterator[Any]:
    """Yield what the jobs return, in any order; after a failure no further job begins.

    None of them runs any more when this ends: they may write to an array of the caller's.
    """
    futures: set[Future[Any]] = set()
    failed = Event()

    def guarded(job: Callable[[], Any]) -> Any:
        if failed.is_set():
            return _NOT_RUN
        try:
            return job()
        except BaseException:
            failed.set()
            raise

    try:
        futures.update(pool.submit(guarded, job) for job in jobs)
        for future in as_completed(futures):
            result = future.result()
            if result is not _NOT_RUN:
                yield result
    finally:
        failed.set()
        stop(futures)


def stop(futures: Collection[Future[Any]]) -> None:
    """Begin none of the jobs that still wait, and wait for those that run."""
    for future in futures:
        future.cancel()
    wait(futures)

"""Fetch the files of the next run of a pool, while a worker works on another run.

```
worker  | tasks of run A ........................ | B: its files are here already
thread  |      | next run? B --> files into cache |
```

Only the files of the current step of the next run are fetched, one file after the other, and only
if the files of the step have at most `_MOST_BYTES` in all. The thread starts to fetch `_DELAY_S`
seconds after the worker has begun a run, so that the downloads do not slow down the start of this
run.
"""

from __future__ import annotations

import logging
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from chunkflow_py.errors import ChunkflowError, named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from chunkflow_py.run.run_directory import RunDirectory
    from chunkflow_py.run.run_spec import RunStep

logger = logging.getLogger(__name__)

_DELAY_S = 5.0
_MOST_BYTES = 2 << 30  # of one step; what is larger is fetched when the worker changes runs


@dataclass
class FilesAhead:
    """Files of the next run, which a thread fetches into the cache of this machine."""

    _fetched: str = field(default="", init=False)  # run and step
    _now: str = field(default="", init=False)  # run whose files are being fetched
    _idle: threading.Event = field(default_factory=threading.Event, init=False, repr=False)

    @contextmanager
    def fetching(
        self, run: RunDirectory, interval_s: float, find_next: Callable[[], RunDirectory | None]
    ) -> Iterator[None]:
        """Fetch files of the next run in a thread while the ``with`` block works on *run*.

        If the thread of an earlier ``with`` block is still fetching files of *run*, wait for this
        thread first, so that no file is fetched twice.

        Args:
            run: run that the worker begins now.
            interval_s: time between two searches for the next run, in seconds.
            find_next: function that returns the run on which the worker would work next; ``None``
                if there is no such run.
        """
        if self._now == run.url:
            self._idle.wait()
        is_over = threading.Event()
        thread = threading.Thread(
            target=self._keep_fetching,
            args=(is_over, interval_s, find_next),
            name="files-ahead",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            is_over.set()  # the file that is being fetched is completed meanwhile

    def _keep_fetching(
        self,
        is_over: threading.Event,
        interval_s: float,
        find_next: Callable[[], RunDirectory | None],
    ) -> None:
        wait_s = min(_DELAY_S, interval_s)
        while not is_over.wait(wait_s):
            wait_s = interval_s
            try:
                if (run := find_next()) is not None:
                    self._fetch(run, is_over)
            except (ChunkflowError, OSError) as error:
                # The worker finds the same error if it takes this run, and reports it.
                logger.info("files of the next run cannot be fetched yet: %s", named(error))

    def _fetch(self, run: RunDirectory, is_over: threading.Event) -> None:
        name = run.current_step()
        if name is None or self._now or self._fetched == f"{run.url} {name}":
            return
        step = run.spec.step(name)
        if not _is_small(run, step):
            return
        self._idle.clear()
        self._now = run.url
        try:
            for file in step.files:
                if is_over.is_set():
                    return
                run.fetch(file)
            self._fetched = f"{run.url} {name}"
        finally:
            self._now = ""
            self._idle.set()


def _is_small(run: RunDirectory, step: RunStep) -> bool:
    return sum(run.store.size(file.key) or 0 for file in step.files) <= _MOST_BYTES

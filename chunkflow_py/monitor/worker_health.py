"""Answer the liveness probe of a cluster, ``GET /health``, with the health of a worker.

```
200 working          the supervisor of the current step has called `tick` in the last two minutes
200 between steps    no supervisor runs, for example while a worker of a pool waits for a run
503 stalled …        the supervisor has not called `tick`; the worker should be restarted
```

A supervisor is the part of a worker that controls the tasks of one step.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

STALLED_S = 120.0  # a supervisor ticks several times a second


class WorkerHealth:
    """Stores when a supervisor last called `tick`; other threads may read this time.

    A supervisor is the part of a worker that controls the tasks of one step.

    Args:
        clock: function that returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._ticked: float | None = None

    def tick(self) -> None:
        """Record that the supervisor is running; two minutes without a call count as stalled."""
        self._ticked = self._clock()

    def rest(self) -> None:
        """Record that no supervisor runs until the next call of `tick`."""
        self._ticked = None

    def answer(self) -> tuple[str, str]:
        """Return the HTTP status and the text of the response to ``GET /health``."""
        ticked = self._ticked
        if ticked is None:
            return "200 OK", "between steps"
        silent_s = self._clock() - ticked
        if silent_s <= STALLED_S:
            return "200 OK", "working"
        return "503 Service Unavailable", f"stalled: no response for {silent_s:.0f} s"

    def served_with(self, page: Any) -> Any:
        """Return a WSGI application that answers ``/health``, and calls *page* for other paths.

        Args:
            page: WSGI application.
        """

        def answer(environ: dict[str, Any], start: Any) -> Any:
            if environ.get("PATH_INFO") != "/health":
                return page(environ, start)
            status, text = self.answer()
            start(status, [("Content-Type", "text/plain; charset=utf-8")])
            return [f"{text}\n".encode()]

        return answer

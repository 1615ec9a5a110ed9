"""Points in the work of a device, for copies that run beside it; on the CPU all is done at once."""

from __future__ import annotations

from collections import deque
from contextlib import contextmanager, nullcontext
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager


def _event(*, enable_timing: bool = False) -> torch.cuda.Event:
    event: Any = torch.cuda.Event  # untyped
    return event(enable_timing=enable_timing)  # type: ignore[no-any-return]


def _has_ended(event: Any) -> bool:
    return bool(event.query())  # untyped


class Mark:
    """A point in the stream of work of a device that others can wait for.

    On the CPU work is finished when a call returns, so there is nothing to wait for.
    """

    def __init__(self, device: torch.device) -> None:
        """Mark nothing yet: waiting for it does not block."""
        self._event = _event() if device.type == "cuda" else None

    def record(self) -> None:
        """Mark what has been given to the current stream so far."""
        if self._event is not None:
            self._event.record()

    def hold(self) -> None:
        """Let the current stream go on only once the mark is reached; does not block the host."""
        if self._event is not None:
            self._event.wait()

    def wait(self) -> None:
        """Block the host until the mark is reached."""
        if self._event is not None:
            self._event.synchronize()


class SideStream:
    """A stream of copies of its own, beside that of the network."""

    def __init__(self, device: torch.device) -> None:
        """Open the stream; on the CPU there is none."""
        open_stream: Any = torch.cuda.Stream  # untyped
        self._stream: Any = open_stream(device) if device.type == "cuda" else None

    def entered(self) -> AbstractContextManager[Any]:
        """Return a context in which work is given to this stream."""
        return nullcontext() if self._stream is None else torch.cuda.stream(self._stream)

    def uses(self, tensor: torch.Tensor) -> None:
        """Keep the memory of *tensor* from being given away before this stream is done with it."""
        if self._stream is not None:
            tensor.record_stream(self._stream)


class Stopwatch:
    """Adds up the time of pieces of work; on a GPU without waiting for any of them."""

    def __init__(self, device: torch.device) -> None:
        """Begin at zero."""
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._since: float | None = None  # of what is being done now, not on a GPU
        self._lock = Lock()
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the time of what is done inside."""
        if not self._cuda:
            self._since = start = perf_counter()
            try:
                yield
            finally:
                with self._lock:
                    self._seconds += perf_counter() - start
                    self._since = None
            return
        first, last = (_event(enable_timing=True) for _ in range(2))
        first.record()
        yield
        last.record()
        self._pairs.append((first, last))

    def seconds(self) -> float:
        """Return the sum; waits for what is still being done."""
        with self._lock:
            while self._pairs:
                first, last = self._pairs.popleft()
                last.synchronize()
                self._seconds += first.elapsed_time(last) / 1000
            return self._seconds

    def so_far(self) -> float:
        """Return the sum, on a GPU of what has ended; waits for nothing."""
        # Graphs are captured per thread, so that asking here disturbs no capture.
        with self._lock:
            while self._pairs and _has_ended(self._pairs[0][1]):
                first, last = self._pairs.popleft()
                self._seconds += first.elapsed_time(last) / 1000
            since = self._since
            return self._seconds + (0.0 if since is None else perf_counter() - since)


def host_buffer(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return host memory from which copies to *device* can run beside other work."""
    return torch.empty(shape, dtype=dtype, pin_memory=device.type == "cuda")

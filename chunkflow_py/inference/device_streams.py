"""Device operations of the engine: memory, threads, and copies that overlap with computation."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
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


class Stopwatch:
    """Sums the durations of ``with`` blocks of work, without waiting for a GPU to finish."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        self._seconds = 0.0
        self._since: float | None = None  # start of the current block, on the CPU only
        self._lock = Lock()
        self._pairs: deque[tuple[torch.cuda.Event, torch.cuda.Event]] = deque()

    @contextmanager
    def running(self) -> Iterator[None]:
        """Add the duration of the work that the ``with`` block starts."""
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
        """Wait for unfinished work, then return the sum in seconds."""
        with self._lock:
            while self._pairs:
                first, last = self._pairs.popleft()
                last.synchronize()
                self._seconds += first.elapsed_time(last) / 1000
            return self._seconds

    def so_far(self) -> float:
        """Return the sum in seconds; blocks whose work a GPU has not finished are left out."""
        # Graphs are captured per thread, so this query does not disturb a capture.
        with self._lock:
            while self._pairs and _has_ended(self._pairs[0][1]):
                first, last = self._pairs.popleft()
                self._seconds += first.elapsed_time(last) / 1000
            since = self._since
            return self._seconds + (0.0 if since is None else perf_counter() - since)


class Mark:
    """A point in a stream (a device's queue of work); the host or another stream can wait for it.

    The wait ends when the device has done all work that was queued before this point. On the CPU,
    work is finished when a call returns, so the methods of this class do nothing.
    """

    def record(self) -> None:
        """Place the mark after the work queued on the current stream."""

    def hold(self) -> None:
        """Make the current stream wait for the mark; the host continues."""

    def wait(self) -> None:
        """Block the host until the mark is reached; return at once if `record` was not called."""


class _CudaMark(Mark):
    # An event belongs to the current device of the thread that records it first.

    def __init__(self) -> None:
        self._event = _event()

    def record(self) -> None:
        self._event.record()

    def hold(self) -> None:
        self._event.wait()

    def wait(self) -> None:
        self._event.synchronize()


class SideStream:
    """A separate CUDA stream for copies; does nothing on the CPU."""

    def entered(self) -> AbstractContextManager[Any]:
        """Return a context manager; inside its ``with`` block, work is queued on this stream."""
        return nullcontext()

    def uses(self, tensor: torch.Tensor) -> None:
        """Prevent reuse of the memory of *tensor* until this stream has finished its work."""


class _CudaStream(SideStream):
    def __init__(self, device: torch.device) -> None:
        open_stream: Any = torch.cuda.Stream  # untyped
        self._stream: Any = open_stream(device)

    def entered(self) -> AbstractContextManager[Any]:
        return torch.cuda.stream(self._stream)

    def uses(self, tensor: torch.Tensor) -> None:
        tensor.record_stream(self._stream)


class Device:
    """The engine's operations on a device, implemented for the CPU.

    On the CPU, each call returns when its work is done. A subclass implements the operations for
    CUDA.

    Attributes:
        torch: PyTorch device of the tensors.
        asynchronous: whether a call may return before the work that it started is finished.
    """

    asynchronous = False

    def __init__(self, device: torch.device) -> None:
        """Wrap a PyTorch device."""
        self.torch = device

    @staticmethod
    def of(device: torch.device) -> Device:
        """Return the `Device` that wraps *device*: CUDA or CPU."""
        return _CudaDevice(device) if device.type == "cuda" else Device(device)

    def enter(self) -> None:
        """Make this device the current device of the calling thread, before it uses a `Mark`."""

    def thread(self, name: str) -> ThreadPoolExecutor:
        """Return a new pool with one thread, which uses this device."""
        return ThreadPoolExecutor(1, thread_name_prefix=name, initializer=self.enter)

    def mark(self) -> Mark:
        """Return a new mark, which has not been recorded yet."""
        return Mark()

    def side_stream(self) -> SideStream:
        """Return a separate stream for copies."""
        return SideStream()

    def stopwatch(self) -> Stopwatch:
        """Return a new stopwatch for this device."""
        return Stopwatch(self.torch)

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return an uninitialised host tensor.

        With CUDA, the memory is pinned, so that copies run while the GPU computes.
        """
        return torch.empty(shape, dtype=dtype)

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return an uninitialised float32 tensor on the device."""
        return torch.empty(shape, dtype=torch.float32, device=self.torch)

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return *tensor* if it is on the device, else a copy of *tensor* on the device."""
        return tensor.to(self.torch)


class _CudaDevice(Device):
    asynchronous = True

    def enter(self) -> None:
        torch.cuda.set_device(self.torch)

    def mark(self) -> Mark:
        return _CudaMark()

    def side_stream(self) -> SideStream:
        return _CudaStream(self.torch)

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype, pin_memory=True)

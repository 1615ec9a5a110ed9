"""A device that works asynchronously, simulated: late, early or interleaved at random.

What is given to a stream of a GPU runs some time later. This device runs it when its schedule says
so: at once, not before somebody waits for it, or in between. Memory that is released is overwritten
as soon as a GPU could have given it to somebody else. So code that reads or writes too early, or
lets go too early, computes wrong bytes on some schedule, without a GPU.

```
tensor operation --> the current stream of its device:  [op][op][hold][op] --> run by the schedule
Mark.record      --> remembers how much its stream has been given
Mark.hold        --> the stream goes on once the other stream has done that much
Mark.wait, .item --> runs what is needed, then goes on
```

Streams and marks follow CUDA: a stream is in order; a mark that was never recorded holds nothing;
marks belong to the current device of the thread, and operations to the device of their tensors;
memory returns to the stream that it was allocated on, unless `SideStream.uses` says more.
"""

from __future__ import annotations

import random
import sys
import threading
import weakref
from collections import deque
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from chunkflow_py.inference.device_streams import Device, Mark, SideStream, Stopwatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PACES = (0.0, 0.0, 0.3, 0.7, 1.0)  # probability to go on, after anything happens anywhere


class Stream:
    """Operations in order, of which some have run."""

    def __init__(self, pace: float) -> None:
        """Begin empty."""
        self.pace, self.given, self.done = pace, 0, 0
        self.queue: deque[Callable[[], None] | tuple[Stream, int]] = deque()


class Machine:
    """Two devices, one schedule.

    Args:
        seed: of the schedule.
        left_out: call site, as in `sites`, whose record, hold, wait, uses or enter does nothing.

    Attributes:
        sites: where the engine called record, hold, wait, uses and enter: file, line, name.
    """

    def __init__(self, seed: int, left_out: tuple[str, int, str] | None = None) -> None:
        """Open the default streams of both devices."""
        self.random, self.lock = random.Random(seed), threading.RLock()
        self.left_out, self.sites = left_out, set[tuple[str, int, str]]()
        self.streams: list[Stream] = []
        self.default = [self.open_stream(), self.open_stream()]
        self.thread = threading.local()
        self.released: deque[tuple[torch.Tensor, Stream, set[Stream]]] = deque()

    def open_stream(self) -> Stream:
        """Return a new stream."""
        stream = Stream(self.random.choice(PACES))
        self.streams.append(stream)
        return stream

    def called(self, name: str) -> bool:
        """Note where the caller's caller is; tell whether it is to have an effect."""
        frame = sys._getframe(2)
        site = (Path(frame.f_code.co_filename).name, frame.f_lineno, name)
        with self.lock:
            self.sites.add(site)
        return site != self.left_out

    @property
    def device(self) -> int:
        """Current device of this thread."""
        return getattr(self.thread, "device", 0)

    @device.setter
    def device(self, index: int) -> None:
        self.thread.device = index

    def current(self, device: int) -> Stream:
        """Return the current stream of a device in this thread."""
        found: Stream = getattr(self.thread, "streams", {}).get(device, self.default[device])
        return found

    def give(self, stream: Stream, work: Callable[[], None] | tuple[Stream, int]) -> None:
        """Put work at the end of a stream."""
        with self.lock:
            self.overwrite_released()
            stream.queue.append(work)
            stream.given += 1
            self.go_on()

    def go_on(self) -> None:
        """Run a part of what can run now."""
        busy = [stream for stream in self.streams if stream.queue]
        for stream in self.random.sample(busy, len(busy)):
            while stream.queue and self.random.random() < stream.pace and self.step(stream):
                pass

    def step(self, stream: Stream) -> bool:
        """Run what comes next on a stream, unless that has to wait."""
        work = stream.queue[0]
        if isinstance(work, tuple):
            if work[0].done < work[1]:
                return False
        else:
            with torch.inference_mode():
                work()
        stream.queue.popleft()
        stream.done += 1
        return True

    def finish(self, stream: Stream, count: int) -> None:
        """Run a stream, and what it waits for, until it has done *count*."""
        with self.lock:
            while stream.done < count:
                if not self.step(stream):
                    other, needed = stream.queue[0]  # type: ignore[misc]
                    self.finish(other, needed)

    def overwrite_released(self) -> None:
        """Let released memory be overwritten by whoever is given it next."""
        for _ in range(len(self.released)):
            memory, stream, points = self.released.popleft()
            points = {(user, count) for user, count in points if user.done < count}
            if points:  # not given away before these streams have come so far
                self.released.append((memory, stream, points))
                continue
            stream.queue.append(lambda memory=memory: poison(memory))
            stream.given += 1


def poison(memory: torch.Tensor) -> None:
    """Fill memory with NaN, or with a pattern where there is none."""
    floating, boolean = memory.dtype.is_floating_point, memory.dtype is torch.bool
    memory.fill_(float("nan") if floating else boolean or 0xAB)


class Memory:
    """Memory of a device; it is released when no tensor shows it any more."""

    def __init__(self, machine: Machine, device: int, inner: torch.Tensor) -> None:
        """Belong to the current stream."""
        self.device, self.machine = device, machine
        stream, self.users = machine.current(device), set[Stream]()
        weakref.finalize(self, _release, machine, inner, stream, self.users).atexit = False


def _release(machine: Machine, inner: torch.Tensor, stream: Stream, users: set[Stream]) -> None:
    # May be called anywhere, so that nothing is run here.
    machine.released.append((inner, stream, {(user, user.given) for user in users}))


class DeviceTensor(torch.Tensor):
    """A tensor whose values are on the simulated device: its shape is known, its values later."""

    inner: torch.Tensor
    memory: Memory

    @staticmethod
    def __new__(cls, inner: torch.Tensor, memory: Memory) -> DeviceTensor:
        make: Any = torch.Tensor._make_wrapper_subclass
        with torch.inference_mode(mode=False):  # threads in either mode use it
            made: DeviceTensor = make(
                cls, inner.shape, strides=inner.stride(), storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
            )  # fmt: skip
        made.inner, made.memory = inner, memory
        return made

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        """The device that it pretends to be on."""
        return torch.device("cuda", self.memory.device)

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Give an operation to the stream."""
        kwargs = kwargs or {}
        given: list[DeviceTensor] = []
        inner_args = [unwrapped(each, given) for each in args]
        inner_kwargs = {name: unwrapped(each, given) for name, each in kwargs.items()}
        machine, device = given[0].memory.machine, given[0].memory.device
        stream = machine.current(device)

        def run() -> Any:
            return func(*inner_args, **inner_kwargs)

        written, tensor = signature(func)
        if written is not None:
            machine.give(stream, run)
            where, name = written
            return args[where] if where < len(args) else kwargs[name]
        if not tensor:
            machine.finish(stream, stream.given)  # the host asks for a value
            return run()
        with machine.lock:  # for the shape alone: what is read here may be anything
            made = run()
        mine = {t.inner.untyped_storage().data_ptr(): t.memory for t in given}
        if memory := mine.get(made.untyped_storage().data_ptr()):
            return DeviceTensor(made, memory)  # a view
        poison(made)
        if "empty" not in func.__name__:
            machine.give(stream, lambda: made.copy_(run()))
        return DeviceTensor(made, Memory(machine, device, made))


def unwrapped(value: Any, given: list[DeviceTensor]) -> Any:
    """Return an argument with the values of tensors, which are added to *given*."""
    if isinstance(value, DeviceTensor):
        given.append(value)
        return value.inner
    return [unwrapped(each, given) for each in value] if isinstance(value, list) else value


@cache
def signature(func: Any) -> tuple[tuple[int, str] | None, bool]:
    """Return place and name of the argument that *func* writes to; whether it returns a tensor."""
    written = None
    for place, each in enumerate(func._schema.arguments):
        if each.alias_info is not None and each.alias_info.is_write:
            written = (place, each.name)
    return written, all(isinstance(each.type, torch.TensorType) for each in func._schema.returns)


class SimulatedMark(Mark):
    """A mark on the streams of the machine."""

    def __init__(self, machine: Machine) -> None:
        """Mark nothing."""
        self.machine, self.point = machine, None

    def record(self) -> None:
        """Mark the end of the current stream of the current device."""
        machine = self.machine
        if machine.called("record"):
            stream = machine.current(machine.device)
            self.point = (stream, stream.given)

    def hold(self) -> None:
        """Let that stream wait for the mark."""
        machine = self.machine
        if machine.called("hold") and self.point is not None:
            machine.give(machine.current(machine.device), self.point)

    def wait(self) -> None:
        """Run until the mark."""
        if self.machine.called("wait") and self.point is not None:
            self.machine.finish(*self.point)


class SimulatedStream(SideStream):
    """One more stream of a device."""

    def __init__(self, machine: Machine, device: int) -> None:
        """Open it."""
        self.machine, self.device = machine, device
        self.stream = machine.open_stream()

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make it, and its device, the current ones of this thread."""
        thread, before = self.machine.thread, self.machine.device
        self.machine.device, thread.streams = self.device, {self.device: self.stream}
        try:
            yield
        finally:
            self.machine.device, thread.streams = before, {}

    def uses(self, tensor: torch.Tensor) -> None:
        """Keep the memory until this stream has done what it has been given by its release."""
        if self.machine.called("uses"):
            assert isinstance(tensor, DeviceTensor)
            tensor.memory.users.add(self.stream)


class SimulatedDevice(Device):
    """A device of the machine.

    Args:
        machine: that it belongs to.
        index: of the device; the current device of a thread is 0 until it enters another.
    """

    asynchronous = True

    def __init__(self, machine: Machine, index: int = 1) -> None:
        """Take a device."""
        super().__init__(torch.device("cuda", index))
        self.machine, self.index = machine, index

    def enter(self) -> None:
        """Make it the current device of this thread."""
        if self.machine.called("enter"):
            self.machine.device = self.index

    def mark(self) -> SimulatedMark:
        """Return a mark."""
        return SimulatedMark(self.machine)

    def side_stream(self) -> SimulatedStream:
        """Open a stream."""
        return SimulatedStream(self.machine, self.index)

    def stopwatch(self) -> Stopwatch:
        """Return one for the time of the host."""
        return Stopwatch(torch.device("cpu"))

    def host_buffer(self, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """Return host memory with something in it."""
        buffer = super().host_buffer(shape, dtype)
        poison(buffer)
        return buffer

    def empty(self, shape: tuple[int, ...]) -> torch.Tensor:
        """Return memory of the device with something in it."""
        inner = torch.full(shape, float("nan"))
        return DeviceTensor(inner, Memory(self.machine, self.index, inner))

    def bring(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a copy on the device, which is there already, as that of pageable memory is."""
        inner = tensor.clone()
        return DeviceTensor(inner, Memory(self.machine, self.index, inner))

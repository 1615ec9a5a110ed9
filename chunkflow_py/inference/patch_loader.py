"""Load input patches: cut, normalise and copy them to the device ahead of the network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from queue import Empty, SimpleQueue
from threading import Event
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch

from chunkflow_py.inference.backend_comparison import non_empty_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from chunkflow_py.core.geometry import BoundingBox
    from chunkflow_py.inference.device_streams import Device
    from chunkflow_py.inference.patch_exchange import PatchPart, TaskExchange
    from chunkflow_py.inference.patch_grid import PatchGrid

    Scale = Callable[[NDArray[Any], NDArray[np.float32]], None]
    Ready = SimpleQueue["Batch | BaseException | None"]

_BUFFERS = 3  # one in the network, one being copied, one being filled
_POLL_S = 0.05  # interval at which a waiting thread checks whether it has been stopped
_LARGE = 250_000  # values of a patch from which several threads are faster
_MOST_THREADS = 8  # threads that scale one patch: more would wait for memory
_SAMPLED = 8  # patches to search for non-empty ones
_COMPARED = 2  # non-empty patches to compare backends with
_NOT_RUN = 256  # consecutive patches that are not run after which they are passed on


class _Buffer:
    """Memory for one batch, on the host and on the device."""

    def __init__(self, shape: tuple[int, ...], device: Device) -> None:
        self.host = device.host_buffer(shape, torch.float32)
        self.on_device = device.empty(shape) if device.asynchronous else self.host
        self.arrived, self.used = device.mark(), device.mark()


class Step(NamedTuple):
    """One patch of a batch.

    Attributes:
        patch: output box of the patch.
        place: index of the patch in the batch; ``None`` if the network is not run on the patch.
        part: output of the patch that another task computed; ``None`` if there is none.
        key: key that identifies the output of the patch for other tasks; ``None`` if no other task
            needs the patch, or if *part* is used.
    """

    patch: BoundingBox
    place: int | None = None
    part: PatchPart | None = None
    key: bytes | None = None


@dataclass
class Batch:
    """Consecutive patches of the grid, and the network's input for them.

    Attributes:
        steps: the patches, in the order of the grid.
        tensor: input of the patches on which the network is run, (n, c, z, y, x) float32 on the
            device. The patches from index *used* on are zero. ``None`` if the network is run on no
            patch.
        used: number of patches on which the network is run.
        buffer: buffer that contains *tensor*.
    """

    steps: list[Step] = field(default_factory=list)
    tensor: torch.Tensor | None = None
    used: int = 0
    buffer: _Buffer | None = None


@dataclass(frozen=True)
class PatchSource:
    """The input for one box of output: an array, and the patches to cut from the array.

    Attributes:
        data: (c, z, y, x), any real dtype.
        box: box that *data* covers, global voxels.
        grid: grid of the patches, with their padding outside the domain.
        target: output box, global voxels. Patches that touch this box are loaded.
        scale: function that receives two arrays (c, z, y, x). It normalises the voxels of the first
            array, and writes the result to the second array (float32).
        skip_empty: skip patches whose input is zero everywhere.
        wanted: function that receives the output box of a patch and returns whether to run the
            network on the patch (default: run the network on all patches).
        exchange: finds outputs of patches that other tasks have computed; ``None`` if tasks
            exchange no patches.
    """

    data: NDArray[Any]
    box: BoundingBox
    grid: PatchGrid
    target: BoundingBox
    scale: Scale
    skip_empty: bool = False
    wanted: Callable[[BoundingBox], bool] | None = None
    exchange: TaskExchange | None = None

    def wants(self, patch: BoundingBox, source: NDArray[Any]) -> bool:
        """Return whether the network must be run on a patch.

        Args:
            patch: output box of the patch.
            source: input voxels of the patch, before normalisation.
        """
        if self.wanted is not None and not self.wanted(patch):
            return False
        return not self.skip_empty or bool(source.any())

    def fill(
        self, place: NDArray[np.float32], source: NDArray[Any], outside: list[NDArray[np.bool_]]
    ) -> None:
        """Write the network's input for one patch to *place*.

        Args:
            place: (c, z, y, x) float32 of the input patch size.
            source: input voxels of the patch, (c, z, y, x), as the method `source` returns them.
            outside: for each axis, a mask of the positions in the zero padding, as the method
                `source` returns it. Voxels at these positions are set to 0 after normalisation.
        """
        _by_all_threads(self.scale, source, place)
        for axis, mask in enumerate(outside):
            place[(slice(None),) * (axis + 1) + (mask,)] = 0

    def patch(self, patch: BoundingBox) -> torch.Tensor:
        """Return the network's input for one patch, (c, z, y, x) float32."""
        source, outside = self.source(patch)
        place = np.empty(source.shape, np.float32)
        self.fill(place, source, outside)
        return torch.from_numpy(place)

    def source(self, patch: BoundingBox) -> tuple[NDArray[Any], list[NDArray[np.bool_]]]:
        """Return the input voxels of an output patch, and masks of the zero padding.

        Args:
            patch: output box of the patch, global voxels.

        Returns:
            Voxels of *data*, (c, z, y, x), and for each axis (z, y, x) a mask of the positions in
            the zero padding. If the input patch is inside *box*, the voxels are a view of *data*,
            and the list of masks is empty.
        """
        wanted = self.grid.input_box(patch)
        if self.box.contains(wanted):
            return self.data[(slice(None), *wanted.slices(self.box.start))], []
        index = [
            self.grid.source_indices(wanted.start[axis], wanted.stop[axis], axis)
            for axis in range(3)
        ]
        # Voxels of the zero padding have an index before the domain: read anything, then clear.
        # `fill` clears them again, because normalisation may change zeros.
        outside = [i < first for i, first in zip(index, self.grid.domain.start, strict=True)]
        z, y, x = (
            np.clip(i - first, 0, None) for i, first in zip(index, self.box.start, strict=True)
        )
        source = self.data[:, z[:, None, None], y[:, None], x]
        # Whether a patch is empty must not depend on what was read instead of the zero padding.
        for axis, mask in enumerate(outside):
            source[(slice(None),) * (axis + 1) + (mask,)] = 0
        return source, outside


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_MOST_THREADS, thread_name_prefix="scale")


def _by_all_threads(scale: Scale, source: NDArray[Any], place: NDArray[np.float32]) -> None:
    # NumPy uses a single thread.
    planes, threads = place.shape[1], min(torch.get_num_threads(), _MOST_THREADS)
    if threads == 1 or place.size < _LARGE or planes < threads:
        scale(source, place)
        return
    cuts = [planes * k // threads for k in range(threads + 1)]
    first, *others = (slice(a, b) for a, b in pairwise(cuts))
    jobs = [_pool().submit(scale, source[:, part], place[:, part]) for part in others]
    scale(source[:, first], place[:, first])
    for job in jobs:
        job.result()


def sample(patches: PatchSource, batch_size: int) -> list[torch.Tensor]:
    """Return batches of a few normalised patches, to compare backends.

    A few patches, spread evenly over the grid, are examined. Those with the largest standard
    deviation are used. Patches whose voxels are all equal are never used.

    Returns:
        Batches of (batch_size, c, z, y, x) float32, padded with zeros; an empty list if the voxels
        of each examined patch are all equal.
    """
    boxes = list(patches.grid.patches(patches.target))
    chosen = boxes[:: -(-len(boxes) // _SAMPLED)]
    inputs = torch.stack([patches.patch(box) for box in chosen])
    return non_empty_batches(inputs, batch_size, most=_COMPARED)


class _StoppedError(Exception):
    """Raised in the loader's thread when the run was stopped."""


class PatchLoader:
    """Fills batches with normalised patches; for a GPU, a thread fills a few batches in advance.

    On the CPU, a batch is filled on request, because a thread would take a core from the network.

    ```
    thread   cut, normalise -> pinned host buffer -- copy stream --> device buffer -> network
                ^------------------- 3 pairs of buffers, used in turn -------------------'
    ```
    """

    def __init__(
        self, shape: tuple[int, ...], device: Device, *, ahead: bool | None = None
    ) -> None:
        """Allocate the buffers, which are reused for every batch.

        Args:
            shape: shape of every batch, (n, c, z, y, x).
            device: device that the network runs on.
            ahead: fill batches in a thread (default: only for a GPU).
        """
        ahead = device.asynchronous if ahead is None else ahead
        self._shape = shape
        self._free: SimpleQueue[_Buffer] = SimpleQueue()
        for _ in range(_BUFFERS if ahead else 1):
            self._free.put(_Buffer(shape, device))
        self._stream = device.side_stream()
        self._thread = device.thread("gather") if ahead else None

    def open(self, patches: PatchSource) -> Batches:
        """Return the batches of *patches*; a thread fills the batches of earlier calls first."""
        stop = Event()
        batches = self._filled(patches, stop)
        if self._thread is None:
            return Batches(batches, stop, self._free)
        ready: Ready = SimpleQueue()
        self._thread.submit(_pass_on, batches, ready)
        return Batches(_taken(ready), stop, self._free)

    def close(self) -> None:
        """End the thread; close every `Batches` before this call."""
        if self._thread is not None:
            self._thread.shutdown()

    def _filled(self, patches: PatchSource, stop: Event) -> Iterator[Batch]:
        """Yield the batches of *patches*, until *stop* is set."""
        batch = Batch()
        try:
            for patch in patches.grid.patches(patches.target):
                source, outside = patches.source(patch)
                step = Step(patch)
                if patches.wants(patch, source):
                    if batch.buffer is None:
                        batch.buffer = self._take(stop)
                    place = batch.buffer.host[batch.used].numpy()
                    patches.fill(place, source, outside)
                    step = _exchanged(patches, Step(patch, batch.used), place)
                batch.steps.append(step)
                batch.used += step.place is not None
                if batch.used == self._shape[0]:
                    done, batch = batch, Batch()
                    yield self._sent(done)
                elif not batch.used and len(batch.steps) == _NOT_RUN:
                    done, batch = batch, Batch()
                    yield self._sent(done)
                    if stop.is_set():
                        return
            if batch.steps:
                done, batch = batch, Batch()
                yield self._sent(done)
        except _StoppedError:
            return
        finally:
            if batch.buffer is not None:
                self._free.put(batch.buffer)

    def _sent(self, batch: Batch) -> Batch:
        """Start copying a filled batch to the device."""
        if batch.buffer is not None and not batch.used:
            self._free.put(batch.buffer)
            batch.buffer = None
        if (buffer := batch.buffer) is not None:
            buffer.host[batch.used :] = 0
            batch.tensor = buffer.on_device
            if buffer.on_device is not buffer.host:
                with self._stream.entered():
                    buffer.used.hold()
                    buffer.on_device.copy_(buffer.host, non_blocking=True)
                    buffer.arrived.record()
        return batch

    def _take(self, stop: Event) -> _Buffer:
        while not stop.is_set():
            try:
                buffer = self._free.get(timeout=_POLL_S)
            except Empty:
                continue
            buffer.arrived.wait()
            return buffer
        raise _StoppedError


def _exchanged(patches: PatchSource, step: Step, place: NDArray[np.float32]) -> Step:
    exchange, patch = patches.exchange, step.patch
    if exchange is None or not exchange.shared(patch):
        return step
    exchange.look(patch)
    key = exchange.key(place)
    part = exchange.find(patch, key)
    return Step(patch, step.place, key=key) if part is None else Step(patch, part=part)


def _pass_on(batches: Iterator[Batch], ready: Ready) -> None:
    end: BaseException | None = None
    try:
        for batch in batches:
            ready.put(batch)
    except BaseException as error:  # noqa: BLE001  (raised where the batch was waited for)
        end = error
    ready.put(end)


def _taken(ready: Ready) -> Iterator[Batch]:
    while isinstance(item := ready.get(), Batch):
        yield item
    if item is not None:
        raise item


class Batches:
    """The batches of one `PatchSource`, in the order of the grid; call `close` at the end."""

    def __init__(self, batches: Iterator[Batch], stop: Event, free: SimpleQueue[_Buffer]) -> None:
        self._batches, self._stop, self._free = batches, stop, free

    def __iter__(self) -> Iterator[Batch]:
        """Yield each batch; its tensor is valid until the next batch is requested.

        Raises:
            Exception: any error that was raised while a batch was filled.
        """
        for batch in self._batches:
            try:
                if batch.buffer is not None:
                    batch.buffer.arrived.hold()
                yield batch
            finally:
                self._release(batch)

    def close(self) -> None:
        """Stop filling, and return all buffers to the loader."""
        self._stop.set()
        with suppress(Exception):  # the run is over, nothing reads its batches
            for batch in self._batches:
                self._release(batch)

    def _release(self, batch: Batch) -> None:
        if batch.buffer is not None:
            batch.buffer.used.record()
            self._free.put(batch.buffer)

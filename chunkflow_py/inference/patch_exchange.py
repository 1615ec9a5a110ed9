"""Patch exchange: the first task that computes a patch stores the output for its neighbours.

```
task A                |  task B                |  task C
          oooooooooooo|ooooo                        o: a patch that reaches from A into B
                      |bbbbb                        b: the part of the patch for B
```

In the figure, task A runs the network on the patch, blends the voxels inside A, and stores the part
for task B.

A part is the network's output on the voxels that a patch shares with another task. The values of a
part are exactly those that the other task would blend: cropped, averaged by test-time augmentation,
rounded, and activated if the activation comes before blending. The other task uses the part instead
of running the network. Each task blends computed patches and parts in the order of the grid, so the
bytes of a result are the same with and without parts.

Each part has a key, a digest of two things: the input of the patch, as the network receives it, and
the *identity* of the computation (network, weights, compute profile, batch size and so on). A task
computes a patch itself if the part is missing, is damaged, is not read in time, or has another key
than the task expects. A task never waits until another task has computed a patch.

The task that computes a patch is the producer of its parts, and a task that uses a part is a
consumer. All parts of one producer for one consumer are stored as one object when the producer
has computed all its patches. Within one process, a consumer can also use parts of a producer that
still runs. Objects are untrusted data: `PackedParts` checks each object.
"""

from __future__ import annotations

import hashlib
import logging
import re
import struct
from collections import Counter, deque
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, Protocol
from weakref import WeakValueDictionary

import numpy as np
import torch

from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.store.transfers import Transfers

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from chunkflow_py.inference.device_streams import Device, Mark
    from chunkflow_py.inference.patch_grid import PatchGrid

logger = logging.getLogger(__name__)

_MAGIC = b"CFPARTS1"
_HEADER = struct.Struct("<8sBII")  # magic, code of the dtype, channels, number of parts
_ENTRY = struct.Struct("<3q3I3I16s16s")  # patch start, offset and size in it, key, checksum
_CHECKSUM = 16
_DTYPES = {1: torch.float32, 2: torch.bfloat16, 3: torch.float16}
_CODES = {dtype: code for code, dtype in _DTYPES.items()}
_PATIENCE_S = 0.5  # least time for which a task waits for parts that are being read, in all
_STAGED = 2  # buffers for parts on their way to the device: one being filled, one being emptied
_WEIGHED = 3  # objects that have to be written before the exchange is known to save time
_STUCK_S = 10.0  # time without a finished write after which the store counts as too slow
_LABEL = re.compile(r"[0-9a-f]{8}-(.+)")


def digest_of(*contents: bytes | memoryview) -> bytes:
    """Return a digest (16 bytes) of the joined *contents*."""
    found = hashlib.blake2b(digest_size=16)
    for each in contents:
        found.update(each)
    return found.digest()


# Why stored parts cannot be used.
DAMAGED = "damaged"
FOREIGN = "foreign"  # of another network, compute profile, batch size or input
MISPLACED = "misplaced"  # not on the voxels that the patch shares with the task
UNREADABLE = "unreadable"  # longer than all shared parts, or the store failed


class PartsError(ValueError):
    """Stored parts cannot be used.

    Attributes:
        kind: the reason. `DAMAGED`: incomplete or changed bytes. `FOREIGN`: computed with another
            network, compute profile, batch size or input. `MISPLACED`: the part does not contain
            exactly the voxels that the reading task needs. `UNREADABLE`: the object is larger than
            its limit, or the store failed.
    """

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind


@dataclass(frozen=True)
class PatchPart:
    """The network's output for a patch, on a box inside this patch.

    Attributes:
        patch: position of the first voxel of the output patch, global voxels, zyx.
        box: box of the values, global voxels.
        key: digest of the patch's input and of the identity of the computation.
        values: (c, z, y, x), float32, bfloat16 or float16, on the host.
        arrived: mark (like a CUDA event) that is reached when *values* have been copied to the
            host; ``None`` if nothing needs to be copied.
    """

    patch: Zyx
    box: BoundingBox
    key: bytes
    values: torch.Tensor
    arrived: Mark | None = None

    def arrived_values(self) -> torch.Tensor:
        """Wait until the values have been copied from the device, and return the values."""
        if self.arrived is not None:
            self.arrived.wait()
        return self.values


def packed(parts: Sequence[PatchPart]) -> bytes:
    """Return the bytes of one object that contains parts.

    The object consists of a header, one entry for each part, a digest of header and entries, and
    the values of all parts. The values are in the order of the entries; the values of a part are in
    C order. All numbers are little-endian.

    Args:
        parts: at least one part; all have the same dtype and number of channels.
    """
    first = parts[0].values
    head = [_HEADER.pack(_MAGIC, _CODES[first.dtype], first.shape[0], len(parts))]
    contents = []
    for part in parts:
        content = part.arrived_values().contiguous().view(torch.uint8).numpy().data
        contents.append(content)
        offset = part.box.start - part.patch
        head.append(_ENTRY.pack(*part.patch, *offset, *part.box.size, part.key, digest_of(content)))
    start = b"".join(head)
    return b"".join((start, digest_of(start), *contents))


class PartEntry(NamedTuple):
    """Position, box, key and checksum of a part, and where its values are in the object."""

    patch: Zyx
    box: BoundingBox
    key: bytes
    checksum: bytes
    start: int
    stop: int


class PackedParts:
    """The parts of one object; the values of a part are checked when the part is read.

    Args:
        content: bytes of the object.
        patch_size: size of an output patch, voxels, zyx.
        channels: number of channels of the network's output.

    Raises:
        PartsError: the object is incomplete or damaged, or was computed by a network with another
            patch size or number of channels.
    """

    def __init__(self, content: bytes, patch_size: Zyx, channels: int) -> None:
        """Check the header and all entries."""
        if len(content) < _HEADER.size + _CHECKSUM:
            msg = "the object ends before the end of its header"
            raise PartsError(DAMAGED, msg)
        magic, code, stated, count = _HEADER.unpack_from(content)
        if magic != _MAGIC or code not in _DTYPES or stated != channels or count < 1:
            msg = (
                "the object contains no parts, or its parts have an unknown data type or another "
                "number of channels than the network"
            )
            raise PartsError(FOREIGN, msg)
        end = _HEADER.size + count * _ENTRY.size
        if len(content) < end + _CHECKSUM:
            msg = "the list of parts in the object is incomplete"
            raise PartsError(DAMAGED, msg)
        if digest_of(content[:end]) != content[end : end + _CHECKSUM]:
            msg = "the header of the object is damaged"
            raise PartsError(DAMAGED, msg)
        self._content = bytearray(content)  # writable, as PyTorch requires
        self._dtype, self._channels = _DTYPES[code], channels
        self.entries: dict[Zyx, PartEntry] = {}
        start = end + _CHECKSUM
        for number in range(count):
            values = _ENTRY.unpack_from(content, _HEADER.size + number * _ENTRY.size)
            patch, offset, size = (Zyx(*values[k : k + 3]) for k in (0, 3, 6))
            ends = zip(offset, size, patch_size, strict=True)
            if min(size) < 1 or any(low + length > most for low, length, most in ends):
                msg = f"part {number} of the object does not fit into an output patch"
                raise PartsError(MISPLACED, msg)
            stop = start + size.product() * channels * self._dtype.itemsize
            box = BoundingBox.from_size(patch + offset, size)
            self.entries[patch] = PartEntry(patch, box, values[9], values[10], start, stop)
            start = stop
        if start != len(content):
            msg = f"the object has {len(content)} bytes instead of {start}"
            raise PartsError(DAMAGED, msg)

    def find(self, patch: Zyx, box: BoundingBox, key: bytes) -> PatchPart | None:
        """Return the part of one patch; ``None`` if the object contains no part of this patch.

        Args:
            patch: position of the first voxel of the output patch, global voxels, zyx.
            box: box that the part must have, global voxels.
            key: key that the part must have.

        Raises:
            PartsError: the part is damaged, or has another box or key.
        """
        if (entry := self.entries.get(patch)) is None:
            return None
        if entry.box != box:
            msg = (
                f"a part contains the voxels {entry.box} of the patch at {patch}, but this task "
                f"needs the voxels {box}"
            )
            raise PartsError(MISPLACED, msg)
        if entry.key != key:
            msg = f"the part of the patch at {patch} was computed from another input"
            raise PartsError(FOREIGN, msg)
        return self.part(entry)

    def part(self, entry: PartEntry) -> PatchPart:
        """Check and return the part that *entry* describes.

        Raises:
            PartsError: the values of the part are damaged.
        """
        content = memoryview(self._content)[entry.start : entry.stop]
        if digest_of(content) != entry.checksum:
            msg = f"the part of the patch at {entry.patch} is damaged"
            raise PartsError(DAMAGED, msg)
        values = torch.frombuffer(content, dtype=self._dtype)
        return PatchPart(
            entry.patch, entry.box, entry.key, values.view(self._channels, *entry.box.size)
        )


class PartStore(Protocol):
    """Stores objects with parts; *producer* and *consumer* are names of tasks.

    The producer of an object is the task that computed the parts. The consumer is the task that may
    use the parts.

    Attributes:
        identity: text that must be equal for two tasks that exchange parts, such as the hash of a
            run's step.
        connections: number of reads to run at the same time; 0 if reads take no time, so that no
            threads are needed.
        most_bytes: limit of the memory for objects in the store, in bytes.
        must_save_time: whether the exchange must end if it takes more time than it saves.
        writes: number, bytes and time of the writes to the store.
    """

    identity: str
    connections: int
    most_bytes: int
    must_save_time: bool
    writes: Transfers

    def producers(self, consumer: str) -> Collection[str]:
        """Return the names under which tasks stored objects for the task *consumer*."""

    def read(self, consumer: str, producer: str, most: int) -> bytes | None:
        """Return the object that *producer* stored for *consumer*, or ``None`` if there is none.

        Args:
            consumer: name of the task that may use the object.
            producer: name under which the object was stored.
            most: limit of the size of the object, in bytes. For a larger object, a store returns
                ``None`` or raises an error.
        """

    def write(self, consumer: str, producer: str, content: Callable[[], bytes], size: int) -> None:
        """Store an object.

        The store may write the object later, in another thread. Until then, this process can
        already list and read the object. The store may also drop the object, for example if the
        store is full.

        Args:
            consumer: name of the task that may use the object.
            producer: name under which the object is stored.
            content: function that returns the bytes of the object; called in any thread.
            size: approximate size of the object, in bytes.
        """

    def unfinished(self, consumers: Sequence[str]) -> Collection[str]:
        """Return those names in *consumers* whose task exists and has not ended."""

    def done(self, consumer: str) -> None:
        """Record that the task *consumer* has read all parts that it needs.

        The task may still fail. When the task is then repeated, it reads the parts again.
        """


@dataclass
class ExchangeCounts:
    """Counts of the parts that an exchange has used, refused and stored so far.

    Attributes:
        found: number of patches for which a part was used.
        refused: dict from the reason (`PartsError.kind`) to the number of objects or parts that
            could not be used for this reason.
        passed: number of parts that were passed to the store.
        bytes_passed: bytes of all parts that were passed to the store.
        objects_passed: number of objects that were passed to the store.
    """

    found: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    passed: int = 0
    bytes_passed: int = 0
    objects_passed: int = 0


class PatchExchange:
    """Reads and stores parts for the tasks that run in one process with one network.

    A part is the output of a patch on the voxels that another task needs. All parts that one task
    passes to another are stored as one object.

    Args:
        store: where objects are stored.
        geometry: size of an output patch (voxels, zyx) and number of channels of the network.
        device: device of the network.
        forward_s: function that returns the mean time of the network for one patch, in seconds, or
            0 if unknown.

    Attributes:
        counts: counts of the parts that were used, refused and stored.
        reads: number, bytes and time of the reads of objects.
        has_ended: whether the exchange has ended. This happens if reading and writing parts takes
            longer than computing patches. Later tasks then compute all their patches.
    """

    def __init__(
        self,
        store: PartStore,
        geometry: tuple[Zyx, int],
        device: Device,
        *,
        forward_s: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Start the threads that read."""
        connections = store.connections
        self.counts = ExchangeCounts()
        self.reads = Transfers()
        self.has_ended = False
        self._is_weighed = not store.must_save_time
        self._store = store
        self._patch_size, self._channels = geometry
        self._device = device
        self._stream = device.side_stream()
        nothing = torch.empty(0, dtype=torch.uint8)
        self._staged = deque((nothing, device.mark()) for _ in range(_STAGED))
        self._forward_s = forward_s
        self._tasks: WeakValueDictionary[str, TaskExchange] = WeakValueDictionary()
        self._passing_bytes = 0
        self._has_failed = False
        self.tasks_passed = 0  # tasks whose parts were passed to the store
        self._threads = ThreadPoolExecutor(connections, "parts") if connections else None
        self._passing = ThreadPoolExecutor(1, "parts-kept") if connections else None
        self._lock = Lock()
        self._warned: set[str] = set()

    def close(self) -> None:
        """End the threads."""
        if self._passing is not None:
            self._passing.shutdown()
        if self._threads is not None:
            self._threads.shutdown(cancel_futures=True)

    def task(
        self,
        name: str,
        target: BoundingBox,
        identity: bytes,
        neighbours: Mapping[str, BoundingBox],
        grid: PatchGrid,
        *,
        is_current: Callable[[], bool] = lambda: True,
    ) -> TaskExchange:
        """Return the `TaskExchange` that finds and stores the parts of patches for one task.

        Args:
            name: name of the task.
            target: box that the task computes, global voxels.
            identity: digest of everything, except the input, that decides the output of a patch.
            neighbours: dict of the tasks that may share a patch with task *name*: name of the
                neighbour -> box that the neighbour computes.
            grid: grid of the patches.
            is_current: function that returns whether *identity* still describes the network. If
                not, the task neither uses nor stores parts.
        """
        made = TaskExchange(self, name, target, identity, dict(neighbours), grid, is_current)
        self._tasks[name] = made
        return made

    # --- for the exchange of one task -----------------------------------------------------------

    def submit(self, call: Callable[[], None]) -> Future[None]:
        """Run *call* in a thread, or at once if there are no threads."""
        if self._threads is not None:
            return self._threads.submit(call)
        call()
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def producers(self, consumer: str) -> Collection[str]:
        """Return the names under which tasks stored objects for *consumer*.

        If the store fails, the result is empty.
        """
        try:
            return self._store.producers(consumer)
        except Exception as error:  # noqa: BLE001  (parts only save time: no error may end a task)
            self._warn(
                "read",
                "cannot look for patch outputs that other tasks have stored, so this process "
                f"computes these patches itself: {error}",
            )
            return ()

    def read(self, consumer: str, producer: str, parts: int, voxels: int) -> PackedParts | None:
        """Read and check an object; return ``None`` if no usable object is stored.

        Args:
            consumer: name of the task that needs the object.
            producer: name under which the object was stored.
            parts: limit of the number of parts in the object.
            voxels: limit of the number of voxels of all parts.
        """
        values = voxels * self._channels * torch.float32.itemsize
        most = _HEADER.size + _CHECKSUM + parts * _ENTRY.size + values
        try:
            with self.reads.one():
                content = self._store.read(consumer, producer, most)
            if content is None:
                return None
            self.reads.add(len(content))
            return PackedParts(content, self._patch_size, self._channels)
        except PartsError as error:
            self.refuse(consumer, producer, error)
        except Exception as error:  # noqa: BLE001  (parts only save time: no error may end a task)
            self.refuse(consumer, producer, PartsError(UNREADABLE, str(error)))
        return None

    def refuse(self, consumer: str, producer: str, error: PartsError) -> None:
        """Count an object or part that cannot be used; warn only the first time."""
        with self._lock:
            self.counts.refused[error.kind] += 1
        self._warn(
            "refused",
            f"task {consumer} computes some patches itself, because the patch outputs that task "
            f"{producer} stored cannot be used: {error}",
        )

    def copied(self, values: torch.Tensor) -> tuple[torch.Tensor, Mark | None]:
        """Start to copy values from the device to the host.

        Returns:
            The copy on the host, and a mark (like a CUDA event) that is reached when the copy is
            complete. The mark is ``None`` if the copy is already complete.
        """
        if not self._device.asynchronous:
            return values.clone(memory_format=torch.contiguous_format), None
        # A copy on the device, because the next forward pass overwrites the values.
        values = values.clone(memory_format=torch.contiguous_format)
        ready = self._device.mark()
        ready.record()
        host = self._device.host_buffer(tuple(values.shape), values.dtype)
        with self._stream.entered():
            ready.hold()
            host.copy_(values, non_blocking=True)
            self._stream.uses(values)
            arrived = self._device.mark()
            arrived.record()
        return host, arrived

    def upload(self, part: PatchPart, target: torch.Tensor) -> None:
        """Queue a copy of the values of a part to *target* on the current stream of the device."""
        values = part.arrived_values()
        if not self._device.asynchronous:
            target.copy_(values)
            return
        buffer, read = self._staged.popleft()
        read.wait()
        if buffer.numel() < values.nbytes:
            buffer = self._device.host_buffer((values.nbytes,), torch.uint8)
        staged = buffer[: values.nbytes].view(values.dtype).view(values.shape)
        staged.copy_(values)
        target.copy_(staged, non_blocking=True)
        read.record()
        self._staged.append((buffer, read))

    def kept(self, producer: str, consumer: str, patch: Zyx) -> PatchPart | None:
        """Return the part that a task of this process keeps in memory for another task.

        The result is ``None`` if there is no such part.

        Args:
            producer: name of the task that computed the patch.
            consumer: name of the task that needs the part.
            patch: position of the first voxel of the output patch, global voxels, zyx.
        """
        task = self._tasks.get(producer)
        return None if task is None else task.kept(consumer, patch)

    def write(self, task: TaskExchange, consumers: Mapping[str, Sequence[PatchPart]]) -> None:
        """Pass the parts of a task to the store, one object for each consumer.

        A thread does this work, because the store may first have to look up which consumers still
        need parts. Until the thread has stored the parts, they stay in memory, and other tasks of
        this process read them from *task*. If the waiting parts of all tasks together would exceed
        `PartStore.most_bytes`, the parts of *task* are not stored.

        Args:
            task: task that computed the parts.
            consumers: for each consumer, by name, the parts that the consumer may use.
        """
        if self._passing is None:
            self._pass(task, consumers)
            return
        size = sum(part.values.nbytes for parts in consumers.values() for part in parts)
        with self._lock:
            if self._passing_bytes and self._passing_bytes + size > self._store.most_bytes:
                return
            self._passing_bytes += size
        self._passing.submit(self._pass_later, task, consumers, size)

    def _pass_later(
        self, task: TaskExchange, consumers: Mapping[str, Sequence[PatchPart]], size: int
    ) -> None:
        self._pass(task, consumers)
        with self._lock:
            self._passing_bytes -= size

    def _pass(self, task: TaskExchange, consumers: Mapping[str, Sequence[PatchPart]]) -> None:
        self._weigh()
        try:
            if not self.has_ended and not self._has_failed:
                self._write(task, consumers)
        except Exception as error:  # noqa: BLE001  (parts only save time: no error may end a task)
            self._has_failed = True
            self._warn(
                "write",
                "cannot store parts of patches, so from now on other tasks compute these patches "
                f"themselves: {error}",
            )
        # From now on the parts are in the store, and no longer in *task*: see `TaskExchange.look`.
        self.tasks_passed += 1

    def _write(self, task: TaskExchange, consumers: Mapping[str, Sequence[PatchPart]]) -> None:
        for name in self._store.unfinished(list(consumers)):
            parts = consumers[name]
            size = sum(part.values.nbytes for part in parts)
            self.counts.objects_passed += 1
            self.counts.passed += len(parts)
            self.counts.bytes_passed += size
            self._store.write(name, task.label, partial(packed, parts), size)

    def done(self, consumer: str) -> None:
        """Record that the task *consumer* has read all parts that it needs."""
        try:
            self._store.done(consumer)
        except Exception as error:  # noqa: BLE001  (parts only save time: no error may end a task)
            self._warn("done", f"cannot remove parts of patches that are no longer needed: {error}")

    def patience_s(self) -> float:
        """Return how long, in seconds, a task may wait for the reads of parts, in total.

        The result is the time that the network needs for one patch, but at least 0.5 s.
        """
        return max(_PATIENCE_S, self._forward_s())

    def _weigh(self) -> None:
        # The exchange ends if writing and reading a part takes longer than computing a patch.
        counts, writes, reads = self.counts, self._store.writes, self.reads
        forward_s = self._forward_s()
        if self._is_weighed or not forward_s or not counts.passed:
            return
        size = counts.bytes_passed / counts.passed
        write_s, read_s = size / writes.bytes_per_s, size / reads.bytes_per_s
        if not reads.finished:
            read_s = write_s
        if not writes.finished and writes.seconds > _STUCK_S:
            write_s = writes.seconds * counts.objects_passed / counts.passed
        elif writes.finished < _WEIGHED:
            return
        self._is_weighed = True
        self.has_ended = write_s + read_s > forward_s
        choice = (
            "this process exchanges no further patches with other tasks"
            if self.has_ended
            else "this process exchanges patches with other tasks"
        )
        logger.info(
            "%s: computing a patch takes %.3g s; for a part of the mean size, %.3g MB, writing "
            "takes %.3g s (%s), and reading takes %.3g s (%s)",
            choice,
            forward_s,
            size / 1e6,
            write_s,
            _measured(writes) or "no write has finished yet",
            read_s,
            _measured(reads) or "assumed to be as fast as writing",
        )

    def _warn(self, kind: str, text: str) -> None:
        with self._lock:
            if kind in self._warned:
                return
            self._warned.add(kind)
        logger.warning("%s", text)


def _measured(transfers: Transfers) -> str:
    if not (count := transfers.finished):
        return ""
    objects = "object" if count == 1 else "objects"
    return f"{transfers.bytes_per_s / 1e6:.3g} MB/s, measured on {count} {objects}"


@dataclass(eq=False)
class TaskExchange:
    """Finds and stores the parts of patches for one task; created by `PatchExchange.task`.

    The thread that loads patches calls `look`, `key` and `find`. The thread that runs the network
    calls `keep`. `finish` is called when all patches have been computed.
    """

    exchange: PatchExchange
    name: str
    target: BoundingBox
    identity: bytes
    neighbours: dict[str, BoundingBox]
    grid: PatchGrid
    is_current: Callable[[], bool]
    _packs: dict[str, PackedParts | None] = field(default_factory=dict, init=False)
    _reads: list[Future[None]] = field(default_factory=list, init=False)
    _kept: dict[str, dict[Zyx, PatchPart]] = field(default_factory=dict, init=False)
    _patience_s: float | None = field(default=None, init=False)
    _looked: tuple[int, int] | None = field(default=None, init=False)
    _foreign: set[str] = field(default_factory=set, init=False)

    @property
    def label(self) -> str:
        """Name under which this task stores parts: 8 digits of *identity*, then the name."""
        return self._labelled(self.name)

    def shared(self, patch: BoundingBox) -> Iterable[str]:
        """Return the names of the neighbouring tasks that also need the patch with box *patch*."""
        return [
            name
            for name, target in self.neighbours.items()
            if not target.intersection(patch).is_empty
        ]

    def look(self, patch: BoundingBox) -> None:
        """Start to read objects that were stored for this task since the last call.

        The store is searched in two cases: *patch* is the first of a layer (patches with equal z),
        or a task of this process has passed parts to the store since the last call.

        Args:
            patch: output box of the next patch.
        """
        reasons = patch.start.z, self.exchange.tasks_passed
        if reasons == self._looked:
            return
        self._looked = reasons
        self._reads.append(self.exchange.submit(self._read_new))

    def _read_new(self) -> None:
        own = {self._labelled(name): name for name in self.neighbours}
        stored = set(self.exchange.producers(self.name))
        for producer in sorted(stored - own.keys() - self._foreign):
            label = _LABEL.fullmatch(producer)
            # With both labels, the pipeline has several networks, or two profiles computed it.
            is_alone = label is not None and self._labelled(label[1]) not in stored
            if label is not None and is_alone and label[1] in self.neighbours:
                self._foreign.add(producer)
                msg = "the parts were computed with another network, compute profile or batch size"
                self.exchange.refuse(self.name, label[1], PartsError(FOREIGN, msg))
        for producer in sorted(own.keys() & stored):
            if producer not in self._packs:
                self._packs[producer] = None
                target = self.neighbours[own[producer]]
                self._reads.append(self.exchange.submit(partial(self._read, producer, target)))

    def _read(self, producer: str, target: BoundingBox) -> None:
        parts, voxels = self.grid.shared(self.target, target)
        self._packs[producer] = self.exchange.read(self.name, producer, parts, voxels)

    def _labelled(self, name: str) -> str:
        return f"{self.identity.hex()[:8]}-{name}"

    def key(self, values: NDArray[np.float32]) -> bytes:
        """Return the key of a patch: a digest of `identity` and of *values*, the patch's input."""
        return digest_of(self.identity, np.ascontiguousarray(values).data)

    def find(self, patch: BoundingBox, key: bytes) -> PatchPart | None:
        """Return a patch's part from the task that computed it; ``None`` if no part is usable.

        Args:
            patch: output box of the patch.
            key: key of the patch, from `key`.
        """
        if not self.is_current():
            return None
        box = patch.intersection(self.target)
        for producer in self.shared(patch):
            kept = self.exchange.kept(producer, self.name, patch.start)
            if kept is not None and kept.key == key and kept.box == box:
                self.exchange.counts.found += 1
                return kept
        self._wait_for_reads()
        for producer, pack in self._packs.copy().items():  # a thread may add to it
            try:
                part = None if pack is None else pack.find(patch.start, box, key)
            except PartsError as error:
                self.exchange.refuse(self.name, producer, error)
                continue
            if part is not None:
                self.exchange.counts.found += 1
                return part
        return None

    def _wait_for_reads(self) -> None:
        # The time limit is for all waits of the task together.
        if self._patience_s is None:
            self._patience_s = self.exchange.patience_s()
        start = monotonic()
        while (reads := [read for read in self._reads if not read.done()]) and self._patience_s > 0:
            wait(reads, self._patience_s)  # a read of the list adds further reads
            self._patience_s -= monotonic() - start
            start = monotonic()

    def keep(self, patch: BoundingBox, key: bytes, values: torch.Tensor) -> None:
        """Copy a patch's parts for neighbouring tasks to memory; `finish` stores these copies.

        Args:
            patch: output box of the patch.
            key: key of the patch, from `key`.
            values: output of the patch, (c, z, y, x); the caller may overwrite *values* after this
                call.
        """
        if not self.is_current():
            return
        for name in self.shared(patch):
            box = patch.intersection(self.neighbours[name])
            part, arrived = self.exchange.copied(values[(slice(None), *box.slices(patch.start))])
            parts = self._kept.setdefault(name, {})
            parts[patch.start] = PatchPart(patch.start, box, key, part, arrived)

    def kept(self, consumer: str, patch: Zyx) -> PatchPart | None:
        """Return the part of a patch that this task keeps in memory for another task.

        The result is ``None`` if there is no such part.

        Args:
            consumer: name of the other task.
            patch: position of the first voxel of the output patch, global voxels, zyx.
        """
        return self._kept.get(consumer, {}).get(patch)

    def finish(self) -> None:
        """Pass the parts of all computed patches to the store."""
        self.exchange.write(
            self, {name: list(parts.values()) for name, parts in self._kept.items()}
        )
        self.exchange.done(self.name)
        self._packs = {}

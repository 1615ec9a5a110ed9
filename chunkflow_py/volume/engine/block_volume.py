"""Read and write volumes in the formats that store each block, or each shard, as an object.

```
read     fetch, decode, copy to the result    one job per object to fetch it, and one job per block
                                             to decode it, in a thread pool
write    encode, put                          one job per object; the blocks of a shard are encoded
                                             in parallel, then written together

blocks   |------|------|------|------|
request      |-------------|
pieces       |--|------|---|                  the parts of the request, one per block (see `Piece`)
```

A format (`BlockLayout`) defines which object stores a block and how the block is encoded; a `Store`
stores the bytes. This module does what is the same for all formats: it runs the thread pool and the
cache, clips blocks at the edge of the volume, handles missing and damaged blocks, and checks that a
write covers whole write units (blocks or shards).
"""

from __future__ import annotations

import itertools
import os
import threading
from collections import deque
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor, as_completed, wait
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from threading import Event, Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.decoding import BLOCK_BYTES
from chunkflow_py.core.failpoints import reached
from chunkflow_py.core.geometry import AXES, BoundingBox, Zyx
from chunkflow_py.core.host_memory import check_fits
from chunkflow_py.core.processors import usable_cores
from chunkflow_py.errors import VolumeError
from chunkflow_py.store.recording_store import RecordingStore
from chunkflow_py.store.store_address import without_secrets
from chunkflow_py.store.store_protocol import together
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.array_identity import expected_of
from chunkflow_py.volume.engine.block_cache import BlockCache
from chunkflow_py.volume.foreign_errors import translated_errors
from chunkflow_py.volume.protocol import (
    StoredUnit,
    VolumeOptions,
    check_channels,
    check_chunk,
    check_inside,
    checked_time,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.store.store_protocol import Store, Stored
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.engine.block_layout import BlockLayout, Index

_CANONICAL = "tczyx"
_DISK_THREADS = 4  # extra threads, which wait for the disk while others compress

Positions = range | list[int]  # along one axis of the array


@dataclass
class Traffic:
    """Totals of all reads of a volume.

    Attributes:
        stored_bytes: bytes of the fetched blocks, as stored.
        decoded_bytes: bytes of all voxels of the fetched blocks.
        needed_bytes: bytes of the voxels of the requested boxes.
        cache_hits: number of blocks that were found in the cache.
        missing_blocks: number of blocks that are not stored and were read as the fill value. A
            block that two reads need counts twice.
    """

    stored_bytes: int = 0
    decoded_bytes: int = 0
    needed_bytes: int = 0
    cache_hits: int = 0
    missing_blocks: int = 0


_thread = threading.local()


@contextmanager
def counting() -> Iterator[Traffic]:
    """Count the missing blocks in all reads of this thread inside the ``with`` statement.

    The other fields of the yielded `Traffic` remain 0.
    """
    before, _thread.traffic = getattr(_thread, "traffic", None), Traffic()
    try:
        yield _thread.traffic
    finally:
        _thread.traffic = before


@dataclass(frozen=True)
class Piece:
    """Part of an array that belongs to one block.

    Attributes:
        block: index of the block, one number per axis.
        inside: position of the part in the block.
        outside: position of the part in the array that is read or written.
    """

    block: Index
    inside: tuple[slice | list[int], ...]
    outside: tuple[slice | list[int], ...]


class BlockVolume:
    """One level of a volume of blocks, as a `Volume`.

    Args:
        url: address with which the volume can be opened again; may contain a password.
        store: store of the objects.
        layout: layout of the array in the store.
        voxel_offset: position of the first voxel, zyx.
        voxel_size_nm: size of a voxel, nanometres, zyx.
        kind: meaning of the voxels, if known.
        mode: ``r`` to read, or ``r+`` to read and write.
        mip: number of this level.
        mips: numbers of all levels.
        opening: options for reading and writing the volume.
        channel_names: one name per channel, if known.
        channel_colors: colour of each channel, six hexadecimal digits, if known.
        encoding: name of the compression of the blocks, as in the attribute `encoding` of
            `VolumeSpec`, or ``None`` if there is no such name for the compression.
        documents: keys that the metadata documents of this level may have. Not every key needs to
            exist: a zarr volume lists the keys of zarr v2 and of zarr v3.

    Attributes:
        url, bounds, voxel_size_nm, dtype, channels, kind, block_size, write_unit, times, mips,
            single_writer: see `Volume`.
        channel_blocks: number of blocks along the channel axis.
        channel_names, channel_colors, encoding, documents: the arguments of these names.
        traffic: totals of all reads.
    """

    single_writer = False

    def __init__(
        self,
        url: str,
        store: Store,
        layout: BlockLayout,
        *,
        voxel_offset: Zyx,
        voxel_size_nm: tuple[float, float, float],
        kind: Kind | None,
        mode: Mode,
        mip: int = 0,
        mips: tuple[int, ...] = (0,),
        opening: VolumeOptions | None = None,
        channel_names: tuple[str, ...] = (),
        channel_colors: tuple[str, ...] = (),
        encoding: str | None = None,
        documents: tuple[str, ...] = (),
    ) -> None:
        """Derive bounds, channels and times from the shape of the array.

        Raises:
            VolumeError: the array has an axis other than t, c, z, y and x that is longer than 1, or
                its blocks have more than `BLOCK_BYTES`.
        """
        shape = dict(zip(layout.axes, layout.shape, strict=True))
        for axis, length in shape.items():
            if axis not in _CANONICAL and length != 1:
                msg = (
                    f"{url} has an axis {axis!r} of length {length}, but only the axes t, c, z, y, "
                    "x may be longer than 1; store the array without this axis"
                )
                raise VolumeError(msg)
        if layout.block_bytes > BLOCK_BYTES:
            msg = (
                f"{without_secrets(url)} has blocks of {layout.block} {layout.dtype} "
                f"({', '.join(layout.axes)}), {layout.block_bytes} bytes each; the limit is "
                f"{BLOCK_BYTES} bytes; store the volume again in smaller blocks"
            )
            raise VolumeError(msg)
        self._address, self.url = url, without_secrets(url)
        self.mip, self.mips, self._mode = mip, mips, mode
        self._store, self._layout, self._opening = store, layout, opening or VolumeOptions()
        self.bounds = BoundingBox.from_size(voxel_offset, self._spatial(layout.shape))
        self.voxel_size_nm = voxel_size_nm
        self.kind: Kind | None = kind
        self.dtype: np.dtype[Any] = layout.dtype
        self.channels: int | None = shape.get("c")
        self.times: int | None = shape.get("t")
        self.block_size = self._spatial(layout.block)
        self.write_unit = self._spatial(layout.unit)
        width = dict(zip(layout.axes, layout.block, strict=True)).get("c", 1)
        self.channel_blocks = -(-(self.channels or 1) // width)
        self.channel_names, self.channel_colors = channel_names, channel_colors
        self.encoding, self.documents = encoding, documents
        self.traffic = Traffic()
        self._lock = Lock()
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._cache = BlockCache(self._opening.cache_bytes)
        self._expected = expected_of(self.array_url) if mode == "r" else None
        self._stored_shards: set[Index] = set()  # known to exist, although some blocks are empty

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        """Pickle the address and the options, not voxels; unpickling opens the volume again."""
        return partial(open_volume, self._address, self.mip, self._mode, opening=self._opening), ()

    @property
    def array_url(self) -> str:
        """Address of the folder or prefix with the blocks of this level."""
        return f"{self._store.url}/{self._layout.root}".rstrip("/")

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self,
        bbox: BoundingBox,
        channels: Sequence[int] | None = None,
        *,
        time: int | None = None,
    ) -> Chunk:
        """Return the voxels inside *bbox*; see `Volume.read`."""
        check_inside(bbox, self.bounds, self.url)
        check_channels(channels, self.channels, self.url)
        wanted: dict[str, Positions] = self._wanted(bbox, time)
        count = self.channels or 1
        if self.channels is not None and channels is not None:
            wanted["c"] = list(channels)
            count = len(channels)
        size = count * bbox.voxels * self.dtype.itemsize
        check_fits(size, f"box {bbox} of {self.url} with {count} channels of {self.dtype}")
        voxels: NDArray[Any] = np.empty((1, count, *bbox.size), self.dtype)
        missing = self._read_into(self._as_stored(voxels), wanted) if voxels.size else 0
        counted: Traffic | None = getattr(_thread, "traffic", None)
        if counted is not None:
            counted.missing_blocks += missing
        with self._lock:
            self.traffic.missing_blocks += missing
            self.traffic.needed_bytes += voxels.nbytes
            self.traffic.cache_hits = self._cache.hits
        result = voxels[0, 0] if self.channels is None else voxels[0]
        return Chunk(result, bbox.start, self.voxel_size_nm, self.kind, self.bounds)

    def _read_into(self, array: NDArray[Any], wanted: Mapping[str, Positions]) -> int:
        """Read the *wanted* voxels into *array*; return how many blocks are not stored."""
        claimed: dict[Index, list[Piece]] = {}
        cached: list[tuple[Piece, Future[NDArray[Any] | None]]] = []
        try:
            for unit, parts in self._units(wanted).items():
                for piece in parts:
                    future = self._cache.claim(piece.block)
                    if future is None:
                        claimed.setdefault(unit, []).append(piece)
                    else:
                        cached.append((piece, future))
            missing = self._read_units(claimed, array)
        finally:
            self._cache.give_up(piece.block for parts in claimed.values() for piece in parts)
        for piece, future in cached:
            try:
                block = future.result()
            except CancelledError:  # the reader that claimed this block failed before reading it
                missing += self._read_units({self._unit_of(piece.block): [piece]}, array)
            else:
                missing += block is None
                array[piece.outside] = self._layout.fill if block is None else block[piece.inside]
        return missing

    def _read_units(self, units: Mapping[Index, Sequence[Piece]], array: NDArray[Any]) -> int:
        missing: list[int] = []  # one number per unit; several threads append

        def fetch(unit: Index, parts: Sequence[Piece]) -> list[Callable[[], None]]:
            blocks = [piece.block for piece in parts]
            with self._damage(unit):
                fetched = self._layout.fetch(self._store, unit, blocks)
            reached("mid-read")
            missing.append(sum(data is None for data in fetched.values()))
            with self._lock:
                self.traffic.stored_bytes += sum(len(data or b"") for data in fetched.values())
            decoding: list[Callable[[], None]] = [
                partial(self._decode_into, unit, piece, fetched[piece.block], array)
                for piece in parts
            ]
            if len(decoding) == 1:
                decoding.pop()()
            return decoding

        jobs = [partial(fetch, unit, parts) for unit, parts in units.items()]
        if len(jobs) == 1:
            _run_all(self._pool, jobs[0]())
        else:
            # decode the blocks of a shard in parallel, as soon as they have been fetched
            fetching = _results(self._pool, jobs)
            _run_all(self._pool, (job for decoding in fetching for job in decoding))
        return sum(missing)

    def _decode_into(
        self, unit: Index, piece: Piece, data: bytes | None, array: NDArray[Any]
    ) -> None:
        if data is None:
            self._check_not_lost(unit)
            if not self._opening.fill_missing:
                msg = (
                    f"block {piece.block} of {self.url} is not stored "
                    f"({self._layout.key(unit)}); use --fill-missing to read such blocks as "
                    f"{self._layout.fill}"
                )
                raise VolumeError(msg)
            array[piece.outside] = self._layout.fill
            self._cache.share(piece.block, None)
            return
        extent = self._extent(piece.block)
        with self._damage(unit, piece.block):
            block = self._layout.decode(data, piece.block)
            if any(have < need for have, need in zip(block.shape, extent, strict=True)):
                msg = f"the block holds {block.shape} voxels, not {extent}"
                raise ValueError(msg)
        array[piece.outside] = block[piece.inside]
        with self._lock:
            self.traffic.decoded_bytes += block.nbytes
        self._cache.share(piece.block, block)

    def _check_not_lost(self, unit: Index) -> None:
        # A unit may be missing because it is empty. It is lost if an earlier step has stored it.
        if self._expected is None or unit in self._stored_shards:
            return
        is_shard = self._layout.unit != self._layout.block
        if is_shard and self._layout.exists(self._store, unit):
            self._stored_shards.add(unit)  # written whole, so its missing blocks are empty
            return
        box, time = self._box_of(unit)
        root = self._layout.root
        self._expected.check(self._layout.key(unit).removeprefix(f"{root}/"), box, time)

    # --- writing ---------------------------------------------------------------------------------

    def write(self, chunk: Chunk, *, time: int | None = None) -> tuple[Stored, ...]:
        """Write *chunk*; see `Volume.write`."""
        if self._mode == "r":
            msg = f"{self.url} was opened for reading; open it with mode 'r+'"
            raise VolumeError(msg)
        check_chunk(chunk, self, time)
        length = dict(zip(self._layout.axes, self._layout.unit, strict=True)).get("t", 1)
        if length > 1:
            msg = (
                f"each block of {self.url} has {length} time points, so tasks would overwrite each "
                "other's output; store the volume with one time point per block"
            )
            raise VolumeError(msg)
        if chunk.bbox.is_empty:
            return ()
        array = self._as_stored(chunk.array.reshape(1, chunk.channels, *chunk.size))
        units = self._units(self._wanted(chunk.bbox, time))
        whole = all(len(parts) == 1 for parts in units.values())
        try:
            with together(self._store) as within:
                store = RecordingStore(within)
                jobs = self._blocks_to_write if whole else self._shards_to_write
                _run_all(self._pool, jobs(store, units, array))
        finally:
            self._cache.forget(piece.block for parts in units.values() for piece in parts)
        return tuple(sorted(store.written, key=lambda stored: stored.url))

    def write_bytes(self, size: Zyx) -> int:
        """Return the memory, bytes, that `write` needs besides a chunk of extent *size*, voxels."""
        voxel = self.dtype.itemsize * (self.channels or 1)
        return write_bytes(size, self.block_size, self.write_unit, voxel, self._threads)

    def _blocks_to_write(
        self, store: RecordingStore, units: Mapping[Index, Sequence[Piece]], array: NDArray[Any]
    ) -> Iterator[Callable[[], None]]:
        def write(unit: Index, piece: Piece) -> None:
            self._put(store, unit, [self._encode(piece, array)])

        return (partial(write, unit, piece) for unit, (piece,) in units.items())

    def _shards_to_write(
        self, store: RecordingStore, units: Mapping[Index, Sequence[Piece]], array: NDArray[Any]
    ) -> Iterator[Callable[[], None]]:
        # While a shard is written, the blocks of the next shard are encoded.
        begun: deque[tuple[Index, list[Future[tuple[Index, bytes | None]]]]] = deque()

        def write_oldest() -> Callable[[], None]:
            unit, blocks = begun[0]
            encoded = [block.result() for block in blocks]
            begun.popleft()
            return partial(self._put, store, unit, encoded)

        try:
            for unit, parts in units.items():
                blocks = [self._pool.submit(self._encode, piece, array) for piece in parts]
                begun.append((unit, blocks))
                if len(begun) > 1:
                    yield write_oldest()
            while begun:
                yield write_oldest()
        finally:
            for _, blocks in begun:
                _stop(blocks)

    def _encode(self, piece: Piece, array: NDArray[Any]) -> tuple[Index, bytes | None]:
        voxels, fill = array[piece.outside], self._layout.fill
        row = voxels[(0,) * (voxels.ndim - 1)]  # enough to see that most blocks are not empty
        if not (self._opening.store_zeros or (row != fill).any() or (voxels != fill).any()):
            return piece.block, None
        with translated_errors(f"cannot encode block {piece.block} of {self.url}"):
            return piece.block, self._layout.encode(voxels, piece.block)

    def _put(
        self, store: RecordingStore, unit: Index, encoded: Sequence[tuple[Index, bytes | None]]
    ) -> None:
        if store.written:
            reached("mid-write")
        blocks = {block: data for block, data in encoded if data is not None}
        if blocks:
            self._layout.put(store, unit, blocks)
        else:
            self._layout.remove(store, unit)
            store.left_out(self._layout.key(unit))

    # --- stored units ----------------------------------------------------------------------------

    def objects(self, bbox: BoundingBox, *, time: int | None = None) -> list[str]:
        """Return the address of each write unit that *bbox* touches; see `Volume.objects`."""
        check_inside(bbox, self.bounds, self.url)
        if bbox.is_empty:
            return []
        units = self._units(self._wanted(bbox, time))
        return [f"{self._store.url.rstrip('/')}/{self._layout.key(unit)}" for unit in units]

    def has_blocks(self, bbox: BoundingBox, *, time: int | None = None) -> bool:
        """Return whether every write unit that *bbox* touches is stored; see `Volume`."""
        check_inside(bbox, self.bounds, self.url)
        units = self._units(self._wanted(bbox, time))
        jobs = (partial(self._layout.exists, self._store, unit) for unit in units)
        return all(_results(self._pool, jobs))

    def stored_units(self) -> Iterator[StoredUnit]:
        """Yield the write units that are stored; see `Volume`."""
        root = self._layout.root
        for key in self._store.list(f"{root}/" if root else ""):
            unit = self._layout.unit_of(key)
            if unit is None:
                continue
            box, time = self._box_of(unit)
            if not box.is_empty:
                remove = partial(self._layout.remove, self._store, unit)
                yield StoredUnit(f"{self._store.url}/{key}", box, time, remove)

    def to_dask(self, **settings: Any) -> Any:
        """Return a dask array of the volume; see `dask_array.to_dask`."""
        from chunkflow_py.volume.dask_array import to_dask

        return to_dask(self, **settings)

    # --- geometry --------------------------------------------------------------------------------

    def _wanted(self, bbox: BoundingBox, time: int | None) -> dict[str, Positions]:
        wanted: dict[str, Positions] = {
            axis: range(part.start, part.stop)
            for axis, part in zip(AXES, bbox.slices(self.bounds.start), strict=True)
        }
        wanted["c"] = range(self.channels or 1)
        if self.times is not None:
            index = checked_time(time, self.times, self.url)
            wanted["t"] = range(index, index + 1)
        return wanted

    def _units(self, wanted: Mapping[str, Positions]) -> dict[Index, list[Piece]]:
        positions = [wanted.get(axis, range(1)) for axis in self._layout.axes]
        units: dict[Index, list[Piece]] = {}
        for piece in _pieces(positions, self._layout.block):
            units.setdefault(self._unit_of(piece.block), []).append(piece)
        return units

    def _box_of(self, unit: Index) -> tuple[BoundingBox, int | None]:
        """Return the box of a write unit, clipped to the volume, and its time index."""
        index = dict(zip(self._layout.axes, unit, strict=True))
        low = self.bounds.start + Zyx(*(index.get(axis, 0) for axis in AXES)) * self.write_unit
        return BoundingBox(low, low + self.write_unit).intersection(self.bounds), index.get("t")

    def _unit_of(self, block: Index) -> Index:
        sizes = zip(block, self._layout.block, self._layout.unit, strict=True)
        return tuple(index * length // unit for index, length, unit in sizes)

    def _extent(self, block: Index) -> tuple[int, ...]:
        sizes = zip(block, self._layout.block, self._layout.shape, strict=True)
        return tuple(min(length, total - index * length) for index, length, total in sizes)

    def _as_stored(self, voxels: NDArray[Any]) -> NDArray[Any]:
        axes = self._layout.axes
        kept = [axis for axis in _CANONICAL if axis in axes]
        view = voxels[tuple(slice(None) if axis in axes else 0 for axis in _CANONICAL)]
        view = view.transpose([kept.index(axis) for axis in axes if axis in kept])
        return view[tuple(slice(None) if axis in kept else np.newaxis for axis in axes)]

    def _spatial(self, shape: Sequence[int]) -> Zyx:
        lengths = dict(zip(self._layout.axes, shape, strict=True))
        return Zyx(*(lengths.get(axis, 1) for axis in AXES))

    # --- threads and errors ----------------------------------------------------------------------

    @property
    def _pool(self) -> ThreadPoolExecutor:
        process = os.getpid()  # a forked process does not inherit threads
        with self._lock:
            if process not in self._pools:
                self._pools = {process: ThreadPoolExecutor(self._threads, "block")}
            return self._pools[process]

    @property
    def _threads(self) -> int:
        threads = self._opening.parallel or usable_cores()
        if self._store.is_local:
            return threads + (_DISK_THREADS if self._mode == "r+" else 0)
        return max(threads, self._store.connections)

    def _damage(self, unit: Index, block: Index | None = None) -> AbstractContextManager[None]:
        in_shard = block is not None and self._layout.unit != self._layout.block
        return translated_errors(
            f"block {f'{block} in ' if in_shard else ''}{self._layout.key(unit)} of {self.url} "
            "is damaged",
            "; restore the object from a copy, or delete it and compute it again",
        )


def write_bytes(
    size: Zyx, block: Zyx, unit: Zyx, voxel_bytes: int, threads: int | None = None
) -> int:
    """Return the memory, in bytes, that writing a chunk needs besides the chunk.

    Each thread copies and encodes one block. A shard is kept until all its blocks are encoded and
    the shard is stored. Encoded blocks are assumed to be as large as their voxels.

    Args:
        size: extent of the chunk, voxels, zyx.
        block: extent of a block, voxels, zyx.
        unit: extent of a write unit, which is a block or a shard, voxels, zyx.
        voxel_bytes: bytes of one voxel with all channels.
        threads: number of threads that write (default: as for a volume on a local disk).
    """
    threads = threads or usable_cores() + _DISK_THREADS
    chunk = size.product() * voxel_bytes
    encoding = min(2 * chunk, threads * 2 * block.product() * voxel_bytes)
    if unit == block:
        return encoding
    # Each thread stores a shard while the blocks of two more shards are encoded.
    return encoding + min(chunk, (threads + 2) * unit.product() * voxel_bytes)


# --- pieces --------------------------------------------------------------------------------------


def _pieces(wanted: Sequence[Positions], block: Sequence[int]) -> Iterator[Piece]:
    """Split the positions *wanted* into one `Piece` per block; *block* is the extent of a block."""
    spans = [list(_spans(each, length)) for each, length in zip(wanted, block, strict=True)]
    for combination in itertools.product(*spans):
        index, inside, outside = zip(*combination, strict=True)
        yield Piece(index, inside, outside)


def _spans(
    wanted: Positions, length: int
) -> Iterator[tuple[int, slice | list[int], slice | list[int]]]:
    """Yield, for each block along one axis, its index and the positions of its wanted voxels.

    The positions are given twice: in the block, and in the array that is read or written.
    """
    if isinstance(wanted, range):
        for block in range(wanted.start // length, -(-wanted.stop // length)):
            low = max(wanted.start, block * length)
            high = min(wanted.stop, (block + 1) * length)
            inside = slice(low - block * length, high - block * length)
            yield block, inside, slice(low - wanted.start, high - wanted.start)
        return
    for block in sorted({position // length for position in wanted}):
        outside = [i for i, position in enumerate(wanted) if position // length == block]
        yield block, [wanted[i] - block * length for i in outside], outside


# --- jobs in a thread pool -----------------------------------------------------------------------

_NOT_RUN = object()


def _run_all(pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], Any]]) -> None:
    for _ in _results(pool, jobs):
        pass


def _results(pool: ThreadPoolExecutor, jobs: Iterable[Callable[[], Any]]) -> Iterator[Any]:
    """Yield the results of the jobs in any order; after a failure, start no further job.

    The generator ends only when no job is running, because jobs may write to the caller's array.
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
        _stop(futures)


def _stop(futures: Collection[Future[Any]]) -> None:
    for future in futures:
        future.cancel()
    wait(futures)

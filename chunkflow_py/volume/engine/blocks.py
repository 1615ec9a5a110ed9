"""The block engine: volumes that are stored as many small objects, whatever their format.

```
read     which blocks?  ->  fetch, decode, place      one job a block, in a pool of threads
write    encode, put                                  one job a unit; the blocks of a shard in
                                                      parallel, then the shard, whole
```

A format says where a block is and how it is encoded (`Layout`), a store how bytes are kept
(`Store`); what is the same for all of them is here, once: the pool, the edges, blocks that are
missing or damaged, the check of write units, the cache.
"""

from __future__ import annotations

import os
from collections import deque
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.decoding import BLOCK_BYTES
from chunkflow_py.core.failpoints import reached
from chunkflow_py.core.geometry import AXES, BoundingBox, Zyx
from chunkflow_py.core.memory import check_fits
from chunkflow_py.errors import VolumeError
from chunkflow_py.store.address import without_secrets
from chunkflow_py.store.protocol import together
from chunkflow_py.store.recording import RecordingStore
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.engine.block_cache import BlockCache
from chunkflow_py.volume.engine.block_jobs import Foreign, cores, results, run_all, stop
from chunkflow_py.volume.engine.pieces import pieces
from chunkflow_py.volume.engine.traffic import Traffic, note_missing
from chunkflow_py.volume.expected import expected_of
from chunkflow_py.volume.protocol import (
    Opening,
    StoredUnit,
    check_channels,
    check_chunk,
    check_inside,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from chunkflow_py.core.chunk import Kind
    from chunkflow_py.store.protocol import Store, Stored
    from chunkflow_py.volume import Mode
    from chunkflow_py.volume.engine.layout import Index, Layout
    from chunkflow_py.volume.engine.pieces import Piece, Positions

_CANONICAL = "tczyx"
_WAITING = 4  # threads that wait for the disk while others compress


class BlockVolume:
    """One level of a volume of blocks, as a `Volume`.

    Args:
        url: what a person would write to open it again, with a password if it has one.
        store: of the objects.
        layout: of the array in the store.
        voxel_offset: position of the first voxel, zyx.
        voxel_size_nm: nanometres, zyx.
        kind: what the voxels mean, if known.
        mode: ``r`` or ``r+``.
        mip: number of this level.
        mips: numbers of all levels.
        opening: how to use it.
        channel_names: one a channel, if known.

    Attributes:
        url, bounds, voxel_size_nm, dtype, channels, kind, block_size, write_unit, times, mips,
            single_writer: as `Volume` says.
        channel_blocks: number of blocks along the channels.
        traffic: what reading has cost so far.
    """

    single_writer = False

    def __init__(
        self,
        url: str,
        store: Store,
        layout: Layout,
        *,
        voxel_offset: Zyx,
        voxel_size_nm: tuple[float, float, float],
        kind: Kind | None,
        mode: Mode,
        mip: int = 0,
        mips: tuple[int, ...] = (0,),
        opening: Opening | None = None,
        channel_names: tuple[str, ...] = (),
    ) -> None:
        """Read off the shape of the array.

        Raises:
            VolumeError: it has an axis that is neither t, c, z, y nor x and longer than 1, or
                blocks of more than `BLOCK_BYTES`.
        """
        shape = dict(zip(layout.axes, layout.shape, strict=True))
        for axis, length in shape.items():
            if axis not in _CANONICAL and length != 1:
                msg = f"{url} has an axis {axis!r} of length {length}; known are t, c, z, y, x"
                raise VolumeError(msg)
        if layout.block_bytes > BLOCK_BYTES:
            msg = (
                f"{without_secrets(url)} has blocks of {layout.block} {layout.dtype} "
                f"({', '.join(layout.axes)}), which are {layout.block_bytes} bytes, more than the "
                f"{BLOCK_BYTES} that are read at once; store it again in smaller blocks"
            )
            raise VolumeError(msg)
        self._address, self.url = url, without_secrets(url)
        self.mip, self.mips, self._mode = mip, mips, mode
        self._store, self._layout, self._opening = store, layout, opening or Opening()
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
        self.channel_names = channel_names
        self.traffic = Traffic()
        self._lock = Lock()
        self._pools: dict[int, ThreadPoolExecutor] = {}
        self._cache = BlockCache(self._opening.cache_bytes)
        self._expected = expected_of(self.array_url) if mode == "r" else None
        self._there: set[Index] = set()  # shards that are stored, without some of their blocks

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[()]]:
        """Open it again in another process."""
        return partial(open_volume, self._address, self.mip, self._mode, opening=self._opening), ()

    @property
    def array_url(self) -> str:
        """Where the array itself is: the folder or prefix of its blocks."""
        return f"{self._store.url}/{self._layout.root}".rstrip("/")

    # --- reading ---------------------------------------------------------------------------------

    def read(
        self,
        bbox: BoundingBox,
        channels: Sequence[int] | None = None,
        *,
        time: int | None = None,
    ) -> Chunk:
        """Return the voxels inside *bbox*, as `Volume.read` says."""
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
        note_missing(missing)
        with self._lock:
            self.traffic.missing_blocks += missing
            self.traffic.needed_bytes += voxels.nbytes
            self.traffic.cache_hits = self._cache.hits
        result = voxels[0, 0] if self.channels is None else voxels[0]
        return Chunk(result, bbox.start, self.voxel_size_nm, self.kind, self.bounds)

    def _read_into(self, array: NDArray[Any], wanted: Mapping[str, Positions]) -> int:
        """Fill *array*; return how many blocks are not stored."""
        mine: dict[Index, list[Piece]] = {}
        coming: list[tuple[Piece, Future[NDArray[Any] | None]]] = []
        try:
            for unit, parts in self._units(wanted).items():
                for piece in parts:
                    found = self._cache.claim(piece.block)
                    if found is None:
                        mine.setdefault(unit, []).append(piece)
                    else:
                        coming.append((piece, found))
            missing = self._read_units(mine, array)
        finally:
            self._cache.give_up(piece.block for parts in mine.values() for piece in parts)
        for piece, found in coming:
            try:
                block = found.result()
            except CancelledError:  # the other reader failed before it came to this block
                missing += self._read_units({self._unit_of(piece.block): [piece]}, array)
            else:
                missing += block is None
                array[piece.outside] = self._layout.fill if block is None else block[piece.inside]
        return missing

    def _read_units(self, units: Mapping[Index, Sequence[Piece]], array: NDArray[Any]) -> int:
        missing: list[int] = []  # of each unit, by several threads

        def fetch(unit: Index, parts: Sequence[Piece]) -> list[Callable[[], None]]:
            blocks = [piece.block for piece in parts]
            with self._damage(unit):
                found = self._layout.fetch(self._store, unit, blocks)
            reached("mid-read")
            missing.append(sum(data is None for data in found.values()))
            with self._lock:
                self.traffic.stored_bytes += sum(len(data or b"") for data in found.values())
            rest: list[Callable[[], None]] = [
                partial(self._place, unit, piece, found[piece.block], array) for piece in parts
            ]
            if len(rest) == 1:
                rest.pop()()
            return rest

        jobs = [partial(fetch, unit, parts) for unit, parts in units.items()]
        if len(jobs) == 1:
            run_all(self._pool, jobs[0]())
        else:
            # the blocks of a shard are decoded in parallel, as soon as they are there
            run_all(self._pool, (job for rest in results(self._pool, jobs) for job in rest))
        return sum(missing)

    def _place(self, unit: Index, piece: Piece, data: bytes | None, array: NDArray[Any]) -> None:
        if data is None:
            self._check_lost(unit)
            if not self._opening.fill_missing:
                msg = (
                    f"block {piece.block} of {self.url} is not stored "
                    f"({self._layout.key(unit)}); --fill-missing reads such blocks as "
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
                msg = f"it holds {block.shape} voxels, not {extent}"
                raise ValueError(msg)
        array[piece.outside] = block[piece.inside]
        with self._lock:
            self.traffic.decoded_bytes += block.nbytes
        self._cache.share(piece.block, block)

    def _check_lost(self, unit: Index) -> None:
        """Refuse that a block is absent that an earlier step of this run has stored."""
        if self._expected is None or unit in self._there:
            return
        is_shard = self._layout.unit != self._layout.block
        if is_shard and self._layout.exists(self._store, unit):
            self._there.add(unit)  # it was written whole: what it has not got is empty
            return
        box, time = self._place_of(unit)
        root = self._layout.root
        self._expected.check(self._layout.key(unit).removeprefix(f"{root}/"), box, time)

    # --- writing ---------------------------------------------------------------------------------

    def write(self, chunk: Chunk, *, time: int | None = None) -> tuple[Stored, ...]:
        """Write *chunk*, as `Volume.write` says."""
        if self._mode == "r":
            msg = f"{self.url} was opened for reading; open it with mode 'r+'"
            raise VolumeError(msg)
        check_chunk(chunk, self, time)
        length = dict(zip(self._layout.axes, self._layout.unit, strict=True)).get("t", 1)
        if length > 1:
            msg = (
                f"a block of {self.url} holds {length} time points, which tasks would overwrite "
                "for each other; store it with one time point a block"
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
                run_all(self._pool, jobs(store, units, array))
        finally:
            self._cache.forget(piece.block for parts in units.values() for piece in parts)
        return tuple(sorted(store.written, key=lambda stored: stored.url))

    def _blocks_to_write(
        self, store: RecordingStore, units: Mapping[Index, Sequence[Piece]], array: NDArray[Any]
    ) -> Iterator[Callable[[], None]]:
        def write(unit: Index, piece: Piece) -> None:
            self._put(store, unit, [self._encode(piece, array)])

        return (partial(write, unit, piece) for unit, (piece,) in units.items())

    def _shards_to_write(
        self, store: RecordingStore, units: Mapping[Index, Sequence[Piece]], array: NDArray[Any]
    ) -> Iterator[Callable[[], None]]:
        """Encode the blocks of a shard while those of the one before end; yield what writes it."""
        begun: deque[tuple[Index, list[Future[tuple[Index, bytes | None]]]]] = deque()

        def whole() -> Callable[[], None]:
            unit, blocks = begun[0]
            encoded = [block.result() for block in blocks]
            begun.popleft()
            return partial(self._put, store, unit, encoded)

        try:
            for unit, parts in units.items():
                blocks = [self._pool.submit(self._encode, piece, array) for piece in parts]
                begun.append((unit, blocks))
                if len(begun) > 1:
                    yield whole()
            while begun:
                yield whole()
        finally:
            for _, blocks in begun:
                stop(blocks)

    def _encode(self, piece: Piece, array: NDArray[Any]) -> tuple[Index, bytes | None]:
        voxels, fill = array[piece.outside], self._layout.fill
        row = voxels[(0,) * (voxels.ndim - 1)]  # most blocks show here that they are not empty
        if not (self._opening.store_zeros or (row != fill).any() or (voxels != fill).any()):
            return piece.block, None
        with Foreign(f"cannot encode block {piece.block} of {self.url}"):
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

    # --- what is stored --------------------------------------------------------------------------

    def objects(self, bbox: BoundingBox, *, time: int | None = None) -> list[str]:
        """Return the addresses of the write units that *bbox* touches, as `Volume` says."""
        check_inside(bbox, self.bounds, self.url)
        if bbox.is_empty:
            return []
        units = self._units(self._wanted(bbox, time))
        return [f"{self._store.url.rstrip('/')}/{self._layout.key(unit)}" for unit in units]

    def has_blocks(self, bbox: BoundingBox, *, time: int | None = None) -> bool:
        """Tell whether every write unit that *bbox* touches is stored, as `Volume` says."""
        check_inside(bbox, self.bounds, self.url)
        units = self._units(self._wanted(bbox, time))
        jobs = (partial(self._layout.exists, self._store, unit) for unit in units)
        return all(results(self._pool, jobs))

    def stored_units(self) -> Iterator[StoredUnit]:
        """Yield the write units that are stored, as `Volume` says."""
        root = self._layout.root
        for key in self._store.list(f"{root}/" if root else ""):
            unit = self._layout.unit_of(key)
            if unit is None:
                continue
            box, time = self._place_of(unit)
            if not box.is_empty:
                remove = partial(self._layout.remove, self._store, unit)
                yield StoredUnit(f"{self._store.url}/{key}", box, time, remove)

    def to_dask(self, **settings: Any) -> Any:
        """Return the voxels as a dask array, see `dask_array.to_dask`."""
        from chunkflow_py.volume.dask_array import to_dask

        return to_dask(self, **settings)

    # --- geometry --------------------------------------------------------------------------------

    def _wanted(self, bbox: BoundingBox, time: int | None) -> dict[str, Positions]:
        """Return the positions along each axis, all channels."""
        wanted: dict[str, Positions] = {
            axis: range(part.start, part.stop)
            for axis, part in zip(AXES, bbox.slices(self.bounds.start), strict=True)
        }
        wanted["c"] = range(self.channels or 1)
        if self.times is not None:
            if time is None and self.times > 1:
                msg = (
                    f"{self.url} has {self.times} time points and the task names none; name one "
                    "with --time or in the task's box, such as t0_0-64_0-512_0-512"
                )
                raise VolumeError(msg)
            if not 0 <= (time or 0) < self.times:
                msg = f"{self.url} has the time indices 0 to {self.times - 1}; got {time}"
                raise VolumeError(msg)
            wanted["t"] = range(time or 0, (time or 0) + 1)
        return wanted

    def _units(self, wanted: Mapping[str, Positions]) -> dict[Index, list[Piece]]:
        """Return the units that hold the *wanted* positions, with the pieces of their blocks."""
        positions = [wanted.get(axis, range(1)) for axis in self._layout.axes]
        units: dict[Index, list[Piece]] = {}
        for piece in pieces(positions, self._layout.block):
            units.setdefault(self._unit_of(piece.block), []).append(piece)
        return units

    def _place_of(self, unit: Index) -> tuple[BoundingBox, int | None]:
        """Return the box of a unit, what of it is in the array, and its time index."""
        place = dict(zip(self._layout.axes, unit, strict=True))
        low = self.bounds.start + Zyx(*(place.get(axis, 0) for axis in AXES)) * self.write_unit
        return BoundingBox(low, low + self.write_unit).intersection(self.bounds), place.get("t")

    def _unit_of(self, block: Index) -> Index:
        sizes = zip(block, self._layout.block, self._layout.unit, strict=True)
        return tuple(index * length // unit for index, length, unit in sizes)

    def _extent(self, block: Index) -> tuple[int, ...]:
        sizes = zip(block, self._layout.block, self._layout.shape, strict=True)
        return tuple(min(length, total - index * length) for index, length, total in sizes)

    def _as_stored(self, voxels: NDArray[Any]) -> NDArray[Any]:
        """Return (t, c, z, y, x) voxels as a view with the axes of the array, in their order."""
        axes = self._layout.axes
        kept = [axis for axis in _CANONICAL if axis in axes]
        view = voxels[tuple(slice(None) if axis in axes else 0 for axis in _CANONICAL)]
        view = view.transpose([kept.index(axis) for axis in axes if axis in kept])
        return view[tuple(slice(None) if axis in kept else np.newaxis for axis in axes)]

    def _spatial(self, shape: Sequence[int]) -> Zyx:
        found = dict(zip(self._layout.axes, shape, strict=True))
        return Zyx(*(found.get(axis, 1) for axis in AXES))

    # --- threads and errors ----------------------------------------------------------------------

    @property
    def _pool(self) -> ThreadPoolExecutor:
        process = os.getpid()  # threads do not follow into a process that is forked
        with self._lock:
            if process not in self._pools:
                self._pools = {process: ThreadPoolExecutor(self._threads, "block")}
            return self._pools[process]

    @property
    def _threads(self) -> int:
        threads = self._opening.parallel or cores()
        if self._store.is_local:
            return threads + (_WAITING if self._mode == "r+" else 0)
        return max(threads, self._store.connections)

    def _damage(self, unit: Index, block: Index | None = None) -> Foreign:
        which = "" if block is None or self._layout.unit == self._layout.block else f"{block} in "
        return Foreign(
            f"block {which}{self._layout.key(unit)} of {self.url} is damaged",
            "; restore it from a copy, or remove it to have it made again",
        )

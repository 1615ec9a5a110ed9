"""The block engine, with a format as plain as can be: properties over axes, extents and shards."""

import secrets
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.errors import AlignmentError, VolumeError
from chunkflow_py.store import open_store
from chunkflow_py.volume.engine.block_layout import BlockLayout
from chunkflow_py.volume.engine.block_volume import BlockVolume, counting
from chunkflow_py.volume.protocol import VolumeOptions

OFFSET = Zyx(-3, 5, 1000)


class PlainLayout(BlockLayout):
    """Voxels as they are in memory; a shard is its blocks in a dictionary."""

    def __init__(self, axes, shape, block, blocks_a_unit, fill=0):
        self.axes, self.shape, self.block, self.fill = axes, shape, block, fill
        self.unit = tuple(b * n for b, n in zip(block, blocks_a_unit))
        self.dtype = np.dtype("int16")
        self.fetched = []
        self.started, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    root = ""

    def key(self, unit):
        return "/".join(map(str, unit))

    def unit_of(self, key):
        return tuple(map(int, key.split("/")))

    def decode(self, data, block):
        extent = [min(b, s - i * b) for b, s, i in zip(self.block, self.shape, block)]
        return np.frombuffer(data, self.dtype).reshape(extent)

    def encode(self, voxels, block):
        return voxels.tobytes()

    def _inner(self, unit, block):
        return f"{self.key(unit)}:{self.key(block)}"

    def fetch(self, store, unit, blocks):
        self.started.set()
        assert self.go_on.wait(20)
        self.fetched += blocks
        return {block: store.get(self._inner(unit, block)) for block in blocks}

    def put(self, store, unit, blocks):
        self.remove(store, unit)
        for block, data in blocks.items():
            store.put(self._inner(unit, block), data)

    def remove(self, store, unit):
        for key in list(store.list(f"{self.key(unit)}:")):
            store.delete(key)

    def exists(self, store, unit):
        return any(True for _ in store.list(f"{self.key(unit)}:"))


def volume_of(layout, **opening):
    """Return a new empty volume of that layout."""
    return BlockVolume(
        "mem://test", open_store(f"mem://{secrets.token_hex(8)}/em"), layout,
        voxel_offset=OFFSET, voxel_size_nm=(1.0, 1.0, 1.0), kind=None, mode="r+",
        opening=VolumeOptions(**opening),
    )  # fmt: skip


@st.composite
def layouts(draw):
    """Axes in any order, z and c and t perhaps missing, any extents, blocks and shards."""
    axes = ["y", "x"] + [axis for axis in "zct" if draw(st.booleans())]
    axes = tuple(draw(st.permutations(axes)))
    shape = tuple(draw(st.integers(1, 9)) for _ in axes)
    block = tuple(1 if a == "t" else draw(st.integers(1, 6)) for a in axes)
    unit = [1 if a == "t" else draw(st.integers(1, 3)) for a in axes]
    return PlainLayout(axes, shape, block, unit, fill=draw(st.sampled_from([0, 7])))


def box_in(bounds, data):
    """Draw a box inside of bounds."""
    faces = [
        sorted(data.draw(st.tuples(st.integers(a, b), st.integers(a, b))))
        for a, b in zip(bounds.start, bounds.stop)
    ]
    return BoundingBox(Zyx(*(f[0] for f in faces)), Zyx(*(f[1] for f in faces)))


def random_chunk(volume, bounds, seed=0):
    """Return a chunk of random voxels, some blocks of which are empty."""
    lead = () if volume.channels is None else (volume.channels,)
    array = np.random.default_rng(seed).integers(-2, 3, (*lead, *bounds.size)).astype("int16")
    return Chunk(array * (array % 2), bounds.start)


@given(layout=layouts(), data=st.data())
@settings(max_examples=150)
def test_any_layout(layout, data):
    """What is written unit by unit, in any order, is what any read finds, for any axes."""
    volume = volume_of(layout, parallel=2, cache_bytes=data.draw(st.sampled_from([0, 60, 1 << 20])))
    time = None if volume.times is None else data.draw(st.integers(0, volume.times - 1))
    chunk = random_chunk(volume, volume.bounds)
    boxes = list(BoxGrid.covering(volume.bounds, volume.write_unit, respect_stop=True))
    for box in data.draw(st.permutations(boxes)):
        volume.write(chunk.cut(box), time=time)
    wanted = chunk.array
    if layout.fill:  # blocks of nothing but the fill value are left out
        assert volume.read(volume.bounds, time=time).array.tolist() == wanted.tolist()
    box = box_in(volume.bounds, data)
    found = volume.read(box, time=time)
    np.testing.assert_array_equal(found.array, chunk.cut(box).array)
    assert found.voxel_offset == box.start
    if volume.channels:
        some = data.draw(st.lists(st.integers(0, volume.channels - 1), min_size=1))
        found = volume.read(box, some, time=time).array
        np.testing.assert_array_equal(found, chunk.cut(box).array[some])


@given(layout=layouts(), data=st.data())
@settings(max_examples=60)
def test_what_was_not_written(layout, data):
    """Blocks that were never written hold the fill value; has_blocks knows which they are."""
    volume = volume_of(layout, store_zeros=True)
    boxes = list(BoxGrid.covering(volume.bounds, volume.write_unit, respect_stop=True))
    written = data.draw(st.lists(st.sampled_from(boxes), unique_by=str))
    for box in written:
        volume.write(random_chunk(volume, box), time=None if volume.times is None else 0)
    time = None if volume.times is None else 0
    for box in boxes:
        assert volume.has_blocks(box, time=time) == (box in written)
        if box not in written:
            assert (volume.read(box, time=time).array == layout.fill).all()


def test_fetched_once():
    """Two readers of one block at the same time fetch it once, and both get it."""
    layout = PlainLayout(("z", "y", "x"), (8, 8, 8), (8, 8, 8), (1, 1, 1))
    volume = volume_of(layout, cache_bytes=1 << 20)
    chunk = random_chunk(volume, volume.bounds)
    volume.write(chunk)
    layout.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(volume.read, volume.bounds) for _ in range(2)]
        assert layout.started.wait(20)
        layout.go_on.set()
        for reader in readers:
            np.testing.assert_array_equal(reader.result(20).array, chunk.array)
    assert layout.fetched == [(0, 0, 0)]
    assert volume.traffic.decoded_bytes == 1024
    assert volume.traffic.needed_bytes == 2048
    assert volume.traffic.cache_hits == 1


def test_missing_blocks_are_counted():
    """Each read counts those that it filled, also those that were known to be missing."""
    layout = PlainLayout(("z", "y", "x"), (8, 8, 8), (8, 8, 4), (1, 1, 1))
    volume = volume_of(layout, cache_bytes=1 << 20)
    half = BoundingBox(volume.bounds.start, volume.bounds.start + (8, 8, 4))
    volume.write(random_chunk(volume, half))
    for number in (1, 2):
        with counting() as here:
            volume.read(volume.bounds)
        assert here.missing_blocks == 1
        assert volume.traffic.missing_blocks == number
    volume.read(volume.bounds)
    assert here.missing_blocks == 1, "what others read is no matter"


def test_reader_that_fails():
    """A reader that waits for another, which fails, reads for itself."""
    layout = PlainLayout(("z", "y", "x"), (8, 8, 8), (8, 8, 8), (1, 1, 1))
    volume = volume_of(layout, cache_bytes=1 << 20, fill_missing=False)
    layout.go_on.clear()
    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(volume.read, volume.bounds) for _ in range(2)]
        assert layout.started.wait(20)
        layout.go_on.set()
        for reader in readers:
            with pytest.raises(VolumeError, match=r"\(0, 0, 0\) of mem://test is not stored"):
                reader.result(20)


def test_cache_is_bounded():
    """What is kept never exceeds the limit: the blocks that were used last."""
    layout = PlainLayout(("z", "y", "x"), (1, 1, 80), (1, 1, 10), (1, 1, 1))
    volume = volume_of(layout, cache_bytes=60, parallel=1)  # three blocks of 20 bytes
    volume.write(random_chunk(volume, volume.bounds))
    for first in (0, 10, 20, 30, 20):
        volume.read(BoundingBox.from_size(OFFSET + (0, 0, first), Zyx(1, 1, 10)))
    volume.read(BoundingBox.from_size(OFFSET, Zyx(1, 1, 10)))
    assert [block[2] for block in layout.fetched] == [0, 1, 2, 3, 0]


def test_failure_ends_reading():
    """After a block that cannot be read, the rest of a large read is not fetched."""
    layout = PlainLayout(("z", "y", "x"), (1, 1, 4000), (1, 1, 1), (1, 1, 1))
    volume = volume_of(layout, fill_missing=False, parallel=1)
    with pytest.raises(VolumeError, match="is not stored"):
        volume.read(volume.bounds)
    assert len(layout.fetched) < 4000


def test_time_in_a_block():
    """Blocks of several time points are read, and refused for writing: tasks would collide."""
    layout = PlainLayout(("t", "z", "y", "x"), (4, 2, 2, 2), (2, 2, 2, 2), (1, 1, 1, 1))
    volume = volume_of(layout)
    assert not volume.read(volume.bounds, time=3).array.any()
    with pytest.raises(VolumeError, match="each block of .* has 2 time points"):
        volume.write(random_chunk(volume, volume.bounds), time=0)
    with pytest.raises(VolumeError, match="has 4 time points, but the task has no time index"):
        volume.read(volume.bounds)
    with pytest.raises(VolumeError, match="indices 0 to 3, but time index 4 was requested"):
        volume.read(volume.bounds, time=4)


def test_unknown_axis():
    """An axis that is none of ours is passed over when it has length 1, and named if not."""
    PlainLayout(("q", "y", "x"), (1, 2, 2), (1, 2, 2), (1, 1, 1))
    assert volume_of(PlainLayout(("q", "y", "x"), (1, 2, 2), (1, 2, 2), (1, 1, 1))).bounds.size == (
        1, 2, 2,
    )  # fmt: skip
    with pytest.raises(
        VolumeError, match="an axis 'q' of length 3, but only the axes t, c, z, y, x"
    ):
        volume_of(PlainLayout(("q", "y", "x"), (3, 2, 2), (1, 2, 2), (1, 1, 1)))


def test_shard_is_written_whole():
    """A chunk that covers one block of a shard is refused, and so is one that cuts a block."""
    layout = PlainLayout(("z", "y", "x"), (8, 8, 8), (2, 2, 2), (2, 2, 2))
    volume = volume_of(layout)
    box = BoundingBox.from_size(OFFSET, Zyx(2, 2, 2))
    with pytest.raises(AlignmentError, match=r"not aligned to the write units of size \(4, 4, 4\)"):
        volume.write(random_chunk(volume, box))


def test_forked_process():
    """A volume that was read before goes on in a process that is forked: it has its own threads."""
    import multiprocessing
    import warnings

    layout = PlainLayout(("z", "y", "x"), (4, 4, 4), (2, 2, 2), (1, 1, 1))
    volume = volume_of(layout, parallel=2)
    chunk = random_chunk(volume, volume.bounds)
    volume.write(chunk)
    volume.read(volume.bounds)
    ours, theirs = multiprocessing.get_context("fork").Pipe()

    def read():
        theirs.send(volume.read(volume.bounds).array)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # that threads and fork do not mix
        process = multiprocessing.get_context("fork").Process(target=read)
        process.start()
    try:
        assert ours.poll(20)
        np.testing.assert_array_equal(ours.recv(), chunk.array)
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("blocks_a_unit", [(1, 1, 1), (1, 2, 2), (4, 4, 4)])
def test_memory_of_a_write(blocks_a_unit):
    """A write needs no more than the estimate, which is less than a copy if there are no shards."""
    layout = PlainLayout("zyx", (64, 128, 128), (16, 32, 32), blocks_a_unit)
    volume = volume_of(layout, parallel=2)
    chunk = random_chunk(volume, volume.bounds)
    expected = volume.write_bytes(volume.bounds.size)
    if blocks_a_unit == (1, 1, 1):
        assert expected < chunk.array.nbytes / 2
    # What is stored stays in memory here, so it is not counted.
    tracemalloc.start()
    volume.write(chunk)
    kept, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept >= chunk.array.nbytes
    assert peak - kept <= expected

"""Volumes as dask arrays."""

import pickle

import dask
import dask.array as da
import h5py
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, OptionError
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.dask_array import VolumeArray, to_dask
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox((-3, 7, 100), (17, 30, 121))


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """Return the address of a volume of two channels, and its voxels."""
    url = f"h5://{tmp_path_factory.mktemp('dask')}/em.h5"
    spec = VolumeSpec(BOUNDS, (40, 4, 4), np.dtype("uint16"), 2, "image", Zyx(8, 8, 16))
    array = np.random.default_rng(0).integers(0, 999, (2, *BOUNDS.size)).astype("uint16")
    create_volume(spec, url).write(Chunk(array, BOUNDS.start))
    return url, array


@pytest.mark.parametrize("chunks", [None, (20, 23, 21), (5, 6, 7), (100, 100, 100)])
def test_the_voxels_are_those_of_the_volume(stored, chunks):
    """Any size of chunks gives the voxels, the type and the shape of the volume."""
    url, array = stored
    found = to_dask(open_volume(url), chunks=chunks)
    assert (found.shape, found.dtype) == (array.shape, array.dtype)
    np.testing.assert_array_equal(found.compute(scheduler="sync"), array)
    np.testing.assert_array_equal(found.compute(scheduler="threads"), array)


def test_chunks_are_write_units(stored):
    """By default a chunk is what is stored as one, from the start of the volume, all channels."""
    found = to_dask(open_volume(stored[0]))
    assert found.chunks == ((2,), (8, 8, 4), (8, 8, 7), (16, 5))


def test_channels(stored):
    """Channels come in the order in which they are asked for."""
    url, array = stored
    found = to_dask(open_volume(url), channels=[1, 0, 1])
    np.testing.assert_array_equal(found.compute(scheduler="sync"), array[[1, 0, 1]])
    with pytest.raises(ChunkError, match="channels 0 to 1, but channel 2"):
        to_dask(open_volume(url), channels=[2])


@st.composite
def keys(draw):
    """Draw what may stand between brackets: numbers, slices of any step, at most one list."""
    shape = (2, *BOUNDS.size)
    key = []
    for length in shape:
        bound = st.one_of(st.none(), st.integers(-length, length))
        step = st.sampled_from([None, 1, 2, 3, -1, -2])
        key.append(
            draw(st.one_of(st.integers(-length, length - 1), st.builds(slice, bound, bound, step)))
        )
    if draw(st.booleans()):
        axis = draw(st.integers(0, 3))
        key[axis] = draw(st.lists(st.integers(0, shape[axis] - 1), min_size=1, max_size=4))
    return tuple(key[: draw(st.integers(1, 4))])


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(key=keys())
def test_parts(stored, key):
    """A part by numbers, slices and lists is that of the whole, from dask and by itself."""
    url, array = stored
    wanted = array
    for axis in reversed(range(len(key))):  # axis by axis, for what NumPy does to numbers and lists
        wanted = wanted[(slice(None),) * axis + (key[axis],)]
    found = to_dask(open_volume(url), chunks=(7, 9, 11))[key]
    np.testing.assert_array_equal(found.compute(scheduler="sync"), wanted)
    plain = VolumeArray(open_volume(url), None, None)
    np.testing.assert_array_equal(plain[key], wanted)
    np.testing.assert_array_equal(plain[..., 3], array[..., 3])


def test_a_part_reads_a_part(stored, monkeypatch):
    """What lies outside of a part is not read."""
    volume = open_volume(stored[0])
    boxes = []
    really = volume.read

    def read(box, *rest, **more):
        boxes.append(box)
        return really(box, *rest, **more)

    monkeypatch.setattr(volume, "read", read)
    to_dask(volume)[:, 1:3, 2:4, 3:5].compute(scheduler="sync")
    assert boxes == [BoundingBox((-2, 9, 103), (0, 11, 105))]


def test_names_are_the_same_again(stored):
    """The same volume, opened again, has the same names; other chunks or channels have others."""
    url = stored[0]
    again = [to_dask(open_volume(url)).name for _ in range(2)]
    assert again[0] == again[1]
    others = [
        to_dask(open_volume(url), **how).name for how in ({"chunks": (9, 9, 9)}, {"channels": [0]})
    ]
    assert len({again[0], *others}) == 3


def test_other_processes_open_it_again(stored):
    """An array that is sent elsewhere reads the volume there, and holds no voxels on its way."""
    url, array = stored
    sent = pickle.dumps(to_dask(open_volume(url)))
    assert len(sent) < array.nbytes / 4
    again = pickle.loads(sent)
    np.testing.assert_array_equal(again.compute(scheduler="sync"), array)
    with dask.config.set(scheduler="processes", num_workers=2):
        np.testing.assert_array_equal((again + 1).compute(), array + 1)


def test_a_volume_without_channels(tmp_path):
    """A volume without a channel axis becomes (z, y, x), also where its one channel is named."""
    array = np.arange(60, dtype="uint8").reshape(3, 4, 5)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["main"] = array
    volume = open_volume(f"h5://{tmp_path}/a.h5")
    for channels in (None, [0]):
        found = to_dask(volume, channels=channels)
        assert isinstance(found, da.Array)
        np.testing.assert_array_equal(found.compute(scheduler="sync"), array)


def test_nonsense_is_refused(stored):
    """Chunks without voxels, and time points that are not there, are told as such."""
    volume = open_volume(stored[0])
    with pytest.raises(OptionError, match=r"at least 1 voxel .* are \(0, 1, 1\)"):
        to_dask(volume, chunks=(0, 1, 1))
    with pytest.raises(OptionError, match="time indices 0 to 0, but time index 1 was requested"):
        to_dask(volume, time=1)

"""Tests of chunkflow_py.volume.files.file_volume: a file as a volume that is only read."""

import numpy as np
import pytest

from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.errors import ChunkError, GeometryError, VolumeError
from chunkflow_py.volume.files.file_name import FileName
from chunkflow_py.volume.files.file_volume import FileSource
from chunkflow_py.volume.files.npy import EXTENSIONS, open_npy
from chunkflow_py.volume.loader import VolumeLoader

ARRAY = np.arange(2 * 4 * 5, dtype=">u2").reshape(2, 4, 5)
BOUNDS = BoundingBox(Zyx(3, 0, 10), Zyx(5, 4, 15))


@pytest.fixture
def volume(tmp_path):
    """Return a file as a volume, with an offset."""
    np.save(tmp_path / "a.npy", ARRAY)
    return open_npy(tmp_path / "a.npy", BOUNDS.start, (40, 4, 4))


def test_a_file_has_the_attributes_of_a_volume(volume):
    """A file has one level, no time axis, and is one block."""
    assert (volume.bounds, volume.dtype, volume.channels) == (BOUNDS, np.dtype("=u2"), None)
    assert (volume.times, volume.mips, volume.block_size) == (None, (0,), BOUNDS.size)
    assert volume.has_blocks(BOUNDS)
    assert volume.objects(BOUNDS) == []


def test_a_part_is_read_with_the_bounds_as_domain(volume):
    """What is read is the same at all times, and nothing is read outside of the bounds."""
    box = BoundingBox(Zyx(4, 1, 12), Zyx(5, 3, 15))
    chunk = volume.read(box, time=7)
    assert (chunk.bbox, chunk.domain, chunk.voxel_size_nm) == (box, BOUNDS, (40, 4, 4))
    np.testing.assert_array_equal(chunk.array, ARRAY[1:, 1:3, 2:])
    with pytest.raises(GeometryError, match="the part inside is 3-5_0-4_10-15"):
        volume.read(BoundingBox(Zyx(3, 0, 10), Zyx(6, 4, 15)))
    with pytest.raises(ChunkError, match="has channel 0 only"):
        volume.read(box, (1,))


def test_a_file_is_not_written_as_a_volume(volume):
    """Writing is refused, and so is a list of blocks, which a file has not as objects."""
    with pytest.raises(VolumeError, match="this file is read only"):
        volume.write(Chunk(ARRAY, BOUNDS.start))
    with pytest.raises(VolumeError, match="the volume is one file"):
        volume.stored_units()


def test_files_of_tasks_are_no_common_volume(tmp_path):
    """A loader of one file a task knows nothing before the first task."""
    files = FileName(str(tmp_path / "raw_"), EXTENSIONS, reads=True)
    loader = VolumeLoader(FileSource(files, open_npy))
    assert (loader.bounds(), loader.voxels(), loader.known_voxel_size_nm()) == (None, None, None)
    with pytest.raises(VolumeError, match="each task reads its own file"):
        _ = loader.volume

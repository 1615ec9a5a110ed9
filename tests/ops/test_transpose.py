"""transpose."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.errors import OptionError
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.ops.transpose import ORDERS, transpose
from chunkflow_py.volume import open_volume

ARRAY = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
CHUNK = Chunk(ARRAY, (10, 20, 30), (40, 8, 4), "image", BoundingBox.parse("0-50_0-60_0-70"))


def test_the_default_turns_the_order_around():
    """The new z is the old x, and all that goes with an axis goes with it."""
    found = transpose(CHUNK)
    assert found.shape == (4, 3, 2)
    assert found.array[3, 1, 0] == ARRAY[0, 1, 3]
    assert (found.voxel_offset, found.voxel_size_nm) == ((30, 20, 10), (4, 8, 40))
    assert (str(found.domain), found.kind) == ("0-70_0-60_0-50", "image")


@pytest.mark.parametrize("axes", ORDERS)
def test_every_order_is_that_of_numpy(axes):
    """The channel axis stays the first; the inverse order gives back what was there."""
    four = Chunk(np.stack([ARRAY, ARRAY + 1]))
    order = tuple(1 + "zyx".index(axis) for axis in axes)
    found = transpose(four, axes)
    assert np.array_equal(found.array, four.array.transpose((0, *order)))
    inverse = "".join("zyx"[axes.index(axis)] for axis in "zyx")
    again = transpose(transpose(CHUNK, axes), inverse)
    assert np.array_equal(again.array, ARRAY)
    assert (again.bbox, again.domain) == (CHUNK.bbox, CHUNK.domain)


def test_channels_that_are_axes_change_with_them():
    """Affinities are x, y, z: a vector along the old x is one along the new z."""
    array = np.zeros((3, 1, 1, 1), np.float32)
    array[0] = 1  # x
    found = transpose(Chunk(array, kind="affinity"), "xyz")
    assert found.array.ravel().tolist() == [0, 0, 1]
    found = transpose(Chunk(array, kind="vector"), "yxz")  # z is y, y is x, x is z
    assert found.array.ravel().tolist() == [0, 1, 0]
    assert transpose(Chunk(array, kind="image"), "xyz").array.ravel().tolist() == [1, 0, 0]


def test_in_a_line(tmp_path):
    """A new volume has the bounds and voxel sizes of what is made; other words are no order."""
    save_h5(Chunk(ARRAY, (10, 20, 30), (40, 8, 4), "image"), tmp_path / "a.h5")
    line = f"load-h5 -f {tmp_path}/a.h5 transpose save-zarr -s {tmp_path}/a.zarr -c 4 3 2"
    result = CliRunner().invoke(cli, line.split())
    assert result.exit_code == 0, result.output
    volume = open_volume(f"zarr://{tmp_path}/a.zarr")
    assert (str(volume.bounds), volume.voxel_size_nm) == ("30-34_20-23_10-12", (4, 8, 40))
    assert np.array_equal(volume.read(volume.bounds).array, ARRAY.T)
    with pytest.raises(OptionError, match="'xx' does not name each of z, y and x"):
        transpose(CHUNK, "xx")


def test_the_box_of_the_task_turns_with_its_chunk(tmp_path):
    """Margins are read in the order of the loader, and tasks fill what is made of the whole."""
    array = np.random.default_rng(0).integers(0, 255, (8, 8, 12), np.uint8)
    save_h5(Chunk(array, (2, -4, 6), (40, 8, 4), "image"), tmp_path / "a.h5")
    work = (
        f"load-h5 -f {tmp_path}/a.h5 --expand-margin-size auto transpose gaussian-filter "
        "downsample -f 2 1 1 transpose -a yxz"
    )
    for cut, block in (("", "4 2 8"), ("generate-tasks -s 2 -4 6 -z 8 8 12 -c 4 4 4 ", "4 4 2")):
        line = f"{cut}{work} save-zarr -s {tmp_path}/{len(cut)}.zarr --block-size {block}"
        result = CliRunner().invoke(cli, line.split())
        assert result.exit_code == 0, result.output
    whole, tasks = (open_volume(f"{tmp_path}/{n}.zarr") for n in (0, len(cut)))
    assert whole.bounds == tasks.bounds
    assert np.array_equal(tasks.read(tasks.bounds).array, whole.read(whole.bounds).array)


def test_files_are_named_after_the_box_that_they_hold(tmp_path, monkeypatch):
    """So that a loader finds them with the tasks of the new order."""
    monkeypatch.chdir(tmp_path)
    line = "create-bbox -s 1 2 3 -z 2 3 4 create-chunk -s 2 3 4 -t 1 2 3 transpose save-h5 -f t_"
    assert CliRunner().invoke(cli, line.split()).exit_code == 0
    assert [path.name for path in tmp_path.iterdir()] == ["t_3-7_2-5_1-3.h5"]

"""downsample."""

import logging

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.ops.downsample import Downsampler
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.downsample import downsample
from chunkflow_py.volume.files.hdf5 import open_hdf5, write_hdf5
from chunkflow_py.volume.protocol import VolumeSpec


def run(line):
    """Run a line and return its result."""
    return CliRunner().invoke(cli, line.split())


def shrunk(chunk, *options):
    """Return what the command makes of a chunk."""
    stage = cli.get_command(None, "downsample").main(list(options), standalone_mode=False)
    return stage.call(Task(items={"chunk": chunk}))["chunk"]


def test_a_line(tmp_path, monkeypatch):
    """A file is shrunk: half the voxels along each axis, twice as large, at half the offset."""
    monkeypatch.chdir(tmp_path)
    array = np.arange(4 * 6 * 8, dtype=np.uint8).reshape(4, 6, 8)
    write_hdf5(tmp_path / "em.h5", Chunk(array, (2, 4, 6), (40, 4, 4), "image"))
    done = run("load-h5 -f em.h5 downsample save-h5 -f small.h5")
    assert done.exit_code == 0, done.output
    found = open_hdf5(tmp_path / "small.h5").read()
    assert (found.bbox, found.voxel_size_nm) == (BoundingBox((1, 2, 3), (3, 5, 7)), (80, 8, 8))
    mean = array.reshape(2, 2, 3, 2, 4, 2).mean((1, 3, 5))
    np.testing.assert_array_equal(found.array, np.rint(mean))


def test_options():
    """Factor, mode and sparse do what they say."""
    labels = Chunk(np.array([[[0, 0, 5, 9]]], np.uint64), kind="segmentation")
    assert shrunk(labels, "-f", "1", "1", "4").array.item() == 0
    assert shrunk(labels, "-f", "1", "1", "4", "--sparse").array.item() == 5
    assert shrunk(labels, "-f", "1", "1", "4", "--mode", "mean").array.item() == 4
    image = Chunk(np.array([[[1, 1, 7, 9]]], np.uint8), kind="image")
    assert shrunk(image, "-f", "1", "1", "4", "--mode", "mode").array.item() == 1


def test_a_cut_coarse_voxel_is_told_once(caplog):
    """A chunk that cuts coarse voxels inside of the volume is told, with what would be whole."""
    domain = BoundingBox((0, 0, 0), (9, 9, 9))
    chunk = Chunk(np.zeros((3, 4, 5), np.uint8), (2, 2, 4), domain=domain)
    body = Downsampler()
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            body(Task(items={"chunk": chunk}))
        assert len(caplog.records) == 1
        assert "load 2-6_2-6_4-9, which contains whole coarse voxels" in caplog.text
        caplog.clear()
        Downsampler()(Task(items={"chunk": Chunk(np.zeros((5, 4, 4)), (4, 2, 4), domain=domain)}))
        assert not caplog.records


def test_what_it_needs():
    """For coarse voxels it needs all of their fine voxels inside of the volume."""
    domain = BoundingBox((0, 0, 0), (9, 9, 9))
    body = Downsampler(Zyx(2, 3, 4))
    need = body.required_input(BoundingBox((0, 1, 1), (2, 2, 3)), domain)
    assert need == BoundingBox((0, 3, 4), (4, 6, 9))


def stored(url, max_mip=1):
    """Create a precomputed volume, fill level 0, and return its chunk."""
    box = BoundingBox((0, 0, 0), (40, 48, 41))
    spec = VolumeSpec(
        box, (40, 4, 4), np.dtype("uint8"), None, "image", Zyx(8, 8, 8), max_mip=max_mip
    )  # fmt: skip
    array = np.random.default_rng(0).integers(0, 255, box.size, np.uint8)
    chunk = Chunk(array, box.start, (40, 4, 4), "image")
    create_volume(spec, url).write(chunk)
    return chunk


def test_what_comes_after_is_told_of_coarse_voxels(tmp_path):
    """Tasks in fine voxels are saved to an existing level, and to a new volume, in coarse ones."""
    url, new = f"precomputed://{tmp_path}/em", f"precomputed://{tmp_path}/new"
    chunk = stored(url)
    line = f"generate-tasks -v {url} -c 16 16 16 load-volume -v {url} downsample"
    for save in (f"save-volume -v {url} -m 1", f"save-volume -v {new}"):
        done = run(f"{line} {save}")
        assert done.exit_code == 0, done.output
    wanted = downsample(chunk)
    for volume in (open_volume(url, 1), open_volume(new)):
        assert (volume.bounds, volume.voxel_size_nm) == (wanted.bbox, (80, 8, 8))
        np.testing.assert_array_equal(volume.read(volume.bounds).array, wanted.array)


def test_tasks_that_cut_coarse_blocks_are_refused(tmp_path):
    """Boxes that two tasks would share are found before the first task, in coarse voxels."""
    url = f"precomputed://{tmp_path}/em"
    stored(url)
    line = f"generate-tasks -v {url} -c 24 16 16 load-volume -v {url} downsample"
    done = run(f"{line} save-volume -v {url} -m 1")
    assert done.exit_code == 1
    assert "tasks of size (12, 8, 8)" in done.output


def test_loaders_read_whole_coarse_voxels(tmp_path):
    """With --expand-margin-size auto a task on odd voxels reads the even ones around it."""
    url = f"precomputed://{tmp_path}/em"
    chunk = stored(url)
    line = f"create-bbox -s 3 5 7 -z 4 4 4 load-volume -v {url} -e auto downsample"
    done = run(f"{line} save-h5 -f {tmp_path}/small.h5")
    assert done.exit_code == 0, done.output
    found = open_hdf5(tmp_path / "small.h5").read()
    assert found.bbox == BoundingBox((1, 2, 3), (4, 5, 6))
    np.testing.assert_array_equal(found.array, downsample(chunk).cut(found.bbox).array)


@pytest.mark.parametrize("channels", [None, 3])
def test_other_names(channels):
    """The chunk and its result have the names that are said; the input stays."""
    shape = (() if channels is None else (channels,)) + (4, 4, 4)
    chunk = Chunk(np.ones(shape, np.float32))
    task = Task(Region(chunk.bbox), {"em": chunk})
    Downsampler(input_name="em", output_name="small")(task)
    assert task["em"] is chunk
    assert task["small"].shape == (*shape[:-3], 2, 2, 2)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint64])
def test_no_voxels_are_no_error(dtype):
    """What is empty stays so, wherever it lies."""
    found = downsample(Chunk(np.zeros((0, 3, 4), dtype), (-3, 1, 2)), Zyx(2, 2, 2))
    assert found.shape == (0, 2, 2)

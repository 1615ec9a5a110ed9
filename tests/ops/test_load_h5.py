"""load-h5 in lines, and from Python."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.save_h5 import save_h5
from chunkflow_py.volume import open_volume


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


@pytest.fixture
def volume(tmp_path, monkeypatch) -> Chunk:
    """A chunk, saved as volume.h5 in the working folder."""
    monkeypatch.chdir(tmp_path)
    array = np.arange(2 * 8 * 9 * 10, dtype=np.uint16).reshape(2, 8, 9, 10)
    chunk = Chunk(array, (100, 200, -5), (40, 4, 4), "affinity")
    save_h5(chunk, "volume.h5")
    return chunk


def test_a_whole_file_comes_back(volume):
    """Without tasks and cuts everything is loaded, with its place and kind."""
    assert run("load-h5 -f volume.h5 save-h5 -f copy.h5").exit_code == 0
    copy = load_h5("copy.h5")
    np.testing.assert_array_equal(copy.array, volume.array)
    assert (copy.bbox, copy.voxel_size_nm, copy.kind) == (volume.bbox, (40, 4, 4), "affinity")


def test_a_cut_is_global(volume):
    """--cutout-start, --cutout-stop and --cutout-size speak of global voxels."""
    for cut in ("-t 102 203 -5 -p 104 206 0", "-t 102 203 -5 -s 2 3 5", "-p 104 206 0 -s 2 3 5"):
        assert run(f"load-h5 -f volume.h5 {cut} save-h5 -f cut.h5").exit_code == 0
        part = load_h5("cut.h5")
        assert part.bbox == BoundingBox((102, 203, -5), (104, 206, 0))
        np.testing.assert_array_equal(part.array, volume.array[:, 2:4, 3:6, :5])


def test_tasks_cut_their_part(volume):
    """Every task reads its own box, clipped to the file."""
    line = "create-bbox -s 106 200 -5 -z 4 3 3 load-h5 -f volume.h5 save-h5 -f part_"
    assert run(line).exit_code == 0
    part = load_h5("part_106-110_200-203_-5--2.h5")
    assert part.bbox == BoundingBox((106, 200, -5), (108, 203, -2))


def test_a_margin_is_read_around_the_task(volume):
    """--expand-margin-size adds voxels on each side, clipped to the file."""
    line = "create-bbox -s 102 203 -5 -z 2 2 2 load-h5 -f volume.h5 --expand-margin-size 1 2 3"
    assert run(f"{line} save-h5 -f part.h5").exit_code == 0
    assert load_h5("part.h5").bbox == BoundingBox((101, 201, -5), (105, 207, 0))
    assert run(f"{line[:-5]}auto save-h5 -f auto.h5").exit_code == 0
    assert load_h5("auto.h5").bbox == BoundingBox((102, 203, -5), (104, 205, -3))


def test_a_prefix_reads_the_file_of_the_task(volume):
    """A name without an extension is completed by the task's box, or by an explicit cut."""
    Path("volume.h5").rename("p_100-108_200-209_-5-5.h5")
    line = "create-bbox -s 100 200 -5 -z 8 9 10 load-h5 -f p_ save-h5 -f a.h5"
    assert run(line).exit_code == 0
    assert run("load-h5 -f p_ -t 100 200 -5 -s 8 9 10 save-h5 -f b.h5").exit_code == 0
    for name in ("a.h5", "b.h5"):
        np.testing.assert_array_equal(load_h5(name).array, volume.array)
    result = run("load-h5 -f p_ save-h5 -f c.h5")
    assert result.exit_code == 1
    assert "p_ does not exist; check the path, or begin the pipeline with" in result.stderr


def test_options_override_the_file(volume):
    """Offset, voxel size, kind and dtype given by option win; channels are chosen."""
    line = "load-h5 -f volume.h5 -v 1 2 3 -x 5 6 7.5 -l image -e float32 -c 1 save-h5 -f a.h5"
    assert run(line).exit_code == 0
    chunk = load_h5("a.h5")
    assert chunk.bbox == BoundingBox.from_size((1, 2, 3), (8, 9, 10))
    assert (chunk.voxel_size_nm, chunk.kind) == ((5, 6, 7.5), "image")
    assert chunk.dtype == np.float32
    np.testing.assert_array_equal(chunk.array, volume.array[1:])


def test_set_bbox_makes_the_box_of_the_task(volume):
    """--set-bbox lets later prefixes know the box of the chunk."""
    assert run("load-h5 -f volume.h5 -s 2 2 2 --set-bbox save-h5 -f out_").exit_code == 0
    assert Path("out_100-102_200-202_-5--3.h5").exists()


def test_an_empty_file_is_none(volume):
    """What save-h5 leaves for a task without a result is passed on as such."""
    Path("empty.h5").touch()
    assert load_h5("empty.h5") is None
    assert run("load-h5 -f empty.h5 save-h5 -f again.h5").exit_code == 0
    assert Path("again.h5").stat().st_size == 0
    result = run("load-h5 -f empty.h5 threshold")
    assert result.exit_code == 1
    assert "item 'chunk' is None (the task has no result), not a chunk" in result.stderr


def test_remove_empty_deletes_only_what_holds_nothing(volume):
    """A file goes if it is empty or all zero, and only if all of it was seen."""
    zeros = Chunk(np.zeros((2, 2, 4, 4), "uint8"))
    zeros.array[1, 1, 3, 3] = 1
    save_h5(zeros, "one.h5")
    for cut in ("", "-s 1 4 4", "-c 0"):
        assert run(f"load-h5 -f one.h5 --remove-empty {cut}").exit_code == 0
        assert Path("one.h5").exists()
    zeros.array[...] = 0
    save_h5(zeros, "zero.h5")
    Path("empty.h5").touch()
    for name in ("zero.h5", "empty.h5"):
        assert run(f"load-h5 -f {name}").exit_code == 0
        assert run(f"--dry-run load-h5 -f {name} --remove-empty").exit_code == 0
        assert Path(name).exists()
        assert run(f"load-h5 -f {name} --remove-empty").exit_code == 0
        assert not Path(name).exists()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("-f missing.h5", 1, "missing.h5 does not exist"),
        ("-f text.h5", 1, "text.h5 is not an HDF5 file"),
        ("-f volume.h5 -d raw", 1, "no dataset 'raw', only /main (2, 8, 9, 10)"),
        ("-f volume.h5 -d voxel_size", 1, "has 1 dimensions, shape (3,)"),
        ("-f volume.h5 -c 2", 1, "has channels 0 to 1, but channel 2"),
        ("-f volume.h5 -c one", 2, "'one' is not a list of channels"),
        ("-f volume.h5 -s 9 9 9", 1, "extends outside of dataset /main"),
        ("-f volume.h5 -t 2 2 2 -p 1 3 3", 2, "must be greater than"),
        ("-f volume.h5 -x 0 1 1", 2, "0"),
        ("-f s3://bucket/volume.h5", 2, "not on this machine"),
        ("", 2, "--file-name"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(volume, options, code, message):
    """What is wrong is said before the operators in front have done anything."""
    Path("text.h5").write_text("text")
    result = run(f"create-chunk -o big save-h5 -i big -f early.h5 load-h5 {options}")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("early.h5").exists()


def test_a_task_outside_of_the_file_fails(volume):
    """A task that lies nowhere in the file is an error that names both boxes."""
    result = run("create-bbox -s 0 0 0 -z 4 4 4 load-h5 -f volume.h5")
    assert result.exit_code == 1
    assert "task 0-4_0-4_0-4 lies outside of dataset /main" in result.stderr


@pytest.mark.parametrize("source", ["", "create-bbox -s 102 203 -5 -z 2 3 5 "])
def test_the_domain_of_a_cut_is_told_before_the_run(volume, source):
    """A cut is its own domain only in a line without tasks, for the check as for the run."""
    line = f"{source}load-h5 -f volume.h5 -t 102 203 -5 -s 2 3 5 save-zarr -s {bool(source)}.zarr"
    assert run(line).exit_code == 0
    bounds = open_volume(f"{bool(source)}.zarr").bounds
    assert bounds == (volume.bbox if source else BoundingBox((102, 203, -5), (104, 206, 0)))

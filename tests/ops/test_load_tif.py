"""load-tif in lines, and from Python."""

from pathlib import Path

import numpy as np
import pytest
import tifffile
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.load_tif import load_tif
from chunkflow_py.ops.save_tif import save_tif


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


@pytest.fixture
def volume(tmp_path, monkeypatch) -> Chunk:
    """A chunk, saved as volume.tif in the working folder."""
    monkeypatch.chdir(tmp_path)
    array = np.arange(2 * 6 * 7 * 8, dtype=np.uint16).reshape(2, 6, 7, 8)
    chunk = Chunk(array, (10, 20, -3), (40, 4, 4), "image")
    save_tif(chunk, "volume.tif")
    return chunk


def test_a_whole_file_comes_back(volume):
    """Without tasks everything is loaded, with its place and kind."""
    assert run("load-tif -f volume.tif save-h5 -f copy.h5").exit_code == 0
    copy = load_h5("copy.h5")
    np.testing.assert_array_equal(copy.array, volume.array)
    assert (copy.bbox, copy.voxel_size_nm, copy.kind) == (volume.bbox, (40, 4, 4), "image")


def test_tasks_cut_their_part_with_a_margin(volume):
    """Every task reads its own box and a margin, clipped to the file."""
    line = "create-bbox -s 12 21 0 -z 2 3 2 load-tif -f volume.tif --expand-margin-size 1 0 9"
    assert run(f"{line} save-h5 -f part.h5").exit_code == 0
    part = load_h5("part.h5")
    assert part.bbox == BoundingBox((11, 21, -3), (15, 24, 5))
    np.testing.assert_array_equal(part.array, volume.array[:, 1:5, 1:4])


def test_options_override_the_file(volume):
    """Offset, voxel size, kind and dtype given by option win; channels are chosen."""
    line = "load-tif -f volume.tif -v 1 2 3 -s 5 6 7.5 -l segmentation -d uint64 -c 1,0"
    assert run(f"{line} save-h5 -f a.h5").exit_code == 0
    chunk = load_h5("a.h5")
    assert chunk.voxel_offset == (1, 2, 3)
    assert (chunk.voxel_size_nm, chunk.kind) == ((5, 6, 7.5), "segmentation")
    assert chunk.dtype == np.uint64
    np.testing.assert_array_equal(chunk.array, volume.array[::-1])


def test_a_folder_of_sections_is_one_volume(volume):
    """Sections of a folder are cut by tasks as a file is."""
    Path("sections").mkdir()
    for z, plane in enumerate(volume.array[0]):
        tifffile.imwrite(f"sections/{z:03d}.tif", plane)
    line = "create-bbox -s 2 0 0 -z 2 7 8 load-tif -f sections save-h5 -f part.h5"
    assert run(line).exit_code == 0
    np.testing.assert_array_equal(load_h5("part.h5").array, volume.array[0, 2:4])


def test_a_prefix_reads_the_file_of_the_task(volume):
    """A name without an extension is completed by the task's box."""
    Path("volume.tif").rename("p_10-16_20-27_-3-5.tif")
    line = "create-bbox -s 10 20 -3 -z 6 7 8 load-tif -f p_ save-h5 -f a.h5"
    assert run(line).exit_code == 0
    np.testing.assert_array_equal(load_h5("a.h5").array, volume.array)


def test_python_reads_a_part(volume):
    """load_tif needs no task and no command line."""
    box = BoundingBox((11, 20, -3), (12, 27, 5))
    np.testing.assert_array_equal(load_tif("volume.tif", box, (1,)).array, volume.array[1:, 1:2])


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("-f missing.tif", 1, "missing.tif does not exist"),
        ("-f text.tif", 1, "text.tif is not a TIFF file"),
        ("-f nothing", 1, "folder nothing contains no .tif files"),
        ("-f volume.tif -c 2", 1, "has channels 0 to 1, but channel 2"),
        ("-f volume.tif -d int3", 2, "int3"),
        ("", 2, "--file-name"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(volume, options, code, message):
    """What is wrong is said before the operators in front have done anything."""
    Path("text.tif").write_text("text")
    Path("nothing").mkdir()
    result = run(f"create-chunk -o big save-h5 -i big -f early.h5 load-tif {options}")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("early.h5").exists()


def test_what_a_killed_writer_left_is_no_section(volume):
    """Temporary files beside sections are not read; a file that is read is not replaced."""
    Path("sections").mkdir()
    tifffile.imwrite("sections/1.tif", volume.array[0, 0])
    Path("sections/.tmp-1f2e3d4c-2.tif").write_bytes(b"half")
    assert load_tif("sections").shape == (1, 7, 8)
    result = run("load-tif -f volume.tif save-tif -f volume.tif")
    assert (result.exit_code, "which load-tif reads" in result.stderr) == (2, True)

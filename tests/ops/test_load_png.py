"""load-png in lines, and from Python."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.load_png import load_png
from chunkflow_py.ops.save_pngs import save_pngs


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


@pytest.fixture
def volume(tmp_path, monkeypatch) -> Chunk:
    """A chunk, saved as sections 00003.png to 00008.png of the folder pngs."""
    monkeypatch.chdir(tmp_path)
    array = np.random.default_rng(0).integers(0, 255, (6, 7, 8), "uint8")
    chunk = Chunk(array, (3, 0, 0))
    save_pngs(chunk, "pngs")
    return chunk


def test_a_folder_comes_back(volume):
    """Without tasks all sections are loaded, the first at z = 0, with the voxel size given."""
    assert run("load-png -p pngs/ -x 40 4 4 save-h5 -f a.h5").exit_code == 0
    chunk = load_h5("a.h5")
    np.testing.assert_array_equal(chunk.array, volume.array)
    assert (chunk.voxel_offset, chunk.voxel_size_nm) == ((0, 0, 0), (40, 4, 4))
    assert load_png("pngs").voxel_offset == (0, 0, 0)


def test_a_voxel_offset_places_the_first_section(volume):
    """--voxel-offset, when given, is where the first section lies, also when it is 0 0 0."""
    for offset in ("100 200 300", "0 0 0"):
        assert run(f"load-png -p pngs -t {offset} save-h5 -f a.h5").exit_code == 0
        assert load_h5("a.h5").voxel_offset == tuple(map(int, offset.split()))


def test_tasks_and_cuts_read_their_part(volume):
    """A task's box, or --cutout-offset and --chunk-size, choose sections by their number."""
    assert run("create-bbox -s 4 1 2 -z 2 3 4 load-png -p pngs/ save-h5 -f a.h5").exit_code == 0
    assert run("load-png -p pngs/ -c 4 1 2 -s 2 3 4 --dtype uint16 save-h5 -f b.h5").exit_code == 0
    for name in ("a.h5", "b.h5"):
        assert load_h5(name).bbox == BoundingBox((4, 1, 2), (6, 4, 6))
        np.testing.assert_array_equal(load_h5(name).array, volume.array[1:3, 1:4, 2:6])
    assert load_h5("b.h5").dtype == np.uint16


def test_python_reads_one_section(volume):
    """load_png needs no task and no command line."""
    np.testing.assert_array_equal(load_png("pngs/00004.png").array, volume.array[1:2])


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("-p missing/", 1, "missing is neither a PNG file, nor a folder"),
        ("-p pngs/0000x", 1, "0000x is neither a PNG file, nor a folder"),
        ("-p text.png", 1, "text.png, which is not a PNG image"),
        ("-p pngs --channels 1", 1, "has channel 0 only, but channel 1 was requested"),
        ("-p pngs -c 4 0 0 -s 6 7 8", 1, "box 4-10_0-7_0-8 extends outside of sections pngs"),
        ("-p pngs -d 0", 2, "--digit-num"),
        ("", 2, "--path"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(volume, options, code, message):
    """What is wrong is said before the operators in front have done anything."""
    Path("text.png").write_text("text")
    result = run(f"create-chunk -o big save-h5 -i big -f early.h5 load-png {options}")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("early.h5").exists()


def test_what_a_killed_writer_left_is_no_section(volume):
    """Temporary files beside the sections are not read, whatever they hold."""
    Path("pngs/.tmp-1f2e3d4c-00009.png").write_bytes(b"half")
    assert load_png("pngs").shape == (6, 7, 8)
    assert load_png("pngs/0000").shape == (6, 7, 8)


def test_sections_are_not_replaced_while_they_are_read(volume):
    """A line that writes where it reads is refused before any work."""
    result = run("load-png -p pngs save-pngs -o pngs")
    assert result.exit_code == 2
    assert "save-pngs writes to" in result.stderr
    assert "which load-png reads" in result.stderr

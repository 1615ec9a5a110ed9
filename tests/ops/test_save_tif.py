"""save-tif in lines, and from Python."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import tifffile
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.ops.load_tif import load_tif
from chunkflow_py.ops.save_tif import save_tif

LIMITED = """
import resource, sys
from chunkflow_py.cli.main import main
limit = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
main(sys.argv[2:])
"""


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_any_viewer_sees_a_stack_of_pages():
    """A page a section, with the xy voxel size in the resolution tags."""
    assert run("create-chunk -s 5 20 30 -e 40 4 8 save-tif -f a.tif -c lzw").exit_code == 0
    with tifffile.TiffFile("a.tif") as file:
        assert [page.shape for page in file.pages] == [(20, 30)] * 5
        assert file.pages[0].compression.name == "LZW"
        assert file.pages[0].get_resolution("CENTIMETER") == (1e7 / 8, 1e7 / 4)


@pytest.mark.parametrize("compression", ["none", "delta", "packints", "jpeg"])
def test_every_compression_can_be_read_back(compression):
    """What the option offers works; jpeg is near, the others are exact."""
    array = np.tile(np.arange(64, dtype="uint8") * 3, (2, 48, 1))
    save_tif(Chunk(array, kind="image"), "a.tif", compression=compression.replace("none", ""))
    difference = np.abs(load_tif("a.tif").array.astype(int) - array)
    assert difference.max() <= (8 if compression == "jpeg" else 0)


def test_maps_become_uint8_by_the_fixed_rule():
    """A probability map is saved as round half to even of 255·p; without --dtype as it is."""
    chunk = Chunk(np.array([[[0.0, 0.5, 1.0]]], np.float32), kind="probability")
    save_tif(chunk, "a.tif", "uint8")
    np.testing.assert_array_equal(load_tif("a.tif").array, [[[0, 128, 255]]])
    save_tif(chunk, "a.tif")
    np.testing.assert_array_equal(load_tif("a.tif").array, chunk.array)


def test_the_box_is_the_name_where_none_is_given():
    """Without --file-name the file is named by the task, or by the chunk."""
    assert run("create-chunk -s 2 3 4 -t 1 1 1 save-tif").exit_code == 0
    assert Path("1-3_1-4_1-5.tif").exists()


def test_a_full_disk_is_one_sentence():
    """Exit 1, the old file is kept, and nothing is left beside it."""
    save_tif(Chunk(np.ones((1, 2, 2), "uint8")), "a.tif")
    line = ["--quiet", "create-chunk", "-s", "64", "128", "128", "-p", "random"]
    line += ["save-tif", "-f", "a.tif"]
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, "500000", *line],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert result.returncode == 1
    assert result.stderr.startswith("Error: save-tif failed: cannot write a.tif: ")
    assert len(result.stderr.splitlines()) == 1
    assert [p.name for p in Path.cwd().iterdir()] == ["a.tif"]
    assert load_tif("a.tif").array.all()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("-f file/a.tif", 1, "is a file, not a folder"),
        ("-f a.tif -t int8", 2, "int8"),
        ("-f a.tif -c zip", 2, "zip"),
        ("-f a.tif -i other", 2, "reads 'other', which no operator before it makes"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(options, code, message):
    """What is wrong is said before the operators in front have done anything."""
    Path("file").touch()
    result = run(f"create-chunk save-tif -f early.tif save-tif {options}")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("early.tif").exists()


def test_one_name_for_several_tasks_is_refused():
    """Several tasks cannot share one file: exit 2 before any work, with the prefix that works."""
    line = (
        "generate-tasks --roi-start 0 0 0 --roi-stop 4 4 8 -c 4 4 4 create-chunk save-tif -f a.tif"
    )
    result = run(line)
    assert result.exit_code == 2
    assert "--file-name a_" in result.stderr

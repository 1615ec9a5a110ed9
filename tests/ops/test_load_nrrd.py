"""load-nrrd and save-nrrd in lines, and from Python."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.load_nrrd import load_nrrd
from chunkflow_py.ops.save_nrrd import save_nrrd

nrrd = pytest.importorskip("nrrd")

ARRAY = np.arange(3 * 4 * 5, dtype=np.uint16).reshape(3, 4, 5)  # z, y, x


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in an empty folder."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("encoding", "dtype", "channels"),
    [("gzip", "uint8", 0), ("raw", "int16", 2), ("bzip2", "uint64", 1), ("raw", "float32", 0)],
)
def test_what_is_saved_comes_back(encoding, dtype, channels):
    """Voxels, offset, voxel size and kind come back, and any part can be read."""
    array = np.arange(120).reshape(2, 3, 4, 5).astype(dtype)
    array = array[0] if channels == 0 else array[:channels]
    chunk = Chunk(array, (-3, 7, 11), (40, 4.5, 4), "segmentation")
    save_nrrd(chunk, "a.nrrd", encoding=encoding)
    found = load_nrrd("a.nrrd")
    np.testing.assert_array_equal(found.array, array)
    assert (found.dtype, repr(found)) == (array.dtype, repr(chunk))
    box = BoundingBox((-2, 8, 12), (0, 10, 15))
    np.testing.assert_array_equal(load_nrrd("a.nrrd", box).array, chunk.cut(box).array)


def test_others_read_x_y_z_and_nanometres():
    """The header names x first and holds lengths in nm, as 3D Slicer and ITK read them."""
    save_nrrd(Chunk(ARRAY[None], (1, 2, 3), (40, 8, 4), "image"), "a.nrrd")
    array, header = nrrd.read("a.nrrd")
    assert array[4, 3, 2, 0] == ARRAY[2, 3, 4]
    assert header["labels"] == ["x", "y", "z", "c"]
    assert header["space units"] == ["nm", "nm", "nm"]
    np.testing.assert_array_equal(header["space directions"][:3], np.diag([4, 8, 40]))
    assert list(header["space origin"]) == [12, 16, 40]


def test_a_header_may_be_long():
    """Other programs store keys of their own; a header may have up to a megabyte."""
    header = {"comment of the scanner": "x" * 2000}
    nrrd.write("a.nrrd", ARRAY.T, header)
    np.testing.assert_array_equal(load_nrrd("a.nrrd").array, ARRAY)
    nrrd.write("b.nrrd", ARRAY.T, {"comment": "x" * (1 << 20)})
    result = run("load-nrrd -f b.nrrd")
    assert result.exit_code == 1
    assert "the header does not end within the first 1048576 bytes" in result.output


XYZ = np.diag([4.0, 8.0, 40.0])


@pytest.mark.parametrize(
    ("array", "header", "options", "size", "offset"),
    [
        (ARRAY.T, {}, "", (1, 1, 1), (0, 0, 0)),
        (ARRAY.T, {"spacings": [4, 8, 40]}, "", (40, 8, 4), (0, 0, 0)),
        (ARRAY, {"spacings": [40, 8, 4]}, "--order zyx", (40, 8, 4), (0, 0, 0)),
        (ARRAY, {"labels": ["z", "y", "x"], "spacings": [40, 8, 4]}, "", (40, 8, 4), (0, 0, 0)),
        (
            ARRAY.T,
            {
                "space": "left-posterior-superior",
                "space directions": XYZ / 1000,
                "space units": ["microns"] * 3,
                "space origin": [0.012, 0.016, 0.04],
            },
            "",
            (40, 8, 4),
            (1, 2, 3),
        ),
        (  # the directions say that z is the fastest axis
            ARRAY,
            {"space dimension": 3, "space directions": XYZ[::-1], "space origin": [12, 16, 40]},
            "",
            (40, 8, 4),
            (1, 2, 3),
        ),
        (  # mirrored along x: the place of the first voxel in our axes is not known
            ARRAY.T,
            {"space dimension": 3, "space directions": XYZ * [-1, 1, 1], "space origin": [9, 9, 9]},
            "",
            (40, 8, 4),
            (0, 0, 0),
        ),
        (ARRAY.T, {"spacings": [4, 8, 40]}, "-s 5 6 7 -v 1 2 3", (5, 6, 7), (1, 2, 3)),
    ],
)
def test_headers_of_other_tools(array, header, options, size, offset):
    """Axes, voxel size and origin are taken from what the header says, else from options."""
    nrrd.write("a.nrrd", array, header)
    result = run(f"load-nrrd -f a.nrrd {options} save-h5 -f a.h5")
    assert result.exit_code == 0, result.output
    found = load_h5("a.h5")
    np.testing.assert_array_equal(found.array, ARRAY)
    assert (found.voxel_size_nm, found.voxel_offset) == (size, offset)


def test_colours_and_single_sections():
    """The axis of a colour is the channel, the fastest too; an image is one section."""
    colours = np.arange(3 * 5 * 4, dtype=np.uint8).reshape(3, 5, 4)  # c, x, y
    nrrd.write("a.nrrd", colours, {"kinds": ["RGB-color", "domain", "domain"]})
    np.testing.assert_array_equal(load_nrrd("a.nrrd").array[:, 0], colours.swapaxes(1, 2))
    nrrd.write("b.nrrd", ARRAY[0].T)
    np.testing.assert_array_equal(load_nrrd("b.nrrd").array, ARRAY[:1])


def test_a_header_reads_no_file_of_another_folder():
    """Voxels beside a header are read; those of another folder are not."""
    Path("deep").mkdir()
    nrrd.write("deep/a.nhdr", ARRAY.T, detached_header=True, relative_data_path=True)
    np.testing.assert_array_equal(load_nrrd("deep/a.nhdr").array, ARRAY)
    text = Path("deep/a.nhdr").read_text()
    Path("a.nhdr").write_text(text.replace("data file: a", "data file: deep/a"))
    result = run("load-nrrd -f a.nhdr")
    assert result.exit_code == 1
    assert "stores its voxels in deep/a.raw.gz, but the voxels must be in one" in result.stderr


def test_prefixes_and_empty_files():
    """Without an extension the task's box completes the name; an empty file gives None."""
    line = "create-chunk -s 4 4 4 save-nrrd -f out_ save-nrrd -f named.nrrd -t float32 -e raw"
    assert run(f"create-bbox -s 0 0 0 -z 4 4 4 {line}").exit_code == 0
    assert Path("out_0-4_0-4_0-4.nrrd").exists()
    assert load_nrrd("named.nrrd").dtype == np.float32
    assert run("create-bbox -s 0 0 0 -z 4 4 4 load-nrrd -f out_").exit_code == 0
    Path("empty.nrrd").touch()
    assert load_nrrd("empty.nrrd") is None


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("load-nrrd -f missing.nrrd", "missing.nrrd does not exist"),
        ("load-nrrd -f text.nrrd", "is not an NRRD file; check --file-name"),
        ("load-nrrd -f cut.nrrd", "is damaged"),
        ("load-nrrd -f five.nrrd", "has 5 axes of sizes [1, 1, 1, 1, 1]"),
        ("load-nrrd -f good.nrrd -c 1", "has channel 0 only, but channel 1"),
        ("create-bbox -s 9 9 9 -z 1 1 1 load-nrrd -f good.nrrd", "lies outside of good.nrrd"),
        ("load-nrrd -f good.nrrd save-nrrd -f good.nrrd", "which load-nrrd reads"),
    ],
)
def test_what_is_wrong_is_one_sentence(line, message):
    """Each error names the file and what to change."""
    Path("text.nrrd").write_text("text")
    nrrd.write("good.nrrd", ARRAY.T)
    nrrd.write("five.nrrd", np.zeros((1,) * 5))
    nrrd.write("cut.nrrd", ARRAY.T, {"encoding": "raw"})
    Path("cut.nrrd").write_bytes(Path("cut.nrrd").read_bytes()[:-9])
    result = run(line)
    assert result.exit_code in (1, 2)
    assert message in result.stderr
    assert "Traceback" not in result.stderr

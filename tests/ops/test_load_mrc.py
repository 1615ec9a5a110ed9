"""load-mrc in lines, and from Python."""

import gzip
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.load_mrc import load_mrc

mrcfile = pytest.importorskip("mrcfile")

ARRAY = np.arange(3 * 4 * 5, dtype=np.int16).reshape(3, 4, 5)


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


def write(name, array=ARRAY, **header):
    """Write a file of voxels of 40×8×4 nm, with these fields of the header."""
    with mrcfile.new(name) as file:
        file.set_data(array)
        file.voxel_size = (40, 80, 400)  # x, y, z, ångström
        for key, value in header.items():
            file.header[key] = value


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with the file raw.mrc."""
    monkeypatch.chdir(tmp_path)
    write("raw.mrc", nzstart=10, nxstart=-2)


def test_a_task_reads_its_part():
    """Place and voxel size are the header's, and a task cuts its box with a margin."""
    line = "create-bbox -s 11 1 0 -z 1 2 2 load-mrc -f raw.mrc --expand-margin-size 1 0 9"
    result = run(f"{line} save-h5 -f a.h5")
    assert result.exit_code == 0, result.output
    part = load_h5("a.h5")
    assert (part.bbox, part.voxel_size_nm) == (BoundingBox((10, 1, -2), (13, 3, 3)), (40, 8, 4))
    np.testing.assert_array_equal(part.array, ARRAY[:, 1:3])
    assert (part.dtype, part.kind) == (np.int16, "image")


def test_options_stand_above_the_header():
    """Offset, voxel size and type are those asked for."""
    line = "load-mrc --fname raw.mrc -v 1 2 3 -s 5 6 7.5 -d float32 save-h5 -f a.h5"
    assert run(line).exit_code == 0
    found = load_h5("a.h5")
    assert (found.voxel_offset, found.voxel_size_nm) == ((1, 2, 3), (5, 6, 7.5))
    assert found.dtype == np.float32


@pytest.mark.parametrize(
    ("header", "options", "dtype"),
    [
        ({}, {}, "int8"),
        ({"dmax": 200}, {}, "uint8"),
        ({}, {"stored_bytes": "unsigned"}, "uint8"),
        ({"dmax": 200}, {"stored_bytes": "signed"}, "int8"),
        ({"imod": 0}, {}, "uint8"),
        ({"imod": 1, "dmax": 200}, {}, "int8"),
    ],
)
def test_bytes_are_signed_or_not(header, options, dtype):
    """Bytes are what IMOD's flag says, else what the largest value says, else signed."""
    flag = header.pop("imod", None)
    if flag is not None:
        extra = np.zeros(84, np.uint8)
        extra[40:48] = np.array([1146047817, flag], "<i4").view(np.uint8)
        header["extra2"] = extra.tobytes()
    write("bytes.mrc", np.array([[[-1, 5]]], np.int8), **header)
    found = load_mrc("bytes.mrc", **options)
    assert found.dtype == dtype
    assert found.array.ravel().tolist() == [-1 if dtype == "int8" else 255, 5]


def test_axes_are_those_of_the_header():
    """Columns, rows and sections are put where the header says they lie."""
    write("turned.mrc", ARRAY, mapc=3, mapr=2, maps=1)
    np.testing.assert_array_equal(load_mrc("turned.mrc").array, ARRAY.transpose(2, 1, 0))


def test_images_stacks_and_compressed_files():
    """An image is one section, a stack of volumes has channels, and gzip is unpacked."""
    write("image.mrc", ARRAY[0])
    np.testing.assert_array_equal(load_mrc("image.mrc").array, ARRAY[:1])
    write("stack.mrc", np.stack([ARRAY, ARRAY + 1]))
    np.testing.assert_array_equal(load_mrc("stack.mrc").array[1], ARRAY + 1)
    Path("raw.mrc.gz").write_bytes(gzip.compress(Path("raw.mrc").read_bytes()))
    box = BoundingBox((11, 1, 0), (12, 3, 2))
    np.testing.assert_array_equal(load_mrc("raw.mrc.gz", box).array, ARRAY[1:2, 1:3, 2:4])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("load-mrc -f missing.mrc", "missing.mrc does not exist"),
        ("load-mrc -f text.mrc", "which is damaged or not an MRC file"),
        ("load-mrc -f cut.mrc", "which is damaged or not an MRC file"),
        ("load-mrc -f waves.mrc", "holds complex64, but a chunk holds real numbers"),
        ("load-mrc -f axes.mrc", "must be 1, 2 and 3 in any order, but are [2, 2, 3]"),
    ],
)
def test_what_is_wrong_is_one_sentence(line, message):
    """Each error names the file and what is wrong with it."""
    Path("text.mrc").write_text("text")
    Path("cut.mrc").write_bytes(Path("raw.mrc").read_bytes()[:-9])
    write("waves.mrc", ARRAY.astype(np.complex64))
    write("axes.mrc", mapc=2)
    result = run(line)
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr

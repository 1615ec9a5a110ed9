"""load-npy in lines, and from Python."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.load_npy import load_npy


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


@pytest.fixture
def array(tmp_path, monkeypatch) -> np.ndarray:
    """An array, saved as volume.npy in the working folder."""
    monkeypatch.chdir(tmp_path)
    array = np.arange(2 * 6 * 7 * 8, dtype=">i4").reshape(2, 6, 7, 8)
    np.save("volume.npy", array)
    return array


def test_a_whole_file_becomes_a_chunk(array):
    """Everything is loaded at the place given by options, in the machine's byte order."""
    line = "load-npy -f volume.npy -t 1 2 3 -s 40 4 4.5 -c 1 save-h5 -f a.h5"
    assert run(line).exit_code == 0
    chunk = load_h5("a.h5")
    np.testing.assert_array_equal(chunk.array, array[1:])
    assert (chunk.voxel_offset, chunk.voxel_size_nm) == ((1, 2, 3), (40, 4, 4.5))
    assert load_npy("volume.npy", voxel_offset=Zyx(1, 2, 3)).dtype == np.dtype("=i4")


def test_tasks_cut_their_part_with_a_margin(array):
    """Every task reads its own box and a margin, clipped to the file."""
    line = "create-bbox -s 1 2 3 -z 2 2 2 load-npy -f volume.npy --expand-margin-size 2 1 0"
    assert run(f"{line} save-h5 -f a.h5").exit_code == 0
    part = load_h5("a.h5")
    assert part.bbox == BoundingBox((0, 1, 3), (5, 5, 5))
    np.testing.assert_array_equal(part.array, array[:, :5, 1:5, 3:5])


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("-f missing.npy", 1, "missing.npy does not exist"),
        ("-f text.npy", 1, "text.npy is not a .npy file; check"),
        ("-f objects.npy", 1, "objects.npy is not a .npy file of numbers"),
        ("-f words.npy", 1, "a chunk holds real numbers"),
        ("-f flat.npy", 1, "has 2 dimensions, shape (3, 4)"),
        ("-f many.npy", 1, "is an archive of several arrays"),
        ("-f volume.npy -c 2", 1, "has channels 0 to 1, but channel 2"),
        ("", 2, "--file-name"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(array, options, code, message):
    """What is wrong is said before the operators in front have done anything."""
    Path("text.npy").write_text("text")
    np.save("objects.npy", np.array([[[{}]]]), allow_pickle=True)
    np.save("words.npy", np.array([[["word"]]]))
    np.save("flat.npy", np.zeros((3, 4)))
    np.savez("many.npz", a=np.zeros((1, 1, 1)))
    Path("many.npz").rename("many.npy")
    result = run(f"create-chunk -o big save-h5 -i big -f early.h5 load-npy {options}")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("early.h5").exists()

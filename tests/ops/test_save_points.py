"""Points as HDF5 and CSV files."""

import csv

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.points import Points


@pytest.fixture
def line(tmp_path, monkeypatch):
    """Return a line that finds three points, and go to an empty folder."""
    monkeypatch.chdir(tmp_path)
    from chunkflow_py.core.chunk import Chunk
    from chunkflow_py.ops.save_h5 import save_h5

    array = np.zeros((6, 8, 8), np.float32)
    array[1, 2, 3], array[4, 6, 1], array[2, 6, 6] = 0.9, 0.8, 0.7
    save_h5(Chunk(array, (10, 20, 30), (40, 4, 4), "probability"), "map.h5")
    return "load-h5 --file-name map.h5 detect-points --min-distance 1 save-points --file-path"


def run(line, code=0):
    """Run a command line; return what it prints."""
    done = CliRunner().invoke(cli, ["--quiet", *line.split()])
    assert done.exit_code == code, done.output
    return done.output


def test_csv_holds_what_hdf5_holds(line, tmp_path):
    """Positions in voxels and nanometres, and confidences."""
    run(f"{line} points.h5")
    run(f"{line} points.csv")
    points = Points.from_hdf5((tmp_path / "points.h5").read_bytes())
    with (tmp_path / "points.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["z", "y", "x", "z_nm", "y_nm", "x_nm", "confidence"]
    assert [[int(row[axis]) for axis in "zyx"] for row in rows] == points.positions.tolist()
    nm = [[float(row[f"{axis}_nm"]) for axis in "zyx"] for row in rows]
    assert nm == points.positions_nm.tolist()
    assert [float(row["confidence"]) for row in rows] == points.confidences.tolist()
    assert len(rows) == 3


def test_names_and_formats(line, tmp_path):
    """A prefix gets the extension of the format; an extension of another format is refused."""
    run(f"create-bbox -s 10 20 30 -z 6 8 8 {line} part_ --format csv")
    run(f"create-bbox -s 10 20 30 -z 6 8 8 {line} part_")
    assert {path.name for path in tmp_path.glob("part_*")} == {
        "part_10-16_20-28_30-38.csv", "part_10-16_20-28_30-38.h5",
    }  # fmt: skip
    assert "does not have the extension of --format csv" in run(f"{line} points.h5 --format csv", 2)


def test_points_without_confidences():
    """The column is left out, and no points give a header."""
    points = Points(np.zeros((0, 3), np.int64), (40, 4, 4))
    assert points.to_csv() == b"z,y,x,z_nm,y_nm,x_nm\n"

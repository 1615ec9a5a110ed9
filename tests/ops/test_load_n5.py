"""load-n5 in lines: a dataset as tensorstore writes it."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import BoundingBox
from chunkflow_py.ops.load_h5 import load_h5

ts = pytest.importorskip("tensorstore")

ARRAY = np.arange(6 * 8 * 10, dtype=np.uint16).reshape(6, 8, 10)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with a container em.n5, which has the dataset raw/s0."""
    monkeypatch.chdir(tmp_path)
    metadata = {
        "dimensions": [10, 8, 6],
        "blockSize": [4, 4, 4],
        "dataType": "uint16",
        "compression": {"type": "gzip"},
        "axes": ["x", "y", "z"],
        "units": ["nm", "nm", "nm"],
        "resolution": [4, 8, 40],
    }
    kvstore = f"file://{tmp_path}/em.n5/raw/s0/"
    spec = {"driver": "n5", "kvstore": kvstore, "metadata": metadata}
    ts.open(spec, create=True).result().write(ARRAY.T).result()


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, ["--quiet", *line.split()])


def test_a_task_reads_its_part_of_a_dataset():
    """The arguments of the older plugin name the dataset; a task cuts its box with a margin."""
    load = "load-n5 --n5-dir em.n5 --group-path raw/s0 --driver n5 --type segmentation -e 1 0 9"
    result = run(f"create-bbox -s 2 3 4 -z 2 2 2 {load} save-h5 -f a.h5")
    assert result.exit_code == 0, result.output
    part = load_h5("a.h5")
    assert (part.bbox, part.voxel_size_nm) == (BoundingBox((1, 3, 0), (5, 5, 10)), (40, 8, 4))
    assert part.kind == "segmentation"
    np.testing.assert_array_equal(part.array, ARRAY[1:5, 3:5])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("-f nowhere.n5", "nowhere.n5"),
        ("-f em.n5 -p raw/none", "is not an N5 volume"),
        ("-f em.n5 -p raw/s0 -m 3", "has no mip 3"),
    ],
)
def test_what_is_wrong_is_one_sentence(options, message):
    """Each error names the place."""
    result = run(f"load-n5 {options}")
    assert result.exit_code == 1
    assert message in result.stderr
    assert "Traceback" not in result.stderr

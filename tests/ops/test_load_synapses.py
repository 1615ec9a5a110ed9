"""load-synapses, and what save-synapses writes."""

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.geometry import Region
from chunkflow_py.core.synapses import Synapses
from chunkflow_py.core.task import Task
from chunkflow_py.errors import GeometryError, VolumeNotFoundError
from chunkflow_py.ops.load_synapses import SynapseLoader, region_in
from chunkflow_py.store.task_files import TaskFiles

SYNAPSES = Synapses(np.array([[1, 1, 1], [9, 9, 9]]), voxel_size_nm=(40, 4, 4))
TYPES = (".h5", ".hdf5", ".json")


def run(*words):
    """Run a line."""
    return CliRunner().invoke(cli, [str(word) for word in words])


@pytest.mark.parametrize(
    ("name", "box"),
    [
        ("syns_0-64_0-512_0-512.h5", "0-64_0-512_0-512"),
        ("a/1-2_1-2_1-2/Sp2,6848-7448_5690-6290_7038-7638.h5", "6848-7448_5690-6290_7038-7638"),
        ("v1-5-64_0-512_0-512.h5", "5-64_0-512_0-512"),
        ("t3_-8--4_-8-8_0-1.h5", "t3_-8--4_-8-8_0-1"),
        ("s3://b/x_-8-8_0-1_0-1.json", "-8-8_0-1_0-1"),
    ],
)
def test_the_box_in_a_name(name, box):
    """The last part of the name holds it; signs and times are read."""
    assert str(region_in(name)) == box


def test_a_name_without_a_box():
    """What --set-bbox would need is told."""
    with pytest.raises(GeometryError, match="--set-bbox finds no box in the name of syns_1-2.h5"):
        region_in("syns_1-2.h5")


def test_from_file_to_file(tmp_path):
    """HDF5 becomes JSON and HDF5 again; a task has a file of its own; None is an empty file."""
    box = "0-5_0-5_0-5"
    (tmp_path / f"in_{box}.h5").write_bytes(SYNAPSES.to_hdf5())
    (tmp_path / "in_0-1_0-1_0-1.h5").write_bytes(SYNAPSES.to_hdf5())
    loaded = ("load-synapses", "-f", f"{tmp_path}/in_", "--remove-outside")
    line = ("create-bbox", "-s", 0, 0, 0, "-p")
    result = run(*line, 5, 5, 5, *loaded, "save-synapses", "-f", tmp_path / "out.json")
    assert result.exit_code == 0, result.output
    result = run("load-synapses", "-f", tmp_path / "out.json", "save-synapses", "-f",
                 tmp_path / "out.h5")  # fmt: skip
    assert result.exit_code == 0, result.output
    found = Synapses.from_bytes((tmp_path / "out.h5").read_bytes())
    assert (found.pre.tolist(), found.voxel_size_nm) == ([[1, 1, 1]], (40, 4, 4))
    result = run(*line, 1, 1, 1, *loaded, "save-synapses", "-f", tmp_path)
    assert result.exit_code == 0, result.output
    assert (tmp_path / "0-1_0-1_0-1.h5").read_bytes() == b""
    result = run(*line, 1, 1, 1, "load-synapses", "-f", tmp_path, "skip-none", "-i", "syns",
                 "save-synapses", "-f", tmp_path / "no.h5")  # fmt: skip
    assert (result.exit_code, (tmp_path / "no.h5").exists()) == (0, False)


def test_options(tmp_path):
    """Order, resolution, suffix and the box of the task are as they are asked for."""
    (tmp_path / "0-5_0-5_0-9.syn").write_bytes(Synapses(np.array([[1, 2, 7]])).to_hdf5())
    files = TaskFiles(f"{tmp_path}/", ".syn", TYPES)
    task = SynapseLoader(files, True, (8, 4, 2), remove_outside=True, set_bbox=True)(
        Task(Region.parse("0-5_0-5_0-9"))
    )
    assert task["syns"] is None, "7, 2, 1 is outside"
    task = SynapseLoader(files, False, (8, 4, 2), True, True, "s")(task)
    assert (task["s"].pre.tolist(), task["s"].voxel_size_nm) == ([[1, 2, 7]], (8, 4, 2))
    whole = SynapseLoader(TaskFiles(f"{tmp_path}/0-5_0-5_0-9.h5", "", TYPES), set_bbox=True)
    with pytest.raises(VolumeNotFoundError, match="does not exist; check --prefix"):
        whole(Task())
    (tmp_path / "0-5_0-5_0-9.h5").write_bytes(b"")
    assert str(whole(Task())) == "0-5_0-5_0-9"


def test_failures_are_one_sentence(tmp_path):
    """Several tasks in one file, a box that nobody has, and files of other things."""
    (tmp_path / "s.h5").write_bytes(SYNAPSES.to_hdf5())
    result = run("load-synapses", "-f", tmp_path / "s.h5", "--remove-outside")
    text = " ".join(result.output.split())
    assert (result.exit_code, "begin the pipeline with" in text) == (2, True)
    tasks = ("generate-tasks", "-c", 1, 1, 1, "-s", 0, 0, 0, "-z", 1, 1, 2)
    result = run(*tasks, "load-synapses", "-f", tmp_path / "s.h5", "save-synapses", "-f", "o.h5")
    assert (result.exit_code, "which each of the 2 tasks" in result.output) == (2, True)
    result = run("load-synapses", "-f", tmp_path / "s.h5", "save-synapses", "-f", tmp_path / "s.h5")
    assert (result.exit_code, "which load-synapses reads" in result.output) == (2, True)
    result = run("create-chunk", "save-synapses", "-i", "chunk", "-f", tmp_path / "o.h5")
    assert (result.exit_code, "'chunk' is a chunk, not Synapses" in result.output) == (1, True)
    (tmp_path / "s.json").write_text("[{}]")
    result = run("load-synapses", "-f", tmp_path / "s.json")
    assert (result.exit_code, "does not contain synapses" in result.output) == (1, True)

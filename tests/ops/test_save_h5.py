"""save-h5 in lines, and from Python."""

import os
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region
from chunkflow_py.core.task import Task
from chunkflow_py.errors import ChunkError, VolumeError
from chunkflow_py.ops.load_h5 import load_h5
from chunkflow_py.ops.save_h5 import command, save_h5

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


def test_options_reach_the_file():
    """Block size, compression, voxel size, dtype and the offset are as asked for."""
    line = "create-chunk -s 8 16 16 -t 1 2 3 save-h5 -f a.h5 -s 4 8 32 -c lzf -v 9 8 7 -d uint32"
    assert run(f"{line} --without-offset").exit_code == 0
    with h5py.File("a.h5") as file:
        assert file["main"].chunks == (4, 8, 16)
        assert file["main"].compression == "lzf"
        assert file["main"].dtype == np.uint32
        assert file["voxel_size"][()].tolist() == [9, 8, 7]
        assert "voxel_offset" not in file


def test_szip_is_written_or_refused_at_once():
    """Szip works where HDF5 has it; elsewhere it is a usage error before any work."""
    result = run("create-chunk -s 32 32 32 save-h5 -f a.h5 -c szip")
    if "szip" in h5py.filters.encode:
        assert result.exit_code == 0
        assert load_h5("a.h5").array.any()
    else:
        assert result.exit_code == 2
        assert "choose one of gzip, lzf" in result.stderr


def test_maps_become_uint8_by_the_fixed_rule():
    """A probability map is saved as round half to even of 255·p."""
    chunk = Chunk(np.array([[[0.0, 0.5, 1.0]]], np.float32), kind="probability")
    save_h5(chunk, "a.h5", "uint8")
    np.testing.assert_array_equal(load_h5("a.h5").array, [[[0, 128, 255]]])


def test_integers_that_do_not_fit_are_an_error():
    """An id above 255 is not wrapped into uint8, and no file is left."""
    with pytest.raises(ChunkError, match="0 to 255"):
        save_h5(Chunk(np.full((1, 1, 1), 256, np.uint32)), "a.h5", "uint8")
    assert not Path("a.h5").exists()


def test_each_task_has_its_file():
    """A prefix is completed by the box of each task."""
    body = command.main(["-f", "deep/folder/out_"], standalone_mode=False).body
    for start in (0, 4):
        region = Region(BoundingBox.from_size((start, 0, 0), (4, 2, 2)), time=start or None)
        task = Task(region, {"chunk": Chunk(np.full((4, 2, 2), start, "uint8"), (start, 0, 0))})
        body(task)
    assert sorted(p.name for p in Path("deep/folder").iterdir()) == [
        "out_0-4_0-2_0-2.h5",
        "out_t4_4-8_0-2_0-2.h5",
    ]
    assert load_h5("deep/folder/out_t4_4-8_0-2_0-2.h5").array.min() == 4


def test_without_tasks_a_prefix_takes_the_box_of_the_chunk():
    """A line without a source names the file after the chunk."""
    assert run("create-chunk -s 2 3 4 -t 1 1 1 save-h5 -f out_").exit_code == 0
    assert Path("out_1-3_1-4_1-5.h5").exists()


def test_one_name_for_several_tasks_is_refused():
    """Several tasks cannot share one file: exit 2 before any work, with the prefix that works."""
    np.save("tasks.npy", np.zeros(1))
    line = "generate-tasks --roi-start 0 0 0 --roi-stop 4 4 8 -c 4 4 4 create-chunk save-h5 -f a.h5"
    result = run(line)
    assert result.exit_code == 2
    assert "each of the 2 tasks" in result.stderr
    assert "--file-name a_" in result.stderr


def test_one_name_for_tasks_of_a_queue_is_refused_at_the_second():
    """Where the tasks are not known before, the second one does not replace the first's file."""
    body = command.main(["-f", "a.h5"], standalone_mode=False).body
    chunk = Chunk(np.zeros((2, 2, 2), "uint8"))
    first = Region(BoundingBox.from_size((0, 0, 0), (2, 2, 2)))
    second = Region(BoundingBox.from_size((2, 0, 0), (2, 2, 2)))
    body(Task(first, {"chunk": chunk}))
    body(Task(first, {"chunk": chunk}))
    with pytest.raises(VolumeError, match=r"would replace a\.h5, which task 0-2_0-2_0-2 has"):
        body(Task(second, {"chunk": chunk}))


@pytest.mark.parametrize("touch", [True, False])
def test_nothing_becomes_an_empty_file_or_no_file(touch):
    """--touch marks a task whose result is None by an empty file."""
    body = command.main(
        ["-f", "a_", f"--{'' if touch else 'no-'}touch"], standalone_mode=False
    ).body
    body(Task(Region(BoundingBox((0, 0, 0), (1, 1, 1))), {"chunk": None}))
    assert [p.stat().st_size for p in Path.cwd().iterdir()] == ([0] if touch else [])


def test_dry_runs_write_nothing():
    """--dry-run leaves no file."""
    assert run("--dry-run create-chunk save-h5 -f a.h5").exit_code == 0
    assert not list(Path.cwd().iterdir())


@pytest.mark.parametrize("limit", [50_000, 500_000, 1_040_000])
def test_a_full_disk_is_one_sentence(limit):
    """Exit 1, the old file is kept, nothing is left beside it, and the process does not crash."""
    save_h5(Chunk(np.ones((2, 2, 2), "uint8")), "a.h5")
    line = ["--quiet", "create-chunk", "-s", "64", "128", "128", "-p", "random"]
    line += ["save-h5", "-f", "a.h5"]
    result = subprocess.run(
        [sys.executable, "-c", LIMITED, str(limit), *line],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONFAULTHANDLER": "1"},
        timeout=60,
    )
    assert result.returncode == 1
    assert result.stderr.splitlines()[0].startswith("Error: save-h5 failed: cannot write a.h5: ")
    assert len(result.stderr.splitlines()) == 1
    assert [p.name for p in Path.cwd().iterdir()] == ["a.h5"]
    assert load_h5("a.h5").array.all()


@pytest.mark.parametrize(
    ("options", "code", "message"),
    [
        ("-f folder.h5", 1, "a folder of this name exists"),
        ("-f file/a.h5", 1, "is a file, not a folder"),
        ("-f a.h5 -s 0 1 1", 2, "0 is not in the range"),
        ("-f a.h5 -d complex64", 2, "complex64"),
        ("-f a.h5 -c zip", 2, "zip"),
        ("-f a.h5 -i other", 2, "reads 'other', which no operator before it makes"),
        ("", 2, "--file-name"),
    ],
)
def test_bad_input_is_one_sentence_before_any_work(options, code, message):
    """What is wrong is said before the operators in front have done anything."""
    Path("folder.h5").mkdir()
    Path("file").touch()
    result = run(f"create-chunk save-h5 -f early.h5 save-h5 {options}")
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert not Path("early.h5").exists()


def test_synapses_and_points_are_saved_as_their_own_commands_do():
    """The item tells what it is; None is still an empty file."""
    Path("in.json").write_text('{"pre": [[1, 2, 3]], "resolution": [8, 8, 8]}')
    line = "create-bbox -s 0 0 0 -z 1 1 1 load-synapses -f in.json"
    result = run(f"{line} save-h5 -i syns -f a_ save-synapses -f b.h5")
    assert result.exit_code == 0, result.output
    assert Path("a_0-1_0-1_0-1.h5").read_bytes() == Path("b.h5").read_bytes()
    line = "create-chunk -s 4 4 4 detect-points -o p"
    result = run(f"{line} save-h5 -i p -f c.h5 save-points -i p -f d.h5")
    assert result.exit_code == 0, result.output
    assert Path("c.h5").read_bytes() == Path("d.h5").read_bytes()
    result = run("create-bbox -s 0 0 0 -z 1 1 1 load-synapses -f in.json save-tif -i syns")
    assert (result.exit_code, "is Synapses, not a chunk" in result.stderr) == (1, True)


@pytest.mark.parametrize("dtype", ["uint32", "uint64", "int32"])
def test_labels_are_listed_as_by_chunkflow_1(tmp_path, dtype):
    """A segmentation has its labels but 0 in unique_nonzeros; an image has no such dataset."""
    array = np.random.default_rng(0).choice([0, 9, 4, 7000], (5, 6, 7)).astype(dtype)
    for kind in ("segmentation", "image"):
        save_h5(Chunk(array, kind=kind), tmp_path / "a.h5", block_size=(2, 4, 4))
        with h5py.File(tmp_path / "a.h5") as file:
            assert ("unique_nonzeros" in file) == (kind == "segmentation")
            if kind == "segmentation":
                assert file["unique_nonzeros"][:].tolist() == [4, 9, 7000]
                assert file["unique_nonzeros"].dtype == dtype
        assert np.array_equal(load_h5(tmp_path / "a.h5").array, array)

"""Tests of save-zarr and load-zarr."""

import json
import subprocess
import sys

import numpy as np
import pytest
import zarr
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Region, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.ops.load_zarr import command as load_zarr
from chunkflow_py.ops.save_zarr import command as save_zarr
from chunkflow_py.volume import open_volume


def split(words):
    """Return what a shell would make of the words."""
    return [part for word in words for part in str(word).split()]


def run(*words, code=0):
    """Run a line and return what it printed."""
    result = CliRunner().invoke(cli, ["--quiet", *split(words)])
    assert result.exit_code == code, result.output
    return result.output


def body(command, *words):
    """Return the body of a command with these options."""
    return command.invoke(command.make_context(command.name, split(words))).body


def test_round_trip(tmp_path):
    """A new OME-Zarr image has the chunk's voxels, offset, voxel size and kind."""
    chunk = Chunk(
        np.random.default_rng(0).random((3, 20, 30, 40), "f4"), (-5, 6, 7), (40, 4, 4.5), "affinity"
    )
    body(save_zarr, "-s", tmp_path / "out")(Task(items={"chunk": chunk}))
    again = body(load_zarr, "-f", tmp_path / "out")(Task())["chunk"]
    np.testing.assert_array_equal(again, chunk)
    assert (again.bbox, again.voxel_size_nm) == (chunk.bbox, chunk.voxel_size_nm)
    assert again.kind == "affinity"
    assert zarr.open_group(str(tmp_path / "out"), mode="r")["0"].shape == (3, 20, 30, 40)


@pytest.mark.parametrize(
    ("words", "shape"),
    [
        ("--plain", (40, 30, 20)),
        ("--plain --order zyx", (20, 30, 40)),
        ("", (20, 30, 40)),
        ("--order xyz", (40, 30, 20)),
    ],
)
def test_order(tmp_path, words, shape):
    """A plain array is xyz unless told otherwise, an image zyx; both are loaded alike."""
    line = "create-chunk --size 20 30 40 --pattern random save-zarr -s"
    run(line, tmp_path / "out", words)
    path = tmp_path / "out" if "--plain" in words else tmp_path / "out" / "0"
    assert zarr.open_array(str(path), mode="r").shape == shape
    assert body(load_zarr, "-f", tmp_path / "out")(Task())["chunk"].size == (20, 30, 40)


@pytest.mark.parametrize(("words", "array"), [("", "0"), ("--plain --order zyx", "")])
def test_the_format_of_older_readers(tmp_path, words, array):
    """--ome-version 0.4 writes zarr format 2 with nested blocks, as zarr 2 reads it."""
    line = "create-chunk --size 20 30 40 --pattern random -e 40 4 4 -t 1 2 3 save-zarr -c 16 16 16"
    run(line, "--ome-version 0.4", words, "-s", tmp_path / "out")
    about = json.loads((tmp_path / "out" / array / ".zarray").read_text())
    assert (about["zarr_format"], about["dimension_separator"]) == (2, "/")
    assert not [*tmp_path.glob("**/zarr.json")]
    expected = body(load_zarr, "-f", tmp_path / "out")(Task())["chunk"]
    found = zarr.open_array(str(tmp_path / "out" / array), mode="r", zarr_format=2)
    assert np.array_equal(found[:], expected.array)
    if "--plain" in words:  # where chunkflow 1.x looks
        assert found.attrs["voxel_offset"] == [1, 2, 3]
        assert found.attrs["voxel_size"] == [40, 4, 4]
    run(line, "-s", tmp_path / "new")
    assert (tmp_path / "new" / "zarr.json").exists()


def test_description(tmp_path):
    """Shape, resolution, type, blocks, shards, encoding and path are those asked for."""
    run(
        "--mip 1 create-chunk --size 32 32 32 -t 32 0 0 save-zarr --path a/b",
        "--shape 64 64 64 -r 40 4 4 --dtype uint16 -c 16 16 16 --shard-size 32 32 32",
        "--encoding blosc --mip 1 -s",
        tmp_path / "out",
    )
    volume = open_volume(f"{tmp_path}/out/a/b", mip=1)
    assert volume.bounds == BoundingBox(Zyx(0, 0, 0), Zyx(64, 64, 64))
    assert volume.voxel_size_nm == (80, 8, 8)
    assert (volume.dtype, volume.block_size, volume.write_unit) == ("uint16", (16,) * 3, (32,) * 3)
    array = zarr.open_array(f"{tmp_path}/out/a/b/1", mode="r")
    assert type(array.compressors[0]).__name__ == "BloscCodec"
    assert volume.read(volume.bounds).array[32:, :32, :32].any()


def test_cut_margin_channels(tmp_path):
    """The loader takes a cut, a margin around the task, and channels; voxel size by option."""
    array = np.random.default_rng(0).integers(0, 99, (2, 8, 9, 10), "u1")
    task = Task(items={"chunk": Chunk(array)})
    body(save_zarr, "-s", tmp_path / "out")(task)
    words = ("-f", tmp_path / "out", "-c", "1", "-v", 30, 4, 4)
    cut = body(load_zarr, *words, "-s", 1, 2, 3, "-z", 2, 2, 2)(Task())["chunk"]
    np.testing.assert_array_equal(cut, array[1:, 1:3, 2:4, 3:5])
    assert cut.voxel_size_nm == (30, 4, 4)
    inner = Task(Region(BoundingBox.from_size((1, 2, 3), (2, 2, 2))))
    grown = body(load_zarr, *words, "-e", 2, 1, 1)(inner)["chunk"]
    assert grown.bbox == BoundingBox(Zyx(0, 1, 2), Zyx(5, 5, 6))
    assert grown.domain == BoundingBox(Zyx(0, 0, 0), Zyx(8, 9, 10))


def test_time(tmp_path):
    """The time index of a task says which time point of a time series is read and written."""
    array = zarr.create_array(
        str(tmp_path / "t"), shape=(2, 4, 5, 6), dtype="u1", chunks=(1, 4, 5, 6),
        dimension_names=["t", "z", "y", "x"],
    )  # fmt: skip
    array[:] = np.arange(2)[:, None, None, None]
    region = Region(BoundingBox(Zyx(0, 0, 0), Zyx(4, 5, 6)), 1)
    task = body(load_zarr, "-f", tmp_path / "t")(Task(region))
    assert (task["chunk"].array == 1).all()
    task["chunk"] = task["chunk"] + np.uint8(4)
    body(save_zarr, "-s", tmp_path / "t")(task)
    assert [int(array[t].max()) for t in (0, 1)] == [0, 5]


def test_disk_full(tmp_path):
    """A full disk ends the line with exit 1 and one sentence, and leaves no torn file."""
    code = (
        "import resource\n"
        "from chunkflow_py.cli.main import main\n"
        "import chunkflow_py.volume.zarr.zarr_volume\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (20000, 20000))\n"
        "main()"
    )
    words = "--quiet create-chunk --pattern random save-zarr -s"
    run = [sys.executable, "-c", code, *split([words, tmp_path / "out"])]
    done = subprocess.run(run, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"cannot write {tmp_path}/out/0/c/0/0/0: file too large" in done.stderr
    assert "Traceback" not in done.stderr
    left = [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()]
    assert left == ["zarr.json", "zarr.json"]


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("create-chunk save-zarr -s out --no-create", 1, "out is not a zarr volume"),
        ("create-chunk save-zarr -s out --dtype complex64", 2, "--dtype complex64 is not"),
        ("create-chunk save-zarr -s out --dtype nonsense", 2, "--dtype nonsense is not"),
        ("create-chunk save-zarr -s out --dtype uint8 --infer-dtype", 2, "contradict each other"),
        ("create-chunk save-zarr -s out --shard-size 8 8 8", 2, "needs a block size"),
        ("create-chunk save-zarr -s out -c 6 6 6 --shard-size 8 8 8", 2, "try (12, 12, 12)"),
        ("create-chunk save-zarr -s precomputed://out", 2, "is a precomputed volume"),
        ("load-zarr -f out", 1, "out does not exist"),
        ("load-zarr -f out -b n5", 1, "out"),
    ],
)
def test_bad_input(words, code, text, tmp_path, monkeypatch):
    """What cannot work is one sentence and an exit code, and makes nothing."""
    monkeypatch.chdir(tmp_path)
    output = run(words, code=code)
    assert text in output
    assert "Traceback" not in output
    assert list(tmp_path.iterdir()) == []

"""Tests of save-precomputed."""

import json

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli import catalog
from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, BoxGrid, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.pipeline.operator import Operator, Source, TaskSource
from chunkflow_py.pipeline.pipeline import Pipeline
from chunkflow_py.volume import open_volume
from chunkflow_py.volume.thumbnail import thumbnail


def split(words):
    """Return what a shell would make of the words."""
    return [part for word in words for part in str(word).split()]


def run(*words, code=0):
    """Run a line and return what it printed."""
    result = CliRunner().invoke(cli, ["--quiet", *split(words)])
    assert result.exit_code == code, result.output
    return result.output


def stage(*words):
    """Return the operator that a command makes of these options."""
    name, *rest = split(words)
    command = catalog.load(name)
    return command.invoke(command.make_context(name, rest))


@pytest.fixture
def out(tmp_path):
    """Return the address of the volume."""
    return f"file://{tmp_path}/out"


def test_round_trip(tmp_path, out):
    """A chunk that is saved is loaded again, with its offset and voxel size."""
    made = "create-chunk --size 20 70 90 --pattern random -t -3 7 9 -e 40 4 4.5"
    run(made, "save-precomputed", "-v", out)
    volume = open_volume(out)
    assert volume.bounds == BoundingBox.from_size((-3, 7, 9), (20, 70, 90))
    assert volume.voxel_size_nm == (40, 4, 4.5)
    run("load-precomputed", "-v", out, "save-zarr", "-s", tmp_path / "copy")
    again = open_volume(str(tmp_path / "copy"))
    assert again.bounds == volume.bounds
    np.testing.assert_array_equal(again.read(volume.bounds), volume.read(volume.bounds))


def test_tasks_are_checked_first(tmp_path, out):
    """A plan that cuts blocks ends the line before the first task, and makes nothing."""
    grid = TaskSource(BoxGrid.covering(BoundingBox(Zyx(0, 0, 0), Zyx(64, 64, 64)), Zyx(24, 64, 64)))
    line = [
        stage("create-chunk --size 64 64 64"),
        stage("save-precomputed --block-size 16 32 32 -v", out),
    ]
    with pytest.raises(ValueError, match=r"task sizes that work: \(16, 64, 64\) or \(32, 64, 64\)"):
        Pipeline(line, Source("generate-tasks", grid)).check()
    assert not (tmp_path / "out").exists()


def test_no_create(tmp_path, out):
    """--no-create refuses a missing volume in one sentence, before any work."""
    text = run("create-chunk save-precomputed --no-create -v", out, code=1)
    assert f"Error: {out} is not a precomputed volume" in text
    assert "Traceback" not in text
    assert list(tmp_path.iterdir()) == []


def test_upload_log(tmp_path, out):
    """--upload-log writes where the time went, named by the box."""
    run("create-chunk --size 8 8 8 save-precomputed --upload-log -v", out)
    log = json.loads((tmp_path / "out" / "log" / "0-8_0-8_0-8.json").read_text())
    assert log["bbox"] == "0-8_0-8_0-8"
    assert set(log["timer"]) == {"create-chunk", "save-precomputed"}
    assert all(seconds >= 0 for seconds in log["timer"].values())
    assert log["compute_device"]


def test_intensity_threshold(tmp_path, out):
    """A task whose voxels all lie below the threshold is not saved; one at it is."""
    line = "create-chunk --pattern zero save-precomputed --upload-log -v"
    run(line, out, "-t", "0.5")
    assert not (tmp_path / "out").exists()
    run(line, out, "-t", "0")
    assert (tmp_path / "out" / "info").exists()


def test_fill_missing(tmp_path, out):
    """Blocks of zeros are stored with --fill-missing only."""
    line = "create-chunk --pattern zero save-precomputed -v"
    run(line, out)
    assert not list(tmp_path.rglob("*.gz"))
    run(line, out, "--fill-missing")
    assert len(list(tmp_path.rglob("*.gz"))) == 1


def test_create_thumbnail(out):
    """Thumbnails of all tasks make up that of the whole, in a volume beside the first."""
    rng = np.random.default_rng(0)
    whole = Chunk(rng.integers(0, 255, (8, 64, 96), "u1"), domain=None)
    boxes = BoxGrid.covering(whole.bbox, Zyx(8, 32, 32))
    saver = stage("save-precomputed", "--create-thumbnail", "-v", out)

    def cut(task):
        task["chunk"] = whole.cut(task.bbox)
        return task

    loader = Operator("cut", "read", cut, None, outputs=("chunk",))
    pipeline = Pipeline([loader, saver], Source("grid", TaskSource(boxes)))
    pipeline.check()
    assert not any(task.failed for task in pipeline.run())
    small = open_volume(f"{out}/thumbnail", mip=5)
    wanted = thumbnail(whole, 32)
    assert small.bounds == wanted.bbox == BoundingBox(Zyx(0, 0, 0), Zyx(8, 2, 3))
    np.testing.assert_array_equal(small.read(small.bounds), wanted)


def test_global_mip(out):
    """The level before the first command is that of every command that is not told its own."""
    run(
        "--mip",
        1,
        "create-chunk -e 40 8 8 save-precomputed --factor 1 2 2 -v",
        out,
    )
    assert open_volume(out, mip=0).voxel_size_nm == (40, 4, 4)
    assert open_volume(out, mip=1).read(BoundingBox(Zyx(0, 0, 0), Zyx(64, 64, 64))).array.any()
    assert "has no mip 2; it has mip 0, 1" in run(
        "--mip", 1, "load-precomputed", "--mip", 2, "-v", out, code=1
    )


def test_probability_into_uint8(out):
    """A float map goes into an existing uint8 volume as 255·p."""
    run("create-info -z 8 8 8 -d uint8 -b 8 8 8 -v", out)
    chunk = Chunk(np.full((8, 8, 8), 0.2, "f4"), kind="probability")
    stage("save-precomputed --no-create -v", out).call(Task(items={"chunk": chunk}))
    assert (open_volume(out).read(chunk.bbox).array == 51).all()


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ("--encoding nonsense", 2, "nonsense"),
        ("--parallel -1", 2, "parallel"),
        ("--block-size 0 1 1", 2, "block-size"),
        ("--encoding compressed_segmentation", 1, "cannot store uint8 voxels, only uint32, uint64"),
    ],
)
def test_bad_options(tmp_path, out, words, code, text):
    """Options that cannot work are refused, and nothing is made."""
    output = run("create-chunk", "save-precomputed", "-v", out, words, code=code)
    assert text in output
    assert not (tmp_path / "out").exists()


def test_a_level_that_the_volume_cannot_have_is_told_by_sizes(out):
    """A level that is missing names those that are there, and both voxel sizes."""
    made = "create-chunk --size 16 32 32 -e 40 4 4"
    run(made, "save-precomputed", "-v", out)
    said = run(made, "save-precomputed", "-v", out, "--mip", 2, code=1)
    assert "has no mip 2, only mip 0; with a factor of (2, 2, 2) per level, the voxel size" in said
    assert "(160.0, 16.0, 16.0) nm (zyx), but the voxels to write have the size (40.0" in said

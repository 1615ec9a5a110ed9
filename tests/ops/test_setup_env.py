"""setup-env: what it makes, sends and prints, and the line of workers that it prints."""

import json
import shlex
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Zyx
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

PATCH = "-z 8 16 16 -o 2 4 4 -i 10 20 20 -c 1 -r 0.01 -x 4 -b 3 -v 40 8 8"
VOLUME = "setup-env --volume-start 0 0 0 -s 24 128 128 -l file://out"


def run(line: str):
    """Run a line and return click's result."""
    return CliRunner().invoke(cli, shlex.split(line))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """Work in a folder with an image at mip 1, with a margin around the output."""
    monkeypatch.chdir(tmp_path)
    bounds = BoundingBox((0, 0, 0), (24, 64, 64))
    spec = VolumeSpec(bounds, (40, 16, 16), np.dtype("u1"), None, "image", Zyx(8, 32, 32))
    array = np.random.default_rng(0).integers(0, 256, bounds.size).astype(np.uint8)
    create_volume(spec, "precomputed://em").write(Chunk(array, (0, 0, 0), (40, 16, 16)))


def test_the_line_that_is_printed_runs():
    """Volume and thumbnail are made, tasks wait, and the printed line fills both."""
    result = run(f"--quiet {VOLUME} {PATCH} --mip 1 -q sqlite://tasks.sqlite -t 60")
    assert result.exit_code == 0, result.output
    info, thumbnail = (json.loads(Path(p).read_text()) for p in ("out/info", "out/thumbnail/info"))
    assert [scale["size"] for scale in info["scales"]] == [[128, 128, 24], [64, 64, 24]]
    assert [scale["resolution"] for scale in info["scales"]] == [[8, 8, 40], [16, 16, 40]]
    assert (info["data_type"], info["num_channels"]) == ("float32", 1)
    assert thumbnail["scales"][-1]["resolution"] == [64, 64, 40]
    assert thumbnail["scales"][-1]["size"] == [16, 16, 24]
    _, _, line = result.stdout.partition("replace INPUT, MODEL and WEIGHTS:\n")
    line = line.replace("\\\n", " ").removeprefix("chunkflow ")
    line = line.replace("--convnet-model MODEL --convnet-weight-path WEIGHTS", "-f identity")
    line = line.replace("INPUT --mip 1", "em").replace(
        "fetch-task-from-sqs", "fetch-task-from-sqs -r 0"
    )
    done = run(f"--quiet {line}")
    assert done.exit_code == 0, done.output
    image = open_volume("em").read(open_volume("em").bounds).array
    found = open_volume("out", 1)
    np.testing.assert_allclose(found.read(found.bounds).array, image / 255, atol=1e-6)
    small = open_volume("out/thumbnail", 2)
    mean = image.reshape(24, 16, 4, 16, 4).mean(axis=(2, 4))
    np.testing.assert_allclose(small.read(small.bounds).array, mean, atol=0.6)


def test_tasks_of_the_same_line_find_the_volumes():
    """Without a queue the tasks run down the line, into the volumes that it has made."""
    line = f"--quiet {VOLUME} {PATCH} --mip 1 -d uint8 load-precomputed -v em -e auto"
    network = "inference -f identity -s 10 20 20 -z 8 16 16 -v 2 4 4 -c 1 --output-dtype uint8"
    result = run(f"{line} {network} save-precomputed -v file://out --mip 1 --create-thumbnail")
    assert result.exit_code == 0, result.output
    found = open_volume("out", 1)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(
        found.read(found.bounds).array, open_volume("em").read(found.bounds).array
    )


@pytest.mark.long
def test_a_run_may_begin_with_it():
    """A submitted run makes volume and thumbnail first, and its workers fill them."""
    line = f"{VOLUME} {PATCH} --mip 1 load-precomputed -v em -e auto"
    network = "inference -f identity -s 10 20 20 -z 8 16 16 -v 2 4 4 -c 1"
    save = "save-precomputed -v file://out --mip 1 --create-thumbnail"
    result = run(f"--quiet submit --run r {line} {network} {save}")
    assert result.exit_code == 0, result.output
    assert Path("out/info").exists()
    assert Path("out/thumbnail/info").exists()
    done = run("--quiet work r")
    assert done.exit_code == 0, done.output
    image, found = open_volume("em"), open_volume("out", 1)
    expected = image.read(image.bounds).array / 255
    np.testing.assert_allclose(found.read(found.bounds).array, expected, atol=1e-6)


def test_a_dry_run_only_prints():
    """Nothing is made and no task is sent."""
    result = run(f"--dry-run {VOLUME} {PATCH} -q sqlite://tasks.sqlite")
    assert result.exit_code == 0, result.output
    assert "chunkflow fetch-task-from-sqs --queue-name sqlite://tasks.sqlite" in result.stdout
    assert sorted(p.name for p in Path().iterdir()) == ["em"]


def test_a_thumbnail_holds_whole_voxels_of_each_task():
    """Where tasks begin between voxels of the thumbnail, it is made finer, and that is said."""
    line = VOLUME.replace(
        "--volume-start 0 0 0 -s 24 128 128", "--volume-start 0 4 0 -s 24 256 256"
    )
    result = run(f"{line} {PATCH} --max-ram-size 0.006")
    assert result.exit_code == 0, result.output
    assert "thumbnail   mip 2" in result.stdout
    assert "tasks would share voxels, because the tasks begin at (0, 4, 0)" in result.stdout


def test_an_older_margin_counts_patches_by_chunk():
    """With a crop the margin, the crop and the grid of chunks are what is printed."""
    result = run(f"--dry-run {VOLUME} {PATCH} -x 3 --crop-chunk-margin 2 2 2")
    assert result.exit_code == 0, result.output
    assert "--expand-margin-size 3 4 4" in result.stdout
    assert "--grid chunk --output-crop-margin 2 2 2" in result.stdout


def test_a_volume_that_is_there_is_kept_unless_it_is_to_be_replaced():
    """The same again is fine; another description needs --overwrite-info."""
    for _ in range(2):
        assert run(f"{VOLUME} {PATCH}").exit_code == 0
    result = run(f"{VOLUME} {PATCH} -c 3")
    assert result.exit_code == 1
    assert "num_channels" in result.stderr or "channels" in result.stderr
    assert run(f"{VOLUME} {PATCH} -c 3 --overwrite-info").exit_code == 0
    assert json.loads(Path("out/info").read_text())["num_channels"] == 3


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("setup-env --volume-start 0 0 0 -l file://a -z 8 16 16", "give --volume-size or"),
        (f"{VOLUME} --volume-stop 9 9 9 -z 8 16 16", "leave --volume-stop or --volume-size out"),
        (f"{VOLUME} -z 8 16 16 -i 9 16 16", "odd number, along z"),
        (f"{VOLUME} -z 8 16 16 -m 4 -b 2", "--thumbnail-mip 2 is finer than the output at --mip 4"),
        (f"{VOLUME} -z 8 16 16 -r 0.0001", "raise --max-ram-size"),
        (f"{VOLUME} {PATCH} --crop-chunk-margin 1 3 3", "leave --crop-chunk-margin out"),
        (VOLUME.replace("file://", "zarr://") + " -z 8 16 16", "makes precomputed volumes"),
        (f"{VOLUME} {PATCH} -e jpeg", "jpeg"),
    ],
)
def test_what_cannot_be_is_told_before_anything_is_made(line, message):
    """Each error says what to change, and nothing is left behind."""
    result = run(line)
    assert result.exit_code in (1, 2), result.output
    assert message in result.stderr
    assert not Path("out").exists()

"""Tests of the operator resample: voxel sizes, tasks against the whole, runs, messages."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from chunkflow_py.cli.main import cli
from chunkflow_py.core.chunk import Chunk
from chunkflow_py.core.geometry import BoundingBox, Scale, Zyx
from chunkflow_py.core.task import Task
from chunkflow_py.errors import GeometryError, OptionError
from chunkflow_py.pipeline.resampler import Resampler
from chunkflow_py.volume import create_volume, open_volume
from chunkflow_py.volume.protocol import VolumeSpec

BOUNDS = BoundingBox((3, -6, 12), (27, 42, 60))
SIZE_NM = (40, 8, 8)


def resample(chunk: Chunk, **options) -> Chunk:
    """Resample one chunk without a pipeline."""
    return Resampler(**options)(Task(items={"chunk": chunk})).chunk("chunk")


def stored(url: str, kind: str = "image") -> Chunk:
    """Create a volume with random voxels and return its chunk."""
    rng = np.random.default_rng(0)
    dtype, high = ("uint64", 5) if kind == "segmentation" else ("uint8", 255)
    spec = VolumeSpec(BOUNDS, SIZE_NM, np.dtype(dtype), None, kind, Zyx(8, 16, 16))
    chunk = Chunk(rng.integers(0, high, BOUNDS.size).astype(dtype), BOUNDS.start, SIZE_NM, kind)
    create_volume(spec, url).write(chunk)
    return chunk


def run(*arguments: str) -> str:
    """Run a command line, which must succeed; return what it prints."""
    done = CliRunner().invoke(cli, [str(each) for each in arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize(
    ("options", "size_nm", "box"),
    [
        ({"voxel_size_nm": (40, 12, 12)}, (40, 12, 12), "3-27_-4-28_8-40"),
        ({"factor": Scale.of((1, "3/2", "3/2"))}, (40, 12, 12), "3-27_-4-28_8-40"),
        ({"voxel_size_nm": (20, 16, 16)}, (20, 16, 16), "6-54_-3-21_6-30"),
        ({"voxel_size_nm": (50, 8, 8)}, (50, 8, 8), "2-22_-6-42_12-60"),
    ],
)
def test_the_voxel_size_or_the_factor_decides(options, size_nm, box):
    """The result has the new voxel size, and lies where the input lies, in new voxels."""
    array = np.zeros(BOUNDS.size, np.uint8)
    made = resample(Chunk(array, BOUNDS.start, SIZE_NM, "image"), **options)
    assert made.voxel_size_nm == size_nm
    assert made.bbox == made.domain == BoundingBox.parse(box)
    assert (made.dtype, made.kind) == (np.uint8, "image")


def test_labels_stay_labels():
    """Labels are voted on by default, and no label appears that was not there."""
    labels = np.random.default_rng(0).choice([3, 7000000000], (9, 9, 9)).astype(np.uint64)
    made = resample(Chunk(labels, kind="segmentation"), factor=Scale.of(("3/2",) * 3))
    assert made.dtype == np.uint64
    assert set(np.unique(made.array)) == {3, 7000000000}


def test_probabilities_stay_probabilities():
    """Cubic interpolation would exceed 0 and 1 at a sharp edge."""
    step = np.repeat(np.array([0, 1], np.float32), 8).reshape(1, 1, 16)
    half, options = Scale.of((1, 1, "1/2")), {"method": "cubic"}
    made = resample(Chunk(step, kind="probability"), factor=half, **options)
    assert (made.array.min(), made.array.max()) == (0, 1)
    assert resample(Chunk(step, kind="image"), factor=half, **options).array.max() > 1


@pytest.mark.parametrize("kind", ["image", "segmentation"])
@pytest.mark.parametrize(
    ("target", "block", "task"),
    [((40, 12, 12), (8, 8, 8), (8, 24, 24)), ((20, 16, 16), (8, 12, 4), (8, 24, 24))],
)
def test_tasks_store_what_the_whole_gives(tmp_path, kind, target, block, task):
    """A new volume, written by tasks in voxels of the input, equals the resampled whole."""
    source = f"zarr://{tmp_path}/source"
    expected = resample(stored(source, kind), voxel_size_nm=tuple(map(float, target)))
    output = f"zarr://{tmp_path}/output"
    grid = ("--roi-start", *BOUNDS.start, "--roi-stop", *BOUNDS.stop, "--chunk-size", *task)
    run("generate-tasks", *grid,
        "load-volume", "--volume-path", source, "--expand-margin-size", "auto",
        "resample", "--voxel-size", *target,
        "save-volume", "--volume-path", output, "--block-size", *block)  # fmt: skip
    made = open_volume(output)
    assert made.voxel_size_nm == target
    assert made.bounds.contains(expected.bbox)
    np.testing.assert_array_equal(made.read(expected.bbox).array, expected.array)


def test_a_run_is_verified_in_new_voxels(tmp_path):
    """The spec of a run keeps the fraction, from which `verify` derives what tasks have stored."""
    source, directory = f"zarr://{tmp_path}/source", f"{tmp_path}/run"
    stored(source)
    run("submit", "--run", directory, "--no-rehearse",
        "generate-tasks", "--chunk-size", 8, 24, 24, "--roi-start", *BOUNDS.start,
        "--roi-stop", *BOUNDS.stop,
        "load-volume", "--volume-path", source, "--expand-margin-size", "auto",
        "resample", "--factor", "1", "3/2", "1.5",
        "save-volume", "--volume-path", f"zarr://{tmp_path}/output",
        "--block-size", 8, 16, 16)  # fmt: skip
    run("work", directory, "--processes", 1)
    assert "present" in run("verify", directory)
    run("status", directory)


def test_margins_are_exact(tmp_path):
    """Without the margin that interpolation needs, a warning names the input that is lacking."""
    source = f"zarr://{tmp_path}/source"
    stored(source)
    line = ("generate-tasks", "--chunk-size", 24, 24, 24, "--roi-start", 3, -6, 12,
            "--roi-stop", 27, 42, 60, "load-volume", "--volume-path", source)  # fmt: skip
    after = ("resample", "--voxel-size", 40, 12, 12)
    assert "resample needs" not in run(*line, "--expand-margin-size", "auto", *after)
    lacking = "resample needs the input 3-27_-6-19_12-37 for the result 3-27_-4-12_8-24"
    assert lacking in run(*line, "--expand-margin-size", 0, 0, 0, *after)


def test_corners_move_by_whole_voxels_of_tasks_only(tmp_path):
    """Three voxels of 3/2 are no whole number of input voxels; two are three."""
    source = f"zarr://{tmp_path}/source"
    stored(source)
    line = ["generate-tasks", "--chunk-size", "24", "24", "24", "load-volume", "--volume-path",
            source, "resample", "--factor", "1", "1", "3/2", "crop-margin", "--crop-bbox",
            "--margin-size", "0", "0"]  # fmt: skip
    run(*line, "2", "0", "0", "2")
    done = CliRunner().invoke(cli, [*line, "3", "0", "0", "3"])
    assert done.exit_code
    assert "use an offset of multiples of [1, 1, 2]" in done.output


def test_messages_say_what_to_change(tmp_path):
    """Both options or neither, an unknown voxel size, a voxel larger than the volume."""
    with pytest.raises(OptionError, match="either --voxel-size or --factor, but neither"):
        Resampler()
    with pytest.raises(OptionError, match="either --voxel-size or --factor, but both"):
        Resampler((1, 1, 1), Scale.of((1, 1, 1)))
    with pytest.raises(GeometryError, match="choose a voxel size of at most 4 4 4 nm"):
        resample(Chunk(np.zeros((4, 4, 4))), factor=Scale.of(("17/2",) * 3))
    line = ["create-chunk", "resample", "--factor", "1", "1"]
    for wrong in ("0", "-1", "1/0", "3/", "nan", "1e400", "x"):
        done = CliRunner().invoke(cli, [*line, wrong])
        assert done.exit_code == 2
        assert f"'{wrong}' is not a number above 0, such as 2, 1.5 or 3/2" in done.output
    done = CliRunner().invoke(
        cli, ["create-chunk", "--dtype", "uint64", *line[1:], "3/2", "--method", "linear"]
    )
    assert done.exit_code
    assert "voxels of uint64 cannot be interpolated" in done.output
